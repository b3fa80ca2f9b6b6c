"""The `replay` command: raw model text in, the response out, one JSON object a line. It needs no model.

It is how a user reports a call that was not understood, and how the tests feed the parsers from outside. Thinking
is shown. A line that cannot be used prints `{"error": …}`, and the next one is read. Of a transcript, its `replay` is taken.
"""
from __future__ import annotations

import codecs
import json
import sys
from typing import Any, Iterable, Mapping, TextIO

from .protocol import Event, Tool
from .answer.streaming import ResponseStream, fold


def main(lines: Iterable[str], out: TextIO) -> int:
    """Answer every line until the input ends. Returns the exit status."""
    for line in lines:
        if not line.strip():
            continue
        try:
            answer = replay(json.loads(line))
        except (ValueError, RecursionError) as error:
            answer = {"error": str(error)}
        out.write(json.dumps(answer) + "\n")
        out.flush()
    return 0


def replay(given: Any) -> dict[str, Any]:
    """`{"message": …, "events": […]}` for one line. Raises ValueError naming the field that is wrong."""
    if not isinstance(given, Mapping):
        raise ValueError("a line must be a JSON object")
    given = _field(given, "replay", dict, given)
    pieces = _pieces(given)
    stream = ResponseStream(
        model=_field(given, "model", str, "replay"),
        tools=[_tool(tool, f"tools.{n}") for n, tool in enumerate(_field(given, "tools", list, []))],
        formats=[format_] if (format_ := _field(given, "format", str, "")) else [],
        opens_thinking=_field(given, "prompt_opens_thinking", bool, False),
        suppresses_thinking=_field(given, "prompt_suppresses_thinking", bool, False),
        stop_sequences=_strings(given, "stop_sequences"),
    )
    reason = _field(given, "finish_reason", str, "stop")
    if reason not in ("stop", "length", "cut"):
        raise ValueError("finish_reason: must be stop, length or cut")
    events: list[Event] = stream.start(1)
    fed = 0
    for piece in pieces:
        if stream.stopped:
            break
        events += stream.feed(piece)
        fed += 1
    events += stream.finish(reason, fed)
    return {"message": fold(events), "events": events}


def _pieces(given: Mapping[str, Any]) -> list[str]:
    """The text in the pieces it came in. Bytes are decoded as they come: a character may lie in two pieces."""
    if "byte_chunks_hex" in given:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        try:
            pieces = [decoder.decode(bytes.fromhex(piece)) for piece in _strings(given, "byte_chunks_hex")]
        except ValueError as error:
            raise ValueError("byte_chunks_hex: must be hexadecimal") from error
        return [*pieces, decoder.decode(b"", final=True)]
    if "chunks" in given:
        return _strings(given, "chunks")
    if "text" in given:
        return [_field(given, "text", str, "")]
    raise ValueError("text: one of text, chunks, byte_chunks_hex is needed")


def _tool(given: Any, where: str) -> Tool:
    if not isinstance(given, Mapping) or not isinstance(given.get("name"), str):
        raise ValueError(f"{where}.name: must be a string")
    schema = given.get("input_schema")
    if schema is not None and not isinstance(schema, Mapping):
        raise ValueError(f"{where}.input_schema: must be an object")
    return Tool(name=given["name"], input_schema=schema or {})


def _field(given: Mapping[str, Any], key: str, kind: type, default: Any) -> Any:
    value = given.get(key)
    if value is None:
        return default
    if not isinstance(value, kind):
        raise ValueError(f"{key}: must be of type {kind.__name__}")
    return value


def _strings(given: Mapping[str, Any], key: str) -> list[str]:
    values = _field(given, key, list, [])
    if not all(isinstance(value, str) for value in values):
        raise ValueError(f"{key}: must hold strings only")
    return values


if __name__ == "__main__":
    sys.exit(main(sys.stdin, sys.stdout))
