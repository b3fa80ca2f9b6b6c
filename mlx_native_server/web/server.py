"""The HTTP surface: routes, keys, origins, and how an answer or a failure is written.

What must be a status error is decided before a stream's head goes out; after it a failure is an `error` event and the
stream ends cleanly. While the model works the client is watched: gone means cancelled. What a body means is
`service.py`'s, bytes and deadlines are `framing.py`'s.
"""
from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from importlib import resources
from typing import Any, NamedTuple
from urllib.parse import unquote

from .. import __version__
from ..config import SettingError, Settings
from .access import check_content_type, check_key, check_source, is_loopback
from .connections import ConnectionServer, Limits
from .feed import Feed
from .framing import ClientGone, Connection
from ..monitor.metrics import CONTENT_TYPE, CountedEvents, Metrics
from ..protocol import ApiError, Event
from ..service import Service
from ..answer.streaming import encode_event, fold

logger = logging.getLogger(__name__)

JSON = {"Content-Type": "application/json"}
HTML = {
    "Content-Type": "text/html; charset=utf-8", "Vary": "Accept", "X-Frame-Options": "DENY",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'",
}  # fmt: skip
PAGE = resources.files(__package__).joinpath("status.html")
SSE = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
PING = encode_event({"type": "ping"})


class Server(ConnectionServer):
    """The server of one model. Listens once made, answers once `start` or `serve_forever` is called."""

    def __init__(self, service: Service, settings: Settings, limits: Limits = Limits()):
        """Raises `BindError` where the address cannot be had, `SettingError` where it lets everybody in."""
        self.service = service
        self.settings = settings
        self.metrics = Metrics()
        self.feed = Feed()
        super().__init__(settings.host, settings.port, Handler, limits)
        if not settings.api_key and not is_loopback(self.server_name):
            self.server_close()
            raise SettingError(f"MLX_HOST: others can reach {settings.host}, so it takes a key: set MLX_API_KEY")


class Handler(Connection):
    """Answers each request by the table of routes."""

    server: Server

    def answer(self) -> None:
        try:
            self._route()
        except ApiError as error:
            self._fail(error)
        except ClientGone:
            raise
        except Exception:
            logger.exception("%s: %s %s failed", self.request_id, self.command, self.path)
            self._fail(ApiError(500, "api_error", "internal error"))

    def _route(self) -> None:
        path = _path(self.path)
        logger.debug("%s: %s %s", self.request_id, self.command, path)
        if self.command == "HEAD":
            self.send_whole(200, JSON)
            return
        check_source(self.headers, self.server.settings)
        name, routes = _find(path)
        if self.command == "OPTIONS":
            self.send_whole(200, {"Allow": _allowed(routes)})
            return
        if self.command not in routes:
            error = ApiError(405, "invalid_request_error", f"method: {path} takes {_allowed(routes)}, not {self.command}")
            self.send_error_body(error, {"Allow": _allowed(routes)})
            return
        route = routes[self.command]
        if not route.open:
            check_key(self.headers, self.server.settings.api_key)
        route.run(self, name)

    def _fail(self, error: ApiError) -> None:
        if self.streaming:
            self.send_chunk(encode_event(error.body(self.request_id)))
            self.end_stream()
        else:
            self.send_error_body(error)

    def _json(self, value: Any, status: int = 200) -> None:
        self.send_whole(status, JSON, json.dumps(value).encode())

    # ── routes ───────────────────────────────────────────────────────────────────────────────────

    def _head(self, status: int, headers: Mapping[str, str]) -> bytes:
        self.server.metrics.add("http_responses_total", route=_route_name(self.path if self.command else ""), status=str(int(status)))
        return super()._head(status, headers)

    def _index(self, _: str) -> None:
        if "text/html" in self.headers.get("Accept", ""):
            self.send_whole(200, HTML, PAGE.read_bytes())
            return
        self._json({"name": "mlx-native-server", "version": __version__, "routes": sorted(ROUTES)})

    def _health(self, _: str) -> None:
        health = self.server.service.health()
        self._json(health, 503 if health["status"] == "failed" else 200)

    def _events(self, _: str) -> None:
        self.server.feed.send(self, self.server.service.health)

    def _metrics(self, _: str) -> None:
        self.send_whole(200, {"Content-Type": CONTENT_TYPE}, self.server.metrics.text(self.server.service.health()).encode())

    def _models(self, _: str) -> None:
        self._json(self.server.service.models())

    def _model(self, name: str) -> None:
        self._json(self.server.service.model(name))

    def _count(self, _: str) -> None:
        body, headers = self._message()
        self._json({"input_tokens": self.server.service.count(body, headers)})

    def _messages(self, _: str) -> None:
        body, headers = self._message()
        self._check_stopping()
        answer = self.server.service.answer(body, headers, self.request_id)
        with closing(CountedEvents(answer.events, self.server.metrics)) as events:
            if answer.request.stream:
                self._send_stream(events)
            else:
                self._send_message(events)

    def _message(self) -> tuple[bytes, dict[str, str]]:
        """The body, and the headers by their lower-case names."""
        check_content_type(self.headers)
        encoding = self.headers.get("Content-Encoding", "identity").strip().lower()
        if encoding != "identity":
            raise ApiError(415, "invalid_request_error", f"Content-Encoding: {encoding[:80]!r} is not taken, send the body as it is")
        return self.read_body(), {name.lower(): value for name, value in self.headers.items()}

    # ── the two kinds of answer ──────────────────────────────────────────────────────────────────

    def _send_message(self, events: Iterable[Event | None]) -> None:
        told: list[Event] = []
        for event in events:
            self._check_client()
            if event is not None:
                told.append(event)
        self._json(fold(told))

    def _send_stream(self, events: Iterable[Event | None]) -> None:
        live, held = self.server.settings.live_stream, bytearray()
        self.start_stream(SSE, PING)
        written_s = time.monotonic()
        for event in events:
            self._check_client()
            data = b"" if event is None else encode_event(event)
            if not live:
                held += data
                data = b""
            if not data and time.monotonic() - written_s >= self.server.limits.ping_s:
                data = PING
            if data:
                self.send_chunk(data)
                written_s = time.monotonic()
        if held:
            self.send_chunk(bytes(held))
        self.end_stream()

    def _check_client(self) -> None:
        self._check_stopping()
        if self.client_gone():
            raise ClientGone

    def _check_stopping(self) -> None:
        if self.server.stopping.is_set():
            self.close_connection = True
            raise ApiError(503, "api_error", "the server is shutting down", retry_after_s=5)


