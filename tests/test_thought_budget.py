"""Thoughts: ended after their budget in one new job, shown, omitted or hidden, and signed."""
from __future__ import annotations

from typing import Any

import pytest
from fakes import GENERATED, FakeEngine, FakeTokenizer, Script

from mlx_native_server.answer.events import is_own_thought, signature
from mlx_native_server.turn.forced import end_of_thought
from mlx_native_server.protocol import ApiError, Encoded, Event, Failed, Finished, Message, Request, Sampling, TextBlock, Thinking, overloaded
from mlx_native_server.turn.respond import respond
from mlx_native_server.answer.streaming import fold
from mlx_native_server.turn.turn import Turn

ASK = Request((Message("user", (TextBlock("hi"),)),), model="m", max_tokens=400, thinking=Thinking("enabled", 3))


def turn(prompt: str = "hi<think>\n", opens: bool = True, max_tokens: int = 400, **fields: Any) -> Turn:
    encoded = Encoded(prompt, [1, 2, 3], opens_thinking=opens, checkpoints=(2,))
    return Turn("req_1", Request(**(vars(ASK) | fields)), encoded, FakeTokenizer(), Sampling(0.5), max_tokens)


def run(engine: FakeEngine, a_turn: Turn) -> list[Event]:
    return [event for event in respond(a_turn, engine.submit) if event is not None]


def shown(events: list[Event]) -> list[tuple[str, str]]:
    return [(block["type"], block.get("thinking", block.get("text"))) for block in fold(events)["content"]]


THOUGHT: Script = ["one ", "two ", "three ", "four ", "five"]
END = "\n</think>\n\n"


def test_a_thought_is_ended_after_its_budget_and_the_model_goes_on_behind_it() -> None:
    engine = FakeEngine(scripts=[THOUGHT, ["The ", "answer."]])
    events = run(engine, turn())
    assert shown(events) == [("thinking", "one two three"), ("text", "The answer.")]
    first, second = engine.jobs
    assert second.tokens == [*first.tokens, *range(GENERATED + 1, GENERATED + 4), *map(ord, END)]
    assert (second.max_tokens, second.checkpoints, second.id) == (400 - 3 - len(END), (2,), "req_1.2")
    assert engine.tickets[0].cancelled.is_set()


