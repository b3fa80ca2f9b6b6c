"""A streaming client for servers that speak Anthropic's Messages or OpenAI's chat completions, with a clock.

One `Ask` means the same conversation to both, so that their templates render the same tokens. Standard library only.
Times are `time.perf_counter()` seconds, counted from before the connection is made. What is measured of the answers is the
scripts' matter.
"""
from __future__ import annotations

import http.client
import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TIMEOUT_S = 600.0
POLL_S = 0.1
"""How often `/health` is asked."""


class BenchError(Exception):
    """A server that does not do what is measured; the message is for the user."""


@dataclass(frozen=True)
class Ask:
    """One request at temperature 0. `messages` are (role, text); `session` goes into a header."""

    messages: tuple[tuple[str, str], ...]
    system: str = ""
    max_tokens: int = 1
    session: str = ""


@dataclass
class Answer:
    """What came. `begun_s`: the first sign of this request's own work; `pieces_s`: each piece of text; `end_s`: the end."""

    sent_s: float
    begun_s: float = 0.0
    end_s: float = 0.0
    text: str = ""
    pieces_s: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    @property
    def ttft_s(self) -> float:
        """Seconds to the first text, or to the end where none came."""
        return (self.pieces_s[0] if self.pieces_s else self.end_s) - self.sent_s

    @property
    def total_s(self) -> float:
        """Seconds to the end."""
        return self.end_s - self.sent_s


@dataclass(frozen=True)
class Api:
    """One protocol. `text` and `usage` read one event; `counts` turns the collected usage into prompt, cached, output tokens."""

    path: str
    body: Callable[[Ask], dict[str, Any]]
    text: Callable[[Mapping[str, Any]], str]
    usage: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    counts: Callable[[Mapping[str, Any]], tuple[int, int, int]]


def _messages(ask: Ask) -> list[dict[str, str]]:
    return [{"role": role, "content": text} for role, text in ask.messages]


def _anthropic_body(ask: Ask) -> dict[str, Any]:
    system = {"system": ask.system} if ask.system else {}
    return {"model": "local", "max_tokens": ask.max_tokens, "temperature": 0, "stream": True, "messages": _messages(ask)} | system


def _anthropic_text(event: Mapping[str, Any]) -> str:
    delta = event.get("delta", {}) if event.get("type") == "content_block_delta" else {}
    return delta.get("text") or delta.get("thinking") or delta.get("partial_json") or ""


def _anthropic_counts(usage: Mapping[str, Any]) -> tuple[int, int, int]:
    cached, written = (usage.get(f"cache_{kind}_input_tokens") or 0 for kind in ("read", "creation"))
    return usage.get("input_tokens", 0) + cached + written, cached, usage.get("output_tokens", 0)


def _openai_body(ask: Ask) -> dict[str, Any]:
    # without a model: mlx_lm.server takes any other name than its own for one to load
    system = [{"role": "system", "content": ask.system}] if ask.system else []
    return {"max_tokens": ask.max_tokens, "temperature": 0, "stream": True, "stream_options": {"include_usage": True},
            "messages": system + _messages(ask)}


def _openai_text(event: Mapping[str, Any]) -> str:
    delta = event["choices"][0].get("delta", {}) if event.get("choices") else {}
    return delta.get("content") or delta.get("reasoning") or ""


def _openai_counts(usage: Mapping[str, Any]) -> tuple[int, int, int]:
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return usage.get("prompt_tokens", 0), cached, usage.get("completion_tokens", 0)


APIS = {
    "anthropic": Api("/v1/messages", _anthropic_body, _anthropic_text,
                     lambda event: event.get("usage") or event.get("message", {}).get("usage") or {}, _anthropic_counts),
    "openai": Api("/v1/chat/completions", _openai_body, _openai_text, lambda event: event.get("usage") or {}, _openai_counts),
}


