"""How fast each dialect's text becomes events, and whether the time grows with the length alone.

A Write call whose `content` is one long string is fed in pieces of four characters, as a model's tokens come, and whole.
Prints one Markdown table: throughput, the slope of log time over log size (1 is linear), and the most characters of the
string that were fed without any event. The time is the process's own, so that other programs do not count. It needs
neither MLX nor a model.
"""
from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import paths  # noqa: F401  (the import path)
import dialect_writers
from mlx_native_server.protocol import Event, Tool
from mlx_native_server.answer.streaming import ResponseStream, fold
from tables import machine, markdown

PIECE_CHARS = 4
SEED = 3
"""Of the writers: with it each writes the usual form of its dialect."""
REPEATS = 3
"""Runs of the sizes up to a tenth of the largest; the quickest one counts."""
WRITE = Tool("Write", "Writes a file.", {
    "type": "object", "properties": {"file_path": {"type": "string"}, "content": {"type": "string"}}, "required": ["file_path", "content"]})

LINES = (
    "def handle(request: Request, limit: int = 10) -> dict[str, object]:\n",
    '    """Answers a request; see https://example.org/a?b=1&c=<d>."""\n',
    "    if request.path in ('/', '/index.html') and not request.body:\n",
    '        return {"status": 200, "headers": {"x-name": "a \\"b\\" c"}, "items": [1, 2.5, null, true]}\n',
    "    total = sum(item.price * item.count for item in request.items)  # 10 % of it: größer als 5 €\n",
    "    text = f\"{total:>10.2f}\\n\" + '\\t'.join(map(str, range(limit)))\n",
    "\n",
)

Writer = Callable[[random.Random, str, dict[str, object]], str]


def as_json_tags(rng: random.Random, name: str, given: dict[str, object]) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': given}, ensure_ascii=False)}\n</tool_call>"


def as_gemma4(rng: random.Random, name: str, given: dict[str, object]) -> str:
    arguments = ",".join(f'{key}:<|"|>{value}<|"|>' for key, value in given.items())
    return f"<|tool_call>call:{name}{{{arguments}}}<tool_call|>"


WRITERS: dict[str, Writer] = {
    name.removeprefix("as_"): writer for name, writer in {"as_json_tags": as_json_tags, "as_gemma4": as_gemma4, **vars(dialect_writers)}.items()
    if name.startswith("as_")}
"""One for each dialect: all functions of this name here and in the tests."""


@dataclass
class Measured:
    """One dialect: seconds by size, for both ways to feed; `silent_chars`: see the module."""

    name: str
    pieces_s: dict[int, float] = field(default_factory=dict)
    whole_s: dict[int, float] = field(default_factory=dict)
    silent_chars: int = 0
    understood: bool = True


def content(size_chars: int) -> str:
    """Source code of this many characters, with the delimiters that source code has."""
    text = "".join(LINES)
    return (text * (size_chars // len(text) + 1))[:size_chars]


def measure(name: str, writer: Writer, sizes: Sequence[int]) -> Measured:
    """Feed the call that `writer` writes, in every size and both ways."""
    measured = Measured(name)
    for size in sizes:
        given = {"file_path": "/home/user/project/src/handler.py", "content": content(size)}
        text = writer(random.Random(SEED), WRITE.name, given)
        pieces = [text[at:at + PIECE_CHARS] for at in range(0, len(text), PIECE_CHARS)]
        times = REPEATS if size * 10 <= max(sizes) else 1
        measured.pieces_s[size] = min(feed_s(pieces) for _ in range(times))
        measured.whole_s[size] = min(feed_s([text]) for _ in range(times))
        batches = feed(pieces)
        measured.silent_chars = max(measured.silent_chars, silent_chars(batches))
        measured.understood &= calls(batches) == [(WRITE.name, given)] == calls(feed([text]))
    return measured


def feed(pieces: Sequence[str]) -> list[list[Event]]:
    """The events of an answer: those of its start, of each piece, and of its end."""
    stream = ResponseStream(model="m", tools=[WRITE])
    return [stream.start(1), *map(stream.feed, pieces), stream.finish("stop", len(pieces))]


def feed_s(pieces: Sequence[str]) -> float:
    """Seconds of processor time that this takes when nobody keeps the events."""
    begun_s = time.process_time()
    stream = ResponseStream(model="m", tools=[WRITE])
    stream.start(1)
    for piece in pieces:
        stream.feed(piece)
    stream.finish("stop", len(pieces))
    return time.process_time() - begun_s


def calls(batches: Sequence[Sequence[Event]]) -> list[tuple[str, dict[str, object]]]:
    """The calls that a client reads from the events."""
    message = fold([event for batch in batches for event in batch])
    return [(block["name"], block["input"]) for block in message["content"] if block["type"] == "tool_use"]


def silent_chars(batches: Sequence[Sequence[Event]]) -> int:
    """The most characters fed between two events of the call's input, the first and the last of those included."""
    live = [index for index, batch in enumerate(batches) if any(event.get("delta", {}).get("type") == "input_json_delta" for event in batch)]
    return PIECE_CHARS * max((after - before for before, after in zip(live, live[1:])), default=len(batches))


def slope(seconds_by_size: dict[int, float]) -> float:
    """The least-squares slope of log time over log size; NaN for fewer than two sizes."""
    points = [(math.log(size), math.log(max(taken_s, 1e-9))) for size, taken_s in seconds_by_size.items()]
    middle_x, middle_y = (sum(values) / len(points) for values in zip(*points))
    spread = sum((x - middle_x) ** 2 for x, _ in points)
    return sum((x - middle_x) * (y - middle_y) for x, y in points) / spread if spread else math.nan


# ── the table ────────────────────────────────────────────────────────────────────────────────────


def table(measured: Sequence[Measured]) -> str:
    """One row for each dialect."""
    head = ["dialect", f"{PIECE_CHARS}-character pieces, MB/s", "slope", "whole, MB/s", "slope", "longest silence in a string, characters"]
    return markdown(head, [_row(each) for each in measured])


def _row(measured: Measured) -> list[str]:
    if not measured.understood:
        return [measured.name, "not understood", "", "", "", ""]
    cells = [cell for times_s in (measured.pieces_s, measured.whole_s) for cell in (f"{_rate(times_s):.2f}", f"{slope(times_s):.2f}")]
    return [measured.name, *cells, str(measured.silent_chars)]


def _rate(times_s: dict[int, float]) -> float:
    """Millions of characters per second at the largest size."""
    size = max(times_s)
    return size / max(times_s[size], 1e-9) / 1e6


def main(argv: Sequence[str] | None = None) -> int:
    """Measure every dialect, and print the table."""
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--sizes", type=lambda text: [int(size) for size in text.split(",")], default=[10_000, 100_000, 1_000_000],
                     help="characters of the string, one or more sizes (default 10000,100000,1000000)")
    top.add_argument("--only", default="", help="only dialects whose name contains this")
    options = top.parse_args(argv)
    measured = []
    for name, writer in WRITERS.items():
        if options.only in name:
            print(name, file=sys.stderr, flush=True)
            measured.append(measure(name, writer, options.sizes))
    print(f"{machine()}; string of {max(options.sizes):,} characters, slope from {min(options.sizes):,}\n\n{table(measured)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
