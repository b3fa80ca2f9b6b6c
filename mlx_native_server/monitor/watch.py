"""What happens at the engine's door, seen from outside: every job's replies are counted and timed as they pass.

`WatchedEngine` stands in for the engine where the service asks for one. It adds to the engine's health what is known
here: which process this is, with which settings, the requests that are open and their speed.
"""
from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from .awake import Awake
from .metrics import Metrics
from ..protocol import Failed, Finished, Job, Piece, Reply, Started, Ticket

logger = logging.getLogger(__name__)

SHOWN_ERRORS = 5
SLOW_PREFILL_S = 10.0
"""A prefill that takes longer is worth a line of progress, each so many seconds."""


class Engine(Protocol):
    """See `service.Generates`."""

    def submit(self, job: Job) -> Ticket: ...

    def health(self) -> dict[str, Any]: ...


@dataclass
class Live:
    """One open request. Times are `time.monotonic()` seconds, 0 before the event."""

    id: str
    agent_id: str
    prompt_tokens: int
    arrived_s: float
    started_s: float = 0.0
    reused_tokens: int = 0
    prefilled_tokens: int = 0
    first_s: float = 0.0
    last_s: float = 0.0
    generated_tokens: int = 0
    told_s: float = 0.0

    def shown(self, now_s: float, held_tokens: int | None) -> dict[str, Any]:
        """For the health: JSON values. `held_tokens` of the prompt are prefilled, None where that is not known."""
        state = "decode" if self.first_s else "prefill" if self.started_s else "waiting"
        done_tokens = self.prompt_tokens if self.first_s else held_tokens if held_tokens is not None else self.reused_tokens
        spent_s = (self.last_s - self.first_s) if self.first_s else (now_s - self.started_s)
        done = self.generated_tokens - 1 if self.first_s else done_tokens - self.reused_tokens
        return {
            "id": self.id, "agent_id": self.agent_id, "state": state, "seconds": round(now_s - self.arrived_s, 1),
            "prompt_tokens": self.prompt_tokens, "reused_tokens": self.reused_tokens, "prompt_tokens_done": done_tokens,
            "generated_tokens": self.generated_tokens,
            "tokens_per_s": round(done / spent_s, 1) if spent_s > 0 and done > 0 and self.started_s else 0.0,
        }  # fmt: skip


class WatchedEngine:
    """An engine whose jobs are counted. `facts` are added to the health; a `status` and `progress` there replace the engine's."""

    def __init__(self, engine: Engine, metrics: Metrics, facts: Mapping[str, Any], awake: Awake,
                 clock: Callable[[], float] = time.monotonic):
        self.facts = {"pid": os.getpid(), **facts}
        self._engine, self.metrics, self.awake, self.clock = engine, metrics, awake, clock
        self._lock = threading.Lock()
        self._live: dict[int, Live] = {}
        self._errors: deque[dict[str, str]] = deque(maxlen=SHOWN_ERRORS)

    def submit(self, job: Job) -> Ticket:
        """See `engine.Engine.submit`."""
        ticket = self._engine.submit(job)
        live = Live(job.id, job.client.agent_id, len(job.tokens), self.clock())
        self.awake.take()
        with self._lock:
            self._live[id(live)] = live
        return WatchedTicket(ticket, live, self)

    def health(self) -> dict[str, Any]:
        """The engine's health with what is known here."""
        health, now_s = self._engine.health(), self.clock()
        held = health.pop("prefilled", None) or {}
        return {**health, "open": [live.shown(now_s, held.get(live.id)) for live in self.live()], "last_errors": list(self._errors), **self.facts}

    def live(self) -> list[Live]:
        """The open requests, oldest first."""
        with self._lock:
            return list(self._live.values())

    def passed(self, live: Live, reply: Reply) -> None:
        """A reply goes to its handler."""
        now_s = self.clock()
        match reply:
            case Started(reused, prefilled):
                live.started_s, live.reused_tokens, live.prefilled_tokens = now_s, reused, prefilled
                self.metrics.add("prompt_tokens_reused_total", reused)
                self.metrics.add("prompt_tokens_prefilled_total", prefilled)
            case Piece(_, tokens) if tokens:
                self._token(live, now_s, tokens)
            case Finished(reason, tokens):
                self.metrics.add("tokens_generated_total", tokens)
                self.ended(live, reason)
            case Failed(error):
                self._errors.append({"time": time.strftime("%H:%M:%S"), "id": live.id, "message": error.message})
                self.ended(live, "failed")

    def _token(self, live: Live, now_s: float, tokens: int) -> None:
        if live.first_s:
            self.metrics.observe("inter_token_seconds", now_s - live.last_s)
        else:
            live.first_s = now_s
            self.metrics.observe("time_to_first_token_seconds", now_s - live.arrived_s)
        live.last_s, live.generated_tokens = now_s, live.generated_tokens + tokens
        self.metrics.add("tokens_generated_total", tokens)

    def ended(self, live: Live, how: str) -> None:
        """A request is over; only the first to say so counts."""
        with self._lock:
            if self._live.pop(id(live), None) is None:
                return
        self.metrics.add("requests_total", end=how)
        self.awake.release()

    def slow_prefills(self) -> list[str]:
        """A line for each request that has been prefilled for long, at most one every `SLOW_PREFILL_S` seconds."""
        now_s, lines = self.clock(), []
        slow = [live for live in self.live() if live.started_s and not live.first_s and now_s - max(live.started_s, live.told_s) >= SLOW_PREFILL_S]
        held = (self._engine.health().get("prefilled") or {}) if slow else {}
        for live in slow:
            live.told_s = now_s
            if live.id in held:
                lines.append(_progress(live, held[live.id], now_s))
        return lines


class WatchedTicket:
    """See `protocol.Ticket`."""

    def __init__(self, ticket: Ticket, live: Live, engine: WatchedEngine):
        self._ticket, self._live, self._engine = ticket, live, engine

    def get(self, timeout_s: float) -> Reply | None:
        """The next reply, or None when nothing came in time."""
        reply = self._ticket.get(timeout_s)
        if reply is not None:
            self._engine.passed(self._live, reply)
        return reply

    def cancel(self) -> None:
        """End the job."""
        self._ticket.cancel()
        self._engine.ended(self._live, "cancelled")


def _progress(live: Live, held_tokens: int, now_s: float) -> str:
    done_tokens, whole_tokens = held_tokens - live.reused_tokens, live.prefilled_tokens
    rate = done_tokens / (now_s - live.started_s)
    left_s = (whole_tokens - done_tokens) / rate if rate > 0 else 0.0
    return f"request {live.id} prefill {100 * done_tokens / max(1, whole_tokens):.0f} % of {whole_tokens} tokens, {rate:.0f} tokens/s, {left_s:.0f} s left"
