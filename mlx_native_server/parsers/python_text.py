"""Python's string literals as arguments of a call, read while they come.

Accepted: both quotes, three in a row, the prefixes r, f, b and u, Python's escapes (an unknown one stays as it is),
real newlines, and quotes inside that were not escaped: a quote ends the string only where what follows it can
follow an argument.
"""
from __future__ import annotations

import re

from . import json_text
from .reader import EndOfText, Put, Reader, Reading

LOOK_AHEAD = 160
QUOTES = "\"'"
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "0": "\0", "\n": ""}
LONG_ESCAPES = {"x": 2, "U": 8}  # hexadecimal digits behind them
RUNS = {quote: re.compile(rf"(?:[^{quote}\\]++|\\[^xuU])*+", re.DOTALL) for quote in QUOTES}
RAW_RUNS = {quote: re.compile(rf"(?:[^{quote}\\]++|\\.)*+", re.DOTALL) for quote in QUOTES}
ESCAPED = re.compile(r"\\(.)", re.DOTALL)
NEXT_KEY = re.compile(r"[\w\-]")


def at_string(r: Reader) -> Reading[bool]:
    """Whether a string literal comes next."""
    if (yield from r.peek()) in tuple("rRfFbBuU"):
        return (yield from r.peek(2))[1:] in tuple(QUOTES)
    return (yield from r.peek()) in tuple(QUOTES)


def string(r: Reader, put: Put, closers: tuple[str, ...] = ()) -> Reading[None]:
    """The string literal that comes next, decoded, in runs. `closers`: what may follow where brackets are missing."""
    prefix = "" if (yield from r.peek()) in QUOTES else r.take(1)
    quote = r.take(1)
    triple = (yield from r.at(quote * 2)) and (yield from _is_triple(r, quote, closers))
    if triple:
        r.take(2)
    raw = prefix in tuple("rR")
    runs = (RAW_RUNS if raw else RUNS)[quote]

    def put_decoded(run: str) -> None:
        put(ESCAPED.sub(_unescaped, run) if "\\" in run and not raw else run)

    while True:
        yield from r.pass_on(runs, put_decoded)
        if r.pos >= len(r.text):
            raise EndOfText(open=True)
        if r.text[r.pos] == "\\":
            yield from _long_escape(r, put, "" if raw else "xuU")
        elif triple and (yield from r.at(quote * 3)) and (yield from _ends(r, 3, closers)):
            r.take(3)
            return
        elif not triple and (yield from _ends(r, 1, closers)):
            r.take(1)
            return
        else:
            put(r.take(1))


def _is_triple(r: Reader, quote: str, closers: tuple[str, ...]) -> Reading[bool]:
    """Whether the two quotes that come next open a long string; else the first of them closes an empty one."""
    return not (yield from _ends(r, 1, closers))


def _unescaped(escape: re.Match[str]) -> str:
    code = escape[1]
    return ESCAPES[code] if code in ESCAPES else code if code in "\"'\\" else escape[0]


def _long_escape(r: Reader, put: Put, kinds: str) -> Reading[None]:
    """`\\xHH`, `\\uHHHH` or `\\UHHHHHHHH`; what is none of them is kept as it is.

    An escape of none of `kinds` stays where it is: its second half had not come yet, now it is a run.
    """
    kind = (yield from r.peek(2))[1:]
    if not kind:
        raise EndOfText(open=True)
    if kind not in kinds:
        return
    if kind == "u":
        put((yield from json_text.unicode_escape(r)))
        return
    size = 2 + LONG_ESCAPES[kind]
    written = yield from r.peek(size)
    digits = re.match(r"[0-9a-fA-F]*", written[2:])[0]
    if len(written) < size and 2 + len(digits) == len(written):
        raise EndOfText(open=True)
    if 2 + len(digits) < size or int(digits, 16) > 0x10FFFF:
        put(r.take(2))
    else:
        r.take(size)
        put(chr(int(digits, 16)))


# ── where a string ends ──────────────────────────────────────────────────────────────────────────


def _ends(r: Reader, ahead: int, closers: tuple[str, ...]) -> Reading[bool]:
    """Whether the quote that comes next (`ahead` characters of it) ends its string."""
    ahead, follows, _ = yield from _solid(r, ahead)
    if follows == "":
        return True
    if follows == ")":
        return (yield from _call_ends(r, ahead + 1, closers))
    if follows == ",":
        ahead, follows, _ = yield from _solid(r, ahead + 1)
        if follows == ")":
            return (yield from _call_ends(r, ahead + 1, closers))
        return not follows or (yield from _word_and(r, ahead, "="))
    return (yield from _closer_at(r, ahead, closers))


def _call_ends(r: Reader, ahead: int, closers: tuple[str, ...]) -> Reading[bool]:
    """Whether what lies ahead can follow a whole call."""
    ahead, follows, new_line = yield from _solid(r, ahead)
    if follows in ("", "]"):
        return True
    if follows in (",", ";"):
        ahead, follows, _ = yield from _solid(r, ahead + 1)
        return follows in ("", "]") or (yield from _word_and(r, ahead, "("))
    return new_line and (yield from _word_and(r, ahead, "(")) or (yield from _closer_at(r, ahead, closers))


def _closer_at(r: Reader, ahead: int, closers: tuple[str, ...]) -> Reading[bool]:
    first = r.text[r.pos + ahead]
    for closer in closers:
        if closer[0] == first and closer.startswith((yield from r.peek(ahead + len(closer)))[ahead:]):
            return True
    return False


def _solid(r: Reader, ahead: int) -> Reading[tuple[int, str, bool]]:
    """Where, from `ahead` on, the next character that is not white space lies; that character; whether a line ended."""
    new_line = False
    while (yield from r.need(ahead + 1)) and r.text[r.pos + ahead].isspace() and ahead < LOOK_AHEAD:
        new_line = new_line or r.text[r.pos + ahead] == "\n"
        ahead += 1
    return ahead, r.text[r.pos + ahead:r.pos + ahead + 1], new_line


def _word_and(r: Reader, ahead: int, sign: str) -> Reading[bool]:
    """Whether a word with this sign behind it lies ahead, or the text ends within it."""
    start = ahead
    while (yield from r.need(ahead + 1)) and (NEXT_KEY.match(r.text[r.pos + ahead]) or sign == "(" and r.text[r.pos + ahead] in ".:/"):
        ahead += 1
        if ahead - start > LOOK_AHEAD:
            return False
    follows = r.text[r.pos + ahead:r.pos + ahead + 1]
    if ahead > start and follows.isspace():
        ahead, follows, _ = yield from _solid(r, ahead)
    return ahead > start and follows in (sign, "")
