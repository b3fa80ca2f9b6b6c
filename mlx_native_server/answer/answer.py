"""What one answer says: the event writer, and what is kept back from it for a while.

Kept back are the opening that was begun for the model (never sent), a region that was meant as a call but is none (while
it is the answer's last part), and with `holds_text` all visible text. After `again` a second attempt is kept back too,
until `settle` says which text goes out, or a call does. Where regions begin and end is decided in `streaming`.
"""
from __future__ import annotations

import json
import re
from typing import Any, Collection

from .events import EventWriter
from .markdown import CodeTracker
from ..parsers.place import Place
from ..parsers.sink import Recording

NAME_WITHIN = 160
"""Characters of a region within which it must name a declared tool to be taken for a call of it."""
_BRACKET = re.compile(r"[{(<\[=]")


class FailedRegion:
    """The text of a region that is no call. `begun`: what was begun for the model in front of it; `ended`: it is complete."""

    def __init__(self, names: re.Pattern[str], begun: str, ended: bool):
        self.ended, self.gap = ended, ""
        self._names, self._begun = names, begun
        self._runs: list[str] = []
        self._head = begun  # enough of the beginning to judge by

    def add(self, run: str) -> None:
        """More of its text."""
        self._runs.append(run)
        if len(self._head) < NAME_WITHIN:
            self._head += run

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self._runs)

    def takes(self, run: str) -> bool:
        """Whether text that follows may belong to it: any while it may still be a call, behind its end white space."""
        return run.isspace() if self.ended else len(self._head) < NAME_WITHIN or self._named() is not None

    @property
    def tool(self) -> str:
        """The declared tool that was meant, "" where this was only a word about calls."""
        found = self._named()
        is_call = found and (self.ended or _BRACKET.search(self._begun + self.text, found.end()))
        return found[0] if is_call else ""

    def _named(self) -> re.Match[str] | None:
        return self._names.search(self._head, 0, NAME_WITHIN)


