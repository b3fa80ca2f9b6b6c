"""Values written as they are between tags, without quotes or escapes: where such a value ends.

A closing tag counts only where what follows it, white space skipped, can follow a value; anywhere else it is text
of the value. Nothing is trimmed here.
"""
from __future__ import annotations

from .reader import EndOfText, NotACall, Put, Reader, Reading

LOOK_AHEAD = 1000  # white space behind a closing tag that is still skipped


def raw(r: Reader, put: Put, closer: str, followers: tuple[str, ...]) -> Reading[None]:
    """Hand out the text up to `closer` and pass that. `followers`: what may come next; the text's end may too."""
    while True:
        if not (yield from r.until((closer,), put)):
            raise EndOfText(open=True)
        mark = r.take(len(closer))
        if (yield from _follows(r, followers)):
            return
        put(mark)


def expect(r: Reader, literal: str) -> Reading[None]:
    """Pass what must come next, or it is no call."""
    if not (yield from r.accept(literal)):
        raise EndOfText(open=True) if r.eof and literal.startswith(r.text[r.pos:]) else NotACall(f"no {literal}")


def closes(r: Reader, closer: str) -> Reading[bool]:
    """Whether the tag that completes a call comes next; passes it. A fragment at the end counts if the model stopped there."""
    found = yield from r.accept_closer(closer)
    if found and found != closer and r.cut:
        raise EndOfText()
    return bool(found)


def _follows(r: Reader, followers: tuple[str, ...]) -> Reading[bool]:
    ahead = 0
    while (yield from r.need(ahead + 1)) and r.text[r.pos + ahead].isspace() and ahead < LOOK_AHEAD:
        ahead += 1
    for follower in followers:
        size = 1
        while (found := (yield from r.peek(ahead + size))[ahead:]) and follower.startswith(found) and len(found) == size < len(follower):
            size += 1
        if follower.startswith(found) and (len(found) == len(follower) or r.eof and len(r.text) - r.pos <= ahead + size):
            return True
    return False
