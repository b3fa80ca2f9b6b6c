"""One connection's HTTP: framing, keep-alive, deadlines and refusals, with a handler that echoes."""
from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from raw_client import RawClient, call, request_bytes

from mlx_native_server.web.connections import MB, ConnectionServer, Limits
from mlx_native_server.web.framing import ClientGone, Connection
from mlx_native_server.protocol import ApiError


class Echo(Connection):
    """`/stream/N` streams N chunks, `/refuse` refuses before the body, anything else is sent back with its body."""

    def answer(self) -> None:
        try:
            if self.path.startswith("/stream/"):
                self.start_stream({}, b"first")
                for n in range(int(self.path.split("/")[2])):
                    self.send_chunk(b"chunk %d" % n)
                self.end_stream()
            elif self.path == "/refuse":
                raise ApiError(401, "authentication_error", "no", retry_after_s=7)
            else:
                body = self.read_body()
                self.send_whole(200, {"x-method": self.command}, self.path.encode() + b"|" + body)
        except ApiError as error:
            self.send_error_body(error)


Serve = Callable[..., int]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """`serve(**limits)`: the port of a running echo server."""
    servers = []

    def start(handler: type[Connection] = Echo, **limits: float) -> int:
        servers.append(ConnectionServer("127.0.0.1", 0, handler, Limits(**limits)))
        servers[-1].start(0.01)
        return servers[-1].server_port

    yield start
    for server in servers:
        assert server.shutdown_gracefully(10)


# ── requests in turn ─────────────────────────────────────────────────────────────────────────────


def test_a_connection_is_kept_and_reused(serve: Serve) -> None:
    with RawClient(serve()) as client:
        ids = set()
        for n in range(3):
            reply = client.call("POST", f"/{n}", b"x" * n)
            assert (reply.status, reply.body, reply.headers["connection"]) == (200, b"/%d|%s" % (n, b"x" * n), "keep-alive")
            ids.add(reply.headers["request-id"])
        assert len(ids) == 3 and all(i.startswith("req_") for i in ids)


def test_pipelined_requests_are_answered_in_order(serve: Serve) -> None:
    with RawClient(serve()) as client:
        client.send(request_bytes("POST", "/a", b"1") + request_bytes("GET", "/b") + request_bytes("POST", "/c", b"3"))
        assert [client.reply().body for _ in range(3)] == [b"/a|1", b"/b|", b"/c|3"]


def test_a_request_in_single_bytes_is_understood(serve: Serve) -> None:
    with RawClient(serve()) as client:
        for byte in request_bytes("POST", "/slow", b"body"):
            client.send(bytes([byte]))
        assert client.reply().body == b"/slow|body"


def test_connection_close_is_obeyed(serve: Serve) -> None:
    with RawClient(serve()) as client:
        assert client.call("GET", "/", headers={"Connection": "close"}).headers["connection"] == "close"
        assert client.at_end()


@pytest.mark.parametrize("headers, kept", [({}, False), ({"Connection": "keep-alive"}, True)])
def test_http_1_0_is_closed_unless_it_asks_otherwise(serve: Serve, headers: dict[str, str], kept: bool) -> None:
    with RawClient(serve()) as client:
        assert client.call("GET", "/x", headers=headers, version="1.0").body == b"/x|"
        if kept:
            assert client.call("GET", "/y", headers=headers, version="1.0").body == b"/y|"
        else:
            assert client.at_end()


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "BREW"])
def test_every_method_reaches_the_handler(serve: Serve, method: str) -> None:
    assert call(serve(), method, "/x").headers["x-method"] == method


# ── streams ──────────────────────────────────────────────────────────────────────────────────────


def test_a_stream_is_chunked_on_the_kept_connection(serve: Serve) -> None:
    with RawClient(serve()) as client:
        reply = client.call("GET", "/stream/2")
        assert (reply.headers["transfer-encoding"], reply.chunks) == ("chunked", (b"first", b"chunk 0", b"chunk 1"))
        assert client.call("GET", "/after").body == b"/after|"


