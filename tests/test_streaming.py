"""One answer as events: blocks, white space, thoughts, markers, stop sequences, usage."""
from __future__ import annotations

import json
import re

import pytest

from mlx_native_server.answer.events import encode_event, signature
from mlx_native_server.answer.streaming import ResponseStream, fold
from outputs import BASH, TOOLS, answer, run, tool

CALL = '<tool_call>\n{"name": "Bash", "arguments": {"command": "ls"}}\n</tool_call>'


# ── events ───────────────────────────────────────────────────────────────────────────────────────


def test_the_events_of_a_thought_a_text_and_a_call() -> None:
    events = run(["<think>t</think>Hello.\n", CALL])
    shape = [(e["type"], e.get("index"), e.get("delta", e.get("content_block", {})).get("type")) for e in events]
    assert shape == [
        ("message_start", None, None),
        ("content_block_start", 0, "thinking"), ("content_block_delta", 0, "thinking_delta"),
        ("content_block_delta", 0, "signature_delta"), ("content_block_stop", 0, None),
        ("content_block_start", 1, "text"), ("content_block_delta", 1, "text_delta"), ("content_block_stop", 1, None),
        ("content_block_start", 2, "tool_use"), ("content_block_delta", 2, "input_json_delta"), ("content_block_stop", 2, None),
        ("message_delta", None, None), ("message_stop", None, None),
    ]
    assert events[8]["content_block"]["input"] == {} and json.loads(events[9]["delta"]["partial_json"]) == {"command": "ls"}
    assert re.fullmatch(r"toolu_[0-9a-f]{24}", events[8]["content_block"]["id"])
    assert re.fullmatch(r"msg_[0-9a-f]{24}", events[0]["message"]["id"])
    assert events[3]["delta"]["signature"] == signature("t")


def test_usage_and_ids() -> None:
    stream = ResponseStream(model="name", tools=(), message_id="msg_1")
    events = stream.start(7, cache_read_tokens=93) + stream.feed("hi") + stream.finish("stop", 2)
    first = {"input_tokens": 7, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 93, "output_tokens": 0}
    assert events[0]["message"]["usage"] == first and events[-2]["usage"] == first | {"output_tokens": 2}
    assert fold(events) == {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "name", "content": [{"type": "text", "text": "hi"}],
        "stop_reason": "end_turn", "stop_sequence": None, "usage": first | {"output_tokens": 2},
    }


def test_input_tokens_are_never_zero() -> None:
    assert ResponseStream(model="m", tools=()).start(0)[0]["message"]["usage"]["input_tokens"] == 1


def test_two_calls_have_two_ids() -> None:
    ids = [block["id"] for block in fold(run([CALL + CALL]))["content"]]
    assert len(ids) == len(set(ids)) == 2


@pytest.mark.parametrize("chunks", [[], [""], ["\n \n"], ["<|im_end|>"], ["<think>\n\n</think>\n"]])
def test_an_answer_without_text_has_no_blocks(chunks: list[str]) -> None:
    events = run(chunks)
    assert [e["type"] for e in events] == ["message_start", "message_delta", "message_stop"]
    assert fold(events)["content"] == []


def test_one_event_on_the_wire() -> None:
    wire = encode_event({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "é\n\ud83d"}})
    assert wire == b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"\\u00e9\\n\\ud83d"}}\n\n'


# ── what goes out when ───────────────────────────────────────────────────────────────────────────


def live(pieces: list[str], tools=TOOLS) -> list[str]:
    """What each piece sends: the text of its deltas, `[name]` where a call starts, `]` where a block stops."""
    stream = ResponseStream(model="m", tools=tools)
    return ["".join(map(_shown, stream.feed(piece))) for piece in pieces]


def _shown(event: dict) -> str:
    if event["type"] == "content_block_start":
        return f"[{event['content_block']['name']}]" if event["content_block"]["type"] == "tool_use" else ""
    if event["type"] == "content_block_stop":
        return "]"
    return event["delta"].get("text") or event["delta"].get("partial_json") or ""


def test_text_goes_out_at_once_but_for_what_may_be_a_mark() -> None:
    assert live(["Hel", "lo <", "b> an", "d <tool", "_box ", "end"]) == ["Hel", "lo", " <b> an", "d", " <tool_box", " end"]


def test_a_call_starts_with_its_first_declared_key_and_its_text_streams() -> None:
    pieces = ['<tool_call>{"name": "Wri', 'te", "arguments": {', '"file_path": "', "/a/", 'b", "content": "x', "\\", 'n", "more', '": 1}', "}</tool_call>"]
    assert live(pieces) == ["", "", '[Write]{"file_path": "', "/a/", 'b", "content": "x', "", '\\n"', "}]", ""]


