"""Streams while the model is silent, fails, or loses its client: pings, error events, cancellation."""
from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from fakes import SOON_S, FakeEngine, Serve, body, make_service, serve, sse_events, start_server  # noqa: F401  (fixtures)
from raw_client import RawClient, call, request_bytes

from mlx_native_server.web.connections import Limits
from mlx_native_server.protocol import ApiError, Failed

MESSAGES = "/v1/messages"
QUICK_PINGS = Limits(ping_s=0.02)

# ── pings ─────────────────────────────────────────────────────────────────────────────────────────


def read_until(client: RawClient, kind: str, count: int) -> None:
    chunks = client.chunks()
    while count:
        count -= any(event["type"] == kind for event in sse_events(next(chunks)))


@pytest.mark.parametrize("live", [True, False])
def test_pings_fill_the_silence(serve: Serve, live: bool) -> None:
    gate = threading.Event()
    engine = FakeEngine([gate, "Hello"])
    with RawClient(serve(engine, limits=QUICK_PINGS, live_stream=live)) as client:
        client.ask("POST", MESSAGES, body(stream=True))
        assert client.head().status == 200
        read_until(client, "ping", 4)
        gate.set()
        rest = b"".join(client.chunks())
        assert sse_events(rest)[-1]["type"] == "message_stop"


def test_pings_fill_the_silence_of_a_hidden_thought(serve: Serve) -> None:
    engine = FakeEngine(["<think>", *["hidden "] * 200, threading.Event()])
    with RawClient(serve(engine, limits=Limits(ping_s=0))) as client:
        client.ask("POST", MESSAGES, body(stream=True))
        client.head()
        read_until(client, "ping", 100)


def test_the_head_and_a_ping_come_before_anything_else(serve: Serve) -> None:
    engine = FakeEngine([threading.Event()])
    with RawClient(serve(engine)) as client:
        client.ask("POST", MESSAGES, body(stream=True))
        client.head()
        assert sse_events(next(client.chunks())) == [{"type": "ping"}]


def test_a_stream_that_is_not_live_comes_whole_at_the_end(serve: Serve) -> None:
    gate = threading.Event()
    with RawClient(serve(FakeEngine(["Hello", gate, " there"]), live_stream=False, limits=QUICK_PINGS)) as client:
        client.ask("POST", MESSAGES, body(stream=True))
        client.head()
        chunks = client.chunks()
        assert {event["type"] for _ in range(3) for event in sse_events(next(chunks))} == {"ping"}
        gate.set()
        assert sse_events(b"".join(chunks))[-1]["type"] == "message_stop"


@pytest.mark.parametrize("before", [[], ["Hello"]])
@pytest.mark.parametrize("live", [True, False])
def test_a_failure_after_the_head_is_an_error_event_and_a_clean_end(serve: Serve, before: list[str], live: bool) -> None:
    engine = FakeEngine([*before, Failed(ApiError(500, "api_error", "out of memory"))])
    with RawClient(serve(engine, live_stream=live)) as client:
        reply = client.call("POST", MESSAGES, body(stream=True))
        last = sse_events(reply.body)[-1]
        assert (last["type"], last["error"]) == ("error", {"type": "api_error", "message": "out of memory"})
        assert client.call("GET", "/health").status == 200


# ── clients that leave, and the server that does ──────────────────────────────────────────────────


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("during", ["prefill", "decode"])
@pytest.mark.parametrize("leave", [RawClient.close, RawClient.reset], ids=["close", "reset"])
def test_a_client_that_leaves_cancels_its_job(serve: Serve, stream: bool, during: str, leave: Callable[[RawClient], None]) -> None:
    engine = FakeEngine([threading.Event()] if during == "prefill" else ["Hello", " there", threading.Event()])
    port = serve(engine)
    client = RawClient(port)
    client.ask("POST", MESSAGES, body(stream=stream))
    ticket = engine.next_ticket()
    leave(client)
    assert ticket.cancelled.wait(SOON_S)
    engine.script = ["Hello"]
    assert call(port, "POST", MESSAGES, body()).json["content"][0]["text"] == "Hello"


def test_pipelined_requests_are_not_taken_for_the_client_s_end(serve: Serve) -> None:
    gate = threading.Event()
    engine = FakeEngine([gate, "Hello"])
    with RawClient(serve(engine)) as client:
        client.send(request_bytes("POST", MESSAGES, body()) * 3)
        ticket = engine.next_ticket()
        for _ in range(3):
            assert ticket.waited.acquire(timeout=SOON_S)
        assert not ticket.cancelled.is_set()
        gate.set()
        assert [client.reply().status for _ in range(3)] == [200, 200, 200]


def test_waiting_clients_do_not_hold_up_others(serve: Serve) -> None:
    engine = FakeEngine([threading.Event()])
    port = serve(engine)
    waiting = [RawClient(port) for _ in range(8)]
    for n, client in enumerate(waiting):
        if n % 2:
            client.ask("POST", MESSAGES, body())
        else:
            client.send(b"POST /v1/messages HTTP/1.1\r\nContent-Length: 9999\r\n\r\n{")
    assert call(port, "GET", "/health").status == call(port, "POST", "/v1/messages/count_tokens", body()).status == 200
    for client in waiting:
        client.close()


def test_shutdown_ends_streams_with_an_error_event_and_messages_with_a_status() -> None:
    engine = FakeEngine(["Hello", threading.Event()])
    server = start_server(make_service(engine))
    with RawClient(server.server_port) as streaming, RawClient(server.server_port) as waiting:
        streaming.ask("POST", MESSAGES, body(stream=True))
        waiting.ask("POST", MESSAGES, body())
        for _ in range(2):
            engine.next_ticket()
        assert server.shutdown_gracefully(SOON_S)
        assert sse_events(streaming.reply().body)[-1]["type"] == "error" and streaming.at_end()
        reply = waiting.reply()
        assert (reply.status, reply.error, reply.headers["connection"]) == (503, "api_error", "close")
        assert all(ticket.cancelled.is_set() for ticket in engine.tickets)
