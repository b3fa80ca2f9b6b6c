"""The engine's waiting room: tickets, tasks, and whose turn it is.

Rules: a ticket ends exactly once, whoever ends it; short prompts go first, but every fourth slice belongs to
the oldest prompt; a prefill slice is as long as others can bear. Everything here is plain Python and safe to
test without a model; what runs on the engine's thread is in `engine.py`.
"""
from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from .memory import GIB
from .protocol import ApiError, Failed, Finished, Job, Reply, Started, overloaded

SLICE_S = 0.5
"""The longest that a prefill keeps the others from their next token, in seconds."""
ALONE_S = 1.0
"""The longest chunk when nobody else is there: what an arrival, a cancellation or a stop may have to wait for."""
BURST_S = 3.0
"""The longest that short prompts which came together are prefilled one after the other before the first of them decodes."""
MIN_CHUNK_TOKENS = 64
OLDEST_EVERY = 4
"""Each so many slices, the oldest prompt goes first."""


class EngineTicket:
    """The handler's end of a job (`protocol.Ticket`), and the engine's: replies in one direction, cancellation in the other."""

    def __init__(self) -> None:
        self._replies: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self.cancelled = False
        self.ended = False

    def get(self, timeout_s: float) -> Reply | None:
        """The next reply, or None when nothing came within `timeout_s` seconds."""
        try:
            return self._replies.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def cancel(self) -> None:
        """End the job at the engine's next chunk or token. Safe at any time and more than once."""
        self.cancelled = True

    def put(self, reply: Reply) -> bool:
        """Hand a reply to the handler; False when the ticket has already ended."""
        with self._lock:
            if self.ended:
                return False
            self.ended = isinstance(reply, (Finished, Failed))
            self._replies.put(reply)
            return True


@dataclass(eq=False)
class Task:
    """One job on its way through the engine. Times are `time.perf_counter()` seconds, 0 before the event.

    `state` is what `kv` made: it holds the first `held_tokens` tokens of the prompt, until decoding takes it over.
    `packed` and `marks` are what the cache looks at, `live` is its name for the state, `expected_tokens` what it would give
    now (as of its version `looked_up`), `shared_tokens` how much the prompt has in common with that of other tasks, by uid.
    `source` and `miss`: where the reused tokens came from, and why they were not more.
    """

    job: Job
    ticket: EngineTicket
    arrived_s: float
    uid: int = 0
    state: Any = None
    held_tokens: int = 0
    reused_tokens: int = 0
    packed: bytes = b""
    marks: dict[int, int] = field(default_factory=dict)
    live: Any = None
    expected_tokens: int = 0
    looked_up: int = -1
    shared_tokens: dict[int, int] = field(default_factory=dict)
    detokenizer: Any = None
    generated: list[int] = field(default_factory=list)
    first_token_s: float = 0.0
    last_token_s: float = 0.0
    peak_bytes: int = 0
    source: str = ""
    miss: str = ""

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens that are still to be prefilled: all but the last, which starts the decoding."""
        return max(0, len(self.job.tokens) - 1 - (self.held_tokens if self.state is not None else max(self.held_tokens, self.expected_tokens)))

    @property
    def ttft_s(self) -> float:
        """Seconds from submission to the first token, 0 when none came."""
        return self.first_token_s - self.arrived_s if self.first_token_s else 0.0

    @property
    def decode_rate(self) -> float:
        """Tokens per second after the first one."""
        span_s = self.last_token_s - self.first_token_s
        return (len(self.generated) - 1) / span_s if span_s > 0 else 0.0

    def summary(self, reason: str, released_bytes: int) -> str:
        """The log line of an ended task."""
        client, prompt_tokens = self.job.client, len(self.job.tokens)
        fields = {
            "agent": client.agent_id or "-", "session": client.session_id or "-", "prompt": prompt_tokens, "reused": self.reused_tokens,
            "prefilled": prompt_tokens - self.reused_tokens, "generated": len(self.generated), "ttft_s": f"{self.ttft_s:.2f}",
            "tokens_per_s": f"{self.decode_rate:.1f}", "stop": reason, "peak_gb": f"{self.peak_bytes / GIB:.2f}",
            "released_gb": f"{released_bytes / GIB:.2f}", "from": self.source or "-", "miss": self.miss or "-"}
        return f"request {self.job.id} " + " ".join(f"{name}={value}" for name, value in fields.items())


@dataclass
class Counters:
    """Totals since the start, for `/health` and metrics. Written by the engine's thread, read by any."""

    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    refused: int = 0
    reused_tokens: int = 0
    prefilled_tokens: int = 0
    generated_tokens: int = 0

    def add(self, started: Started) -> None:
        """Count a prompt."""
        self.reused_tokens += started.reused_tokens
        self.prefilled_tokens += started.prefilled_tokens


