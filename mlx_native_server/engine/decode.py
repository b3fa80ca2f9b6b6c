"""Decoding: jobs whose prompt is prefilled give one token per tick.

Rule: rows that share a batch have about the same length, because a batch costs rows × its longest row. Several
batches step in turn, and each keeps its own errors. Rows with a quantized cache, or one of a kind that has no batched
form, each run their own generator beside the batches. Runs on the engine's thread, inside its stream.
"""
from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.generate import GenerationBatch, PromptProcessingBatch, StopSequences, generate_step
from mlx_lm.sample_utils import make_sampler

from . import kv
from ..protocol import Sampling

logger = logging.getLogger(__name__)

PADDING_SHARE = 0.25
"""Padding that a batch may hold, as a part of its rows' tokens, plus `PADDING_TOKENS`."""
PADDING_TOKENS = 1024

WARM_UP_ROWS = 8
WARM_UP_SAMPLING = (Sampling(0.0), Sampling(0.7, 0.9, 40))


@dataclass(frozen=True)
class Start:
    """A row to decode: its prompt but for the last token is in `state`. `max_tokens` is at least 1."""

    uid: int
    tokens: Sequence[int]
    state: kv.State
    max_tokens: int
    sampling: Sampling


@dataclass(frozen=True)
class Step:
    """One generated token. `reason` is "stop" (the token is an end token), "length", or "" to go on.

    With a reason the row has left its batch, and `state` holds its prompt and all its generated tokens.
    """

    uid: int
    token: int
    reason: str = ""
    state: kv.State | None = None


class Group(Protocol):
    """Rows that step together."""

    def uids(self) -> Sequence[int]: ...
    def lengths(self) -> Sequence[int]: ...
    def step(self) -> list[Step]: ...
    def peek(self, uid: int) -> kv.State: ...
    def remove(self, uid: int) -> kv.State: ...


class Batch:
    """Rows in one of mlx-lm's generation batches."""

    def __init__(self, rows: GenerationBatch):
        self.rows = rows

    def uids(self) -> Sequence[int]:
        return tuple(self.rows.uids)

    def lengths(self) -> Sequence[int]:
        """Tokens in each row's state."""
        return [len(tokens) for tokens in self.rows.tokens]

    def step(self) -> list[Step]:
        """The next token of every row; finished rows leave."""
        return [Step(r.uid, r.token, r.finish_reason or "", r.prompt_cache) for r in self.rows.next()]

    def peek(self, uid: int) -> kv.State:
        """A copy of a row's state that is made when it is evaluated."""
        return self.rows.extract_cache(self.rows.uids.index(uid))

    def remove(self, uid: int) -> kv.State:
        """Take a row out; its state holds what it had read."""
        index = self.rows.uids.index(uid)
        state = self.rows.extract_cache(index)
        self.rows.filter([i for i in range(len(self.rows.uids)) if i != index])
        return state


class Single:
    """One row in mlx-lm's own generator. `bits` 0 leaves its cache as it is."""

    def __init__(self, model: nn.Module, start: Start, sampler: Any, stop_ids: Collection[int], bits: int, start_tokens: int):
        self._uid, self._state, self._stop_ids = start.uid, start.state, stop_ids
        self._left, self._length, self._prompt_tokens = start.max_tokens, len(start.tokens) - 1, len(start.tokens)
        self._tokens = generate_step(
            mx.array(start.tokens[-1:]), model, max_tokens=start.max_tokens, sampler=sampler, prompt_cache=start.state,
            kv_bits=bits or None, kv_group_size=kv.GROUP_SIZE, quantized_kv_start=start_tokens)

    def uids(self) -> Sequence[int]:
        return () if self._left == 0 else (self._uid,)

    def lengths(self) -> Sequence[int]:
        return (self._length,)

    def peek(self, uid: int) -> kv.State:
        """The row's state, in which it goes on."""
        return self._state

    def step(self) -> list[Step]:
        """The row's next token."""
        token = int(next(self._tokens)[0])
        self._left, self._length = self._left - 1, max(self._prompt_tokens, self._length) + 1
        reason = "stop" if token in self._stop_ids else "length" if self._left == 0 else ""
        return [Step(self._uid, token, reason, self.remove(self._uid) if reason else None)]

    def remove(self, uid: int) -> kv.State:
        """End the row; its state holds what it had read."""
        self._left = 0
        self._tokens.close()
        return self._state


