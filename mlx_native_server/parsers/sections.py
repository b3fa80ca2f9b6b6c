"""Calls between marks of their own, together between marks of a section: the frame of Kimi K2 and DeepSeek.

Read too: a call without its section, marks that are missing or cut off at the end, and an empty section.
What stands between a call's marks is the dialect's.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

from .call import Calls
from .reader import EndOfText, NotACall, Reader, Reading


@dataclass(frozen=True)
class Marks:
    """The spellings of each mark, the usual one first."""

    section_begins: tuple[str, ...]
    section_ends: tuple[str, ...]
    call_begins: tuple[str, ...]
    call_ends: tuple[str, ...]

    @property
    def openers(self) -> tuple[str, ...]:
        """What a region can begin with."""
        return self.section_begins + self.call_begins

    @property
    def ends(self) -> tuple[str, ...]:
        """What ends a call whose own brackets are missing."""
        return self.call_ends + self.section_ends + self.call_begins


def parse(r: Reader, calls: Calls, marks: Marks, one: Callable[[Reader, Calls], Reading[None]]) -> Reading[None]:
    """A section or a bare call, from after its opener. `one` reads a call up to its closing mark."""
    if calls.opener in marks.section_begins:
        yield from r.skip_space()
        if not (yield from r.accept(*marks.call_begins)):
            if (yield from r.accept_closer(*marks.section_ends)):
                return
            raise NotACall("no call") if r.pos < len(r.text) else EndOfText()
    while True:
        yield from one(r, calls)
        after = r.offset
        yield from r.skip_space()
        if (yield from r.accept_closer(*marks.call_ends)):
            after = r.offset
            yield from r.skip_space()
        if (yield from r.accept_closer(*marks.section_ends)):
            return
        if not (yield from r.accept(*marks.call_begins)):
            r.rewind(after)
            return
