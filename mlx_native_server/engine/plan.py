"""The memory plan: what a prompt will take, and what is the largest one that is safe. Arithmetic on bytes, and nothing else.

A state takes so many bytes a token in its plain layers and a fixed amount in the others; a chunk takes room for its
activations, which grow with the chunk, and for attention, which grows with the chunk and the tokens before it. What was
measured of these is passed in; how much memory is taken now, and what may go, is known in `space.py`.
"""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MARGIN = 0.92
"""The part of the machine's limit that is planned with; the rest is for what is not seen here."""
KEPT_PLACES = 4
"""Checkpoints that a conversation keeps beside its running state."""
SLACK = 1.1
"""Growing a state leaves unused ends of buffers, and one layer at a time is copied."""
SMALLEST_CHUNK = 64
FAST_CHUNK = 256
"""Smaller chunks cost speed: below this size it is better to let kept states go."""
MOST_TOKENS = 1 << 23
ANSWER_TOKENS = 4096
"""So much of an answer is planned for; few are longer, whatever `max_tokens` says."""
SEEN_FROM_TOKENS = 2048
"""A chunk this far into a prompt tells what attention takes."""


@dataclass(frozen=True)
class Costs:
    """Bytes, as measured: `token` a token in the plain layers, `fixed` in the other layers of one state, `chunk_token` for
    each token of a chunk, `pair` for each pair of a chunk's token and one before it."""

    weights: int
    token: float
    fixed: int
    chunk_token: float
    pair: float


class Plan:
    """What fits into `limit_bytes`, which is all the memory there is for MLX."""

    def __init__(self, limit_bytes: int, costs: Costs):
        self.limit_bytes, self.costs = int(MARGIN * limit_bytes), costs
        self._seen_pair: float | None = None

    def state_bytes(self, tokens: int) -> int:
        """A state of so many tokens."""
        return int(SLACK * tokens * self.costs.token) + self.costs.fixed

    def chunk_bytes(self, chunk_tokens: int, held_tokens: int) -> int:
        """What prefilling a chunk takes for its time, beside the state."""
        pair = self.costs.pair if self._seen_pair is None else SLACK * self._seen_pair
        return int(chunk_tokens * (self.costs.chunk_token + pair * held_tokens))

    def observe(self, chunk_tokens: int, held_tokens: int, taken_bytes: int) -> None:
        """A chunk behind `held_tokens` tokens took so much for its time."""
        if held_tokens >= SEEN_FROM_TOKENS and chunk_tokens >= SMALLEST_CHUNK:
            pair = (taken_bytes - chunk_tokens * self.costs.chunk_token) / (chunk_tokens * held_tokens)
            self._seen_pair = max(self._seen_pair or 0.0, pair)

    def window_tokens(self) -> int:
        """The largest prompt with its answer that is safe when nothing else is held."""
        costs = self.costs
        left_bytes = self.limit_bytes - costs.weights - (1 + KEPT_PLACES) * costs.fixed - SMALLEST_CHUNK * costs.chunk_token
        per_token = SLACK * costs.token + SMALLEST_CHUNK * costs.pair
        most = int(left_bytes / per_token) if per_token else MOST_TOKENS
        return rounded(max(0, min(most, MOST_TOKENS)))

    def chunk_tokens(self, wanted_tokens: int, held_tokens: int, free_bytes: int) -> int:
        """The chunk that fits into `free_bytes`: `wanted_tokens`, or the largest half of a half of it. At least `SMALLEST_CHUNK`."""
        size = wanted_tokens
        while size > SMALLEST_CHUNK and self.chunk_bytes(size, held_tokens) + self.grown_bytes(size) > free_bytes:
            size = max(SMALLEST_CHUNK, size // 2)
        return min(size, wanted_tokens)

    def grown_bytes(self, tokens: int) -> int:
        """What a state grows by with so many tokens."""
        return int(SLACK * tokens * self.costs.token)

    def needed_bytes(self, prompt_tokens: int, max_tokens: int, reused_tokens: int = 0) -> int:
        """What a prompt will take until its answer is there, less what it goes on from."""
        length = prompt_tokens + min(max_tokens, ANSWER_TOKENS)
        return self.state_bytes(length) - self.grown_bytes(reused_tokens) + self.chunk_bytes(SMALLEST_CHUNK, prompt_tokens)

    def promised_bytes(self, rows: Iterable[tuple[int, int]]) -> int:
        """What running requests will still take: each is (tokens held, tokens at its end), and in a batch each row is as long
        as the longest."""
        rows = list(rows)
        return sum(self.grown_bytes(max(0, end - held)) for held, end in rows)


def rounded(tokens: int) -> int:
    """A window as one would say it: whole thousands (1024) where it is large."""
    return tokens // 1024 * 1024 if tokens >= 8192 else tokens
