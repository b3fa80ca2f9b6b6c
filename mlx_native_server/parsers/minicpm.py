"""MiniCPM5: functions with parameters as XML, without a block around them.

    <function name="Write"><param name="file_path">/a/b.txt</param><param name="content"><![CDATA[a < b]]></param></function>

A value is CDATA, literal up to the mark before its closing tag, or text with entities. Types come from the schema.
"""
from __future__ import annotations

from . import tags
from .call import Calls
from .reader import Reader, Reading
from .tag_forms import NamedTags

FORM = NamedTags(
    call_marks=("<function",), call_ends=("</function>",), key_marks=("<param",), value_ends=("</param>",),
    block_ends=("</tool_call>",), xml=True,
)
LINE_OPENERS = ("<function name=",)
OPENERS = ("<tool_call>",)


def parse(r: Reader, calls: Calls) -> Reading[None]:
    """The functions that follow one another; a tag around them is none of this model's, but met."""
    if calls.opener in OPENERS:
        yield from tags.block(r, calls, FORM)
    else:
        yield from tags.naked(r, calls, FORM)
