"""From a `Request` to the messages and tools that the model's chat template takes.

Pure: the prompt depends on the request, the traits of the template and one setting, and a longer conversation only adds
to the end of what a shorter one gave. A conversation is read as rounds: what the assistant said, the results of its
calls, then everything else from the client's side. What a template cannot take becomes text that says what it is;
nothing vanishes. Rendering and tokens are not known here, and no tool is run or looked up.
"""
from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby, takewhile
from typing import Any, Iterable, Iterator, Sequence

from .block_text import is_reminder, lines, marked, message_text, paragraphs, shown, with_definitions
from ..protocol import (
    Block, Message, OtherBlock, Prompt, Request, ThinkingBlock, Tool, ToolResultBlock, ToolUseBlock, Traits,
)  # fmt: skip
from .tools_text import as_json, call_text, result_text, schema_text, tools_text

NOT_EXECUTED = "[This call was not executed: it has no result.]"
STRAY_RESULT = "[Result of a tool call that is not part of this conversation]"
USER_FILLER = "(Go on.)"
ASSISTANT_FILLER = "(No answer yet.)"
"""Fillers stand where a template insists on a turn that the conversation does not have."""

TemplateMessage = dict[str, Any]


def to_prompt(request: Request, traits: Traits, suppress_thinking: bool) -> Prompt:
    """The prompt for a template with these traits. With `suppress_thinking` only an `enabled` request thinks.

    `context_management` has no say: what its edits clear was in the prompt before, which would have to be computed anew from
    there on. Most templates leave out the thoughts of earlier turns by themselves.
    """
    tools = offered_tools(request)
    held_back = [tool for tool in request.tools if tool not in tools and tool.input_schema and not tool.server_type]
    held_back = held_back if request.tool_choice.kind != "none" else []
    conversation = with_definitions(request.messages, held_back, as_json=traits.tools)
    first = _leading_system(conversation)
    system = paragraphs([request.system, *map(message_text, first)])
    if request.output_schema is not None:
        system = paragraphs([system, schema_text(request.output_schema)])
    if not traits.tools:
        system = paragraphs([system, tools_text(tools)])
    rounds = list(_rounds(conversation[len(first) :]))
    messages = _merged(message for a_round in rounds for message in _drawn(a_round, traits))
    if not messages or messages[0]["role"] != "user":
        messages.insert(0, {"role": "user", "content": USER_FILLER})
    if traits.alternates:
        messages = list(_alternating(messages))
    continues = messages[-1]["role"] == "assistant"
    return Prompt(
        messages=_with_system(messages, system, traits),
        tools=[_function(tool) for tool in tools] if tools and traits.tools else None,
        options={traits.thinking_option: _thinks(request, suppress_thinking) and not continues} if traits.thinking_option else {},
        continues=continues,
    )


# ── tools and options ────────────────────────────────────────────────────────────────────────────


def offered_tools(request: Request) -> tuple[Tool, ...]:
    """The tools at the head of the prompt: the client's own that are not deferred. It is the same in every turn.

    A deferred tool is shown where a `tool_reference` names it; one that `tool_choice` demands is shown at the head.
    """
    if request.tool_choice.kind == "none":
        return ()
    return tuple(tool for tool in request.tools if not tool.server_type and (not tool.defer_loading or tool.name == request.tool_choice.name))


def _function(tool: Tool) -> dict[str, Any]:
    return {"type": "function", "function": {"name": tool.name, "description": tool.description, "parameters": dict(tool.input_schema)}}


def _thinks(request: Request, suppress_thinking: bool) -> bool:
    kind = request.thinking.kind if request.thinking else "disabled"
    return kind == "enabled" or (kind == "adaptive" and not suppress_thinking)


# ── a conversation as rounds ─────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Note:
    """A text from the client's side that is no result. `message` tells which texts came together."""

    text: str
    kind: str  # "user", "reminder" or "system"
    message: int


@dataclass(frozen=True)
class _Round:
    """What the assistant said (maybe nothing), its calls each with their result, and what the client said then."""

    text: str = ""
    thinking: str = ""
    results: tuple[tuple[ToolUseBlock, str], ...] = ()
    notes: tuple[_Note, ...] = ()


def _leading_system(messages: Sequence[Message]) -> list[Message]:
    return list(takewhile(lambda message: message.role == "system", messages))


def _rounds(messages: Iterable[Message]) -> Iterator[_Round]:
    said: list[Block] = []
    for by_assistant, group in groupby(messages, key=lambda message: message.role == "assistant"):
        if by_assistant:
            said = [block for message in group for block in message.content]
        else:
            yield _round(said, list(group))
            said = []
    if any(isinstance(block, ToolUseBlock) or _said_text(block).strip() for block in said):
        yield _round(said, [])


def _said_text(block: Block) -> str:
    """The visible text of an assistant's block; what its server tools and hidden thoughts left behind is not shown."""
    return "" if isinstance(block, (ThinkingBlock, ToolUseBlock, OtherBlock)) else shown(block)


