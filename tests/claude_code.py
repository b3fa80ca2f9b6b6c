"""Requests of Claude Code's in their measured shape (`cases/claude_code.jsonl`), for the tests of what is made of them.

Long prose is kept as its first words and its length; here it grows again, so that sizes are as they were and equal texts
are equal. The file's first line holds the tools, which the requests name by their number.
"""
from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from mlx_native_server.protocol import Request
from mlx_native_server.prompt.request import parse_request

_WORDS = "water stone paper garden window yellow north mountain simple general number container another beginning direction surface".split()


@dataclass(frozen=True)
class Sent:
    """One request: `name` begins with its number, `headers` are those that the server looks at."""

    name: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    def parsed(self, **changed: Any) -> Request:
        """The request, some fields of its body changed."""
        return parse_request(self.body | changed, self.headers, 8192, counting=self.path.endswith("count_tokens"))


@cache
def sent() -> dict[str, Sent]:
    """All requests by their number (`"01"`)."""
    first, *lines = (Path(__file__).parent / "cases" / "claude_code.jsonl").read_text(encoding="utf-8").splitlines()
    tools = [_grown(tool) for tool in json.loads(first)["tools"]]
    found = {}
    for row in map(json.loads, lines):
        body = _grown(row["body"])
        if "tools" in body:
            body["tools"] = [tools[n] for n in body["tools"]]
        found[row["name"][:2]] = Sent(row["name"], row["path"], row["headers"], body)
    return found


def turns(request: Sent) -> Iterator[list[dict[str, Any]]]:
    """The messages of the requests that led to this one, each what the client knew before an answer, and its own."""
    messages = request.body["messages"]
    for n, message in enumerate(messages):
        if n and message["role"] == "assistant":
            yield messages[:n]
    yield messages


def _grown(value: Any) -> Any:
    if isinstance(value, list):
        return [_grown(item) for item in value]
    if isinstance(value, dict):
        if "$start" in value:
            return _filler(value["$start"], value["chars"]) + value.get("end", "")
        return {key: _grown(item) for key, item in value.items()}
    return value


def _filler(start: str, chars: int) -> str:
    rng, text = random.Random(start), start
    while len(text) < chars:
        lines = (" ".join(rng.choices(_WORDS, k=rng.randint(8, 16))) for _ in range(rng.randint(1, 4)))
        text += "\n\n- " + ".\n".join(lines)
    return text[:chars]
