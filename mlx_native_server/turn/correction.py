"""A second attempt: when an answer gets one, and what the model is told.

Two things get one, both before the client has seen them: a call of a declared tool that could not be read, as the answer's
last part, and an answer that does not fit the schema that was asked for. The instruction follows the answer as a message
of the user's; nobody but the model sees it.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..protocol import Prompt, Request, bad_request
from .schema_check import best_answer
from .turn import Tokenizer, call_form, extended

SCHEMA_ATTEMPTS = 1
"""How often an answer that does not fit its schema is asked for anew."""

_CALL_FAILED = """Your last message was meant to call the tool {tool}, but the call could not be read. Write this call again, \
complete and in exactly this form, with the tool's own parameters:

{form}"""
_SCHEMA_FAILED = "This does not fit the JSON schema: {fault}. Write the whole answer again as JSON that fits the schema, and nothing else."
_SAID = "qzsaid"  # stands for the answer where a template is asked what follows one


@dataclass(frozen=True)
class Correction:
    """What is wanted in place of the text that is kept back. `opening`: the beginning of a call that is begun for the model."""

    instruction: str
    opening: str = ""


def call_correction(tokenizer: Tokenizer, tool: str) -> Correction:
    """For a call of this tool that could not be read."""
    form = call_form(tokenizer)
    return Correction(_CALL_FAILED.format(tool=tool, form=form.example(tool)), form.opening(tool))


def schema_correction(request: Request, texts: Sequence[str]) -> Correction | None:
    """For answers so far that do not fit; None where one does."""
    fault = best_answer(texts, request.output_schema)[1]
    return Correction(_SCHEMA_FAILED.format(fault=fault)) if fault else None


def suffix(tokenizer: Tokenizer, correction: Correction) -> str:
    """What goes between the answer and its second attempt: the turn's end, the instruction, the next header, the opening.

    It is cut out of a small conversation, so that all before it stays token for token what the model has read. Raises
    `ApiError` where the model's template cannot say this.
    """
    option = tokenizer.traits.thinking_option
    turns = [("user", "?"), ("assistant", _SAID), ("user", correction.instruction)]
    prompt = Prompt([{"role": role, "content": text} for role, text in turns], options={option: False} if option else {})
    encoded = extended(tokenizer.encode(prompt), correction.opening, tokenizer)
    _, said, rest = encoded.text.rpartition(_SAID)
    if not said:
        raise bad_request("the chat template does not show an assistant's message")
    return rest