def _round(said: Sequence[Block], client: Sequence[Message]) -> _Round:
    results: dict[str, list[str]] = {}
    notes: list[_Note] = []
    for n, message in enumerate(client):
        for block in message.content:
            if isinstance(block, ToolResultBlock):
                results.setdefault(block.tool_use_id, []).append(_result(block))
            elif (text := shown(block)).strip():
                kind = "reminder" if message.role == "user" and is_reminder(text) else message.role
                notes.append(_Note(text, kind, n))
    paired = []
    for call in (block for block in said if isinstance(block, ToolUseBlock)):
        found = results.get(call.id)
        paired.append((call, found.pop(0) if found else NOT_EXECUTED))
    stray = [_Note(f"{STRAY_RESULT}\n{text}", "user", -1) for texts in results.values() for text in texts]
    thinking = "\n".join(block.thinking for block in said if isinstance(block, ThinkingBlock) and block.thinking)
    return _Round(lines(map(_said_text, said)), thinking, tuple(paired), (*stray, *notes))


def _result(block: ToolResultBlock) -> str:
    text = lines(map(shown, block.content))
    return f"Error: {text or 'the tool failed without a text.'}" if block.is_error else text


# ── rounds as template messages ──────────────────────────────────────────────────────────────────


def _drawn(a_round: _Round, traits: Traits) -> Iterator[TemplateMessage]:
    as_structure = traits.tools and traits.tool_calls
    results, notes = a_round.results, a_round.notes
    if as_structure and traits.moves_late_text and results:
        # a user's message here would make the template render the turns before it anew
        late = list(takewhile(lambda note: note.kind != "user", notes))
        notes = notes[len(late) :]
        call, text = results[-1]
        results = (*results[:-1], (call, paragraphs([text, _together(late)])))
    yield from (_calls if as_structure else _calls_as_text)(a_round, results, traits)
    keeps_system = traits.late_system and not traits.alternates
    for is_system, group in groupby(notes, key=lambda note: keeps_system and note.kind == "system"):
        texts = list(group)
        if is_system:
            yield {"role": "system", "content": paragraphs(note.text for note in texts)}
        else:
            yield {"role": "user", "content": _together(texts)}


def _together(notes: Iterable[_Note]) -> str:
    """Texts of the client's side as one; texts of one message stay close, and the system's are marked."""
    groups = groupby(notes, key=lambda note: note.message)
    return paragraphs("\n".join(marked(note.text) if note.kind == "system" else note.text for note in group) for _, group in groups)


def _spoken(a_round: _Round, text: str, traits: Traits) -> TemplateMessage:
    thought = {traits.reasoning_key: a_round.thinking} if traits.reasoning_key and a_round.thinking else {}
    return {"role": "assistant", "content": text} | thought


def _calls(a_round: _Round, results: Sequence[tuple[ToolUseBlock, str]], traits: Traits) -> Iterator[TemplateMessage]:
    """The assistant's message (or messages) with `tool_calls`, each followed by its `tool` messages."""
    head = _spoken(a_round, a_round.text, traits)
    if (a_round.text and not traits.text_beside_calls) or not results:
        if a_round.text or len(head) > 2:
            yield head
        head = {"role": "assistant", "content": ""}
    for batch in ([results] if traits.several_calls else [[pair] for pair in results]) if results else ():
        yield head | {"tool_calls": [_call(call, traits) for call, _ in batch]}
        for call, text in batch:
            yield {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": text}
        head = {"role": "assistant", "content": ""}


def _call(call: ToolUseBlock, traits: Traits) -> dict[str, Any]:
    arguments = as_json(call.input) if traits.string_arguments else dict(call.input)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _calls_as_text(a_round: _Round, results: Sequence[tuple[ToolUseBlock, str]], traits: Traits) -> Iterator[TemplateMessage]:
    spoken = _spoken(a_round, lines([a_round.text, *(call_text(call.name, call.input) for call, _ in results)]), traits)
    if spoken["content"] or len(spoken) > 2:
        yield spoken
    if results:
        yield {"role": "user", "content": lines(result_text(text) for _, text in results)}


# ── turns and the system text ────────────────────────────────────────────────────────────────────


def _merged(messages: Iterable[TemplateMessage]) -> list[TemplateMessage]:
    """Neighbouring user messages as one, and neighbouring system messages."""
    merged: list[TemplateMessage] = []
    for message in messages:
        if merged and message["role"] == merged[-1]["role"] and message["role"] in ("user", "system"):
            merged[-1] = merged[-1] | {"content": paragraphs([merged[-1]["content"], message["content"]])}
        else:
            merged.append(message)
    return merged


def _alternating(messages: Iterable[TemplateMessage]) -> Iterator[TemplateMessage]:
    """Turns by user and assistant in turn. As in Mistral's templates, calls and their results do not count as turns."""
    last = "assistant"
    for message in messages:
        if message["role"] in ("user", "assistant") and "tool_calls" not in message:
            if message["role"] == last:
                last = "user" if last == "assistant" else "assistant"
                yield {"role": last, "content": USER_FILLER if last == "user" else ASSISTANT_FILLER}
            last = message["role"]
        yield message


def _with_system(messages: list[TemplateMessage], system: str, traits: Traits) -> list[TemplateMessage]:
    """The system text as a first message, or in front of the first user message where there is no such role."""
    if not system:
        return messages
    if traits.system:
        return [{"role": "system", "content": system}, *messages]
    return [messages[0] | {"content": paragraphs([system, messages[0]["content"]])}, *messages[1:]]
