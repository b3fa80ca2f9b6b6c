"""Elements named by what they hold: Qwen3-Coder, Qwen3.5 and later, Nemotron 3.

    <tool_call>
    <function=Read>
    <parameter=file_path>
    /a/b.txt
    </parameter>
    </function>
    </tool_call>

Each value stands on lines of its own: one newline on each side is layout. Types come from the schema. The outer tag
may be missing (within a line only if the rest is laid out like a call), the name an attribute, the arguments a JSON
object (Llama).
"""
from __future__ import annotations

from dataclasses import replace

from . import tags
from .call import Calls
from .reader import NotACall, Reader, Reading
from .tag_forms import NamedTags, literal, space

NEWLINES = ("\n", "\r\n")

FORM = NamedTags(
    call_marks=("<function",), call_ends=("</function>",), key_marks=("<parameter",), value_ends=("</parameter>",),
    block_marks=("<tool_call>",), block_ends=("</tool_call>",), padded=True,
)
FORMS = {
    "<tool_call>": FORM,
    "<tool_calls>": replace(FORM, block_marks=("<tool_calls>",), block_ends=("</tool_calls>",)),
}
NAKED = "<function="
OPENERS = (*FORMS, NAKED)
LINE_OPENERS = ("<function name=",)


def parse(r: Reader, calls: Calls) -> Reading[None]:
    """One block, or functions without one."""
    if calls.opener in FORMS:
        return (yield from tags.block(r, calls, FORMS[calls.opener]))
    if calls.opener == NAKED and not _leads(calls) and not (yield from _in_layout(r, calls)):
        raise NotACall("a word of the text")
    yield from tags.naked(r, calls, FORM)


def _leads(calls: Calls) -> bool:
    """Whether the region surely begins its line."""
    before = calls.place.tail
    return not before.rpartition("\n")[2].strip() and bool(before or not calls.after_prose)


def _in_layout(r: Reader, calls: Calls) -> Reading[bool]:
    """Whether a function within a line is written as a call is: the first argument on lines of its own."""
    start = r.offset
    r.rewind(start - len(NAKED))
    head = yield from FORM.call(r, 0, calls.tools)
    at = head.size if head else 0
    at = (yield from space(r, at)) if head and (yield from literal(r, at, NEWLINES)) else 0
    key = (yield from FORM.key(r, at)) if at else None
    padded = key is not None and bool((yield from literal(r, at + key.size, NEWLINES)))
    r.rewind(start)
    return padded and not calls.place.shows_an_example
