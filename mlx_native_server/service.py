"""Between HTTP and the engine: what a request body means for the model that is served.

A body is parsed, rewritten by the profiles, turned into a prompt, rendered and encoded. Counting is exactly that and
the length; answering goes on to the window and the engine's queue. So the two can never differ. Nothing here waits for
a generation or takes a lock. Sockets, routes and keys are `server.py`'s.
"""
from __future__ import annotations

import dataclasses
import logging
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Protocol

from .config import Settings
from .answer.events import is_own_thought
from .prompt.profiles import apply_profiles
from .protocol import ApiError, Block, Encoded, Job, Request, Sampling, ThinkingBlock, Ticket, bad_request, overloaded
from .prompt.request import parse_json, parse_request
from .answer.streaming import ResponseStream
from .turn.respond import Events, respond
from .turn.transcript import Transcripts
from .turn.turn import Count, Tokenizer, Turn, begin, nobody_counts

logger = logging.getLogger(__name__)

ANSWER_TOKENS = 1024
"""Tokens of the window that a prompt leaves free for the answer (fewer when the request wants fewer)."""

CLAUDE_NAMES = ("claude-opus-4-6", "claude-sonnet-4-6", "claude-haiku-4-5-20251001")
"""Names that clients ask for by default. The loaded model answers to every name, these are only listed."""


class Generates(Protocol):
    """What is needed of the engine (`engine.Engine`). Neither call waits for a generation."""

    def submit(self, job: Job) -> Ticket:
        """Queue a job. Raises `ApiError` 529 when the queue is full."""

    def health(self) -> dict[str, Any]:
        """`status` (`loading`, `ok` or `failed`), progress, load and memory as JSON values."""


@dataclass(frozen=True)
class Answer:
    """A queued request and its events to come (None: nothing yet). Closing the events cancels it."""

    request: Request
    events: Events


@dataclass(frozen=True)
class _Begun:
    """A request as far as counting goes. `opening`: what of a demanded call stands at the prompt's end."""

    request: Request
    encoded: Encoded
    opening: str
    tokenizer: Tokenizer


