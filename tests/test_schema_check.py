"""Answers against JSON schemas: what is wrong with them, and which part of a text is the answer."""
from __future__ import annotations

import time
from typing import Any

import pytest

from mlx_native_server.turn.schema_check import best_answer, fault

PERSON = {
    "type": "object", "required": ["name"], "additionalProperties": False,
    "properties": {"name": {"type": "string"}, "age": {"type": ["integer", "null"]}, "tags": {"type": "array", "items": {"enum": ["a", "b"]}}},
}

FAULTS: list[tuple[Any, Any, str]] = [
    # schema, value, what is wrong
    (PERSON, {"name": "A", "age": 3, "tags": ["a"]}, ""),
    (PERSON, {"name": "A", "age": None}, ""),
    (PERSON, {"age": 3}, 'the answer has no "name"'),
    (PERSON, {"name": 3}, "the answer.name must be of type string, not integer"),
    (PERSON, {"name": "A", "age": 3.5}, "the answer.age must be of type integer or null, not number"),
    (PERSON, {"name": "A", "age": True}, "the answer.age must be of type integer or null, not boolean"),
    (PERSON, {"name": "A", "x": 1}, 'the answer must not have "x"'),
    (PERSON, {"name": "A", "tags": ["a", "c"]}, 'the answer.tags[1] must be one of ["a", "b"]'),
    (PERSON, ["A"], "the answer must be of type object, not array"),
    ({"type": "number"}, 3, ""),
    ({"type": "integer"}, 3.0, ""),
    ({"enum": [1]}, True, "the answer must be one of [1]"),
    ({"enum": [1]}, 1.0, ""),
    ({"const": "a"}, "b", 'the answer must be one of ["a"]'),
    ({"additionalProperties": {"type": "string"}}, {"a": 1}, "the answer.a must be of type string, not integer"),
    ({"patternProperties": {"^x": {}}, "additionalProperties": False}, {"x1": 1}, ""),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, None, ""),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, 3, "the answer must be of type string, not integer"),
    ({"allOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"a": 1}, 'the answer has no "b"'),
    ({"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}}}}}, {"next": {"next": 1}},
     "the answer.next.next must be of type object, not integer"),
    ({"$ref": "#/$defs/n", "$defs": {"n": {"$ref": "#/$defs/n"}}}, 1, ""),
    ({"$ref": "elsewhere.json"}, 1, ""),
    ({"prefixItems": [{"type": "string"}], "items": False}, ["a"], ""),
    ({"items": False}, ["a"], "the answer[0] is not allowed"),
    (True, 1, ""),
    (False, 1, "the answer is not allowed"),
    ({"type": 3, "required": "name", "properties": [], "enum": {}, "anyOf": {}, "allOf": 1}, {"a": 1}, ""),
]


@pytest.mark.parametrize("schema, value, expected", FAULTS)
def test_what_is_wrong_with_a_value(schema: Any, value: Any, expected: str) -> None:
    assert fault(value, schema) == expected


TITLE = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}
BEST = [
    # texts, the answer, what is wrong with it
    ([' {"title": "A"}\n'], '{"title": "A"}', ""),
    (['{"title":"A",  "x": 1}'], '{"title":"A",  "x": 1}', ""),
    (['```json\n{"title": "A"}\n```'], '{"title": "A"}', ""),
    (['As [1] says: {"title": "A"}.'], '{"title": "A"}', ""),
    (['{"x": {"y": [1, 2, 3]}} or {"title": "A"}'], '{"title": "A"}', ""),
    (['{"x": {"title": "inner"}}'], '{"x": {"title": "inner"}}', 'the answer has no "title"'),
    (["{'title': 'A', }"], '{"title": "A"}', ""),
    (['```json\n{"title": "say "hi""}\n```'], '{"title": "say \\"hi\\""}', ""),
    (['{"title": NaN}'], '{"title": "NaN"}', ""),
    (["A title"], "A title", "it is not JSON"),
    (["A [title]"], "A [title]", "it is not JSON"),
    ([""], "", "it is not JSON"),
    (["[" * 100_000], "[" * 100_000, "it is not JSON"),
    (['{"a": 1}', '{"title": 3}'], '{"title": 3}', "the answer.title must be of type string, not integer"),
    (['{"a": 1}', "Sorry."], '{"a": 1}', 'the answer has no "title"'),
    (['{"title": "A"}', '{"title": "B"}'], '{"title": "B"}', ""),
    (['{"title": "A"}', "Sorry."], '{"title": "A"}', ""),
]


@pytest.mark.parametrize("texts, answer, wrong", BEST)
def test_the_best_answer(texts: list[str], answer: str, wrong: str) -> None:
    assert best_answer(texts, TITLE) == (answer, wrong)


def test_a_long_text_with_many_brackets_takes_no_time() -> None:
    begun_s = time.process_time()
    best_answer(['{"a": [' * 50_000 + " words " * 50_000], TITLE)
    assert time.process_time() - begun_s < 2.0
