"""Calls in tags: one way of reading for every dialect whose values are raw text between tags (`tag_forms`).

Such values are not escaped and may hold their own closing tags. So a closing tag ends a value only where what
follows it may follow: a declared key, the end of the call and of its block, the end of the text. Whole calls
and arguments shown inside a value are counted as nested and passed over. A value whose closing tag was forgotten
ends at the next declared key on a line of its own, or at closing tags behind which nothing but calls comes.
Only a closing tag and what decides on it are held; the rest of a value goes to the call as it comes.
"""
from __future__ import annotations

import re
from html import unescape

from . import json_calls, json_text
from .call import CallBuilder, Calls
from .reader import EndOfText, NotACall, Put, Reader, Reading
from .schema import Tools, ToolSchema
from .tag_forms import Form, Head, cut_off, literal, space

TURN_ENDS = ("<|", "<｜", "[e~[", "</s>", "<seed:eos>", "</longcat_s>")
"""How marks begin that end a turn: where a tag may stand, one of them is the end of the text."""

END, CALL, LINE, SPACED, WORD, OTHER = "end", "call", "line", "space", "word", "other"
ENTITY = re.compile(r"&(?:lt|gt|amp|quot|apos|#\d{1,7}|#x[0-9a-fA-F]{1,6});")
LONGEST_ENTITY = 10


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
    r.rewind(r.offset - len(calls.opener))
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
        yield from _Call(r, calls, call, form, wrapped).read()
        after = r.offset
        yield from r.skip_space()
        if (yield from r.accept_closer(*form.block_ends)):
            return
        head = yield from form.call(r, 0, calls.tools)
        if head is None:
            r.rewind(after)  # white space behind the calls is the answer's


class _Call:
    """Reads one call, from after its head."""

    def __init__(self, r: Reader, calls: Calls, call: CallBuilder, form: Form, wrapped: bool):
        self.r, self.calls, self.call, self.form, self.wrapped = r, calls, call, form, wrapped
        self.seen: set[str] = set()

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
                yield from self._pass_ends()
                return call.done()
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
            yield from _Value(self, name).read(runs.append)
            return _give(call, name, "".join(runs))
        call.begin(name, quoted=stated == "true")
        if self.form.xml and (yield from r.accept("<![CDATA[")):
            yield from self._cdata()
        elif self.form.xml:
            text = _Entities(call.text)
            yield from _Value(self, name).read(text.put)
            text.end()
        else:
            yield from _Value(self, name).read(call.text)
        call.end()

    def _cdata(self) -> Reading[None]:
        """Literal text, up to the mark before the argument's closing tag."""
        r, form = self.r, self.form
        while (yield from r.until(("]]>",), self.call.text)):
            at = yield from space(r, 3)
            closer = yield from literal(r, at, form.value_ends)
            if closer or (yield from literal(r, at, form.call_ends)) or cut_off(r, at, form.value_ends):
                r.take(at + len(closer) if r.pos + at + len(closer) <= len(r.text) else len(r.text) - r.pos)
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
        while (yield from r.accept(*self.form.value_ends, *self.form.call_ends)):
            after = r.offset
            yield from r.skip_space()
        r.rewind(after)

    def _over(self) -> Reading[bool]:
        """Whether the call ends here without its own closing tag. EndOfText at the end of the text."""
        r, form = self.r, self.form
        if cut_off(r, 0, (*form.call_ends, *form.block_ends)):
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


# ── values ───────────────────────────────────────────────────────────────────────────────────────


