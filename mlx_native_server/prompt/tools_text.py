"""Tools, calls and results as plain text, for chat templates that have no place for them.

The form is the tagged JSON that most agent models know (`<tool_call>{"name": …, "arguments": {…}}</tool_call>`), and the
history is written in the same form that the instructions ask for. So is what a request demands of the answer's form. Deterministic:
the same tools give the same text.
"""
from __future__ import annotations

import json
from typing import Any, Iterator, Mapping, Sequence

from ..protocol import Tool

_INSTRUCTIONS = """# Tools

You can call the tools listed below. To call one, write exactly this form:

<tool_call>
{"name": "tool_name", "arguments": {"parameter": "value"}}
</tool_call>

Rules:
1. Between the tags stands one JSON object and nothing else. No code fence goes around it.
2. Use only the tools of the list, spelled as they are there, with every required parameter and no others than listed.
3. Values have the type that is given; text is escaped as JSON demands.
4. Several calls are several blocks, one after another. After the last one, stop and wait.
5. The results come back in <tool_response> tags, in the order of the calls. Never write a result yourself.
6. When no tool is needed, answer in plain text."""

_JSON_ANSWER = """# Form of the answer

Answer with one JSON value and nothing else: no text around it, no code fence. It has to fit this JSON schema:"""

_NESTED = ("properties", "anyOf", "oneOf", "allOf", "$ref", "prefixItems", "additionalProperties")


def tools_text(tools: Sequence[Tool]) -> str:
    """What stands in the system message when the template renders no tools; "" without tools."""
    return "\n\n".join([_INSTRUCTIONS, *map(_tool, tools)]) if tools else ""


def definition_text(tool: Tool, as_json_text: bool) -> str:
    """One tool outside of the list: as the JSON that most templates list tools in, or as `tools_text` lists it."""
    if not as_json_text:
        return _tool(tool)
    return as_json({"name": tool.name, "description": tool.description, "parameters": tool.input_schema})


def schema_text(schema: Mapping[str, Any]) -> str:
    """What asks for an answer that is JSON of this schema."""
    return f"{_JSON_ANSWER}\n{as_json(schema)}"


def call_text(name: str, arguments: Mapping[str, Any]) -> str:
    """One call as the assistant writes it."""
    return f"<tool_call>\n{as_json({'name': name, 'arguments': arguments})}\n</tool_call>"


def result_text(content: str) -> str:
    """One result as the user's side shows it."""
    return f"<tool_response>\n{content}\n</tool_response>"


def as_json(value: Any) -> str:
    """JSON on one line, letters of every script as they are."""
    return json.dumps(value, ensure_ascii=False)


def _tool(tool: Tool) -> str:
    return "\n".join([f"## {tool.name}", *filter(None, [tool.description.strip()]), *_parameters(tool.input_schema)])


def _parameters(schema: Mapping[str, Any]) -> Iterator[str]:
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict) or not properties:
        yield "Parameters: none"
        return
    yield "Parameters:"
    for name, rule in properties.items():
        yield _parameter(name, rule if isinstance(rule, dict) else {}, isinstance(required, list) and name in required)
    if definitions := schema.get("$defs") or schema.get("definitions"):
        yield f"Definitions: {as_json(definitions)}"


def _parameter(name: str, rule: Mapping[str, Any], required: bool) -> str:
    line = f"- {name} ({', '.join([_type(rule), *(['required'] if required else [])])})"
    if isinstance(description := rule.get("description"), str):
        line += f": {' '.join(description.split())}"
    if isinstance(values := rule.get("enum"), list):
        line += f" One of: {', '.join(map(as_json, values))}."
    if _is_nested(rule):
        line += f" Schema: {as_json({key: value for key, value in rule.items() if key != 'description'})}"
    return line


def _type(rule: Mapping[str, Any]) -> str:
    kind = rule.get("type")
    if isinstance(kind, list):
        return " or ".join(map(str, kind))
    if kind == "array" and isinstance(items := rule.get("items"), dict) and isinstance(items.get("type"), str):
        return f"array of {items['type']}"
    return kind if isinstance(kind, str) else "any"


def _is_nested(rule: Mapping[str, Any]) -> bool:
    """Whether the type alone does not say how a value is built."""
    items = rule.get("items")
    return any(rule.get(key) for key in _NESTED) or (isinstance(items, dict) and set(items) - {"type", "description"} != set())
