"""One turn: from an encoded request to Anthropic's events.

The engine's replies go through the one `ResponseStream`, and what it yields is what both kinds of answer are made of.
Tokens are counted here, from the engine's numbers. Sockets, pings and JSON bodies are `server.py`'s.
"""
from __future__ import annotations

import json
import logging
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from .protocol import Encoded, Event, Failed, Finished, Job, Piece, Request, Sampling, Started, Submit, Ticket, Tool, Traits
from .streaming import ResponseStream, fold

logger = logging.getLogger(__name__)

WAIT_S = 0.2
"""How long to wait for the engine before the caller is given a chance to look at its client."""

LOGGED_CHARS = 1500


@dataclass(frozen=True)
class Turn:
    """Everything one answer needs. `max_tokens` fits the window; `log_answer` logs the start of the answer."""

    id: str
    request: Request
    encoded: Encoded
    traits: Traits
    sampling: Sampling
    max_tokens: int
    log_answer: bool = False


Events = Generator[Event | None, None, None]


def respond(turn: Turn, submit: Submit) -> Events:
    """Queue the turn and return its events, with None about every `WAIT_S` seconds while there is none.

    Raises what `submit` raises (529) at once; a later failure of the job is raised by the iteration as `ApiError`.
    Closing the iterator cancels the job.
    """
    stream = _stream(turn)
    job = Job(turn.id, turn.encoded.tokens, turn.max_tokens, turn.sampling, turn.request.client, turn.encoded.checkpoints)
    events = _events(turn, stream, submit(job))
    next(events)  # into its `try`: closing a generator that never ran would cancel nothing
    return events


def declared(request: Request) -> tuple[Tool, ...]:
    """The tools whose calls are understood: also deferred ones that the model was not shown, since the client runs them."""
    return tuple(tool for tool in request.tools if not tool.server_type and request.tool_choice.kind != "none")


def _stream(turn: Turn) -> ResponseStream:
    request, thinking = turn.request, turn.request.thinking
    wanted = thinking is not None and thinking.kind in ("enabled", "adaptive") and thinking.display != "omitted"
    return ResponseStream(
        model=request.model,
        tools=declared(request),
        formats=(turn.traits.dialect,),
        opens_thinking=turn.encoded.opens_thinking,
        suppresses_thinking=turn.encoded.suppresses_thinking,
        show_thinking=wanted,
        stop_sequences=request.stop_sequences,
    )


def _events(turn: Turn, stream: ResponseStream, ticket: Ticket) -> Events:
    sent: list[Event] = []
    try:
        yield None
        for events in _batches(stream, ticket):
            if turn.log_answer:
                sent.extend(events)
            yield from events or (None,)
    finally:
        ticket.cancel()
    if turn.log_answer:
        _log_answer(turn, sent)


def _batches(stream: ResponseStream, ticket: Ticket) -> Generator[Sequence[Event], None, None]:
    """The events of each reply in turn; an empty batch where nothing came, or nothing that shows."""
    output_tokens = 0
    while True:
        match ticket.get(WAIT_S):
            case None:
                yield ()
            case Started(reused, prefilled):
                yield stream.start(prefilled, reused)
            case Piece(text, tokens):
                output_tokens += tokens
                events = stream.feed(text)
                if stream.stopped:
                    ticket.cancel()  # before the client is waited for
                    yield [*events, *stream.finish("stop", output_tokens)]
                    return
                yield events
            case Finished(reason, tokens):
                yield stream.finish(reason, output_tokens + tokens)
                return
            case Failed(error):
                raise error


def _log_answer(turn: Turn, events: Sequence[Event]) -> None:
    """What MLX_DEBUG_RESPONSE asks for: the declared keys of each tool and the first characters of the answer."""
    tools = {tool.name: list(tool.input_schema.get("properties") or ()) for tool in declared(turn.request)}
    answer = json.dumps(fold(events), ensure_ascii=False)
    logger.info("%s tools: %s; answer: %s", turn.id, tools, answer[:LOGGED_CHARS])
