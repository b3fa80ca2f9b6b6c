"""The forms in which models write calls and thoughts: one file each, all with the same names.

A dialect is a module with `OPENERS` (literals that may begin a region anywhere in visible text), optionally
`LINE_OPENERS` (only as the first thing on a line), and `parse(reader, calls)`: a coroutine that reads one region
from after the opener (`calls.opener`) and reports each call to a builder from `calls.open()`. It raises `NotACall`
as early as it can tell, `EndOfText` where the text ends; it may return a `Thought` or `Prose`. A region without a
call is dropped as markup. Adding a dialect is adding a file and one row here.
"""
from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Callable, Iterator, Sequence

from . import (
    bare_json, deepseek, deepseek_dsml, functiongemma, gemma4, glm, harmony, json_tags, kimi, kimi_k3, llama3, longcat, minicpm, minimax, minimax_m3,
    mistral, muse, phi, pythonic, qwen_xml, seed, thinking, turns,
)
from .call import Calls
from .reader import Reader, Reading
from .thinking import Prose, Thought

Parse = Callable[[Reader, Calls], Reading[Thought | Prose | None]]


@dataclass(frozen=True)
class Dialect:
    """One row of the registry. `always`: its markup is read even when the request declares no tools."""

    name: str
    module: ModuleType
    always: bool = False

    def openers(self) -> Iterator[tuple[str, bool]]:
        """Each opener with whether it counts at the start of a line only."""
        yield from ((opener, False) for opener in self.module.OPENERS)
        yield from ((opener, True) for opener in getattr(self.module, "LINE_OPENERS", ()))


DIALECTS = (
    Dialect("thinking", thinking, always=True),
    Dialect("muse", muse, always=True),
    Dialect("harmony", harmony, always=True),
    Dialect("kimi_k3", kimi_k3, always=True),
    Dialect("json_tags", json_tags),
    Dialect("gemma4", gemma4),
    Dialect("qwen_xml", qwen_xml),
    Dialect("minicpm", minicpm),
    Dialect("seed", seed),
    Dialect("glm", glm),
    Dialect("longcat", longcat),
    Dialect("deepseek_dsml", deepseek_dsml),
    Dialect("minimax", minimax),
    Dialect("minimax_m3", minimax_m3),
    Dialect("functiongemma", functiongemma),
    Dialect("kimi", kimi),
    Dialect("deepseek", deepseek),
    Dialect("mistral", mistral),
    Dialect("phi", phi),
    Dialect("llama3", llama3),
    Dialect("pythonic", pythonic),
    Dialect("bare_json", bare_json),
)
"""Where several dialects share an opener, the model's own is tried first, then the others in this order: the
strictest first, those that take almost anything last. Each must refuse what is not its own (`NotACall`)."""

CLOSERS = (
    *json_tags.CLOSERS.values(), "<end_function_call>",
    *kimi.MARKS.call_ends, *kimi.MARKS.section_ends, *deepseek.MARKS.call_ends, *deepseek.MARKS.section_ends, mistral.CLOSER, *pythonic.CLOSERS.values(), *kimi_k3.CLOSERS,
    minimax_m3.CLOSER, *(end for module in (qwen_xml, seed, glm, longcat, minimax, deepseek_dsml) for end in (*module.FORM.call_ends, *module.FORM.block_ends)),
)
"""Closing marks of regions: directly behind a call, one too many is dropped; anywhere else it is text."""

SALVAGED = {opener: closer for opener, closer in json_tags.CLOSERS.items() if opener != "<|tool_call>"}
"""Marks between which a call that does not parse may be guessed at."""

TURN_MARKERS = turns.TURN_MARKERS
"""Marks that no answer holds outside code: they end it, as their token should have."""

END_MARKERS = (*turns.END_MARKERS, *kimi_k3.MESSAGE_CLOSERS)
"""Marks that an answer may well hold: they are dropped only at its very end."""


class Openers:
    """The openers that count for one answer, the model's own dialects (`formats`) first.

    Without tools only markup that holds no calls is read.
    """

    def __init__(self, formats: Sequence[str], tools: bool):
        own = [row for name in formats for row in DIALECTS if row.name == name]
        self._rows: dict[str, list[tuple[Dialect, bool]]] = {}
        for row in own + [row for row in DIALECTS if row not in own]:
            for opener, line_only in row.openers() if tools or row.always else ():
                self._rows.setdefault(opener, []).append((row, line_only))
        self.all = tuple(self._rows)
        of_calls = (opener for opener, rows in self._rows.items() if not all(row.always for row, _ in rows))
        self.of_calls = tuple(sorted(of_calls, key=len, reverse=True))

    def __contains__(self, mark: str) -> bool:
        return mark in self._rows

    def is_strong(self, opener: str) -> bool:
        """Whether the opener is a mark of its own that little else begins with."""
        return any(not line_only for _, line_only in self._rows[opener])

    def candidates(self, opener: str, line_blank: bool) -> list[Dialect]:
        """The dialects to try, in order. `line_blank`: the opener is the first thing on its line."""
        return [row for row, line_only in self._rows[opener] if line_blank or not line_only]
