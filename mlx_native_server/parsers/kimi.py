"""Kimi K2: the call's id holds its name.

    <|tool_calls_section_begin|><|tool_call_begin|>functions.Edit:0<|tool_call_argument_begin|>{"path": "a b.py"}
    <|tool_call_end|><|tool_calls_section_end|>

Read too: the singular section marks, a call without a section, ids like `Edit:0`, `functions_Edit_0` and
`functionsEdit0`, and ids without a name (`0`, `call_9f2`): then the name stands in the JSON, or the arguments fit
exactly one tool.
"""
from __future__ import annotations

import re
from typing import Any, Iterator

from . import json_calls, json_text, sections
from .call import CallBuilder, Calls
from .reader import EndOfText, NotACall, Reader, Reading

MARKS = sections.Marks(
    ("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>"), ("<|tool_calls_section_end|>", "<|tool_call_section_end|>"),
    ("<|tool_call_begin|>",), ("<|tool_call_end|>",),
)
OPENERS = MARKS.openers
ARGUMENTS = "<|tool_call_argument_begin|>"

ID = re.compile(r"[^\s<{]*")
NAMELESS = re.compile(r"\d*|(call|toolu|chatcmpl|tool)[\w\-]*\d[\w\-]*|[0-9a-f\-]{8,}")
PREFIX = re.compile(r"functions[._:]?")
COUNT = re.compile(r"[:_]?\d+\Z")


def parse(r: Reader, calls: Calls) -> Reading[None]:
    """A section, or a call without one."""
    yield from sections.parse(r, calls, MARKS, _call)


def _call(r: Reader, calls: Calls) -> Reading[None]:
    yield from r.skip_space()
    written = yield from r.run(ID)
    yield from r.skip_space()
    marked = yield from r.accept(ARGUMENTS)
    if not marked and (yield from r.peek()) != "{":
        raise NotACall("no arguments") if r.pos < len(r.text) else EndOfText(open=True)
    call = calls.open()
    name = next((name for name in _names(written) if calls.tools.find(name)), None)
    yield from r.skip_space()
    if name is None and NAMELESS.fullmatch(written):
        yield from _nameless(r, calls, call, written)
    else:
        call.name(name or written)
        if not (yield from r.at(MARKS.call_ends[0])):
            yield from json_calls.body(r, call, MARKS.ends)
    call.done()


def _names(written: str) -> Iterator[str]:
    """What the id may name, what changes it least first."""
    counted = COUNT.sub("", written)
    yield from (counted, written) if ":" in written else (written, counted)
    yield PREFIX.sub("", written, count=1)
    yield PREFIX.sub("", counted, count=1)


def _nameless(r: Reader, calls: Calls, call: CallBuilder, written: str) -> Reading[None]:
    """A call whose id names no tool. Where nothing else does, it stays text."""
    given: Any = json_text.plain((yield from json_text.value(r, json_text.IN_OBJECT, MARKS.ends)))
    if not isinstance(given, dict):
        raise NotACall("arguments are no object")
    name = given.get("name")
    if isinstance(name, str) and isinstance(given.get("arguments"), dict) and calls.tools.find(name):
        given = given["arguments"]
    else:
        name = calls.tools.only_fit(given)
    call.name(name or written or "?")
    for key, value in given.items():
        call.value(key, value)
