"""HTTP/1.1 on one connection: reading requests under deadlines, keep-alive, writing answers and streams.

The rules: every wait has a deadline; an unread body never becomes the next request; an answer's head and body are one
write, and so is each event of a stream. RFC 9112 is followed where a peer can notice. Chunked request bodies are refused:
no client of this API sends them. Paths, keys and events are `server.py`'s.
"""
from __future__ import annotations

import io
import json
import logging
import math
import select
import socket
import time
import uuid
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from types import MappingProxyType
from typing import Any

from .connections import MB, ConnectionServer, State
from ..protocol import ApiError, bad_request

logger = logging.getLogger(__name__)

MAX_LINE_BYTES = 1 << 16
MAX_HEAD_BYTES = 1 << 17
"""From where on a head is refused; one of half this size is always taken, for a buffer may be read beyond its end."""
ENDLESS = 1 << 64
PEER_CLOSED = getattr(select, "POLLRDHUP", 0)  # Linux only; elsewhere POLLHUP or an empty peek says it


class ClientGone(Exception):
    """The client closed its connection, or took nothing of its answer for too long."""


class DeadlineReader(io.RawIOBase):
    """A socket's bytes until `deadline`, however small the pieces they come in; after it TimeoutError.

    More than `most_bytes` raise `ApiError` 431.
    """

    def __init__(self, connection: socket.socket):
        self._socket = connection
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self.deadline = self.most_bytes = math.inf

    def expect_within(self, wait_s: float, most_bytes: float = math.inf) -> None:
        self.deadline, self.most_bytes = time.monotonic() + wait_s, most_bytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left_s = self.deadline - time.monotonic()
        if left_s <= 0 or not self._poll.poll(math.ceil(left_s * 1000)):
            raise TimeoutError
        if self.most_bytes <= 0:
            raise ApiError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "invalid_request_error", "headers: too large altogether")
        try:
            count = self._socket.recv_into(buffer)
        except ConnectionError:
            return 0
        self.most_bytes -= count
        return count


