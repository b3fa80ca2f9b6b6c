"""The live view of the health: streams that cost little, are few, and end."""
from __future__ import annotations

import json

import pytest
from fakes import SOON_S, FakeEngine, make_service, start_server
from raw_client import RawClient, call

from mlx_native_server.web.feed import AGAIN, Feed
from mlx_native_server.web.server import Server


def fed(monkeypatch: pytest.MonkeyPatch, feed: Feed, **settings: str) -> Server:
    """A running server with this feed; the caller ends it."""
    server = start_server(make_service(FakeEngine(), **settings))
    monkeypatch.setattr(server, "feed", feed)
    return server


@pytest.fixture
def quick() -> Feed:
    return Feed(most=1, pause_s=0.01)


def healths(chunk: bytes) -> list[dict]:
    return [json.loads(part.removeprefix(b"data: ")) for part in chunk.split(b"\n\n") if part.startswith(b"data: ")]


def test_each_event_is_the_health_and_the_browser_is_told_to_come_back(monkeypatch: pytest.MonkeyPatch, quick: Feed) -> None:
    server = fed(monkeypatch, quick, api_key="k", model="m")
    with RawClient(server.server_port) as client:
        client.ask("GET", "/events")
        head, chunks = client.head(), client.chunks()
        assert (head.status, head.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        first, second = next(chunks), next(chunks)
        assert first.startswith(AGAIN) and [health["model"] for health in healths(first) + healths(second)] == ["m", "m"]
    assert server.shutdown_gracefully(SOON_S)


def test_a_stream_ends_after_a_while_and_its_connection_serves_on(monkeypatch: pytest.MonkeyPatch) -> None:
    server = fed(monkeypatch, Feed(longest_s=0))
    with RawClient(server.server_port) as client:
        for _ in range(2):
            assert len(healths(client.call("GET", "/events").body)) == 1
        assert client.call("GET", "/health").status == 200
    assert server.shutdown_gracefully(SOON_S)


def test_no_more_streams_than_there_are_places_and_a_closed_page_gives_its_own_back(monkeypatch: pytest.MonkeyPatch, quick: Feed) -> None:
    server = fed(monkeypatch, quick)
    with RawClient(server.server_port) as client:
        client.ask("GET", "/events")
        assert client.head().status == 200
        refused = call(server.server_port, "GET", "/events")
        assert (refused.status, refused.error, refused.headers["retry-after"]) == (529, "overloaded_error", "5")
        assert call(server.server_port, "GET", "/health").status == 200
    assert quick._places.acquire(timeout=SOON_S), "the place was not given back"
    assert server.shutdown_gracefully(SOON_S)


def test_the_servers_end_is_a_streams_end_however_long_its_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    server = fed(monkeypatch, Feed(pause_s=3600))
    with RawClient(server.server_port) as client:
        client.ask("GET", "/events")
        assert client.head().status == 200
        chunks = client.chunks()
        assert len(healths(next(chunks))) == 1
        assert server.shutdown_gracefully(SOON_S)
        assert list(chunks) == [] and client.at_end()


def test_a_web_page_of_elsewhere_is_not_told(monkeypatch: pytest.MonkeyPatch, quick: Feed) -> None:
    server = fed(monkeypatch, quick)
    assert call(server.server_port, "GET", "/events", headers={"Origin": "https://evil.example"}).status == 403
    assert server.shutdown_gracefully(SOON_S)
