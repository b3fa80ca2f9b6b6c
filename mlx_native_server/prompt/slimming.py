"""Tool definitions and prose, cut to what a small model needs.

The rule: what decides whether a call is right stays (names, types, `required`, enums, defaults, nested schemas); prose is
cut to its first sentences. The tools that most sessions have are described in words of our own. Deterministic: the
same definition always gives the same text.
"""
from __future__ import annotations

import dataclasses
import re
from typing import Any, Mapping

from ..protocol import Tool

TOOL_CHARS, PARAMETER_CHARS = 300, 120
"""Length of descriptions that are cut by rule, in characters."""

Words = str | tuple[str, Any]
"""A parameter's description, "" where its name says it all, and the default that a schema forgot: small models fill everything in."""

_PATH: dict[str, Words] = {"file_path": "Absolute path"}
_WORDS: dict[str, tuple[str, dict[str, Words]]] = {
    "Agent": (
        "Start a helper agent for a large, separate task; its report comes back. Never for greetings, questions or small tasks: do those yourself.",
        {"description": "3 to 5 words", "prompt": "The whole task with all it needs", "subagent_type": "A type of the list",
         "model": "Leave out", "effort": "Leave out", "isolation": "Leave out", "run_in_background": "false to wait for its report"},
    ),
    "AskUserQuestion": ("Ask the user to choose, when the work cannot go on without it.", {}),
    "Bash": (
        "Run a shell command and get its output: ls to list files, find, grep, git, builds, tests.",
        {"command": "", "timeout": ("Milliseconds, up to 600000", 120000), "description": "What it does, in a few words",
         "run_in_background": ("true for a server or a long run", False), "dangerouslyDisableSandbox": ("", False)},
    ),
    "Edit": (
        "Replace text in a file that you have read. old_string is copied exactly from the file, without line numbers, and occurs once.",
        _PATH | {"old_string": "Text to replace", "new_string": "Text to put there", "replace_all": "Every occurrence"},
    ),
    "ExitPlanMode": ("End plan mode: show the user the finished plan.", {}),
    "Glob": ("Find files by name.", {"pattern": "Like **/*.py", "path": "Folder, absolute"}),
    "Grep": ("Search the contents of files.", {"pattern": "Regular expression", "path": "File or folder, absolute", "glob": "Only files like *.py"}),
    "Read": (
        "Read one file whose path is known: text with line numbers, an image, a PDF, a notebook. Not for folders.",
        _PATH | {"offset": ("First line", 1), "limit": ("Number of lines", 2000), "pages": "Only for a PDF: like 1-5",
                 "allow_large": ("true to go over the size limit", False)},
    ),
    "Skill": ("Load the instructions of a skill of the list, and follow them.", {"skill": "Its name, without a slash", "args": ""}),
    "StructuredOutput": ("Give the final answer in this form. Call it exactly once, at the end; text alone does not count.", {}),
    "TodoWrite": ("Keep the list of steps of a longer task.", {}),
    "ToolSearch": (
        "Load tools of which only the names are listed, so that you can call them.",
        {"query": "select:NAME or select:NAME,NAME; or words to search for", "max_results": ""},
    ),
    "WebFetch": ("Fetch a web page and ask about it.", {"url": "", "prompt": "What to find in it"}),
    "WebSearch": ("Search the web.", {"query": "", "allowed_domains": "", "blocked_domains": ""}),
    "Write": ("Write a new file, or replace one that you have read.", _PATH | {"content": "All of its text"}),
}  # fmt: skip
_WORDS["Task"] = _WORDS["Agent"]

_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
_ONE, _MANY = ("items", "additionalProperties", "not"), ("anyOf", "oneOf", "allOf", "prefixItems")
_UNSAID = ("$schema", "title", "examples")
_SAFE_INTEGER = 2**53 - 1
_SENTENCE_END = re.compile(r"(?<!e\.g\.)(?<!i\.e\.)(?<!\beg\.)(?<=[.!?])\s+")


def slim_tool(tool: Tool) -> Tool:
    """The same tool with short descriptions. It takes exactly the calls that it took before."""
    description, words = _WORDS.get(tool.name, (brief(tool.description, TOOL_CHARS), {}))
    return dataclasses.replace(tool, description=description, input_schema=_slim(tool.input_schema, words))


def brief(text: str, limit: int) -> str:
    """The first sentences of the first paragraph, at most `limit` characters; a longer sentence is cut at a word."""
    paragraphs = (" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip() and not part.lstrip().startswith("#"))
    text = next(paragraphs, "")
    kept = ""
    for sentence in _SENTENCE_END.split(text):
        if kept and len(kept) + 1 + len(sentence) > limit:
            break
        kept = f"{kept} {sentence}".strip()
    return kept if len(kept) <= limit else f"{kept[:limit].rsplit(' ', 1)[0]}…"


def _slim(schema: Mapping[str, Any], words: Mapping[str, Words]) -> dict[str, Any]:
    """`words` describe the properties of this level; the others are cut by rule."""
    slim: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _UNSAID or (isinstance(value, int) and abs(value) == _SAFE_INTEGER):
            continue
        if key == "description" and isinstance(value, str):
            slim[key] = brief(value, PARAMETER_CHARS)
        elif key in _BY_NAME and isinstance(value, Mapping):
            slim[key] = {name: _described(inner, words.get(name) if key == "properties" else None) for name, inner in value.items()}
        elif key in _ONE and isinstance(value, Mapping):
            slim[key] = _slim(value, {})
        elif key in _MANY and isinstance(value, list):
            slim[key] = [_described(inner, None) for inner in value]
        else:
            slim[key] = value
    return slim


def _described(schema: Any, words: Words | None) -> Any:
    """A property's schema in our words, None for its own, cut."""
    if not isinstance(schema, Mapping):
        return schema
    slim = _slim(schema, {})
    if words is None:
        return slim
    text, default = words if isinstance(words, tuple) else (words, None)
    slim.pop("description", None)
    if text:
        slim["description"] = text
    if default is not None:
        slim.setdefault("default", default)
    return slim
