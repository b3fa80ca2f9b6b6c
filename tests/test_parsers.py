"""The dialects, by tables of model output: each row under every split."""
from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlx_native_server.protocol import Tool
from outputs import BASH, STRING, answer, check_grammar, run, splits, summary, tool

CASES = [json.loads(line) for line in (Path(__file__).parent / "cases" / "output.jsonl").read_text("utf-8").splitlines()]
RUNNABLE = [case for case in CASES if {"text", "chunks", "byte_chunks_hex"} & case["input"].keys() and "tool_calls" in case["expect"]]

def _folded(text: str) -> str:
    return " ".join(text.split())


def _agrees(got: dict, want: dict, given: dict, raw: str) -> bool:
    text = raw if want.get("text", "").startswith("<raw") else want.get("text", got["text"])
    same_text = got["text"].strip() == text.strip() if given.get("text_exact") else _folded(got["text"]) == _folded(text)
    calls = [(call["name"], call["input"]) for call in want["tool_calls"]]
    return (
        same_text and json.dumps(got["calls"], sort_keys=True) == json.dumps(calls, sort_keys=True)
        and _folded(got["thinking"]) == _folded(want.get("thinking", got["thinking"]))
        and all(got[key] == want[key] for key in ("stop_reason", "stop_sequence") if key in want)
    )


@pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in RUNNABLE])
def test_case(case: dict) -> None:
    given, want = case["input"], case["expect"]
    if "byte_chunks_hex" in given:
        pytest.skip("bytes are decoded by replay: see test_replay")
    tools = [Tool(name=t["name"], input_schema=t["input_schema"]) for t in given.get("tools", [])]
    raw = given.get("text") or "".join(given["chunks"])
    options = {
        "opens_thinking": given.get("prompt_opens_thinking", False), "stop_sequences": given.get("stop_sequences", ()),
        "suppresses_thinking": given.get("prompt_suppresses_thinking", False),
    }
    wants = [want] + [want | other for other in want.get("also_accept", [])]
    for chunks in [given.get("chunks", [raw]), *splits(raw, seed=len(raw))]:
        events = run(chunks, given.get("finish_reason", "stop"), tools, **options)
        check_grammar(events)
        got = summary(events)
        assert any(_agrees(got, w, given, raw) for w in wants), got
        deltas = [e["delta"].get("text", "") for e in events if e["type"] == "content_block_delta"]
        assert not [d for d in deltas for held in want.get("deltas_must_not_contain", []) if held in d]


# ── one call, by spelling ────────────────────────────────────────────────────────────────────────

LS = ("Bash", {"command": "ls"})

