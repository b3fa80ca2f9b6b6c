"""Reading a thought: where it ends, and whether a call at its end was meant.

Marks of calls within a thought are thinking. The one exception: the thought is never closed, and the last thing
in it is one or more complete calls; then the model forgot the closer, and they count. So a call that appears here
is read on trial, and what follows decides.
"""
from __future__ import annotations

from typing import Callable

from .markdown import LINE_MARKS, TICKS, CodeTracker
from ..parsers import TURN_MARKERS, Openers
from ..parsers.call import Calls, Recording
from ..parsers.place import Place
from ..parsers.reader import EndOfText, Markers, NotACall, Reader, Reading
from ..parsers.schema import Tools
from ..parsers.thinking import TAGS, Thought


QUOTES = {"\"": "\"", "'": "'", "“": "”", "‘": "’", "«": "»"}


def is_quoted(r: Reader, mark: str, before: str) -> Reading[bool]:
    """Whether the mark that comes next stands alone in quotation marks, `before` being the character in front of it."""
    return before in QUOTES and (yield from r.peek(len(mark) + 1))[len(mark):] == QUOTES[before]


class ThoughtReader:
    """Reads one thought and hands its text to `write`. `calls`: the calls that ended it, none if it was closed."""

    def __init__(self, reader: Reader, tools: Tools, openers: Openers, write: Callable[[str], None]):
        self.calls: list[Recording] = []
        self.stopped = False  # a leaked turn marker ended it
        self.on_trial = False  # what may be a call in it is being read
        self.closers: tuple[str, ...] = ()
        self._reader, self._tools, self._openers, self._put = reader, tools, openers, write
        self._code = CodeTracker()
        self._last = ""  # the last character written

    def read(self, thought: Thought) -> Reading[None]:
        """Up to the closer and past it, or to the end of the text."""
        r, self.closers = self._reader, thought.closers
        marks = Markers.of((*thought.closers, *thought.next_openers, *self._openers.of_calls, *TURN_MARKERS), LINE_MARKS)
        yield from self._skip_openers(thought)
        while True:
            mark, safe = marks.search(r.text, r.pos, r.eof)
            if safe > r.pos:
                run = r.take(safe - r.pos)
                self._code.text(run)
                self._write(run)
            if mark is None:
                if r.eof:
                    return
                yield
            elif (yield from self._ends(mark, thought)):
                return

    def _skip_openers(self, thought: Thought) -> Reading[None]:
        """Some models open a thought again that the prompt has opened."""
        again = tuple(opener for opener, closer in TAGS.items() if closer in thought.closers)
        yield from self._reader.skip_space()
        while (yield from self._reader.accept(*again)):
            yield from self._reader.skip_space()

    def _write(self, run: str) -> None:
        self._last = run[-1:] or self._last
        self._put(run)

    def _ends(self, mark: str, thought: Thought) -> Reading[bool]:
        """Whether the mark that comes next ends the thought. Passes it, or as much of it as is content."""
        r = self._reader
        if mark in thought.next_openers and not (yield from self._quoted(mark)):
            return True
        if mark in thought.closers and not (yield from self._quoted(mark)):
            r.take(len(mark))
            return True
        if mark in TURN_MARKERS and not self._code.in_code and not (yield from is_quoted(r, mark, self._last)):
            self.stopped = True
            return True
        if mark in self._openers.of_calls and not self._code.in_code and (yield from self._tried(mark)):
            return bool(self.calls)
        if mark[0] in TICKS:
            run = yield from r.run(TICKS[mark[0]])
            self._code.ticks(run)
            self._write(run)
        else:
            character = r.take(1)
            self._code.passed(character)
            self._write(character)
        return False

    def _quoted(self, closer: str) -> Reading[bool]:
        """Whether a closer stands alone between backticks: the model writes about it."""
        return self._last == "`" and (yield from self._reader.peek(len(closer) + 1))[len(closer):] == "`"

    # ── calls on trial ───────────────────────────────────────────────────────────────────────────

    def _tried(self, opener: str) -> Reading[bool]:
        self.on_trial = True
        were_calls = yield from self._trial(opener)
        self.on_trial = False
        return were_calls

    def _trial(self, opener: str) -> Reading[bool]:
        """Read calls from here on. False: none, back where it was. Else they end the thought, or were part of it."""
        r = self._reader
        start = r.hold()
        calls: list[Recording] = []
        leads = self._code.line_blank
        while opener:
            region = yield from self._region(opener, leads)
            if region is None:
                r.rewind(start)
                r.release()
                return False
            calls.append(region)
            yield from r.skip_space()
            here = r.offset
            opener, leads = (yield from r.accept(*self._openers.of_calls)), True
            r.rewind(here)
        if (yield from r.peek()) and not (yield from self._turn_ends()):
            draft = r.since(start)
            self._code.passed(draft)
            self._write(draft)
        else:
            self.calls = calls
        r.release()
        return True

    def _turn_ends(self) -> Reading[bool]:
        """Whether a leaked turn marker comes next: nothing follows it."""
        for marker in TURN_MARKERS:
            if (yield from self._reader.at(marker)):
                return True
        return False

    def _region(self, opener: str, leads: bool) -> Reading[Recording | None]:
        """The calls of one region; None when it is anything but complete calls."""
        r = self._reader
        start = r.offset
        for dialect in self._openers.candidates(opener, leads):
            r.rewind(start)
            r.take(len(opener))
            recording = Recording()
            calls = Calls(r, self._tools, recording, opener, start, after_prose=True, place=Place(tuple(TURN_MARKERS)))
            try:
                yield from dialect.module.parse(r, calls)
                calls.region_ended()
            except EndOfText as end:
                calls.text_ended(end.open)
            except NotACall:
                continue
            return recording if recording.holds_calls_only() else None
        return None
