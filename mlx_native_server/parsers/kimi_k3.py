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

from . import json_calls, raw_text
from .call import CallBuilder, Calls
from .reader import EndOfText, NotACall, Reader, Reading
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
        yield from raw_text.expect(r, OPEN)
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
        if len(read) > TAG_LENGTH or not read.lstrip()[:1].isalpha():
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
        if (yield from raw_text.closes(r, CLOSERS[1])):
            break
        if not (yield from r.peek()):
            raise EndOfText()
        yield from raw_text.expect(r, OPEN)
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
        yield from raw_text.raw(r, call.text, closer, BEHIND_ARGUMENT)
        call.end()
    else:
        raise NotACall("no argument")
