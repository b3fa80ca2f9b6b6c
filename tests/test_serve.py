"""The `serve` command's own parts: what is logged, and how the end is decided."""
from __future__ import annotations

import logging
import os
import signal
import threading

import pytest

from mlx_native_server.config import Settings
from mlx_native_server.models.folder import ModelError
from mlx_native_server.operate.logfiles import LogFormat
from mlx_native_server.serve import Ending, summary, wait

HEALTH = {"status": "ok", "rss_gb": 1.2, "mx_active_gb": 0.5, "mx_cache_gb": 0.1}


@pytest.mark.parametrize("settings, words", [
    (Settings(), ["http://h:1 serves tiny", "context window: 8192 tokens", "KV cache: full precision", "prefill chunk: 768 tokens", "cap: 3 GB", "prompt cache: as memory allows", "tool retries: 2"]),
    (Settings(), ["1.2 GB resident", "MLX 0.5 GB", "ANTHROPIC_BASE_URL=http://h:1 ANTHROPIC_AUTH_TOKEN=local", "too small to be an agent"]),
    (Settings(kv_bits=4, kv_quant_start=0), ["KV cache: 4 bits from token 0"]),
    (Settings(cache_limit_gb=0.0, prompt_cache_gb=0.0), ["cap: none", "prompt cache: off"]),
    (Settings(prompt_cache_gb=12.5), ["prompt cache: 12.5 GB"]),
])  # fmt: skip
def test_the_summary_says_what_is_served_and_how(settings: Settings, words: list[str]) -> None:
    text = "\n".join(summary(settings, "http://h:1", 8192, HEALTH))
    assert [word for word in words if word not in text] == []


def test_the_summary_shows_the_kv_state_that_the_model_allows() -> None:
    assert "full precision" in "\n".join(summary(Settings(kv_bits=4), "http://h:1", 8192, HEALTH | {"kv_bits": 0}))


def test_the_summary_keeps_the_key_and_speaks_of_tiny_only_for_tiny() -> None:
    text = "\n".join(summary(Settings(model="org/m", api_key="s3cret"), "http://h:1", 8192, HEALTH))
    assert "s3cret" not in text and "tiny" not in text


class States:
    """A watched engine: each look at its health gives the next status, each look for slow prefills the next lines."""

    def __init__(self, *states: str, slow: list[list[str]] | None = None):
        self.states, self.slow = iter(states), slow or []

    def health(self) -> dict:
        return {"status": next(self.states)}

    def slow_prefills(self) -> list[str]:
        return self.slow.pop(0) if self.slow else []


def record(level: int, message: str, error: Exception | None = None) -> logging.LogRecord:
    return logging.LogRecord("mlx_native_server.x", level, __file__, 1, message, (), (type(error), error, None) if error else None)


def test_log_lines_have_the_time_and_a_wrong_model_no_trace() -> None:
    form = LogFormat("[%(asctime)s] %(mark)s%(message)s", "%H:%M:%S").format
    assert form(record(logging.INFO, "hello"))[10:] == " hello"
    assert form(record(logging.WARNING, "hello"))[10:] == " warning: hello"
    assert form(record(logging.ERROR, "failed", ModelError("There is no x.")))[10:] == " error: failed: There is no x."
    assert "ValueError: bad" in form(record(logging.ERROR, "failed", ValueError("bad")))


@pytest.mark.parametrize("error, status", [(ModelError("no"), 78), (RuntimeError("no"), 1), (MemoryError(), 1)])
def test_a_failed_engine_decides_the_exit_status(error: Exception, status: int) -> None:
    ending = Ending()
    ending.engine_failed(error)
    ending.end(0)
    assert wait(ending, States("failed"), lambda health: []) == status


def test_the_summary_is_logged_once_when_the_model_is_there(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ending, said, ready = Ending(), [], []

    def lines(health: dict) -> list[str]:
        said.append(health["status"])
        threading.Timer(0.05, ending.end, [0]).start()
        return ["ready: x"]

    assert wait(ending, States("loading", "loading", "ok", slow=[["prefill 5 %"]]), lines, lambda: ready.append(1)) == 0
    assert said == ["ok"] and ready == [1] and caplog.messages.count("ready: x") == caplog.messages.count("prefill 5 %") == 1


def test_a_signal_while_waiting_ends_the_wait() -> None:
    """The handler runs in the very thread that waits, inside of the waiting call."""
    ending = Ending()
    before = signal.signal(signal.SIGUSR1, lambda *_: ending.end(7))
    try:
        threading.Timer(0.05, os.kill, [os.getpid(), signal.SIGUSR1]).start()
        assert wait(ending, States(*["loading"] * 1000), lambda health: []) == 7
    finally:
        signal.signal(signal.SIGUSR1, before)
