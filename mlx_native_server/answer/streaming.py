"""One answer: the model's text in, Anthropic's events out. Pure, and the only place that builds a response.

`ResponseStream` is a coroutine over one `Reader`, in one of three modes: visible text, a thought, a region that may
be a call. In visible text it looks for the marks of `parsers` and for stop sequences, and holds back only what may
become one. Marks in code (`markdown`) are content. A region that is no call is text. The same text gives the same
message however it is cut. Usage numbers, time and transport are the caller's.
"""
from __future__ import annotations

import logging
from typing import Iterable, Sequence

from .answer import Answer
from .events import encode_event, fold
from .markdown import LINE_MARKS, TICKS
from ..parsers import CLOSERS, END_MARKERS, SALVAGED, TURN_MARKERS, Openers, thinking
from ..parsers.call import Calls
from ..parsers.reader import EndOfText, Markers, NotACall, Reader, Reading
from ..parsers.salvage import region, salvage
from ..parsers.schema import Tools
from ..parsers.thinking import Prose, Thought
from ..parsers.turns import HEADERS
from ..protocol import Event, Tool
from .thoughts import ThoughtReader, is_quoted

__all__ = ["ResponseStream", "encode_event", "fold"]

logger = logging.getLogger(__name__)

CHANNEL_NAME = "thought\n"  # Gemma 4 may still write it behind a thought that the prompt closed


