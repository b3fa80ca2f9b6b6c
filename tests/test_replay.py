"""The replay command: lines in, lines out."""
from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from mlx_native_server.replay import main

CASES = [json.loads(line) for line in (Path(__file__).parent / "cases" / "output.jsonl").read_text("utf-8").splitlines()]
BYTES = [case for case in CASES if "byte_chunks_hex" in case["input"]]


def replayed(*lines: object) -> list[dict]:
    out = io.StringIO()
    assert main([line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines], out) == 0
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_text_and_chunks_give_the_same_message() -> None:
    tools = [{"name": "Bash", "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}}}]
    text = '<think>t</think>a\n<tool_call>{"name": "Bash", "arguments": {"command": "ls"}}</tool_call>'
    whole, pieces = replayed({"text": text, "tools": tools, "format": "json_tags"}, {"chunks": list(text), "tools": tools})
    strip = lambda message: [{k: v for k, v in block.items() if k != "id"} for block in message["content"]]  # noqa: E731
    assert strip(whole["message"]) == strip(pieces["message"])
    assert [block["type"] for block in whole["message"]["content"]] == ["thinking", "text", "tool_use"]
    assert whole["events"][0]["type"] == "message_start" and whole["message"]["stop_reason"] == "tool_use"


@pytest.mark.parametrize("case", BYTES, ids=[case["id"] for case in BYTES])
def test_bytes_are_decoded_across_pieces(case: dict) -> None:
    (out,) = replayed(case["input"])
    assert out["message"]["content"] == [{"type": "text", "text": case["expect"]["text"]}]


def test_the_prompts_state_and_the_limit_are_taken_over() -> None:
    opened, suppressed, limit, stop = replayed(
        {"text": "a</think>b", "prompt_opens_thinking": True}, {"text": "thought\nb", "prompt_suppresses_thinking": True},
        {"text": "b", "finish_reason": "length"}, {"chunks": ["b EN", "D c"], "stop_sequences": ["END"]},
    )
    assert opened["message"]["content"][0]["thinking"] == "a"
    for out, reason in ((opened, "end_turn"), (suppressed, "end_turn"), (limit, "max_tokens"), (stop, "stop_sequence")):
        assert out["message"]["content"][-1]["text"] == "b" and out["message"]["stop_reason"] == reason


BAD = [
    ("not json", "Expecting"), ("[1]", "object"), ({}, "text"), ({"text": 1}, "text"), ({"chunks": "a"}, "chunks"), ({"chunks": [1]}, "chunks"),
    ({"byte_chunks_hex": ["zz"]}, "byte_chunks_hex"), ({"text": "a", "tools": [{}]}, "tools.0.name"), ({"text": "a", "tools": {}}, "tools"),
    ({"text": "a", "tools": [{"name": "b", "input_schema": 1}]}, "tools.0.input_schema"), ({"text": "a", "finish_reason": "tired"}, "finish_reason"),
    ({"text": "a", "stop_sequences": "ab"}, "stop_sequences"), ({"text": "a", "prompt_opens_thinking": "yes"}, "prompt_opens_thinking"),
    ("[" * 100_000, ""),
]


@pytest.mark.parametrize("line, named", BAD, ids=range(len(BAD)))
def test_a_bad_line_is_an_error_and_the_next_one_is_answered(line: object, named: str) -> None:
    bad, good = replayed(line, "\n", {"text": "fine"})
    assert named in bad["error"] and good["message"]["content"][0]["text"] == "fine"