class Answer(EventWriter):
    """The writer, with the place in visible text that decides whether a mark counts.

    `ends`: marks that end an answer. `opening`: text begun for the model. `one_call`: nothing is written after the first complete call (`over`).
    `holds_text`: visible text waits for `settle`. `names`: a failed call of one of these tools waits for the answer's end.
    """

    def __init__(self, model: str, message_id: str | None = None, ends: tuple[str, ...] = (), *, opening: str = "",
                 one_call: bool = False, holds_text: bool = False, names: Collection[str] = ()):
        super().__init__(model, message_id)
        self.place = Place(ends)
        self.code = CodeTracker()
        self.behind = ""  # "call" or "thought" while nothing visible has followed it
        self.over = False
        self.salvaged = 0  # calls that were written as they were guessed
        self.failed: FailedRegion | None = None
        self._opening, self._one_call = opening, one_call
        self._made: list[tuple[str, list[str]]] = []  # name and JSON of the calls written
        self._salvaged: list[tuple[str, dict[str, Any]]] = []  # calls that wait: the model may write them again properly
        self._draft: Recording | None = None  # a call that may be one of them
        self._names = re.compile("|".join(rf"(?<!\w){re.escape(name)}(?!\w)" for name in names)) if names else None
        self._held: list[str] | None = [] if holds_text else None
        self._again = False

    # ── text ─────────────────────────────────────────────────────────────────────────────────────

    @property
    def has_text(self) -> bool:
        """Whether there is visible text, sent or kept back."""
        return self.failed is not None or bool(self._held) or super().has_text and not self._again

    @property
    def held(self) -> str | None:
        """The text that waits for `settle`; None where none does."""
        return None if self._held is None else "".join(self._held)

    def visible(self, run: str) -> None:
        """Text without marks."""
        self.code.text(run)
        self.text(run)
        if not run.isspace():
            self.behind = ""

    def raw_text(self, text: str) -> None:
        """Text of a region that is no call."""
        self.code.passed(text)
        if text.strip():
            self.write_salvaged()
            self.region_failed(ended=True)
        if self.failed:
            self.place.text(text)
            self.failed.add(self._unbegun(text))
        else:
            self.text(text)
        self.behind = ""

    def example_text(self, text: str) -> None:
        """Text of a region that shows a call: a second attempt has nothing to mend."""
        self.let_go()
        self.code.passed(text)
        self.text(text)
        self.behind = ""

    def text(self, text: str) -> None:
        self.place.text(text)
        if not text.isspace():
            self.write_salvaged()
        text = self._unbegun(text)
        if self.failed and not self.failed.takes(text):
            self.let_go()
        if self.failed and self.failed.gap:
            self.failed.gap += text
        elif self.failed:
            self.failed.add(text)
        else:
            self._send(text)

    def text_if_more_follows(self, text: str) -> None:
        if self.failed:
            self.failed.gap += text
        elif self._held is None:
            super().text_if_more_follows(text)
        elif text.isspace():
            self._held.append(text)

    def _unbegun(self, text: str) -> str:
        """The text without what of it was begun for the model."""
        begun, self._opening = self._opening[:len(text)], self._opening[len(text):]
        return text[len(begun):]

    def _send(self, text: str) -> None:
        if self._held is not None:
            self._held.append(text)
        elif not self.over:
            super().text(text)

    # ── what is kept back ────────────────────────────────────────────────────────────────────────

    def region_failed(self, ended: bool) -> None:
        """What comes now is the text of a region that is no call, complete or with its end to come."""
        if self._names and not self.failed and self._held is None:
            self.failed = FailedRegion(self._names, self._opening, ended)

    def region_closed(self, closer: str) -> bool:
        """A closing mark. True where it is the end of a failed region, which then has it."""
        if self.failed is None or self.failed.ended:
            return False
        self.failed.add(closer)
        self.failed.ended = True
        return True

    def let_go(self) -> None:
        """The failed region was not the answer's last part: it is text."""
        failed, self.failed = self.failed, None
        if failed:
            self._send(failed.text)
            self.text_if_more_follows(failed.gap)

    def again(self, opening: str) -> None:
        """From here on come the text and calls of a second attempt at what is kept back."""
        self.failed, self._held, self._opening, self._again = None, [], opening, True
        self.code, self.behind, self.place = CodeTracker(), "", Place(self.place.ends)

    def settle(self, text: str) -> None:
        """What goes out in place of all that is kept back."""
        self.failed, self._held, self._again = None, None, False
        self._send(text)

    # ── other blocks ─────────────────────────────────────────────────────────────────────────────

    def thinking(self, text: str) -> None:
        self.write_salvaged()
        if not self._again:
            super().thinking(text)

    def thinking_omitted(self, text: str) -> None:
        self.write_salvaged()
        if not self._again:
            super().thinking_omitted(text)

    def call_salvaged(self, call: tuple[str, dict[str, Any]]) -> None:
        """A call that was guessed: dropped where a parsed one equals it."""
        self.let_go()
        self.block_passed("call")
        if any(call == (name, json.loads("".join(made))) for name, made in self._made):
            return
        self._close()  # what follows does not belong to the text before
        self._salvaged.append(call)
        if self._one_call:
            self.write_salvaged()

    def write_salvaged(self) -> None:
        """The salvaged calls were not written again: they count."""
        waiting, self._salvaged = self._salvaged, []
        self.salvaged += len(waiting)
        code = self.code  # it stands behind them already
        for name, given in waiting:
            self.call_started(name)
            self.call_json(json.dumps(given, ensure_ascii=False))
            self.call_stopped(complete=True)
        self.code = code

    def call_started(self, name: str) -> None:
        if any(name == salvaged for salvaged, _ in self._salvaged):
            self._draft = Recording()
            return self._draft.call_started(name)
        self.write_salvaged()
        self._made.append((name, []))
        self.let_go()
        if self._held is not None:
            self.settle("" if self._again else self.held)
        self._opening = ""
        if not self.over:
            super().call_started(name)
            self.block_passed("call")

    def call_json(self, partial: str) -> None:
        if self._draft:
            return self._draft.call_json(partial)
        self._made[-1][1].append(partial)
        if not self.over:
            super().call_json(partial)

    def call_stopped(self, complete: bool) -> None:
        if self._draft:
            draft, self._draft = self._draft, None
            draft.call_stopped(complete)
            again = draft.calls() if complete else []
            self._salvaged = [call for call in self._salvaged if call not in again]
            self.write_salvaged()
            return draft.replay(self)
        if not complete:
            self._made.pop()
        if not self.over:
            super().call_stopped(complete)
            self.over = self._one_call and complete

    def message_passed(self) -> None:
        """A message of visible text begins or ends: what follows stands apart from what came before."""
        if not self.code.line_blank:
            self.text_if_more_follows("\n\n")
        self.code = CodeTracker()

    def block_passed(self, kind: str) -> None:
        """Text after another block begins on a line of its own."""
        self.behind = kind
        self.code = CodeTracker()
