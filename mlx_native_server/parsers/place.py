"""Where in an answer a call stands: what precedes it, and what may end the answer behind it.

Only calls without marks of their own need to know: an object in the middle of an explanation is an example.
"""
from __future__ import annotations

import re
from dataclasses import dataclass

TAIL = 160  # characters of visible text that are looked at
INTRODUCES_AN_EXAMPLE = re.compile(
    r"\b(for|an|another|this|some|simple) examples?\b(?!\.\w)|\bexamples?:|\be\.g\.|\bfor instance\b|\bsuch as\b|\blooks? like\b|\bsample (call|request|body|payload)"
    r"|\bwould (be|look|call|use|send|run|write)\b|\bcould (be|look)\b|\b(this|following) (format|syntax|schema|structure|shape|form)\b"
    r"|(\bnot|n't|\bnever) (going to )?(run|call|execute|use|send|do)\b",
    re.IGNORECASE,
)


@dataclass
class Place:
    """`ends`: marks that end the answer. `tail`: the visible text before. `example`: a call was left as an example."""

    ends: tuple[str, ...] = ()
    tail: str = ""
    example: bool = False

    def text(self, run: str) -> None:
        """More visible text."""
        self.tail = (self.tail + run)[-TAIL:] if len(run) < TAIL else run[-TAIL:]

    @property
    def shows_an_example(self) -> bool:
        """Whether what follows is rather shown than meant, by what was said before."""
        lines = self.tail.strip().splitlines()
        return self.example or bool(lines and INTRODUCES_AN_EXAMPLE.search(lines[-1]))
