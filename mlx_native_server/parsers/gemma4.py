"""Gemma 4. Other dialects have the same form with other marks.

    <|tool_call>call:Edit{edits:[{new:<|"|>b<|"|>,old:<|"|>a<|"|>}],path:<|"|>/tmp/a b<|"|>,replace_all:true}<tool_call|>

Text in the model's own quotes is literal; numbers and words are bare. Read too: JSON and Python quotes, several
`call:` in a block, the naked form without marks (line start only), `call:` forgotten, the opener and it in one, Python's
brackets, and unquoted text, which ends only where what follows can follow it: at a comma before a declared key, or at the
brace before the end. A quote mark that is missing on one side is made up for where the answer ends behind the call.
"""
from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Callable

from . import json_text, pythonic
from .call import CallBuilder, Calls
from .reader import EndOfText, NotACall, Put, Reader, Reading


@dataclass(frozen=True)
class Form:
    """The marks of one variant."""

    quote: str
    closer: str


COLLAPSED, CALL = "<tool_call:", "call:"
FORMS = {
    "<|tool_call>": Form('<|"|>', "<tool_call|>"),
    "<tool_call>": Form('<|"|>', "</tool_call>"),
    COLLAPSED: Form('<|"|>', "<tool_call|>"),
    CALL: Form('<|"|>', "<tool_call|>"),
}
LINE_OPENERS = (CALL,)
OPENERS = tuple(opener for opener in FORMS if opener not in LINE_OPENERS)

NAME = re.compile(r"[^\s{}()\[\]<>\"',]*")
KEY = re.compile(r"[\w\-.$ ]*")
WORD = re.compile(r"[^\s,}\]]*")
IN_LIST_ITEM = re.compile(r"[^,\]}]*")
COMMAS = re.compile(r"[\s,]*")
BEHIND_COMMA = re.compile(r"[\w\"'<\-$}\[{]")
KEY_CHARACTERS = re.compile(r"[\w\-.$\s\"'<>|]")
LOOK_AHEAD = 160
RESPONSE = "<|tool_response>"  # behind its calls the model writes it, then it stops


def parse(r: Reader, calls: Calls) -> Reading[None]:
    """One block, from after its opener to after its closer."""
    yield from block(r, calls, FORMS[calls.opener])


def block(r: Reader, calls: Calls, form: Form) -> Reading[None]:
    """One block in a variant's marks."""
    if not calls.opener.endswith(":"):
        yield from r.skip_space()
        while (yield from r.accept(calls.opener)):
            yield from r.skip_space()
        if (yield from r.accept(form.closer)):
            return
        if not (yield from r.accept(CALL)) and not (yield from _named(r, calls)):
            raise NotACall("no call:") if r.pos < len(r.text) else EndOfText()
    while True:
        yield from _call(r, calls, form)
        after = r.offset
        yield from r.run(COMMAS)
        if calls.opener == COLLAPSED and (yield from r.accept(">")):
            after = r.offset
            yield from r.skip_space()
        if (yield from r.accept_closer(form.closer)):
            return
        if not (yield from r.accept(CALL)):
            r.rewind(after)
            return


def _named(r: Reader, calls: Calls) -> Reading[bool]:
    """Whether a declared tool and its arguments come next, `call:` forgotten."""
    start = r.offset
    name = (yield from r.run(NAME)) if calls.opener != "<tool_call>" else ""
    named = (yield from r.peek()) == "{" and calls.tools.find(name) is not None
    r.rewind(start)
    return named


def _call(r: Reader, calls: Calls, form: Form) -> Reading[None]:
    yield from r.skip_space()
    name = yield from r.run(NAME)
    ahead = yield from r.peek()
    if ahead != "{" and not (ahead == "(" and calls.tools.find(name)):
        raise NotACall("no arguments") if r.pos < len(r.text) else EndOfText(open=True)
    call = calls.open()
    call.name(name)
    r.take(1)
    if ahead == "(":
        yield from pythonic.arguments(r, call, (form.closer,))
        return call.done()
    while True:
        key = yield from _key(r, form)
        if key is None:
            break
        yield from _argument(r, call, key, form)
    call.done()