class ResponseStream:
    """Turns one answer's text into events: `start`, `feed` for each piece, `finish`.

    `formats`: the model's own dialects, tried first. `opens_thinking`: the prompt ended inside a thought;
    `suppresses_thinking`: behind a closed one. Without `show_thinking` thoughts are dropped; with `omit_thinking` there
    are blocks without their text. `opening` was begun for the model: it is read first and not sent. `one_call`: the answer
    ends after a call. `holds_text`, `holds_failed`: text, or a call gone wrong, waits for the end (see `end`).
    """

    def __init__(
        self, *, model: str, tools: Sequence[Tool], formats: Sequence[str] = (), opens_thinking: bool = False,
        suppresses_thinking: bool = False, show_thinking: bool = True, omit_thinking: bool = False, stop_sequences: Iterable[str] = (),
        message_id: str | None = None, opening: str = "", one_call: bool = False, holds_text: bool = False, holds_failed: bool = False,
    ):
        self._stopped = False
        self._stop_sequence: str | None = None
        self._stops = frozenset(filter(None, stop_sequences))
        self._tools = Tools(tools)
        self._out = Answer(model, message_id, (*TURN_MARKERS, *END_MARKERS, *self._stops), opening=opening, one_call=one_call,
                           holds_text=holds_text, names=[tool.name for tool in tools] if holds_failed else ())
        self._put_thought = self._out.thinking if show_thinking else self._out.thinking_omitted if omit_thinking else lambda thought: None
        self._thought: ThoughtReader | None = None  # the one that is being read
        self._message_ends: tuple[str, ...] = ()  # markup, once the model is known to frame its messages
        self._openers = Openers(formats, bool(self._tools))
        closers = CLOSERS if self._tools else ()
        self._marks = Markers.of((*self._openers.all, *thinking.CLOSERS, *closers, *TURN_MARKERS, *END_MARKERS, *sorted(self._stops)), LINE_MARKS)
        self._read(opening, opens_thinking, suppresses_thinking)

    @property
    def stopped(self) -> bool:
        """A stop sequence, a leaked turn marker or the only call's end was reached: more text has no effect."""
        return self._stopped or self._out.over

    @property
    def open_thought(self) -> tuple[str, ...]:
        """The marks that would close the thought which is being read, () where none is or a call in it is."""
        return self._thought.closers if self._thought and not self._thought.on_trial else ()

    @property
    def in_call(self) -> bool:
        """Whether what is read now belongs to a call, or may still turn out to."""
        return self._out.in_call or self._reader.holds

    @property
    def failed_call(self) -> str:
        """After `end`: the tool whose call was the answer's last part and went wrong, "" for none. Its text is kept back."""
        return self._out.failed.tool if self._out.failed else ""

    @property
    def kept_back(self) -> str | None:
        """After `end`: the text that is kept back, None where none is."""
        return self._out.failed.text if self._out.failed else self._out.held

    @property
    def stop_sequence(self) -> str | None:
        """The client's stop sequence that ended the answer."""
        return self._stop_sequence

    @property
    def calls(self) -> int:
        """How many complete calls there are."""
        return self._out.calls

    @property
    def salvaged(self) -> int:
        """How many of them were guessed."""
        return self._out.salvaged

    def start(self, input_tokens: int, cache_read_tokens: int = 0) -> list[Event]:
        """`message_start`: how many tokens of the prompt are computed, and how many come from the cache."""
        self._out.start(input_tokens, cache_read_tokens)
        return self._out.drain()

    def feed(self, text: str) -> list[Event]:
        """The next piece of the model's text."""
        if text and not self._over:
            self._reader.feed(text)
            self._advance()
        return self._out.drain()

    def end(self, reason: str) -> list[Event]:
        """The end of the text: the model stopped (`stop`), the token limit was reached (`length`), or it was cut off (`cut`).

        What is kept back then can have a second attempt (`again`) or another text (`settle`) before the answer is over.
        """
        self._reader.close(cut=reason != "stop" and not self.stopped)
        self._advance()
        if not self._over:
            raise RuntimeError("a parser asked for text after the end")
        self._out.write_salvaged()
        return self._out.drain()

    def again(self, opening: str = "") -> None:
        """A second attempt at what is kept back: of its text, fed from now on, only calls go out by themselves."""
        self._out.again(opening)
        self._stopped, self._stops = False, frozenset()
        self._read(opening)

    def settle(self, text: str) -> list[Event]:
        """Send this text in place of what is kept back."""
        self._out.settle(text)
        return self._out.drain()

    def finish(self, reason: str, output_tokens: int) -> list[Event]:
        """The answer is over, with all that is kept back. `reason` as for `end`, which this includes where it was not called."""
        events = [] if self._reader.eof else self.end(reason)
        self._out.let_go()
        self._out.settle(self._out.held or "")
        limit = reason == "length" and not self.stopped
        why = "stop_sequence" if self._stop_sequence else "max_tokens" if limit else "tool_use" if self.calls else "end_turn"
        self._out.finish(why, self._stop_sequence, output_tokens)
        return events + self._out.drain()

    def _read(self, opening: str, opens_thinking: bool = False, suppresses_thinking: bool = False) -> None:
        """Begin to read a text."""
        self._reader = Reader(opening)
        self._thought_over = self._over = False
        self._task = self._run(opens_thinking, suppresses_thinking)
        if opening:
            self._advance()

    def _advance(self) -> None:
        if not self._over:
            self._over = next(self._task, self) is self  # the coroutine yields None, never self

    def _run(self, opens_thinking: bool, suppresses_thinking: bool) -> Reading[None]:
        if suppresses_thinking:
            yield from self._reader.accept(CHANNEL_NAME)
        yield from self._reader.accept(*HEADERS)
        if opens_thinking:
            yield from self._read_thought(Thought(thinking.CLOSERS))
        while not self.stopped and (yield from self._visible_text()):
            pass

    # ── visible text ─────────────────────────────────────────────────────────────────────────────

    def _visible_text(self) -> Reading[bool]:
        """Visible text up to and with the next mark. False at the end."""
        r, out = self._reader, self._out
        mark, safe = self._marks.search(r.text, r.pos, r.eof)
        if safe > r.pos:
            out.visible(r.take(safe - r.pos))
        if mark is None:
            if r.eof:
                return False
            yield
        elif mark in self._stops and (out.has_text or not mark.isspace()):
            self._stop_sequence, self._stopped = mark, True
        elif mark[0] in TICKS and mark not in self._openers or out.code.in_code or (yield from self._quoted(mark)):
            yield from self._plain(mark)
        elif mark in self._openers:
            yield from self._region(mark)
        elif mark in self._message_ends:
            r.take(len(mark))
            out.message_passed()
        elif mark in TURN_MARKERS:
            logger.info("the answer ended at a leaked %s", mark)
            self._stopped = True
        elif mark in END_MARKERS:
            out.text_if_more_follows(r.take(len(mark)))
        elif mark in CLOSERS and out.region_closed(mark) or self._closes_nothing(mark):
            r.take(len(mark))
        else:
            yield from self._plain(mark)
        return True

    def _closes_nothing(self, closer: str) -> bool:
        """Whether a stray closing mark is noise: one too many behind its block, or of a thought that never opened."""
        if closer in CLOSERS:
            return self._out.behind == "call"
        return bool(self._out.behind) or not self._thought_over

    def _quoted(self, mark: str) -> Reading[bool]:
        """Whether the turn marker that comes next stands alone between quotation marks: the answer is about it."""
        return mark in TURN_MARKERS and (yield from is_quoted(self._reader, mark, self._out.place.tail[-1:]))

    def _plain(self, mark: str) -> Reading[None]:
        """A mark that is content; for others inside it only its first character (or run) is passed."""
        r, out = self._reader, self._out
        if mark[0] in TICKS:
            run = yield from r.run(TICKS[mark[0]])
            out.code.ticks(run)
            out.text(run)
            out.behind = ""
        else:
            out.visible(r.take(1))

    # ── regions ──────────────────────────────────────────────────────────────────────────────────

    def _region(self, opener: str) -> Reading[None]:
        """What an opener begins: calls, a thought, or nothing of the kind; then it is text."""
        r, out = self._reader, self._out
        start, leads = r.hold(), out.code.line_blank
        if self._openers.is_strong(opener) or out.failed and out.failed.ended:
            out.let_go()
        for dialect in self._openers.candidates(opener, leads):
            r.rewind(start)
            r.take(len(opener))
            calls = Calls(r, self._tools, out, opener, start, out.has_text, out.place, salvages=leads and opener in SALVAGED)
            try:
                thought = yield from dialect.module.parse(r, calls)
                calls.region_ended()
            except EndOfText as end:
                calls.text_ended(end.open)
                thought = None
            except NotACall as reason:
                if calls.committed:
                    logger.info("a call broke off (%s)", reason)
                    calls.current.abandon()
                    self._stopped = True  # no block may follow an unfinished one
                    return
                if calls.settled == start:
                    continue
                r.rewind(calls.settled)
                thought = None
            if isinstance(thought, Prose):
                self._message_ends = thought.closers
                out.message_passed()
            elif thought is not None and (leads or thought.next_openers or (yield from self._closes(thought))):
                yield from self._read_thought(thought)
            elif thought is not None:
                break
            r.release()
            return
        r.rewind(start)
        yield from self._no_call(opener, leads)

    def _no_call(self, opener: str, leads: bool) -> Reading[None]:
        """A region that no dialect could read: it is salvaged, or text."""
        if leads and opener in SALVAGED and (yield from self._salvaged(opener)):
            return
        self._reader.release()
        if leads and opener in self._openers.of_calls and self._openers.is_strong(opener):
            self._out.region_failed(ended=False)
        yield from self._plain(opener)

    def _salvaged(self, opener: str) -> Reading[bool]:
        """Whether the region that begins here, which no dialect could read, can be salvaged. Passes it then."""
        r, start = self._reader, self._reader.offset
        found = salvage((yield from region(r, opener, SALVAGED[opener], self._tools)), self._tools)
        for call in found:
            self._out.call_salvaged(call)
        if not found:
            r.rewind(start)
        r.release()
        return bool(found)

    def _closes(self, thought: Thought) -> Reading[bool]:
        """Whether a thought that begins within a line is closed at all; if not, its opener was a word of the text."""
        r = self._reader
        start = r.offset
        closed = yield from r.until(thought.closers, lambda run: None)
        r.rewind(start)
        return bool(closed)

    def _read_thought(self, thought: Thought) -> Reading[None]:
        """A thought from after its opener to its end, and the calls that may stand there."""
        out = self._out
        self._reader.release()
        self._thought = reading = ThoughtReader(self._reader, self._tools, self._openers, self._put_thought)
        yield from reading.read(thought)
        self._thought = None
        self._stopped = self._stopped or reading.stopped
        self._thought_over = True
        out.close_thought()
        out.block_passed("thought")
        for calls in reading.calls:
            calls.replay(out)