class _Value:
    """Reads the text of one argument, and decides which closing tag is its own."""

    def __init__(self, owner: _Call, key: str):
        self._r, self._form, self._call, self._tools = owner.r, owner.form, owner.call, owner.calls.tools
        self._key, self._seen, self._wrapped = key, owner.seen, owner.wrapped
        self._nested: list[ToolSchema | None] = []  # calls shown in the value that are still open
        self._inner = 0  # arguments likewise
        self._blocks = 0
        self._lead = ""  # the newline in front of a padded value
        self._gap = ""  # a newline that may be the one behind it
        self._last = "\n"  # the last character
        self._out: Put = owner.call.text

    def read(self, out: Put) -> Reading[None]:
        """Up to the value's end and past its closing tag."""
        r, form = self._r, self._form
        self._out = out
        if form.padded:
            self._lead = yield from r.accept("\r\n", "\n")
        put = self._put_padded if form.padded else self._put
        decide = {
            **dict.fromkeys(form.block_ends, self._block_ends),
            **dict.fromkeys(form.call_marks, self._call_begins), **dict.fromkeys(form.call_ends, self._call_ends),
            **dict.fromkeys(form.key_marks, self._key_begins), **dict.fromkeys(form.value_ends, self._value_ends),
        }
        while True:
            mark = yield from r.until(form.marks, put)
            if not mark:
                raise EndOfText(open=True)
            if mark in decide and (yield from decide[mark](mark)):
                r.take(len(mark) if mark in form.value_ends else 0)
                return self._out(self._gap) if self._gap == "\r" else None
            self._blocks += mark in form.block_marks
            put(r.take(len(mark)))

    def _put(self, run: str) -> None:
        self._last = run[-1]
        self._out(run)

    def _put_padded(self, run: str) -> None:
        """Holds the last newline back, which is layout if the value ends there."""
        self._last = run[-1]
        run = self._gap + run
        self._gap = "\r\n" if self._lead == "\r\n" and run.endswith("\r\n") else run[-1] if run[-1] in self._lead + "\n" else ""
        if len(run) > len(self._gap):
            self._out(run[:len(run) - len(self._gap)])

    @property
    def _in_layout(self) -> bool:
        """Whether a tag may stand here, as the model lays its tags out."""
        return not self._lead or self._last == "\n"

    # ── what each mark means ─────────────────────────────────────────────────────────────────────

    def _value_ends(self, mark: str) -> Reading[bool]:
        r, form = self._r, self._form
        at = yield from space(r, len(mark))
        key = yield from form.key(r, at)
        if key is not None:
            return (yield from self._key_follows(key, at))
        closers, follows = yield from self._behind(len(mark))
        if self._nested:  # the closing tag of a block that was not opened in the value is the call's own
            own = not self._blocks and closers and closers[-1] in form.block_ends
            return follows == END and not r.cut or follows == CALL and bool(own)
        if follows in (END, CALL):
            return True
        if self._inner:
            self._inner -= 1
            return False
        if not closers or not self._in_layout:
            return False
        whole = not form.block_ends or not self._wrapped or closers[-1] in form.block_ends
        return follows == LINE or whole and (follows == WORD or follows == SPACED and not self._wrapped)

    def _key_follows(self, key: Head, at: int) -> Reading[bool]:
        """Whether an argument behind a closing tag is the call's next one."""
        r = self._r
        if self._next_key(key):
            return not any(tool is not None and tool.declares(key.name) for tool in self._nested)
        if self._nested:
            return False
        if self._inner:
            self._inner -= 1
            return False
        if self._call.declares(key.name) or not self._lead:
            return True
        at += key.size  # not declared: only in the model's exact layout
        return self._in_layout and bool((yield from literal(r, at, ("\n", "\r\n"))))

    def _next_key(self, key: Head) -> bool:
        return self._call.declares(key.name) and key.name not in self._seen

    def _key_begins(self, mark: str) -> Reading[bool]:
        key = yield from self._form.key(self._r, 0)
        if key is None or self._nested:
            return False
        if self._next_key(key) and self._last == "\n":
            if not self._lead or (yield from literal(self._r, key.size, ("\n", "\r\n"))):
                return True
        self._inner += 1
        return False

    def _call_begins(self, mark: str) -> Reading[bool]:
        r, form = self._r, self._form
        head = yield from form.call(r, 0, self._tools)
        if head is not None:
            at = yield from space(r, head.size)
            if (yield from literal(r, at, (*form.key_marks, *form.call_ends))):
                self._nested.append(self._tools.find(head.name))
        return False

    def _call_ends(self, mark: str) -> Reading[bool]:
        if self._nested:
            self._nested.pop()
            self._inner = 0
            return False
        _, follows = yield from self._behind(0)
        return follows == END or follows == CALL and not self._blocks

    def _block_ends(self, mark: str) -> Reading[bool]:
        _, follows = yield from self._behind(0)
        blocks, self._blocks = self._blocks, max(self._blocks - 1, 0)
        return not self._nested and (follows == END or follows == CALL and not blocks)

    def _behind(self, at: int) -> Reading[tuple[list[str], str]]:
        """The closing tags of call and block from `at` on, and what follows them."""
        r, form = self._r, self._form
        closers: list[str] = []
        while True:
            solid = yield from space(r, at)
            left = form.block_ends if closers else (*form.call_ends, *form.block_ends)
            closer = yield from literal(r, solid, left)
            if not closer:
                break
            closers.append(closer)
            at = solid + len(closer)
        if cut_off(r, solid, (*form.ends, *form.key_marks)) or (yield from literal(r, solid, TURN_ENDS)):
            return closers, END
        if (yield from literal(r, solid, form.block_marks)):
            return closers, CALL
        head = yield from form.call(r, solid, self._tools)
        if head is not None and (closers or self._tools.find(head.name)):
            return closers, CALL
        character = r.text[r.pos + at]
        return closers, LINE if character in "\r\n" else SPACED if character.isspace() else WORD if character.isalnum() else OTHER


class _Entities:
    """Decodes XML's entities in text that comes in runs."""

    def __init__(self, out: Put):
        self._out, self._held = out, ""

    def put(self, run: str) -> None:
        """The next run."""
        run = self._held + run
        start = run.rfind("&", max(len(run) - LONGEST_ENTITY, 0))
        cut = start if start >= 0 and ";" not in run[start:] else len(run)
        self._held = run[cut:]
        if cut:
            self._out(ENTITY.sub(lambda found: unescape(found[0]), run[:cut]))

    def end(self) -> None:
        """No more text comes."""
        if self._held:
            self._out(self._held)
