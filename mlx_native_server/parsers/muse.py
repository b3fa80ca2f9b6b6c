"""Muse: messages with a recipient, and calls in tags.

     to=self<|message|>plan<|eom|><|start|>assistant to=Edit<|message|><atem:function_calls>
    <atem:invoke name="Edit">
    <atem:parameter name="path">a b.py</atem:parameter>
    </atem:invoke>
    </atem:function_calls><|eot|>

`self` is thinking, `user` and `commentary` are visible text, any other recipient is a tool. Only there the tags are
a call. Values are raw text, typed by the schema.
"""
from __future__ import annotations

import re

from . import raw_text
from .call import CallBuilder, Calls
from .reader import EndOfText, NotACall, Reader, Reading
from .thinking import Prose, Thought

OPENERS = ("<|start|>",)
LINE_OPENERS = (" to=", "to=")
MESSAGE, MESSAGE_ENDS = "<|message|>", ("<|eom|>", "<|eot|>")
BLOCK, BLOCK_END = "<atem:function_calls>", "</atem:function_calls>"
INVOKE, INVOKE_END = '<atem:invoke name="', "</atem:invoke>"
PARAMETER, PARAMETER_END = '<atem:parameter name="', "</atem:parameter>"

NAME = re.compile(r"[\w.:/\-]*")
KEY = re.compile(r'[^"<>\n]*')


def parse(r: Reader, calls: Calls) -> Reading[Thought | Prose | None]:
    """A message's header and, if it is a call's, the message."""
    if calls.opener in LINE_OPENERS and calls.after_prose:
        raise NotACall("a word of the text")
    recipient = yield from _recipient(r, calls.opener)
    if recipient == "self":
        return Thought(MESSAGE_ENDS, OPENERS)
    if recipient in ("user", "commentary"):
        return Prose(MESSAGE_ENDS[:1])
    if recipient:
        yield from _block(r, calls)
        yield from r.accept_closer(*MESSAGE_ENDS)
    return None


def _recipient(r: Reader, opener: str) -> Reading[str]:
    """Who a message is for, its header passed. "" where the text ends within the header."""
    if opener in OPENERS:
        yield from r.accept("assistant")
        yield from r.skip_space()
        if not (yield from r.accept("to=")) and (yield from r.peek()):
            raise NotACall("no recipient")
    recipient = yield from r.run(NAME)
    yield from r.skip_space()
    if not (yield from r.accept(MESSAGE)):
        if opener in OPENERS and r.pos >= len(r.text):
            return ""
        raise NotACall("no message") if r.pos < len(r.text) or not recipient else EndOfText(open=True)
    return recipient


def _block(r: Reader, calls: Calls) -> Reading[None]:
    yield from r.skip_space()
    yield from raw_text.expect(r, BLOCK)
    while True:
        yield from r.skip_space()
        if (yield from r.accept_closer(BLOCK_END)) or calls.current is not None and not (yield from r.at(INVOKE)):
            return
        name = yield from _quoted(r, INVOKE)
        call = calls.open()
        call.name(name)
        yield from _parameters(r, call)
        call.done()


def _parameters(r: Reader, call: CallBuilder) -> Reading[None]:
    while True:
        yield from r.skip_space()
        if (yield from raw_text.closes(r, INVOKE_END)):
            return
        if not (yield from r.peek()):
            raise EndOfText()
        key = yield from _quoted(r, PARAMETER)
        call.begin(key, quoted=False)
        yield from raw_text.raw(r, call.text, PARAMETER_END, (PARAMETER, INVOKE_END))
        call.end()


def _quoted(r: Reader, tag: str) -> Reading[str]:
    """The name in an opening tag, the tag passed."""
    yield from raw_text.expect(r, tag)
    name = yield from r.run(KEY)
    yield from raw_text.expect(r, '">')
    return name
