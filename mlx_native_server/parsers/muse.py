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

from . import tags
from .call import Calls
from .reader import EndOfText, NotACall, Reader, Reading
from .tag_forms import NamedTags, cut_off
from .thinking import Prose, Thought

OPENERS = ("<|start|>",)
LINE_OPENERS = (" to=", "to=")
MESSAGE, MESSAGE_ENDS = "<|message|>", ("<|eom|>", "<|eot|>")
FORM = NamedTags(
    call_marks=("<atem:invoke",), call_ends=("</atem:invoke>",), key_marks=("<atem:parameter",), value_ends=("</atem:parameter>",),
    block_marks=("<atem:function_calls>",), block_ends=("</atem:function_calls>",),
)

NAME = re.compile(r"[\w.:/\-]*")


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
        yield from r.skip_space()
        if not (yield from r.accept(*FORM.block_marks)):
            raise EndOfText(open=True) if cut_off(r, 0, FORM.block_marks) else NotACall("no call")
        try:
            yield from tags.block(r, calls, FORM)
        except NotACall:
            if calls.current is not None:
                raise
            return calls.give_back()  # a message to a tool, but no call: no other dialect's either
        after = r.offset
        yield from r.skip_space()
        if not (yield from r.accept_closer(*MESSAGE_ENDS)):
            r.rewind(after)
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
