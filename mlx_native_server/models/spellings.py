"""Control tokens that a client's text merely spells.

A file may hold `<|im_end|>` as text. The model must read those characters, not the token, and the template must not
act on them. So before rendering, each spelling in the client's strings becomes a private-use character that the prompt
does not have otherwise; after it, the text is cut there. The text itself is never changed.
"""
from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from ..protocol import Prompt, bad_request

_PRIVATE = re.compile("[\ue000-\uf8ff\U000f0000-\U000ffffd\U00100000-\U0010fffd]")
_PLACEHOLDERS = (range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE), range(0xE000, 0xF900))


class Hidden:
    """One prompt's spellings and the characters that stand for them; `end_mark` is one more unused character."""

    def __init__(self, found: Iterable[str], used: set[str]):
        free = (chr(code) for code in chain(*_PLACEHOLDERS) if chr(code) not in used)
        self.end_mark = next(free, "")
        self.by_spelling = dict(zip(sorted(set(found)), free))
        self._by_placeholder = {placeholder: text for text, placeholder in self.by_spelling.items()}
        self._cut = re.compile("([" + "".join(self._by_placeholder) + "])") if self._by_placeholder else None

    def cut(self, text: str) -> Iterator[tuple[str, bool]]:
        """Non-empty pieces of a rendered text in order, each with whether it is a spelling (then as it was spelled)."""
        pieces = self._cut.split(text) if self._cut else [text]
        for i, piece in enumerate(pieces):
            if piece:
                yield (self._by_placeholder[piece], True) if i % 2 else (piece, False)

    def show(self, text: str) -> str:
        """The rendered text as the client spelled it."""
        return "".join(piece for piece, _ in self.cut(text))


class Spellings:
    """The texts that a tokenizer would read as control tokens."""

    def __init__(self, texts: Iterable[str]):
        longest_first = sorted(set(texts), key=lambda text: (-len(text), text))
        self._any = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def hide(self, prompt: Prompt) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None, Hidden]:
        """The prompt's messages and tools with placeholders, and what they stand for. The prompt is left as it is."""
        strings = list(_strings([prompt.messages, prompt.tools]))
        found = {text for string in strings for text in self._any.findall(string)} if self._any else set()
        used = {char for string in strings for char in _PRIVATE.findall(string)}
        hidden = Hidden(found, used)
        if not hidden.end_mark or len(hidden.by_spelling) < len(found):
            raise bad_request("messages: every private-use character is taken")
        if not found or self._any is None:
            return prompt.messages, prompt.tools, hidden
        messages, tools = _replace([prompt.messages, prompt.tools], self._any, hidden.by_spelling)
        return messages, tools, hidden


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from chain(_strings(key), _strings(item))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings(item)


def _replace(value: Any, spelling: re.Pattern[str], by_spelling: dict[str, str]) -> Any:
    if isinstance(value, str):
        return spelling.sub(lambda match: by_spelling[match[0]], value)
    if isinstance(value, Mapping):
        return {_replace(key, spelling, by_spelling): _replace(item, spelling, by_spelling) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_replace(item, spelling, by_spelling) for item in value]
    return value
