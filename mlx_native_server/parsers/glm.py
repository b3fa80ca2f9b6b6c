"""Keys and values in tags of their own: GLM 4.5 to 5.

    <tool_call>Read
    <arg_key>file_path</arg_key>
    <arg_value>/a/b.txt</arg_value>
    </tool_call>

From 4.7 on without the newlines. Values are inline: their white space is theirs. Types come from the schema.
"""
from __future__ import annotations

from . import tags
from .call import Calls
from .reader import Reader, Reading
from .tag_forms import KeyTags

FORM = KeyTags(
    call_marks=("<tool_call>",), call_ends=("</tool_call>",), key_marks=("<arg_key>",), value_ends=("</arg_value>",),
    key_end="</arg_key>", value_mark="<arg_value>",
)
OPENERS = FORM.call_marks


def parse(r: Reader, calls: Calls) -> Reading[None]:
    """One call, and those that follow it directly."""
    yield from tags.naked(r, calls, FORM)
