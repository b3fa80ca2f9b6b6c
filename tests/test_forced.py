"""Calls that the client demands: begun for the model in its own form, read from the inside, never shown."""
from __future__ import annotations

import json
from typing import Any

import pytest
from fakes import FakeEngine, FakeTokenizer, Script, body, make_service
from outputs import BASH, TOOLS, answer, tool

from mlx_native_server.turn import forced
from mlx_native_server.parsers import DIALECTS
from mlx_native_server.protocol import Finished, Request, Thinking, ToolChoice, Traits
from mlx_native_server.answer.streaming import fold
from mlx_native_server.models.traits import DIALECT_MARKERS
from mlx_native_server.turn.turn import begin, declared

LOOK_UP = tool("look_up", {"parameter": {"type": "string"}}, ["parameter"])
JSON_CALL = '<tool_call>\n{"name": "Bash", "arguments": {"command": "ls"}}\n</tool_call>'


# ── the forms ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dialect", forced.FORMS)
@pytest.mark.parametrize("name", ["", "look_up"])
def test_a_begun_call_is_read_from_the_inside(dialect: str, name: str) -> None:
    form = forced.FORMS[dialect]
    whole, begun = form.example("look_up"), form.opening(name)
    assert whole.startswith(begun), "the beginning for any tool is one of a call of this tool"
    got = answer(whole[len(begun):], tools=[LOOK_UP], formats=[dialect], opening=begun)
    assert (got["calls"], got["text"], got["stop_reason"]) == ([("look_up", {"parameter": "value"})], "", "tool_use")


def test_every_dialect_that_templates_are_known_by_has_a_form() -> None:
    assert {name for _, name in DIALECT_MARKERS} <= set(forced.FORMS)
    assert set(forced.FORMS) <= {row.name for row in DIALECTS} | {"mistral_list", "pythonic_bare"}


@pytest.mark.parametrize("dialect, known, expected", [
    ("mistral", ["[ARGS]"], "[TOOL_CALLS]look_up[ARGS]"),
    ("mistral", [], '[TOOL_CALLS] [{"name": "look_up", "arguments":'),
    ("pythonic", ["<|tool_call_start|>"], "<|tool_call_start|>[look_up"),
    ("pythonic", [], "[look_up"),
    ("not known yet", [], '<tool_call>\n{"name": "look_up", "arguments":'),
])
def test_the_form_depends_on_what_the_vocabulary_has(dialect: str, known: list[str], expected: str) -> None:
    assert forced.form(dialect, known.__contains__).opening("look_up") == expected


@pytest.mark.parametrize("text", ["", "ls -l\n</tool_call>", "I cannot do that.", '{"cmd": "ls", "x": 1}}\n</tool_call>', "{"])
@pytest.mark.parametrize("reason", ["stop", "length"])
def test_what_was_begun_is_never_shown(text: str, reason: str) -> None:
    """Where the model does not complete the call, its own words are the answer."""
    got = answer(text, reason, tools=TOOLS, opening='<tool_call>\n{"name": "Bash", "arguments":')
    assert (got["calls"], got["text"], got["unfinished"]) == ([], text, 0)


def test_a_demanded_call_that_the_limit_cuts_stays_unfinished() -> None:
    got = answer(' {"command": "ls', "length", opening='<tool_call>\n{"name": "Bash", "arguments":')
    assert (got["calls"], got["text"], got["unfinished"], got["stop_reason"]) == ([], "", 1, "max_tokens")


# ── prompts ──────────────────────────────────────────────────────────────────────────────────────


def request(kind: str, name: str = "", **fields: Any) -> Request:
    return Request((), tools=TOOLS, tool_choice=ToolChoice(kind, name), **fields)


@pytest.mark.parametrize("choice, tools, begun", [
    (ToolChoice("tool", "Bash"), TOOLS, '<tool_call>\n{"name": "Bash", "arguments":'),
    (ToolChoice("any"), TOOLS, "<tool_call>\n"),
    (ToolChoice("any"), (BASH,), '<tool_call>\n{"name": "Bash", "arguments":'),
    (ToolChoice("auto"), TOOLS, ""),
    (ToolChoice("none"), TOOLS, ""),
])
def test_the_call_stands_at_the_prompts_end(choice: ToolChoice, tools: tuple, begun: str) -> None:
    plain, _ = begin(Request((), tools=tools, tool_choice=ToolChoice("none" if choice.kind == "none" else "auto")), FakeTokenizer(), True)
    encoded, opening = begin(Request((), tools=tools, tool_choice=choice), FakeTokenizer(), True)
    assert (opening, encoded.text, encoded.tokens) == (begun, plain.text + begun, [*plain.tokens, *map(ord, begun)])