ONE_CALL = {
    "tags": '<tool_call>\n{"name": "Bash", "arguments": {"command": "ls"}}\n</tool_call>',
    "no space": '<tool_call>{"name":"Bash","arguments":{"command":"ls"}}</tool_call>',
    "other keys": '<tool_call>{"tool": "Bash", "parameters": {"command": "ls"}}</tool_call>',
    "nested function": '<tool_call>{"type": "function", "function": {"name": "Bash", "arguments": {"command": "ls"}}}</tool_call>',
    "arguments first": '<tool_call>{"arguments": {"command": "ls"}, "name": "Bash"}</tool_call>',
    "arguments as text": '<tool_call>{"name": "Bash", "arguments": "{\\"command\\": \\"ls\\"}"}</tool_call>',
    "an id and a type": '<tool_call>{"id": "call_1", "type": "function", "name": "Bash", "arguments": {"command": "ls"}}</tool_call>',
    "something behind the arguments": '<tool_call>{"name": "Bash", "arguments": {"command": "ls"}, "id": 7}</tool_call>',
    "fence in tags": '<tool_call>\n```json\n{"name": "Bash", "arguments": {"command": "ls"}}\n```\n</tool_call>',
    "opener twice": '<tool_call>\n<tool_call>\n{"name": "Bash", "arguments": {"command": "ls"}}\n</tool_call>',
    "closer twice": '<tool_call>{"name": "Bash", "arguments": {"command": "ls"}}</tool_call></tool_call>',
    "closer cut": '<tool_call>{"name": "Bash", "arguments": {"command": "ls"}}</tool_',
    "all closers missing": '<tool_call>{"name": "Bash", "arguments": {"command": "ls"',
    "both braces missing": '<tool_call>{"name": "Bash", "arguments": {"command": "ls"\n</tool_call>',
    "braces too many": '<tool_call>{"name": "Bash", "arguments": {"command": "ls"}}}]}\n</tool_call>',
    "missing comma": '<tool_call>{"name": "Bash" "arguments": {"command": "ls"}}</tool_call>',
    "wrong case": '<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>',
    "invented namespace": '<tool_call>{"name": "functions.Bash", "arguments": {"command": "ls"}}</tool_call>',
    "one unknown key, one missing": '<tool_call>{"name": "Bash", "arguments": {"cmd": "ls"}}</tool_call>',
    "null for an optional key": '<tool_call>{"name": "Bash", "arguments": {"timeout": null, "command": "ls"}}</tool_call>',
    "repeated key": '<tool_call>{"name": "Bash", "arguments": {"command": "ls", "command": "rm"}}</tool_call>',
    "undeclared key": '<tool_call>{"name": "Bash", "arguments": {"command": "ls", "why": "to see"}}</tool_call>',
    "undeclared key first": '<tool_call>{"name": "Bash", "arguments": {"why": "to see", "command": "ls"}}</tool_call>',
    "tools tag": '<tools>{"name": "Bash", "arguments": {"command": "ls"}}</tools>',
    "gemma": '<|tool_call>call:Bash{command:<|"|>ls<|"|>}<tool_call|>',
    "gemma json quotes": '<|tool_call>call:Bash{"command": "ls"}<tool_call|>',
    "gemma quoted key": '<|tool_call>call:Bash{<|"|>command<|"|>:<|"|>ls<|"|>}<tool_call|>',
    "gemma spaces": '<|tool_call>\ncall:Bash{ command : <|"|>ls<|"|> }\n<tool_call|>',
    "gemma bare": "<|tool_call>call:Bash{command:ls}<tool_call|>",
    "gemma stray quote": "<|tool_call>call:Bash{command:'ls'<|\"|>}<tool_call|>",
    "gemma no closer": '<|tool_call>call:Bash{command:<|"|>ls<|"|>}',
    "gemma no brace": '<|tool_call>call:Bash{command:<|"|>ls<|"|>',
    "gemma no brace but closer": '<|tool_call>call:Bash{command:<|"|>ls<|"|><tool_call|>',
    "gemma response marker": '<|tool_call>call:Bash{command:<|"|>ls<|"|>}<tool_call|><|tool_response>',
    "gemma in json tags": '<tool_call>call:Bash{command:<|"|>ls<|"|>}</tool_call>',
    "json in gemma marks": '<|tool_call>{"name": "Bash", "arguments": {"command": "ls"}}<tool_call|>',
    "naked gemma": 'call:Bash{command:<|"|>ls<|"|>}',
    "functiongemma": "<start_function_call>call:Bash{command:<escape>ls<escape>}<end_function_call>",
    "leading newlines": '\n\n<tool_call>{"name": "Bash", "arguments": {"command": "ls"}}</tool_call>\n',
    "turn marker behind": '<tool_call>{"name": "Bash", "arguments": {"command": "ls"}}</tool_call><|im_end|>\n',
}


@pytest.mark.parametrize("text", ONE_CALL.values(), ids=ONE_CALL)
def test_spelling_of_one_call(text: str) -> None:
    got = answer(text)
    assert got["calls"] == [LS] and got["text"] == "" and got["kinds"] == ["tool_use"] and got["stop_reason"] == "tool_use"


SEVERAL = {
    "list": '<tool_call>[{"name": "Bash", "arguments": {"command": "ls"}}, {"name": "list_pages", "arguments": {}}]</tool_call>',
    "two in one tag": '<tool_call>{"name": "Bash", "arguments": {"command": "ls"}}\n{"name": "list_pages", "arguments": {}}</tool_call>',
    "no arguments key": '<tool_call>{"name": "Bash", "arguments": {"command": "ls"}}</tool_call><tool_call>{"name": "list_pages"}</tool_call>',
    "gemma in one block": '<|tool_call>call:Bash{command:<|"|>ls<|"|>}call:list_pages{}<tool_call|>',
    "two dialects": '<|tool_call>call:Bash{command:<|"|>ls<|"|>}<tool_call|>\n<tool_call>{"name": "list_pages", "arguments": {}}</tool_call>',
}


@pytest.mark.parametrize("text", SEVERAL.values(), ids=SEVERAL)
def test_several_calls(text: str) -> None:
    got = answer(text)
    assert got["calls"] == [LS, ("list_pages", {})] and got["text"] == ""


