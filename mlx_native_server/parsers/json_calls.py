"""A call written as a JSON object, which several dialects wrap: `{"name": "Read", "arguments": {"file_path": "/a"}}`.

Read here: the usual other spellings of the two keys, OpenAI's nesting under `function` and the like, arguments given as JSON
in a string, arguments before the name, a list of calls, calls one after the other.
Left out: objects that name no tool, and arguments that lie beside the name.
"""
from __future__ import annotations

import re
from typing import Any

from . import json_text
from .call import CallBuilder, Calls
from .reader import EndOfText, NotACall, Reader, Reading

NAME_KEYS = frozenset(["name", "tool", "tool_name", "function_name", "function"])
ARGUMENT_KEYS = frozenset(["arguments", "parameters", "args", "input", "params"])
WRAPPERS = frozenset(["function", "function_call", "tool_call"])
ID_LENGTH = 64
SEPARATORS = re.compile(r"[\s,;]*")


def sequence(r: Reader, calls: Calls, closers: tuple[str, ...] = ()) -> Reading[None]:
    """One or more call objects, or lists of them, up to the first thing that is neither."""
    yield from r.skip_space()
    if (yield from r.peek()) not in ("{", "["):
        raise NotACall("no JSON") if r.pos < len(r.text) else EndOfText()
    depth = 0  # of lists
    while True:
        ahead = yield from r.peek()
        if ahead == "{":
            yield from call_object(r, calls, closers)
        elif ahead == "[" and calls.current is None:
            r.take(1)
            depth += 1
        elif ahead == "]" and depth:
            r.take(1)
            depth -= 1
        elif calls.current is None:
            raise NotACall("an empty list, or one of something else")
        else:
            return
        at = r.offset
        yield from r.run(SEPARATORS)
        ahead = yield from r.peek()
        if ahead != "{" and not depth or calls.current is not None and ahead not in ("{", "]"):
            r.rewind(at)  # what stands behind the calls is the answer's
            return


def call_object(r: Reader, calls: Calls, closers: tuple[str, ...] = ()) -> Reading[None]:
    """One call object, its opening brace next."""
    call = calls.open()
    yield from _members(r, call, closers)
    call.done()


def _members(r: Reader, call: CallBuilder, closers: tuple[str, ...], nested: bool = False) -> Reading[None]:
    yield from json_text.open_container(r, "{")
    named = False
    early: Any = None  # arguments that came before the name
    while (key := (yield from json_text.next_key(r, closers))) is not None:
        ahead = yield from r.peek()
        if key in NAME_KEYS and not named and ahead in ("\"", "'"):
            call.name((yield from json_text.text(r, limit=json_text.KEY_LENGTH)))
            named = True
            if early is not None:
                _give(call, early)
        elif key in WRAPPERS and not named and not nested and ahead == "{":
            yield from _members(r, call, closers, nested=True)
            named = True
        elif key in ARGUMENT_KEYS and named and ahead == "{":
            yield from arguments(r, call, closers)
            call.done()
        elif key in ARGUMENT_KEYS:
            early = yield from _whole_arguments(r, closers)
            if named:
                _give(call, early)
        elif call.finished and ahead in ("\"", "'"):  # an id, or an open string that must not take the rest of the answer
            yield from json_text.text(r, json_text.IN_OBJECT, ID_LENGTH, closers)
        else:
            yield from json_text.value(r, json_text.IN_OBJECT, closers)
    if not named:
        raise NotACall("no tool name")


def arguments(r: Reader, call: CallBuilder, closers: tuple[str, ...] = ()) -> Reading[None]:
    """The members of an arguments object, its opening brace next."""
    yield from json_text.open_container(r, "{")
    while (key := (yield from json_text.next_key(r, closers))) is not None:
        if (yield from r.peek()) in ("\"", "'"):
            call.begin(key, quoted=True)
            yield from json_text.string(r, call.text, json_text.IN_OBJECT, closers)
            call.end()
        else:
            call.value(key, (yield from json_text.value(r, json_text.IN_OBJECT, closers)))


def body(r: Reader, call: CallBuilder, closers: tuple[str, ...] = ()) -> Reading[None]:
    """The arguments of a call whose name the dialect writes elsewhere: an object, or JSON in a string."""
    yield from r.skip_space()
    if (yield from r.peek()) in ("\"", "'"):
        _give(call, (yield from _whole_arguments(r, closers)))
    else:
        yield from arguments(r, call, closers)


def _whole_arguments(r: Reader, closers: tuple[str, ...]) -> Reading[dict[str, Any]]:
    """Arguments that are not streamed: before the name, or JSON in a string."""
    written = json_text.plain((yield from json_text.value(r, json_text.IN_OBJECT, closers)))
    if isinstance(written, str) and written.strip():
        try:
            written = json_text.parse(written)
        except ValueError as error:
            raise NotACall("arguments are no object") from error
    if not isinstance(written, dict) and written not in (None, "", []):
        raise NotACall("arguments are no object")
    return written or {}


def _give(call: CallBuilder, whole: dict[str, Any]) -> None:
    for key, value in whole.items():
        call.value(key, value)
    call.done()
