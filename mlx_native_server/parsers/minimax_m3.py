"""MiniMax M3: a token of its own in front of every tag, and keys as tag names.

    ]<]minimax[>[<tool_call>
    ]<]minimax[>[<invoke name="Edit">]<]minimax[>[<path>/a b]<]minimax[>[</path>]<]minimax[>[<opts>]<]minimax[>[<k>
    ]<]minimax[>[<item>1]<]minimax[>[</item>]<]minimax[>[</k>]<]minimax[>[</opts>]<]minimax[>[</invoke>
    ]<]minimax[>[</tool_call>

Text is raw and its white space its own. Where the schema wants no string, tags inside a value are an object's keys or,
named `item`, a list's members. Types come from the schema.
"""
from __future__ import annotations

import re
from typing import Any

from . import json_text
from .call import CallBuilder, Calls
from .reader import EndOfText, NotACall, Reader, Reading
from .schema import Node
from .tag_forms import cut_off, literal, run, space
from .tag_values import TURN_ENDS

MARK = "]<]minimax[>["
OPENERS = (MARK,)
CLOSER = f"{MARK}</tool_call>"
ITEM = "item"

TAG = re.compile(r"<?[^<>\n]{0,200}>?")
INVOKE = re.compile(r"""invoke\s+name\s*=\s*["']?([^"']+?)["']?\s*""")


def parse(r: Reader, calls: Calls) -> Reading[None]:
    """One block, or invocations without one."""
    r.rewind(r.offset - len(MARK))
    tag, size = yield from _tag(r, 0)
    if tag == "tool_call":
        r.take(size)
        yield from r.skip_space()
        tag, size = yield from _tag(r, 0)
    if not INVOKE.fullmatch(tag):
        raise EndOfText(open=True) if cut_off(r, 0, (MARK,)) else NotACall("no invocation")
    while (name := INVOKE.fullmatch(tag)) is not None:
        call = calls.open()
        call.name(name[1])
        r.take(size)
        yield from _arguments(r, call, declared=calls.tools.find(name[1]) is not None)
        call.done()
        after = r.offset
        yield from r.skip_space()
        tag, size = yield from _tag(r, 0)
        if tag == "/tool_call" or not tag and cut_off(r, 0, (CLOSER,)):
            r.take(size or len(r.text) - r.pos)
            return
    r.rewind(after)


def _tag(r: Reader, at: int) -> Reading[tuple[str, int]]:
    """What stands in the tag that lies at `at`, and where it ends. "" where none does, or the text ends within."""
    if not (yield from literal(r, at, (MARK,))):
        return "", 0
    start = yield from space(r, at + len(MARK))
    end = yield from run(r, start, TAG)
    written = r.text[r.pos + start:r.pos + end]
    return (written[1:-1].strip(), end) if written[:1] == "<" and written[-1:] == ">" else ("", 0)


def _arguments(r: Reader, call: CallBuilder, declared: bool) -> Reading[None]:
    """All arguments of one invocation, and its closing tag. All is text in one that is not `declared`."""
    while True:
        yield from r.skip_space()
        tag, size = yield from _tag(r, 0)
        if tag == "/invoke":
            r.take(size)
            return
        if tag == "/tool_call" or INVOKE.fullmatch(tag) or (yield from literal(r, 0, TURN_ENDS)):
            return
        if not tag:
            if cut_off(r, 0, (f"{MARK}</invoke>",)):
                r.take(len(r.text) - r.pos)
                raise EndOfText()
            raise EndOfText(open=True) if r.eof and (yield from literal(r, 0, OPENERS)) else NotACall("no argument")
        if tag[0] == "/":
            raise NotACall("a closing tag of nothing")
        r.take(size)
        node = call.field(tag)
        if declared and (node is None or not node.is_string) and (yield from _opens(r)):
            call.value(tag, (yield from _nested(r, tag, node or Node({}, {}), 1)))
        else:
            call.begin(tag, quoted=False)
            yield from _text(r, call, tag)
            call.end()


def _opens(r: Reader) -> Reading[bool]:
    """Whether a value is made of tags."""
    tag, _ = yield from _tag(r, (yield from space(r, 0)))
    return bool(tag) and tag[0] != "/"


def _text(r: Reader, call: CallBuilder, key: str) -> Reading[None]:
    """Raw text, up to its closing tag, or to the invocation's where that was forgotten. Invocations shown in it are passed."""
    shown = 0
    while (yield from r.until(OPENERS, call.text)):
        tag, size = yield from _tag(r, 0)
        if tag == f"/{key}":
            at = yield from space(r, size)
            last = yield from _nothing_else(r, at, turns=not shown)
            if last or not shown and (yield from literal(r, at, OPENERS)):
                r.take(size)
                return
        elif tag == "/invoke" and not shown and (yield from _nothing_else(r, 0, turns=True)):
            return
        shown += bool(INVOKE.fullmatch(tag)) or -(tag == "/invoke" and shown > 0)
        call.text(r.take(len(MARK)))
    raise EndOfText(open=True)


def _nothing_else(r: Reader, at: int, turns: bool) -> Reading[bool]:
    """Whether only closing tags of the call lie between `at` and the end of the text or, with `turns`, of the turn."""
    for end in ("/invoke", "/tool_call"):
        at = yield from space(r, at)
        tag, size = yield from _tag(r, at)
        at = size if tag == end else at
    at = yield from space(r, at)
    return cut_off(r, at, OPENERS) or turns and bool((yield from literal(r, at, TURN_ENDS)))


def _nested(r: Reader, closer: str, node: Node, depth: int) -> Reading[Any]:
    """The object or list whose members come next, and its closing tag."""
    if depth > json_text.DEPTH:
        raise NotACall("too deep")
    items: list[Any] = []
    members: dict[str, Any] = {}
    while True:
        yield from r.skip_space()
        tag, size = yield from _tag(r, 0)
        if not tag:
            raise EndOfText(open=True) if r.eof else NotACall("text between tags")
        if tag[0] == "/":
            if tag != f"/{closer}":
                raise NotACall("another closing tag")
            r.take(size)
            return members if members or not items else items
        r.take(size)
        child = node.child(0 if tag == ITEM else tag)
        value = (yield from _nested(r, tag, child, depth + 1)) if (yield from _opens(r)) else (yield from _leaf(r, tag, child))
        if tag == ITEM:
            items.append(value)
        else:
            members[tag] = value


def _leaf(r: Reader, closer: str, node: Node) -> Reading[Any]:
    runs: list[str] = []
    while (yield from r.until(OPENERS, runs.append)):
        tag, size = yield from _tag(r, 0)
        if tag == f"/{closer}":
            r.take(size)
            return node.from_text("".join(runs))
        runs.append(r.take(len(MARK)))
    raise EndOfText(open=True)
