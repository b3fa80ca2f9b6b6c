"""Llama 3.1, 3.2, 3.3: calls behind the python tag, or in the middle of a line.

    <|python_tag|>{"name": "Glob", "parameters": {"pattern": "*.c"}}; {"name": "Bash", "parameters": {"command": "ls"}}
    <|python_tag|>brave_search.call(query="mlx")

The usual form has no mark at all: `bare_json` reads it. Here only what begins with the tag, and `{"type": "function"`
within a line, which counts as a call if it ends the answer. A tag before plain code is dropped where it begins the
answer; named within a sentence it is a word.
"""
from __future__ import annotations

import re

from . import bare_json, json_calls, pythonic
from .call import Calls
from .reader import NotACall, Reader, Reading

TAG = "<|python_tag|>"
OPENERS = (TAG, '{"type": "function"', '{"type":"function"')

NAME = re.compile(r"[\w.:\-/]*")
NAME_LENGTH = 256
BUILTIN = ".call"
ENDS = ("<|eom_id|>", "<|eot_id|>", TAG)


def parse(r: Reader, calls: Calls) -> Reading[None]:
    """What stands behind the tag, or an object in the middle of a line."""
    if calls.opener != TAG:
        yield from bare_json.parse(r, calls)
        return
    while (yield from r.accept(TAG)):
        pass
    after = r.offset
    yield from r.skip_space()
    if (yield from _json_follows(r)):
        yield from json_calls.sequence(r, calls)
        return
    name = yield from r.run(NAME)
    tool = name.removesuffix(BUILTIN)
    yield from r.skip_space()
    if (tool != name or calls.tools.find(name)) and len(name) <= NAME_LENGTH and (yield from r.accept("(")):
        call = calls.open()
        call.name(tool)
        yield from pythonic.arguments(r, call, ENDS)
        call.done()
        return
    if calls.after_prose:
        raise NotACall("a word")
    r.rewind(after)


def _json_follows(r: Reader) -> Reading[bool]:
    """Whether an object or a list of objects comes next, not a list of Python calls."""
    if (yield from r.peek()) != "[":
        return (yield from r.peek()) == "{"
    start = r.offset
    r.take(1)
    yield from r.skip_space()
    ahead = yield from r.peek()
    r.rewind(start)
    return ahead == "{"
