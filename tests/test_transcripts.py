"""Transcripts: a file for each request, whatever becomes of it, that `render` and `replay` take as it is."""
from __future__ import annotations

import io
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeEngine, FakeTokenizer, Script, body, make_service

from mlx_native_server import render, replay
from mlx_native_server.config import Settings
from mlx_native_server.answer.streaming import fold
from mlx_native_server.protocol import ApiError, Failed, Finished, overloaded

TOOL = {"name": "Bash", "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}}
CALL = '<tool_call>\n{"name": "Bash", "arguments": {"command": "ls"}}\n</tool_call>'
GARBLED = CALL.replace('"command"', '"x": 1, "cmd"')
CODE = {"user-agent": "claude-cli/2.1.332", "x-api-key": "s3cret", "authorization": "Bearer s3cret", "cookie": "s3cret", "anthropic-beta": "b"}
"""Headers of Claude Code's."""


def files(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text("ascii")) for path in sorted(folder.iterdir())]


def ask(folder: Path, script: Script = ("Hello",), scripts: Any = (), headers: dict[str, str] = CODE, tokenizer: FakeTokenizer | None = None,
        **fields: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The answer to a request, and its transcript."""
    service = make_service(FakeEngine(script, scripts), tokenizer, transcript_dir=str(folder))
    message = fold(event for event in service.answer(json.dumps(body(**fields)).encode(), headers, "req_1").events if event)
    return message, files(folder)[0]


def without_ids(message: dict[str, Any]) -> list[dict[str, Any]]:
    return [{key: value for key, value in block.items() if key != "id"} for block in message["content"]]


# ── what is in it ────────────────────────────────────────────────────────────────────────────────


def test_a_file_has_the_request_the_prompt_the_output_and_the_response(tmp_path: Path) -> None:
    message, kept = ask(tmp_path, ["Hel", "lo"], stop_sequences=["END"])
    assert kept["request"] == body(stop_sequences=["END"]) and kept["response"] == message
    assert (kept["id"], kept["ended"], kept["error"]) == ("req_1", "complete", None)
    assert kept["prompt"] == FakeTokenizer().encode(FakePrompt).text and kept["prompt_tokens"] == len(kept["prompt"].split())
    assert (kept["replay"]["chunks"], kept["replay"]["finish_reason"]) == (["Hel", "lo"], "stop")
    assert kept["headers"] == {"user-agent": CODE["user-agent"], "anthropic-beta": "b"} and "s3cret" not in json.dumps(kept)


class FakePrompt:
    messages, tools = body()["messages"], None


def test_only_the_owner_may_read_it_and_nothing_else_lies_there(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    ask(folder)
    (path,) = folder.iterdir()
    assert (folder.stat().st_mode & 0o777, path.stat().st_mode & 0o777) == (0o700, 0o600)
    assert path.name.endswith("-req_1.json") and path.read_text().count("\n") == 1


def test_nothing_is_written_unless_it_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    list(make_service().answer(json.dumps(body()).encode(), {}, "req_1").events)
    assert not list(tmp_path.iterdir())


# ── it can be used ───────────────────────────────────────────────────────────────────────────────

OUTPUTS: dict[str, tuple[Script, dict[str, Any]]] = {
    "text": (["Hel", "lo \ud83d", "\u2603"], {}),
    "a call": ([*"I look. ", *CALL], {"tools": [TOOL]}),
    "a call cut by the limit": ([CALL[:-25], Finished("length")], {"tools": [TOOL]}),
    "a call that is demanded": ([' {"command": "ls"}}\n</tool_call>'], {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "Bash"}}),
    "a stop sequence": (["one EN", "D two"], {"stop_sequences": ["END"]}),
    "a thought": (["<think>why</think>", "so"], {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_replay_takes_the_file_and_gives_the_answer_again(name: str, tmp_path: Path) -> None:
    script, fields = OUTPUTS[name]
    message, _ = ask(tmp_path, script, **fields)
    (path,), out = tmp_path.iterdir(), io.StringIO()
    replay.main(path.read_text().splitlines(), out)
    again = json.loads(out.getvalue())["message"]
    assert without_ids(again) == without_ids(message) and again["content"]
    assert (again["stop_reason"], again["stop_sequence"], again["model"]) == (message["stop_reason"], message["stop_sequence"], "m")


@pytest.mark.parametrize("headers", [{}, CODE])
def test_render_takes_the_file_and_gives_the_prompt_again_in_the_mode_it_was_in(headers: dict[str, str], tmp_path: Path) -> None:
    _, kept = ask(tmp_path, headers=headers, system="You are Alice.", tools=[TOOL | {"description": "Runs a command. " * 40}, TOOL | {"name": "Workflow"}])
    (path,), out = tmp_path.iterdir(), io.StringIO()
    render.main(path.read_text().splitlines(), out, Settings(), model=FakeTokenizer())
    shown = json.loads(out.getvalue())
    assert (shown["text"], shown["input_tokens"]) == (kept["prompt"], kept["prompt_tokens"])
    assert ("Workflow" in shown["text"]) is (not headers)


def test_second_attempts_are_noted_beside_the_first(tmp_path: Path) -> None:
    message, kept = ask(tmp_path, scripts=[[GARBLED], [' {"command": "ls"}}\n</tool_call>']], tools=[TOOL], max_tokens=2000)
    assert message["stop_reason"] == "tool_use" and kept["replay"]["chunks"] == [GARBLED]
    (second,) = kept["second_attempts"]
    assert "".join(second).startswith("<tool_call>") and '"ls"' in "".join(second)


# ── requests that do not end well ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("raw, kind, request_", [
    (b'{"messages": 5, "max_tokens": 1}', "invalid_request_error", {"messages": 5, "max_tokens": 1}),
    (b'{"no": \xff', "invalid_request_error", '{"no": \ufffd'),
    (b"[" * 100_000, "invalid_request_error", "[" * 100_000),
    (json.dumps(body(messages=[{"role": "user", "content": "w " * 5000}])).encode(), "invalid_request_error", None),
    (json.dumps(body()).encode(), "overloaded_error", body()),
])
def test_a_request_that_is_refused_has_a_file_too(raw: bytes, kind: str, request_: Any, tmp_path: Path) -> None:
    service = make_service(FakeEngine(refusal=overloaded("full")), transcript_dir=str(tmp_path))
    with pytest.raises(ApiError):
        service.answer(raw, {}, "req_1")
    (kept,) = files(tmp_path)
    assert (kept["ended"], kept["error"]["type"], kept["request"]) == ("refused", kind, json.loads(raw) if request_ is None else request_)


def test_a_request_that_fails_has_what_came_of_it(tmp_path: Path) -> None:
    with pytest.raises(ApiError):
        ask(tmp_path, ["so far", Failed(ApiError(500, "api_error", "out of memory"))])
    (kept,) = files(tmp_path)
    assert (kept["ended"], kept["error"], kept["replay"]["chunks"]) == ("failed", {"type": "api_error", "message": "out of memory"}, ["so far"])
    assert kept["response"]["content"] == [{"type": "text", "text": "so far"}]


@pytest.mark.parametrize("taken, text", [(0, None), (3, "so"), (4, "so far")])
def test_a_request_that_is_given_up_has_a_file_however_far_it_came(taken: int, text: str | None, tmp_path: Path) -> None:
    engine = FakeEngine(["so ", "far", threading.Event()])
    events = make_service(engine, transcript_dir=str(tmp_path)).answer(json.dumps(body()).encode(), {}, "req_1").events
    for _ in range(taken):
        next(events)
    assert not list(tmp_path.iterdir())
    events.close()
    (kept,) = files(tmp_path)
    assert engine.tickets[0].cancelled.is_set() and (kept["ended"], kept["error"]) == ("cancelled", None)
    assert kept["response"] is None if text is None else kept["response"]["content"] == [{"type": "text", "text": text}]


# ── a disk that fails ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("folder", ["is a file", "~nobody-of-this-name/t", "is a file/below"])
def test_a_disk_that_fails_costs_no_answer_and_is_told_once(folder: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "is a file").write_text("")
    service = make_service(transcript_dir=folder if folder[0] == "~" else str(tmp_path / folder))
    for _ in range(3):
        message = fold(event for event in service.answer(json.dumps(body()).encode(), {}, "req_1").events if event)
        assert message["content"] == [{"type": "text", "text": "Hello there"}]
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["transcripts cannot be written"]


def test_half_a_file_is_not_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    list(make_service(transcript_dir=str(tmp_path)).answer(json.dumps(body()).encode(), {}, "req_1").events)
    assert not list(tmp_path.iterdir())
