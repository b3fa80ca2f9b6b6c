"""JSON as models write it, read while it comes.

Accepted beside JSON: Python's spelling (`'…'`, True, None, trailing commas), real newlines in strings, missing or
doubled commas, and quotes inside a string that were not escaped: a quote ends a value only where what follows it
can follow a value. `string` hands the decoded text out run by run; the other readers return whole values.
Numbers that JSON cannot carry (NaN, 1e999) stay the text they were written as.
"""
from __future__ import annotations

import json
import math
import re
from re import Pattern
from typing import Any

from .reader import EndOfText, NotACall, Put, Reader, Reading, run_to_end

DEPTH = 100  # containers inside one another; deeper is not an argument
KEY_LENGTH = 256
MISSING = "missing"
LOOK_AHEAD = 1000  # white space after a quote that is still skipped to see what follows

ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
WORDS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
NUMBER = re.compile(r"[-+]?\d+(\.\d*)?([eE][-+]?\d+)?\Z")
RUNS = {quote: re.compile(rf"(?:[^{quote}\\]++|\\[^u])*+", re.DOTALL) for quote in "\"'"}
ESCAPED = re.compile(r"\\(.)", re.DOTALL)
KEY_CHARACTER = re.compile(r"[\w.\-]")
BARE = re.compile(r"[\w.+\-]*")
COMMAS = re.compile(r"[\s,]*")
IN_OBJECT = re.compile(r"[\"'}]")  # what may follow the comma behind a value
IN_LIST = re.compile(r"[\"'\[{\]\d\-tfnTFN]")


class Scalar:
    """A number or a word with the way it was written, which a string parameter keeps."""

    def __init__(self, written: str):
        self.written, self.value = written, _scalar(written)


def _scalar(written: str) -> Any:
    if written in WORDS:
        return WORDS[written]
    if not NUMBER.match(written):
        if written.lstrip("+-") in ("NaN", "Infinity", "nan", "inf"):
            return written
        raise NotACall(f"not a JSON value: {written[:40]!r}")
    if written.lstrip("+-").isdigit() and len(written) < 4000:
        return int(written)
    number = float(written)
    return number if math.isfinite(number) else written


# ── strings ──────────────────────────────────────────────────────────────────────────────────────


def string(r: Reader, put: Put, after_comma: Pattern | None = None, closers: tuple[str, ...] = ()) -> Reading[None]:
    """The string whose opening quote comes next, decoded, in runs.

    `after_comma`: what may stand behind a comma that follows the string; None for a key or a name, whose first
    quote ends it.
    `closers`: what ends the whole region, which may follow where brackets were forgotten.
    """
    quote = r.take(1)
    runs = RUNS[quote]

    def put_decoded(run: str) -> None:
        put(ESCAPED.sub(_unescaped, run) if "\\" in run else run)

    while True:
        yield from r.pass_on(runs, put_decoded)
        if r.pos >= len(r.text):
            raise EndOfText(open=True)
        if r.text[r.pos] == "\\":
            code = (yield from r.peek(2))[1:]
            if not code:
                raise EndOfText(open=True)
            if code == "u":
                put((yield from unicode_escape(r)))
        elif after_comma is None or (yield from _ends(r, after_comma, closers)):
            r.take(1)
            return
        else:
            put(r.take(1))


def _unescaped(escape: re.Match[str]) -> str:
    """A two-character escape, decoded. An unknown one (a regular expression's) is kept as it is."""
    code = escape[1]
    return ESCAPES.get(code) or (code if code in "\"'\\/" else escape[0])


def unicode_escape(r: Reader) -> Reading[str]:
    """A `\\uXXXX` escape; two that are one character's halves are put together. A broken one is kept as it is."""
    first = yield from r.peek(6)
    unit = _hex(first)
    if len(first) < 6:
        raise EndOfText(open=True)
    if unit is None:
        return r.take(2)
    if 0xD800 <= unit < 0xDC00:
        both = yield from r.peek(12)
        low = _hex(both[6:])
        if low is not None and 0xDC00 <= low < 0xE000:
            r.take(12)
            return chr(0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00))
        if len(both) < 12 and r.eof and "\\u".startswith(both[6:8]):
            raise EndOfText(open=True)
    r.take(6)
    return chr(unit)


def _hex(escape: str) -> int | None:
    return int(escape[2:6], 16) if re.fullmatch(r"\\u[0-9a-fA-F]{4}", escape[:6]) else None


def _ends(r: Reader, after_comma: Pattern, closers: tuple[str, ...]) -> Reading[bool]:
    """Whether the quote that comes next ends its string: what follows it decides."""
    ahead = yield from _next_solid(r, 1)
    follows = r.text[r.pos + ahead:r.pos + ahead + 1]
    if follows in ("}", "]", ""):
        return True
    if follows == ",":
        ahead = yield from _next_solid(r, ahead + 1)
        follows = r.text[r.pos + ahead:r.pos + ahead + 1]
        return not follows or after_comma.match(follows) is not None
    if follows in ("\"", "'") and after_comma is IN_OBJECT:
        return (yield from _key_lies(r, ahead))  # the comma was forgotten
    for closer in closers:
        if closer.startswith(follows) and (yield from r.peek(ahead + len(closer)))[ahead:] == closer:
            return True
    return False


