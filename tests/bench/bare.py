"""The ceilings: what the same model does in a bare loop, without queue, server or cache. Runs on the thread that owns MLX.

A prompt is prefilled in chunks and its first token taken from a `GenerationBatch`, which is how the engine does it too.
"""
from __future__ import annotations

import time
from collections.abc import Sequence

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.generate import GenerationBatch, PromptProcessingBatch

from mlx_native_server.engine import kv

GB = 1024**3


def prefill(model: nn.Module, state: kv.State, tokens: Sequence[int], chunk_tokens: int) -> None:
    """Read all of `tokens` but the last one into `state`."""
    for at in range(0, len(tokens) - 1, chunk_tokens):
        kv.prefill(model, state, tokens[at:min(at + chunk_tokens, len(tokens) - 1)])
        mx.clear_cache()


def batch(model: nn.Module, states: Sequence[kv.State], last: Sequence[int], max_tokens: int) -> GenerationBatch:
    """Rows that go on from `states` with their `last` tokens."""
    rows = len(states)
    prompts = PromptProcessingBatch(model, list(range(rows)), list(states), tokens=[[] for _ in states], samplers=[],
                                    logits_processors=[[] for _ in states], max_tokens=[max_tokens] * rows)
    return prompts.generate([[token] for token in last])


def first_token(model: nn.Module, state: kv.State, tokens: Sequence[int], chunk_tokens: int) -> tuple[float, float]:
    """Seconds until the first token after `tokens`, and the peak of memory in GB."""
    mx.clear_cache()
    mx.reset_peak_memory()
    begun_s = time.perf_counter()
    prefill(model, state, tokens, chunk_tokens)
    batch(model, [state], tokens[-1:], 2).next()
    return time.perf_counter() - begun_s, mx.get_peak_memory() / GB


def decode_rate(model: nn.Module, state: kv.State, rows: int, steps: int) -> float:
    """Tokens per second of `rows` rows that each go on from a copy of `state`."""
    generation = batch(model, [kv.handles(state) for _ in range(rows)], [1] * rows, steps + 4)
    for _ in range(2):
        generation.next()
    begun_s = time.perf_counter()
    for _ in range(steps):
        generation.next()
    return rows * steps / (time.perf_counter() - begun_s)
