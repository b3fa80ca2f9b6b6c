"""Requests as the messages that a chat template takes, for templates that take much and templates that take little."""
from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from conversations import (
    BASH, FULL, GEMMA4, LLAMA3, MISTRAL, MOVES, PLAIN, assistant, call, late, outline, prompt, result, text, thought, user,
)  # fmt: skip
from mlx_native_server.prompt.conversion import ASSISTANT_FILLER, NOT_EXECUTED, STRAY_RESULT, USER_FILLER, to_prompt
from mlx_native_server.prompt.request import parse_request
from mlx_native_server.protocol import ApiError, Traits

# ── the public cases ─────────────────────────────────────────────────────────────────────────────

CASES = [json.loads(line) for line in (Path(__file__).parent / "cases" / "convert.jsonl").read_text("utf-8").splitlines() if line.strip()]


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_public_case(case: dict[str, Any]) -> None:
    want = case["expect"]
    body = {"model": "m", "max_tokens": 16} | case["input"]["body"]
    if any("400" in fact for fact in want.get("facts", [])) and "[1]" in json.dumps(body):
        with pytest.raises(ApiError, match=r"^messages\.1\.content\.2\.input"):
            parse_request(body, {}, 1)
        return
    messages = to_prompt(parse_request(body, {}, 1), FULL, True).messages
    roles = [message["role"] for message in messages]
    assert roles in want.get("roles_any_of", [want.get("roles", roles)])
    for wanted in want.get("tool_calls", []):
        functions = {c["id"]: c["function"] for c in messages[wanted["msg"]]["tool_calls"]}
        assert functions[wanted["id"]] == {"name": wanted["name"], "arguments": wanted["arguments"]}
    for wanted in want.get("tool_results", []):
        message = messages[wanted["msg"]]
        assert (message["tool_call_id"], message["name"], message["content"]) == (wanted["id"], wanted["name"], wanted["content"])
    for n, needles in want.get("contains", {}).items():
        assert all(needle in messages[int(n)]["content"] for needle in needles)
    contents = json.dumps([message["content"] for message in messages], ensure_ascii=False)
    assert not [absent for absent in want.get("absent", []) if absent in contents]


# ── calls and results ────────────────────────────────────────────────────────────────────────────

TWO = [
    user("go"),
    assistant(thought("plan"), "Looking.", call("a", "Read", path="/x"), call("b", command="id")),
    user(result("b", "uid=0"), "between", result("a", "ALPHA", is_error=True), "after"),
]
HEAD, TAIL = [("user", "go")], [("user", "between\nafter")]
LOOKING, ALPHA, UID = ("assistant", "Looking."), ("tool", "Error: ALPHA"), ("tool", "uid=0")
ALONE = [user("go"), assistant(thought("plan"), call("a")), user(result("a"))]


@pytest.mark.parametrize(("traits", "expected"), [
    pytest.param(FULL, [(*LOOKING, ["a", "b"]), ALPHA, UID], id="all in one"),
    pytest.param(GEMMA4, [LOOKING, ("assistant", "", ["a", "b"]), ALPHA, UID], id="text beside calls is misplaced"),
    pytest.param(LLAMA3, [LOOKING, ("assistant", "", ["a"]), ALPHA, ("assistant", "", ["b"]), UID], id="one call at a time"),
])  # fmt: skip
def test_results_follow_their_calls_in_call_order(traits: Traits, expected: list[tuple[Any, ...]]) -> None:
    made = prompt(*TWO, traits=traits)
    assert outline(made) == HEAD + expected + TAIL
    assert [(m["tool_call_id"], m["name"]) for m in made.messages if m["role"] == "tool"] == [("a", "Read"), ("b", "Bash")]


@pytest.mark.parametrize(("turns", "traits", "expected"), [
    pytest.param(TWO, FULL, ["", "plan", "", "", ""], id="with its message"),
    pytest.param(TWO, GEMMA4, ["", "plan", "", "", "", ""], id="with the text"),
    pytest.param(ALONE, GEMMA4, ["", "plan", ""], id="with the calls where there is no text"),
])  # fmt: skip
def test_where_a_thought_stays(turns: list[dict[str, Any]], traits: Traits, expected: list[str]) -> None:
    assert [m.get("reasoning_content", "") for m in prompt(*turns, traits=traits).messages] == expected