class Decoder:
    """All rows that are decoding, grouped. `kv_bits` is 0 where the model's cache cannot be quantized."""

    def __init__(self, model: nn.Module, stop_ids: Collection[int], kv_bits: int, kv_quant_start: int):
        if kv_bits and (refusal := kv.quantization_refusal(model, kv_bits)):
            logger.warning("MLX_KV_BITS=%d: this model's cache cannot be quantized (%s); full precision is used", kv_bits, refusal)
            kv_bits = 0
        self._model, self._stop_ids, self.kv_bits, self._quant_start = model, frozenset(stop_ids), kv_bits, kv_quant_start
        self._stops = StopSequences([[token] for token in sorted(stop_ids)])
        # A batch samples in one call only where its rows share one sampler object.
        self._sampler = lru_cache(maxsize=64)(lambda s: make_sampler(temp=s.temperature, top_p=s.top_p, top_k=s.top_k))
        self._groups: list[Group] = []

    def __len__(self) -> int:
        return sum(len(group.uids()) for group in self._groups)

    def groups(self) -> Iterator[Group]:
        """The groups to step in this tick; a group that has become empty is dropped."""
        self._groups = [group for group in self._groups if group.uids()]
        yield from tuple(self._groups)

    def quantize(self, state: kv.State) -> None:
        """Quantize (in place) what a chunk has added to a state, where that is wanted."""
        if self.kv_bits:
            kv.quantize(state, self.kv_bits, self._quant_start)

    def prepare(self, starts: Sequence[Start]) -> list[Group]:
        """Rows of about one length as groups of their own, their first tokens being computed. Errors here are theirs."""
        samplers = [self._sampler(start.sampling) for start in starts]
        if self.kv_bits or not all(kv.can_batch(start.state) for start in starts):
            return [Single(self._model, *each, self._stop_ids, self.kv_bits, self._quant_start) for each in zip(starts, samplers)]
        prompts = PromptProcessingBatch(
            self._model, [start.uid for start in starts], [start.state for start in starts],
            tokens=[list(start.tokens[:-1]) for start in starts], samplers=samplers, logits_processors=[() for _ in starts],
            stop_sequences=[self._stops for _ in starts], max_tokens=[start.max_tokens for start in starts])
        return [Batch(prompts.generate([list(start.tokens[-1:]) for start in starts]))]

    def warm_up(self) -> None:
        """Let rows come and go for nothing: CUDA compiles its kernels at their first use."""
        for row in range(WARM_UP_ROWS):
            state, tokens = kv.new(self._model), [0] * (20 + 4 * row)
            kv.prefill(self._model, state, tokens[:-1])
            for group in self.prepare([Start(-1 - row, tokens, state, WARM_UP_ROWS + row, WARM_UP_SAMPLING[row % len(WARM_UP_SAMPLING)])]):
                self.join(group)
        while len(self):
            for group in self.groups():
                group.step()

    def join(self, group: Group) -> None:
        """Let prepared rows decode beside the others, in the batch where they cost the least padding."""
        batches = [other for other in self._groups if isinstance(other, Batch) and other.uids()]
        if isinstance(group, Batch) and batches:
            lengths = group.lengths()
            best = min(batches, key=lambda batch: padding([*batch.lengths(), *lengths]))
            if fits([*best.lengths(), *lengths]):
                best.rows.extend(group.rows)
                return
        self._groups.append(group)

    def peek(self, uid: int) -> kv.State:
        """The state of a row, to copy from at once: it may change with the row's next step."""
        return self._group(uid).peek(uid)

    def remove(self, uid: int) -> tuple[kv.State, int]:
        """Take a row out before its end: its state, and how many tokens that has read."""
        group = self._group(uid)
        length = group.lengths()[group.uids().index(uid)]
        return group.remove(uid), length

    def _group(self, uid: int) -> Group:
        return next(group for group in self._groups if uid in group.uids())

    def forget(self, uid: int) -> None:
        """Drop a row whose state is not wanted. A row alone is dropped unread, since its step may have raised."""
        for group in self._groups:
            if tuple(group.uids()) == (uid,):
                self._groups.remove(group)
                return
            if uid in group.uids():
                group.remove(uid)

    def drop(self, group: Group) -> None:
        """Forget the rows of a group, unread."""
        self._groups.remove(group)


def padding(lengths: Sequence[int]) -> int:
    """Tokens of padding in a batch of rows with these lengths."""
    return len(lengths) * max(lengths) - sum(lengths)


def fits(lengths: Sequence[int]) -> bool:
    """Whether rows of these lengths may share a batch."""
    return padding(lengths) <= PADDING_SHARE * sum(lengths) + PADDING_TOKENS
