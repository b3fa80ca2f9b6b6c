"""Calls written as Python: LFM2, Llama 4, MiniCPM4.

    <|tool_call_start|>[edit(path='a b.py', text="it's [x](y), )]", opts={"k": [1, None]}), list_pages()]<|tool_call_end|>

Llama 4 has `<|python_start|>` marks or none: a bare list counts only as the first thing of an answer and for a
declared tool. MiniCPM4 writes one call a line, in a fence. JSON calls between the marks are read too, and JSON
spellings of values. A quote that was not escaped ends its string only where what follows can follow an argument.
Left out: expressions; a value is a literal.
"""
from __future__ import annotations

import re

from . import json_calls, json_text, python_text
from .call import CallBuilder, Calls
from .reader import EndOfText, NotACall, Reader, Reading

CLOSERS = {"<|tool_call_start|>": "<|tool_call_end|>", "<|python_start|>": "<|python_end|>"}
OPENERS = tuple(CLOSERS)
LINE_OPENERS = ("[",)
FENCES = ("```python", "```py", "```json", "```")

NAME = re.compile(r"[\w.\-:/]*")
KEY = re.compile(r"[\w\-]*")
SEPARATORS = re.compile(r"[\s,;]*")
STRAY = re.compile(r"[\s\])]*")


def parse(r: Reader, calls: Calls) -> Reading[None]:
    """One list or block of calls, from after its opener to after its closer."""
    if calls.opener in LINE_OPENERS:
        yield from _bare(r, calls)
        return
    closer = CLOSERS[calls.opener]
    yield from r.skip_space()
    if (yield from r.accept_closer(closer)):
        yield from _behind_content(r, calls)
        return
    fenced = yield from r.accept(*FENCES)
    ends = (closer, "```") if fenced else (closer,)
    yield from r.skip_space()
    ahead = yield from r.peek()
    if ahead == "[":
        ahead = (yield from _past_space(r, 1)) or ahead
    if ahead in ("{", "[") or ahead == '"':
        yield from json_calls.sequence(r, calls, ends)
    elif ahead == "]":
        r.take(1)  # an empty list: its end is a stray bracket
    else:
        yield from r.accept("[")
        yield from r.skip_space()
        yield from _sequence(r, calls, ends)
    after = r.offset
    yield from r.run(STRAY)
    if fenced:
        yield from r.accept("```")
        yield from r.skip_space()
    if not (yield from r.accept_closer(closer)) and (yield from r.peek()):
        r.rewind(after)


def _bare(r: Reader, calls: Calls) -> Reading[None]:
    """A list without marks, its bracket passed."""
    if calls.after_prose:
        raise NotACall("not the answer's first thing")
    yield from r.skip_space()
    yield from _sequence(r, calls, (), declared=True)
    after = r.offset
    yield from r.skip_space()
    if not (yield from r.accept("]")):
        r.rewind(after)


def _behind_content(r: Reader, calls: Calls) -> Reading[None]:
    """Llama 4 may write its JSON calls behind an empty pair of marks."""
    after = r.offset
    yield from r.skip_space()
    if (yield from r.peek()) == "{":
        yield from json_calls.sequence(r, calls)
    else:
        r.rewind(after)


def _past_space(r: Reader, ahead: int) -> Reading[str]:
    """The first character from `ahead` on that is not white space."""
    while (yield from r.need(ahead + 1)) and r.text[r.pos + ahead].isspace() and ahead < python_text.LOOK_AHEAD:
        ahead += 1
    return r.text[r.pos + ahead:r.pos + ahead + 1]


# ── calls ────────────────────────────────────────────────────────────────────────────────────────


def _sequence(r: Reader, calls: Calls, closers: tuple[str, ...], declared: bool = False) -> Reading[None]:
    """Calls up to the first thing that is none. `declared`: the first must be of a declared tool."""
    while True:
        name = yield from r.run(NAME)
        if not name or len(name) > json_text.KEY_LENGTH:
            raise NotACall("no name") if r.pos < len(r.text) else EndOfText()
        yield from r.skip_space()
        if (yield from r.peek()) != "(":
            raise NotACall("no arguments") if r.pos < len(r.text) else EndOfText(open=True)
        if declared and calls.current is None and not calls.tools.find(name):
            raise NotACall("not a declared tool")
        r.take(1)
        call = calls.open()
        call.name(name)
        yield from arguments(r, call, closers)
        call.done()
        after = r.offset
        yield from r.run(SEPARATORS)
        if not NAME.match((yield from r.peek()))[0]:
            r.rewind(after)
            return


def arguments(r: Reader, call: CallBuilder, closers: tuple[str, ...] = ()) -> Reading[None]:
    """The arguments of a call, its opening bracket passed, up to and with its closing one."""
    while True:
        yield from r.run(SEPARATORS)
        if (yield from r.accept(")")):
            return
        if not (yield from r.peek()) or (yield from _at_any(r, closers)):
            raise EndOfText()
        yield from r.accept("**")
        ahead = yield from r.peek()
        if ahead == "{":
            yield from json_calls.arguments(r, call, closers)
        elif ahead in "\"'[":
            yield from _value(r, call, "", closers)  # by position: it stands for the one key that is missing
        else:
            key = yield from _key(r, call)
            yield from _value(r, call, key, closers)


def _at_any(r: Reader, closers: tuple[str, ...]) -> Reading[bool]:
    for closer in closers:
        if (yield from r.at(closer)):
            return True
    return False


def _key(r: Reader, call: CallBuilder) -> Reading[str]:
    """The next key, its equals sign (or colon) passed. Python's own words and dashes come back as they were declared."""
    key = yield from r.run(KEY)
    yield from r.skip_space()
    if not key or len(key) > json_text.KEY_LENGTH or not (yield from r.accept("=", ":")):
        raise NotACall("no key") if r.pos < len(r.text) else EndOfText(open=True)
    yield from r.skip_space()
    spellings = (key, key.removesuffix("_"), key.replace("_", "-"))
    return next((spelling for spelling in spellings if call.declares(spelling)), key)


def _value(r: Reader, call: CallBuilder, key: str, closers: tuple[str, ...]) -> Reading[None]:
    """One argument. Text goes to the call as it comes."""
    if (yield from python_text.at_string(r)):
        call.begin(key, quoted=True)
        yield from python_text.string(r, call.text, closers)
        call.end()
    else:
        call.value(key, (yield from json_text.value(r, json_text.IN_OBJECT, closers)))
