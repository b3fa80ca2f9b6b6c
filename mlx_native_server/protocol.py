"""The values that cross layers, and the one error that becomes an HTTP answer.

Everything here is data: frozen, comparable, free of I/O. A request is parsed to these once (`request.py`)
and changed only by making a new value.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Protocol, Union

Event = dict[str, Any]
"""One Anthropic stream event as JSON (`{"type": "content_block_delta", …}`)."""


class ApiError(Exception):
    """A failure that the client is told about in Anthropic's error shape.

    `status` is the HTTP status, `kind` Anthropic's error type, `retry_after_s` the `retry-after` header.
    """

    def __init__(self, status: int, kind: str, message: str, retry_after_s: int | None = None):
        super().__init__(message)
        self.status, self.kind, self.message, self.retry_after_s = status, kind, message, retry_after_s

    def body(self, request_id: str | None = None) -> Event:
        """The JSON body, or the `error` event of a stream."""
        body: Event = {"type": "error", "error": {"type": self.kind, "message": self.message}}
        return body | {"request_id": request_id} if request_id else body


def bad_request(message: str) -> ApiError:
    """A 400 whose message starts with the field that is wrong."""
    return ApiError(400, "invalid_request_error", message)


def overloaded(message: str, retry_after_s: int = 5) -> ApiError:
    """A 529: clients wait `retry_after_s` seconds and send the same request again."""
    return ApiError(529, "overloaded_error", message, retry_after_s)


# ── the request ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class TextBlock:
    text: str


@dataclass(frozen=True)
class ImageBlock:
    media_type: str = "image"


@dataclass(frozen=True)
class DocumentBlock:
    """`text` is None where the document is not plain text (a PDF, a URL)."""

    title: str = ""
    media_type: str = ""
    text: str | None = None


@dataclass(frozen=True)
class ThinkingBlock:
    """Echoed reasoning; `redacted_thinking` and server-tool blocks become `OtherBlock`."""

    thinking: str
    signature: str = ""


@dataclass(frozen=True)
class ToolUseBlock:
    id: str
    name: str
    input: Mapping[str, Any]


@dataclass(frozen=True)
class ToolReferenceBlock:
    tool_name: str


@dataclass(frozen=True)
class OtherBlock:
    """A block that the model is not shown (`redacted_thinking`, `server_tool_use`, later inventions)."""

    type: str


@dataclass(frozen=True)
class ToolResultBlock:
    tool_use_id: str
    content: tuple["Block", ...] = ()
    is_error: bool = False


Block = Union[TextBlock, ImageBlock, DocumentBlock, ThinkingBlock, ToolUseBlock, ToolReferenceBlock, OtherBlock, ToolResultBlock]


@dataclass(frozen=True)
class Message:
    """`role` is `user`, `assistant` or `system` (the client puts system messages between turns)."""

    role: str
    content: tuple[Block, ...]


@dataclass(frozen=True)
class Tool:
    """`input_schema` is the JSON schema as sent. `server_type` is set for typed server tools, which are not offered."""

    name: str
    description: str = ""
    input_schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    defer_loading: bool = False
    server_type: str = ""


@dataclass(frozen=True)
class ToolChoice:
    """`kind`: `auto`, `any`, `tool` (then `name` is set) or `none`."""

    kind: str = "auto"
    name: str = ""
    parallel: bool = True


@dataclass(frozen=True)
class Thinking:
    """`kind`: `enabled`, `adaptive` or `disabled`. `display`: what the client wants to see of it."""

    kind: str = "disabled"
    budget_tokens: int | None = None
    display: str = ""


@dataclass(frozen=True)
class Client:
    """Who asks, from the headers: used for logs and scheduling, never for the prompt's text."""

    user_agent: str = ""
    session_id: str = ""
    agent_id: str = ""