def test_a_gemma_call_streams_too() -> None:
    pieces = ["<|tool_call>call:Write{content:", '<|"|>a', 'b<|"', '|>,file_path:<|"|>/x', '<|"|>}', "<tool_call|>"]
    assert live(pieces) == ["", '[Write]{"content": "a', "b", '", "file_path": "/x', '"}]', ""]


def test_numbers_and_booleans_go_out_when_complete() -> None:
    pieces = ['<tool_call>{"name": "Bash", "arguments": {"timeout": 1', "2", "0", ', "command', '": "ls"}}']
    assert live(pieces) == ["", "", "", '[Bash]{"timeout": 120', ', "command": "ls"}]']


def test_a_nullable_string_is_held_only_while_it_may_be_null() -> None:
    tools = [tool("note", {"text": {"type": ["string", "null"]}})]
    assert live(["<|tool_call>call:note{text:nu", "l", "ls}", "<tool_call|>"], tools=tools) == ["[note]{", "", '"text": "nulls', '"}]']
    assert live(["<|tool_call>call:note{text:nu", "ll}", "<tool_call|>"], tools=tools) == ["[note]{", '"text": null}]', ""]


# ── white space ──────────────────────────────────────────────────────────────────────────────────

EDGES = [
    ("\n\n  a\n\n b \n\n", "  a\n\n b"),
    ("   \n\tcode\n", "\tcode"),
    ("<think>x</think>\n\na", "a"),
    ("a\n" + CALL + "\n", "a"),
    ("a\n" + CALL + "b", "a\nb"),
    ("a" + CALL + "\n\nb", "a\n\nb"),
    ("\n" + CALL + "\n\nb", "b"),
    ("a \n <think>t</think>", "a"),
    ("a<|im_end|>\n", "a"),
    ("a </s>\n", "a"),
    ("a </s> b", "a </s> b"),
    ("<s>old</s>, new", "<s>old</s>, new"),
]


@pytest.mark.parametrize("text, visible", EDGES)
def test_white_space_at_the_edges(text: str, visible: str) -> None:
    assert answer(text)["text"] == visible


# ── thoughts ─────────────────────────────────────────────────────────────────────────────────────

THOUGHTS = [  # text, thinking, text, calls
    ("<think>\na\n</think>\n\nb", "a", "b", 0),
    ("<think>a", "a", "", 0),
    ("<think>a</think>\n</think>b", "a", "b", 0),
    ("<think><think>a</think>b", "a", "b", 0),
    ("<think>write `</think>` first</think>b", "write `</think>` first", "b", 0),
    ("Use <think> to open it.", "", "Use <think> to open it.", 0),
    ("Well. <think>hm</think> Yes.", "hm", "Well. Yes.", 0),
    ("`<think>` opens, `</think>` closes", "", "`<think>` opens, `</think>` closes", 0),
    ("[THINK]a[/THINK]b", "a", "b", 0),
    ("<|channel>thought\na<channel|>b", "a", "b", 0),
    ("<|channel>final\nb<channel|>", "", "b", 0),
    ("<think>a<|im_end|>", "a", "", 0),
    ("<think>a\n" + CALL, "a", "", 1),
    ("<think>a\n" + CALL + "\n" + CALL + "\n", "a", "", 2),
    ("<think>a\n" + CALL + "\nno", "a\n" + CALL + "\nno", "", 0),
    ("<think>a\n" + CALL + "</think>", "a\n" + CALL, "", 0),
    ("<think>a\n```\n" + CALL, "a\n```\n" + CALL, "", 0),
    ('<think>maybe <tool_call>{"name": "Bash", "arguments": {"command": "</think>b', 'maybe <tool_call>{"name": "Bash", "arguments": {"command": "', "b", 0),
    ('<think>a <tool_call>{"name": "Nope", "arguments": {}}</tool_call>', 'a <tool_call>{"name": "Nope", "arguments": {}}</tool_call>', "", 0),
    ("a</think>b", "", "ab", 0),
]


@pytest.mark.parametrize("text, thinking, visible, calls", THOUGHTS)
def test_thoughts(text: str, thinking: str, visible: str, calls: int) -> None:
    got = answer(text)
    assert (got["thinking"], got["text"], len(got["calls"])) == (thinking, visible, calls)


def test_thinking_that_is_not_shown_leaves_the_text_whole() -> None:
    got = answer("<think>a</think>One.\n<think>b</think>Two." + CALL, show_thinking=False)
    assert got["kinds"] == ["text", "tool_use"] and got["text"] == "One.\nTwo."


