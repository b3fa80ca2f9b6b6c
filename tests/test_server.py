"""The HTTP surface over a scripted engine: routes, refusals, keys, and both kinds of answer."""
from __future__ import annotations

import logging
from typing import Any

import pytest
from fakes import FakeEngine, FakeTokenizer, Serve, body, port, serve, sse_events  # noqa: F401  (fixtures)
from raw_client import RawClient, call

from mlx_native_server.protocol import ApiError, Encoded, Failed, Prompt, overloaded

MESSAGES = "/v1/messages"

# ── routes ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("method, path, status, allow", [
    ("GET", "/", 200, None),
    ("GET", "/?x=1", 200, None),
    ("GET", "/health", 200, None),
    ("GET", "/v1/models?limit=1000", 200, None),
    ("GET", "/models", 200, None),
    ("GET", "/v1/models/qwen%2Fx", 200, None),
    ("GET", "/models/x", 200, None),
    ("GET", "http://localhost/v1/models?beta=true", 200, None),
    ("POST", "/v1/messages?beta=true", 200, None),
    ("POST", "/messages", 200, None),
    ("POST", "/v1/messages/count_tokens?beta=true", 200, None),
    ("POST", "/messages/count_tokens", 200, None),
    ("HEAD", "/", 200, None),
    ("HEAD", "/v1/nope", 200, None),
    ("HEAD", MESSAGES, 200, None),
    ("OPTIONS", MESSAGES, 200, "HEAD, OPTIONS, POST"),
    ("OPTIONS", "/health", 200, "GET, HEAD, OPTIONS"),
    ("OPTIONS", "/v1/nope", 404, None),
    ("POST", "/v1/nope", 404, None),
    ("GET", "/v1/messages/", 404, None),
    ("GET", "/v1/models/", 404, None),
    ("POST", "/v1/messages/batches", 404, None),
    ("GET", "/v1/v1/models", 404, None),
    ("GET", "*", 404, None),
    ("GET", MESSAGES, 405, "HEAD, OPTIONS, POST"),
    ("PUT", MESSAGES, 405, "HEAD, OPTIONS, POST"),
    ("POST", "/health", 405, "GET, HEAD, OPTIONS"),
    ("DELETE", "/v1/models/x", 405, "GET, HEAD, OPTIONS"),
    ("BREW", "/", 405, "GET, HEAD, OPTIONS"),
])
def test_routes(port: int, method: str, path: str, status: int, allow: str | None) -> None:
    reply = call(port, method, path, body() if method == "POST" else None)
    assert (reply.status, reply.headers.get("allow")) == (status, allow)
    assert reply.headers["request-id"].startswith("req_")
    if status >= 400:
        assert reply.error == {404: "not_found_error", 405: "invalid_request_error"}[status]
        assert reply.json["request_id"] == reply.headers["request-id"]
    if method == "HEAD":
        assert reply.headers["content-type"] == "application/json"


def test_a_model_is_found_under_any_name(port: int) -> None:
    assert call(port, "GET", "/v1/models/qwen%2Fx%20y").json["id"] == "qwen/x y"


@pytest.mark.parametrize("status, http", [("loading", 200), ("ok", 200), ("failed", 503)])
def test_health(serve: Serve, status: str, http: int) -> None:
    reply = call(serve(FakeEngine(status=status), model="some/Model"), "GET", "/health")
    assert reply.status == http and f'"status": "{status}"'.encode() in reply.body and reply.json["model"] == "some/Model"


def test_bad_fields_are_named_and_never_a_500(port: int) -> None:
    with RawClient(port) as client:
        bad = {"messages": 5, "tools": 3, "system": 5, "stop_sequences": "END", "temperature": "hot", "stream": "true"}
        for field, value in bad.items():
            reply = client.call("POST", MESSAGES, body(**{field: value}))
            assert (reply.status, reply.error) == (400, "invalid_request_error")
            assert field in reply.json["error"]["message"]


@pytest.mark.parametrize("path", [MESSAGES, "/v1/messages/count_tokens"])
@pytest.mark.parametrize("encoding, status", [("gzip", 415), ("br", 415), ("identity", 200), ("Identity", 200)])
def test_compressed_bodies_are_refused(port: int, path: str, encoding: str, status: int) -> None:
    assert call(port, "POST", path, body(), {"Content-Encoding": encoding}).status == status


