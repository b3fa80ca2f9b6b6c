"""Tools as text, for templates that cannot show them."""
from __future__ import annotations

import json

import pytest

from mlx_native_server.protocol import Tool
from mlx_native_server.prompt.tools_text import call_text, result_text, tools_text


def described(**properties: object) -> str:
    schema = {"type": "object", "properties": properties, "required": ["path"]}
    return tools_text([Tool("Read", "Read a file.", schema)]).partition("## Read\n")[2]


PARAMETERS = [
    ({"type": "string"}, "(string, required)"),
    ({"type": "string", "description": "Where\n  it is."}, "(string, required): Where it is."),
    ({"type": "string", "enum": ["a", "ü"], "description": "Which."}, '(string, required): Which. One of: "a", "ü".'),
    ({"type": ["integer", "null"]}, "(integer or null, required)"),
    ({"type": "array", "items": {"type": "string"}}, "(array of string, required)"),
    ({"type": "object", "properties": {"n": {"type": "integer"}}}, '(object, required) Schema: {"type": "object", "properties": {"n": {"type": "integer"}}}'),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, '(any, required) Schema: {"anyOf": [{"type": "string"}, {"type": "null"}]}'),
    (True, "(any, required)"),
    ({"type": 3, "enum": 5, "description": 7, "items": 9}, "(any, required)"),
]


@pytest.mark.parametrize(("rule", "line"), PARAMETERS, ids=str)
def test_a_parameter_is_one_line(rule: object, line: str) -> None:
    assert described(path=rule) == f"Read a file.\nParameters:\n- path {line}"


def test_an_optional_parameter_is_not_called_required() -> None:
    assert described(path={}, limit={"type": "integer"}).splitlines()[-1] == "- limit (integer)"


@pytest.mark.parametrize("schema", [{}, {"type": "object", "properties": {}}, {"properties": None}, {"properties": []}])
def test_a_tool_without_parameters(schema: dict[str, object]) -> None:
    assert tools_text([Tool("List", "", schema)]).endswith("## List\nParameters: none")


def test_shared_definitions_are_shown() -> None:
    schema = {"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"type": "integer"}}}
    assert tools_text([Tool("T", "", schema)]).endswith('Schema: {"$ref": "#/$defs/A"}\nDefinitions: {"A": {"type": "integer"}}')


def test_without_tools_there_is_no_text() -> None:
    assert tools_text([]) == ""


def test_calls_are_written_in_the_form_that_the_instructions_show() -> None:
    written = call_text("Read", {"path": "/ü"})
    assert json.loads(written.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")) == {"name": "Read", "arguments": {"path": "/ü"}}
    assert call_text("tool_name", {"parameter": "value"}) in tools_text([Tool("T")])
    assert result_text("a\nb") == "<tool_response>\na\nb\n</tool_response>"
