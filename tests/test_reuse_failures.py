"""Requests that fail or are left: what the prompt cache says it holds is what it holds."""
from __future__ import annotations

from itertools import chain, repeat
from typing import Any

import pytest

from engine_rig import WAIT_S, Broken, Ids, alone, job, prompt, rig, words  # noqa: F401  (fixtures)
from mlx_native_server.protocol import Failed, Piece, Started


def test_a_failed_or_abandoned_request_leaves_no_state_under_another_prompts_name(rig: Any, alone: Any, monkeypatch: Any) -> None:
    """Each way to fail after a hit, and then the first prompt again."""
    kinds = chain([Ids, Broken], repeat(Ids))
    engine = rig(detokenizer=lambda: next(kinds)())
    first, other = prompt(1, 200) + prompt(2, 60), prompt(1, 200) + prompt(3, 60)
    expected = alone("llama", first)
    assert engine.ask(first) == expected
    assert isinstance(engine.replies(engine.engine.submit(job(other + [555])))[-1], Failed)  # in its answer
    assert engine.ask(first) == expected
    real = type(engine.model).__call__

    def broken(self: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        real(self, inputs, *args, **kwargs)
        raise MemoryError("no room")

    monkeypatch.setattr(type(engine.model), "__call__", broken)
    assert isinstance(engine.replies(engine.engine.submit(job(other)))[-1], Failed)  # in its prefill, which was written
    monkeypatch.setattr(type(engine.model), "__call__", real)
    assert engine.ask(first) == expected
    ticket = engine.engine.submit(job(other, max_tokens=100_000))
    while not isinstance(ticket.get(WAIT_S), Piece):
        pass
    ticket.cancel()  # by a client that left
    engine.replies(ticket)
    assert engine.ask(first) == expected
    assert engine.ask(other) == alone("llama", other)


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen3_5"])
@pytest.mark.parametrize("where", ["answer", "batch", "prefill"])
def test_a_job_that_fails_keeps_what_was_computed_of_its_prompt(rig: Any, alone: Any, monkeypatch: Any, family: str, where: str) -> None:
    kinds = chain([Ids, Broken if where == "answer" else Ids], repeat(Ids))
    engine = rig(family, detokenizer=lambda: next(kinds)(), prefill_size=64)
    tokens = prompt(1, 260) + [555]
    engine.ask(prompt(9, 5), 1)
    real, reads = type(engine.model).__call__, []

    def broken(self: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        logits = real(self, inputs, *args, **kwargs)
        reads.append(inputs.shape[1])
        if where == "prefill" and reads.count(64) == 3 or where == "batch" and inputs.shape[1] == 1 and sum(reads) > 262:
            raise ValueError("it does not work")
        return logits

    with monkeypatch.context() as patched:
        if where != "answer":
            patched.setattr(type(engine.model), "__call__", broken)
        assert isinstance(engine.replies(engine.engine.submit(job(tokens, checkpoints=(96, 250))))[-1], Failed)
    again = job(tokens + [400], checkpoints=(96, 250))
    replies = engine.replies(engine.engine.submit(again))
    assert replies[0].reused_tokens >= 96
    assert words(replies) == alone(family, again.tokens)


def test_a_stop_at_position_0_after_a_hit_keeps_what_is_held(rig: Any, alone: Any) -> None:
    """The handler cancels at the first text: there is nothing wrong with the cache then."""
    engine = rig()
    tokens = prompt(1, 300)
    engine.ask(tokens)
    ticket = engine.engine.submit(job(tokens + [400], max_tokens=100_000))
    while not isinstance(ticket.get(WAIT_S), Piece):
        pass
    ticket.cancel()
    engine.replies(ticket)
    replies = engine.replies(engine.engine.submit(job(tokens + [400, 401])))
    assert replies[0] == Started(301, 1)
    assert words(replies) == alone("llama", tokens + [400, 401])