class Door:
    """Where jobs come in, from any thread, and the engine takes them. At most `most` jobs are open at a time."""

    def __init__(self, most: int, counters: Counters):
        self._most, self._counters = most, counters
        self._changed = threading.Condition()
        self._arrivals: list[Task] = []
        self._open: set[EngineTicket] = set()
        self.closed = ""

    def submit(self, job: Job) -> EngineTicket:
        """Queue a job. Raises `ApiError`: 529 when there are too many, 503 when the door is closed."""
        with self._changed:
            if self.closed:
                raise ApiError(503, "api_error", self.closed)
            if len(self._open) >= self._most:
                self._counters.refused += 1
                raise overloaded("too many requests are waiting")
            ticket = EngineTicket()
            self._open.add(ticket)
            self._arrivals.append(Task(job, ticket, time.perf_counter()))
            self._changed.notify()
        return ticket

    def take(self, wait: bool) -> list[Task]:
        """What has arrived; with `wait`, once there is something or the door is closed."""
        with self._changed:
            while wait and not self._arrivals and not self.closed:
                self._changed.wait()
            arrived, self._arrivals = self._arrivals, []
        return arrived

    def leave(self, ticket: EngineTicket) -> None:
        """A job has ended."""
        with self._changed:
            self._open.discard(ticket)

    def close(self, message: str) -> None:
        """Take no more jobs, and fail those that are open with the same message."""
        with self._changed:
            self.closed = self.closed or message
            ended, self._open = self._open, set()
            self._changed.notify()
        for ticket in ended:
            ticket.put(Failed(ApiError(500, "api_error", message)))

    @property
    def open_jobs(self) -> int:
        """Jobs that came in and have not ended."""
        return len(self._open)

    @property
    def has_arrivals(self) -> bool:
        """Whether somebody waits to be taken."""
        return bool(self._arrivals)


def choose(tasks: Sequence[Task], turn: int) -> Task | None:
    """Whose prompt is prefilled in slice number `turn`: the shortest rest, each fourth time the oldest."""
    if not tasks:
        return None
    if turn % OLDEST_EVERY == OLDEST_EVERY - 1:
        return min(tasks, key=lambda task: task.arrived_s)
    return min(tasks, key=lambda task: (task.prefill_tokens, task.arrived_s))


def chunk_tokens(rate: float, budget_s: float, largest: int) -> int:
    """How many tokens to prefill in one go.

    `rate` is the measured tokens per second, 0 before the first measurement; `largest` is the setting. A chunk
    has at least `MIN_CHUNK_TOKENS` tokens (or `largest`, where that is less).
    """
    smallest = min(MIN_CHUNK_TOKENS, largest)
    return min(largest, max(smallest, int(rate * budget_s)))


class Rate:
    """Prefill speed in tokens per second: the recent chunks, the newest counting half."""

    def __init__(self) -> None:
        self.tokens_per_s = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """Take a chunk into account. Chunks of a few tokens say nothing about the speed of long ones."""
        if tokens < MIN_CHUNK_TOKENS // 2 or seconds <= 0:
            return
        new = tokens / seconds
        self.tokens_per_s = new if not self.tokens_per_s else (self.tokens_per_s + new) / 2


class Prompts:
    """The jobs that do not decode yet: waiting ones hold nothing, begun ones hold a state.

    `largest_tokens` is the setting for a chunk, `max_running` for begun and decoding jobs together.
    """

    def __init__(self, max_running: int, largest_tokens: int):
        self.waiting: list[Task] = []
        self.begun: list[Task] = []
        self.rate = Rate()
        self._max_running, self._largest_tokens, self._turn = max_running, largest_tokens, 0

    def __iter__(self) -> Iterator[Task]:
        return iter([*self.waiting, *self.begun])

    def __len__(self) -> int:
        return len(self.waiting) + len(self.begun)

    def begin(self, task: Task) -> None:
        """A waiting task gets its state."""
        self.waiting.remove(task)
        self.begun.append(task)

    def remove(self, task: Task) -> None:
        """Take a task out, if it is here."""
        for tasks in (self.waiting, self.begun):
            if task in tasks:
                tasks.remove(task)

    def next_chunk(self, spent_s: float, first: bool, rows: int, streaming: bool,
                   held_back: Callable[[Task], bool] = lambda task: False) -> tuple[Task, int] | None:
        """The task to prefill next and how many of its tokens, or None when this slice is over.

        `spent_s` seconds of the slice are used; its `first` chunk is always granted. `rows` decode, and they are
        `streaming` when one of them has given text: a burst of short prompts may go on for longer before that.
        A waiting task that is `held_back` does not begin.
        """
        room = len(self.begun) + rows < self._max_running
        tasks = [*self.begun, *(self.waiting if room else ())]
        while (task := choose(tasks, self._turn)) and task.state is None and held_back(task):
            tasks.remove(task)
        if task is None:
            return None
        alone = len(self) + rows == 1
        left_s = (ALONE_S if alone else SLICE_S if streaming else BURST_S) - spent_s
        size = chunk_tokens(self.rate.tokens_per_s, min(left_s, ALONE_S if alone else SLICE_S), self._largest_tokens)
        size = min(task.prefill_tokens, size)
        if not first and size > left_s * self.rate.tokens_per_s:
            return None
        self._turn += 1
        return task, size
