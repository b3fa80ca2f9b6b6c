"""The text of an answer as a parser sees it: a position in what has come so far.

Parsers are generator coroutines that read like recursive descent. A bare `yield` means "more text is needed";
the owner feeds the reader and resumes them. Every primitive decides on the text alone, never on how it was cut
into pieces, so a parser gives the same result under every split. Text that was passed is dropped at the next
`feed`, unless it is held for a possible `rewind`; nothing is scanned twice. Look far ahead by taking text
piece by piece, not by `need` or `peek` of a large size. No protocol knowledge lives here.
"""
from __future__ import annotations

import re
from functools import lru_cache
from typing import Callable, Collection, Generator, TypeVar

T = TypeVar("T")
Reading = Generator[None, None, T]
"""What a parser function is: it yields nothing, asks for text, and returns a T."""

Put = Callable[[str], None]
"""Takes one more run of a value's text."""

SPACE = re.compile(r"\s*")


class NotACall(Exception):
    """The region is not what its opener promised: it is ordinary text."""


class EndOfText(Exception):
    """The text ended inside a region. `open`: inside a string or another value that must not be closed for the model."""

    def __init__(self, open: bool = False):
        super().__init__("inside a value" if open else "closers are missing")
        self.open = open


class Reader:
    """A growing text with a position.

    `eof` is set by `close`; `cut` then says that the token limit ended the text, not the model.
    """

    def __init__(self, text: str = "", eof: bool = False):
        self.text, self.pos, self.eof, self.cut = text, 0, eof, False
        self._base = 0  # offset of text[0] in the whole answer
        self._held_from: int | None = None
        self._held: list[str] = []  # what lies between the held offset and text[0]

    # ── the owner's side ─────────────────────────────────────────────────────────────────────────

    def feed(self, chunk: str) -> None:
        """Append text and drop what was passed and is not held."""
        if self._held_from is not None:
            start = max(self._held_from - self._base, 0)
            if start < self.pos:
                self._held.append(self.text[start:self.pos])
        self.text = self.text[self.pos:] + chunk
        self._base += self.pos
        self.pos = 0

    def close(self, cut: bool = False) -> None:
        """No more text will come."""
        self.eof, self.cut = True, cut

    # ── holding text for a second look ───────────────────────────────────────────────────────────

    @property
    def offset(self) -> int:
        """The position counted from the answer's start."""
        return self._base + self.pos

    @property
    def holds(self) -> bool:
        """Whether passed text is kept for a possible `rewind`."""
        return self._held_from is not None

    def hold(self, offset: int | None = None) -> int:
        """Keep the text from `offset` (default: here; not before what is already held) on. Returns the offset."""
        offset = self.offset if offset is None else offset
        if offset < self._base and self._held_from is not None:
            self._held = ["".join(self._held)[offset - self._held_from:]]
        else:
            self._held = []
        self._held_from = offset
        return offset

    def release(self) -> None:
        """Nothing before the position is needed any more."""
        self._held_from, self._held = None, []

    def since(self, offset: int) -> str:
        """The held text from `offset` up to the position."""
        if offset >= self._base:
            return self.text[offset - self._base:self.pos]
        assert self._held_from is not None and offset >= self._held_from, "text before the hold is gone"
        return "".join(self._held)[offset - self._held_from:] + self.text[:self.pos]

    def rewind(self, offset: int) -> None:
        """Go back to a held offset."""
        if offset < self._base:
            back = self.since(offset)
            self.text = back + self.text[self.pos:]
            held_from = self._held_from if self._held_from is not None else offset
            self._held = ["".join(self._held)[:offset - held_from]] if offset > held_from else []
            self._base = offset
        self.pos = offset - self._base

    # ── the parser's side: plain ─────────────────────────────────────────────────────────────────

    def take(self, size: int) -> str:
        """Pass `size` characters that are known to be there."""
        run = self.text[self.pos:self.pos + size]
        self.pos += size
        return run

    # ── the parser's side: coroutines ────────────────────────────────────────────────────────────

    def need(self, size: int) -> Reading[bool]:
        """Wait until `size` characters lie ahead. False: the text ends before."""
        while len(self.text) - self.pos < size:
            if self.eof:
                return False
            yield
        return True

    def peek(self, size: int = 1) -> Reading[str]:
        """The next `size` characters, fewer only at the end of the text; the position stays."""
        if len(self.text) - self.pos < size:
            yield from self.need(size)
        return self.text[self.pos:self.pos + size]

    def at(self, literal: str) -> Reading[bool]:
        """Whether `literal` comes next. Waits only while what is there could still become it."""
        while True:
            ahead = self.text[self.pos:self.pos + len(literal)]
            if len(ahead) == len(literal) or self.eof or not literal.startswith(ahead):
                return ahead == literal
            yield

    def accept(self, *literals: str) -> Reading[str]:
        """Pass the first of `literals` that comes next and return it; "" when none does."""
        for literal in literals:
            if (yield from self.at(literal)):
                self.pos += len(literal)
                return literal
        return ""

    def accept_closer(self, *closers: str) -> Reading[str]:
        """Like `accept`, and takes a fragment of a closer that the end of the text cut off."""
        found = yield from self.accept(*closers)
        rest = self.text[self.pos:] if self.eof and not found else ""
        if rest and any(closer.startswith(rest) for closer in closers):
            self.pos = len(self.text)
            return rest
        return found

    def skip_space(self) -> Reading[str]:
        """Pass white space and return it."""
        return (yield from self.run(SPACE))

    def run(self, pattern: re.Pattern[str]) -> Reading[str]:
        """Pass all characters that `pattern`, a repeated character class, takes; return them."""
        runs: list[str] = []
        yield from self.pass_on(pattern, runs.append)
        return runs[0] if len(runs) == 1 else "".join(runs)

    def pass_on(self, pattern: re.Pattern[str], put: Put) -> Reading[None]:
        """Like `run`, but hands each part to `put` as soon as it is there."""
        while True:
            end = pattern.match(self.text, self.pos).end()
            if end > self.pos:
                put(self.take(end - self.pos))
            if self.pos < len(self.text) or self.eof:
                return
            yield

    def until(self, markers: Collection[str], put: Put) -> Reading[str]:
        """Hand the text before the first of `markers` to `put`, run by run, and return that marker, not passed.

        A tail that may still become a marker is held back. "" at the end of the text, all of it handed out.
        """
        find = Markers.of(tuple(markers))
        while True:
            found, safe = find.search(self.text, self.pos, self.eof)
            if safe > self.pos:
                put(self.take(safe - self.pos))
            if found is not None or self.eof:
                return found or ""
            yield


