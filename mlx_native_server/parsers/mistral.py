"""Mistral, Ministral, Devstral: calls behind one marker.

    [TOOL_CALLS]Edit[ARGS]{"path": "a b.py", "n": 3}[TOOL_CALLS]list_pages[ARGS]{}
    [TOOL_CALLS][{"name": "Edit", "arguments": {"path": "a b.py"}, "id": "k3Jd9sLq2"}]

The first form since v11 (there with `[CALL_ID]k3Jd9sLq2` before `[ARGS]`), the list before it. Read too: `[ARGS]`
left out. A call ends where its JSON ends; what follows is the answer's text.
"""
from __future__ import annotations

import re

from . import json_calls
from .call import Calls
from .reader import EndOfText, NotACall, Reader, Reading

MARK, CLOSER = "[TOOL_CALLS]", "[/TOOL_CALLS]"
OPENERS = (MARK,)
ENDS = (MARK, CLOSER, "</s>")
NAME = re.compile(r"[\w.:/\-]*")


def parse(r: Reader, calls: Calls) -> Reading[None]:
    """One call, or one list of them, from after the marker on."""
    yield from r.skip_space()
    while (yield from r.accept(MARK)):
        yield from r.skip_space()
    if (yield from r.peek()) in ("[", "{"):
        yield from json_calls.sequence(r, calls, ENDS)
    else:
        yield from _call(r, calls)
    after = r.offset
    yield from r.skip_space()
    if not (yield from r.accept(CLOSER)):
        r.rewind(after)


def _call(r: Reader, calls: Calls) -> Reading[None]:
    name = yield from r.run(NAME)
    yield from r.skip_space()
    if (yield from r.accept("[CALL_ID]")):
        yield from r.run(NAME)
    if not (yield from r.accept("[ARGS]")) and (yield from r.peek()) != "{":
        raise NotACall("no arguments") if r.pos < len(r.text) else EndOfText(open=True)
    call = calls.open()
    call.name(name)
    yield from json_calls.body(r, call, ENDS)
    call.done()