class Service:
    """One served model. The tokenizer comes before the weights do: `use` it when it is there."""

    def __init__(self, settings: Settings, engine: Generates, count: Count = nobody_counts):
        self.settings, self._count = settings, count
        self._engine = engine
        self._transcripts = Transcripts(settings.transcript_dir) if settings.transcript_dir else None
        self._tokenizer: Tokenizer | None = None
        self._started_s = time.monotonic()
        self._created = int(time.time())

    def use(self, tokenizer: Tokenizer) -> None:
        """From now on requests are accepted."""
        self._tokenizer = tokenizer

    @property
    def context_tokens(self) -> int | None:
        """The window in tokens, None until the tokenizer is there: the setting, else the model's as far as memory allows."""
        if self.settings.context_tokens or self._tokenizer is None:
            return self.settings.context_tokens or None
        return min(self._tokenizer.context_tokens, self._engine.health().get("safe_context_tokens") or sys.maxsize)

    # ── messages ─────────────────────────────────────────────────────────────────────────────────

    def count(self, raw: bytes, headers: Mapping[str, str]) -> int:
        """The tokens that `answer` would prefill for this body. Raises `ApiError`."""
        return len(self._begin(raw, headers, counting=True).encoded.tokens)

    def answer(self, raw: bytes, headers: Mapping[str, str], request_id: str) -> Answer:
        """Queue the request in this body. Raises `ApiError` for everything that is known before the model answers."""
        if self._transcripts is None:
            turn = self._turn(raw, headers, request_id)
            return Answer(turn.request, respond(turn, self._engine.submit))
        transcript = self._transcripts.begin(request_id, raw, headers)
        try:
            turn = self._turn(raw, headers, request_id, transcript.stream)
            events = respond(turn, self._engine.submit)
        except ApiError as error:
            transcript.refused(error)
            raise
        return Answer(turn.request, transcript.followed(events, turn.encoded))

    def _turn(self, raw: bytes, headers: Mapping[str, str], request_id: str, stream: Callable[..., ResponseStream] = ResponseStream) -> Turn:
        begun = self._begin(raw, headers)
        request, encoded = begun.request, begun.encoded
        if self.settings.debug_request:
            logger.info("%s asks: %s", request_id, _shape(request))
        return Turn(
            id=request_id,
            request=request,
            encoded=encoded,
            tokenizer=begun.tokenizer,
            sampling=_sampling(request, begun.tokenizer.sampling),
            max_tokens=_fit(len(encoded.tokens), request.max_tokens, self.context_tokens or sys.maxsize),
            opening=begun.opening,
            tool_retries=self.settings.tool_retries,
            log_answer=self.settings.debug_response,
            count=self._count,
            stream=stream,
        )

    def _begin(self, raw: bytes, headers: Mapping[str, str], counting: bool = False) -> _Begun:
        request = parse_request(parse_json(raw), headers, self.settings.max_tokens, counting)
        tokenizer = self._tokenizer
        if tokenizer is None:
            raise overloaded("the model is not loaded yet")
        request = apply_profiles(request, self.settings)
        encoded, opening = begin(request, tokenizer, self.settings.suppress_thinking)
        return _Begun(request, encoded, opening, tokenizer)

    # ── what is served, and how it is ────────────────────────────────────────────────────────────

    def model(self, name: str) -> dict[str, Any]:
        """The entry of one model, with the keys of Anthropic's and of OpenAI's lists. Every name is the loaded model."""
        return {
            "type": "model",
            "object": "model",
            "id": name,
            "display_name": name,
            "created_at": datetime.fromtimestamp(self._created, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "created": self._created,
            "owned_by": "local",
            "max_input_tokens": self.context_tokens,
            "max_tokens": self.context_tokens,
            "context_length": self.context_tokens,
        }

    def models(self) -> dict[str, Any]:
        """The list of models: the loaded one first."""
        data = [self.model(name) for name in dict.fromkeys((self.settings.model, *CLAUDE_NAMES))]
        return {"object": "list", "data": data, "has_more": False, "first_id": data[0]["id"], "last_id": data[-1]["id"]}

    def health(self) -> dict[str, Any]:
        """How the server is, `status` first."""
        state = self._engine.health()
        return {
            "status": state["status"],
            "model": self.settings.model,
            "prefill_size": self.settings.prefill_size,
            "context_tokens": self.context_tokens,
            "uptime_s": round(time.monotonic() - self._started_s, 1),
            **state,
        }


def _sampling(request: Request, default: Sampling) -> Sampling:
    """The request's sampling, the model's own where the client left a parameter out."""
    given = {f.name: getattr(request, f.name) for f in dataclasses.fields(Sampling)}
    return dataclasses.replace(default, **{name: value for name, value in given.items() if value is not None})


def _fit(prompt_tokens: int, max_tokens: int, window_tokens: int) -> int:
    """`max_tokens`, cut to what the window has left after the prompt.

    Raises `ApiError` 400 where too little is left. Claude Code compacts its conversation when it reads these words.
    """
    most = window_tokens - min(max_tokens, ANSWER_TOKENS, window_tokens // 2)
    if prompt_tokens > most:
        raise bad_request(f"prompt is too long: {prompt_tokens} tokens > {most} maximum")
    return min(max_tokens, window_tokens - prompt_tokens)


def _shape(request: Request) -> str:
    """Roles and block types of the last messages, without their text."""
    blocks = (f"{m.role}[{', '.join(map(_kind, m.content))}]" for m in request.messages[-6:])
    return f"{request.model}, max_tokens {request.max_tokens}, {len(request.tools)} tools, … {' '.join(blocks)}"


def _kind(block: Block) -> str:
    """The block's type; a thought that is not one of ours, or was changed, is marked: it costs the prefix its reuse."""
    foreign = isinstance(block, ThinkingBlock) and not is_own_thought(block.thinking, block.signature)
    return type(block).__name__ + (" (foreign)" if foreign else "")