def _key(r: Reader, form: Form) -> Reading[str | None]:
    """The next key of an open object, its colon passed; None at the object's end, its brace passed."""
    yield from r.run(COMMAS)
    if (yield from r.accept("}")):
        return None
    if not (yield from r.peek()) or (yield from r.at(form.closer)):
        raise EndOfText()
    ahead = yield from r.peek()
    if ahead in "\"'":
        key = yield from json_text.text(r, limit=json_text.KEY_LENGTH)
    elif (yield from r.accept(form.quote)):
        runs: list[str] = []
        yield from _quoted(r, form, runs.append, lambda: _at_colon(r))
        key = "".join(runs)
    else:
        key = yield from r.run(KEY)
    yield from r.skip_space()
    if not key.strip() or len(key) > json_text.KEY_LENGTH or not (yield from r.accept(":")):
        raise NotACall("no key") if r.pos < len(r.text) else EndOfText(open=True)
    yield from r.skip_space()
    return key.strip()


def _argument(r: Reader, call: CallBuilder, key: str, form: Form) -> Reading[None]:
    """One value of the call itself: text goes to the call as it comes."""
    ahead = yield from r.peek()
    node = call.field(key)
    if (yield from r.accept(form.quote)):
        call.begin(key, quoted=True)
        yield from _quoted(r, form, call.text, lambda: _value_ends(r, form, 0, True), "}" + form.closer)
        call.end()
    elif ahead and ahead in "\"'":
        call.begin(key, quoted=True)
        yield from json_text.string(r, call.text, BEHIND_COMMA, (form.closer, form.quote))
        call.end()
        yield from r.accept(form.quote)  # a quote mark too many
    elif ahead and ahead in "{[" and (node is None or not node.is_string):
        call.value(key, (yield from _nested(r, form, 1)))
    else:
        call.begin(key, quoted=False)
        yield from _bare(r, call, form)
        call.end()


# ── text ─────────────────────────────────────────────────────────────────────────────────────────


def _quoted(r: Reader, form: Form, put: Put, ends: Callable[[], Reading[bool]], last: str = "") -> Reading[None]:
    """Text in the model's own quotes, the opening one passed. A mark within the text is text.

    `last`: what ends it without a quote where it is the last thing of the answer, and no other call was shown in the text.
    """
    marks = (form.quote, last, CALL) if last else (form.quote,)
    while True:
        mark = yield from r.until(marks, put)
        if not mark:
            raise EndOfText(open=True)
        if mark == CALL:
            marks = (form.quote,)
        elif mark == last and (yield from _is_last(r, len(mark))):
            return
        r.take(len(mark))
        if mark == form.quote and (yield from ends()):
            return
        put(mark)


def _is_last(r: Reader, ahead: int) -> Reading[bool]:
    """Whether the model ended its answer behind what comes next."""
    ahead = yield from _solid(r, ahead)
    return (yield from r.peek(ahead + len(RESPONSE) + 1))[ahead:] in ("", RESPONSE) and not r.cut


def _at_colon(r: Reader) -> Reading[bool]:
    return (yield from r.peek()) in (":", "")


def _value_ends(r: Reader, form: Form, ahead: int, keyed: bool) -> Reading[bool]:
    """Whether what lies `ahead` can follow a value of an object (`keyed`) or a list."""
    ahead = yield from _solid(r, ahead)
    follows = r.text[r.pos + ahead:r.pos + ahead + 1]
    if follows in ("", "}", "]"):
        return True
    if follows == ",":
        ahead = yield from _solid(r, ahead + 1)
        follows = r.text[r.pos + ahead:r.pos + ahead + 1]
        if not keyed:
            return not follows or BEHIND_COMMA.match(follows) is not None
        return follows in ("", "}") or (yield from _key_ahead(r, ahead)) is not None
    return (yield from r.peek(ahead + len(form.closer)))[ahead:] == form.closer


