"""The status page's live view: the health as server-sent events, once a second for as long as somebody looks.

A stream holds one connection and its sleeping thread, so there are few of them and each ends after a while; the browser
then asks again by itself. A page that finds no free place reads `/health` instead.
"""
from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .framing import Connection
from ..protocol import overloaded

HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-store"}
MOST_STREAMS = 16
PAUSE_S = 1.0
LONGEST_S = 300.0
AGAIN = b"retry: 1000\n\n"
"""How soon a browser may ask again, in milliseconds."""


class Feed:
    """The open streams of one server."""

    def __init__(self, most: int = MOST_STREAMS, pause_s: float = PAUSE_S, longest_s: float = LONGEST_S):
        self._places = threading.BoundedSemaphore(most)
        self._pause_s, self._longest_s = pause_s, longest_s

    def send(self, connection: Connection, health: Callable[[], Any]) -> None:
        """Answer with a stream, until the client is gone, the server stops, or it is time. Raises `ApiError` 529."""
        with self._place():
            ends_s = time.monotonic() + self._longest_s
            connection.start_stream(HEADERS, AGAIN + event(health()))
            while time.monotonic() < ends_s and not connection.server.stopping.wait(self._pause_s) and not connection.client_gone():
                connection.send_chunk(event(health()))
            connection.close_connection = connection.server.stopping.is_set()
            connection.end_stream()

    @contextmanager
    def _place(self) -> Iterator[None]:
        if not self._places.acquire(blocking=False):
            raise overloaded("too many status pages are open at once")
        try:
            yield
        finally:
            self._places.release()


def event(value: Any) -> bytes:
    """One event with a JSON value."""
    return f"data: {json.dumps(value)}\n\n".encode()