# ── keys, origins, names ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("headers, right", [
    ({}, False), ({"x-api-key": "wrong"}, False), ({"Authorization": "Bearer wrong"}, False), ({"Authorization": "k"}, False),
    ({"Authorization": "Basic k"}, False), ({"x-api-key": ""}, False), ({"x-api-key": "k\u00fc"}, False),
    ({"x-api-key": "k"}, True), ({"Authorization": "Bearer k"}, True), ({"Authorization": "bearer  k"}, True),
    ({"x-api-key": "wrong", "Authorization": "Bearer k"}, True),
])
def test_a_key_is_asked_for_where_one_is_set(serve: Serve, headers: dict[str, str], right: bool) -> None:
    port = serve(api_key="k")
    for method, path in [("POST", MESSAGES), ("POST", "/messages/count_tokens"), ("GET", "/v1/models"), ("GET", "/v1/models/x")]:
        reply = call(port, method, path, body() if method == "POST" else None, headers)
        assert reply.status == (200 if right else 401)
        assert right or reply.error == "authentication_error"
    assert call(port, "GET", "/health").status == call(port, "HEAD", "/v1/models").status == 200


def test_a_key_may_be_any_text(serve: Serve) -> None:
    assert call(serve(api_key="schl\u00fcssel \u2713"), "GET", "/v1/models", headers={"x-api-key": "schl\u00fcssel \u2713"}).status == 200


def test_any_key_is_right_where_none_is_set(port: int) -> None:
    assert call(port, "POST", MESSAGES, body(), {"x-api-key": "sk-anything"}).status == 200


@pytest.mark.parametrize("headers, status", [
    ({"Origin": "http://localhost:3000"}, 200),
    ({"Origin": "http://127.0.0.1:4000"}, 200),
    ({"Origin": "http://[::1]"}, 200),
    ({"Origin": "https://evil.example"}, 403),
    ({"Origin": "https://localhost.evil.example"}, 403),
    ({"Origin": "null"}, 403),
    ({"Origin": "http://[broken"}, 403),
    ({"Host": "localhost:4000"}, 200),
    ({"Host": "app.localhost"}, 200),
    ({"Host": "[::1]:4000"}, 200),
    ({"Host": "192.168.1.5:4000"}, 200),
    ({"Host": "host.docker.internal:4000"}, 200),
    ({"Host": "rebound.evil.example:4000"}, 403),
    ({"Host": "[broken"}, 403),
])
def test_web_pages_of_other_hosts_are_kept_out(port: int, headers: dict[str, str], status: int) -> None:
    """A page anywhere can post text/plain to localhost, and a name that is rebound to 127.0.0.1 can read the answer."""
    reply = call(port, "POST", MESSAGES, body(), headers)
    assert reply.status == status
    assert status == 200 or reply.error == "permission_error"


# ── both kinds of answer ──────────────────────────────────────────────────────────────────────────


def test_a_message(serve: Serve) -> None:
    reply = call(serve(FakeEngine(["Hello", " there"])), "POST", MESSAGES, body(model="any-name"))
    message = reply.json
    assert (reply.headers["content-type"], message["content"]) == ("application/json", [{"type": "text", "text": "Hello there"}])
    assert (message["model"], message["stop_reason"], message["usage"]["output_tokens"]) == ("any-name", "end_turn", 2)


def test_a_stream_says_the_same_as_the_message(serve: Serve) -> None:
    port = serve(FakeEngine(["Hello", " there"]))
    reply = call(port, "POST", MESSAGES, body(stream=True))
    events = sse_events(reply.body)
    kinds = [event["type"] for event in events]
    assert reply.headers["content-type"].startswith("text/event-stream") and reply.headers["cache-control"] == "no-cache"
    assert kinds[:2] == ["ping", "message_start"] and kinds[-2:] == ["message_delta", "message_stop"]
    text = "".join(event["delta"]["text"] for event in events if event["type"] == "content_block_delta")
    assert text == call(port, "POST", MESSAGES, body()).json["content"][0]["text"]


