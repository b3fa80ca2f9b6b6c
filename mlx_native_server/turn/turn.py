"""What one answer is made from: the request, its encoded prompt, and the model's tokenizer and traits.

Here is decided what follows from those alone: which tools can be called, in which dialects calls are read, what is
begun for the model where the client demands a call. Nothing here waits for the model.
"""
from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from . import forced
from ..answer.streaming import ResponseStream
from ..prompt.conversion import offered_tools, to_prompt
from ..prompt.effort import thinking_budget
from ..protocol import Encoded, Prompt, Request, Sampling, Thinking, Tool, Traits


Count = Callable[[str, int], None]
"""Takes a counter's name and how much it grows; any thread may call it."""


def nobody_counts(name: str, amount: int) -> None:
    """A `Count` for where nobody wants to know."""


class Tokenizer(Protocol):
    """What is needed of the model before its weights are there (`tokens.ModelTokenizer`). Safe from any thread."""

    traits: Traits
    context_tokens: int
    sampling: Sampling

    def encode(self, prompt: Prompt) -> Encoded:
        """The rendered prompt and its ids."""

    def ids(self, text: str) -> list[int]:
        """The ids of markup that goes on from a prompt."""


@dataclass(frozen=True)
class Turn:
    """Everything one answer needs. `max_tokens` fits the window; `log_answer` logs the start of the answer.

    `opening`: the beginning of a call at the prompt's end. `tool_retries`: how often a call gone wrong is asked for anew.
    `count` is told what is rare (a counter's name, how many). `stream` makes the `ResponseStream`.
    """

    id: str
    request: Request
    encoded: Encoded
    tokenizer: Tokenizer
    sampling: Sampling
    max_tokens: int
    opening: str = ""
    tool_retries: int = 0
    log_answer: bool = False
    count: Count = nobody_counts
    stream: Callable[..., ResponseStream] = ResponseStream

    @property
    def thought_tokens(self) -> int | None:
        """How long the model may think, None for as long as it likes."""
        return thinking_budget(dataclasses.replace(self.request, max_tokens=self.max_tokens))


def begin(request: Request, tokenizer: Tokenizer, suppress_thinking: bool) -> tuple[Encoded, str]:
    """The prompt, and what of a call is begun at its end ("" where none is demanded). Raises `ApiError` 400."""
    if request.tool_choice.kind not in ("any", "tool"):
        return tokenizer.encode(to_prompt(request, tokenizer.traits, suppress_thinking)), ""
    request = dataclasses.replace(request, thinking=Thinking("disabled"))
    encoded = tokenizer.encode(to_prompt(request, tokenizer.traits, suppress_thinking))
    begun = call_form(tokenizer).opening(_demanded(request))
    return extended(encoded, begun, tokenizer), begun


def call_form(tokenizer: Tokenizer) -> forced.Form:
    """How the model writes a call."""
    return forced.form(formats(tokenizer.traits)[0], lambda text: len(tokenizer.ids(text)) == 1)


def extended(encoded: Encoded, text: str, tokenizer: Tokenizer) -> Encoded:
    """The prompt with `text` as the beginning of the answer; a thought that it opens is closed first."""
    if encoded.opens_thinking:
        text = forced.end_of_thought(encoded.text) + text
    return dataclasses.replace(encoded, text=encoded.text + text, tokens=[*encoded.tokens, *tokenizer.ids(text)], opens_thinking=False)


def declared(request: Request) -> tuple[Tool, ...]:
    """The tools whose calls are understood: also deferred ones that the model was not shown, since the client runs them."""
    choice = request.tool_choice
    own = (tool for tool in request.tools if not tool.server_type and choice.kind != "none")
    return tuple(tool for tool in own if choice.kind != "tool" or tool.name == choice.name)


def _demanded(request: Request) -> str:
    """The tool that must be called, "" where the model may choose."""
    if request.tool_choice.kind == "tool":
        return request.tool_choice.name
    offered = offered_tools(request)
    return offered[0].name if len(offered) == 1 else ""


def formats(traits: Traits) -> tuple[str, ...]:
    """The dialects that the model knows, the likeliest first. Where calls go as text, `tools_text` has shown it JSON in tags."""
    return (traits.dialect,) if traits.tools and traits.tool_calls else ("json_tags", traits.dialect)
