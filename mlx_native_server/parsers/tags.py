"""Calls in tags: one way of reading for every dialect whose values are raw text between tags.

What the tags are is in `tag_forms`, where a value ends in `tag_values`. Read here: blocks with several calls, calls
without a block, a JSON object where arguments should be, closing tags that are missing or too many.
"""
from __future__ import annotations

from . import json_calls, json_text
from .call import CallBuilder, Calls
from .reader import EndOfText, NotACall, Reader, Reading
from .tag_forms import Form, Head, cut_off, literal, space
from .tag_values import TURN_ENDS, Around, Entities, Value

# ── regions ──────────────────────────────────────────────────────────────────────────────────────


def block(r: Reader, calls: Calls, form: Form) -> Reading[None]:
    """The calls of one block, from after its opener to after its closer."""
    yield from r.skip_space()
    while (yield from r.accept(*form.block_marks)):
        yield from r.skip_space()
    if (yield from r.accept(*form.block_ends)):
        return
    yield from sequence(r, calls, form, wrapped=True)


def naked(r: Reader, calls: Calls, form: Form) -> Reading[None]:
    """Calls without a block around them; the opener that was passed is the beginning of the first one's tag."""
    start = r.offset
    yield from r.skip_space()
    while (yield from r.accept(calls.opener)):  # written twice
        start = r.offset
        yield from r.skip_space()
    r.rewind(start - len(calls.opener))
    yield from sequence(r, calls, form, wrapped=False)


def sequence(r: Reader, calls: Calls, form: Form, wrapped: bool) -> Reading[None]:
    """Calls one after the other, and the end of the block they may stand in."""
    head = yield from form.call(r, 0, calls.tools)
    if head is None and wrapped:  # the name in the tag of an argument
        head = yield from form.key(r, 0)
        head = head if head and calls.tools.find(head.name) else None
    if head is None:
        raise NotACall("no call in the tag") if r.pos < len(r.text) else EndOfText()
    while head is not None:
        call = calls.open()
        call.name(head.name)
        r.take(head.size)
        yield from _Call(r, calls, call, form, wrapped, head.name).read()
        after = r.offset
        yield from r.skip_space()
        if (yield from r.accept_closer(*form.block_ends)):
            return
        head = yield from form.call(r, 0, calls.tools)
        if head is None:
            r.rewind(after)  # white space behind the calls is the answer's


class _Call:
    """Reads one call, from after its head."""

    def __init__(self, r: Reader, calls: Calls, call: CallBuilder, form: Form, wrapped: bool, name: str):
        self.r, self.calls, self.call, self.form = r, calls, call, form
        self.seen: set[str] = set()
        self.around = Around(r, calls.tools, call, form, wrapped, calls.tools.find(name), self.seen)

    def read(self) -> Reading[None]:
        """All arguments, and the closing tag."""
        r, form, call = self.r, self.form, self.call
        while True:
            yield from r.skip_space()
            key = yield from form.key(r, 0)
            if key is not None:
                self.seen.add(key.name)
                yield from self._argument(key)
            elif (yield from r.accept(*form.call_ends)):
                return call.done()
            elif not self.seen and (yield from self._json()):
                yield from json_calls.body(r, call, form.ends)
                call.done()
                return (yield from self._pass_ends())
            elif (yield from self._over()):
                return call.done()
            elif self.seen or not (yield from r.accept(*form.value_ends)):
                raise NotACall("no argument")

    def _argument(self, head: Head) -> Reading[None]:
        r, call, name = self.r, self.call, head.name
        r.take(head.size)
        stated = head.attributes.get("string", "").lower()  # DeepSeek says it on the tag
        if stated == "false":
            runs: list[str] = []
            yield from Value(self.around).read(runs.append)
            return _give(call, name, "".join(runs))
        call.begin(name, quoted=stated == "true")
        if self.form.xml and (yield from r.accept("<![CDATA[")):
            yield from self._cdata()
        elif self.form.xml:
            text = Entities(call.text)
            yield from Value(self.around).read(text.put)
            text.end()
        else:
            yield from Value(self.around).read(call.text)
        call.end()

    def _cdata(self) -> Reading[None]:
        """Literal text, up to the mark before the argument's closing tag."""
        r, form = self.r, self.form
        while (yield from r.until(("]]>",), self.call.text)):
            at = yield from space(r, 3)
            if (yield from literal(r, at, (*form.value_ends, *form.call_ends))) or cut_off(r, at, form.value_ends):
                r.take(at)
                yield from r.accept_closer(*form.value_ends)
                return
            self.call.text(r.take(3))
        raise EndOfText(open=True)

    def _json(self) -> Reading[bool]:
        """Whether the arguments are a JSON object (where the first key might be). Passes what leads up to it."""
        r = self.r
        mark = yield from literal(r, 0, self.form.key_marks)
        at = yield from space(r, len(mark))
        if not (yield from literal(r, at, ("{",))):
            return False
        r.take(at)
        return True

    def _pass_ends(self) -> Reading[None]:
        r = self.r
        after = r.offset
        yield from r.skip_space()
        while (yield from r.accept(*(end for end in self.form.ends if end not in self.form.block_ends))):
            after = r.offset
            yield from r.skip_space()
        r.rewind(after)

    def _over(self) -> Reading[bool]:
        """Whether the call ends here without its own closing tag. EndOfText at the end of the text."""
        r, form = self.r, self.form
        if cut_off(r, 0, (*form.call_ends, *form.block_ends)):
            if not self.seen and self.around.schema is None:
                raise NotACall("no sign of a call but a name")
            r.take(len(r.text) - r.pos)
            raise EndOfText()
        if cut_off(r, 0, form.key_marks) or r.eof and (yield from literal(r, 0, form.key_marks)):
            raise EndOfText(open=True)
        if (yield from literal(r, 0, (*form.block_ends, *form.block_marks, *TURN_ENDS))):
            return True
        return (yield from form.call(r, 0, self.calls.tools)) is not None


def _give(call: CallBuilder, key: str, written: str) -> None:
    """An argument that the dialect calls JSON: a string is unquoted, anything else is typed by the schema."""
    if written.strip()[:1] in ("\"", "'"):
        try:
            return call.value(key, json_text.parse(written))
        except ValueError:
            pass
    call.begin(key, quoted=False)
    call.text(written)
    call.end()
