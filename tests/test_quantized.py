"""The engine with `MLX_KV_BITS`: rows whose KV cache is quantized, and models whose cache cannot be."""
from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm import load as load_model
from mlx_lm.generate import generate_step

from engine_rig import WAIT_S, WIDE, alone, job, prompt, rig  # noqa: F401  (fixtures)
from mlx_native_server.protocol import Piece


def test_quantized_rows_give_what_mlx_lm_gives_with_the_same_setting(rig: Any, tiny_model: Any) -> None:
    folder = tiny_model("llama", **WIDE)
    model, _ = load_model(str(folder))
    prompts = [prompt(seed, length) for seed, length in enumerate([5, 90, 300])]

    def alone_quantized(tokens: list[int]) -> list[int]:
        steps = generate_step(mx.array(tokens), model, max_tokens=8, kv_bits=8, quantized_kv_start=32, prefill_step_size=64)
        return [token for token, _ in steps]

    expected = [alone_quantized(tokens) for tokens in prompts]
    engine = rig(folder=folder, kv_bits=8, kv_quant_start=32, prefill_size=64)
    tickets = [engine.engine.submit(job(tokens, max_tokens=8)) for tokens in prompts]
    assert [engine.answer(ticket) for ticket in tickets] == expected
    assert engine.engine.health()["kv_bits"] == 8


def test_a_quantized_row_can_be_cancelled(rig: Any, tiny_model: Any) -> None:
    engine = rig(folder=tiny_model("llama", **WIDE), kv_bits=4, kv_quant_start=0)
    ticket = engine.engine.submit(job(prompt(1, 40), max_tokens=100_000))
    while not isinstance(ticket.get(WAIT_S), Piece):
        pass
    ticket.cancel()
    engine.replies(ticket)
    assert len(engine.ask(prompt(1, 40))) == 12


@pytest.mark.parametrize("family", ["gemma3", "llama"])
def test_a_cache_that_cannot_be_quantized_is_reported_and_runs_at_full_precision(rig: Any, alone: Any, caplog: Any, family: str) -> None:
    """gemma3 has rotating layers; this llama's heads are too small."""
    engine = rig(family, kv_bits=4)
    assert engine.ask(prompt(1, 90)) == alone(family, prompt(1, 90))
    assert "cannot be quantized" in caplog.text
    assert engine.engine.health()["kv_bits"] == 0
