"""Second attempts: calls gone wrong and answers that do not fit their schema, before the client has seen them."""
from __future__ import annotations

import json
from typing import Any

import pytest
from fakes import GENERATED, FakeEngine, FakeTokenizer, Script
from outputs import BASH, TOOLS, WRITE, check_grammar, summary

from mlx_native_server.turn import respond as respond_module
from mlx_native_server.turn.correction import call_correction, suffix
from mlx_native_server.protocol import (
    ApiError, Encoded, Event, Failed, Finished, Message, Prompt, Request, Sampling, TextBlock, ToolChoice, Traits, bad_request, overloaded,
)
from mlx_native_server.turn.respond import respond
from mlx_native_server.answer.streaming import fold
from mlx_native_server.turn.turn import Turn

ASK = Request((Message("user", (TextBlock("hi"),)),), model="m", tools=TOOLS, max_tokens=4000)
OPENING = '<tool_call>\n{"name": "Bash", "arguments":'
GOOD = ' {"command": "ls"}}\n</tool_call>'
GARBLED = '<tool_call>\n{"name": "Bash", "arguments": {"cmd": "ls", "x": 1}}\n</tool_call>'
SCHEMA = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"], "additionalProperties": False}


def turn(retries: int = 2, max_tokens: int = 4000, tokenizer: FakeTokenizer | None = None, **fields: Any) -> Turn:
    return Turn("req_1", Request(**(vars(ASK) | fields)), Encoded("hi", [1, 2, 3], checkpoints=(2,)), tokenizer or FakeTokenizer(),
                Sampling(0.5), max_tokens, tool_retries=retries)


def run(engine: FakeEngine, a_turn: Turn) -> list[Event]:
    events = [event for event in respond(a_turn, engine.submit) if event is not None]
    check_grammar(events)
    return events


def written(engine: FakeEngine, n: int = 1) -> str:
    """What was written for the model in front of the n-th further job."""
    return "".join(chr(token) for token in engine.jobs[n].tokens[len(engine.jobs[0].tokens):] if token < GENERATED)


# ── calls ────────────────────────────────────────────────────────────────────────────────────────


def test_a_garbled_call_is_made_anew_and_nothing_of_it_is_seen() -> None:
    engine = FakeEngine(scripts=[["Let me look.\n", *GARBLED], [*GOOD]])
    got = summary(run(engine, turn()))
    assert (got["text"], got["calls"], got["stop_reason"]) == ("Let me look.", [("Bash", {"command": "ls"})], "tool_use")


