"""The `render` command: what the chat template, and with a model the model itself, gets for a request body.

One body a line in, one JSON object a line out; a body that the server would refuse gives `{"error": …}`. Without a model
the template is assumed to take tools, structured calls, `tool` messages and a leading system message. The lines in are
read by the same functions that the server uses, so what is shown is what happens. Of a transcript, the `request` is
rendered, in the mode that its `headers` and the settings lead to.
"""
from __future__ import annotations

import json
from typing import Any, Iterable, Protocol, TextIO

from .config import Settings
from .prompt.conversion import to_prompt
from .prompt.profiles import MODES, apply_profiles
from .protocol import ApiError, Encoded, Prompt, Traits, bad_request
from .prompt.request import parse_json, parse_request


class Model(Protocol):
    """What is used of a model: its tokenizer (`tokens.ModelTokenizer`)."""

    traits: Traits

    def encode(self, prompt: Prompt) -> Encoded:
        """The rendered prompt and its ids. Raises `ApiError` where the template refuses it."""


def main(lines: Iterable[bytes | str], out: TextIO, settings: Settings | None = None, profile: str = "none", model: Model | None = None) -> None:
    """Render every line that is not blank, writing each answer as soon as it is there. `profile` is one of `MODES`."""
    for line in lines:
        if line.strip():
            raw = line.encode("utf-8", "replace") if isinstance(line, str) else line
            print(json.dumps(_answer(raw, settings or Settings(), profile, model)), file=out, flush=True)


def _answer(raw: bytes, settings: Settings, profile: str, model: Model | None) -> dict[str, Any]:
    try:
        return _rendered(raw, settings, profile, model)
    except ApiError as error:
        return {"error": error.body()["error"]}


def _rendered(raw: bytes, settings: Settings, profile: str, model: Model | None) -> dict[str, Any]:
    if profile not in MODES:
        raise bad_request(f"profile: '{profile}' is not one of {', '.join(MODES)}")
    body, headers, mode = parse_json(raw), {}, profile
    if isinstance(body, dict) and "request" in body and isinstance(kept := body.get("headers"), dict):  # a transcript
        body, headers, mode = body["request"], {name: str(value) for name, value in kept.items()}, None if profile == "none" else profile
    request = apply_profiles(parse_request(body, headers, settings.max_tokens), settings, mode=mode)
    prompt = to_prompt(request, model.traits if model else Traits(), settings.suppress_thinking)
    shown: dict[str, Any] = {"messages": prompt.messages, "tools": prompt.tools or []}
    if model:
        encoded = model.encode(prompt)
        shown |= {"text": encoded.text, "input_tokens": len(encoded.tokens)}
    return shown
