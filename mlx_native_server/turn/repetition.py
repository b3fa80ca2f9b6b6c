"""When a model only repeats itself: its tokens end in one run, said again and again, that no work needs.

A run of up to `MOST_PERIOD` tokens counts when it fills the last `LEAST_TOKENS` and stands there `LEAST_REPEATS` times, all
equal token by token. That is 50 equal lines of 20 tokens: more than a table's rules, the blanks of a drawing or an
emphatic answer have, and early enough to save the minutes (or the whole of `max_tokens`) that a stuck model would go on
for. Rows that differ by a number, or by anything else, are no repeats. A call may have reason to write a file of equal
lines or zeros: it gets `IN_CALL` times as much, about the whole answer that the README's settings allow.

Tokens are looked at `STEP` at a time: has what came last a period, and is it the one of the step before? Both looks
overlap by more than a period, so one that both have is the period of all that they saw, and nothing is read again.
"""
from __future__ import annotations

from collections.abc import Sequence

MOST_PERIOD = 256
LEAST_TOKENS = 1024
LEAST_REPEATS = 10
IN_CALL = 4
STEP = 64
"""Tokens between two looks."""
_SEEN = 2 * MOST_PERIOD


class Repetition:
    """Takes the generated ids of one text as they come."""

    def __init__(self) -> None:
        self._ids: list[int] = []  # the last `_SEEN` at least, and those since the last look
        self._new = self._period = self._run = 0

    def add(self, ids: Sequence[int], in_call: bool = False) -> bool:
        """Whether the text, with these ids, repeats itself for too long. `in_call`: they are part of a call."""
        self._ids.extend(ids)
        self._new += len(ids)
        if self._new >= STEP:
            self._look()
        most = IN_CALL if in_call else 1
        return self._period > 0 and self._run >= most * max(LEAST_TOKENS, LEAST_REPEATS * self._period)

    def _look(self) -> None:
        last = self._ids[-_SEEN:]
        found = period(last) if len(last) == _SEEN else 0
        self._run = self._run + self._new if found and found == self._period and self._new <= MOST_PERIOD else _SEEN if found else 0
        self._period, self._ids, self._new = found, last, 0


def period(ids: list[int]) -> int:
    """The shortest distance, of `MOST_PERIOD` at most, at which each id is that of before; 0 where there is none."""
    last = ids[-1]
    return next((p for p in range(1, MOST_PERIOD + 1) if ids[-1 - p] == last and ids[p:] == ids[:-p]), 0)
