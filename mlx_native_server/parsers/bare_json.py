"""Calls as JSON without marks, bare or in a fence: Llama 3, Qwen2.5-Coder, and most small models.

    {"name": "Read", "parameters": {"file_path": "/a/b.txt"}}

Such an object may as well be the answer's content. It can only be a call if it begins with the keys of one and names
a declared tool; all else is text at once. As the answer's first thing it is then a call, read live. Behind visible
text it is one if it is the answer's last thing and neither it nor the words before look like an example; until
that is known it is held. Several in a row, lists and fences with any label count alike.
"""
from __future__ import annotations

import re
from typing import Any

from . import json_calls, json_tags, json_text
from .call import Calls, Recording
from .reader import EndOfText, NotACall, Reader, Reading
from .schema import Tools

LINE_OPENERS = ("{", "[", "```", "~~~")
OPENERS = ()

LABEL = re.compile(r"[\w+.\-]*")
LABEL_LENGTH = 30
FENCES = {"`": re.compile(r"`*"), "~": re.compile(r"~*")}
SEPARATORS = re.compile(r"[\s,;]*")
LIST_KEY = '"tool_calls"'
ID_KEYS = frozenset(["id", "call_id", "tool_call_id", "index"])
KINDS = frozenset(["function", "tool", "tool_call", "tool_use", "function_call", "call"])

PLACEHOLDER = re.compile(r"\.{3}|…|string|str|number|integer|int|boolean|bool|object|array|value|any", re.IGNORECASE)


def parse(r: Reader, calls: Calls) -> Reading[None]:
    """One or more calls in a row, the opener included."""
    r.rewind(calls.settled)
    if calls.after_prose:
        yield from held(r, calls)
        return
    try:
        yield from block(r, calls)
    except NotACall:
        if calls.current is None or calls.committed:
            raise
        calls.give_back()  # it began like a call: nothing inside it is another


# ── one block ────────────────────────────────────────────────────────────────────────────────────


def block(r: Reader, calls: Calls) -> Reading[None]:
    """Objects in a row, a list of them, or a fence with either."""
    ahead = yield from r.peek()
    fence = (yield from r.run(FENCES[ahead])) if ahead in FENCES else ""
    if fence:
        yield from r.skip_space()
        label = yield from r.run(LABEL)
        if len(fence) < 3 or len(label) > LABEL_LENGTH:
            raise NotACall("no fence")
        yield from r.skip_space()
    try:
        yield from _list(r, calls, (fence,) if fence else ())
    except EndOfText as end:
        if end.open or r.pos >= len(r.text):
            raise
        calls.current.done()  # brackets are missing before the fence's end
    if fence:
        after = r.offset
        yield from r.skip_space()
        if len((yield from r.run(FENCES[fence[0]]))) < len(fence):
            r.rewind(after)


def _list(r: Reader, calls: Calls, closers: tuple[str, ...]) -> Reading[None]:
    ends = yield from _open_list(r)
    yield from r.skip_space()
    yield from _expect_call(r, calls.tools)
    while True:
        yield from json_calls.call_object(r, calls, closers)
        after = r.offset
        yield from r.run(SEPARATORS)
        if (yield from r.peek()) != "{" or not (yield from _is_call(r, calls.tools)):
            break
    if not (ends and (yield from r.accept(ends[0]))):
        r.rewind(after)
        return
    for end in ends[1:]:
        yield from r.skip_space()
        yield from r.accept(end)


def _open_list(r: Reader) -> Reading[str]:
    """Pass the beginning of a list, bare or under OpenAI's key. Returns the brackets that end it, "" for none."""
    if (yield from r.accept("[")):
        return "]"
    start = r.offset
    if (yield from r.accept("{")):
        yield from r.skip_space()
        if (yield from r.accept(LIST_KEY)):
            yield from r.skip_space()
            if (yield from r.accept(":")):
                yield from r.skip_space()
                if (yield from r.accept("[")):
                    return "]}"
    r.rewind(start)
    return ""


def _is_call(r: Reader, tools: Tools) -> Reading[bool]:
    try:
        yield from _expect_call(r, tools)
    except NotACall:
        return False
    return True


