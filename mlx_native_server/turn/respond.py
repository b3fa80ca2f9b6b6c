"""One turn: from an encoded request to Anthropic's events.

The replies of the turn's jobs go through the one `ResponseStream`, and what it yields is what both kinds of answer are
made of. Here a thought that is too long is ended, and what the stream keeps back gets its second attempt: both go on in
a new job of the same `Generation`. Sockets, pings and JSON bodies are `server.py`'s.
"""
from __future__ import annotations

import json
import logging
import time
from collections.abc import Generator, Sequence

from .correction import SCHEMA_ATTEMPTS, Correction, call_correction, schema_correction, suffix
from .forced import end_of_thought
from .generation import Generation
from ..protocol import ApiError, Event, Finished, Piece, Started, Submit
from .repetition import Repetition
from .schema_check import best_answer
from ..answer.streaming import ResponseStream, fold
from .turn import Turn, declared, formats

logger = logging.getLogger(__name__)

LOGGED_CHARS = 1500
CORRECTION_S = 120.0
"""How long second attempts may take, all in all, before they have begun a call."""
THOUGHTS_ENDED = 2
"""How many thoughts of one answer are ended for the model; one that opens another for ever is left to the token limit."""

Events = Generator[Event | None, None, None]
Batches = Generator[Sequence[Event], None, str]
"""The events of each reply; an empty batch where nothing came, or nothing that shows. Returns why the text ended."""


def respond(turn: Turn, submit: Submit) -> Events:
    """Queue the turn and return its events, with None about every `generation.WAIT_S` seconds while there is none.

    Raises what `submit` raises (529) at once; a later failure of the job is raised by the iteration as `ApiError`.
    Closing the iterator cancels the job.
    """
    events = _events(turn, Generation(turn, submit))
    next(events)  # into its `try`: closing a generator that never ran would cancel nothing
    return events


def _events(turn: Turn, generation: Generation) -> Events:
    sent: list[Event] = []
    try:
        yield None
        for events in _answer(turn, _stream(turn), generation):
            if turn.log_answer:
                sent.extend(events)
            yield from events or (None,)
    finally:
        generation.cancel()
    if turn.log_answer:
        _log_answer(turn, sent)


def _stream(turn: Turn) -> ResponseStream:
    request, thinking = turn.request, turn.request.thinking
    wanted = thinking is not None and thinking.kind in ("enabled", "adaptive") and not turn.opening
    return turn.stream(
        model=request.model,
        tools=declared(request),
        formats=formats(turn.tokenizer.traits),
        opens_thinking=turn.encoded.opens_thinking,
        suppresses_thinking=turn.encoded.suppresses_thinking,
        show_thinking=wanted and thinking.display != "omitted",
        omit_thinking=wanted,
        stop_sequences=request.stop_sequences,
        opening=turn.opening,
        one_call=not request.tool_choice.parallel,
        holds_text=request.output_schema is not None,
        holds_failed=turn.tool_retries > 0,
    )


def _answer(turn: Turn, stream: ResponseStream, generation: Generation) -> Batches:
    reason = yield from _read(turn, stream, generation)
    yield stream.end(reason)
    reason = yield from _settled(turn, stream, generation, reason)
    yield stream.finish(reason, generation.output_tokens)
    turn.count("salvaged_calls_total", stream.salvaged)
    if turn.opening and not stream.calls:
        logger.info("%s: a call was demanded and begun, but the model has not completed it", turn.id)
    return reason


