"""The literals and tags of one tag dialect, and how to see them ahead without passing them.

Two shapes: named tags (`<function=f>` with `<parameter=k>`, `<invoke name="f">` with `<parameter name="k">`) and key
tags (`NAME`, then `<arg_key>k</arg_key><arg_value>`). Read too: both spellings of a name, attributes, a forgotten
`>`, a key whose opener, closer or value opener was forgotten. What may end a value is decided in `tags`.
"""
from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Mapping

from .reader import Reader, Reading
from .schema import Tools

LOOK_AHEAD = 400  # white space that is skipped to see what follows
NAME_LENGTH = 200

TAG_GOES_ON = ("=", " ", "\t", "\n", "\r\n")
SPACE = re.compile(r"\s*")
PIECE = re.compile(r"""(?:[^<>\n"']|"[^"\n]{0,200}"|'[^'\n]{0,200}'){0,200}(?:"[^"\n]{0,200}\Z|'[^'\n]{0,200}\Z)?""")
EQUALS = re.compile(r"""\s*=\s*["']?([^\s"'=<>]+)["']?""")
ATTRIBUTE = r"""\s+([\w:.\-]+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'=<>]+))"""
ATTRIBUTES = re.compile(rf"(?:{ATTRIBUTE})*\s*")
NAME = re.compile(r"[^\s<>{}()\[\]\"',]{0,200}")
KEY = re.compile(r"[^<>\n{]{0,200}")
BARE_KEY = re.compile(r"[\w.\-]{0,200}")


# ── looking ahead ────────────────────────────────────────────────────────────────────────────────


def run(r: Reader, at: int, pattern: re.Pattern[str], limit: int = NAME_LENGTH) -> Reading[int]:
    """Where the characters end that `pattern` takes from `at` on; both counted from the position."""
    while True:
        end = pattern.match(r.text, r.pos + at).end()
        if end < len(r.text) or r.eof or end - r.pos - at >= limit:
            return end - r.pos
        yield


def space(r: Reader, at: int) -> Reading[int]:
    """Where the white space from `at` on ends."""
    return (yield from run(r, at, SPACE, LOOK_AHEAD))


def literal(r: Reader, at: int, literals: tuple[str, ...]) -> Reading[str]:
    """The first of `literals` that lies at `at`; "" for none. Waits only while one still could."""
    for mark in literals:
        while not r.text.startswith(mark, r.pos + at):
            if len(r.text) - r.pos - at >= len(mark) or r.eof or not mark.startswith(r.text[r.pos + at:]):
                break
            yield
        else:
            return mark
    return ""


def cut_off(r: Reader, at: int, literals: tuple[str, ...]) -> bool:
    """Whether the end of the text cut off one of `literals` at `at`, or lies there itself."""
    size = len(r.text) - r.pos - at
    if not r.eof or size > NAME_LENGTH:
        return False
    rest = r.text[r.pos + at:]
    return any(mark.startswith(rest) for mark in literals)


@dataclass(frozen=True)
class Head:
    """An opening tag with its name. `size`: its characters, up to where what it opens begins."""

    name: str
    size: int
    attributes: Mapping[str, str] = field(default_factory=dict)


# ── the two shapes ───────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Form:
    """The literals of one dialect; marks are the beginnings of opening tags, ends are whole closing tags.

    `padded`: one newline on each side of a value is layout. `xml`: CDATA and entities mean what they do in XML.
    """

    call_marks: tuple[str, ...]
    call_ends: tuple[str, ...]
    key_marks: tuple[str, ...]
    value_ends: tuple[str, ...]
    block_marks: tuple[str, ...] = ()
    block_ends: tuple[str, ...] = ()
    padded: bool = False
    xml: bool = False

    def call(self, r: Reader, at: int, tools: Tools) -> Reading[Head | None]:
        """The head of a call that lies at `at`."""
        raise NotImplementedError

    def key(self, r: Reader, at: int) -> Reading[Head | None]:
        """The head of an argument that lies at `at`, up to its value."""
        raise NotImplementedError

    @cached_property
    def marks(self) -> tuple[str, ...]:
        """All that may matter within a value."""
        return (*self.value_ends, *self.key_marks, *self.call_ends, *self.call_marks, *self.block_ends, *self.block_marks)

    @cached_property
    def ends(self) -> tuple[str, ...]:
        """All closing tags."""
        return (*self.value_ends, *self.call_ends, *self.block_ends)

    @property
    def bodies(self) -> tuple[str, ...]:
        """How what stands in a call begins: a head in front of anything else is a word of the text."""
        return "<", "{"


