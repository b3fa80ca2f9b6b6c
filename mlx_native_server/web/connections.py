"""The listening socket and the open connections: accepting, the cap, the end.

The rule: a slow, half-open or vanished client costs one sleeping thread and disturbs nobody else. Past the cap the
connections that owe no answer are closed, idle ones first. What is said on a connection is `framing.py`'s and
`server.py`'s.
"""
from __future__ import annotations

import errno
import json
import logging
import math
import resource
import socket
import socketserver
import threading
import time
from dataclasses import dataclass
from enum import IntEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ..protocol import overloaded

logger = logging.getLogger(__name__)

MB = 1 << 20


class BindError(Exception):
    """The address cannot be listened on; the message is one sentence for the user."""


@dataclass(frozen=True)
class Limits:
    """Deadlines in seconds and sizes.

    A connection may take `header_s` for a request's head, `body_s` plus `body_s_per_mb` a MB for its body, and may be
    idle for `idle_s` after an answer. A write fails when nothing was taken for `send_s`. What a client still sends
    after a refusal is read and dropped for `linger_s`, or the reset would destroy the answer on its way.
    A stream is silent for at most `ping_s` and one wait for the engine.
    """

    header_s: float = 10.0
    body_s: float = 60.0
    body_s_per_mb: float = 1.0
    idle_s: float = 120.0
    send_s: float = 60.0
    linger_s: float = 10.0
    ping_s: float = 9.0
    max_body_bytes: int = 32 * MB
    max_connections: int = 256


class State(IntEnum):
    """What a connection is doing, in the order in which they are closed past the cap; ANSWERING ones never are."""

    IDLE = 0
    READING = 1
    ANSWERING = 2


class Registry:
    """The open connections and what each is doing. Its lock is held for dictionary work only."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._states: dict[socket.socket, tuple[State, float]] = {}

    def __len__(self) -> int:
        return len(self._states)

    def mark(self, connection: socket.socket, state: State) -> None:
        with self._changed:
            self._states[connection] = state, time.monotonic()

    def remove(self, connection: socket.socket) -> None:
        with self._changed:
            self._states.pop(connection, None)
            self._changed.notify_all()

    def drop(self, most: int) -> int:
        """Close up to `most` connections that owe no answer, idle and long unused ones first. Returns how many."""
        with self._changed:
            free = [(value, n, c) for n, (c, value) in enumerate(self._states.items()) if value[0] < State.ANSWERING]
            dropped = [connection for _, _, connection in sorted(free)[:most]]
            for connection in dropped:
                del self._states[connection]
                _shut(connection)
        return len(dropped)

    def wait_empty(self, timeout_s: float) -> bool:
        """True when no connection is left within `timeout_s` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._states, timeout_s)


class ConnectionServer(ThreadingHTTPServer):
    """Binds at once, accepts when told to; one thread a connection, never more of them than the limits allow."""

    daemon_threads = True
    request_queue_size = 128
    allow_reuse_port = False

    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler], limits: Limits = Limits()):
        """Listen on `host`:`port` (0 takes a free one). Raises `BindError`."""
        self.limits = limits
        self.registry = Registry()
        self.stopping = threading.Event()
        self._accepting = False
        self._cap = min(limits.max_connections, _open_files() // 2)
        try:
            self.address_family, address = _resolve(host, port)
            super().__init__(address, handler)
        except (OSError, OverflowError) as error:
            raise BindError(_bind_message(host, port, error)) from error

    def server_bind(self) -> None:
        # not HTTPServer's: it looks the address up in reverse and can wait for seconds
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]

    # ── accepting ────────────────────────────────────────────────────────────────────────────────

    def start(self, poll_s: float = 0.1) -> None:
        """Accept on a thread of its own, which looks every `poll_s` seconds whether it should end."""
        self._accepting = True
        threading.Thread(target=self.serve_forever, args=(poll_s,), name="accept", daemon=True).start()

    def serve_forever(self, poll_interval: float = 0.1) -> None:
        """Accept on this thread until `shutdown_gracefully`, or an exception that a signal handler raises."""
        self._accepting = True
        super().serve_forever(poll_interval)

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE) and not self.registry.drop(1):
                time.sleep(0.05)  # the listener stays readable: without a pause this is a busy loop
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        if len(self.registry) >= self._cap and not self.registry.drop(1):
            self._refuse(request)
            return
        self.registry.mark(request, State.IDLE)
        super().process_request(request, client_address)

    def _refuse(self, connection: socket.socket) -> None:
        body = json.dumps(overloaded("too many connections").body()).encode()
        head = (f"HTTP/1.1 529 Overloaded\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
                "retry-after: 5\r\nConnection: close\r\n\r\n")
        try:
            connection.setblocking(False)
            connection.send(head.encode() + body)
        except OSError as error:
            logger.debug("refusing a connection: %s", error)
        self.shutdown_request(connection)

    def shutdown_request(self, request: Any) -> None:
        self.registry.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.exception("connection from %s failed", client_address)

    # ── the end ──────────────────────────────────────────────────────────────────────────────────

    def shutdown_gracefully(self, timeout_s: float = 1.5) -> bool:
        """Stop accepting, let running answers end with an error, close the rest. True when all ended in time.

        Call it from another thread than the accepting one, or once that one has left `serve_forever`.
        """
        deadline = time.monotonic() + timeout_s
        self.stopping.set()
        if self._accepting:
            self.shutdown()
        self.server_close()
        self.registry.drop(len(self.registry))
        return self.registry.wait_empty(max(0.0, deadline - time.monotonic()))


def _open_files() -> float:
    """How many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return math.inf if soft == resource.RLIM_INFINITY else soft


def _shut(connection: socket.socket) -> None:
    """Wake the thread that waits on this connection; it closes it."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError as error:
        logger.debug("closing a connection: %s", error)


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """The family and address to bind; IPv4 first, which is where clients look for `localhost`."""
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return family, (str(address[0]), int(address[1]))


def _bind_message(host: str, port: int, error: Exception) -> str:
    reasons = {
        errno.EADDRINUSE: "another program listens there (perhaps a second server); choose another with MLX_PORT",
        errno.EACCES: "this user may not use that port; choose one above 1023 with MLX_PORT",
        errno.EADDRNOTAVAIL: "this machine has no such address; see MLX_HOST",
    }
    return f"cannot listen on {host}:{port}: {reasons.get(getattr(error, 'errno', None), error)}"
