"""The end of a value in a tag dialect (`tag_forms`): which closing tag is its own.

Such values are not escaped and may hold their own closing tags. So a closing tag ends a value only where what
follows it may follow: a declared key, the end of the call and of its block, the end of the text. Whole calls
and arguments shown inside a value are counted as nested and passed over. A value whose closing tag was forgotten
ends at the next declared key on a line of its own, or at closing tags behind which nothing but calls comes.
Only a closing tag and what decides on it are held; the rest of a value goes to the call as it comes.
"""
from __future__ import annotations

import re
from dataclasses import dataclass
from html import unescape

from .call import CallBuilder
from .reader import EndOfText, Put, Reader, Reading
from .schema import Tools, ToolSchema
from .tag_forms import Form, Head, cut_off, literal, space

TURN_ENDS = ("<|", "<｜end", "<｜User", "<｜Assistant", "<｜tool", "[e~[", "</s>", "<seed:eos>", "</longcat_s>")
"""How marks begin that end a turn: where a tag may stand, one of them is the end of the text."""

END, TURN, CALL, LINE, SPACED, WORD, OTHER = "end", "turn", "call", "line", "space", "word", "other"
ENTITY = re.compile(r"&(?:lt|gt|amp|quot|apos|#\d{1,7}|#x[0-9a-fA-F]{1,6});")
LONGEST_ENTITY = 10


@dataclass
class Around:
    """The call that a value stands in. `seen`: the keys so far, the value's own among them."""

    r: Reader
    tools: Tools
    call: CallBuilder
    form: Form
    wrapped: bool
    schema: ToolSchema | None
    seen: set[str]


class Value:
    """Reads the text of one argument, and decides which closing tag is its own."""

    def __init__(self, around: Around):
        self._r, self._form, self._call, self._tools = around.r, around.form, around.call, around.tools
        self._seen, self._wrapped = around.seen, around.wrapped
        self._complete = around.schema is None or around.seen.issuperset(around.schema.required)
        self._nested: list[ToolSchema | None] = []  # calls shown in the value that are still open
        self._inner = 0  # arguments likewise
        self._blocks = 0
        self._lead = ""  # the newline in front of a padded value
        self._gap = ""  # a newline that may be the one behind it
        self._last = "\n"  # the last character
        self._out: Put = around.call.text

    def read(self, out: Put) -> Reading[None]:
        """Up to the value's end and past its closing tag."""
        r, form = self._r, self._form
        self._out = out
        if form.padded:
            self._lead = yield from r.accept("\r\n", "\n")
        decide = {
            **dict.fromkeys(form.block_ends, self._block_ends),
            **dict.fromkeys(form.call_marks, self._call_begins), **dict.fromkeys(form.call_ends, self._call_ends),
            **dict.fromkeys(form.key_marks, self._key_begins), **dict.fromkeys(form.value_ends, self._value_ends),
        }
        while True:
            mark = yield from r.until(form.marks, self._put)
            if not mark:
                raise EndOfText(open=True)
            if mark in decide and (yield from decide[mark](mark)):
                own = mark in form.value_ends
                r.take(len(mark) if own else 0)
                if self._gap and (own and not form.padded or self._gap == "\r"):
                    self._out(self._gap)  # it is the value's
                return
            self._blocks += mark in form.block_marks
            self._put(r.take(len(mark)))

    def _put(self, run: str) -> None:
        """Holds the last newline back, which may be layout if the value ends there."""
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
        settled = self._in_layout and follows == LINE
        if self._nested:  # the closing tag of a block that was not opened in the value is the call's own
            own = not self._blocks and bool(closers) and closers[-1] in form.block_ends
            return follows == END and not r.cut or own and (follows in (CALL, TURN) or settled)
        if follows in (END, CALL, TURN):
            return True
        if not closers:
            self._inner = max(self._inner - 1, 0)
            return False
        if not self._in_layout:
            return False
        whole = not form.block_ends or not self._wrapped or closers[-1] in form.block_ends
        naked = bool(form.block_ends) and not self._wrapped
        return settled and (whole or self._complete) or whole and (follows == WORD or follows == SPACED and naked)

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
            if (yield from literal(r, at, form.bodies)):
                self._nested.append(self._tools.find(head.name))
                return False
        self._blocks += not form.block_marks  # the tag is the block's, too
        return False

    def _call_ends(self, mark: str) -> Reading[bool]:
        if self._nested:
            self._nested.pop()
            self._inner = 0
            return False
        return (yield from self._block_ends(mark)) if not self._form.block_marks else (yield from self._all_ends())

    def _block_ends(self, mark: str) -> Reading[bool]:
        ends = yield from self._all_ends()
        self._blocks = max(self._blocks - 1, 0)
        return ends and not self._nested

    def _all_ends(self) -> Reading[bool]:
        """Whether the closing tags that come next end a value whose own was forgotten."""
        _, follows = yield from self._behind(0)
        return follows == END or follows in (CALL, TURN) and not self._blocks

    def _behind(self, at: int) -> Reading[tuple[list[str], str]]:
        """The closing tags of call and block from `at` on, and what follows them."""
        r, form = self._r, self._form
        closers: list[str] = []
        while True:
            solid = yield from space(r, at)
            closer = yield from literal(r, solid, (*form.call_ends, *form.block_ends))
            if not closer:
                break
            closers.append(closer)
            at = solid + len(closer)
        if cut_off(r, solid, (*form.ends, *form.key_marks)):
            return closers, END
        if (yield from literal(r, solid, TURN_ENDS)):
            return closers, TURN
        if (yield from literal(r, solid, form.block_marks)):
            return closers, CALL
        if (yield from literal(r, solid, form.value_ends)):
            return closers, OTHER  # so none of them was the last
        head = yield from form.call(r, solid, self._tools)
        if head is not None and (closers or self._tools.find(head.name)):
            return closers, CALL
        character = r.text[r.pos + at]
        return closers, LINE if character in "\r\n" else SPACED if character.isspace() else WORD if character.isalnum() else OTHER


class Entities:
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
