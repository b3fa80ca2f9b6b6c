"""Code mode: a request of Claude Code's, as a small model can work with it.

The head (system text and tools) is the same in every session and folder, so it is prefilled once per machine; all that
differs follows in the messages, the program's texts in front of what was typed. Nothing that the work needs is lost:
tools outside of the chosen ones are not shown at first, but their definitions appear where the conversation turns to
them. A request becomes the same messages at its place in every later one.
"""
from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from .block_text import is_reminder, paragraphs
from .echoes import as_written, with_results
from .late_text import facts, reminder, slim_reminder, slim_system
from ..protocol import Block, Message, Request, TextBlock, Tool, ToolReferenceBlock, ToolResultBlock, ToolUseBlock
from .slimming import slim_tool
from .unlisted import deferred_names, unlisted

logger = logging.getLogger(__name__)

PROMPTS = Path(__file__).parent / "prompts"
CODE_PROMPT = (PROMPTS / "code.txt").read_text(encoding="utf-8").strip()
AGENT_PROMPT = (PROMPTS / "agent.txt").read_text(encoding="utf-8").strip()

TEMPERATURE = 0.2
"""Where the client gives none, which Claude Code never does."""

CORE = frozenset(
    "Agent Task AskUserQuestion Bash BashOutput KillShell Edit MultiEdit ExitPlanMode Glob Grep LS NotebookEdit Read Skill "
    "StructuredOutput TodoWrite ToolSearch WebFetch WebSearch Write".split()
)
"""Tools that are always shown when they are offered; those of MCP servers are too."""

NOT_HERE = "The tool {tools} cannot be used here. Say only that; do not answer from memory and make up no results."
"""For a request whose only tools run on Anthropic's servers."""

OWN_PROMPT_CHARS = 5000
"""A longer system text of which nothing is known, neither its first sentence nor a heading, counts as the client's own."""

_IDENTITY = re.compile(r"\s*You are (?:Claude Code|a Claude agent)\b[^\n]*\bAnthropic[^\n]*\n*")
_HEADING = re.compile(r"^# ([^(\n]+?)(?: \(.*)?$", re.MULTILINE)
_CLIENT_HEADINGS = frozenset(
    {"Harness", "System", "Doing tasks", "Task Management", "Executing actions with care", "Using your tools", "Tool usage policy",
     "Tone and style", "Proactiveness", "Following conventions", "Code style", "Code References", "Professional objectivity",
     "Planning without timelines", "Asking questions as you work", "Text output", "Output efficiency", "Session-specific guidance", "Memory", "auto memory",
     "Environment", "Context management"}
)  # fmt: skip
_LAST_WORDS = re.compile(r"# Context management|When the conversation grows|When you have enough|Do build original games|<total_tokens>")
_MEMORY = re.compile(r"file-based memory(?: system)? at `([^`\n]+)`")
_GIT = re.compile(r"^(?:# )?gitStatus\b.*?(?=^# |\Z)", re.MULTILINE | re.DOTALL)


def is_claude_code(request: Request) -> bool:
    """By the user agent, or by the sentence that its system prompt begins with. Names of tools say nothing."""
    return "claude-cli" in request.client.user_agent.lower() or bool(_IDENTITY.match(request.system))


def code_mode(request: Request, chosen: str) -> Request:
    """The request as the model shall see it. `chosen` is `core`, `all`, or names of tools with commas between.

    Requests without tools (titles, summaries, safety checks) are small or have a prompt of their own: their texts stay as
    they are, but for those that want a search: without the tool a model would make up what it found.
    """
    request = dataclasses.replace(request, temperature=TEMPERATURE if request.temperature is None else request.temperature)
    own = [tool for tool in request.tools if not tool.server_type]
    if not own:
        missing = ", ".join(tool.name for tool in request.tools)
        return dataclasses.replace(request, system=paragraphs([request.system, NOT_HERE.format(tools=missing)])) if missing else request
    system, extra = _system(request)
    tools = tuple(_tool(tool, request, chosen) for tool in request.tools)
    held = {tool.name for tool, before in zip(tools, request.tools) if tool.defer_loading and not before.defer_loading}
    changed = dataclasses.replace(
        request,
        system=system,
        tools=tools + unlisted(request.messages, request.tools, CORE),
        messages=tuple(map(_joined, _introduced(slim_messages(request, extra), held))),
    )
    logger.info("code mode: system %d → %d characters, tools %d → %d", len(request.system), len(system), len(own), len(own) - len(held))
    return changed


# ── system ───────────────────────────────────────────────────────────────────────────────────────


def _system(request: Request) -> tuple[str, list[str]]:
    """The system text, and what of the client's own text is to follow later because it differs by folder or user."""
    identity = _IDENTITY.match(request.system)
    text = request.system[identity.end() :] if identity else request.system
    if not text.strip():
        return CODE_PROMPT if identity else "", []
    if request.subagent:
        return _with_rules(text), []
    where = "\n".join(facts(text))
    if set(_HEADING.findall(text)) & _CLIENT_HEADINGS:
        return CODE_PROMPT, [where, *_users_own(text)]
    if len(text) > OWN_PROMPT_CHARS and not identity:
        logger.info("a system prompt of %d characters counts as Claude Code's own and is replaced (MLX_CODE_MODE=off keeps it)", len(text))
        return CODE_PROMPT, [where]
    if len(where) + 2 > len(text.strip()):  # nothing but these lines
        return CODE_PROMPT, [where]
    return _with_rules(text), []