class Markers:
    """A set of literal markers to search for in text that grows."""

    def __init__(self, markers: tuple[str, ...], extra: str = ""):
        """`extra`: a regular expression for what else counts as a find (single characters or classes)."""
        literals = "|".join(re.escape(m) for m in sorted(set(markers), key=len, reverse=True))
        self.pattern = re.compile("|".join(filter(None, (literals, extra))) or r"(?!)")
        self.prefixes = {m[:n] for m in markers for n in range(1, len(m))}
        self.longest = max(map(len, self.prefixes), default=0)

    @staticmethod
    @lru_cache(maxsize=512)
    def of(markers: tuple[str, ...], extra: str = "") -> "Markers":
        """The set for these markers, compiled once."""
        return Markers(markers, extra)

    def search(self, text: str, pos: int, eof: bool) -> tuple[str | None, int]:
        """(marker found, its start), or (None, the end of what surely belongs to none).

        The longest marker at the first place wins, so one that may still grow into a longer one is not found yet.
        """
        match = self.pattern.search(text, pos)
        end = match.start() if match else len(text)
        if not eof:
            held = self._held_back(text, pos, end + 1 if match else end)
            if held is not None:
                return None, held
        return (match.group(), end) if match else (None, end)

    def _held_back(self, text: str, pos: int, end: int) -> int | None:
        """Where, before `end`, the tail begins that is the start of a marker."""
        prefixes, size = self.prefixes, len(text)
        for start in range(max(pos, size - self.longest), end):
            if text[start:] in prefixes:
                return start
        return None


def run_to_end(reading: Reading[T]) -> T:
    """The result of a parser whose reader holds the whole text already (`eof` set)."""
    try:
        next(reading)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("a parser asked for text after the end")