def _key_lies(r: Reader, ahead: int) -> Reading[bool]:
    """Whether a quoted word and a colon lie `ahead`."""
    quote, end = r.text[r.pos + ahead], ahead + 1
    while (yield from r.need(end + 1)) and KEY_CHARACTER.match(r.text, r.pos + end) and end - ahead < KEY_LENGTH:
        end += 1
    if end == ahead + 1 or r.text[r.pos + end:r.pos + end + 1] != quote:
        return False
    end = yield from _next_solid(r, end + 1)
    return r.text[r.pos + end:r.pos + end + 1] == ":"


def _next_solid(r: Reader, ahead: int) -> Reading[int]:
    """How far ahead, from `ahead` on, the next character that is not white space lies."""
    while (yield from r.need(ahead + 1)) and r.text[r.pos + ahead].isspace() and ahead < LOOK_AHEAD:
        ahead += 1
    return ahead


def text(r: Reader, after_comma: Pattern | None = None, limit: int | None = None, closers: tuple[str, ...] = ()) -> Reading[str]:
    """A whole string. Longer than `limit` characters is not a call (a key, a name)."""
    runs: list[str] = []
    size = 0

    def put(run: str) -> None:
        nonlocal size
        runs.append(run)
        size += len(run)
        if limit is not None and size > limit:
            raise NotACall("a name that long is none")

    yield from string(r, put, after_comma, closers)
    return "".join(runs)


# ── containers ───────────────────────────────────────────────────────────────────────────────────


def open_container(r: Reader, bracket: str) -> Reading[None]:
    """Pass white space and an opening bracket, or it is not a call."""
    yield from r.skip_space()
    if not (yield from r.accept(bracket)):
        raise NotACall(f"no {bracket!r}") if r.pos < len(r.text) else EndOfText()


def next_key(r: Reader, closers: tuple[str, ...] = ()) -> Reading[str | None]:
    """The next key of an open object, its colon passed; None at the object's end, its bracket passed.

    At one of `closers` (not passed) the object's own bracket is missing: EndOfText.
    """
    ended = yield from _ended(r, "}", closers)
    if ended == MISSING:
        raise EndOfText()
    if ended:
        return None
    if (yield from r.peek()) not in "\"'":
        raise NotACall("no key")
    key = yield from text(r, limit=KEY_LENGTH)
    yield from r.skip_space()
    if not (yield from r.accept(":")):
        raise NotACall("no colon") if r.pos < len(r.text) else EndOfText(open=True)
    yield from r.skip_space()
    return key


def value(r: Reader, after_comma: Pattern | None = IN_OBJECT, closers: tuple[str, ...] = (), depth: int = 0) -> Reading[Any]:
    """A whole value of any kind; numbers and words as `Scalar`."""
    yield from r.skip_space()
    ahead = yield from r.peek()
    if not ahead:
        raise EndOfText(open=True)
    if ahead in "\"'":
        return (yield from text(r, after_comma, closers=closers))
    if ahead in "{[":
        return (yield from _container(r, ahead, closers, depth + 1))
    word = yield from r.run(BARE)
    try:
        return Scalar(word)
    except NotACall as error:
        raise EndOfText(open=True) if word and r.pos >= len(r.text) else error  # the end cut a word off


def _container(r: Reader, bracket: str, closers: tuple[str, ...], depth: int) -> Reading[Any]:
    if depth > DEPTH:
        raise NotACall("too deep")
    r.take(1)
    if bracket == "{":
        members: dict[str, Any] = {}
        while (key := (yield from _inner_key(r, closers))) is not None:
            members[key] = plain((yield from value(r, IN_OBJECT, closers, depth)))
        return members
    items: list[Any] = []
    while not (yield from _ended(r, "]", closers)):
        items.append(plain((yield from value(r, IN_LIST, closers, depth))))
    return items


def _inner_key(r: Reader, closers: tuple[str, ...]) -> Reading[str | None]:
    """Like `next_key`; an inner object whose bracket is missing where the text ends is simply over."""
    try:
        return (yield from next_key(r, closers))
    except EndOfText as end:
        if end.open:
            raise
        return None


def _ended(r: Reader, bracket: str, closers: tuple[str, ...]) -> Reading[str]:
    """Pass commas, then the closing bracket if it comes, and return it. MISSING where the text or region ends instead."""
    yield from r.run(COMMAS)
    if (yield from r.accept(bracket)):
        return bracket
    for closer in closers:
        if (yield from r.at(closer)):
            return MISSING
    return "" if (yield from r.peek()) else MISSING


def plain(read: Any) -> Any:
    """A value without the memory of its spelling."""
    return read.value if isinstance(read, Scalar) else read


# ── whole texts ──────────────────────────────────────────────────────────────────────────────────


def _refuse(word: str) -> str:
    return word


def _float(written: str) -> float | str:
    number = float(written)
    return number if math.isfinite(number) else written


def parse(written: str) -> Any:
    """The value a complete text spells, as JSON first, then leniently. Raises ValueError."""
    try:
        return json.loads(written, parse_constant=_refuse, parse_float=_float)
    except (ValueError, RecursionError):
        pass
    r = Reader(written, eof=True)
    try:
        found = plain(run_to_end(value(r, None)))
        run_to_end(r.skip_space())
    except (NotACall, EndOfText) as error:
        raise ValueError(str(error)) from error
    if r.pos < len(r.text):
        raise ValueError("text after the value")
    return found