@dataclass(frozen=True)
class Request:
    """One Messages request. `temperature`, `top_p`, `top_k` are None where the client left them out.

    `subagent`: Claude Code sends it for a helper agent, whose system prompt is its task.
    """

    messages: tuple[Message, ...]
    model: str = ""
    system: str = ""
    tools: tuple[Tool, ...] = ()
    max_tokens: int = 0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: tuple[str, ...] = ()
    stream: bool = False
    tool_choice: ToolChoice = ToolChoice()
    thinking: Thinking | None = None
    effort: str = ""
    output_schema: Mapping[str, Any] | None = None
    client: Client = Client()
    subagent: bool = False


# ── the prompt ───────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Traits:
    """What a model's chat template and tokenizer can take. The default is what most agent models have.

    `dialect`: name of the parser (`parsers/`) whose form the template writes.
    `tools`: the template renders `tools=`. `tool_calls`: it renders structured `tool_calls` and role `tool`.
    `several_calls`: it takes more than one call in a message. `text_beside_calls`: it keeps text in a message
    that has calls, in front of them (False: text and calls go as two messages).
    `string_arguments`: it wants `arguments` as JSON text. `system`: it takes a leading system message;
    `late_system`: also later ones. `alternates`: it insists on user/assistant turns.
    `reasoning_key`: where echoed thinking goes (`reasoning_content`, `thinking`, or "" for nowhere).
    `thinking_option`: the template variable that switches thinking, "" where there is none.
    `moves_late_text`: a later user message changes how earlier turns are rendered.
    """

    dialect: str = "json_tags"
    tools: bool = True
    tool_calls: bool = True
    several_calls: bool = True
    text_beside_calls: bool = True
    string_arguments: bool = False
    system: bool = True
    late_system: bool = False
    alternates: bool = False
    reasoning_key: str = "reasoning_content"
    thinking_option: str = ""
    moves_late_text: bool = False


@dataclass(frozen=True)
class Prompt:
    """What a chat template takes. `continues`: the last message is an assistant's that the model goes on with."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    continues: bool = False


@dataclass(frozen=True)
class Encoded:
    """A rendered prompt and its token ids.

    `opens_thinking`: the text ends inside an open thought. `suppresses_thinking`: it ends with an empty, closed one.
    `checkpoints`: token counts, ascending, at which a later prompt may branch off: the end of system and tools,
    before the last message that a person typed, and the last two turns, each before the generation header.
    """

    text: str
    tokens: list[int]
    opens_thinking: bool = False
    suppresses_thinking: bool = False
    checkpoints: tuple[int, ...] = ()


# ── the engine's door ────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Sampling:
    """`temperature` 0 is greedy; `top_p` 1 and `top_k` 0 are off."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0


@dataclass(frozen=True)
class Job:
    """Token ids in, text pieces out. `max_tokens` 0 only prefills. `checkpoints`: see `Encoded`.

    `offers`: the names of the tools in the prompt, to tell why it is not the one before.
    """

    id: str
    tokens: list[int]
    max_tokens: int
    sampling: Sampling = Sampling()
    client: Client = Client()
    checkpoints: tuple[int, ...] = ()
    offers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Started:
    """The job was admitted: `reused_tokens` of its prompt come from the cache, `prefilled_tokens` (≥ 1) are computed now."""

    reused_tokens: int
    prefilled_tokens: int


@dataclass(frozen=True)
class Piece:
    """Text of `tokens` newly generated tokens, their ids too; the text may be empty while a character is incomplete."""

    text: str
    tokens: int
    ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Finished:
    """`reason`: `stop` (an end token, which has no text) or `length`. `tokens`: generated ones not in a Piece."""

    reason: str
    tokens: int = 0


@dataclass(frozen=True)
class Failed:
    error: ApiError


Reply = Union[Started, Piece, Finished, Failed]
"""A job's replies are: Started, any number of Piece, then Finished; or Failed at any point, as the last."""


class Ticket(Protocol):
    """The handler's end of a job."""

    def get(self, timeout_s: float) -> Reply | None:
        """The next reply, or None when nothing came within `timeout_s` seconds."""

    def cancel(self) -> None:
        """End the job at the engine's next chunk or token. Safe at any time and more than once."""


class Submit(Protocol):
    def __call__(self, job: Job) -> Ticket:
        """Queue a job. Raises `ApiError` 529 when the queue is full."""
