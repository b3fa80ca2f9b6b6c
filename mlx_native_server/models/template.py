"""A chat template: conversation in, prompt text out.

What a template could take from outside is fixed, so that the text is a function of the conversation alone: a date
is always the same day. Nothing is decided here about what a template can take (`traits.py`).
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jinja2
from transformers.utils.chat_template_utils import render_jinja_template

from ..parsers.thinking import CLOSERS, PROMPT_OPENERS
from ..protocol import bad_request

_FIXED = {"date_string": "26 Jul 2024"}
_DATE_PARTS = {
    "%Y": "2024", "%y": "24", "%m": "07", "%B": "July", "%b": "Jul", "%d": "26", "%-d": "26", "%e": "26",
    "%A": "Friday", "%a": "Fri", "%j": "208", "%H": "00", "%M": "00", "%S": "00",
}  # fmt: skip
# transformers gives templates a clock under this name; a macro of the same name hides it
_CLOCK = "strftime_now"
_NO_CLOCK = "{%- macro strftime_now(format) -%}{{- format" + "".join(f" | replace('{k}', '{v}')" for k, v in _DATE_PARTS.items()) + " -}}{%- endmacro %}\n"

_FAULTS = (TypeError, ValueError, KeyError, AttributeError, IndexError)

Messages = list[dict[str, Any]]
Draw = Callable[[Messages, "Messages | None", Mapping[str, Any], bool], str]


class ChatTemplate:
    """What draws a conversation, and the literal texts it may write. Safe from any thread."""

    def __init__(self, draw: Draw, literals: str = ""):
        self._draw = draw
        self.literals = literals

    def render(self, messages: Messages, tools: Messages | None, options: Mapping[str, Any], *, header: bool = True) -> str:
        """The prompt's text; with `header` it ends where the assistant begins to speak.

        Raises `ApiError` 400 with the template's own words where it refuses the conversation.
        """
        try:
            return self._draw(messages, tools or None, options, header)
        except jinja2.TemplateError as error:
            raise bad_request(f"messages: the model's chat template refuses this conversation: {error}") from error
        except _FAULTS as error:
            raise bad_request(f"messages: the model's chat template cannot render this conversation: {error}") from error

    def fault(self) -> str | None:
        """Why the template cannot be used at all, None where it can."""
        try:
            self._draw([{"role": "user", "content": "hello"}], None, {}, True)
        except jinja2.TemplateSyntaxError as error:
            return f"line {error.lineno}: {error}"
        except (jinja2.TemplateError, *_FAULTS):
            return None  # it may still take other conversations
        return None


def jinja_template(source: Callable[["Messages | None"], str], special_tokens: Mapping[str, Any], literals: str) -> ChatTemplate:
    """The usual kind. `source` gives its text for a request's tools (a few models have one of its own for them)."""
    names = {**special_tokens, **_FIXED}

    def draw(messages: Messages, tools: Messages | None, options: Mapping[str, Any], header: bool) -> str:
        text = source(tools)
        rendered, _ = render_jinja_template(
            [messages],
            tools=tools,
            chat_template=_NO_CLOCK + text if _CLOCK in text else text,
            add_generation_prompt=header,
            **names | dict(options),
        )
        return rendered[0]

    return ChatTemplate(draw, literals)


def python_template(apply: Callable[..., str]) -> ChatTemplate:
    """A template that mlx-lm has as Python code, for checkpoints that ship none."""

    def draw(messages: Messages, tools: Messages | None, options: Mapping[str, Any], header: bool) -> str:
        return apply(messages, tools=tools, add_generation_prompt=header, tokenize=False, **options)

    return ChatTemplate(draw)


def thinking_at_end(text: str) -> tuple[bool, bool]:
    """Whether a rendered prompt ends inside an open thought, and whether with a closed one."""
    end = text.rstrip()
    return end.endswith(PROMPT_OPENERS), end.endswith(CLOSERS)
