"""Transcripts: for each request a file with what the client asked, what the model read and wrote, and what was answered.

A file is one line of JSON. `render` and `replay` take it as it is: the first reads its `request` and `headers`, the second
its `replay`, which is what the model wrote first. It has prompts, but no keys: of the headers only those in `HEADERS`.
It is written when the request has ended, however it did. A disk that fails costs the file, not the answer.
"""
from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

from ..answer.streaming import ResponseStream, fold
from ..protocol import ApiError, Encoded, Event

logger = logging.getLogger(__name__)

HEADERS = ("user-agent", "anthropic-beta", "x-claude-code-session-id", "x-claude-code-agent-id")

Events = Generator[Event | None, None, None]


class Transcripts:
    """The folder, which is made for its owner alone where there is none."""

    def __init__(self, folder: str):
        self._folder = folder
        self._failed = False

    def begin(self, request_id: str, raw: bytes, headers: Mapping[str, str]) -> "Transcript":
        """For a request that has come. `headers`: by their lower-case names."""
        kept = {name: headers[name] for name in HEADERS if name in headers}
        return Transcript(self, {"id": request_id, "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "headers": kept, "request": _json(raw)})

    def write(self, entry: Mapping[str, Any]) -> None:
        """One file, which is there as a whole or not at all. That it cannot be written is logged once."""
        try:
            folder = Path(self._folder).expanduser()
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write(folder / f"{time.strftime('%Y-%m-%d-%H%M%S')}-{entry['id']}.json", json.dumps(entry))
        except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: `~` of a user that does not exist
            if not self._failed:
                logger.warning("transcripts cannot be written: %s", error)
            self._failed = True
        else:
            self._failed = False


class Transcript:
    """One request, as far as it has come. For the handler's thread."""

    def __init__(self, owner: Transcripts, entry: dict[str, Any]):
        self._owner, self._entry, self._begun_s = owner, entry, time.monotonic()

    def refused(self, error: ApiError) -> None:
        """The request has ended before its answer began."""
        self._write("refused", error)

    def followed(self, events: Events, encoded: Encoded) -> Events:
        """The same events. At their end, or when they are closed, the transcript is written."""
        self._entry |= {"prompt": encoded.text, "prompt_tokens": len(encoded.tokens)}
        following = self._follow(events)
        next(following)  # into its `try`, as in `respond`
        return following

    def _follow(self, events: Events) -> Events:
        sent: list[Event] = []
        ended, error = "failed", None
        try:
            yield None
            for event in events:
                if event is not None:
                    sent.append(event)
                yield event
            ended = "complete"
        except GeneratorExit:
            ended = "cancelled"
            raise
        except ApiError as failure:
            error = failure
            raise
        finally:
            events.close()
            self._entry["response"] = fold(sent) if sent else None
            self._write(ended, error)

    def stream(self, **options: Any) -> ResponseStream:
        """A `ResponseStream` whose texts are noted."""
        tools = [{"name": tool.name, "input_schema": tool.input_schema} for tool in options["tools"]]
        self._entry["replay"] = {
            "model": options["model"], "chunks": [], "tools": tools, "format": next(iter(options["formats"]), ""),
            "prompt_opens_thinking": options["opens_thinking"], "prompt_suppresses_thinking": options["suppresses_thinking"],
            "stop_sequences": list(options["stop_sequences"]), "finish_reason": "cut"}  # fmt: skip
        self._entry["second_attempts"] = []
        return NotedStream(self._entry["replay"], self._entry["second_attempts"], **options)

    def _write(self, ended: str, error: ApiError | None) -> None:
        seconds = round(time.monotonic() - self._begun_s, 3)
        self._owner.write(self._entry | {"ended": ended, "seconds": seconds, "error": error and error.body()["error"]})


class NotedStream(ResponseStream):
    """Notes the model's first text for `replay`, and the texts of second attempts."""

    def __init__(self, first: dict[str, Any], others: list[list[str]], **options: Any):
        self._first, self._others, self._chunks = first, others, first["chunks"]
        self._chunks += filter(None, [options["opening"]])
        super().__init__(**options)

    def feed(self, text: str) -> list[Event]:
        self._chunks.append(text)
        return super().feed(text)

    def end(self, reason: str) -> list[Event]:
        if not self._others:
            self._first["finish_reason"] = reason
        return super().end(reason)

    def again(self, opening: str = "") -> None:
        self._chunks = [*filter(None, [opening])]
        self._others.append(self._chunks)
        super().again(opening)


def _json(raw: bytes) -> Any:
    """The body, as text where it is no JSON."""
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return raw.decode("utf-8", "replace")


def _write(path: Path, line: str) -> None:
    part = path.with_suffix(".part")
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(line + "\n")
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
