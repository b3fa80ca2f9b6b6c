"""functiongemma: the form of Gemma 4 with other marks.

    <start_function_call>call:Edit{path:<escape>/tmp/a b<escape>,n:3}<end_function_call>
"""
from __future__ import annotations

from . import gemma4
from .call import Calls
from .reader import Reader, Reading

FORM = gemma4.Form("<escape>", "<end_function_call>")
OPENERS = ("<start_function_call>",)


def parse(r: Reader, calls: Calls) -> Reading[None]:
    """One block, from after its opener to after its closer."""
    yield from gemma4.block(r, calls, FORM)
