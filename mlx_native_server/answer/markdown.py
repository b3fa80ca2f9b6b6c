"""Where in visible text code is: there, marks of tool calls, thoughts and turns are content.

A code span is opened by a run of backticks and closed by a run of the same length, or by the end of its line; a
fence is a run of three or more at the start of a line. Links, indented code and everything else are not looked at.
"""
from __future__ import annotations

import re

LINE_MARKS = r"`+|~+"
"""What a scanner must find for a tracker, as a regular expression."""

RUNS = re.compile(r"`+|~+|[^`~]+")
TICKS = {"`": re.compile(r"`*"), "~": re.compile(r"~*")}

class CodeTracker:
    """Follows text line by line. `line_blank`: only white space so far on this line."""

    def __init__(self) -> None:
        self.line_blank = True
        self._span = ""  # the run that opened the open code span
        self._span_leads = False  # it is the first thing on its line: a fence, unless it is closed there
        self._fence = ""  # the run that opened the open fence

    @property
    def in_code(self) -> bool:
        """Whether the next character is code."""
        return bool(self._span or self._fence)

    def text(self, run: str) -> None:
        """Text without runs of backticks or tildes."""
        line = run.rfind("\n") + 1
        if line:
            if self._span_leads and len(self._span) >= 3:
                self._fence = self._span
            self._span, self._span_leads, self.line_blank = "", False, True
            run = run[line:]
        if self.line_blank and run and not run.isspace():
            self.line_blank = False

    def ticks(self, run: str) -> None:
        """A whole run of backticks or tildes."""
        if run[0] == "~" and len(run) < 3:
            self.line_blank = False
            return
        if self._fence:
            if self.line_blank and run[0] == self._fence[0] and len(run) >= len(self._fence):
                self._fence = ""
        elif self._span:
            if run == self._span:
                self._span = ""
        elif run[0] == "`" or self.line_blank:
            self._span, self._span_leads = run, self.line_blank
        self.line_blank = False

    def passed(self, text: str) -> None:
        """Text that was decided as a whole (a region that is no call)."""
        for run in RUNS.findall(text):
            self.ticks(run) if run[0] in TICKS else self.text(run)
