"""Short tool definitions that take the same calls as before."""
from __future__ import annotations

from typing import Any

import pytest
from claude_code import sent

from mlx_native_server.protocol import Tool
from mlx_native_server.prompt.slimming import PARAMETER_CHARS, TOOL_CHARS, brief, slim_tool

LONG = "First say what it is. " + "Then tell a story of it. " * 30

BRIEF = [
    ("", 10, ""),
    ("One. Two. Three.", 9, "One. Two."),
    ("One. Two.", 100, "One. Two."),
    ("Give a name, e.g. that of a tree. Or not.", 34, "Give a name, e.g. that of a tree."),
    ("# A heading\n\nThe  text\nis here.\n\nMore of it.", 100, "The text is here."),
    ("# A heading alone", 100, ""),
    ("a word and another word", 12, "a word and…"),
    ("averylongwordthatdoesnotend", 10, "averylongw…"),
]


@pytest.mark.parametrize(("text", "limit", "expected"), BRIEF)
def test_the_first_sentences_of_the_first_paragraph(text: str, limit: int, expected: str) -> None:
    assert brief(text, limit) == expected


def test_what_decides_a_call_stays_and_prose_is_cut() -> None:
    node = {"type": "object", "description": LONG, "properties": {"description": {"type": "string", "description": LONG}}, "required": ["description"]}
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "thing-id": {"anyOf": [node, {"type": "null"}], "default": None},
            "kind": {"type": "string", "enum": ["a", "b"], "description": LONG, "pattern": "^[ab]$"},
            "title": {"type": "array", "items": node, "minItems": 1, "maxItems": 2**53 - 1},
            "any": True,
        },
        "$defs": {"node": node},
        "required": ["thing-id"],
        "additionalProperties": node,
    }
    cut = brief(LONG, PARAMETER_CHARS)
    short = {"type": "object", "description": cut, "properties": {"description": {"type": "string", "description": cut}}, "required": ["description"]}
    slim = slim_tool(Tool("mcp__x__y", LONG, schema))
    assert slim.description == brief(LONG, TOOL_CHARS) and len(slim.description) <= TOOL_CHARS
    assert slim.input_schema == {
        "type": "object",
        "properties": {
            "thing-id": {"anyOf": [short, {"type": "null"}], "default": None},
            "kind": {"type": "string", "enum": ["a", "b"], "description": cut, "pattern": "^[ab]$"},
            "title": {"type": "array", "items": short, "minItems": 1},
            "any": True,
        },
        "$defs": {"node": short},
        "required": ["thing-id"],
        "additionalProperties": short,
    }


def without_prose(value: Any, names: bool = False) -> Any:
    if isinstance(value, dict):
        prose = () if names else ("description", "$schema", "title")
        kept = {key: without_prose(inner, key == "properties") for key, inner in value.items() if key not in prose}
        return {key: inner for key, inner in kept.items() if inner not in (2**53 - 1, 1 - 2**53)}
    return [without_prose(item) for item in value] if isinstance(value, list) else value


ALL_TOOLS = {tool.name: tool for request in sent().values() for tool in request.parsed().tools if not tool.server_type}


@pytest.mark.parametrize("tool", ALL_TOOLS.values(), ids=ALL_TOOLS)
def test_claude_codes_tools_keep_their_schema_and_grow_short(tool: Tool) -> None:
    slim = slim_tool(tool)
    before, after = without_prose(tool.input_schema), without_prose(slim.input_schema)
    for name, rule in after.get("properties", {}).items():
        if "default" not in before["properties"][name]:
            rule.pop("default", None)
    assert after == before
    assert (slim.name, slim.defer_loading) == (tool.name, tool.defer_loading)
    assert slim_tool(slim) == slim
    assert slim.description and len(slim.description) <= TOOL_CHARS + 1


def test_a_parameter_that_small_models_fill_in_wrongly_has_a_default() -> None:
    """A model of 1.5 billion parameters called Bash with a timeout of 0 and Read with a limit of 10."""
    defaults = {f"{name}.{key}": rule.get("default") for name in ("Bash", "Read") for key, rule in slim_tool(ALL_TOOLS[name]).input_schema["properties"].items()}
    assert (defaults["Bash.timeout"], defaults["Read.offset"], defaults["Read.limit"], defaults["Bash.run_in_background"]) == (120000, 1, 2000, False)
    assert defaults["Bash.command"] is None