@dataclass(frozen=True)
class Target:
    """A server to measure. `pid` and `log` are set where this program started it."""

    name: str
    host: str
    port: int
    api: str
    pid: int | None = None
    log: Path | None = None

    def last_words(self) -> str:
        """The end of the server's log, "" where there is none."""
        return "\n" + self.log.read_text(errors="replace")[-2000:] if self.log else ""

    def get(self, path: str) -> tuple[int, Any]:
        """Status and JSON of a GET. Raises OSError where nobody answers."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=TIMEOUT_S)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, json.loads(response.read() or b"null")
        finally:
            connection.close()

    def ask(self, ask: Ask, on_event: Callable[[Answer], bool] = lambda answer: False) -> Answer:
        """Send a request and read its stream to the end, or until `on_event` says so; then the connection is closed.

        `on_event` gets the answer as far as it is, at each sign of work on it. Raises `BenchError`.
        """
        api, answer, usage = APIS[self.api], Answer(time.perf_counter()), {}
        connection = http.client.HTTPConnection(self.host, self.port, timeout=TIMEOUT_S)
        try:
            for event in self._events(connection, api, ask):
                now_s = time.perf_counter()
                answer.begun_s = answer.begun_s or now_s
                if text := api.text(event):
                    answer.text += text
                    answer.pieces_s.append(now_s)
                usage |= api.usage(event)
                if on_event(answer):
                    break
        except (OSError, http.client.HTTPException) as error:
            raise BenchError(f"{self.name}: {error!r}{self.last_words()}") from error
        finally:
            connection.close()
        answer.end_s = time.perf_counter()
        answer.prompt_tokens, answer.cached_tokens, answer.output_tokens = api.counts(usage)
        return answer

    def _events(self, connection: http.client.HTTPConnection, api: Api, ask: Ask) -> Iterator[dict[str, Any]]:
        """The stream's events; an empty one for a comment, since servers send those while they prefill."""
        headers = {"content-type": "application/json", "x-claude-code-session-id": ask.session or "bench"}
        connection.request("POST", api.path, json.dumps(api.body(ask)), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise BenchError(f"{self.name} answers {response.status}: {response.read(500).decode(errors='replace')}{self.last_words()}")
        for line in response:
            if line.startswith(b": "):
                yield {}
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[len("data: "):])
            if "error" in event:
                raise BenchError(f"{self.name} sends an error: {event['error']}{self.last_words()}")
            if event.get("type") != "ping":
                yield event


class Background:
    """A request on a thread of its own. What went wrong there is raised by `wait` and `end`, as `BenchError`."""

    def __init__(self, target: Target, ask: Ask):
        self.answer = Answer(time.perf_counter())
        self._changed, self._enough, self._over = threading.Condition(), False, False
        self._error: BenchError | None = None
        self._thread = threading.Thread(target=self._run, args=(target, ask), daemon=True)
        self._thread.start()

    def _run(self, target: Target, ask: Ask) -> None:
        try:
            self.answer = target.ask(ask, self._on_event)
        except BenchError as error:
            self._error = error
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _on_event(self, answer: Answer) -> bool:
        with self._changed:
            self.answer = answer
            self._changed.notify_all()
        return self._enough

    def wait(self, holds: Callable[[Answer], bool]) -> None:
        """Until something holds of the answer, or it is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or holds(self.answer))
        if self._error:
            raise self._error

    def end(self, now: bool = False) -> Answer:
        """The answer once it is over; `now` cuts it off at its next event."""
        self._enough = now
        self._thread.join()
        self.wait(lambda answer: True)
        return self.answer


def together(target: Target, asks: Sequence[Ask]) -> list[Answer]:
    """Send all requests at the same moment, each on its own thread. Raises `BenchError`."""
    running = [Background(target, ask) for ask in asks]
    return [each.end() for each in running]


class HealthWatch:
    """Asks `/health` all the while and adds to `waits_s` how long each answer took, infinite where none came."""

    def __init__(self, target: Target, waits_s: list[float]):
        self._waits_s, self._target, self._over = waits_s, target, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> HealthWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(POLL_S):
            asked_s = time.perf_counter()
            try:
                self._target.get("/health")
                self._waits_s.append(time.perf_counter() - asked_s)
            except (OSError, http.client.HTTPException):
                self._waits_s.append(math.inf)