def test_a_thought_that_the_prompt_opened() -> None:
    got = answer("Add.\n</think>\n\nSeven.", opens_thinking=True)
    assert got["thinking"] == "Add." and got["text"] == "Seven."


@pytest.mark.parametrize("text, visible", [("thought\nDone.", "Done."), ("thought is free", "thought is free")])
def test_a_channel_name_behind_a_suppressed_thought(text: str, visible: str) -> None:
    assert answer(text, suppresses_thinking=True)["text"] == visible


def test_two_thoughts_stay_two_words_when_joined() -> None:
    assert answer("<think>a</think>x<|im_end|>")["thinking"] == "a"
    assert answer("<think>a</think>\n<think>b</think>x")["thinking"] == "a\nb"


# ── markers and stop sequences ───────────────────────────────────────────────────────────────────

STOPS = [  # text, stop sequences, visible, matched
    ("one STOP two", ["STOP"], "one", "STOP"),
    ("one ST two", ["STOP"], "one ST two", None),
    ("ST", ["STOP"], "ST", None),
    ("a\n\nb", ["\n\n"], "a", "\n\n"),
    ("\n\nb", ["\n\n"], "b", None),
    ("aab", ["ab", "aab"], "", "aab"),
    ("xabc", ["abcd", "bc"], "xa", "bc"),
    ("`STOP`", ["STOP"], "`", "STOP"),
    ("```\nSTOP\n```", ["STOP"], "```", "STOP"),
    ("<think>STOP</think>ok", ["STOP"], "ok", None),
    ('<tool_call>{"name": "Bash", "arguments": {"command": "STOP"}}</tool_call>', ["STOP"], "", None),
    (CALL + "more STOP", ["STOP"], "more", "STOP"),
    ("See <tool_call> STOP", ["STOP"], "See <tool_call>", "STOP"),
    ("one", [""], "one", None),
]


@pytest.mark.parametrize("text, stops, visible, matched", STOPS)
def test_stop_sequences(text: str, stops: list[str], visible: str, matched: str | None) -> None:
    got = answer(text, stop_sequences=stops)
    assert (got["text"], got["stop_sequence"]) == (visible, matched)
    assert (got["stop_reason"] == "stop_sequence") == (matched is not None)


def test_a_stop_sequence_stops_the_stream() -> None:
    stream = ResponseStream(model="m", tools=(), stop_sequences=["END"])
    stream.start(1)
    stream.feed("a E")
    assert not stream.stopped
    stream.feed("ND b")
    assert stream.stopped and stream.feed("c") == []
    assert fold(stream.start(1) + stream.finish("length", 3))["stop_reason"] == "stop_sequence"


MARKERS = [
    ("ok<|im_end|>\n<|im_start|>user\nmore", "ok", True),
    ("ok<|eot_id|><|end_of_text|>", "ok", True),
    ("it is `<|im_end|>` here", "it is `<|im_end|>` here", False),
    ("```\n<|im_end|>\n```\nok", "```\n<|im_end|>\n```\nok", False),
    ("a `tick and\n<|im_end|> more", "a `tick and", True),
]


@pytest.mark.parametrize("text, visible, stopped", MARKERS)
def test_a_leaked_turn_marker_outside_code_ends_the_answer(text: str, visible: str, stopped: bool) -> None:
    assert answer(text)["text"] == visible
    stream = ResponseStream(model="m", tools=())
    stream.feed(text)
    assert stream.stopped is stopped


def test_markup_of_calls_is_plain_text_without_tools() -> None:
    text = CALL + " and <|tool_call>call:a{}<tool_call|> end"
    assert answer(text, tools=())["text"] == text


@pytest.mark.parametrize("text, reason", [("a", "end_turn"), (CALL, "tool_use")])
def test_the_token_limit_is_always_told(text: str, reason: str) -> None:
    assert answer(text)["stop_reason"] == reason
    assert answer(text, "length")["stop_reason"] == "max_tokens"


def test_the_models_own_dialect_is_tried_first() -> None:
    text = '<tool_call>call:Bash{command:<|"|>ls<|"|>}</tool_call>'
    assert answer(text, formats=["gemma4"])["calls"] == answer(text, formats=["json_tags", "unknown"])["calls"] == [("Bash", {"command": "ls"})]


def test_fences_inside_fences_and_spans() -> None:
    text = "````\n```\n" + CALL + "\n```\n````\n" + CALL
    got = answer(text, tools=[BASH])
    assert len(got["calls"]) == 1 and got["text"] == "````\n```\n" + CALL + "\n```\n````"
    assert answer("```ls``` then\n" + CALL)["calls"]
