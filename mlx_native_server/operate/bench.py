"""How fast a model is on this machine: one prefill, some decoding, nothing else in between. For the doctor."""
from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from ..engine import kv
from ..models.loading import load_weights

PREFILL_TOKENS = 512
DECODE_TOKENS = 32


@dataclass(frozen=True)
class Speed:
    """Tokens per second."""

    prefill: float
    decode: float


def measure(folder: Path, vocab_size: int) -> Speed:
    """Load the model and measure it, after one round that is not counted. Call it on the thread that owns MLX.

    Raises `ModelError`.
    """
    model = load_weights(folder)
    tokens = [(i * 7919) % min(vocab_size, 20_000) for i in range(PREFILL_TOKENS)]
    _round(model, tokens[:64], 2)
    return _round(model, tokens, DECODE_TOKENS)


def _round(model: object, tokens: list[int], count: int) -> Speed:
    state = kv.new(model)
    begun_s = time.perf_counter()
    kv.prefill(model, state, tokens)
    prefilled_s, token = time.perf_counter(), mx.array([tokens[-1]])
    for _ in range(count):
        token = mx.argmax(model(token[None], cache=state)[:, -1, :], axis=-1)
        mx.eval(token)
    return Speed(len(tokens) / (prefilled_s - begun_s), count / (time.perf_counter() - prefilled_s))