def test_a_template_without_tools_gets_them_as_text() -> None:
    made = prompt(*TWO, traits=PLAIN, tools=[BASH], system="S")
    assert made.tools is None
    assert [m["role"] for m in made.messages] == ["system", "user", "assistant", "user"]
    assert made.messages[0]["content"].startswith("S\n\n# Tools\n") and "- command (string, required)" in made.messages[0]["content"]
    assert made.messages[2]["content"] == (
        'Looking.\n<tool_call>\n{"name": "Read", "arguments": {"path": "/x"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "Bash", "arguments": {"command": "id"}}\n</tool_call>'
    )
    assert made.messages[3]["content"] == (
        "<tool_response>\nError: ALPHA\n</tool_response>\n<tool_response>\nuid=0\n</tool_response>\n\nbetween\nafter"
    )


def test_arguments_are_an_object_or_json_text() -> None:
    turns = [user("go"), assistant(call("a", path="/ü", n=[1, None])), user(result("a"))]
    as_text = prompt(*turns, traits=Traits(string_arguments=True)).messages[1]["tool_calls"][0]["function"]["arguments"]
    assert as_text == '{"path": "/ü", "n": [1, null]}'
    assert prompt(*turns).messages[1]["tool_calls"][0]["function"]["arguments"] == {"path": "/ü", "n": [1, None]}


