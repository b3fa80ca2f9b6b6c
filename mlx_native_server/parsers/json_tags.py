"""JSON in tags: Qwen2.5, Qwen3, Hermes, Granite, Phi-4, Nemotron Nano, and what most models fall back to.

    <tool_call>
    {"name": "Read", "arguments": {"file_path": "/a/b.txt", "limit": 20}}
    </tool_call>

A tag may hold several objects or a list of them. An empty pair is noise.
"""
from __future__ import annotations

import re

from . import json_calls
from .call import Calls
from .reader import Reader, Reading

CLOSERS = {
    "<tool_call>": "</tool_call>", "<tool_calls>": "</tool_calls>", "<tools>": "</tools>",
    "<function_call>": "</function_call>", "<|tool_call>": "<tool_call|>", "<|tool_call|>": "<|/tool_call|>", "<TOOLCALL>": "</TOOLCALL>",
}
OPENERS = tuple(CLOSERS)
STRAY = re.compile(r"[\s}\])]*")  # brackets that close nothing


def parse(r: Reader, calls: Calls) -> Reading[None]:
    """One tag, from after its opener to after its closer."""
    closer = CLOSERS[calls.opener]
    yield from r.skip_space()
    while (yield from r.accept(calls.opener)):
        yield from r.skip_space()
    if (yield from r.accept(closer)):
        return
    fenced = yield from r.accept("```json", "```")
    yield from json_calls.sequence(r, calls, (closer, "```") if fenced else (closer,))
    after = r.offset
    yield from r.run(STRAY)
    if fenced:
        yield from r.accept("```")
        yield from r.skip_space()
    if (yield from r.accept_closer(closer)):
        return
    if (yield from r.accept(calls.opener)):
        yield from r.skip_space()  # it stands for the closer where nothing follows it
    if (yield from r.peek()):
        r.rewind(after)  # the closer was forgotten; what follows is the answer's
