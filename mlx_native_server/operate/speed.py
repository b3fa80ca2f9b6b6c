"""How fast the running server is, measured as a client: a prompt that it cannot know, answered with 1 token and with 33."""
from __future__ import annotations

import contextlib
import http.client
import json
import time
import uuid
from dataclasses import dataclass

from ..config import Settings
from .running import address

MORE_TOKENS = 32
WAIT_S = 600.0


@dataclass(frozen=True)
class ServedSpeed:
    """Tokens per second."""

    prefill: float
    decode: float


def through_server(settings: Settings) -> ServedSpeed | None:
    """The server's speed, None where it does not answer as it should."""
    prompt = f"{uuid.uuid4().hex} " + "one two three four five six seven eight " * 60
    try:
        prefill_s, prefilled, _ = _ask(settings, prompt, 1)
        decode_s, _, generated = _ask(settings, prompt, 1 + MORE_TOKENS)
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return None
    return ServedSpeed(prefilled / prefill_s, max(1, generated - 1) / decode_s)


def _ask(settings: Settings, prompt: str, max_tokens: int) -> tuple[float, int, int]:
    """Seconds, prefilled tokens and generated tokens of one answer."""
    body = {"model": "local", "max_tokens": max_tokens, "temperature": 0, "messages": [{"role": "user", "content": f"Repeat this text, all of it: {prompt}"}]}
    headers = {"Content-Type": "application/json", "x-api-key": settings.api_key or "local"}
    connection = http.client.HTTPConnection(*address(settings), timeout=WAIT_S)
    with contextlib.closing(connection):
        begun_s = time.perf_counter()
        connection.request("POST", "/v1/messages", json.dumps(body).encode(), headers)
        usage = json.loads(connection.getresponse().read())["usage"]
        return time.perf_counter() - begun_s, int(usage["input_tokens"]), int(usage["output_tokens"])
