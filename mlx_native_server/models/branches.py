"""Where a later prompt may branch off from this one.

An agent's next request repeats most of the conversation. The places where it can differ are known: behind system and
tools, before the last message that a person typed, and before what the assistant says now or said last. They are found
by rendering such a branch and looking how far the two texts agree, so no template has to be known.
"""
from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

from ..protocol import ApiError

Messages = list[dict[str, Any]]
Render = Callable[[Messages, bool], str]
"""The text of some messages, with or without the header of the answer. Raises `ApiError` where the template refuses."""

REACH_CHARS = 64
"""How far before a place its control token is looked for: a turn's header is shorter."""


def branch_offsets(text: str, messages: Messages, render: Render, control_texts: Collection[str], unused: str) -> list[int]:
    """Offsets into `text`, the rendering of `messages` with header, ascending.

    The tokens before each are those of every prompt that agrees up to there, if the text is encoded in parts cut at
    these offsets. `control_texts` spell the tokens at which a tokenizer cuts anyway; `unused` is a character that the
    conversation does not have.
    """
    found = set()
    for branch, header in _branches(messages, unused):
        try:
            agreed = agreement(text, render(branch, header))
        except ApiError:
            continue  # the template takes no such conversation, so no later prompt is one
        found.add(_cut(text, agreed, control_texts))
    return sorted(found - {0, len(text)})


def agreement(a: str, b: str) -> int:
    """How many characters two texts have in common at their start."""
    same, limit = 0, min(len(a), len(b))
    while same < limit:  # compare slices, not characters: prompts are long
        middle = (same + limit + 1) // 2
        if a[same:middle] == b[same:middle]:
            same = middle
        else:
            limit = middle - 1
    return same


def _branches(messages: Messages, unused: str) -> Iterator[tuple[Messages, bool]]:
    another = {"role": "user", "content": unused}
    typed = max((i for i, message in enumerate(messages) if message["role"] == "user"), default=None)
    said = max((i for i, message in enumerate(messages) if message["role"] == "assistant"), default=None)
    yield [message for message in messages[:1] if message["role"] == "system"] + [another], True
    if typed is not None:
        yield [*messages[:typed], another], True
    if said is not None:
        yield messages[:said], False
    yield messages, False


def _cut(text: str, offset: int, control_texts: Collection[str]) -> int:
    """Where to cut at or a little before `offset`: at a control token, where tokenizers cut anyway.

    Where none is near (a template with the tools inside the first user's message) it is `offset` itself. That is
    where the user's own words begin, the same place for every prompt with this head.
    """
    near = max((text.rfind(control, max(0, offset - REACH_CHARS), offset + len(control)) for control in control_texts), default=-1)
    return near if near >= 0 else offset
