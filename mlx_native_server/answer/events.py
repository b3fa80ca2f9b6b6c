"""Anthropic's stream events: built from text, thinking and calls, encoded for the wire, and added up again.

`EventWriter` holds the rules that every answer keeps: blocks follow one another, none is empty, white space at an
answer's edges is not sent, and the deltas of one step are put together. `fold` is what a non-streaming answer is.
What the text means is decided elsewhere.
"""
from __future__ import annotations

import hashlib
import hmac
import json
import logging
import secrets
from typing import Any, Iterable

from ..protocol import Event

logger = logging.getLogger(__name__)

DELTAS = {"text": ("text_delta", "text"), "thinking": ("thinking_delta", "thinking"), "tool_use": ("input_json_delta", "partial_json")}
EMPTY_BLOCKS: dict[str, Event] = {
    "text": {"type": "text", "text": ""},
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
}
SIGNING_KEY = b"mlx-native-server thinking"


def new_id(prefix: str) -> str:
    """`msg_…` or `toolu_…` with 24 hex digits."""
    return f"{prefix}_{secrets.token_hex(12)}"


def signature(thinking: str) -> str:
    """The signature of a thinking block. Clients hand it back unchanged."""
    return hmac.new(SIGNING_KEY, thinking.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def is_own_thought(thinking: str, signed: str) -> bool:
    """Whether a thought that came back is one of this program's, unchanged. No thought is refused if it is not."""
    return hmac.compare_digest(signature(thinking).encode(), signed.encode("utf-8", "surrogatepass"))


class _Prose:
    """White space at the edges of one kind of block (text, thinking), over all blocks of an answer."""

    def __init__(self) -> None:
        self.written = False  # something of this kind was sent
        self._gap: list[str] = []  # white space behind it, sent once more text follows
        self._gap_before = ""  # what was behind it when its block closed

    def block_closed(self) -> None:
        """The block with this text has ended; what comes next stands in a new one. Marks behind it were its end."""
        self._gap_before = "".join(filter(str.isspace, self._gap)) or self._gap_before
        self._gap.clear()

    def gap(self, text: str) -> None:
        """Text that counts only if more follows."""
        self._gap.append(text)

    def release(self, text: str, new_block: bool) -> str:
        """What of `text`, and of the white space before it, can be sent now."""
        body = text.rstrip()
        if not body:
            self._gap.append(text)
            return ""
        whole = "".join(self._gap) + body
        self._gap = [text[len(body):]]
        if new_block:
            solid = whole.lstrip()
            edge = whole[:len(whole) - len(solid)]
            if self.written:  # keep the words of two blocks apart
                whole = (edge or self._gap_before) + solid
            else:  # the first line keeps its indentation
                whole = edge[edge.rfind("\n") + 1:] + solid
        self.written = True
        return whole


class EventWriter:
    """Collects events; `drain` gives those that are due.

    It is the `Sink` of parsed calls. `calls` counts the complete ones.
    """

    def __init__(self, model: str, message_id: str | None = None):
        self.calls = 0
        self._message: Event = {
            "id": message_id or new_id("msg"), "type": "message", "role": "assistant", "model": model,
            "content": [], "stop_reason": None, "stop_sequence": None,
        }
        self._usage: dict[str, int] = {}
        self._events: list[Event] = []
        self._index, self._kind = -1, ""  # of the open block
        self._runs: list[str] = []  # of the open block, not yet an event
        self._prose = {"text": _Prose(), "thinking": _Prose()}
        self._thought: list[str] = []  # of the open thinking block, for its signature

    # ── parts of an answer ───────────────────────────────────────────────────────────────────────

    @property
    def has_text(self) -> bool:
        """Whether visible text was written."""
        return self._prose["text"].written

    @property
    def in_call(self) -> bool:
        """Whether a tool_use block is open."""
        return self._kind == "tool_use"

    def text(self, text: str) -> None:
        """Visible text."""
        self._write("text", text)

    raw_text = example_text = text

    def text_if_more_follows(self, text: str) -> None:
        """Visible text that is dropped when no other text comes after it."""
        self._prose["text"].gap(text)

    def thinking(self, text: str) -> None:
        """Text of a thought."""
        self._write("thinking", text)

    def thinking_omitted(self, text: str) -> None:
        """Text of a thought whose block is sent without it."""
        if self._kind != "thinking" and not text.isspace():
            self._open("thinking", dict(EMPTY_BLOCKS["thinking"]))

    def call_started(self, name: str) -> None:
        """A tool_use block opens."""
        self._open("tool_use", {"type": "tool_use", "id": new_id("toolu"), "name": name, "input": {}})

    def call_json(self, partial: str) -> None:
        """The next part of the open call's input."""
        self._runs.append(partial)

    def call_stopped(self, complete: bool) -> None:
        """The open call ends."""
        self.calls += complete
        self._close()

    def close_thought(self) -> None:
        """The thought is over: its block ends, even if nothing follows."""
        if self._kind == "thinking":
            self._close()
        elif self._prose["thinking"].written:
            self._prose["thinking"].block_closed()

    # ── the message around them ──────────────────────────────────────────────────────────────────

    def start(self, input_tokens: int, cache_read_tokens: int = 0) -> None:
        """`message_start`. `input_tokens`: the prefilled ones, at least 1."""
        self._usage = {
            "input_tokens": max(input_tokens, 1), "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cache_read_tokens, "output_tokens": 0,
        }
        self._events.append({"type": "message_start", "message": self._message | {"usage": dict(self._usage)}})

    def finish(self, stop_reason: str, stop_sequence: str | None, output_tokens: int) -> None:
        """`message_delta` with the final usage, and `message_stop`."""
        self._close()
        delta = {"stop_reason": stop_reason, "stop_sequence": stop_sequence}
        self._events.append({"type": "message_delta", "delta": delta, "usage": self._usage | {"output_tokens": output_tokens}})
        self._events.append({"type": "message_stop"})

    def drain(self) -> list[Event]:
        """The events since the last call."""
        if self._runs:
            self._flush()
        events, self._events = self._events, []
        return events

    # ── blocks ───────────────────────────────────────────────────────────────────────────────────

    def _write(self, kind: str, text: str) -> None:
        prose = self._prose[kind]
        again = kind == "thinking" and prose.written and self._kind != kind
        text = prose.release(text, new_block=self._kind != kind)
        if not text:
            return
        if self._kind != kind:
            self._open(kind, dict(EMPTY_BLOCKS[kind]))
            if again and not text[0].isspace():
                text = "\n" + text  # clients join thoughts without a separator
        self._runs.append(text)

    def _open(self, kind: str, block: Event) -> None:
        self._close()
        for other in self._prose.keys() - {kind}:
            self._prose[other].block_closed()  # no mark moves behind what opens here
        self._index += 1
        self._kind = kind
        self._events.append({"type": "content_block_start", "index": self._index, "content_block": block})

    def _close(self) -> None:
        if not self._kind:
            return
        if self._runs:
            self._flush()
        if self._kind == "thinking":
            delta = {"type": "signature_delta", "signature": signature("".join(self._thought))}
            self._events.append({"type": "content_block_delta", "index": self._index, "delta": delta})
            self._thought.clear()
        if self._kind in self._prose:
            self._prose[self._kind].block_closed()
        self._events.append({"type": "content_block_stop", "index": self._index})
        self._kind = ""

    def _flush(self) -> None:
        text = "".join(self._runs)
        self._runs.clear()
        if self._kind == "thinking":
            self._thought.append(text)
        kind, key = DELTAS[self._kind]
        self._events.append({"type": "content_block_delta", "index": self._index, "delta": {"type": kind, key: text}})


def encode_event(event: Event) -> bytes:
    """One event for the wire (server-sent events). ASCII JSON, so that half a surrogate pair passes too."""
    return f"event: {event['type']}\ndata: {json.dumps(event, separators=(',', ':'))}\n\n".encode("ascii")


def fold(events: Iterable[Event]) -> Event:
    """The message that a stream of events adds up to. A call whose JSON was left unfinished is not in it."""
    message: Event = {}
    blocks: dict[int, Event] = {}
    parts: dict[int, dict[str, list[str]]] = {}
    for event in events:
        kind = event["type"]
        if kind == "message_start":
            message = dict(event["message"])
        elif kind == "content_block_start":
            blocks[event["index"]] = dict(event["content_block"])
            parts[event["index"]] = {}
        elif kind == "content_block_delta":
            for key, text in event["delta"].items():
                if key != "type":
                    parts[event["index"]].setdefault(key, []).append(text)
        elif kind == "message_delta":
            message |= event["delta"] | {"usage": message.get("usage", {}) | event["usage"]}
    joined = (_joined(block, {key: "".join(runs) for key, runs in parts[index].items()}) for index, block in blocks.items())
    return message | {"content": [block for block in joined if block is not None]}


def _joined(block: Event, texts: dict[str, str]) -> Event | None:
    partial: Any = texts.pop("partial_json", None)
    if block["type"] != "tool_use":
        return block | texts
    try:
        return block | {"input": json.loads(partial) if partial else {}}
    except ValueError:
        logger.info("an unfinished call of %s is not in the answer", block["name"])
        return None
