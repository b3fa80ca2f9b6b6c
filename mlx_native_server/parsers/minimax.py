"""Invocations with named parameters: MiniMax M2.

    <minimax:tool_call>
    <invoke name="Read">
    <parameter name="file_path">/a/b.txt</parameter>
    </invoke>
    </minimax:tool_call>

Values are inline: their white space is theirs. Types come from the schema. The block may be missing (then only
at the start of a line). MiniMax M3 writes another form (`minimax_m3`).
"""
from __future__ import annotations

from . import tags
from .call import Calls
from .reader import Reader, Reading
from .tag_forms import NamedTags

FORM = NamedTags(
    call_marks=("<invoke",), call_ends=("</invoke>",), key_marks=("<parameter",), value_ends=("</parameter>",),
    block_marks=("<minimax:tool_call>",), block_ends=("</minimax:tool_call>",),
)
OPENERS = FORM.block_marks
LINE_OPENERS = ("<invoke name=",)


def parse(r: Reader, calls: Calls) -> Reading[None]:
    """One block, or invocations without one."""
    yield from (tags.block if calls.opener in OPENERS else tags.naked)(r, calls, FORM)
