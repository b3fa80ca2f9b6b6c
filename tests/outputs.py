"""Helpers for tests of the output side: one text under every split, and what the answer to it is."""
from __future__ import annotations

import json
import random
from typing import Any, Iterator, Sequence

from mlx_native_server.protocol import Tool
from mlx_native_server.answer.streaming import ResponseStream, fold


def tool(name: str, properties: dict | None = None, required: Sequence[str] = (), **schema: Any) -> Tool:
    """A tool whose schema has these properties (none: no `properties` key)."""
    if properties is not None:
        schema["properties"] = properties
    return Tool(name=name, input_schema={"type": "object", "required": list(required)} | schema)


STRING = {"type": "string"}
BASH = tool("Bash", {"command": STRING, "timeout": {"type": "number"}, "run_in_background": {"type": "boolean"}}, ["command"])
WRITE = tool("Write", {"file_path": STRING, "content": STRING}, ["file_path", "content"])
GLOB = tool("Glob", {"pattern": STRING}, ["pattern"])
PAGES = tool("list_pages", {})
TOOLS = (BASH, WRITE, GLOB, PAGES)


def run(chunks: Sequence[str], reason: str = "stop", tools: Sequence[Tool] = TOOLS, **options: Any) -> list[dict]:
    """All events of an answer."""
    stream = ResponseStream(model="m", tools=tools, **options)
    events = stream.start(10)
    for chunk in chunks:
        events += stream.feed(chunk)
    return events + stream.finish(reason, len(chunks))


def splits(text: str, seed: int = 0, cuts: int = 3) -> Iterator[list[str]]:
    """The text whole, character by character, and under random cuts."""
    yield [text]
    yield list(text)
    rng = random.Random(seed)
    for _ in range(cuts if len(text) > 1 else 0):
        points = sorted(rng.sample(range(1, len(text)), min(len(text) - 1, rng.randint(1, 12))))
        yield [text[a:b] for a, b in zip([0] + points, points + [len(text)])]


def answer(text: str, reason: str = "stop", tools: Sequence[Tool] = TOOLS, **options: Any) -> dict:
    """The message, the same under every split, from well-formed events. `unfinished`: calls it leaves out."""
    seen = []
    for chunks in splits(text):
        events = run(chunks, reason, tools, **options)
        check_grammar(events)
        seen.append(summary(events))
    assert all(other == seen[0] for other in seen), f"splits differ: {seen}"
    return seen[0]


def summary(events: list[dict]) -> dict:
    """What a reader of the answer sees."""
    message = fold(events)
    blocks = message["content"]
    started = sum(e["type"] == "content_block_start" and e["content_block"]["type"] == "tool_use" for e in events)
    calls = [(b["name"], b["input"]) for b in blocks if b["type"] == "tool_use"]
    return {
        "text": "".join(b["text"] for b in blocks if b["type"] == "text"),
        "thinking": "".join(b["thinking"] for b in blocks if b["type"] == "thinking"),
        "calls": calls, "unfinished": started - len(calls), "kinds": [b["type"] for b in blocks],
        "stop_reason": message["stop_reason"], "stop_sequence": message["stop_sequence"],
    }


DELTA_BLOCKS = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "thinking", "input_json_delta": "tool_use"}


def check_grammar(events: list[dict]) -> None:
    """Anthropic's event grammar, and the promises about blocks."""
    kinds = [e["type"] for e in events]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    open_block, index, texts, unfinished = None, -1, [], False
    for event in events[1:-2]:
        if event["type"] == "content_block_start":
            assert open_block is None and not unfinished, "a block in a block, or behind an unfinished call"
            index, open_block, texts = index + 1, event["content_block"]["type"], []
            assert event["index"] == index and event["content_block"].get("input", {}) == {}
        elif event["type"] == "content_block_delta":
            assert event["index"] == index and DELTA_BLOCKS[event["delta"]["type"]] == open_block
            texts += [value for key, value in event["delta"].items() if key != "type"]
            assert texts[-1], "an empty delta"
        else:
            assert event["type"] == "content_block_stop" and event["index"] == index and open_block
            if open_block == "tool_use":
                try:
                    assert isinstance(json.loads("".join(texts)), dict)
                except ValueError:
                    unfinished = True
            else:
                assert "".join(texts).strip(), "a block without text"
            open_block = None
    assert open_block is None, "a block was never stopped"
