"""Short prompts that come together are read together, and each gets the answer that it gets alone."""
from __future__ import annotations

from typing import Any

import pytest

from engine_rig import alone, job, prompt, rig  # noqa: F401  (fixtures)
from mlx_native_server.engine import decode, kv, loop
from mlx_native_server.protocol import Failed, Finished, Piece

LENGTHS = [30, 41, 30, 65, 2, 100]


@pytest.fixture
def together(monkeypatch: Any) -> list[int]:
    """How many prompts each joint prefill had."""
    counts, real = [], kv.prefill_together

    def counted(model: Any, states: Any, prompts: Any) -> None:
        counts.append(len(prompts))
        real(model, states, prompts)

    monkeypatch.setattr(kv, "prefill_together", counted)
    return counts


def arrive(engine: Any, *max_tokens: int) -> list[Any]:
    """Tickets of prompts that arrive while the model loads, which is then there."""
    first = engine.engine.submit(job(prompt(99, 200), max_tokens=1))  # from which the engine learns its speed
    tickets = [engine.engine.submit(job(prompt(seed, length), max_tokens=most)) for seed, (length, most) in enumerate(zip(LENGTHS, max_tokens))]
    engine.loads.set()
    engine.replies(first)
    return tickets


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_each_answers_as_it_does_alone_and_many_were_read_in_one_go(rig: Any, alone: Any, together: list[int], family: str) -> None:
    engine = rig(family, hold=True)
    answers = [engine.answer(ticket) for ticket in arrive(engine, *[12] * 6)]
    assert answers == [alone(family, prompt(seed, length)) for seed, length in enumerate(LENGTHS)]
    assert max(together) > 2


def test_one_that_wants_no_tokens_is_read_with_the_others_and_kept(rig: Any, alone: Any, together: list[int]) -> None:
    engine = rig(hold=True)
    tickets = arrive(engine, 12, 0, 12, 0, 12, 12)
    assert [engine.answer(ticket) for ticket in tickets] == [
        [] if seed in (1, 3) else alone("llama", prompt(seed, length)) for seed, length in enumerate(LENGTHS)]
    assert max(together) > 2
    started = engine.replies(engine.engine.submit(job(prompt(1, 41))))[0]
    assert started.reused_tokens == 40


@pytest.mark.parametrize(("owner", "name"), [(kv, "prefill_together"), (decode.Decoder, "prepare")])
def test_what_goes_wrong_for_some_together_ends_those_and_nothing_else(rig: Any, alone: Any, monkeypatch: Any, owner: Any, name: str) -> None:
    engine, real, failed = rig(hold=True), getattr(owner, name), []

    def broken(first: Any, rows: Any, *rest: Any) -> Any:
        if len(rows) > 1 and not failed:
            failed.append(len(rows))
            raise ValueError("broken")
        return real(first, rows, *rest)

    monkeypatch.setattr(owner, name, broken)
    lasts = [engine.replies(ticket)[-1] for ticket in arrive(engine, *[12] * 6)]
    assert failed and sum(isinstance(last, Failed) for last in lasts) == failed[0]
    assert all(isinstance(last, (Failed, Finished)) for last in lasts)
    for seed, length in enumerate(LENGTHS):
        assert engine.ask(prompt(seed, length)) == alone("llama", prompt(seed, length))
    assert engine.engine.health()["requests_running"] == 0 and engine.engine.health()["status"] == "ok"


def test_a_stream_that_has_run_for_a_while_is_not_kept_waiting_by_a_burst(rig: Any, together: list[int], monkeypatch: Any) -> None:
    """At a speed at which half a second is one prompt's worth."""
    monkeypatch.setattr(loop, "SETTLED_S", 0.0)
    engine = rig()
    stream = engine.engine.submit(job(prompt(50, 20), max_tokens=3000))
    while not isinstance(stream.get(60), Piece):
        pass
    engine.engine._prompts.took = lambda task, tokens, seconds: None
    engine.engine._prompts.rate = 80.0
    for ticket in [engine.engine.submit(job(prompt(seed, 40), max_tokens=2)) for seed in range(6)]:
        engine.replies(ticket)
    stream.cancel()
    assert not together