class Route(NamedTuple):
    """`run` gets the handler and what the path names; `open` needs no key."""

    run: Callable[[Handler, str], None]
    open: bool = False


MODEL_PREFIX = "/v1/models/"
ROUTES: dict[str, dict[str, Route]] = {
    "/": {"GET": Route(Handler._index, open=True)},
    "/health": {"GET": Route(Handler._health, open=True)},
    "/events": {"GET": Route(Handler._events, open=True)},
    "/metrics": {"GET": Route(Handler._metrics)},
    "/v1/models": {"GET": Route(Handler._models)},
    "/v1/models/{id}": {"GET": Route(Handler._model)},
    "/v1/messages": {"POST": Route(Handler._messages)},
    "/v1/messages/count_tokens": {"POST": Route(Handler._count)},
}


def _path(target: str) -> str:
    """The path of a request target, without query and without the scheme and host that proxies send."""
    return re.sub(r"^https?://[^/?#]*", "", target, flags=re.IGNORECASE).partition("?")[0] or "/"


def _find(path: str) -> tuple[str, dict[str, Route]]:
    """What the path names and its routes. Each is there with `/v1` and without. Raises `ApiError` 404."""
    full = path if path in ROUTES or path.startswith("/v1/") else "/v1" + path
    if full in ROUTES:
        return "", ROUTES[full]
    name = full.removeprefix(MODEL_PREFIX)
    if name in ("", full):
        raise ApiError(404, "not_found_error", f"path: there is no {path[:200]} here")
    return unquote(name), ROUTES[f"{MODEL_PREFIX}{{id}}"]


def _route_name(target: str) -> str:
    """The route of a request target for the metrics: one of the table's, `other` where it is none."""
    path = _path(target)
    full = path if path in ROUTES or path.startswith("/v1/") else "/v1" + path
    return full if full in ROUTES else f"{MODEL_PREFIX}{{id}}" if full.startswith(MODEL_PREFIX) else "other"


def _allowed(routes: dict[str, Route]) -> str:
    return ", ".join(sorted({*routes, "HEAD", "OPTIONS"}))
