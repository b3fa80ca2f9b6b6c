"""Phi-4-mini's habit: a list of calls behind a word.

    functools[{"name": "Read", "arguments": {"file_path": "/a/b.txt"}}]

Its template's own form, `<|tool_call|>` tags, is read by `json_tags`.
"""
from __future__ import annotations

from . import json_calls
from .call import Calls
from .reader import NotACall, Reader, Reading

OPENERS = ()
LINE_OPENERS = ("functools[",)


def parse(r: Reader, calls: Calls) -> Reading[None]:
    """The list, its bracket passed."""
    bracket = r.offset - 1
    yield from r.skip_space()
    if (yield from r.peek()) != "{":
        raise NotACall("no list of objects")
    r.rewind(bracket)
    yield from json_calls.sequence(r, calls)
