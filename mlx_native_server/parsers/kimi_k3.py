"""Kimi K3: tags of special tokens around plain names.

    <|open|>tools<|sep|><|open|>call tool="Edit" index="1"<|sep|><|open|>argument key="path" type="string"<|sep|>a b.py
    <|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>

A `string` is raw text, other types are JSON; all arguments may also stand in one `json` tag. Visible text is the
`response` channel; the `think` channel is one of the thinking tags.
"""
from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Mapping

from . import json_calls
from .call import CallBuilder, Calls
from .reader import EndOfText, NotACall, Put, Reader, Reading
from .tag_forms import cut_off, literal, space
from .thinking import Prose

OPEN, CLOSE, SEP = "<|open|>", "<|close|>", "<|sep|>"
OPENERS = (OPEN,)
MESSAGE_CLOSERS = (f"{CLOSE}response{SEP}", f"{CLOSE}message{SEP}")
CLOSERS = (f"{CLOSE}tools{SEP}", f"{CLOSE}call{SEP}")
BEHIND_ARGUMENT = (f"{OPEN}argument", f"{OPEN}json", f"{CLOSE}call")

TAG_LENGTH = 600
ATTRIBUTE = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True)
class Tag:
    """An opening tag."""

    name: str
    attributes: Mapping[str, str]


def parse(r: Reader, calls: Calls) -> Reading[Prose | None]:
    """A channel of visible text, or calls with or without their `tools` tag."""
    if not (yield from r.peek()):
        return None
    tag = yield from _tag(r)
    if tag.name in ("response", "message"):
        return Prose(MESSAGE_CLOSERS)
    if tag.name == "tools":
        yield from r.skip_space()
        if (yield from r.accept(CLOSERS[0])):
            return None
        yield from _expect_open(r)
        tag = yield from _tag(r)
    while True:
        yield from _call(r, calls, tag)
        after = r.offset
        yield from r.skip_space()
        if (yield from r.accept_closer(CLOSERS[0])):
            return None
        if not (yield from r.accept(OPEN)):
            r.rewind(after)
            return None
        tag = yield from _tag(r)


def _tag(r: Reader) -> Reading[Tag]:
    """What stands between the opening token and the separator."""
    read = ""

    def put(run: str) -> None:
        nonlocal read
        read += run
        if len(read) > TAG_LENGTH or read.strip() and not read.lstrip()[0].isalpha():
            raise NotACall("no tag")

    mark = yield from r.until((SEP, OPEN, CLOSE), put)
    if not mark:
        raise EndOfText(open=True)
    if mark != SEP or not read:
        raise NotACall("no tag")
    r.take(len(SEP))
    attributes = {key: value.replace("&quot;", '"').replace("&amp;", "&") for key, value in ATTRIBUTE.findall(read)}
    return Tag(read.split()[0], attributes)


def _call(r: Reader, calls: Calls, tag: Tag) -> Reading[None]:
    if tag.name != "call":
        raise NotACall("another tag")
    call = calls.open()
    call.name(tag.attributes.get("tool", ""))
    while True:
        yield from r.skip_space()
        if (yield from _closes(r)):
            break
        if not (yield from r.peek()):
            raise EndOfText()
        yield from _expect_open(r)
        yield from _argument(r, call, (yield from _tag(r)))
    call.done()


def _argument(r: Reader, call: CallBuilder, tag: Tag) -> Reading[None]:
    closer = f"{CLOSE}{tag.name}{SEP}"
    if tag.name == "json":
        yield from json_calls.body(r, call, (closer,))
        yield from r.skip_space()
        yield from r.accept_closer(closer)
    elif tag.name == "argument" and "key" in tag.attributes:
        call.begin(tag.attributes["key"], quoted=tag.attributes.get("type") == "string")
        yield from _raw(r, call.text, closer)
        call.end()
    else:
        raise NotACall("no argument")


def _raw(r: Reader, put: Put, closer: str) -> Reading[None]:
    """Text up to `closer`, which counts only where what follows an argument follows it."""
    while True:
        if not (yield from r.until((closer,), put)):
            raise EndOfText(open=True)
        mark = r.take(len(closer))
        at = yield from space(r, 0)
        if (yield from literal(r, at, BEHIND_ARGUMENT)) or cut_off(r, at, BEHIND_ARGUMENT):
            return
        put(mark)


def _closes(r: Reader) -> Reading[bool]:
    """Pass the tag that completes a call. A fragment at the end counts if the model stopped there, not the limit."""
    found = yield from r.accept_closer(CLOSERS[1])
    if found and found != CLOSERS[1] and r.cut:
        raise EndOfText()
    return bool(found)


def _expect_open(r: Reader) -> Reading[None]:
    if not (yield from r.accept(OPEN)):
        raise EndOfText(open=True) if cut_off(r, 0, (OPEN,)) else NotACall("no tag")