@pytest.mark.parametrize("headers", [{}, {"Connection": "keep-alive"}])
def test_a_stream_for_http_1_0_is_unchunked_and_ends_with_the_connection(serve: Serve, headers: dict[str, str]) -> None:
    reply = call(serve(), "GET", "/stream/2", version="1.0", headers=headers)
    assert "transfer-encoding" not in reply.headers and reply.headers["connection"] == "close"
    assert reply.body == b"firstchunk 0chunk 1"


# ── what is refused ──────────────────────────────────────────────────────────────────────────────

REFUSED = {
    "chunked body": (request_bytes("POST", "/", headers={"Transfer-Encoding": "chunked"}) + b"1\r\nx\r\n0\r\n\r\n", 411),
    "chunked and a length": (request_bytes("POST", "/", b"x", {"Transfer-Encoding": "chunked"}), 411),
    "length is a word": (request_bytes("POST", "/", headers={"Content-Length": "ten"}), 400),
    "length is negative": (request_bytes("POST", "/", headers={"Content-Length": "-5"}), 400),
    "length is signed": (request_bytes("POST", "/", headers={"Content-Length": "+5"}), 400),
    "length has an underscore": (request_bytes("POST", "/", headers={"Content-Length": "1_0"}), 400),
    "two lengths": (request_bytes("POST", "/", b"x", {"content-length": "2"}), 400),
    "length of 5000 digits": (request_bytes("POST", "/", headers={"Content-Length": "9" * 5000}), 413),
    "body over the maximum": (request_bytes("POST", "/", headers={"Content-Length": str(32 * MB + 1)}), 413),
    "no request line": (b"what is this\r\n\r\n", 400),
    "no version": (b"GET /\r\n\r\n", 400),
    "wrong version": (b"GET / HTTP/9.9\r\n\r\n", 505),
    "endless line": (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", 414),
    "endless header": (request_bytes("GET", "/", headers={"X": "x" * 70_000}), 431),
    "too many headers": (request_bytes("GET", "/", headers={f"X{n}": "" for n in range(200)}), 431),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_framed_is_refused_in_the_error_shape_and_closed(serve: Serve, name: str) -> None:
    data, status = REFUSED[name]
    with RawClient(serve(linger_s=0.1)) as client:
        client.send(data)
        reply = client.reply()
        assert (reply.status, reply.headers["connection"], reply.json["type"]) == (status, "close", "error")
        assert reply.headers["request-id"] == reply.json["request_id"]
        assert client.at_end()


def test_a_refusal_is_read_by_a_client_that_sends_all_of_a_huge_body_first(serve: Serve) -> None:
    with RawClient(serve()) as client:
        client.ask("POST", "/", b"x" * (33 * MB))
        reply = client.reply()
        assert (reply.status, reply.error) == (413, "request_too_large")


def test_an_unread_body_never_becomes_the_next_request(serve: Serve) -> None:
    with RawClient(serve()) as client:
        client.send(request_bytes("POST", "/refuse", request_bytes("GET", "/smuggled")))
        reply = client.reply()
        assert (reply.status, reply.headers["retry-after"], reply.headers["connection"]) == (401, "7", "close")
        client.socket.shutdown(socket.SHUT_WR)
        assert client.at_end()


def test_a_refusal_without_a_body_keeps_the_connection(serve: Serve) -> None:
    with RawClient(serve()) as client:
        assert client.call("GET", "/refuse").status == 401
        assert client.call("GET", "/x").status == 200


def test_continue_is_sent_only_when_the_body_is_wanted(serve: Serve) -> None:
    port, wanting = serve(), {"Expect": "100-continue", "Content-Length": "4"}
    with RawClient(port) as client:
        client.ask("POST", "/x", headers=wanting)
        assert client.head().status == 100
        client.send(b"body")
        assert client.reply().body == b"/x|body"
    with RawClient(port) as client:
        client.ask("POST", "/refuse", headers=wanting)
        assert client.head().status == 401


# ── deadlines ────────────────────────────────────────────────────────────────────────────────────


def test_a_silent_connection_is_closed_without_a_word(serve: Serve) -> None:
    with RawClient(serve(header_s=0.05)) as client:
        assert client.at_end()


def test_half_a_head_is_refused_at_its_deadline_however_steadily_it_comes(serve: Serve) -> None:
    """A deadline for each read would never end for a client that sends a byte now and then."""
    with RawClient(serve(header_s=0.3, linger_s=0)) as client:
        stop = threading.Event()

        def trickle() -> None:
            try:
                client.send(b"GET / HTTP/1.1\r\nX: ")
                while not stop.wait(0.02):
                    client.send(b"x")
            except OSError:
                return

        sender = threading.Thread(target=trickle)
        sender.start()
        assert client.reply().status == 408
        stop.set()
        sender.join()


@pytest.mark.parametrize("end, status", [(False, 408), (True, 400)])
def test_half_a_body_is_refused(serve: Serve, end: bool, status: int) -> None:
    with RawClient(serve(body_s=0.05, body_s_per_mb=0, linger_s=0)) as client:
        client.ask("POST", "/", b"half", {"Content-Length": "100"})
        if end:
            client.socket.shutdown(socket.SHUT_WR)
        assert client.reply().status == status


def test_a_large_body_has_a_second_more_for_each_megabyte(serve: Serve) -> None:
    with RawClient(serve(body_s=0, body_s_per_mb=60)) as client:
        client.send(request_bytes("POST", "/", b"x" * MB)[:-1])
        client.send(b"y")
        assert client.reply().body.endswith(b"xy")


def test_an_idle_kept_connection_is_closed_at_its_own_deadline(serve: Serve) -> None:
    with RawClient(serve(idle_s=0.05)) as client:
        assert client.call("GET", "/x").status == 200
        assert client.at_end()


def test_a_client_that_takes_nothing_is_given_up() -> None:
    class Flood(Connection):
        def answer(self) -> None:
            self.start_stream({}, b"first")
            try:
                while True:
                    self.send_chunk(b"x" * MB)
            except ClientGone:
                gave_up.set()
                raise

    gave_up = threading.Event()
    server = ConnectionServer("127.0.0.1", 0, Flood, Limits(send_s=0.1))
    server.start(0.01)
    with RawClient(server.server_port) as client:
        client.ask("GET", "/")
        assert gave_up.wait(20)
    assert server.shutdown_gracefully(10)


# ── the client's end ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("leave, gone", [
    (lambda client: None, False),
    (lambda client: client.ask("GET", "/next"), False),
    (lambda client: client.socket.shutdown(socket.SHUT_WR), True),
    (lambda client: client.close(), True),
    (lambda client: client.reset(), True),
], ids=["stays", "pipelines", "half closes", "closes", "resets"])
def test_a_client_that_left_is_noticed_without_writing(serve: Serve, leave: Callable[[RawClient], None], gone: bool) -> None:
    class Watch(Connection):
        def answer(self) -> None:
            self.read_body()
            heard.set()
            assert left.wait(20)
            verdicts.append(eventually(self.client_gone) if gone else self.client_gone())
            seen.set()

    heard, left, seen, verdicts = threading.Event(), threading.Event(), threading.Event(), []
    with RawClient(serve(Watch)) as client:
        client.ask("POST", "/", b"body")
        assert heard.wait(20)
        leave(client)
        left.set()
        assert seen.wait(20)
        assert verdicts[0] is gone


def eventually(condition: Callable[[], bool]) -> bool:
    """Whether it becomes true: the news of a closed connection may take a moment even on the loopback."""
    deadline_s = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline_s:
        pass
    return condition()