@pytest.mark.parametrize("kind", ["any", "tool"])
def test_nothing_is_thought_before_a_demanded_call(kind: str) -> None:
    tokenizer = FakeTokenizer(traits=Traits(thinking_option="enable_thinking"))
    begin(request(kind, "Bash", thinking=Thinking("enabled", 4096)), tokenizer, True)
    assert tokenizer.prompts[0].options == {"enable_thinking": False}


def test_a_thought_that_the_template_opens_all_the_same_is_closed() -> None:
    class Opens(FakeTokenizer):
        def encode(self, prompt: Any) -> Any:
            encoded = super().encode(prompt)
            return type(encoded)(encoded.text + "<think>\n", encoded.tokens, opens_thinking=True)

    encoded, opening = begin(request("tool", "Bash"), Opens(), True)
    assert encoded.text.endswith("<think>\n\n</think>\n\n" + opening) and not encoded.opens_thinking


def test_where_calls_go_as_text_the_demanded_one_does_too() -> None:
    """The history and the instructions show JSON in tags there, whatever the template's own form is."""
    _, opening = begin(request("any"), FakeTokenizer(traits=Traits(dialect="gemma4", tool_calls=False)), True)
    assert opening == "<tool_call>\n"


# ── answers ──────────────────────────────────────────────────────────────────────────────────────

DECLARED = [{"name": one.name, "description": "", "input_schema": one.input_schema} for one in TOOLS]


def ask(script: Script, choice: dict[str, Any], engine: FakeEngine | None = None, **fields: Any) -> tuple[dict[str, Any], FakeEngine]:
    """The message to a request with tools and this tool_choice."""
    engine = engine or FakeEngine(script)
    raw = json.dumps(body(tools=DECLARED, tool_choice=choice, max_tokens=500, **fields)).encode()
    service = make_service(engine, tool_retries=0)
    events = [event for event in service.answer(raw, {}, "r").events if event]
    assert len(engine.jobs[0].tokens) == service.count(raw, {})
    return fold(events), engine


def calls(message: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(block["name"], block["input"]) for block in message["content"] if block["type"] == "tool_use"]


@pytest.mark.parametrize("choice, script", [
    ({"type": "tool", "name": "Bash"}, [' {"comm', 'and": "ls"}}\n</tool_call>']),
    ({"type": "any"}, ['{"name": "Bash", "arguments": {"command": "ls"}}\n</tool', "_call>"]),
])
def test_the_model_completes_the_call(choice: dict[str, Any], script: Script) -> None:
    message, engine = ask(script, choice)
    assert (calls(message), message["stop_reason"], message["usage"]["output_tokens"]) == ([("Bash", {"command": "ls"})], "tool_use", 2)
    assert len(message["content"]) == 1


def test_without_a_call_the_text_is_what_it_is(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "mlx_native_server.turn.respond")
    message, _ = ask(["I would rather not."], {"type": "any"})
    assert ([b["text"] for b in message["content"]], message["stop_reason"]) == (["I would rather not."], "end_turn")
    assert "a call was demanded" in caplog.text


def test_a_demanded_tool_is_the_only_one_that_can_be_called() -> None:
    assert [one.name for one in declared(request("tool", "Bash"))] == ["Bash"]


def test_none_makes_markup_text() -> None:
    message, _ = ask([JSON_CALL], {"type": "none"})
    assert message["content"] == [{"type": "text", "text": JSON_CALL}] and message["stop_reason"] == "end_turn"


@pytest.mark.parametrize("script", [
    [JSON_CALL + JSON_CALL.replace("ls", "pwd")],
    list(JSON_CALL + JSON_CALL.replace("ls", "pwd")),
    [JSON_CALL, "\nand then:\n", JSON_CALL],
    ['<tool_call>[{"name": "Bash", "arguments": {"command": "ls"}}, ', '{"name": "Bash", "arguments": {"command": "pwd"}}]</tool_call>'],
])
def test_without_parallel_calls_the_first_one_ends_the_answer(script: Script) -> None:
    engine = FakeEngine([*script, Finished("stop")])
    message, _ = ask((), {"type": "auto", "disable_parallel_tool_use": True}, engine)
    assert (calls(message), len(message["content"]), message["stop_reason"]) == ([("Bash", {"command": "ls"})], 1, "tool_use")
    assert engine.tickets[0].cancelled.is_set()


def test_with_parallel_calls_there_are_two() -> None:
    message, _ = ask([JSON_CALL + JSON_CALL], {"type": "any", "disable_parallel_tool_use": False})
    assert len(calls(message)) == 2