def test_usage_is_the_first_jobs_prompt_and_every_jobs_tokens() -> None:
    engine = FakeEngine(scripts=[THOUGHT, ["The ", "answer.", Finished("stop", 1)]])
    events = run(engine, turn())
    assert [event["type"] for event in events].count("message_start") == 1
    usage = fold(events)["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (3, 0, 3 + 2 + 1)


def test_a_thought_within_its_budget_is_one_job() -> None:
    engine = FakeEngine(["one ", "two", "</think>", "The ", "answer ", "is ", "long."])
    assert shown(run(engine, turn())) == [("thinking", "one two"), ("text", "The answer is long.")]
    assert len(engine.jobs) == 1


def test_a_thought_that_the_model_opens_itself_is_ended_too() -> None:
    engine = FakeEngine(scripts=[["<think>", *THOUGHT], ["So."]])
    assert shown(run(engine, turn(prompt="hi", opens=False))) == [("thinking", "one two"), ("text", "So.")]


def test_hidden_thoughts_have_a_budget_and_are_counted() -> None:
    """By the effort alone; the client sees nothing of it but the tokens."""
    engine = FakeEngine(scripts=[["w "] * 2000, ["So."]])
    events = run(engine, turn(thinking=None, effort="low", max_tokens=1600))
    assert shown(events) == [("text", "So.")]
    assert fold(events)["usage"]["output_tokens"] == len(engine.jobs[1].tokens) - 3 - len(END) + 1 == 1024 + 1


def test_a_model_that_opens_thoughts_for_ever_is_left_to_its_limit() -> None:
    again: Script = ["<think>", "more ", "and ", "more", Finished("length")]
    engine = FakeEngine(again, scripts=[THOUGHT])
    events = run(engine, turn())
    assert len(engine.jobs) == 3 and fold(events)["stop_reason"] == "max_tokens"


def test_no_effort_and_no_budget_set_no_limit() -> None:
    engine = FakeEngine([*["w "] * 300, "</think>So."])
    run(engine, turn(thinking=Thinking("adaptive")))
    assert len(engine.jobs) == 1


def test_where_the_queue_is_full_the_thought_goes_on() -> None:
    engine = FakeEngine([*THOUGHT, "</think>", "So."])

    def submit(job: Any) -> Any:
        if engine.tickets:
            raise overloaded("full")
        return engine.submit(job)

    events = [event for event in respond(turn(), submit) if event]
    assert shown(events) == [("thinking", "one two three four five"), ("text", "So.")]


def test_the_second_job_fails_like_the_first() -> None:
    engine = FakeEngine(scripts=[THOUGHT, [Failed(ApiError(500, "api_error", "out of memory"))]])
    with pytest.raises(ApiError, match="out of memory"):
        run(engine, turn())


def test_the_client_that_leaves_cancels_the_second_job() -> None:
    engine = FakeEngine(scripts=[THOUGHT, ["So.", " More."]])
    events = respond(turn(), engine.submit)
    while len(engine.jobs) < 2:
        next(events)
    next(events)
    events.close()
    assert engine.tickets[1].cancelled.is_set()


@pytest.mark.parametrize("prompt, closers, end", [
    ("<think>\n", ("</think>",), "\n</think>\n\n"),
    ("<|channel>thought\n", ("<channel|>",), "<channel|>"),
    ("", ("[/THINK]",), "[/THINK]"),
    ("", ("<|end|>", "<|call|>", "<|return|>"), "<|end|><|start|>assistant"),
])
def test_each_family_ends_a_thought_in_its_own_way(prompt: str, closers: tuple[str, ...], end: str) -> None:
    assert end_of_thought(prompt, closers) == end


@pytest.mark.parametrize("prompt, end", [
    ("a <think> b</think> c <|channel>thought\n", "<channel|>"),
    ("a <|channel>thought\nx<channel|> <think>\n", "\n</think>\n\n"),
])
def test_a_thought_that_the_prompt_opened_is_ended_as_it_was_opened(prompt: str, end: str) -> None:
    assert end_of_thought(prompt) == end


# ── what the client sees of a thought ────────────────────────────────────────────────────────────


@pytest.mark.parametrize("thinking, block", [
    (Thinking("enabled", display="updates"), {"thinking": "why", "signature": signature("why")}),
    (Thinking("adaptive", display="summarized"), {"thinking": "why", "signature": signature("why")}),
    (Thinking("adaptive", display="omitted"), {"thinking": "", "signature": signature("")}),
    (Thinking("disabled"), None),
    (None, None),
])
def test_display(thinking: Thinking | None, block: dict[str, str] | None) -> None:
    events = run(FakeEngine(["wh", "y\n", "</think>", "So."]), turn(thinking=thinking))
    content = fold(events)["content"]
    assert content == [*([{"type": "thinking"} | block] if block else []), {"type": "text", "text": "So."}]
    assert fold(events)["usage"]["output_tokens"] == 4


def test_an_omitted_thought_without_words_is_none() -> None:
    events = run(FakeEngine(["\n\n", "</think>", "So."]), turn(thinking=Thinking("adaptive", display="omitted")))
    assert shown(events) == [("text", "So.")]


@pytest.mark.parametrize("thought, signed, own", [
    ("why", signature("why"), True), ("why not", signature("why"), False), ("why", "", False), ("", "\ud800é", False), ("\ud800", signature("\ud800"), True),
])
def test_a_signature_tells_own_thoughts_from_others(thought: str, signed: str, own: bool) -> None:
    assert is_own_thought(thought, signed) is own
