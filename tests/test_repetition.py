"""A model that only repeats itself is ended, and nothing else is taken for that."""
from __future__ import annotations

import logging
import random
import re
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from fakes import FakeEngine, FakeTokenizer

from mlx_native_server.answer.streaming import fold
from mlx_native_server.protocol import Encoded, Finished, Message, Piece, Request, Sampling, TextBlock, Thinking, Tool
from mlx_native_server.turn import repetition
from mlx_native_server.turn.repetition import IN_CALL, LEAST_REPEATS, LEAST_TOKENS, MOST_PERIOD, STEP, Repetition
from mlx_native_server.turn.respond import respond
from mlx_native_server.turn.turn import Turn

WORDS = random.Random(0).sample(range(100_000), 20_000)


def ids(text: str) -> list[int]:
    """A token for each word, run of spaces or dashes, and other sign, as tokenizers have them, if anything too many."""
    known: dict[str, int] = {}
    return [known.setdefault(piece, len(known)) for piece in re.findall(r"\w+| {1,16}|-{1,16}|.|\n", text)]


def fires_at(tokens: Sequence[int], in_call: bool = False, size: int = 1) -> int | None:
    """After how many tokens, given in pieces of this size."""
    guard = Repetition()
    return next((n + size for n in range(0, len(tokens), size) if guard.add(tokens[n:n + size], in_call)), None)


# ── what is one ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size", [1, 3, 16, 64, 100])
@pytest.mark.parametrize("in_call", [False, True])
@pytest.mark.parametrize("period", [1, 2, 3, 7, 50, 63, 64, 65, 102, 103, 255, MOST_PERIOD])
def test_a_run_said_again_and_again_is_found_soon_after_it_has_become_one(period: int, in_call: bool, size: int) -> None:
    """Behind other text, however the tokens come."""
    least = (IN_CALL if in_call else 1) * max(LEAST_TOKENS, LEAST_REPEATS * period)
    before = 333
    found = fires_at(WORDS[:before] + (WORDS[before:before + period] * (2 * least))[:2 * least], in_call, size)
    assert before + least <= found <= before + least + period + 2 * max(STEP, size)


@pytest.mark.parametrize("line", [[1, 1, 2, 2], [1] * 30 + [2], [1, 2, 3, 1, 2, 4], [*range(20), *range(20), *range(19), 99]])
def test_repeats_within_the_repeated_run_do_not_hide_it(line: list[int]) -> None:
    assert fires_at(line * 400) <= max(LEAST_TOKENS, LEAST_REPEATS * len(line)) + 2 * STEP


# ── what is none ─────────────────────────────────────────────────────────────────────────────────

ROW = '| 0.0 | 0.0 | <b>none</b> | 0.0 |\n'
TEXTS = {
    "a table whose rows differ by a number": "".join(f"| {n} | 0.0 | 0.0 | 0.0 | 0.0 | 0.0 |\n" for n in range(500)),
    "a table of equal rows": ROW * 29,
    "numbers counting up": "".join(f"{n}, " for n in range(3000)),
    "lines of a log": "".join(f"[{n // 60:02d}:{n % 60:02d}] GET /health 200 OK\n" for n in range(600)),
    "JSON of objects that differ in one value": "".join(f'{{"id": {n}, "name": "", "tags": [], "parent": null, "size": 0}},\n' for n in range(300)),
    "a long run of spaces": " " * 16_000,
    "a long run of dashes": "-" * 16_000,
    "a drawing": (" " * 30 + "+" + "-" * 30 + "+\n" + (" " * 30 + "|" + " " * 30 + "|\n") * 60) * 3,
    "an emphatic answer": "Yes! " * 300,
    "equal blocks with other names": "".join(f"def test_{n}():\n" + "    assert f(1, 2) == 3\n" * 12 + "\n" for n in range(60)),
}  # fmt: skip
IN_CALLS = {
    "a file of equal lines": "hello world\n" * 1000,
    "a list of zeros": "0, " * 1300,
    "a long table of equal rows": ROW * 118,
    "equal JSON objects": '{"x": 0, "y": 0, "colour": "white", "alive": false},\n' * 105,
}
CASES = [(name, text, False) for name, text in TEXTS.items()] + [(name, text, True) for name, text in (TEXTS | IN_CALLS).items()]


@pytest.mark.parametrize("name, text, in_call", CASES, ids=[f"{name}, {'call' if in_call else 'text'}" for name, _, in_call in CASES])
def test_work_that_repeats_is_let_be(name: str, text: str, in_call: bool) -> None:
    assert fires_at(ids(text), in_call) is None


def test_a_run_that_is_broken_off_begins_anew() -> None:
    assert fires_at((([1, 2, 3] * 300) + [4]) * 20) is None, "900 tokens, and then another one"


