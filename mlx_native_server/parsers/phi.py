"""Phi-4-mini's habit: a list of calls behind a word.

    functools[{"name": "Read", "arguments": {"file_path": "/a/b.txt"}}]

Its template's own form, `<|tool_call|>` tags, is read by `json_tags`.
"""
from __future__ import annotations

from . import json_calls
from .call import Calls
from .reader import Reader, Reading

OPENERS = ()
LINE_OPENERS = ("functools[",)


def parse(r: Reader, calls: Calls) -> Reading[None]:
    """The list, its bracket passed."""
    r.rewind(r.offset - 1)
    yield from json_calls.sequence(r, calls)
