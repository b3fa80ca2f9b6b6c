"""Whose prompt is prefilled next, and how much of it.

Rules: sessions share the prefill evenly, and none may have every place; within one short prompts go first, but every
fourth slice belongs to the oldest; a slice is as long as others can bear. Plain Python, safe to test without a model.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from .queueing import Task, most_of_one

SLICE_S = 0.5
"""The longest that a prefill keeps the others from their next token, in seconds."""
ALONE_S = 1.0
"""The longest chunk when nobody else is there: what an arrival, a cancellation or a stop may have to wait for."""
BURST_S = 3.0
"""The longest that short prompts which came together are prefilled one after the other before the first of them decodes."""
SETTLED_S = 1.0
"""How long a row must have given text before a burst of short prompts is held to `SLICE_S` for it."""
MIN_CHUNK_TOKENS = 16
ALONE_CHUNK_TOKENS = 64
"""The least chunk where nobody else is there: on a slow machine each one costs a pass over all weights. Also the first, while
nothing is known of the speed."""
TILE_TOKENS = 16
SHORT_TOKENS = 128
"""Prompts with so few tokens to prefill may be read several at once: each alone would leave the processor waiting for memory."""
TOGETHER = 8
"""The most prompts that are read at once."""
OLDEST_EVERY = 4
"""Each so many slices, the oldest prompt goes first."""


def choose(tasks: Sequence[Task], turn: int, served: Mapping[str, int] = {}) -> Task | None:
    """Whose prompt is prefilled in slice number `turn`: of the sessions that were `served` least, the shortest rest, each
    fourth time the oldest."""
    if not tasks:
        return None
    least = min(served.get(task.job.client.session_id, 0) for task in tasks)
    tasks = [task for task in tasks if served.get(task.job.client.session_id, 0) == least]
    if turn % OLDEST_EVERY == OLDEST_EVERY - 1:
        return min(tasks, key=lambda task: task.arrived_s)
    return min(tasks, key=lambda task: (task.prefill_tokens, task.arrived_s))


def chunk_tokens(rate: float, alone: bool, left_s: float, largest: int) -> int:
    """How many tokens to prefill in one go.

    `rate` is the measured tokens per second, 0 before the first measurement; `largest` is the setting, and never exceeded.
    """
    if not rate:
        return min(largest, ALONE_CHUNK_TOKENS)
    budget_s, smallest = (ALONE_S, ALONE_CHUNK_TOKENS) if alone else (SLICE_S, MIN_CHUNK_TOKENS)
    return min(largest, max(smallest, int(rate * min(left_s, budget_s))))


def whole_tiles(held_tokens: int, size: int, rest: int) -> int:
    """A chunk of about `size` of the `rest` tokens, behind `held_tokens`, that ends where attention's tiles are full.

    On an H200 a chunk of 1,024 behind 20,000 tokens took a fifth longer where the sum was odd.
    """
    over = (held_tokens + size) % TILE_TOKENS
    return size - over if size < rest and over < size / 2 else size


def newer_rate(rate: float, tokens: int, seconds: float) -> float:
    """Prefill speed in tokens per second after a chunk, `rate` before it: of recent chunks, the newest counting half.

    A brief chunk is mostly overhead and says only that it goes at least so fast.
    """
    if tokens < MIN_CHUNK_TOKENS or seconds <= 0:
        return rate
    new = tokens / seconds
    if rate and new < rate and seconds < SLICE_S / 2:
        return rate
    return (rate + new) / 2 if rate else new


class Prompts:
    """The jobs that do not decode yet: waiting ones hold nothing, begun ones hold a state.

    `largest_tokens` is the setting for a chunk, `max_running` for begun and decoding jobs together.
    """

    def __init__(self, max_running: int, largest_tokens: int):
        self.waiting: list[Task] = []
        self.begun: list[Task] = []
        self.rate = 0.0
        self._max_running, self._largest_tokens, self._turn = max_running, largest_tokens, 0
        self._served: dict[str, int] = {}

    def __iter__(self) -> Iterator[Task]:
        return iter([*self.waiting, *self.begun])

    def __len__(self) -> int:
        return len(self.waiting) + len(self.begun)

    def held_tokens(self) -> dict[str, int]:
        """How much of each begun prompt is there, by the job's id. Any thread may ask."""
        return {task.job.id: task.held_tokens for task in list(self.begun)}

    def took(self, task: Task, tokens: int, seconds: float) -> None:
        """A chunk of a task's prompt was prefilled. The further into a prompt the slower it gets, so each has its own rate."""
        self.rate, task.rate = (newer_rate(rate, tokens, seconds) for rate in (self.rate, task.rate))

    def begin(self, task: Task) -> None:
        """A waiting task gets its state."""
        self.waiting.remove(task)
        self.begun.append(task)

    def remove(self, task: Task) -> None:
        """Take a task out, if it is here."""
        for tasks in (self.waiting, self.begun):
            if task in tasks:
                tasks.remove(task)

    def _serve(self) -> None:
        """Forget the sessions that have no prompt here, and let new ones begin where the others are."""
        start = min((self._served[session] for task in self if (session := task.job.client.session_id) in self._served), default=0)
        self._served = {session: self._served.get(session, start) for session in {task.job.client.session_id for task in self}}

    def _with_room(self, decoding: Sequence[Task]) -> Iterable[Task]:
        """The waiting tasks whose session has not all the places that it may have."""
        if len(self.begun) + len(decoding) >= self._max_running:
            return ()
        running = Counter(task.job.client.session_id for task in (*self.begun, *decoding))
        most = most_of_one(self._max_running)
        return (task for task in self.waiting if not (session := task.job.client.session_id) or running[session] < most)

    def next_chunk(self, spent_s: float, first: bool, decoding: Sequence[Task], streaming: bool,
                   held_back: Callable[[Task], bool] = lambda task: False) -> tuple[Task, int] | None:
        """The task to prefill next and how many of its tokens, or None when this slice is over.

        `spent_s` seconds of the slice are used; its `first` chunk is always granted. Others are `decoding`, and they are
        `streaming` when one of them has given text for a while: a burst of short prompts may go on for longer before that.
        A waiting task that is `held_back` does not begin.
        """
        self._serve()
        tasks = [*self.begun, *self._with_room(decoding)]
        while (task := choose(tasks, self._turn, self._served)) and task.state is None and held_back(task):
            tasks.remove(task)
        if task is None:
            return None
        alone = len(self) + len(decoding) == 1
        left_s = (ALONE_S if alone else SLICE_S if streaming else BURST_S) - spent_s
        rate = task.rate or self.rate
        size = min(task.prefill_tokens, chunk_tokens(rate, alone, left_s, self._largest_tokens))
        if not first and task.prefill_tokens > left_s * rate:  # a small piece is mostly overhead
            return None
        self._turn += 1
        self._served[task.job.client.session_id] += max(1, size)
        return task, size

    def companion(self, taken: Sequence[Task], tokens: int, decoding: Sequence[Task], streaming: bool,
                  held_back: Callable[[Task], bool] = lambda task: False) -> Task | None:
        """A short prompt to read together with those `taken`, which have `tokens` tokens to prefill; None when it is enough."""
        most = min(self._largest_tokens, int(self.rate * (SLICE_S if streaming else BURST_S))) - tokens
        tasks = [task for task in (*self.begun, *self._with_room(decoding)) if task not in taken and 0 < task.prefill_tokens <= min(SHORT_TOKENS, most)]
        while (task := choose(tasks, 0, self._served)) and task.state is None and held_back(task):
            tasks.remove(task)
        if task is not None:
            self._served[task.job.client.session_id] += task.prefill_tokens
        return task
