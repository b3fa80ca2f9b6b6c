"""The tags between which models think, and the channel header of Gemma 4.

    <think>The list first.</think>Here it is.
    <|channel>thought
    The list first.<channel|>Here it is.

A parser whose region starts a thought returns `Thought`; the text up to one of its closers is then thinking.
"""
from __future__ import annotations

import re
from dataclasses import dataclass

from .call import Calls
from .reader import NotACall, Reader, Reading


@dataclass(frozen=True)
class Thought:
    """What follows is thinking, up to the first of `closers`, or before the first of `next_openers`."""

    closers: tuple[str, ...]
    next_openers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Prose:
    """What follows is a message of visible text. From here on `closers` are markup, except in code."""

    closers: tuple[str, ...]


TAGS = {
    "<think>": "</think>",  # Qwen, DeepSeek, GLM, Hermes, Kimi, MiniMax M2, Nemotron, LFM2
    "<|channel>": "<channel|>",  # Gemma 4
    "[THINK]": "[/THINK]",  # Mistral
    "<seed:think>": "</seed:think>",  # Seed-OSS
    "<mm:think>": "</mm:think>",  # MiniMax M3
    "<|open|>think<|sep|>": "<|close|>think<|sep|>",  # Kimi K3
    "<longcat_think>": "</longcat_think>",  # LongCat
    "<|think:start|>": "<|think:end|>",
}
OPENERS = tuple(TAGS)
CLOSERS = tuple(TAGS.values())

CHANNEL_OPENER = "<|channel>"
PROMPT_OPENERS = tuple(f"{tag}thought" if tag == CHANNEL_OPENER else tag for tag in TAGS)
"""How a chat template ends where it has opened a thought."""

CHANNEL = re.compile(r"[a-z]*")
CHANNELS = ("", "thought", "analysis")  # any other name introduces visible text


def parse(r: Reader, calls: Calls) -> Reading[Thought | None]:
    """The opener of a thought; for a channel, its name and newline too."""
    thought = Thought((TAGS[calls.opener],))
    if calls.opener != CHANNEL_OPENER:
        return thought
    name = yield from r.run(CHANNEL)
    if not (yield from r.accept("\n")) and not (yield from r.at(thought.closers[0])):
        if r.pos < len(r.text) or not any(channel.startswith(name) for channel in CHANNELS):
            raise NotACall("no channel name")
    return thought if name in CHANNELS else None