def _solid(r: Reader, ahead: int) -> Reading[int]:
    while (yield from r.need(ahead + 1)) and r.text[r.pos + ahead].isspace() and ahead < LOOK_AHEAD:
        ahead += 1
    return ahead


def _key_ahead(r: Reader, ahead: int) -> Reading[str | None]:
    """The key that lies `ahead`, if a key with its colon does."""
    end = ahead
    while (yield from r.need(end + 1)) and end - ahead < LOOK_AHEAD:
        character = r.text[r.pos + end]
        if character == ":":
            return re.sub(r"[\"'<>|\s]|escape", "", r.text[r.pos + ahead:r.pos + end]) or None
        if not KEY_CHARACTERS.match(character):
            return None
        end += 1
    return None


def _bare(r: Reader, call: CallBuilder, form: Form) -> Reading[None]:
    """An unquoted value: a number or word up to the next delimiter, else text up to a delimiter that must be one."""
    word = yield from r.run(WORD)
    if word.endswith(form.quote) and (yield from _value_ends(r, form, 0, True)):
        return call.text(word.removesuffix(form.quote))
    call.text(word)
    try:
        json_text.Scalar(word)
        yield from r.skip_space()
        if (yield from r.peek()) in (",", "}", "]", "") or (yield from r.at(form.closer)):
            return
        call.text(" ")
    except NotACall:
        pass
    while True:
        ahead = yield from r.until((form.quote, ",", "}"), call.text)
        if not ahead:
            raise EndOfText(open=True)
        if ahead == form.quote:
            r.take(len(form.quote))
            if (yield from _value_ends(r, form, 0, True)):
                return
            call.text(form.quote)
            continue
        if ahead == ",":
            key = yield from _key_ahead(r, (yield from _solid(r, 1)))
            if key is not None and call.declares(key):
                return
        elif (yield from _at_end(r, form)):
            return
        call.text(r.take(1))


def _at_end(r: Reader, form: Form) -> Reading[bool]:
    """Whether the brace that comes next is the call's last."""
    ahead = yield from _solid(r, 1)
    rest = yield from r.peek(ahead + max(len(form.closer), len(CALL)))
    return not rest[ahead:] or rest[ahead:].startswith((form.closer, CALL))


# ── containers ───────────────────────────────────────────────────────────────────────────────────


def _nested(r: Reader, form: Form, depth: int) -> Reading[Any]:
    """An object or a list, its bracket next."""
    if depth > json_text.DEPTH:
        raise NotACall("too deep")
    if r.take(1) == "{":
        members: dict[str, Any] = {}
        while (key := (yield from _key(r, form))) is not None:
            members[key] = yield from _inner(r, form, depth, True)
        return members
    items: list[Any] = []
    while True:
        yield from r.run(COMMAS)
        if (yield from r.accept("]")):
            return items
        if not (yield from r.peek()) or (yield from r.at(form.closer)):
            raise EndOfText()
        items.append((yield from _inner(r, form, depth, False)))


def _inner(r: Reader, form: Form, depth: int, keyed: bool) -> Reading[Any]:
    """A value inside an object or a list."""
    ahead = yield from r.peek()
    if (yield from r.accept(form.quote)):
        runs: list[str] = []
        yield from _quoted(r, form, runs.append, lambda: _value_ends(r, form, 0, keyed))
        return "".join(runs)
    if ahead and ahead in "\"'":
        return (yield from json_text.text(r, BEHIND_COMMA, closers=(form.closer, form.quote)))
    if ahead and ahead in "{[":
        return (yield from _nested(r, form, depth + 1))
    word = (yield from r.run(IN_LIST_ITEM)).strip()
    if not (yield from r.peek()):
        raise EndOfText(open=True)
    if not word:
        raise NotACall("no value")
    try:
        return json_text.Scalar(word).value
    except NotACall:
        return word