NOT_A_CALL = {
    "undeclared": '<tool_call>\n{"name": "Nope", "arguments": {"command": "ls"}}\n</tool_call>',
    "undeclared gemma": '<|tool_call>call:Nope{command:<|"|>ls<|"|>}<tool_call|>',
    "a call inside an undeclared one": '<|tool_call>call:Nope{c:<|"|><tool_call>{"name": "Bash", "arguments": {"command": "rm"}}</tool_call><|"|>}<tool_call|>',
    "required key missing": '<tool_call>{"name": "Bash", "arguments": {}}</tool_call>',
    "two unknown keys": '<tool_call>{"name": "Bash", "arguments": {"cmd": "ls", "x": 1}}</tool_call>',
    "a tool's definition": '<tool_call>{"name": "list_pages", "parameters": {"type": "object", "properties": {}}}</tool_call>',
    "arguments are a list": '<tool_call>{"name": "Bash", "arguments": ["ls"]}</tool_call>',
    "arguments are words": '<tool_call>{"name": "Bash", "arguments": "ls -l"}</tool_call>',
    "name is an object": '<tool_call>{"name": {"a": 1}, "arguments": {"command": "ls"}}</tool_call>',
    "not JSON": "<tool_call> is the tag to look for",
    "prose after the opener": 'A <tool_call> {then a brace',
    "mark in code": '`<tool_call>{"name": "Bash", "arguments": {"command": "ls"}}</tool_call>`',
    "mark in a fence": '```\n<tool_call>{"name": "Bash", "arguments": {"command": "ls"}}</tool_call>\n```',
    "mark in a tilde fence": '~~~xml\n<tool_call>{"name": "Bash", "arguments": {"command": "ls"}}</tool_call>\n~~~',
    "call: in a sentence": "You can call:Bash{command:ls} if you like",
    "call: without arguments": "call: me later",
    "opener only": "<tool_call>",
    "half an opener": "a <tool_c",
    "deep nesting": '<tool_call>{"name": "Bash", "arguments": {"command": ' + "[" * 300 + "]" * 300 + "}}</tool_call>",
}


@pytest.mark.parametrize("text", NOT_A_CALL.values(), ids=NOT_A_CALL)
def test_what_is_no_call_is_text_to_the_character(text: str) -> None:
    got = answer(text)
    if got["unfinished"]:  # the call was committed before it broke
        assert text == NOT_A_CALL["deep nesting"]
    else:
        assert got["text"] == text and got["stop_reason"] == "end_turn"
    assert got["calls"] == []


def test_text_around_calls_is_kept_in_order() -> None:
    got = answer('One.\n<tool_call>{"name": "Nope", "arguments": {}}</tool_call>\nTwo.\n<tool_call>{"name": "list_pages"}</tool_call>\nThree.')
    assert got["text"] == 'One.\n<tool_call>{"name": "Nope", "arguments": {}}</tool_call>\nTwo.\nThree.'
    assert got["kinds"] == ["text", "tool_use", "text"]


def test_an_undeclared_call_of_a_list_is_text_and_the_others_are_calls() -> None:
    nope, pages = '{"name": "Nope", "arguments": {"a": 1}}', '{"name": "list_pages"}'
    assert answer(f"<tool_call>[{pages}, {nope}]</tool_call>")["kinds"] == ["tool_use", "text"]
    got = answer(f"<tool_call>[{nope}, {pages}]</tool_call>")
    assert got["kinds"] == ["text", "tool_use"] and nope in got["text"]


# ── the end of the text ──────────────────────────────────────────────────────────────────────────

CUTS = [  # text, reason, calls, unfinished calls, text of the answer (None: the raw text)
    ('<tool_call>{"name": "Bash", "arguments": {"command": "ls -', "stop", 0, 1, ""),
    ('<tool_call>{"name": "Bash", "arguments": {"command": "ls -', "length", 0, 1, ""),
    ('<tool_call>{"name": "Bash", "arguments": {"command": "ls"', "length", 0, 1, ""),
    ('<tool_call>{"name": "Bash", "arguments": {"command": "ls", "timeout": 5', "stop", 1, 0, ""),
    ('<tool_call>{"name": "Bash", "arguments": {"command": "ls", "timeout": 5', "length", 0, 1, ""),
    ('<tool_call>{"name": "Bash", "arguments": {"command": "ls", "time', "stop", 0, 1, ""),
    ('<tool_call>{"name": "Bash", "arguments": {"command": "ls", "timeout":', "stop", 0, 1, ""),
    ('<tool_call>{"name": "Bash", "arguments": {"command": "ls"}', "length", 1, 0, ""),
    ('<tool_call>{"name": "Bash", "argu', "length", 0, 0, None),
    ('<tool_call>{"name": "Bash", "arguments": {"comm', "stop", 0, 0, None),
    ('<tool_call>{"name": "Ba', "stop", 0, 0, None),
    ('<|tool_call>call:Bash{command:<|"|>ls', "stop", 0, 1, ""),
    ('<|tool_call>call:Bash{command:<|"|>ls<|"|>', "length", 0, 1, ""),
    ('<|tool_call>call:Bash{command:<|"|>ls<|"|>,timeout:5', "stop", 1, 0, ""),
    ('<|tool_call>call:Bash{command:<|"|>ls<|"|>}', "length", 1, 0, ""),
    ("<|tool_call>call:Ba", "length", 0, 0, None),
    ("<|tool_call>call:Bash{comm", "length", 0, 0, None),
]