def test_the_second_attempt_goes_on_from_the_first() -> None:
    engine = FakeEngine(scripts=[["Let me look.\n", GARBLED, Finished("stop", 1)], [GOOD, Finished("stop", 1)]])
    events = run(engine, turn())
    first, second = engine.jobs
    assert second.tokens[:5] == [*first.tokens, GENERATED + 1, GENERATED + 2] and second.checkpoints == first.checkpoints
    text = written(engine)
    assert "call the tool Bash" in text and json.dumps(OPENING)[1:-1] + ' {\\"parameter' in text and text.endswith(OPENING)
    assert second.max_tokens == 4000 - 3 - len(text)
    usage = fold(events)["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (3, 3 + 2)


FAILED = {
    "wrong keys": GARBLED,
    "no arguments": '<tool_call>\n{"name": "Bash"}\n</tool_call>',
    "no JSON": "<tool_call>\nBash: ls -l\n</tool_call>",
    "no JSON, cut": "<tool_call>\nBash(ls -l",
    "white space behind it": GARBLED + "\n\n",
    "an end marker behind it": GARBLED + "</s>",
    "behind text in the line": "I look: " + GARBLED,
    "a required key is missing": '<tool_call>\n{"name": "Write", "arguments": {}}\n</tool_call>',
}


@pytest.mark.parametrize("name", FAILED)
@pytest.mark.parametrize("whole", [True, False])
def test_what_counts_as_a_call_gone_wrong(name: str, whole: bool) -> None:
    """A declared tool is named, the markup is there, and it is the last thing."""
    script = [FAILED[name]] if whole else list(FAILED[name])
    engine = FakeEngine(scripts=[script, [' {"command": "ls", "file_path": "a", "content": "b"}}\n</tool_call>']])
    got = summary(run(engine, turn(tools=(BASH, WRITE))))
    assert len(got["calls"]) == 1 and "<tool_call>" not in got["text"] and len(engine.jobs) == 2


NOT_FAILED = {
    "a fence": 'Like this:\n```json\n{"a": 1}\n```',
    "a name key": 'The file has\n{"name": "my-package", "version": "1.0"}',
    "an undeclared tool": '<tool_call>\n{"name": "Launch", "arguments": {"x": 1}}\n</tool_call>',
    "a word about calls": "The <tool_call> tag comes before Bash (or any other tool).",
    "a word about calls, first in its line": "<tool_call> is the tag that opens a call; behind it stands JSON, and the name in it is that of a tool from the list of those that the "
                                             "client has declared, such as Bash (which runs a command).",
    "text behind it": GARBLED + "\nThat is how it is done.",
    "in code": "```\n" + GARBLED + "\n```",
    "markup in quotes": f"`{GARBLED}`".replace("\n", ""),
    "a good call behind it": GARBLED + '\n<tool_call>\n{"name": "Bash", "arguments": {"command": "ls"}}\n</tool_call>',
    "a thought behind it": GARBLED + "\n<think>\nwhy</think>",
    "plain": "All is well.",
}


@pytest.mark.parametrize("name", NOT_FAILED)
def test_what_gets_no_second_attempt(name: str) -> None:
    text = NOT_FAILED[name]
    engine = FakeEngine(list(text))
    got = summary(run(engine, turn()))
    plain = summary(run(FakeEngine(list(text)), turn(retries=0)))
    assert len(engine.jobs) == 1 and got == plain


def test_text_behind_a_failed_call_goes_out_as_it_comes() -> None:
    engine = FakeEngine([GARBLED, "\n", "That", " is all."])
    batches = [event["delta"].get("text") for event in run(engine, turn()) if event["type"] == "content_block_delta"]
    assert len(batches) >= 2 and "".join(batches) == GARBLED + "\nThat is all."


@pytest.mark.parametrize("second", [["I cannot.", Finished("stop", 1)], [], [" {", Finished("length")], ["<think>hm</think>"]])
def test_without_success_the_garbled_text_goes_out(second: Script) -> None:
    """Of the other attempts nothing is shown, and they are counted all the same."""
    engine = FakeEngine(second, scripts=[["Look.\n", GARBLED]])
    events = run(engine, turn())
    got = summary(events)
    assert (got["text"], got["calls"], got["thinking"], got["stop_reason"]) == ("Look.\n" + GARBLED, [], "", "end_turn")
    assert len(engine.jobs) == 3 and fold(events)["usage"]["output_tokens"] >= 2


def test_the_second_of_two_attempts_may_succeed() -> None:
    engine = FakeEngine(scripts=[[GARBLED], ["What?"], [GOOD]])
    assert summary(run(engine, turn()))["calls"] == [("Bash", {"command": "ls"})] and len(engine.jobs) == 3


@pytest.mark.parametrize("retries", [0, 1, 2])
def test_attempts_are_bounded_by_the_setting(retries: int) -> None:
    engine = FakeEngine(["What?"], scripts=[[GARBLED]])
    run(engine, turn(retries=retries))
    assert len(engine.jobs) == 1 + retries


def test_attempts_are_bounded_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(respond_module, "CORRECTION_S", 0.0)
    engine = FakeEngine(scripts=[[GARBLED]])
    assert summary(run(engine, turn()))["text"] == GARBLED and len(engine.jobs) == 1


def test_an_attempt_that_runs_out_of_time_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 1.0, 2.0, 200.0])
    monkeypatch.setattr(respond_module.time, "monotonic", lambda: next(now, 200.0))
    engine = FakeEngine(scripts=[[GARBLED], [*"word " * 100]])
    assert summary(run(engine, turn()))["text"] == GARBLED
    assert len(engine.jobs) == 2 and engine.tickets[1].cancelled.is_set()


def test_a_call_that_the_limit_cut_is_not_asked_for_anew() -> None:
    engine = FakeEngine([GARBLED[:-12], Finished("length")])
    assert summary(run(engine, turn()))["stop_reason"] == "max_tokens" and len(engine.jobs) == 1


def test_no_room_in_max_tokens_leaves_the_text() -> None:
    engine = FakeEngine([GARBLED])
    assert summary(run(engine, turn(max_tokens=50)))["text"] == GARBLED and len(engine.jobs) == 1


def test_a_committed_call_is_never_taken_back() -> None:
    text = '<tool_call>\n{"name": "Bash", "arguments": {"command": "ls", %%%'
    engine = FakeEngine([text])
    got = summary(run(engine, turn()))
    assert len(engine.jobs) == 1 and got["unfinished"] + len(got["calls"]) == 1


def test_an_earlier_good_call_stays_and_only_the_last_one_is_made_anew() -> None:
    good = '<tool_call>\n{"name": "Glob", "arguments": {"pattern": "*"}}\n</tool_call>\n'
    engine = FakeEngine(scripts=[[good, GARBLED], [GOOD]])
    assert summary(run(engine, turn()))["calls"] == [("Glob", {"pattern": "*"}), ("Bash", {"command": "ls"})]


def test_a_demanded_call_that_fails_is_made_anew() -> None:
    a_turn = turn(tool_choice=ToolChoice("tool", "Bash"))
    a_turn = Turn(**(vars(a_turn) | {"opening": OPENING}))
    engine = FakeEngine(scripts=[[' {"cmd": 1, "x": 2}}\n</tool_call>'], [GOOD]])
    assert summary(run(engine, a_turn))["calls"] == [("Bash", {"command": "ls"})]