class Connection(BaseHTTPRequestHandler):
    """One connection and its requests in turn. A subclass says how each is answered."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: ConnectionServer

    def answer(self) -> None:
        """Answer the request whose head was read (`command`, `path`, `headers`); `read_body` reads the rest."""
        raise NotImplementedError

    # ── a request in ─────────────────────────────────────────────────────────────────────────────

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self._reader = DeadlineReader(self.connection)
        self.rfile = io.BufferedReader(self._reader, MAX_LINE_BYTES)
        self.connection.settimeout(self.server.limits.send_s)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._gone = select.poll()
        self._gone.register(self.connection, select.POLLIN | PEER_CLOSED)
        self._wait_s = self.server.limits.header_s

    def handle_one_request(self) -> None:
        self.request_id = f"req_{uuid.uuid4().hex[:24]}"
        self.command, self.requestline, self.request_version = "", "", "HTTP/1.1"
        self.close_connection, self.streaming = True, False
        self._unread_bytes, self._expects_continue = 0, False
        try:
            if self._await_request() and self._read_head():
                self.server.registry.mark(self.connection, State.ANSWERING)
                self.answer()
            if self._unread_bytes:
                self._linger()
        except ClientGone:
            logger.debug("%s: the client is gone", self.request_id)
            self.close_connection = True
        self._wait_s = self.server.limits.idle_s

    def _await_request(self) -> bool:
        """True once the next request begins, False when there will be none."""
        self.server.registry.mark(self.connection, State.IDLE)
        self._reader.expect_within(self._wait_s)
        try:
            return not self.server.stopping.is_set() and bool(self.rfile.peek(1))
        except TimeoutError:
            return False

    def _read_head(self) -> bool:
        """True when the head is read and its body's length known; False when it was refused."""
        self.server.registry.mark(self.connection, State.READING)
        self._reader.expect_within(self.server.limits.header_s, MAX_HEAD_BYTES)
        try:
            self.raw_requestline = self.rfile.readline(MAX_LINE_BYTES + 1)
            if len(self.raw_requestline) > MAX_LINE_BYTES:
                raise ApiError(HTTPStatus.REQUEST_URI_TOO_LONG, "invalid_request_error", f"request line: longer than {MAX_LINE_BYTES} bytes")
            if not self.parse_request():
                return False
            if self.request_version == "HTTP/0.9":
                raise bad_request("request line: must name an HTTP version")
            self._unread_bytes = self._body_length()
        except TimeoutError:
            self._refuse(ApiError(HTTPStatus.REQUEST_TIMEOUT, "invalid_request_error", "headers: they came too slowly"))
        except ApiError as error:
            self._refuse(error)
        else:
            return True
        return False

    def handle_expect_100(self) -> bool:
        self._expects_continue = True  # answered when the body is wanted, so that a refusal saves its upload
        return True

    def _body_length(self) -> int:
        """The declared length in bytes. Raises `ApiError` where the body's end cannot be known."""
        if "transfer-encoding" in self.headers:
            raise ApiError(HTTPStatus.LENGTH_REQUIRED, "invalid_request_error",
                           "Transfer-Encoding: chunked bodies are not taken, send the body with a Content-Length")
        values = {value.strip() for value in self.headers.get_all("content-length", ["0"])}
        value = values.pop()
        if values or not (value.isascii() and value.isdigit()):
            raise bad_request("Content-Length: must be one decimal number")
        return int(value) if len(value) < 20 else ENDLESS

    def read_body(self) -> bytes:
        """The request's body. Raises `ApiError` when it is too large, slow, or cut short."""
        length, limits = self._unread_bytes, self.server.limits
        if length > limits.max_body_bytes:
            raise ApiError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "request_too_large",
                           f"body: it has {length} bytes, more than the maximum of {limits.max_body_bytes}")
        if self._expects_continue and length:
            self._write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.server.registry.mark(self.connection, State.READING)
        self._reader.expect_within(limits.body_s + limits.body_s_per_mb * length / MB)
        try:
            body = self.rfile.read(length)
        except TimeoutError:
            raise ApiError(HTTPStatus.REQUEST_TIMEOUT, "invalid_request_error", "body: it came too slowly") from None
        if len(body) < length:
            raise bad_request(f"body: it ended after {len(body)} of {length} bytes")
        self._unread_bytes = 0
        self.server.registry.mark(self.connection, State.ANSWERING)
        return body

    def client_gone(self) -> bool:
        """Whether the client closed its side. A next request that already waits is not the end."""
        for _, flags in self._gone.poll(0):
            if flags & ~select.POLLIN:
                return True
            try:
                return not self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            except BlockingIOError:
                return False
            except OSError:
                return True
        return False

    # ── an answer out ────────────────────────────────────────────────────────────────────────────

    def send_whole(self, status: int, headers: Mapping[str, str], body: bytes = b"") -> None:
        """Write one complete answer. Raises `ClientGone`."""
        if self._unread_bytes:
            self.close_connection = True
        head = self._head(status, {**headers, "Content-Length": str(len(body))})
        self._write(head if self.command == "HEAD" else head + body)

    def send_error_body(self, error: ApiError, extra: Mapping[str, str] = MappingProxyType({})) -> None:
        """Write a failure in Anthropic's error shape. Raises `ClientGone`."""
        headers = {"Content-Type": "application/json", **extra}
        if error.retry_after_s is not None:
            headers["retry-after"] = str(error.retry_after_s)
        self.send_whole(error.status, headers, json.dumps(error.body(self.request_id)).encode())

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the base class calls for a head that it cannot parse."""
        part = "headers" if code == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE else "request line"
        self._refuse(ApiError(int(code), "invalid_request_error", f"{part}: {message or HTTPStatus(code).phrase}"))

    def _refuse(self, error: ApiError) -> None:
        """Answer a request whose end is unknown: nothing after it can be read as a request."""
        self.close_connection, self._unread_bytes = True, ENDLESS
        self.send_error_body(error)

    def start_stream(self, headers: Mapping[str, str], first: bytes) -> None:
        """Write the head of a stream with its `first` bytes. HTTP/1.0 knows no chunks: its end is the connection's."""
        self._chunked = self.request_version >= "HTTP/1.1"
        if not self._chunked:
            self.close_connection = True
        framed = {"Transfer-Encoding": "chunked"} if self._chunked else {}
        self.streaming = True
        self._write(self._head(200, {**headers, **framed}) + self._chunk(first))

    def send_chunk(self, data: bytes) -> None:
        self._write(self._chunk(data))

    def end_stream(self) -> None:
        self.streaming = False
        if self._chunked:
            self._write(b"0\r\n\r\n")

    def _chunk(self, data: bytes) -> bytes:
        return b"%x\r\n%s\r\n" % (len(data), data) if self._chunked else data

    def _head(self, status: int, headers: Mapping[str, str]) -> bytes:
        phrase = "Overloaded" if status == 529 else HTTPStatus(status).phrase
        connection = "close" if self.close_connection else "keep-alive"
        fields = {"Date": self.date_time_string(), "request-id": self.request_id, "Connection": connection, **headers}
        lines = [f"HTTP/1.1 {int(status)} {phrase}", *(f"{name}: {value}" for name, value in fields.items())]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    def _write(self, data: bytes) -> None:
        try:
            self.connection.sendall(data)
        except OSError as error:
            raise ClientGone from error

    def _linger(self) -> None:
        """Read and drop what the client still sends, so that it gets to read the answer."""
        self.close_connection = True
        self.server.registry.mark(self.connection, State.READING)
        self._reader.expect_within(self.server.limits.linger_s)
        try:
            self.connection.shutdown(socket.SHUT_WR)
            while self._unread_bytes > 0 and (data := self.rfile.read1(min(self._unread_bytes, MAX_LINE_BYTES))):
                self._unread_bytes -= len(data)
        except OSError as error:
            logger.debug("%s: lingering: %s", self.request_id, error)

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug(format, *args)