def test_the_cost_of_a_token_does_not_grow_with_the_text(monkeypatch: Any) -> None:
    sizes: list[int] = []
    real = repetition.period
    monkeypatch.setattr(repetition, "period", lambda last: sizes.append(len(last)) or real(last))
    assert fires_at(WORDS) is None
    assert sizes == [2 * MOST_PERIOD] * (len(WORDS) // STEP - 2 * MOST_PERIOD // STEP + 1)


# ── what becomes of the answer ───────────────────────────────────────────────────────────────────

WRITE = Tool("Write", input_schema={
    "type": "object", "required": ["file_path"],
    "properties": {"file_path": {"type": "string"}, "content": {"type": "string"}, "numbers": {"type": "array", "items": {"type": "integer"}}}})
NOTE = "the model only repeated itself"


def pieces(texts: Iterable[str]) -> list[Piece]:
    """Equal texts have equal ids."""
    return [Piece(text, 1, (hash(text),)) for text in texts]


def answered(engine: FakeEngine, prompt: str = "hi", max_tokens: int = 30_000, **fields: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    request = Request((Message("user", (TextBlock("hi"),)),), model="m", tools=(WRITE,), max_tokens=max_tokens, **fields)
    encoded = Encoded(prompt, [1, 2, 3], opens_thinking=prompt.endswith("<think>"))
    turn = Turn("req_1", request, encoded, FakeTokenizer(), Sampling(), max_tokens, tool_retries=2)
    events = [event for event in respond(turn, engine.submit) if event]
    return fold(events), events


def test_a_text_ends_as_if_the_model_had_ended_it_and_one_line_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    engine = FakeEngine(pieces(["Well: ", *["the same ", "again. "] * 10_000]))
    message, _ = answered(engine)
    assert message["stop_reason"] == "end_turn" and message["content"][0]["text"].startswith("Well: the same again. the same")
    assert LEAST_TOKENS <= message["usage"]["output_tokens"] <= LEAST_TOKENS + 2 * STEP
    assert engine.tickets[0].cancelled.is_set() and len(engine.jobs) == 1
    assert [(record.levelno, NOTE in record.getMessage()) for record in caplog.records] == [(logging.WARNING, True)]


@pytest.mark.parametrize("begun, again", [
    ('"content": "', ("same", "\\n")),
    ('"numbers": [0', (", ", "0")),
])
def test_a_call_that_is_being_written_stays_unfinished(begun: str, again: tuple[str, str]) -> None:
    """So no client runs it; Claude Code tells the model that its JSON could not be read, for any stop reason."""
    engine = FakeEngine(pieces([f'<tool_call>\n{{"name": "Write", "arguments": {{"file_path": "a", {begun}', *again * 10_000]))
    message, events = answered(engine)
    assert (message["stop_reason"], message["content"]) == ("end_turn", [])
    assert [event["content_block"]["name"] for event in events if event["type"] == "content_block_start"] == ["Write"]
    assert IN_CALL * LEAST_TOKENS <= message["usage"]["output_tokens"] <= IN_CALL * LEAST_TOKENS + 2 * STEP
    assert len(engine.jobs) == 1


def test_a_call_that_was_complete_before_counts() -> None:
    call = '<tool_call>\n{"name": "Write", "arguments": {"file_path": "a"}}\n</tool_call>\n'
    message, _ = answered(FakeEngine(pieces([call, *["And ", "so ", "on ", "and "] * 10_000])))
    assert (message["stop_reason"], message["content"][0]["input"]) == ("tool_use", {"file_path": "a"})


def test_a_thought_is_ended_and_the_answer_follows(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    engine = FakeEngine(scripts=[pieces(["Wait, ", "no. "] * 10_000), ["So."]])
    message, _ = answered(engine, "hi<think>", thinking=Thinking("adaptive"))
    assert [block["type"] for block in message["content"]] == ["thinking", "text"] and message["stop_reason"] == "end_turn"
    assert len(engine.jobs) == 2 and "a thought was ended because it only repeated itself" in caplog.text and NOTE not in caplog.text


def test_thoughts_that_repeat_for_ever_end_the_answer() -> None:
    stuck = pieces(["Wait, ", "no. "] * 10_000)
    engine = FakeEngine([Piece("<think>", 1, (7,)), *stuck], scripts=[stuck])
    message, _ = answered(engine, "hi<think>", thinking=Thinking("adaptive"))
    assert len(engine.jobs) == 3 and message["stop_reason"] == "end_turn"


def test_a_limit_of_tokens_that_comes_first_is_told_as_such() -> None:
    message, _ = answered(FakeEngine([*pieces(["again "] * 500), Finished("length")]))
    assert message["stop_reason"] == "max_tokens"
