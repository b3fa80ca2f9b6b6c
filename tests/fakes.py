"""Stand-ins for what lies behind HTTP: an engine with scripted replies, and a tokenizer whose tokens are words.

A script is a list of replies (`protocol.Reply`), texts (one token each) and `threading.Event`s, at which it waits until
the event is set. It sleeps nowhere: a test sets the event, or waits for `FakeTicket.cancelled`.
"""
from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from mlx_native_server.config import Settings
from mlx_native_server.web.connections import Limits
from mlx_native_server.protocol import ApiError, Encoded, Finished, Job, Piece, Prompt, Reply, Sampling, Started, Traits
from mlx_native_server.web.server import Server
from mlx_native_server.service import Service

Script = Sequence[Reply | str | threading.Event]
GENERATED = 2_000_000
SOON_S = 10.0
"""How long a test waits for what must come at once on an idle machine."""


class FakeTicket:
    """Plays a script for one job. `waited` counts the times that the handler asked in vain."""

    def __init__(self, job: Job, script: Script):
        self.job = job
        self.cancelled = threading.Event()
        self.waited = threading.Semaphore(0)
        self._generated = 0
        self._left = [Started(0, max(1, len(job.tokens))), *script]
        if not script or isinstance(script[-1], str):
            self._left.append(Finished("stop"))

    def get(self, timeout_s: float) -> Reply | None:
        if not self._left:
            raise AssertionError("asked for a reply after the last one")
        if isinstance(self._left[0], threading.Event):
            if not self._left[0].wait(min(timeout_s, 0.01)):
                self.waited.release()
                return None
            del self._left[0]
            return self.get(timeout_s)
        reply = self._left.pop(0)
        return Piece(reply, 1, (self._next_id(),)) if isinstance(reply, str) else reply

    def _next_id(self) -> int:
        """Generated tokens are numbered in each job, beyond the ids of written text."""
        self._generated += 1
        return GENERATED + self._generated

    def cancel(self) -> None:
        self.cancelled.set()


@dataclass
class FakeEngine:
    """Answers every job by `script`, the n-th by the n-th of `scripts` where that has one, and remembers the tickets.

    `refusal` is raised by `submit` in its place.
    """

    script: Script = ("Hello", " there")
    scripts: Sequence[Script] = ()
    refusal: ApiError | None = None
    status: str = "ok"
    tickets: list[FakeTicket] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.asked = threading.Semaphore(0)

    @property
    def jobs(self) -> list[Job]:
        return [ticket.job for ticket in self.tickets]

    def submit(self, job: Job) -> FakeTicket:
        if self.refusal:
            raise self.refusal
        n = len(self.tickets)
        self.tickets.append(FakeTicket(job, self.scripts[n] if n < len(self.scripts) else self.script))
        self.asked.release()
        return self.tickets[-1]

    def next_ticket(self) -> FakeTicket:
        """The newest ticket, once one more job was submitted."""
        assert self.asked.acquire(timeout=SOON_S), "no job came"
        return self.tickets[-1]

    def health(self) -> dict[str, Any]:
        return {"status": self.status, "progress": "", "requests_running": 1, "requests_waiting": 0, "rss_gb": 0.1,
                "mx_active_gb": 0.0, "mx_cache_gb": 0.0, "mx_peak_gb": 0.0}


@dataclass
class FakeTokenizer:
    """Renders a prompt as JSON; its tokens are that text's words. Markup written behind it has a token a character."""

    context_tokens: int = 4096
    traits: Traits = Traits()
    sampling: Sampling = Sampling(temperature=0.7, top_p=0.9, top_k=40)
    opens_thinking: bool = False
    prompts: list[Prompt] = field(default_factory=list)

    def encode(self, prompt: Prompt) -> Encoded:
        self.prompts.append(prompt)
        text = json.dumps([prompt.messages, prompt.tools])
        return Encoded(text, list(range(len(text.split()))), opens_thinking=self.opens_thinking)

    def ids(self, text: str) -> list[int]:
        return list(map(ord, text))


def make_service(engine: FakeEngine | None = None, tokenizer: FakeTokenizer | None = None, **settings: Any) -> Service:
    """A service on fakes, its tokenizer loaded; its server takes a free port."""
    service = Service(Settings(**{"port": 0, **settings}), engine or FakeEngine())
    service.use(tokenizer or FakeTokenizer())
    return service


def start_server(service: Service | None = None, limits: Limits = Limits(), **settings: Any) -> Server:
    """A running server on a free port of 127.0.0.1."""
    service = service or make_service(**settings)
    server = Server(service, service.settings, limits)
    server.start(0.01)
    return server


Serve = Callable[..., int]
"""`serve(engine=None, tokenizer=None, limits=Limits(), **settings)`: the port of a running server."""


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Servers on fakes; each must end by itself after the test."""
    servers: list[Server] = []

    def start(engine: FakeEngine | None = None, tokenizer: FakeTokenizer | None = None, limits: Limits = Limits(), **settings: Any) -> int:
        servers.append(start_server(make_service(engine, tokenizer, **settings), limits))
        return servers[-1].server_port

    yield start
    for server in servers:
        assert server.shutdown_gracefully(SOON_S)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A server with default settings that several tests only ask."""
    server = start_server()
    yield server.server_port
    assert server.shutdown_gracefully(SOON_S)


def body(**fields: Any) -> dict[str, Any]:
    """A small valid request body, changed by `fields`."""
    return {"model": "m", "max_tokens": 16, "messages": [{"role": "user", "content": "hi"}]} | fields


def sse_events(data: bytes) -> list[dict[str, Any]]:
    """The events of a stream's bytes."""
    found = []
    for record in data.decode().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in record.splitlines() if line)
        if lines:
            found.append(json.loads(lines["data"]))
            assert found[-1]["type"] == lines["event"]
    return found
