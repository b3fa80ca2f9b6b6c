"""One turn: replies of a scripted engine in, events out."""
from __future__ import annotations

import logging
import threading
from typing import Any

import pytest
from fakes import FakeEngine, FakeTokenizer, Script

from mlx_native_server.protocol import (
    ApiError, Client, Encoded, Event, Failed, Finished, Message, Piece, Request, Sampling, Started, TextBlock, Thinking, Tool,
    ToolChoice, Traits, overloaded,
)
from mlx_native_server.turn.respond import respond
from mlx_native_server.answer.streaming import fold
from mlx_native_server.turn.turn import Turn, declared, formats

BASH = Tool("Bash", input_schema={"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]})
CALL = '<tool_call>\n{"name": "Bash", "arguments": {"command": "ls"}}\n</tool_call>'
ASK = Request((Message("user", (TextBlock("hi"),)),), model="m")


def turn(log_answer: bool = False, opens_thinking: bool = False, **fields: Any) -> Turn:
    request = Request(**(vars(ASK) | fields))
    encoded = Encoded("hi", [1, 2, 3], opens_thinking=opens_thinking)
    return Turn("req_1", request, encoded, FakeTokenizer(), Sampling(0.5), 16, log_answer=log_answer)


def events_of(script: Script, **fields: Any) -> list[Event]:
    return [event for event in respond(turn(**fields), FakeEngine(script).submit) if event is not None]


def texts(message: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(block["type"], block.get("text") or block.get("thinking") or block.get("input")) for block in message["content"]]


# ── what comes out ───────────────────────────────────────────────────────────────────────────────

CASES: dict[str, tuple[Script, dict[str, Any], list[tuple[str, Any]], str]] = {
    # name: script, request fields, content, stop reason
    "text": (["Hel", "lo"], {}, [("text", "Hello")], "end_turn"),
    "limit": (["Hello", Finished("length")], {}, [("text", "Hello")], "max_tokens"),
    "stop sequence": (["one END two"], {"stop_sequences": ("END",)}, [("text", "one")], "stop_sequence"),
    "stop sequence at the start": (["EN", "D two"], {"stop_sequences": ("END",)}, [], "stop_sequence"),
    "stop sequence behind white space": (["\n\nEND two"], {"stop_sequences": ("END",)}, [], "stop_sequence"),
    "stop sequence behind a thought": (["<think>END</think>\n\n", "END two"], {"stop_sequences": ("END",)}, [], "stop_sequence"),
    "call": ([CALL], {"tools": (BASH,)}, [("tool_use", {"command": "ls"})], "tool_use"),
    "thinking shown": (["<think>why", "</think>so"], {"thinking": Thinking("enabled")}, [("thinking", "why"), ("text", "so")], "end_turn"),
    "thinking adaptive": (["<think>why</think>so"], {"thinking": Thinking("adaptive", display="updates")},
                          [("thinking", "why"), ("text", "so")], "end_turn"),
    "thinking not asked for": (["<think>why</think>so"], {}, [("text", "so")], "end_turn"),
    "thinking disabled": (["<think>why</think>so"], {"thinking": Thinking("disabled")}, [("text", "so")], "end_turn"),
    "thinking omitted": (["<think>why</think>so"], {"thinking": Thinking("enabled", display="omitted")},
                         [("thinking", None), ("text", "so")], "end_turn"),
    "thinking opened by the template": (["why</think>so"], {"opens_thinking": True, "thinking": Thinking("enabled")},
                                        [("thinking", "why"), ("text", "so")], "end_turn"),
    "nothing": ([Finished("length")], {}, [], "max_tokens"),
}


@pytest.mark.parametrize("name", CASES)
def test_replies_become_a_message(name: str) -> None:
    script, fields, content, reason = CASES[name]
    message = fold(events_of(script, **fields))
    shown = [(kind, value.strip() if isinstance(value, str) else value) for kind, value in texts(message)]
    assert (shown, message["stop_reason"], message["model"]) == (content, reason, "m")


def test_usage_is_what_the_engine_said() -> None:
    def submit(job: object) -> Any:
        return Replies([Started(900, 100), Piece("a", 3), Piece("", 2), Piece("b", 1), Finished("stop", 1)])

    events = [event for event in respond(turn(), submit) if event]
    start, delta = events[0]["message"]["usage"], events[-2]["usage"]
    assert (start["input_tokens"], start["cache_read_input_tokens"], start["output_tokens"]) == (100, 900, 0)
    assert (delta["input_tokens"], delta["cache_read_input_tokens"], delta["output_tokens"]) == (100, 900, 7)


class Replies:
    """A ticket that has all its replies already."""

    def __init__(self, replies: list[Any]):
        self.replies = replies

    def get(self, timeout_s: float) -> Any:
        return self.replies.pop(0)

    def cancel(self) -> None:
        self.replies.clear()


def test_the_job_carries_what_the_engine_needs() -> None:
    engine = FakeEngine()
    list(respond(turn(client=Client(session_id="s", agent_id="a")), engine.submit))
    job = engine.jobs[0]
    assert (job.id, job.tokens, job.max_tokens, job.sampling) == ("req_1", [1, 2, 3], 16, Sampling(0.5))
    assert (job.client.session_id, job.client.agent_id) == ("s", "a")


@pytest.mark.parametrize("choice, tools, expected", [
    (ToolChoice(), (BASH,), ("Bash",)),
    (ToolChoice("none"), (BASH,), ()),
    (ToolChoice(), (BASH, Tool("web_search", server_type="web_search_20250305")), ("Bash",)),
])
def test_only_declared_tools_of_the_client_can_be_called(choice: ToolChoice, tools: tuple[Tool, ...], expected: tuple[str, ...]) -> None:
    assert tuple(tool.name for tool in declared(Request((), tools=tools, tool_choice=choice))) == expected


@pytest.mark.parametrize("traits, expected", [
    (Traits(dialect="gemma4"), ("gemma4",)),
    (Traits(dialect="gemma4", tool_calls=False), ("json_tags", "gemma4")),
    (Traits(dialect="llama3", tools=False), ("json_tags", "llama3")),
])
def test_where_calls_are_shown_as_text_they_are_looked_for_as_such(traits: Traits, expected: tuple[str, ...]) -> None:
    assert formats(traits) == expected


def test_a_dialect_that_nobody_knows_yet_is_no_obstacle() -> None:
    a_turn = turn(tools=(BASH,))
    a_turn.tokenizer.traits = Traits(dialect="of tomorrow")
    message = fold(event for event in respond(a_turn, FakeEngine([CALL]).submit) if event)
    assert message["stop_reason"] == "tool_use"


# ── waiting, failing, leaving ────────────────────────────────────────────────────────────────────


def test_a_full_queue_is_raised_before_the_first_event() -> None:
    with pytest.raises(ApiError) as raised:
        respond(turn(), FakeEngine(refusal=overloaded("full")).submit)
    assert raised.value.status == 529


def test_silence_gives_the_caller_a_turn() -> None:
    gate = threading.Event()
    events = respond(turn(), FakeEngine([gate, "Hello"]).submit)
    assert next(events)["type"] == "message_start"
    assert [next(events) for _ in range(3)] == [None, None, None]
    gate.set()
    assert any(event and event["type"] == "content_block_delta" for event in events)


def test_hidden_text_gives_the_caller_a_turn_at_each_token() -> None:
    """A long hidden thought would otherwise be a silence without pings, of a client that nobody watches."""
    script = ["<think>", *["hidden thought "] * 20, "</think>", "so"]
    assert list(respond(turn(), FakeEngine(script).submit)).count(None) >= 20


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_closing_cancels_the_job_however_far_it_got(taken: int) -> None:
    """A generator that never ran has no `finally` to run: closing it at once must cancel all the same."""
    engine = FakeEngine(["a", "b", threading.Event()])
    events = respond(turn(), engine.submit)
    for _ in range(taken):
        next(events)
    assert not engine.tickets[0].cancelled.is_set()
    events.close()
    assert engine.tickets[0].cancelled.is_set()


def test_a_stop_sequence_cancels_the_job_before_its_text_is_taken() -> None:
    engine = FakeEngine(["one END", " two", threading.Event()])
    events = respond(turn(stop_sequences=("END",)), engine.submit)
    while (event := next(events)) is None or event["type"] == "message_start":
        pass
    assert engine.tickets[0].cancelled.is_set()
    rest = [event for event in events if event]
    assert rest[-1]["type"] == "message_stop" and rest[-2]["usage"]["output_tokens"] == 1


@pytest.mark.parametrize("before", [[], ["some text"]])
def test_a_failed_job_is_raised_by_the_iteration(before: list[str]) -> None:
    events = respond(turn(), FakeEngine([*before, Failed(ApiError(500, "api_error", "out of memory"))]).submit)
    with pytest.raises(ApiError, match="out of memory"):
        list(events)


def test_debug_response_logs_tool_keys_and_the_start_of_the_answer(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mlx_native_server.turn.respond")
    list(respond(turn(tools=(BASH,)), FakeEngine(["quiet"]).submit))
    assert not caplog.records
    list(respond(turn(log_answer=True, tools=(BASH,)), FakeEngine(["word " * 1000]).submit))
    (line,) = (record.getMessage() for record in caplog.records)
    assert "req_1" in line and "{'Bash': ['command']}" in line and "word word" in line and len(line) < 2000
