"""Requests as the messages that a chat template takes, for templates that take much and templates that take little."""
from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from mlx_native_server.prompt.conversion import ASSISTANT_FILLER, NOT_EXECUTED, STRAY_RESULT, USER_FILLER, offered_tools, to_prompt
from mlx_native_server.protocol import ApiError, Prompt, Request, Traits
from mlx_native_server.prompt.request import parse_request
from mlx_native_server.models.tokens import ModelTokenizer, load_tokenizer

FULL = Traits()
GEMMA4 = Traits(dialect="gemma4", text_beside_calls=False, thinking_option="enable_thinking", moves_late_text=True)
LLAMA3 = Traits(dialect="llama3", several_calls=False, text_beside_calls=False, reasoning_key="")
PLAIN = Traits(tools=False, tool_calls=False, several_calls=False, text_beside_calls=False, reasoning_key="", alternates=True)
MISTRAL = Traits(alternates=True, reasoning_key="")
MOVES = Traits(moves_late_text=True)

SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
BASH = {"name": "Bash", "description": "Run a command.", "input_schema": SCHEMA, "cache_control": {"type": "ephemeral"}}


def request(*messages: dict[str, Any], **fields: Any) -> Request:
    return parse_request({"messages": list(messages), **fields}, {}, 100)


def prompt(*messages: dict[str, Any], traits: Traits = FULL, suppress_thinking: bool = True, **fields: Any) -> Prompt:
    return to_prompt(request(*messages, **fields), traits, suppress_thinking)


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": [text(b) if isinstance(b, str) else b for b in blocks]}


def assistant(*blocks: Any) -> dict[str, Any]:
    return user(*blocks) | {"role": "assistant"}


def late(content: str) -> dict[str, Any]:
    return {"role": "system", "content": content}


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


