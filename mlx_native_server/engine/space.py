"""Room for what is to come: measures what a model's states take, lets kept states go before memory is short, has others wait.

Rule: nothing is computed before there is room for it. What a request will take is `plan.py`'s arithmetic; here are the
figures of the machine and of the prompt cache. On the engine's thread.
"""
from __future__ import annotations

import logging
from collections.abc import Iterable

import mlx.nn as nn

from . import device, kv
from .cache import Cache
from .memory import GIB
from .plan import ANSWER_TOKENS, FAST_CHUNK, SMALLEST_CHUNK, Costs, Plan
from .queueing import Task

logger = logging.getLogger(__name__)

TRIAL_TOKENS = 128
USUAL_HEADS = 32
SCORE_BYTES = 4
LEAST_WINDOW_TOKENS = 2048
"""So many are tried whatever the plan says: a machine without room for them may still do it, slowly."""


def measured(model: nn.Module, bits: int, weights_bytes: int) -> Costs:
    """The model's costs, from a short trial. Leaves nothing behind."""
    device.take_peak()
    before_bytes = device.active_bytes()
    state = kv.new(model)
    kv.prefill(model, state, [0] * TRIAL_TOKENS)
    taken_bytes = device.take_peak() - before_bytes - kv.nbytes(state)
    if bits:
        kv.quantize(state, bits, 0)
    token, fixed = kv.costs(state)
    return Costs(weights_bytes, token, fixed, max(0, taken_bytes) / TRIAL_TOKENS, SCORE_BYTES * kv.attention_heads(model, USUAL_HEADS))


class Space:
    """The room that `plan` leaves beside what is held now."""

    def __init__(self, plan: Plan, cache: Cache):
        self.plan, self._cache = plan, cache
        self.window_tokens = max(LEAST_WINDOW_TOKENS, plan.window_tokens())
        logger.info("memory plan: %.1f GB, of it weights %.1f GB; %.1f KB a token and %.3f GB a state; the largest safe window is %d tokens",
                    plan.limit_bytes / GIB, plan.costs.weights / GIB, plan.costs.token / 1024, plan.costs.fixed / GIB, self.window_tokens)

    def chunk_tokens(self, task: Task, wanted_tokens: int) -> int:
        """The size of a task's next chunk, for which there is room then."""
        free_bytes = self._free_bytes()
        size = self.plan.chunk_tokens(wanted_tokens, task.held_tokens, free_bytes)
        if size < min(wanted_tokens, FAST_CHUNK):
            size = min(wanted_tokens, FAST_CHUNK)
            needed_bytes = self.plan.chunk_bytes(size, task.held_tokens) + self.plan.grown_bytes(size)
            self._make_room(needed_bytes)
            size = self.plan.chunk_tokens(size, task.held_tokens, self._free_bytes())
        return size

    def took(self, chunk_tokens: int, held_tokens: int, before_bytes: int, peak_bytes: int) -> None:
        """A chunk behind `held_tokens` tokens was computed, with the memory at `before_bytes` before it."""
        self.plan.observe(chunk_tokens, held_tokens, peak_bytes - before_bytes - self.plan.grown_bytes(chunk_tokens))

    def must_wait(self, task: Task, running: Iterable[Task]) -> bool:
        """Whether a task has no room beside those that run, even if all kept states went."""
        others = list(running)
        if not others:
            return False  # it may need all there is
        job = task.job
        rows = ((other.held_tokens + len(other.generated), len(other.job.tokens) + min(other.job.max_tokens, ANSWER_TOKENS)) for other in others)
        needed_bytes = self.plan.needed_bytes(len(job.tokens), job.max_tokens) + self.plan.promised_bytes(rows)
        return needed_bytes > self._free_bytes() + self._cache.nbytes

    def before_decoding(self) -> bool:
        """Let kept states go where decoding has come to the limit; whether there is room then."""
        needed_bytes = self.plan.grown_bytes(SMALLEST_CHUNK)
        self._make_room(needed_bytes)
        return self._free_bytes() >= needed_bytes

    def _make_room(self, needed_bytes: int) -> None:
        if (short_bytes := needed_bytes - self._free_bytes()) > 0 and self._cache.nbytes:
            logger.info("memory is short: kept states of %.2f GB go", min(short_bytes, self._cache.nbytes) / GIB)
            self._cache.release(short_bytes)
            device.release()

    def _free_bytes(self) -> int:
        return self.plan.limit_bytes - device.active_bytes()