UNUSUAL: dict[str, tuple[list[dict[str, Any]], list[tuple[Any, ...]]]] = {
    "a call without a result is marked and the user's text stays last": (
        [user("go"), assistant(call("a")), user("stop")],
        [("user", "go"), ("assistant", "", ["a"]), ("tool", NOT_EXECUTED), ("user", "stop")],
    ),
    "a call at the very end": ([user("go"), assistant("On it.", call("a"))], [("user", "go"), ("assistant", "On it.", ["a"]), ("tool", NOT_EXECUTED)]),
    "one of two results is missing": (
        [user("go"), assistant(call("a"), call("b")), user(result("b", "B"))],
        [("user", "go"), ("assistant", "", ["a", "b"]), ("tool", NOT_EXECUTED), ("tool", "B")],
    ),
    "two calls with the same id": (
        [user("go"), assistant(call("a"), call("a")), user(result("a", "1"), result("a", "2"))],
        [("user", "go"), ("assistant", "", ["a", "a"]), ("tool", "1"), ("tool", "2")],
    ),
    "an id that comes again in a later turn": (
        [user("go"), assistant(call("a")), user(result("a", "1")), assistant(call("a")), user(result("a", "2"))],
        [("user", "go"), ("assistant", "", ["a"]), ("tool", "1"), ("assistant", "", ["a"]), ("tool", "2")],
    ),
    "a result without its call": ([user("go"), assistant("ok"), user(result("z", "Z"))], [("user", "go"), ("assistant", "ok"), ("user", f"{STRAY_RESULT}\nZ")]),
    "results in two messages": (
        [user("go"), assistant(call("a"), call("b")), user(result("b", "B"), "x"), user(result("a", "A"), "y")],
        [("user", "go"), ("assistant", "", ["a", "b"]), ("tool", "A"), ("tool", "B"), ("user", "x\n\ny")],
    ),
    "an assistant in several messages": (
        [user("go"), assistant("one"), assistant("two", call("a")), user(result("a"))],
        [("user", "go"), ("assistant", "one\ntwo", ["a"]), ("tool", "")],
    ),
    "the conversation begins with the assistant": ([assistant("Hi."), user("yes")], [("user", USER_FILLER), ("assistant", "Hi."), ("user", "yes")]),
    "nothing but blanks": ([user("  ")], [("user", USER_FILLER)]),
    "what Anthropic's servers left in the history is not shown": (
        [user("a"),
         assistant({"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}, {"type": "redacted_thinking", "data": "x"}, "Found."),
         user("b")],
        [("user", "a"), ("assistant", "Found."), ("user", "b")],
    ),
    "an empty assistant turn vanishes": ([user("a"), assistant(), user("b")], [("user", "a\n\nb")]),
    "a blank prefill is none": ([user("a"), assistant(" \n")], [("user", "a")]),
    "a thought at the very end is left out": ([user("a"), assistant(thought("t"))], [("user", "a")]),
    "a failure without a text": ([user("a"), assistant(call("a")), user(result("a", is_error=True))],
                                 [("user", "a"), ("assistant", "", ["a"]), ("tool", "Error: the tool failed without a text.")]),
}  # fmt: skip


@pytest.mark.parametrize(("messages", "expected"), UNUSUAL.values(), ids=UNUSUAL)
def test_unusual_conversation(messages: list[dict[str, Any]], expected: list[tuple[Any, ...]]) -> None:
    assert outline(prompt(*messages)) == expected


def test_a_prefill_is_continued_and_nothing_else_is() -> None:
    assert prompt(user("Give JSON"), assistant('{"a":')).continues
    assert outline(prompt(user("Give JSON"), assistant('{"a": '))) == [("user", "Give JSON"), ("assistant", '{"a": ')]
    assert not prompt(user("Give JSON"), assistant("x"), user("y")).continues
    assert not prompt(user("Give JSON"), assistant("x", call("a"))).continues


# ── thinking ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("key", ["reasoning_content", "thinking", ""])
def test_echoed_thinking_goes_to_the_templates_key_byte_for_byte(key: str) -> None:
    made = prompt(user("a"), assistant(thought(" plan\n\n"), "Hello"), user("b"), traits=Traits(reasoning_key=key))
    assert made.messages[1] == {"role": "assistant", "content": "Hello"} | ({key: " plan\n\n"} if key else {})


THINKS = [
    ({"type": "enabled", "budget_tokens": 2048}, True, True),
    ({"type": "enabled"}, False, True),
    ({"type": "adaptive"}, True, False),
    ({"type": "adaptive"}, False, True),
    ({"type": "disabled"}, False, False),
    (None, False, False),
]


@pytest.mark.parametrize(("thinking", "suppress", "on"), THINKS, ids=str)
def test_when_the_template_is_told_to_think(thinking: Any, suppress: bool, on: bool) -> None:
    options = prompt(user("x"), traits=GEMMA4, suppress_thinking=suppress, thinking=thinking).options
    assert options == {"enable_thinking": on}
    assert prompt(user("x"), suppress_thinking=suppress, thinking=thinking).options == {}


def test_a_continued_answer_does_not_start_to_think() -> None:
    assert prompt(user("x"), assistant("So"), traits=GEMMA4, thinking={"type": "enabled"}).options == {"enable_thinking": False}


# ── what stands for images and documents ─────────────────────────────────────────────────────────

MARKERS = [
    ({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBOR"}}, ["image", "image/png"]),
    ({"type": "document", "title": "scan.pdf", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBE"}}, ["scan.pdf", "application/pdf"]),
    ({"type": "document", "title": "t.txt", "source": {"type": "text", "data": "Clause 4."}}, ['title="t.txt"', "Clause 4."]),
    ({"type": "document", "source": {"type": "url", "url": "u"}}, ["document"]),
    ({"type": "search_result", "title": "T", "source": "http://s", "content": [text("Found.")]}, ["T http://s", "Found."]),
    ({"type": "tool_reference", "tool_name": "WebFetch"}, ["WebFetch"]),
    ({"type": "container_upload", "file_id": "f"}, ["container_upload"]),
]


@pytest.mark.parametrize(("block", "needles"), MARKERS, ids=str)
def test_what_the_model_cannot_see_is_said(block: dict[str, Any], needles: list[str]) -> None:
    as_user = prompt(user(block)).messages[0]["content"]
    as_result = prompt(user("go"), assistant(call("a")), user(result("a", [block]))).messages[2]["content"]
    assert as_user == as_result and all(needle in as_user for needle in needles)
    assert "iVBOR" not in as_user and "JVBE" not in as_user


# ── system texts ─────────────────────────────────────────────────────────────────────────────────


def test_a_template_without_a_system_role_gets_it_before_the_first_user_text() -> None:
    made = prompt(user("Hi"), traits=dataclasses.replace(PLAIN, system=False), system="Be brief.", tools=[BASH])
    assert [m["role"] for m in made.messages] == ["user"]
    assert made.messages[0]["content"].startswith("Be brief.\n\n# Tools\n") and made.messages[0]["content"].endswith("\n\nHi")


def test_leading_system_messages_join_the_system_text() -> None:
    assert outline(prompt(late("L1"), late("L2"), user("Hi"), system="S")) == [("system", "S\n\nL1\n\nL2"), ("user", "Hi")]
    assert outline(prompt(late("L"))) == [("system", "L"), ("user", USER_FILLER)]


MARKED = "<system-reminder>\nL\n</system-reminder>"


@pytest.mark.parametrize(("traits", "messages", "expected"), [
    (FULL, [user("a"), late("L"), assistant("b"), user("c")], [("user", f"a\n\n{MARKED}"), ("assistant", "b"), ("user", "c")]),
    (FULL, [user("a"), assistant("b"), late("L"), user("c")], [("user", "a"), ("assistant", "b"), ("user", f"{MARKED}\n\nc")]),
    (FULL, [user("a"), assistant("b"), late("L")], [("user", "a"), ("assistant", "b"), ("user", MARKED)]),
    (FULL, [user("a"), late(MARKED)], [("user", f"a\n\n{MARKED}")]),
    (FULL, [user("a"), late("")], [("user", "a")]),
    (Traits(late_system=True), [user("a"), late("L"), late("M"), user("c")], [("user", "a"), ("system", "L\n\nM"), ("user", "c")]),
    (Traits(late_system=True, alternates=True), [user("a"), late("L")], [("user", f"a\n\n{MARKED}")]),
], ids=str)  # fmt: skip
def test_late_system_messages(traits: Traits, messages: list[dict[str, Any]], expected: list[tuple[Any, ...]]) -> None:
    assert outline(prompt(*messages, traits=traits)) == expected


NOTE = "<system-reminder>be brief</system-reminder>"
LATE_TEXT: dict[str, tuple[list[dict[str, Any]], list[tuple[Any, ...]]]] = {
    "a reminder goes to the last result": ([user(NOTE, result("a", "A"))], [("tool", f"A\n\n{NOTE}")]),
    "a late system message too": ([user(result("a", "A")), late("L")], [("tool", f"A\n\n{MARKED}")]),
    "a result that is empty": ([user(result("a"), NOTE)], [("tool", NOTE)]),
    "what a person typed stays a message": ([user(result("a", "A"), NOTE, "typed", NOTE)], [("tool", f"A\n\n{NOTE}"), ("user", f"typed\n{NOTE}")]),
    "a call without a result": ([late("L"), user("typed")], [("tool", f"{NOT_EXECUTED}\n\n{MARKED}"), ("user", "typed")]),
}


@pytest.mark.parametrize(("messages", "expected"), LATE_TEXT.values(), ids=LATE_TEXT)
@pytest.mark.parametrize("late_system", [True, False])
def test_late_text_where_it_would_change_earlier_turns(late_system: bool, messages: list[dict[str, Any]], expected: list[tuple[Any, ...]]) -> None:
    traits = dataclasses.replace(MOVES, late_system=late_system)
    assert outline(prompt(user("go"), assistant(call("a")), *messages, traits=traits))[2:] == expected


# ── turns that must alternate ────────────────────────────────────────────────────────────────────


def test_alternating_templates_get_a_filler_between_two_turns_of_one_role() -> None:
    typed = prompt(user("go"), assistant(call("a")), user(result("a", "A"), "typed"), assistant("ok"), traits=MISTRAL)
    assert outline(typed) == [("user", "go"), ("assistant", "", ["a"]), ("tool", "A"), ("assistant", ASSISTANT_FILLER), ("user", "typed"), ("assistant", "ok")]
    split = dataclasses.replace(MISTRAL, text_beside_calls=False)
    spoken = prompt(user("go"), assistant("Looking.", call("a")), user(result("a", "A")), assistant("ok"), user("x"), traits=split)
    assert outline(spoken)[1:5] == [("assistant", "Looking."), ("assistant", "", ["a"]), ("tool", "A"), ("user", USER_FILLER)]


# ── the form of the answer, and what changes nothing ─────────────────────────────────────────────


@pytest.mark.parametrize("traits", [FULL, PLAIN, dataclasses.replace(PLAIN, system=False)])
def test_a_schema_for_the_answer_is_put_to_the_model(traits: Traits) -> None:
    form = {"format": {"type": "json_schema", "schema": {"type": "object", "properties": {"title": {"type": "string"}}}}}
    first = prompt(user("Name it"), system="S", output_config=form, traits=traits).messages[0]["content"]
    assert first.startswith("S\n\n# Form of the answer\n") and '{"type": "object", "properties": {"title": {"type": "string"}}}' in first
    assert prompt(user("Name it"), system="S", output_config={"effort": "low"}, traits=traits) == prompt(user("Name it"), system="S", traits=traits)


@pytest.mark.parametrize("edits", [
    [{"type": "clear_thinking_20251015", "keep": "all"}],
    [{"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 1}}],
    [{"type": "clear_tool_uses_20250919"}],
    "of a later kind",
])  # fmt: skip
def test_context_edits_are_accepted_and_change_no_earlier_turn(edits: Any) -> None:
    turns = [user("a"), assistant(thought("one"), "A"), user("b"), assistant(thought("two"), "B"), user("c")]
    assert prompt(*turns, context_management={"edits": edits}) == prompt(*turns)