def thought(content: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": content, "signature": "c2ln"}


def call(call_id: str, name: str = "Bash", **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def result(call_id: str, content: Any = "", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


def outline(made: Prompt) -> list[tuple[Any, ...]]:
    """Role, content and call ids of each message."""
    return [(m["role"], m["content"], *([[c["id"] for c in m["tool_calls"]]] if "tool_calls" in m else [])) for m in made.messages]


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


def test_results_follow_their_calls_in_call_order() -> None:
    made = prompt(*TWO)
    assert outline(made) == [
        ("user", "go"),
        ("assistant", "Looking.", ["a", "b"]),
        ("tool", "Error: ALPHA"),
        ("tool", "uid=0"),
        ("user", "between\nafter"),
    ]
    assert made.messages[1]["reasoning_content"] == "plan"
    assert [(m["tool_call_id"], m["name"]) for m in made.messages if m["role"] == "tool"] == [("a", "Read"), ("b", "Bash")]


def test_a_template_that_misplaces_text_beside_calls_gets_two_messages() -> None:
    made = prompt(*TWO, traits=GEMMA4)
    assert outline(made)[1:4] == [("assistant", "Looking."), ("assistant", "", ["a", "b"]), ("tool", "Error: ALPHA")]
    assert made.messages[1]["reasoning_content"] == "plan" and "reasoning_content" not in made.messages[2]


def test_thinking_without_text_stays_with_the_calls() -> None:
    made = prompt(user("go"), assistant(thought("plan"), call("a")), user(result("a")), traits=GEMMA4)
    assert [m.get("reasoning_content") for m in made.messages] == [None, "plan", None]


def test_a_template_that_takes_one_call_gets_pairs() -> None:
    assert outline(prompt(*TWO, traits=LLAMA3)) == [
        ("user", "go"),
        ("assistant", "Looking."),
        ("assistant", "", ["a"]),
        ("tool", "Error: ALPHA"),
        ("assistant", "", ["b"]),
        ("tool", "uid=0"),
        ("user", "between\nafter"),
    ]


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


def test_what_anthropics_servers_left_in_the_history_is_not_shown() -> None:
    blocks = [{"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}, {"type": "redacted_thinking", "data": "x"}]
    assert outline(prompt(user("a"), assistant(*blocks, "Found."), user("b"))) == [("user", "a"), ("assistant", "Found."), ("user", "b")]


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


# ── tools ────────────────────────────────────────────────────────────────────────────────────────


def test_tools_are_shown_with_name_description_and_whole_schema_only() -> None:
    made = prompt(user("x"), tools=[BASH | {"strict": True, "eager_input_streaming": True}])
    assert made.tools == [{"type": "function", "function": {"name": "Bash", "description": "Run a command.", "parameters": SCHEMA}}]
    assert prompt(user("x")).tools is None and prompt(user("x"), tools=[]).tools is None


def test_tools_that_the_model_cannot_use_are_not_offered() -> None:
    server = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
    assert [t["function"]["name"] for t in prompt(user("x"), tools=[server, BASH]).tools or ()] == ["Bash"]
    assert prompt(user("x"), tools=[server]).tools is None
    assert prompt(user("x"), tools=[BASH], tool_choice={"type": "none"}).tools is None
    assert "# Tools" not in json.dumps(prompt(user("x"), tools=[BASH], tool_choice={"type": "none"}, traits=PLAIN, system="S").messages)


def test_a_deferred_tool_is_defined_where_it_is_first_referenced_and_the_head_stays() -> None:
    tools = [{"name": name, "description": f"Does {name}.", "input_schema": {"type": "object"}, "defer_loading": name in "CDE"} for name in "ACDBE"]
    found = [{"type": "tool_reference", "tool_name": name} for name in ("D", "Z", "D", "A")]
    turns = [user("go"), assistant(call("a", "ToolSearch")), user(result("a", found)), assistant(call("b", "D")), user(result("b", [found[0]]))]
    made = prompt(*turns, tools=tools)
    assert [t["function"]["name"] for t in made.tools or ()] == ["A", "B"]
    assert made.messages[2]["content"].splitlines() == [
        "Tool found: D. It can be called like the other tools:",
        '{"name": "D", "description": "Does D.", "parameters": {"type": "object"}}',
        "Tool found: Z", "Tool found: D", "Tool found: A",
    ]  # fmt: skip
    assert made.messages[4]["content"] == "Tool found: D"
    for traits in (FULL, GEMMA4, LLAMA3, PLAIN, MISTRAL):
        before = prompt(*turns[:1], tools=[tool for tool in tools if tool["name"] in "AB"], traits=traits)
        after = prompt(*turns, tools=tools, traits=traits)
        assert (after.tools, after.messages[: len(before.messages)]) == (before.tools, before.messages)


def test_a_template_without_tools_gets_a_found_one_as_text() -> None:
    tools = [BASH, BASH | {"name": "Late", "defer_loading": True}]
    found = [{"type": "tool_reference", "tool_name": "Late"}]
    made = prompt(user("go"), assistant(call("a", "ToolSearch")), user(result("a", found)), tools=tools, traits=PLAIN)
    assert "## Late" not in made.messages[0]["content"]
    assert "## Late\nRun a command.\nParameters:\n- command (string, required)" in made.messages[-1]["content"]


def test_a_reference_outside_of_a_result_is_marked_as_not_typed() -> None:
    made = prompt(user({"type": "tool_reference", "tool_name": "Late"}, "go"), tools=[BASH | {"name": "Late", "defer_loading": True}])
    assert made.tools is None
    assert made.messages[0]["content"].startswith("<system-reminder>\nTool found: Late.") and made.messages[0]["content"].endswith("</system-reminder>\ngo")


def test_a_deferred_tool_that_is_demanded_is_at_the_head() -> None:
    tools = [BASH, BASH | {"name": "Late", "defer_loading": True}, BASH | {"name": "Later", "defer_loading": True}]
    assert [tool.name for tool in offered_tools(request(user("x"), tools=tools, tool_choice={"type": "tool", "name": "Late"}))] == ["Bash", "Late"]


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


# ── properties ───────────────────────────────────────────────────────────────────────────────────


def all_traits() -> list[Traits]:
    names = ("tools", "tool_calls", "several_calls", "text_beside_calls", "string_arguments", "system", "late_system", "alternates", "moves_late_text")
    return [Traits(**dict(zip(names, values))) for values in product((True, False), repeat=len(names))]


def conversation(rng: random.Random) -> list[dict[str, Any]]:
    """Any order of roles and blocks; every text is a word that occurs once."""
    words = (f"w{n}w" for n in range(10_000))
    messages, ids = [], ["z"]
    for _ in range(rng.randint(1, 8)):
        role = rng.choice(["user", "user", "assistant", "assistant", "system"])
        blocks = [text(rng.choice(["", "<system-reminder>"]) + next(words))] if role != "assistant" else []
        for _ in range(rng.randint(0, 3)):
            if role == "assistant" and rng.random() < 0.6:
                ids.append(rng.choice([f"id{len(ids)}", ids[-1]]))
                blocks.append(call(ids[-1], "Bash", command=next(words)))
            elif role == "user" and rng.random() < 0.6:
                blocks.append(result(rng.choice(ids[-3:]), next(words), is_error=rng.random() < 0.2))
            else:
                blocks.append(text(next(words)))
        messages.append({"role": role, "content": blocks})
    return messages


def check_shape(messages: list[dict[str, Any]], traits: Traits) -> None:
    """What every template relies on."""
    assert all(isinstance(m["content"], str) for m in messages)
    turns = messages[1:] if messages[0]["role"] == "system" else messages
    assert turns[0]["role"] == "user" and (traits.late_system or all(m["role"] != "system" for m in turns))
    due: list[str] = []
    for message in turns:
        if message["role"] == "tool":
            assert message["tool_call_id"] == due.pop(0)
        else:
            assert not due
            due = [c["id"] for c in message.get("tool_calls", ())]
            assert "tool_calls" not in message or (due and (traits.several_calls or len(due) == 1))
            assert not due or traits.text_beside_calls or not message["content"]
    assert not due
    if traits.alternates:
        plain = [m["role"] for m in turns if m["role"] in ("user", "assistant") and "tool_calls" not in m]
        assert plain == ["user", "assistant"] * (len(plain) // 2) + ["user"] * (len(plain) % 2)


def test_any_conversation_keeps_every_word_once_and_fits_any_template() -> None:
    rng = random.Random(3)
    every = all_traits()
    for _ in range(1500):
        traits, messages = rng.choice(every), conversation(rng)
        made = prompt(*messages, traits=traits, system="w-system", tools=[BASH])
        check_shape(made.messages, traits)
        whole = json.dumps(made.messages)
        words = [w for w in json.dumps(messages).replace("<system-reminder>", '"').split('"') if w[:1] == "w" and w[-1:] == "w"]
        assert {w: whole.count(w) for w in words} == {w: 1 for w in words}
        assert whole.count("w-system") == 1


# ── through real chat templates ──────────────────────────────────────────────────────────────────

SESSION = [
    user("<system-reminder>\nclaudeMd\n</system-reminder>\n", "What is in a.txt?"),
    late("cwd: /home/user"),
    assistant(thought("read it"), "I will read it.", call("t1", "Read", path="/a.txt", opts={"deep": True, "n": None})),
    user(result("t1", "ALPHA"), "<system-reminder>5 tokens</system-reminder>"),
    assistant(thought("and list"), call("t2", command="ls"), call("t3", command="id")),
    user(result("t3", [text("uid"), {"type": "image", "source": {}}], is_error=True), result("t2", "a.txt")),
    late("two agents"),
    assistant("It holds ALPHA."),
    user("Thanks. And b.txt?"),
    assistant(call("t4", "Read", path="/b.txt")),
    user("never mind"),
]
FAMILIES = ["llama", "gemma3", "gemma4", "gemma4_small", "gemma4_launch", "qwen3", "qwen3_5", "qwen3_6", "qwen3_8", "qwen3_next"]
TEMPLATES = {"gemma4_small": "gemma4", "gemma4_launch": "gemma4", "qwen3_6": "qwen3_5", "qwen3_8": "qwen3_5"}
STEPS = [(2, "cwd: /home/user"), (4, "5 tokens"), (7, "two agents")]  # where requests of one turn end, and their last words
ORDER = ("You help.", "claudeMd", "What is in", "cwd: ", "I will read it.", "/a.txt", "ALPHA", "two agents", "It holds ALPHA.", "never mind")


@pytest.fixture(scope="module", params=FAMILIES)
def tokenizer(request: pytest.FixtureRequest, tokenizer_folder: Callable[..., Path]) -> ModelTokenizer:
    base = TEMPLATES.get(request.param)
    return load_tokenizer(tokenizer_folder(base, request.param) if base else tokenizer_folder(request.param))


@pytest.mark.parametrize("thinking", ["enabled", "disabled"])
def test_each_step_of_a_turn_extends_the_rendered_text_of_the_one_before(tokenizer: ModelTokenizer, thinking: str) -> None:
    kept = ""
    for end, last_words in STEPS:
        made = prompt(*SESSION[:end], traits=tokenizer.traits, tools=[BASH], system="You help.", thinking={"type": thinking})
        rendered = tokenizer.encode(made).text
        assert rendered.startswith(kept)
        kept = rendered[: rendered.rindex(last_words) + len(last_words)]


def test_a_whole_session_renders_in_order(tokenizer: ModelTokenizer) -> None:
    rendered = tokenizer.encode(prompt(*SESSION, traits=tokenizer.traits, tools=[BASH], system="You help.")).text
    places = [rendered.find(words) for words in ORDER]
    assert -1 not in places and places == sorted(places)


def test_a_prefill_ends_the_rendered_text(tokenizer: ModelTokenizer) -> None:
    assert tokenizer.encode(prompt(user("Give JSON"), assistant('{"a":'), traits=tokenizer.traits)).text.endswith('{"a":')


def test_the_deepest_accepted_schema_renders(tokenizer: ModelTokenizer) -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(29):
        schema = {"type": "object", "properties": {"a": schema}}
    made = prompt(user("x"), traits=tokenizer.traits, tools=[{"name": "Deep", "input_schema": schema}])
    assert "Deep" in tokenizer.encode(made).text
