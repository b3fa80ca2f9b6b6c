"""From a body to a queued job: counting, the window, defaults, and what is said of the model."""
from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeEngine, FakeTokenizer, body, make_service

from mlx_native_server.config import Settings
from mlx_native_server.answer.events import signature
from mlx_native_server.protocol import ApiError, Finished, Sampling
from mlx_native_server.service import CLAUDE_NAMES, Service
from mlx_native_server.answer.streaming import fold


def raw(**fields: Any) -> bytes:
    return json.dumps(body(**fields)).encode()


def words(count: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "word " * count}]


def job_of(engine: FakeEngine, service: Service, **fields: Any) -> Any:
    service.answer(raw(**fields), {}, "req_1").events.close()
    return engine.jobs[-1]


# ── counting is answering without the answer ─────────────────────────────────────────────────────


@pytest.mark.parametrize("fields", [
    {},
    {"system": "Be brief.", "tools": [{"name": "Bash", "input_schema": {"type": "object"}}]},
    {"messages": words(500)},
    {"thinking": {"type": "adaptive"}, "tool_choice": {"type": "none"}},
])
def test_a_count_is_what_the_engine_gets(fields: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "append.txt").write_text("Always answer in rhymes.")
    engine = FakeEngine()
    service = make_service(engine, append_system_prompt_file=str(tmp_path / "append.txt"))
    plain = make_service(engine)
    count = service.count(raw(**fields), {})
    assert count == len(job_of(engine, service, **fields).tokens)
    assert count > plain.count(raw(**fields), {}), "the appended prompt is not counted"


def test_a_count_needs_no_max_tokens() -> None:
    request = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    assert make_service().count(json.dumps(request).encode(), {}) > 0


def test_counting_asks_nothing_of_the_engine() -> None:
    engine = FakeEngine()
    make_service(engine).count(raw(), {})
    assert not engine.tickets


# ── the window ───────────────────────────────────────────────────────────────────────────────────


def test_max_tokens_is_cut_to_what_the_window_leaves() -> None:
    engine = FakeEngine()
    service = make_service(engine, FakeTokenizer(context_tokens=10_000))
    prompt_tokens = service.count(raw(messages=words(5000)), {})
    assert job_of(engine, service, messages=words(5000), max_tokens=32_000).max_tokens == 10_000 - prompt_tokens
    assert job_of(engine, service, messages=words(5000), max_tokens=100).max_tokens == 100


@pytest.mark.parametrize("max_tokens, kept_free", [(32_000, 1024), (1024, 1024), (100, 100), (1, 1)])
def test_a_prompt_too_long_is_refused_in_the_words_that_make_the_client_compact(max_tokens: int, kept_free: int) -> None:
    engine, tokenizer = FakeEngine(), FakeTokenizer()
    prompt_tokens = make_service(engine).count(raw(messages=words(3000)), {})
    tokenizer.context_tokens = prompt_tokens + kept_free
    service = make_service(engine, tokenizer)
    assert job_of(engine, service, messages=words(3000), max_tokens=max_tokens).max_tokens == kept_free
    tokenizer.context_tokens -= 1
    with pytest.raises(ApiError) as raised:
        service.answer(raw(messages=words(3000), max_tokens=max_tokens), {}, "req_1")
    assert (raised.value.status, raised.value.kind) == (400, "invalid_request_error")
    assert raised.value.message == f"prompt is too long: {prompt_tokens} tokens > {prompt_tokens - 1} maximum"


def test_the_setting_overrides_the_model_s_window() -> None:
    service = make_service(tokenizer=FakeTokenizer(context_tokens=100_000), context_tokens=2048)
    assert service.context_tokens == 2048 and service.health()["context_tokens"] == 2048
    with pytest.raises(ApiError, match=r"prompt is too long: \d+ tokens > 1024 maximum"):
        service.answer(raw(messages=words(1500), max_tokens=8192), {}, "req_1")


def test_a_tiny_window_still_takes_a_prompt() -> None:
    engine = FakeEngine()
    assert 0 < job_of(engine, make_service(engine, context_tokens=512), max_tokens=8192).max_tokens < 512


def test_max_tokens_0_warms_up() -> None:
    """Streamed or not: a whole message without content, its prompt counted."""
    engine = FakeEngine([Finished("length")])
    service = make_service(engine)
    events = [event for event in service.answer(raw(max_tokens=0), {}, "req_1").events if event]
    assert [event["type"] for event in events] == ["message_start", "message_delta", "message_stop"]
    message = fold(events)
    assert (engine.jobs[-1].max_tokens, message["content"], message["stop_reason"]) == (0, [], "max_tokens")
    assert (message["usage"]["input_tokens"], message["usage"]["output_tokens"]) == (service.count(raw(), {}), 0)