def _read(turn: Turn, stream: ResponseStream, generation: Generation, until_s: float | None = None) -> Batches:
    """One text of the model's. `until_s`: from then on (monotonic clock) it is ended while all of it is kept back.

    A text that only repeats itself is cut: `cut` leaves an open call unfinished, as the token limit does, but the client
    is not told of a limit, behind which it would have the model go on. It tells the model of the call all the same.
    """
    budget, thought_tokens, ended, repetition = turn.thought_tokens, 0, 0, Repetition()
    while until_s is None or time.monotonic() < until_s or stream.kept_back is None:
        match generation.get():
            case None:
                yield ()
            case Started(reused, prefilled):
                yield stream.start(prefilled, reused)
            case Piece(text, tokens, ids):
                events = stream.feed(text)
                thought_tokens += tokens if stream.open_thought else 0
                repeats = repetition.add(ids, stream.in_call)
                too_long = repeats or budget is not None and thought_tokens >= budget
                if too_long and stream.open_thought and not stream.stopped and ended < THOUGHTS_ENDED:
                    ended += 1
                    if (behind := _end_thought(turn, stream, generation, repeats)) is not None:
                        events, repeats, repetition = [*events, *behind], False, Repetition()
                if stream.stopped or repeats:
                    generation.cancel()  # before the client is waited for
                    if not stream.stopped:
                        logger.warning("%s: the model only repeated itself, its answer was ended", turn.id)
                    yield events
                    return "stop" if stream.stopped else "cut"
                yield events
            case Finished(reason):
                return reason
    return "stop"


def _end_thought(turn: Turn, stream: ResponseStream, generation: Generation, repeats: bool) -> Sequence[Event] | None:
    """The model has thought for as long as it may: it goes on behind the thought. None where it cannot."""
    end = end_of_thought(turn.encoded.text, stream.open_thought)
    if not generation.go_on(turn.tokenizer.ids(end)):
        return None
    turn.count("thoughts_ended_total", 1)
    why = "because it only repeated itself" if repeats else f"after its budget of {turn.thought_tokens} tokens"
    logger.info("%s: a thought was ended %s", turn.id, why)
    return stream.feed(end)


# ── second attempts ──────────────────────────────────────────────────────────────────────────────


def _settled(turn: Turn, stream: ResponseStream, generation: Generation, reason: str) -> Batches:
    """Let what is kept back go out, or what a second attempt makes of it."""
    if stream.kept_back is None:
        return reason
    tool, texts = stream.failed_call, [stream.kept_back]
    attempts, until_s = turn.tool_retries if tool else SCHEMA_ATTEMPTS, time.monotonic() + CORRECTION_S
    while reason == "stop" and not stream.stop_sequence and len(texts) <= attempts and time.monotonic() < until_s:
        correction = _correction(turn, tool, texts)
        if correction is None or not _ask_again(turn, stream, generation, correction):
            break
        ended = yield from _read(turn, stream, generation, until_s)
        yield stream.end(ended)
        if stream.kept_back is None:
            return ended  # a call has taken its place
        texts.append(stream.kept_back)
    schema = turn.request.output_schema
    yield stream.settle(best_answer(texts, schema)[0] if schema is not None else texts[0])
    return reason


def _correction(turn: Turn, tool: str, texts: Sequence[str]) -> Correction | None:
    if tool:
        return call_correction(turn.tokenizer, tool)
    return None if turn.request.output_schema is None else schema_correction(turn.request, texts)


def _ask_again(turn: Turn, stream: ResponseStream, generation: Generation, correction: Correction) -> bool:
    try:
        between = suffix(turn.tokenizer, correction)
    except ApiError as error:
        logger.warning("%s: no second attempt: %s", turn.id, error)
        return False
    if not generation.go_on(turn.tokenizer.ids(between)):
        return False
    turn.count("second_attempts_total", 1)
    logger.info("%s: a second attempt: %s", turn.id, correction.instruction.partition("\n")[0])
    stream.again(correction.opening)
    return True


def _log_answer(turn: Turn, events: Sequence[Event]) -> None:
    """What MLX_DEBUG_RESPONSE asks for: the declared keys of each tool and the first characters of the answer."""
    tools = {tool.name: list(tool.input_schema.get("properties") or ()) for tool in declared(turn.request)}
    answer = json.dumps(fold(events), ensure_ascii=False)
    logger.info("%s tools: %s; answer: %s", turn.id, tools, answer[:LOGGED_CHARS])
