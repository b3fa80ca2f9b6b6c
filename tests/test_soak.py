"""Mixed requests, many of them cut off: answers, record and memory stay right."""
from __future__ import annotations

import os
import random
from typing import Any

import mlx.core as mx
import pytest

from engine_rig import WAIT_S, Talk, alone, prompt, rig  # noqa: F401  (fixtures)
from mlx_native_server.engine.memory import GIB
from mlx_native_server.protocol import Failed, Finished

SOAK_REQUESTS = int(os.environ.get("SOAK_REQUESTS", "72"))
"""Over all families; more of them find rarer faults."""


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen3_5"])
def test_mixed_requests_of_which_a_fifth_is_cut_off(rig: Any, alone: Any, family: str) -> None:
    """Finished answers are those of a cold run, and the record and the memory are right after each."""
    rng = random.Random(11)
    engine = rig(family, prefill_size=64, prompt_cache_gb=4_000_000 / GIB, max_running=6)
    talks = [Talk(prompt(number % 2, 90), str(number)) for number in range(5)]
    base_bytes, cut = 0, 0
    for number in range(SOAK_REQUESTS // 3 // 4 + 1):
        wave = []
        for talk in rng.sample(talks, 4):
            if len(talk.turns) > 250:
                talk.turns, talk.ends, talk.typed = [], [], 0
            talk.say(prompt(rng.randrange(40), rng.randrange(5, 60)), typed=rng.random() < 0.3)
            wanted = talk.job(rng.randrange(0, 9))
            wave.append((talk, wanted, engine.engine.submit(wanted), rng.random() < 0.2))
        for talk, wanted, ticket, is_cut in wave:
            if is_cut:
                for _ in range(rng.randrange(4)):
                    if isinstance(ticket.get(WAIT_S), (Finished, Failed)):
                        break
                else:
                    ticket.cancel()
                    engine.replies(ticket)
                cut += 1
                continue
            got = engine.answer(ticket)
            assert got == (alone(family, wanted.tokens, wanted.max_tokens) if wanted.max_tokens else [])
            if rng.random() < 0.7:
                talk.answered(got)
        assert engine.engine.health()["prompt_cache"]["bytes"] <= 4_000_000
        held_bytes = mx.get_active_memory() - engine.engine.health()["prompt_cache"]["bytes"]
        base_bytes = base_bytes or held_bytes
        assert held_bytes <= base_bytes + 2_000_000, "memory grows"
    assert cut and engine.failure is None and engine.engine.health()["status"] == "ok"
