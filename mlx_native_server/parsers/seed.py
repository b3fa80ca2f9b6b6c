"""Seed-OSS: Qwen's elements in a tag of its own, the values inline, so that every newline belongs to them.

    <seed:tool_call>
    <function=Read>
    <parameter=file_path>/a/b.txt</parameter>
    </function>
    </seed:tool_call>
"""
from __future__ import annotations

from dataclasses import replace

from . import qwen_xml, tags
from .call import Calls
from .reader import Reader, Reading

FORM = replace(qwen_xml.FORM, block_marks=("<seed:tool_call>",), block_ends=("</seed:tool_call>",), padded=False)
OPENERS = FORM.block_marks
LINE_OPENERS = (qwen_xml.NAKED, *qwen_xml.LINE_OPENERS)


def parse(r: Reader, calls: Calls) -> Reading[None]:
    """One block, or functions without one."""
    yield from (tags.block if calls.opener in OPENERS else tags.naked)(r, calls, FORM)