def test_the_instruction_speaks_the_models_own_dialect() -> None:
    tokenizer = FakeTokenizer(traits=Traits(dialect="gemma4"))
    correction = call_correction(tokenizer, "Bash")
    assert '<|tool_call>call:Bash{parameter:<|"|>value<|"|>}<tool_call|>' in correction.instruction
    assert correction.opening == "<|tool_call>call:Bash"


def test_thinking_is_off_for_the_second_attempt() -> None:
    class Opens(FakeTokenizer):
        def encode(self, prompt: Prompt) -> Encoded:
            encoded = super().encode(prompt)
            return Encoded(encoded.text + "<think>\n", encoded.tokens, opens_thinking=True)

    tokenizer = Opens(traits=Traits(thinking_option="enable_thinking"))
    text = suffix(tokenizer, call_correction(tokenizer, "Bash"))
    assert text.endswith("<think>\n\n</think>\n\n" + OPENING) and tokenizer.prompts[0].options == {"enable_thinking": False}


@pytest.mark.parametrize("template", ["refuses", "drops"])
def test_a_template_that_cannot_say_it_leaves_the_text(template: str) -> None:
    class Odd(FakeTokenizer):
        def encode(self, prompt: Prompt) -> Encoded:
            if template == "refuses":
                raise bad_request("no assistant here")
            return Encoded("nothing of it", [1])

    engine = FakeEngine([GARBLED])
    assert summary(run(engine, turn(tokenizer=Odd())))["text"] == GARBLED and len(engine.jobs) == 1


def test_where_the_queue_is_full_the_text_goes_out() -> None:
    engine = FakeEngine([GARBLED])

    def submit(job: Any) -> Any:
        if engine.tickets:
            raise overloaded("full")
        return engine.submit(job)

    assert summary([event for event in respond(turn(), submit) if event])["text"] == GARBLED


# ── schemas ──────────────────────────────────────────────────────────────────────────────────────


SCHEMA_CASES: dict[str, tuple[list[Script], str, int]] = {
    # name: the jobs' scripts, the answer's text, how many jobs
    "fits": ([['{"title":', ' "A"}']], '{"title": "A"}', 1),
    "in a fence": ([['```json\n{"title": "A"}\n```']], '{"title": "A"}', 1),
    "in prose": ([['Here it is: {"title": "A"} I hope.']], '{"title": "A"}', 1),
    "in single quotes": ([["{'title': 'A',}"]], '{"title": "A"}', 1),
    "mended": ([['{"name": "A"}'], ['{"title": "A"}']], '{"title": "A"}', 2),
    "mended from prose": ([["A fine title"], ['```\n{"title": "A"}\n```']], '{"title": "A"}', 2),
    "never": ([['{"name": "A"}'], ['{"name": "B"}']], '{"name": "B"}', 2),
    "never JSON": ([["A fine title"], ["Another"]], "A fine title", 2),
    "cut": ([['{"title": "A', Finished("length")]], '{"title": "A', 1),
    "a thought first": ([["<think>x</think>", '{"title": "A"}']], '{"title": "A"}', 1),
    "nothing": ([[Finished("length")]], "", 1),
}


@pytest.mark.parametrize("name", SCHEMA_CASES)
def test_an_answer_by_schema(name: str) -> None:
    scripts, text, jobs = SCHEMA_CASES[name]
    engine = FakeEngine(scripts=scripts)
    got = summary(run(engine, turn(retries=0, tools=(), output_schema=SCHEMA)))
    assert (got["text"], len(engine.jobs)) == (text, jobs)


def test_nothing_goes_out_before_it_fits() -> None:
    engine = FakeEngine(scripts=[['{"name"', ': "A"}'], ['{"title": ', '"A"}']])
    events = list(respond(turn(tools=(), output_schema=SCHEMA), engine.submit))
    assert [event["type"] for event in events if event] == [
        "message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop"]
    assert events.count(None) >= 6, "the caller can ping meanwhile"


def test_the_second_attempt_is_told_what_is_wrong() -> None:
    engine = FakeEngine(scripts=[['{"name": "A"}'], ['{"title": "A"}']])
    run(engine, turn(tools=(), output_schema=SCHEMA))
    assert 'the answer has no \\"title\\"' in written(engine)


def test_a_call_instead_of_the_answer_goes_out_with_the_text_before_it() -> None:
    call = '<tool_call>\n{"name": "Bash", "arguments": {"command": "ls"}}\n</tool_call>'
    engine = FakeEngine(["First I look.\n", call])
    events = run(engine, turn(output_schema=SCHEMA))
    got = summary(events)
    assert (got["kinds"], got["text"], got["calls"]) == (["text", "tool_use"], "First I look.", [("Bash", {"command": "ls"})])
    assert len(engine.jobs) == 1 and got["stop_reason"] == "tool_use"


def test_a_failed_job_ends_the_second_attempt_as_any_other() -> None:
    error = ApiError(500, "api_error", "out of memory")
    with pytest.raises(ApiError, match="out of memory"):
        run(FakeEngine(scripts=[[GARBLED], [Failed(error)]]), turn())
