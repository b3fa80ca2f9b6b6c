"""The program as a person runs it: a process of its own, real HTTP, a real small model and scripted ones."""
from __future__ import annotations

import http.client
import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parent
LOAD_S = 120.0
RUN_SCRIPTED = "import sys, tiny_models; tiny_models.register_scripted(sys.argv.pop(1)); from mlx_native_server.__main__ import main; sys.exit(main())"
FRANCE = {"role": "user", "content": "What is the capital of France?"}
BASH = {"name": "Bash", "description": "Runs a command.", "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}}


class Process:
    """A running `mlx-native-server serve`, its log and its address."""

    def __init__(self, arguments: list[str], scripted: Path | None = None):
        command = [sys.executable, "-m", "mlx_native_server"] if scripted is None else [sys.executable, "-c", RUN_SCRIPTED, str(scripted)]
        env = {name: value for name, value in os.environ.items() if not name.startswith("MLX_")}
        env["PYTHONPATH"] = os.pathsep.join([str(TESTS), str(TESTS.parent)])
        self.process = subprocess.Popen(
            [*command, "serve", *arguments], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.log: list[str] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stderr:
            self._lines.put(line)
        self._lines.put(None)

    def line(self, pattern: str, timeout_s: float = LOAD_S) -> re.Match[str]:
        """The next log line that matches."""
        deadline_s = time.monotonic() + timeout_s
        while (line := self._lines.get(timeout=max(0.01, deadline_s - time.monotonic()))) is not None:
            self.log.append(line)
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"the server ended without {pattern!r}:\n{''.join(self.log)}")

    def listening(self) -> Process:
        found = self.line(r"listening on http://127\.0\.0\.1:(\d+)")
        self.port = int(found[1])
        return self

    def ready(self) -> Process:
        self.line("ready: ")
        return self

    def end(self, timeout_s: float) -> tuple[int, str]:
        """Exit status and whole log of a process that is about to end."""
        status = self.process.wait(timeout_s)
        while (line := self._lines.get(timeout=5)) is not None:
            self.log.append(line)
        return status, "".join(self.log)

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=LOAD_S)

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        connection = self.connect()
        connection.request(method, path, json.dumps(body) if body else None, {"content-type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())

    def stream(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        connection = self.connect()
        connection.request("POST", "/v1/messages?beta=true", json.dumps(body | {"stream": True}), {"content-type": "application/json"})
        response = connection.getresponse()
        assert (response.status, response.getheader("content-type").partition(";")[0]) == (200, "text/event-stream")
        for line in response:
            if line.startswith(b"data: "):
                yield json.loads(line[len("data: "):])


@contextmanager
def serving(*arguments: str, scripted: Path | None = None) -> Iterator[Process]:
    """A server on a free port that is gone afterwards."""
    server = Process([*arguments, "--port", "0"], scripted)
    try:
        yield server.listening()
    finally:
        if server.process.poll() is None:
            server.process.kill()
        server.process.wait()
        server.process.stderr.close()


# ── the embedded model ───────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def tiny_server(real_model: Path) -> Iterator[Process]:
    with serving() as server:
        status, health = server.ask("GET", "/health")
        assert status == 200 and health["status"] in ("loading", "ok") and health["model"] == "tiny"
        yield server.ready()


def test_the_capital_of_france(tiny_server: Process) -> None:
    body = {"model": "tiny", "max_tokens": 40, "temperature": 0, "messages": [FRANCE]}
    status, message = tiny_server.ask("POST", "/v1/messages", body)
    assert status == 200, message
    text = message["content"][0]["text"]
    assert "Paris" in text and message["stop_reason"] in ("end_turn", "max_tokens")

    events = list(tiny_server.stream(body))
    pieces = [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]
    assert len(pieces) > 1 and "".join(pieces) == text
    assert [event["type"] for event in events if event["type"].startswith("message")] == ["message_start", "message_delta", "message_stop"]

    _, counted = tiny_server.ask("POST", "/v1/messages/count_tokens", {"model": "tiny", "messages": [FRANCE]})
    usage = message["usage"]
    assert counted["input_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert 0 < usage["output_tokens"] <= 40


def test_the_log_says_what_tiny_is_for_and_how_to_point_claude_code_at_it(tiny_server: Process) -> None:
    tiny_server.line("too small to be an agent", timeout_s=10)
    log = "".join(tiny_server.log)
    assert re.search(rf"ANTHROPIC_BASE_URL=http://127\.0\.0\.1:{tiny_server.port} ANTHROPIC_AUTH_TOKEN=local CLAUDE_CODE_MAX_CONTEXT_TOKENS=8192 ", log)
    assert all(re.match(r"\[\d\d:\d\d:\d\d\] ", line) for line in tiny_server.log)


# ── scripted models ──────────────────────────────────────────────────────────────────────────────

CALLS = {
    "qwen3": '<tool_call>\n{"name": "Bash", "arguments": {"command": "ls -l"}}\n</tool_call>',
    "gemma4": '<|tool_call>call:Bash{command:<|"|>ls -l<|"|>}<tool_call|>',
}


@pytest.mark.parametrize("family", CALLS)
def test_a_model_calls_bash_once_and_then_answers(scripted_model, family: str) -> None:
    rules = [{"match": "total 0", "reply": "The folder is empty."}, {"reply": CALLS[family]}]
    folder = scripted_model(family, rules)
    with serving("--model", str(folder), "--context-tokens", "200000", scripted=folder) as server:
        server.ready()
        body: dict[str, Any] = {"model": "local", "max_tokens": 200, "tools": [BASH], "messages": [{"role": "user", "content": "List the files."}]}
        events = list(server.stream(body))
        start = next(event for event in events if event["type"] == "content_block_start")
        arguments = "".join(event["delta"]["partial_json"] for event in events if event["type"] == "content_block_delta")
        assert (start["content_block"]["type"], start["content_block"]["name"], json.loads(arguments)) == ("tool_use", "Bash", {"command": "ls -l"})
        assert events[-2]["delta"]["stop_reason"] == "tool_use"

        call = {"type": "tool_use", "id": start["content_block"]["id"], "name": "Bash", "input": {"command": "ls -l"}}
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": "total 0"}
        body["messages"] += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
        _, message = server.ask("POST", "/v1/messages", body)
        assert (message["content"], message["stop_reason"]) == ([{"type": "text", "text": "The folder is empty."}], "end_turn")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_within_two_seconds_and_a_running_stream_gets_an_error(scripted_model, number: signal.Signals) -> None:
    folder = scripted_model("qwen3", [{"reply": "word ", "no_eos": True, "token_ms": 20}])
    with serving("--model", str(folder), scripted=folder) as server:
        server.ready()
        events = server.stream({"model": "local", "max_tokens": 100_000, "messages": [FRANCE]})
        while next(events)["type"] != "content_block_delta":
            pass
        begun_s = time.monotonic()
        server.process.send_signal(number)
        last = list(events)[-1]
        status, log = server.end(5)
        assert time.monotonic() - begun_s < 2
        assert last["type"] == "error" and status == 0 and log.splitlines()[-1].endswith("] Stopped.")


# ── what a restart does not mend, and what it may ────────────────────────────────────────────────


def broken_weights(folder: Path) -> str:
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "model.safetensors").write_text("no weights")
    return str(folder)


MODELS = [
    (lambda folder: str(folder / "missing"), "does not exist"),
    (lambda folder: str(folder), "no config.json"),
    (broken_weights, ""),
    (lambda folder: "just-a-name", "just-a-name"),
]


@pytest.mark.parametrize("make, words", MODELS)
def test_a_model_that_is_not_there_or_does_not_load_ends_with_78(tmp_path: Path, make, words: str) -> None:
    name = make(tmp_path)
    with serving("--model", name) as server:
        status, log = server.end(30)
    assert status == 78 and words in log and name in log
    assert "Traceback" not in log


def test_a_taken_port_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        server = Process(["--port", str(port)])
        status, log = server.end(30)
        server.process.stderr.close()
    assert status == 1 and len(log.splitlines()) == 1
    assert f"cannot listen on 127.0.0.1:{port}: another program listens there" in log