@pytest.mark.parametrize("text, reason, calls, unfinished, left", CUTS)
def test_end_of_text_inside_a_call(text: str, reason: str, calls: int, unfinished: int, left: str | None) -> None:
    got = answer(text, reason)
    assert (len(got["calls"]), got["unfinished"], got["text"]) == (calls, unfinished, text if left is None else left)
    assert got["stop_reason"] == ("max_tokens" if reason == "length" else "tool_use" if calls else "end_turn")


def test_a_call_that_breaks_off_after_its_first_key_ends_the_answer_unfinished() -> None:
    got = answer('<tool_call>{"name": "Bash", "arguments": {"command": "ls", ?}}</tool_call> and more text')
    assert got == got | {"calls": [], "unfinished": 1, "text": "", "stop_reason": "end_turn"}


def test_inner_quotes_that_were_not_escaped_stay_in_the_value() -> None:
    got = answer('<tool_call>{"name": "Bash", "arguments": {"command": "echo "hi, you" > a", "timeout": 5}}</tool_call>')
    assert got["calls"] == [("Bash", {"command": 'echo "hi, you" > a', "timeout": 5})]


def test_an_unquoted_shell_command_is_not_cut_at_its_commas() -> None:
    got = answer("<|tool_call>call:Bash{command:awk '{print $1, $2}' a.txt, then sort,timeout:5}<tool_call|>")
    assert got["calls"] == [("Bash", {"command": "awk '{print $1, $2}' a.txt, then sort", "timeout": 5})]


# ── types ────────────────────────────────────────────────────────────────────────────────────────

ROOT = {
    "text": STRING, "number": {"type": "number"}, "integer": {"type": "integer"}, "flag": {"type": "boolean"},
    "list": {"type": "array", "items": {"type": "integer"}}, "object": {"type": "object"}, "any": {},
    "maybe_text": {"type": ["string", "null"]}, "maybe_int": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    "either": {"oneOf": [{"type": "string"}, {"type": "integer"}]}, "level": {"enum": ["none", "high"]},
    "ref": {"$ref": "#/$defs/count"}, "deep": {"type": "object", "properties": {"n": {"type": "integer"}, "s": STRING}},
}
TYPED = tool("typed", ROOT, **{"$defs": {"count": {"type": "integer"}}})

JSON_VALUES = [  # key, as written in JSON, as it must arrive
    ("text", "12", "12"), ("text", "1.50", "1.50"), ("text", "true", "true"), ("text", '{"a": 1}', '{"a": 1}'), ("text", '" x "', " x "),
    ("text", '"\\u00e9\\ud83d\\ude80\\n"', "é🚀\n"), ("text", '"a\\d+"', "a\\d+"), ("text", '"\\ud83d!"', "\ud83d!"), ("text", '"null"', "null"),
    ("number", '"20"', 20), ("number", '" 2.5 "', 2.5), ("number", '"many"', "many"), ("integer", "5.0", 5), ("integer", '"7"', 7),
    ("number", "NaN", "NaN"), ("number", "-Infinity", "-Infinity"), ("number", "1e999", "1e999"), ("number", "1e3", 1000.0),
    ("integer", "123456789012345678901234567890", 123456789012345678901234567890),
    ("flag", '"true"', True), ("flag", '"False"', False), ("flag", "True", True), ("flag", '"yes"', "yes"),
    ("list", '"[1, 2]"', [1, 2]), ("list", '["1", 2]', [1, 2]), ("list", '"no list"', "no list"), ("list", "[1, NaN]", [1, "NaN"]),
    ("object", '"{\'a\': None, \'b\': True,}"', {"a": None, "b": True}), ("any", '"12"', "12"), ("any", "12", 12), ("any", "null", None),
    ("maybe_text", "null", None), ("maybe_text", '"null"', "null"), ("maybe_text", "4", "4"), ("maybe_int", '"null"', None), ("maybe_int", '"8"', 8),
    ("either", '"5"', "5"), ("either", "5", 5), ("level", '"none"', "none"), ("ref", '"3"', 3), ("deep", '{"n": "4", "s": 5}', {"n": 4, "s": "5"}),
]


