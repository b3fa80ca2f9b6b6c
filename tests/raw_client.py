"""A client that controls every byte: for what real clients do only when something is wrong."""
from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

TIMEOUT_S = 20.0


@dataclass
class Reply:
    """One answer. `chunks` holds the chunks of a chunked one; header names are lower case."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    chunks: tuple[bytes, ...] = ()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The error type of an Anthropic error body."""
        assert self.json["type"] == "error" and self.json["error"]["message"]
        return self.json["error"]["type"]


class RawClient:
    """One connection."""

    def __init__(self, port: int, host: str = "127.0.0.1"):
        self.socket = socket.create_connection((host, port), timeout=TIMEOUT_S)
        self._file = self.socket.makefile("rb")

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
        self.socket.close()

    def reset(self) -> None:
        """Vanish with a reset in place of an orderly end."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, version: str = "1.1") -> None:
        """Send a request; a body that is not bytes goes as JSON."""
        self.send(request_bytes(method, path, body, headers, version))

    def call(self, *args: Any, **options: Any) -> Reply:
        """`ask`, and the reply."""
        self.ask(*args, **options)
        return self.reply(no_body=args[0] == "HEAD")

    def head(self) -> Reply:
        """The status and headers of the next reply; the connection's end raises EOFError."""
        line = self._file.readline()
        if not line:
            raise EOFError
        status, headers = int(line.split()[1]), {}
        while (line := self._file.readline().strip()):
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        return Reply(status, headers)

    def chunks(self) -> Iterator[bytes]:
        """The chunks of a chunked body, as they come."""
        while size := int(self._file.readline(), 16):
            data = self._file.read(size)
            self._file.readline()
            yield data
        self._file.readline()

    def reply(self, no_body: bool = False) -> Reply:
        """The next reply with its body."""
        return self.rest(self.head(), no_body)

    def rest(self, reply: Reply, no_body: bool = False) -> Reply:
        """The reply whose head was read, with its body."""
        if no_body:
            return reply
        if reply.headers.get("transfer-encoding") == "chunked":
            reply.chunks = tuple(self.chunks())
            reply.body = b"".join(reply.chunks)
        elif "content-length" in reply.headers:
            reply.body = self._file.read(int(reply.headers["content-length"]))
        else:
            reply.body = self._file.read()
        return reply

    def at_end(self) -> bool:
        """Wait for the server to close the connection; False when it sends something in place of that."""
        try:
            return self._file.read(1) == b""
        except ConnectionError:
            return True


def request_bytes(method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, version: str = "1.1") -> bytes:
    """A request as it goes over the wire."""
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"Host": "localhost"} | ({"Content-Length": str(len(data))} if body is not None else {}) | (headers or {})
    lines = [f"{method} {path} HTTP/{version}", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def call(port: int, *args: Any, **options: Any) -> Reply:
    """One request on a connection of its own."""
    with RawClient(port) as client:
        return client.call(*args, **options)
