"""LongCat: JSON in a tag, or GLM's tags with a prefix.

    <longcat_tool_call>
    {"name": "Read", "arguments": {"file_path": "/a/b.txt"}}
    </longcat_tool_call>

    <longcat_tool_call>Read
    <longcat_arg_key>file_path</longcat_arg_key>
    <longcat_arg_value>/a/b.txt</longcat_arg_value>
    </longcat_tool_call>
"""
from __future__ import annotations

from . import json_calls, tags
from .call import Calls
from .reader import Reader, Reading
from .tag_forms import KeyTags

FORM = KeyTags(
    call_marks=("<longcat_tool_call>",), call_ends=("</longcat_tool_call>",), key_marks=("<longcat_arg_key>",),
    value_ends=("</longcat_arg_value>",), key_end="</longcat_arg_key>", value_mark="<longcat_arg_value>",
)
OPENERS = FORM.call_marks


def parse(r: Reader, calls: Calls) -> Reading[None]:
    """One tag in either form."""
    start = r.offset
    yield from r.skip_space()
    if (yield from r.peek()) in ("{", "["):
        yield from json_calls.sequence(r, calls, FORM.call_ends)
        after = r.offset
        yield from r.skip_space()
        if not (yield from r.accept_closer(*FORM.call_ends)):
            r.rewind(after)
        return
    r.rewind(start)
    yield from tags.naked(r, calls, FORM)