def test_each_event_is_one_chunk(serve: Serve) -> None:
    for chunk in call(serve(), "POST", MESSAGES, body(stream=True)).chunks:
        assert len(sse_events(chunk)) == 1


def test_a_count(port: int) -> None:
    reply = call(port, "POST", "/v1/messages/count_tokens", body())
    assert reply.json.keys() == {"input_tokens"} and reply.json["input_tokens"] > 0


def test_a_connection_carries_messages_streams_and_refusals_in_turn(port: int) -> None:
    with RawClient(port) as client:
        for _ in range(2):
            assert client.call("POST", MESSAGES, body()).status == 200
            assert client.call("POST", MESSAGES, body(stream=True)).chunks
            assert client.call("POST", MESSAGES, body(messages=5)).status == 400
            assert client.call("GET", "/v1/nope").status == 404
            assert client.call("HEAD", "/").status == 200


def test_a_stream_for_http_1_0_is_plain_and_closed(port: int) -> None:
    reply = call(port, "POST", MESSAGES, body(stream=True), version="1.0")
    assert "transfer-encoding" not in reply.headers and sse_events(reply.body)[-1]["type"] == "message_stop"


# ── failures ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("stream", [True, False])
def test_what_is_known_before_the_answer_is_a_status(serve: Serve, stream: bool) -> None:
    full = serve(FakeEngine(refusal=overloaded("too many requests")))
    reply = call(full, "POST", MESSAGES, body(stream=stream))
    assert (reply.status, reply.error, reply.headers["retry-after"]) == (529, "overloaded_error", "5")
    small = serve(context_tokens=2048)
    reply = call(small, "POST", MESSAGES, body(stream=stream, max_tokens=4096, messages=[{"role": "user", "content": "word " * 2000}]))
    assert reply.status == 400 and reply.json["error"]["message"].startswith("prompt is too long: ")


def test_a_failure_of_a_whole_message_is_a_status(serve: Serve) -> None:
    engine = FakeEngine(["Hello", Failed(ApiError(500, "api_error", "out of memory"))])
    reply = call(serve(engine), "POST", MESSAGES, body())
    assert (reply.status, reply.error, reply.json["error"]["message"]) == (500, "api_error", "out of memory")


class Broken(FakeTokenizer):
    """Fails as only a bug does."""

    def encode(self, prompt: Prompt) -> Encoded:
        raise KeyError("secret detail")


def test_a_bug_is_logged_and_hidden_and_the_server_goes_on(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    port = serve(tokenizer=Broken())
    with RawClient(port) as client:
        reply = client.call("POST", MESSAGES, body())
        assert (reply.status, reply.error, reply.json["error"]["message"]) == (500, "api_error", "internal error")
        assert b"secret" not in reply.body
        (record,) = (record for record in caplog.records if record.levelno >= logging.ERROR)
        assert reply.headers["request-id"] in record.getMessage() and record.exc_info
        assert client.call("GET", "/health").status == 200


# ── the real SDK ──────────────────────────────────────────────────────────────────────────────────


def test_the_anthropic_sdk_is_served(serve: Serve) -> None:
    anthropic = pytest.importorskip("anthropic")
    port = serve(FakeEngine(["Hello", " there"]), api_key="k", model="some/Model")
    ask = body()
    with anthropic.Anthropic(base_url=f"http://127.0.0.1:{port}", api_key="k", max_retries=0) as client:
        assert client.messages.create(**ask).content[0].text == "Hello there"
        with client.messages.stream(**ask) as stream:
            assert "".join(stream.text_stream) == "Hello there"
            assert stream.get_final_message().usage.output_tokens == 2
        assert client.messages.count_tokens(model="m", messages=ask["messages"]).input_tokens > 0
        assert client.models.list().data[0].id == "some/Model"
        assert client.models.retrieve("qwen/x").id == "qwen/x"
        with pytest.raises(anthropic.BadRequestError):
            client.messages.create(**ask, extra_body={"temperature": "hot"})
        with pytest.raises(anthropic.AuthenticationError):
            client.with_options(api_key="wrong").messages.create(**ask)
