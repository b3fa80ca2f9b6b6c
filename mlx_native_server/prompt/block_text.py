"""Content blocks as text: what a model that only reads text is told of an image, a document or a found tool.

Nothing vanishes: what cannot be shown leaves a line that says what stood there.
"""
from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..protocol import (
    Block, DocumentBlock, ImageBlock, Message, OtherBlock, TextBlock, Tool, ToolReferenceBlock, ToolResultBlock,
)  # fmt: skip
from .tools_text import definition_text

OPEN, CLOSE = "<system-reminder>", "</system-reminder>"
"""How the client marks a text that no person typed."""


def _document(block: DocumentBlock) -> str:
    named = f' "{block.title}"' if block.title else ""
    if block.text is None:
        return f"[A document{named} ({block.media_type or 'kind unknown'}) stands here; its text is not available.]"
    return f"<document{f' title={named[1:]}' if named else ''}>\n{block.text}\n</document>"


_SHOWN: dict[type, Callable[[Any], str]] = {
    TextBlock: lambda block: block.text,
    ImageBlock: lambda block: f"[An image ({block.media_type}) stands here; this model cannot see it.]",
    DocumentBlock: _document,
    ToolReferenceBlock: lambda block: f"Tool found: {block.tool_name}",
    OtherBlock: lambda block: f"[A block of the type {block.type} stands here; it is not shown.]",
}


def shown(block: Block) -> str:
    """The text of a block that is no call, result or thought."""
    return _SHOWN[type(block)](block)


def message_text(message: Message) -> str:
    """All of a message that has neither calls nor results."""
    return lines(map(shown, message.content))


def lines(texts: Iterable[str]) -> str:
    """The texts that are not blank, one a line."""
    return "\n".join(text for text in texts if text.strip())


def paragraphs(texts: Iterable[str]) -> str:
    """The texts that are not blank, with an empty line between."""
    return "\n\n".join(text for text in texts if text.strip())


def is_reminder(text: str) -> bool:
    """Whether the client marked this text as not typed by a person."""
    return text.lstrip().startswith(OPEN)


def marked(text: str) -> str:
    """The text, marked as not typed by a person."""
    return text if is_reminder(text) else f"{OPEN}\n{text}\n{CLOSE}"


# ── definitions of deferred tools ────────────────────────────────────────────────────────────────


def with_definitions(messages: Sequence[Message], deferred: Iterable[Tool], as_json: bool) -> tuple[Message, ...]:
    """The messages with the definition of each deferred tool in place of the first reference to it.

    There and not at the head, so that what was rendered before stays as it was. `as_json` as `definition_text` has it.
    """
    left = {tool.name: tool for tool in deferred}
    if not left:
        return tuple(messages)

    def define(block: Block, inside: bool) -> Block:
        if isinstance(block, ToolResultBlock):
            return dataclasses.replace(block, content=tuple(define(part, True) for part in block.content))
        if isinstance(block, ToolReferenceBlock) and (tool := left.pop(block.tool_name, None)):
            text = f"{shown(block)}. It can be called like the other tools:\n{definition_text(tool, as_json)}"
            return TextBlock(text if inside else marked(text))
        return block

    return tuple(dataclasses.replace(message, content=tuple(define(block, False) for block in message.content)) for message in messages)