@dataclass(frozen=True)
class NamedTags(Form):
    """Calls and arguments are elements with a name: `<function=f>`, `<parameter name="k">`."""

    def call(self, r: Reader, at: int, tools: Tools) -> Reading[Head | None]:
        """`<function=f>`."""
        return (yield from _tag(r, at, self.call_marks))

    def key(self, r: Reader, at: int) -> Reading[Head | None]:
        """`<parameter=k>`."""
        return (yield from _tag(r, at, self.key_marks))


def _tag(r: Reader, at: int, marks: tuple[str, ...]) -> Reading[Head | None]:
    mark = yield from literal(r, at, marks)
    if not mark:
        return None
    if not (yield from literal(r, at + len(mark), TAG_GOES_ON)):
        return None
    end = yield from run(r, at + len(mark), PIECE, 2 * NAME_LENGTH)
    piece = r.text[r.pos + at + len(mark):r.pos + end]
    closed = r.text[r.pos + end:r.pos + end + 1] == ">"
    size = end + 1 - at
    named = EQUALS.match(piece)
    if named:
        rest = piece[named.end():]
        if closed and ATTRIBUTES.fullmatch(rest):
            return Head(named[1], size, _attributes(rest))
        if rest.startswith("="):  # `<parameter=limit=1`: the value itself
            return Head(named[1], len(mark) + named.end() + 1)
        return None if closed or rest.strip() else Head(named[1], len(mark) + named.end())  # `>` was forgotten
    if not closed or not ATTRIBUTES.fullmatch(piece):
        return None
    attributes = _attributes(piece)
    return Head(attributes["name"].strip(), size, attributes) if attributes.get("name", "").strip() else None


def _attributes(piece: str) -> dict[str, str]:
    return {found[1]: found[2] or found[3] or found[4] or "" for found in re.finditer(ATTRIBUTE, piece)}


@dataclass(frozen=True)
class KeyTags(Form):
    """A call is its name, then pairs of keys and values in tags of their own."""

    key_end: str = ""
    value_mark: str = ""

    @cached_property
    def ends(self) -> tuple[str, ...]:
        """All closing tags."""
        return (*self.value_ends, self.key_end, *self.call_ends)

    @property
    def bodies(self) -> tuple[str, ...]:
        """A key, or nothing."""
        return (*self.key_marks, *self.call_ends)

    def call(self, r: Reader, at: int, tools: Tools) -> Reading[Head | None]:
        """`<tool_call>NAME`; a key whose opener was forgotten may stick to the name."""
        mark = yield from literal(r, at, self.call_marks)
        start = yield from space(r, at + len(mark))
        end = yield from run(r, start, NAME)
        name = r.text[r.pos + start:r.pos + end]
        if not mark or not (name[:1].isalnum() or name[:1] == "_"):
            return None
        if set(" \t") & set(r.text[r.pos + at + len(mark):r.pos + start]):  # words of prose follow it like that
            behind = yield from space(r, end)
            if not (yield from literal(r, behind, (*self.key_marks, *self.call_ends))):
                return None
        if (yield from literal(r, end, (self.key_end,))):
            name = next((name[:n] for n in range(len(name) - 1, 0, -1) if _declares(tools, name[:n], name[n:])), name)
        return Head(name, start + len(name) - at)

    def key(self, r: Reader, at: int) -> Reading[Head | None]:
        """`<arg_key>k</arg_key><arg_value>`, with one of the three forgotten."""
        mark = yield from literal(r, at, self.key_marks)
        start = at + len(mark)
        end = yield from run(r, start, KEY if mark else BARE_KEY)
        name = r.text[r.pos + start:r.pos + end].strip()
        if not name:
            return None
        end = yield from space(r, end)
        closer = yield from literal(r, end, (self.key_end,))
        end += len(closer)
        value = yield from space(r, end)
        if (yield from literal(r, value, (self.value_mark,))) and (mark or closer):
            return Head(name, value + len(self.value_mark) - at)
        if not closer:
            return None
        newline = yield from literal(r, end, ("\r\n", "\n"))
        return Head(name, end + len(newline) - at)


def _declares(tools: Tools, tool: str, key: str) -> bool:
    schema = tools.find(tool)
    return schema is not None and schema.declares(key)
