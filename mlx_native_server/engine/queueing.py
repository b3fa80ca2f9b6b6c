"""The engine's waiting room: tickets, tasks, and the door through which they come.

Rules: a ticket ends exactly once, whoever ends it; no session may take every place in the queue. Everything here is plain
Python and safe to test without a model; whose turn it is is in `scheduling.py`.
"""
from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from .memory import GIB
from ..protocol import ApiError, Failed, Finished, Job, Reply, Started, overloaded

LEFT_FOR_OTHERS = 8
"""One of so many places is for other sessions than the one that has the rest."""


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

    `state` is what `kv` made: it holds the first `held_tokens` tokens of the prompt, until decoding takes it over. `rate` is
    the speed of its newest chunks in tokens per second, 0 before the first.
    `packed` and `marks` are what the cache looks at, `live` is its name for the state, `expected_tokens` what it would give
    now (as of its version `looked_up`), `shared_tokens` how much the prompt has in common with that of other tasks, by uid.
    `fetch`: what is being got from disk for it. `source` and `miss`: where the reused tokens came from, and why they were not more.
    """

    job: Job
    ticket: EngineTicket
    arrived_s: float
    uid: int = 0
    state: Any = None
    held_tokens: int = 0
    rate: float = 0.0
    reused_tokens: int = 0
    packed: bytes = b""
    marks: dict[int, int] = field(default_factory=dict)
    live: Any = None
    expected_tokens: int = 0
    looked_up: int = -1
    shared_tokens: dict[int, int] = field(default_factory=dict)
    fetch: Any = None
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
        self._open: dict[EngineTicket, str] = {}
        self._woken = False
        self.closed = ""

    def submit(self, job: Job) -> EngineTicket:
        """Queue a job. Raises `ApiError`: 529 when there are too many, 503 when the door is closed."""
        with self._changed:
            if self.closed:
                raise ApiError(503, "api_error", self.closed)
            session = job.client.session_id
            own = list(self._open.values()).count(session) if session else 0
            if len(self._open) >= self._most or own >= most_of_one(self._most):
                self._counters.refused += 1
                raise overloaded("too many requests are waiting")
            ticket = EngineTicket()
            self._open[ticket] = session
            self._arrivals.append(Task(job, ticket, time.perf_counter()))
            self._changed.notify()
        return ticket

    def take(self, wait_s: float | None) -> list[Task]:
        """What has arrived. Waits for something, a `wake` or the close for so many seconds, None for ever."""
        with self._changed:
            if not (self._arrivals or self.closed or self._woken) and wait_s != 0:
                self._changed.wait(wait_s)
            arrived, self._arrivals, self._woken = self._arrivals, [], False
        return arrived

    def wake(self) -> None:
        """Whoever waits in `take` has something to do."""
        with self._changed:
            self._woken = True
            self._changed.notify()

    def leave(self, ticket: EngineTicket) -> None:
        """A job has ended."""
        with self._changed:
            self._open.pop(ticket, None)

    def close(self, message: str) -> None:
        """Take no more jobs, and fail those that are open with the same message."""
        with self._changed:
            self.closed = self.closed or message
            ended, self._open = self._open, {}
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


def most_of_one(places: int) -> int:
    """How many of so many places one session may have."""
    return places - max(1, places // LEFT_FOR_OTHERS) if places >= LEFT_FOR_OTHERS // 2 else places
