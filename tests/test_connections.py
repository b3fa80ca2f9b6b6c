"""Listening, the cap on connections, and the end of a server."""
from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from raw_client import RawClient, call

from mlx_native_server.web.connections import BindError, ConnectionServer, Limits, Registry, State
from mlx_native_server.web.framing import Connection


class Hold(Connection):
    """`/hold` is answered when the test opens the gate, or with an error when the server stops."""

    gate = threading.Event()
    held = threading.Semaphore(0)

    def answer(self) -> None:
        if self.path == "/hold":
            self.held.release()
            while not self.gate.wait(0.01) and not self.server.stopping.is_set():
                pass
        self.send_whole(200, {}, b"stopping" if self.server.stopping.is_set() else b"ok")


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[ConnectionServer]:
    """A server of `Hold`s with room for two connections."""
    Hold.gate.clear()
    server = ConnectionServer("127.0.0.1", 0, Hold, Limits(max_connections=2, idle_s=60, header_s=60))
    server.start(0.01)
    yield server
    Hold.gate.set()
    server.shutdown_gracefully(10)


def held(client: RawClient) -> None:
    client.ask("GET", "/hold")
    assert Hold.held.acquire(timeout=20)


# ── listening ────────────────────────────────────────────────────────────────────────────────────


def test_a_port_in_use_is_one_clear_sentence(server: ConnectionServer) -> None:
    with pytest.raises(BindError, match=r"^cannot listen on 127\.0\.0\.1:\d+: another program listens there .*MLX_PORT$"):
        ConnectionServer("127.0.0.1", server.server_port, Hold)


@pytest.mark.parametrize("host", ["203.0.113.1", "no such host"])
def test_an_address_that_is_not_this_machine_s_is_one_clear_sentence(host: str) -> None:
    with pytest.raises(BindError, match=f"^cannot listen on {host}:0: [^\n]+$"):
        ConnectionServer(host, 0, Hold)


@pytest.mark.parametrize("host, expected", [("127.0.0.1", "127.0.0.1"), ("localhost", "127.0.0.1")])
def test_it_listens_where_clients_look(host: str, expected: str) -> None:
    server = ConnectionServer(host, 0, Hold)
    assert server.server_name == expected and server.server_port > 0
    assert server.shutdown_gracefully()


def test_binding_never_looks_a_name_up_in_reverse(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*_: object) -> str:
        raise AssertionError("a reverse look-up can wait for seconds")

    monkeypatch.setattr(socket, "getfqdn", slow)
    monkeypatch.setattr(socket, "gethostbyaddr", slow)
    ConnectionServer("127.0.0.1", 0, Hold).server_close()


def test_connections_wait_in_the_backlog_before_anyone_accepts() -> None:
    server = ConnectionServer("127.0.0.1", 0, Hold)
    clients = [RawClient(server.server_port) for _ in range(40)]
    server.start(0.01)
    for client in clients:
        assert client.call("GET", "/").body == b"ok"
        client.close()
    assert server.shutdown_gracefully(10)


def test_answers_do_not_wait_for_more_to_send(server: ConnectionServer) -> None:
    seen = []

    class Look(Hold):
        def answer(self) -> None:
            seen.append(self.connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            super().answer()

    server.RequestHandlerClass = Look
    call(server.server_port, "GET", "/")
    assert seen == [1]


# ── the cap ──────────────────────────────────────────────────────────────────────────────────────


def test_registry_drops_idle_ones_first_then_half_read_ones_and_never_answering_ones() -> None:
    registry, pairs = Registry(), [socket.socketpair() for _ in range(5)]
    states = [State.ANSWERING, State.READING, State.IDLE, State.READING, State.IDLE]
    for (ours, _), state in zip(pairs, states):
        registry.mark(ours, state)
    order = []
    while registry.drop(1):
        order.append(next(n for n, (_, theirs) in enumerate(pairs) if n not in order and _closed(theirs)))
    assert order == [2, 4, 1, 3] and len(registry) == 1
    for pair in pairs:
        for end in pair:
            end.close()


def _closed(end: socket.socket) -> bool:
    end.setblocking(False)
    try:
        return end.recv(1) == b""
    except BlockingIOError:
        return False


def test_past_the_cap_the_idle_connection_goes(server: ConnectionServer) -> None:
    with RawClient(server.server_port) as idle, RawClient(server.server_port) as busy:
        held(busy)
        assert call(server.server_port, "GET", "/").body == b"ok"
        assert idle.at_end()
        Hold.gate.set()
        assert busy.reply().body == b"ok"


def test_half_open_connections_do_not_keep_others_out(server: ConnectionServer) -> None:
    with RawClient(server.server_port) as one, RawClient(server.server_port) as two:
        for client in (one, two):
            client.send(b"POST / HTTP/1.1\r\nContent-")
        for _ in range(3):
            assert call(server.server_port, "GET", "/").body == b"ok"


def test_a_connection_too_many_is_told_to_come_back(server: ConnectionServer) -> None:
    with RawClient(server.server_port) as one, RawClient(server.server_port) as two:
        held(one), held(two)
        with RawClient(server.server_port) as third:
            reply = third.reply()
            assert (reply.status, reply.error, reply.headers["retry-after"]) == (529, "overloaded_error", "5")
            assert third.at_end()
        Hold.gate.set()
        assert [one.reply().body, two.reply().body] == [b"ok", b"ok"]
    assert call(server.server_port, "GET", "/").body == b"ok"


# ── the end ──────────────────────────────────────────────────────────────────────────────────────


def test_shutdown_lets_running_answers_say_so_and_closes_the_rest(server: ConnectionServer) -> None:
    with RawClient(server.server_port) as idle, RawClient(server.server_port) as busy:
        held(busy)
        began_s = time.monotonic()
        assert server.shutdown_gracefully(timeout_s=10)
        assert time.monotonic() - began_s < 2
        assert busy.reply().body == b"stopping"
        assert busy.at_end() and idle.at_end()
        with pytest.raises(OSError):
            RawClient(server.server_port)


def test_shutdown_does_not_wait_for_ever() -> None:
    class Stuck(Connection):
        def answer(self) -> None:
            entered.set()
            release.wait(20)

    entered, release = threading.Event(), threading.Event()
    server = ConnectionServer("127.0.0.1", 0, Stuck)
    server.start(0.01)
    with RawClient(server.server_port) as client:
        client.ask("GET", "/")
        assert entered.wait(20)
        assert not server.shutdown_gracefully(timeout_s=0.05)
        release.set()


def test_shutdown_before_anything_was_accepted() -> None:
    assert ConnectionServer("127.0.0.1", 0, Hold).shutdown_gracefully()