def _expect_call(r: Reader, tools: Tools) -> Reading[None]:
    """The object that comes next begins like a call of a declared tool; the position stays. Else NotACall."""
    start = r.offset
    try:
        yield from _head(r, tools)
    except EndOfText as end:
        raise NotACall("it ends before it is a call") from end
    finally:
        r.rewind(start)


def _head(r: Reader, tools: Tools, nested: bool = False) -> Reading[None]:
    """Read on until it is clear that a call begins: up to its arguments, or to its name if they come first."""
    yield from json_text.open_container(r, "{")
    named = given = False
    while (key := (yield from json_text.next_key(r))) is not None:
        ahead = yield from r.peek()
        if key in json_calls.NAME_KEYS and ahead in ("\"", "'") and not named:
            if not tools.find((yield from json_text.text(r, limit=json_text.KEY_LENGTH))):
                raise NotACall("not a declared tool")
            named = True
        elif key in json_calls.WRAPPERS and ahead == "{" and not nested:
            yield from _head(r, tools, nested=True)
            return
        elif key in json_calls.ARGUMENT_KEYS and ahead in tuple("{\"'nN"):
            if not named:
                yield from _early_arguments(r, tools)
            given = True
        elif key not in ID_KEYS and not (key == "type" and ahead in ("\"", "'")):
            raise NotACall("not the key of a call")
        elif json_text.plain((yield from json_text.value(r))) not in KINDS and key == "type":
            raise NotACall("not the type of a call")
        if named and given:
            return
    if not named:
        raise NotACall("no tool name")


def _early_arguments(r: Reader, tools: Tools) -> Reading[None]:
    """Arguments before the name: they must begin with a key that some tool declares, then they are read whole."""
    if (yield from r.peek()) == "{":
        start = r.offset
        r.take(1)
        key = yield from json_text.next_key(r)
        if key is not None and not tools.any_declares(key):
            raise NotACall("not the arguments of a tool")
        r.rewind(start)
    yield from json_text.value(r)


# ── behind visible text ──────────────────────────────────────────────────────────────────────────


def held(r: Reader, calls: Calls) -> Reading[None]:
    """Calls behind visible text: read on trial; they count if nothing follows them."""
    trial = Recording()
    inner = Calls(r, calls.tools, trial, calls.opener, calls.settled, after_prose=True)
    more = True
    while more:
        after, before = r.offset, inner.current
        try:
            yield from block(r, inner)
            inner.region_ended()
        except EndOfText as end:
            inner.text_ended(end.open)
        except NotACall:
            if inner.current is None:
                raise
            if inner.current is before:
                r.rewind(after)  # it does not even begin like a call
            elif inner.committed:
                inner.current.abandon()
            break
        after = r.offset
        yield from r.skip_space()
        more = (yield from r.peek()) in ("{", "[", *FENCES)
    else:
        closed = yield from r.accept(*json_tags.CLOSERS.values())  # then only the opener was forgotten
        if _complete(calls, trial) and not _shown(calls, trial) and (closed or (yield from _answer_ends(r, calls))):
            trial.replay(calls.sink)
            calls.settle()
            return
        r.rewind(after)
    example = _complete(calls, trial)
    calls.place.example = calls.place.example or example
    calls.give_back(example)


def _answer_ends(r: Reader, calls: Calls) -> Reading[bool]:
    """Whether the model ends its answer here."""
    for end in calls.place.ends:
        if (yield from r.at(end)):
            return True
    return not (yield from r.peek()) and not r.cut


def _complete(calls: Calls, trial: Recording) -> bool:
    """Whether these are calls only, with all required keys."""
    return trial.holds_calls_only() and all(key in given for name, given in trial.calls() for key in calls.tools.find(name).required)


def _shown(calls: Calls, trial: Recording) -> bool:
    """Whether they are an example: by the words before, or by a value that only stands for one."""
    return calls.place.shows_an_example or any(_stands_for(key, value) for _, given in trial.calls() for key, value in given.items())


def _stands_for(key: str, value: Any) -> bool:
    """Whether a value is only the name of its type or key, or dots."""
    if not isinstance(value, str):
        return False
    bare = value.strip().strip("<>{}[]").strip()
    return bool(PLACEHOLDER.fullmatch(value.strip()) or (bare != value.strip() and bare.casefold() == key.casefold()))