@pytest.mark.parametrize("key, written, value", JSON_VALUES)
def test_json_value_by_schema(key: str, written: str, value: object) -> None:
    got = answer(f'<tool_call>{{"name": "typed", "arguments": {{"{key}": {written}}}}}</tool_call>', tools=[TYPED])
    assert json.dumps(got["calls"]) == json.dumps([("typed", {key: value})])


GEMMA_VALUES = [
    ("text", "007", "007"), ("text", "null", "null"), ("text", "[ -f a ] && b", "[ -f a ] && b"), ("text", '<|"|>\\n<|"|>', "\\n"),
    ("text", '<|"|>a <|"|> b<|"|>', 'a <|"|> b'), ("text", '<|"|><|"|>', ""), ("number", "-2.5", -2.5), ("number", '<|"|>20<|"|>', 20),
    ("flag", "true", True), ("maybe_text", "null", None), ("maybe_text", "nulls", "nulls"), ("maybe_text", '<|"|>null<|"|>', "null"),
    ("list", "[1,2]", [1, 2]), ("list", '<|"|>[1, 2]<|"|>', [1, 2]), ("object", '{a:{b:[<|"|>x<|"|>,1,true,null]},c:word}', {"a": {"b": ["x", 1, True, None]}, "c": "word"}),
    ("any", "12", 12), ("any", "some words", "some words"), ("any", "None", None), ("maybe_int", "null", None),
]


@pytest.mark.parametrize("key, written, value", GEMMA_VALUES)
def test_gemma_value_by_schema(key: str, written: str, value: object) -> None:
    got = answer(f"<|tool_call>call:typed{{{key}:{written}}}<tool_call|>", tools=[TYPED])
    assert json.dumps(got["calls"]) == json.dumps([("typed", {key: value})])


SCHEMAS = [  # schema, arguments, what arrives (None: not a call)
    ({"type": "object", "additionalProperties": True}, {"a": 1, "b": "x"}, {"a": 1, "b": "x"}),
    ({"type": "object"}, {"a": 1}, {"a": 1}),
    ({}, {"a": 1}, {"a": 1}),
    ({"type": "object", "additionalProperties": False}, {"a": 1}, {}),
    ({"properties": {"a": STRING}}, {"a": "x", "b": 1}, {"a": "x"}),
    ({"properties": {"a": STRING}, "additionalProperties": True}, {"a": "x", "b": 1}, {"a": "x", "b": 1}),
    ({"properties": {"a": STRING}, "additionalProperties": {"type": "integer"}}, {"b": 1}, {"b": 1}),
    ({"required": ["a"]}, {"a": 1}, {"a": 1}),
    ({"required": ["a"]}, {"b": 1}, {"a": 1}),
    ({"required": ["a", "b"]}, {"c": 1}, None),
    ({"properties": {"a": STRING, "b": STRING}, "required": ["a", "b"]}, {"a": "x", "c": "y"}, {"a": "x", "b": "y"}),
    ({"properties": {"a": {"$ref": "#/nowhere"}}}, {"a": {"b": 1}}, {"a": {"b": 1}}),
    ({"properties": None, "required": None}, {"a": 1}, {"a": 1}),
    ({"properties": {"a": True}, "required": "a"}, {"a": 1}, {"a": 1}),
]


@pytest.mark.parametrize("schema, arguments, arrives", SCHEMAS)
def test_which_keys_arrive(schema: dict, arguments: dict, arrives: dict | None) -> None:
    text = "<tool_call>" + json.dumps({"name": "t", "arguments": arguments}) + "</tool_call>"
    got = answer(text, tools=[Tool(name="t", input_schema=schema)])
    assert got["calls"] == ([] if arrives is None else [("t", arrives)])


def test_an_ambiguous_name_is_not_guessed() -> None:
    got = answer('<tool_call>{"name": "BASH", "arguments": {"command": "ls"}}</tool_call>', tools=[BASH, tool("bash", {"command": STRING})])
    assert got["calls"] == []


def test_a_server_tool_is_not_offered() -> None:
    assert answer('<tool_call>{"name": "web", "arguments": {}}</tool_call>', tools=[Tool("web", server_type="web_search"), BASH])["calls"] == []
