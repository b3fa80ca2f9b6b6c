"""A file as one argument, in every dialect through the real server: what is known of it reaches the client at once.

The engine goes in step with the client: it hands out the next piece of the model's text only once the client has the
delta of what came shortly before. A string that is held back for long, or comes in a burst, stops the engine.
"""
from __future__ import annotations

import json
import random
import threading

import pytest
from dialect_writers import ALONE_WRITERS, TAG_WRITERS, WRITERS
from fakes import SOON_S, FakeEngine, FakeTicket, Script, Serve, body, serve, sse_events  # noqa: F401  (fixture)
from raw_client import RawClient
from test_parsers_random import as_gemma, as_json

from mlx_native_server.protocol import Job, Reply

PIECE_CHARS = 40
BEHIND = 2
"""Pieces that the engine hands out ahead of what the client has. One is where a mark may begin at a piece's end."""
SEED = 3  # with it each writes the usual form of its dialect
LINES = ("def handle(request, limit=10):\n", "    if a < b and c > d: # </li>\n", '    return {"a": [1, "x"], "b": None}\n', "\n", "\tt = 'é' + \"\\n\"  # & more\n")
WRITE = {"name": "Write", "input_schema": {
    "type": "object", "properties": {"file_path": {"type": "string"}, "content": {"type": "string"}}, "required": ["file_path", "content"]}}


class InStep(FakeTicket):
    """`live`: the numbers of the pieces that are the string's alone. `stuck`: where the client got nothing in time."""

    def __init__(self, job: Job, script: Script, live: range):
        super().__init__(job, script)
        self._live, self._handed_out, self._had = live, -1, 0  # the first reply is no piece
        self._news = threading.Condition()
        self.stuck: list[int] = []

    def get(self, timeout_s: float) -> Reply | None:
        n = self._handed_out
        with self._news:
            if n in self._live and not self.stuck and not self._news.wait_for(lambda: self._had >= n - BEHIND, SOON_S):
                self.stuck.append(n)
            self._handed_out += 1
        return super().get(timeout_s)

    def received(self) -> None:
        """The client has one more delta."""
        with self._news:
            self._had = self._handed_out
            self._news.notify()


class InStepEngine(FakeEngine):
    """Answers one job with a text in pieces."""

    def __init__(self, text: str, live: range):
        super().__init__([text[at:at + PIECE_CHARS] for at in range(0, len(text), PIECE_CHARS)])
        self._live = live

    def submit(self, job: Job) -> FakeTicket:
        self.tickets.append(InStep(job, self.script, self._live))
        return self.tickets[-1]


def file_of(size: int) -> str:
    rng, text = random.Random(size), "BEGINNING "
    while len(text) < size:
        text += rng.choice(LINES)
    return text + "END OF FILE"


@pytest.mark.parametrize("write", [as_json, as_gemma, *WRITERS, *ALONE_WRITERS], ids=lambda write: getattr(write, "__name__", None) or write.head.splitlines()[0])
def test_a_file_of_20_kb_reaches_the_client_as_it_is_written(serve: Serve, write) -> None:
    given = {"file_path": "/a/b.py", "content": file_of(20_000)}
    given = write.can_say(given) if write in TAG_WRITERS else given
    text = write(random.Random(SEED), "Write", given)
    live = range(text.index("BEGINNING") // PIECE_CHARS + 1 + BEHIND, text.index("END OF FILE") // PIECE_CHARS)
    engine, partial, deltas = InStepEngine(text, live), "", 0
    with RawClient(serve(engine)) as client:
        client.ask("POST", "/v1/messages", body(stream=True, tools=[WRITE], max_tokens=2000))
        assert client.head().status == 200
        for event in (event for chunk in client.chunks() for event in sse_events(chunk)):
            if event.get("delta", {}).get("type") == "input_json_delta":
                partial, deltas = partial + event["delta"]["partial_json"], deltas + 1
                engine.tickets[0].received()
    assert engine.tickets[0].stuck == [] and json.loads(partial) == given
    assert len(live) > 400 and deltas > len(live) * 0.9
