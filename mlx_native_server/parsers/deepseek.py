"""DeepSeek V3, R1, V3.1.

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>Edit<｜tool▁sep｜>{"path": "a b.py"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>

V3 and R1 put the type before the separator, and the arguments in a fence: `function<｜tool▁sep｜>Edit`, a newline,
then a block of ```json. The distilled models spell the marks of the section in several ways.
Left out: the tags of V3.2 and later, which are another dialect.
"""
from __future__ import annotations

import re

from . import json_calls, sections
from .call import Calls
from .reader import EndOfText, NotACall, Reader, Reading

MARKS = sections.Marks(
    ("<｜tool▁calls▁begin｜>", "<｜tool_calls_begin｜>", "<｜tool calls begin｜>", "<｜tool▁calls｜>"), ("<｜tool▁calls▁end｜>",),
    ("<｜tool▁call▁begin｜>",), ("<｜tool▁call▁end｜>",),
)
OPENERS = MARKS.openers
SEPARATOR = "<｜tool▁sep｜>"
FENCE = "```"
WORD = re.compile(r"[^\s<{`]*")


def parse(r: Reader, calls: Calls) -> Reading[None]:
    """A section, or a call without one."""
    yield from sections.parse(r, calls, MARKS, _call)


def _call(r: Reader, calls: Calls) -> Reading[None]:
    yield from r.skip_space()
    before = yield from r.run(WORD)
    if not (yield from r.accept(SEPARATOR)):
        raise NotACall("no separator") if r.pos < len(r.text) else EndOfText(open=True)
    name = (yield from r.run(WORD)) or before
    if not (yield from r.peek()):
        raise EndOfText(open=True)
    call = calls.open()
    call.name(name)
    yield from r.skip_space()
    fenced = yield from r.accept(f"{FENCE}json", FENCE)
    yield from r.skip_space()
    if not (yield from r.at(MARKS.call_ends[0])):
        yield from json_calls.body(r, call, MARKS.ends + ((FENCE,) if fenced else ()))
    call.done()
    if fenced:
        yield from r.skip_space()
        yield from r.accept_closer(FENCE)
