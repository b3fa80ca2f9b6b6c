"""What Claude Code sends back otherwise than the model wrote it, or elsewhere than it belongs.

A call comes back with a default in front, so the model's own tokens would not be found again. A skill's instructions and
an image's size come as texts behind the results: as a message of the user's they would begin a new round, for which
templates that drop older thoughts render everything before it anew.
"""
from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from .block_text import is_reminder
from ..protocol import Block, ImageBlock, TextBlock, ToolResultBlock, ToolUseBlock

_INTERRUPTED, _IMAGE, _SKILL = "[Request interrupted", "[Image: ", "Launching skill: "


def as_written(block: Block) -> Block:
    """An Edit as models write it: `replace_all` behind what is required, and only where it is true."""
    if not (isinstance(block, ToolUseBlock) and block.name == "Edit" and next(iter(block.input), "") == "replace_all"):
        return block
    given = dict(block.input)
    everywhere = given.pop("replace_all")
    return dataclasses.replace(block, input=given | ({"replace_all": everywhere} if everywhere is not False else {}))


def with_results(content: Sequence[Block]) -> tuple[Block, ...]:
    """A user's message with such texts in the results that they belong to."""
    results = {n: block for n, block in enumerate(content) if isinstance(block, ToolResultBlock)}
    images = [n for n, result in results.items() if any(isinstance(part, ImageBlock) for part in result.content)]
    skills = [n for n, result in results.items() if _launches_skill(result)]
    texts = {n: block for n, block in enumerate(content) if isinstance(block, TextBlock) and not is_reminder(block.text)}
    if any(block.text.startswith(_INTERRUPTED) for block in texts.values()):
        return tuple(content)  # what a person typed follows
    moved = set()
    for n, block in texts.items():
        owners = images[-1:] if block.text.startswith(_IMAGE) else skills
        if owners:
            at = owners.pop(0) if len(owners) > 1 else owners[0]
            results[at] = dataclasses.replace(results[at], content=(*results[at].content, block))
            moved.add(n)
    return tuple(results.get(n, block) for n, block in enumerate(content) if n not in moved)


def _launches_skill(result: ToolResultBlock) -> bool:
    return any(isinstance(part, TextBlock) and part.text.startswith(_SKILL) for part in result.content)
