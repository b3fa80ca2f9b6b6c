"""DeepSeek V3.2, V4 and V4.1: elements whose names carry a marker, and say whether a value is text or JSON.

    <｜DSML｜function_calls>
    <｜DSML｜invoke name="Read">
    <｜DSML｜parameter name="file_path" string="true">/a/b.txt</｜DSML｜parameter>
    <｜DSML｜parameter name="limit" string="false">20</｜DSML｜parameter>
    </｜DSML｜invoke>
    </｜DSML｜function_calls>

V4 writes `tool_calls` for the block; V4.1 `calls`, and a space behind each marker. The block may be missing, the
marker too, in opening and closing tags each.
"""
from __future__ import annotations

from . import tags
from .call import Calls
from .reader import Reader, Reading
from .tag_forms import NamedTags

MARKERS = ("｜DSML｜", "｜DSML｜ ", "")
BLOCKS = ("function_calls", "tool_calls", "toolcalls", "calls")


def _each(before: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{before}{marker}{name}" for name in names for marker in MARKERS)


FORM = NamedTags(
    call_marks=_each("<", "invoke"), call_ends=_each("</", "invoke>"), key_marks=_each("<", "parameter"),
    value_ends=_each("</", "parameter>"), block_marks=_each("<", *(f"{name}>" for name in BLOCKS)),
    block_ends=_each("</", *(f"{name}>" for name in BLOCKS)),
)
NAKED = tuple(mark for mark in FORM.call_marks if "DSML" in mark)
OPENERS = (*(mark for mark in FORM.block_marks if "DSML" in mark), "<function_calls>", "<tool_calls>", *NAKED)
LINE_OPENERS = ("<invoke name=",)


def parse(r: Reader, calls: Calls) -> Reading[None]:
    """One block, or invocations without one."""
    if calls.opener in FORM.block_marks:
        yield from tags.block(r, calls, FORM)
    else:
        yield from tags.naked(r, calls, FORM)