def _with_rules(text: str) -> str:
    return f"{text.strip()}\n\n{AGENT_PROMPT}"


def _users_own(text: str) -> Iterator[str]:
    """Of Claude Code's prompt: sections that a user added, what was appended to it, and where its memory is."""
    if git := _GIT.search(text):
        yield git[0].strip()
        text = _GIT.sub("", text)
    headings = list(_HEADING.finditer(text))
    for heading, end in zip(headings, [*(match.start() for match in headings[1:]), len(text)]):
        section = text[heading.start() : end].strip()
        if heading[1] not in _CLIENT_HEADINGS:
            yield section
        elif heading[1] == "Context management":
            yield from (part for part in re.split(r"\n\s*\n", section) if not _LAST_WORDS.match(part))
    if memory := _MEMORY.search(text):
        yield f"What is to be remembered for later sessions is kept in {memory[1]} (one file a fact, and a line for each in MEMORY.md there)."


# ── tools ────────────────────────────────────────────────────────────────────────────────────────


def _tool(tool: Tool, request: Request, chosen: str) -> Tool:
    if tool.server_type:
        return tool
    names = set(re.split(r"[\s,]+", chosen.strip()))
    shown = (
        "all" in names
        or tool.name in names
        or tool.name == request.tool_choice.name
        or tool.name.startswith("mcp__")
        or ("core" in names and tool.name in CORE)
    )
    return dataclasses.replace(slim_tool(tool), defer_loading=tool.defer_loading or not shown)


def _introduced(messages: Sequence[Message], held: set[str]) -> Iterator[Message]:
    """A reference to a held-back tool where a person names it, or in the result of its call; each once."""
    left, calls = dict.fromkeys(sorted(held)), {}
    for message in messages:
        if not left:
            yield message
            continue
        calls |= {block.id: block.name for block in message.content if isinstance(block, ToolUseBlock) and block.name in left}
        content: list[Block] = []
        for block in message.content if message.role == "user" else ():
            if isinstance(block, TextBlock) and not is_reminder(block.text):
                for name in [name for name in left if _named(name, block.text)]:
                    del left[name]
                    content.append(ToolReferenceBlock(name))
            elif isinstance(block, ToolResultBlock) and (name := calls.get(block.tool_use_id)) in left:
                del left[name]
                block = dataclasses.replace(block, content=(*block.content, ToolReferenceBlock(name)))
            content.append(block)
        yield dataclasses.replace(message, content=tuple(content)) if content else message


def _named(name: str, text: str) -> bool:
    """Whether the text has the tool's name, also in small letters or with its words apart (`schedule wakeup`)."""
    words = re.findall(r"[A-Z]+[a-z0-9]*|[a-z0-9]+", name)
    return bool(re.search(r"\b" + r"[ _-]?".join(map(re.escape, words)) + r"s?\b", text, re.IGNORECASE))


# ── messages ─────────────────────────────────────────────────────────────────────────────────────


def slim_messages(request: Request, extra: Sequence[str] = ()) -> list[Message]:
    """The messages with short texts of the program's; those that follow a user's message go in front of what was typed.

    `extra` are texts that belong in front of the first one.
    """
    tools = {tool.name for tool in request.tools}
    messages: list[Message] = []
    for message in request.messages:
        tools.update(deferred_names(message))
        if message.role == "user":
            slim = Message("user", tuple(_slim_reminders(message.content, tools)))
            messages.append(_before_typed(slim, "\n\n".join(filter(None, extra))))
            extra = ()
        elif message.role == "system" and (text := _slim_text(message, tools)) and messages and messages[-1].role == "user":
            messages[-1] = _before_typed(messages[-1], text)
        elif message.role == "system":
            messages.extend([Message("system", (TextBlock(text),))] if text else [])
        else:
            messages.append(Message(message.role, tuple(map(as_written, message.content))))
    return messages


def _joined(message: Message) -> Message:
    return Message("user", with_results(message.content)) if message.role == "user" else message


def _slim_text(message: Message, tools: set[str]) -> str:
    texts = (block.text for block in message.content if isinstance(block, TextBlock))
    return "\n\n".join(filter(None, (slim_system(text, tools) for text in texts)))


def _slim_reminders(content: Sequence[Block], tools: set[str]) -> Iterator[Block]:
    for block in content:
        if isinstance(block, TextBlock) and is_reminder(block.text):
            if text := slim_reminder(block.text, tools):
                yield TextBlock(text)
        else:
            yield block


def _before_typed(message: Message, text: str) -> Message:
    """With the text as a reminder in front of all other texts, and after the results of calls."""
    if not text:
        return message
    at = next((n for n, block in enumerate(message.content) if not isinstance(block, ToolResultBlock)), len(message.content))
    return Message(message.role, (*message.content[:at], TextBlock(reminder(text)), *message.content[at:]))