def test_a_window_that_is_full_is_told_as_the_token_limit() -> None:
    """This reason makes the client go on in a new turn; there it learns whether the prompt still fits."""
    engine = FakeEngine(["so ", "far", Finished("length")])
    service = make_service(engine, context_tokens=512)
    message = fold(event for event in service.answer(raw(max_tokens=32_000), {}, "req_1").events if event)
    assert (engine.jobs[-1].max_tokens < 512, message["stop_reason"]) == (True, "max_tokens")


def test_the_debug_line_marks_thoughts_that_are_not_our_own(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "mlx_native_server.service")
    thoughts = [{"type": "thinking", "thinking": "why", "signature": signature("why")}, {"type": "thinking", "thinking": "why not", "signature": ""}]
    messages = [*words(1), {"role": "assistant", "content": [*thoughts, {"type": "text", "text": "so"}]}, *words(1)]
    make_service(debug_request=True).answer(raw(messages=messages), {}, "req_1").events.close()
    assert "assistant[ThinkingBlock, ThinkingBlock (foreign), TextBlock]" in caplog.text


# ── defaults ─────────────────────────────────────────────────────────────────────────────────────


def test_max_tokens_defaults_to_the_setting() -> None:
    engine = FakeEngine()
    service = make_service(engine, max_tokens=77)
    service.answer(json.dumps({"messages": words(1), "model": "m"}).encode(), {}, "req_1")
    assert engine.jobs[-1].max_tokens == 77


@pytest.mark.parametrize("fields, expected", [
    ({}, Sampling(0.7, 0.9, 40)),
    ({"temperature": 0}, Sampling(0.0, 0.9, 40)),
    ({"temperature": 1, "top_p": 0.5, "top_k": 5}, Sampling(1.0, 0.5, 5)),
])
def test_sampling_is_the_request_s_and_else_the_model_s(fields: dict[str, Any], expected: Sampling) -> None:
    engine = FakeEngine()
    assert job_of(engine, make_service(engine), **fields).sampling == expected


def test_the_client_s_headers_reach_the_job() -> None:
    engine = FakeEngine()
    headers = {"user-agent": "claude-cli/2", "x-claude-code-session-id": "s1", "x-claude-code-agent-id": "a1"}
    make_service(engine).answer(raw(), headers, "req_9")
    client = engine.jobs[0].client
    assert (engine.jobs[0].id, client.user_agent, client.session_id, client.agent_id) == ("req_9", "claude-cli/2", "s1", "a1")


# ── before the model is there ────────────────────────────────────────────────────────────────────


def test_without_a_tokenizer_good_requests_come_back_later_and_bad_ones_are_refused() -> None:
    service = Service(Settings(), FakeEngine())
    for ask in (lambda: service.count(raw(), {}), lambda: service.answer(raw(), {}, "req_1")):
        with pytest.raises(ApiError) as raised:
            ask()
        assert (raised.value.status, raised.value.kind, raised.value.retry_after_s) == (529, "overloaded_error", 5)
    with pytest.raises(ApiError) as raised:
        service.count(raw(messages=5), {})
    assert raised.value.status == 400


# ── what is said of the model ────────────────────────────────────────────────────────────────────


def test_the_list_of_models_has_both_shapes_and_the_loaded_model_first() -> None:
    service = make_service(model="some/Model-4bit")
    listed = service.models()
    assert [entry["id"] for entry in listed["data"]] == ["some/Model-4bit", *CLAUDE_NAMES]
    assert {"object", "data", "has_more", "first_id", "last_id"} <= listed.keys()
    for entry in listed["data"]:
        assert {"type", "display_name", "created_at", "object", "created", "owned_by"} <= entry.keys()
        assert entry["max_input_tokens"] == service.context_tokens


def test_health_says_what_scripts_rely_on() -> None:
    health = make_service(FakeEngine(status="loading"), model="some/Model", prefill_size=256).health()
    assert json.dumps(health).startswith('{"status": "loading", "model": "some/Model"')
    assert {"prefill_size", "rss_gb", "mx_active_gb", "mx_cache_gb", "mx_peak_gb", "requests_running", "requests_waiting",
            "uptime_s", "context_tokens"} <= health.keys()
    assert health["prefill_size"] == 256 and health["context_tokens"] == 4096


def test_debug_request_logs_shapes_and_no_text(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mlx_native_server")
    messages = [{"role": "user", "content": "secret"}, {"role": "assistant", "content": "secret"}, {"role": "user", "content": "secret"}]
    make_service().answer(raw(messages=messages), {}, "req_1")
    assert not caplog.records
    make_service(debug_request=True).answer(raw(messages=messages), {}, "req_1")
    (line,) = (record.getMessage() for record in caplog.records)
    assert "user[TextBlock] assistant[TextBlock] user[TextBlock]" in line and "secret" not in line
