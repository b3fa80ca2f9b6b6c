"""Tools that Claude Code runs although a request does not define them.

It tells the model of deferred tools by their names alone, and models know others of its tools from elsewhere. A call of
one goes to the client, whose answer tells the model what to do; left as text it would end the turn.
"""
from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ..protocol import Message, TextBlock, Tool

_DEFERRED = re.compile(r"^The following deferred tools are now[^\n]*\n((?:[A-Za-z0-9_.-]{1,128}(?:\n|\Z))+)", re.MULTILINE)


def deferred_names(message: Message) -> Iterator[str]:
    """The names in a message's lists of deferred tools."""
    for block in message.content if message.role != "assistant" else ():
        if isinstance(block, TextBlock):
            for listed in _DEFERRED.findall(block.text):
                yield from listed.split()


def unlisted(messages: Iterable[Message], tools: Iterable[Tool], known: Iterable[str] = ()) -> tuple[Tool, ...]:
    """Deferred tools, and the `known` ones, that are not among `tools`: never shown, and they take any arguments."""
    names = dict.fromkeys([name for message in messages for name in deferred_names(message)] + sorted(known))
    defined = {tool.name for tool in tools}
    return tuple(Tool(name, input_schema={}, defer_loading=True) for name in names if name not in defined)
