"""Elements named by what they hold: Qwen3-Coder, Qwen3.5 and later, Nemotron 3.

    <tool_call>
    <function=Read>
    <parameter=file_path>
    /a/b.txt
    </parameter>
    </function>
    </tool_call>

Each value stands on lines of its own: one newline on each side is layout. Types come from the schema. The outer tag
may be missing (then only at the start of a line), the name an attribute, the arguments a JSON object (Llama).
"""
from __future__ import annotations

from dataclasses import replace

from . import tags
from .call import Calls
from .reader import Reader, Reading
from .tag_forms import NamedTags

FORM = NamedTags(
    call_marks=("<function",), call_ends=("</function>",), key_marks=("<parameter",), value_ends=("</parameter>",),
    block_marks=("<tool_call>",), block_ends=("</tool_call>",), padded=True,
)
FORMS = {
    "<tool_call>": FORM,
    "<tool_calls>": replace(FORM, block_marks=("<tool_calls>",), block_ends=("</tool_calls>",)),
}
OPENERS = tuple(FORMS)
LINE_OPENERS = ("<function=", "<function name=")


def parse(r: Reader, calls: Calls) -> Reading[None]:
    """One block, or functions without one."""
    if calls.opener in FORMS:
        yield from tags.block(r, calls, FORMS[calls.opener])
    else:
        yield from tags.naked(r, calls, FORM)
