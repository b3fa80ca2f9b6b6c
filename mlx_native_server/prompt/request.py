"""The body of a Messages request, read once into a frozen `Request`.

Rule: what the Anthropic API is strict about is strict here (types, roles, blocks), and every refusal is an
`ApiError` 400 whose message starts with the path of the field (`messages.3.content.0.type: …`). Fields that are
not in the tables below are ignored, and nothing that Claude Code sends is refused: new block types become
`OtherBlock`, typed server tools are marked, `output_config` and message-level extras are read leniently.
What the model is shown is decided in `conversion`, not here.
"""
from __future__ import annotations

import json
import logging
import re
from typing import Any, Callable, Mapping

from .fields import Field, boolean, clean, integer, mapping, named, number, one_of, parse_json, read_fields, text, tuple_of
from ..protocol import (
    Block, Client, DocumentBlock, ImageBlock, Message, OtherBlock, Request, TextBlock, Thinking, ThinkingBlock,
    Tool, ToolChoice, ToolReferenceBlock, ToolResultBlock, ToolUseBlock, bad_request,
)  # fmt: skip

__all__ = ["parse_json", "parse_request"]

logger = logging.getLogger(__name__)

_TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
# Claude Code puts this line in front of its system prompt; it differs per conversation and would end every shared prefix.
_BILLING = re.compile(r"\A\s*x-anthropic-billing-header\s*:[^\r\n]*[\r\n]*", re.IGNORECASE)


# ── content blocks ───────────────────────────────────────────────────────────────────────────────


def _tool_input(value: Any, path: str) -> dict[str, Any]:
    """The arguments of a call. Some clients echo them as the JSON text that was streamed."""
    if not isinstance(value, str):
        return mapping(value, path)
    try:
        return clean(mapping(json.loads(value or "{}"), path))
    except (ValueError, RecursionError):
        raise bad_request(f"{path}: Input should be a valid dictionary") from None


def _image(block: dict[str, Any], path: str) -> ImageBlock:
    source = read_fields(block, path, {"source": Field(mapping, required=True)})["source"]
    return ImageBlock(**read_fields(source, f"{path}.source", {"media_type": Field(text)}))


def _document(block: dict[str, Any], path: str) -> DocumentBlock:
    table = {"source": Field(mapping, required=True), "title": Field(text)}
    found = read_fields(block, path, table)
    source = found.pop("source")
    found |= read_fields(source, f"{path}.source", {"media_type": Field(text)})
    if source.get("type") == "text":
        found["text"] = text(source.get("data"), f"{path}.source.data")
    if source.get("type") == "content":
        found["text"] = _flat(source.get("content"), f"{path}.source.content")
    return DocumentBlock(**found)


def _search_result(block: dict[str, Any], path: str) -> DocumentBlock:
    found = read_fields(block, path, {"title": Field(text), "source": Field(text), "content": Field(_flat)})
    title = " ".join(filter(None, (found.get("title"), found.get("source"))))
    return DocumentBlock(title=title, media_type="text/plain", text=found.get("content", ""))


def _flat(value: Any, path: str) -> str:
    """The text of a string or of a list of blocks, for places where only text is kept."""
    blocks = _content(value, path, "user", nested=True)
    return "\n".join(block.text for block in blocks if isinstance(block, TextBlock))


def _parts(kind: type, table: Mapping[str, Field], **defaults: Any) -> Callable[[dict[str, Any], str], Block]:
    """A reader of blocks whose keys are the fields of the dataclass `kind`."""
    return lambda block, path: kind(**(defaults | read_fields(block, path, table)))


_NEEDED = Field(text, required=True)
_NAME = Field(named, required=True)
_LEAVES: dict[str, Callable[[dict[str, Any], str], Block]] = {
    "text": _parts(TextBlock, {"text": _NEEDED}),
    "image": _image,
    "document": _document,
    "search_result": _search_result,
    "tool_reference": _parts(ToolReferenceBlock, {"tool_name": _NAME}),
}
_RESULT = {
    "tool_use_id": _NEEDED,
    "content": Field(lambda value, path: _content(value, path, "user", nested=True)),
    "is_error": Field(boolean),
}
_BLOCKS = _LEAVES | {
    "thinking": _parts(ThinkingBlock, {"thinking": _NEEDED, "signature": Field(text)}),
    "tool_use": _parts(ToolUseBlock, {"id": _NEEDED, "name": _NAME, "input": Field(_tool_input)}, input={}),
    "tool_result": _parts(ToolResultBlock, _RESULT),
}
_ONLY_IN = {"tool_use": "assistant", "thinking": "assistant", "tool_result": "user"}


def _content(value: Any, path: str, role: str, nested: bool = False) -> tuple[Block, ...]:
    """A string or a list of blocks. `nested`: inside a result or document, where calls cannot stand."""
    if isinstance(value, str):
        return (TextBlock(value),)
    if not isinstance(value, list):
        raise bad_request(f"{path}: Input should be a valid string or list of content blocks")
    return tuple(_block(item, f"{path}.{n}", role, _LEAVES if nested else _BLOCKS) for n, item in enumerate(value))


def _block(value: Any, path: str, role: str, readers: Mapping[str, Callable[[dict[str, Any], str], Block]]) -> Block:
    kind = read_fields(value, path, {"type": _NAME})["type"]
    if kind not in readers:
        return OtherBlock(kind)
    if role != _ONLY_IN.get(kind, role):
        raise bad_request(f"{path}: `{kind}` blocks can only be in messages of the role '{_ONLY_IN[kind]}'")
    return readers[kind](value, path)


# ── the fields of a request ──────────────────────────────────────────────────────────────────────


def _message(value: Any, path: str) -> Message:
    found = read_fields(value, path, {"role": Field(one_of("user", "assistant", "system"), required=True)})
    if "content" not in value:
        raise bad_request(f"{path}.content: Field required")
    content = _content(value["content"], f"{path}.content", found["role"])
    if found["role"] == "user" and all(block == TextBlock("") for block in content):
        raise bad_request(f"{path}.content: user messages must have non-empty content")
    return Message(found["role"], content)


def _messages(value: Any, path: str) -> tuple[Message, ...]:
    messages = tuple_of(_message)(value, path)
    if not messages:
        raise bad_request(f"{path}: at least one message is required")
    return messages


def _system(value: Any, path: str) -> str:
    """The system text: blocks joined by a newline, the billing line removed."""
    if isinstance(value, list):
        table = {"type": Field(one_of("text"), required=True), "text": _NEEDED}
        texts = (read_fields(block, f"{path}.{n}", table)["text"] for n, block in enumerate(value))
        value = "\n".join(filter(None, texts))
    if not isinstance(value, str):
        raise bad_request(f"{path}: Input should be a valid string or list of text blocks")
    return _BILLING.sub("", value)


def _tool_name(value: Any, path: str) -> str:
    if not _TOOL_NAME.fullmatch(text(value, path)):
        raise bad_request(f"{path}: String should match pattern '^{_TOOL_NAME.pattern}$'")
    return value


_TOOL = {
    "name": Field(_tool_name, required=True),
    "description": Field(text),
    "input_schema": Field(mapping, required=True),
    "defer_loading": Field(boolean),
}
_OWN_TOOL_TYPES = (None, "custom", "function")


def _tool(value: Any, path: str) -> Tool:
    """A tool of the client's, or a typed one that only Anthropic's servers run (it has no schema)."""
    kind = read_fields(value, path, {"type": Field(text)}).get("type")
    if kind in _OWN_TOOL_TYPES or "input_schema" in value:
        return Tool(**read_fields(value, path, _TOOL))
    return Tool(name=read_fields(value, path, {"name": Field(text)}).get("name", kind), server_type=kind)


def _tools(value: Any, path: str) -> tuple[Tool, ...]:
    tools, seen = tuple_of(_tool)(value, path), set()
    for n, tool in enumerate(tools):
        if tool.server_type:
            logger.info("%s.%d: %r (%r) runs on Anthropic's servers only and is not offered to the model", path, n, tool.name, tool.server_type)
        elif tool.name in seen:
            raise bad_request(f"{path}.{n}.name: Tool names must be unique ({tool.name})")
        else:
            seen.add(tool.name)
    return tools


def _tool_choice(value: Any, path: str) -> ToolChoice:
    table = {"type": Field(one_of("auto", "any", "tool", "none"), required=True), "disable_parallel_tool_use": Field(boolean)}
    found = read_fields(value, path, table)
    names = read_fields(value, path, {"name": Field(named, required=True)}) if found["type"] == "tool" else {}
    return ToolChoice(found["type"], parallel=not found.get("disable_parallel_tool_use", False), **names)


def _thinking(value: Any, path: str) -> Thinking:
    """A type that is not known yet counts as adaptive: clients give up for good when this field is refused."""
    table = {"type": Field(named, required=True), "budget_tokens": Field(integer), "display": Field(text)}
    found = read_fields(value, path, table)
    kind = found.pop("type")
    return Thinking(kind if kind in ("enabled", "disabled") else "adaptive", **found)


def _stop_sequence(value: Any, path: str) -> str:
    if not text(value, path).strip():
        raise bad_request(f"{path}: each stop sequence must contain non-whitespace")
    return value


_REQUEST = {
    "model": Field(text),
    "messages": Field(_messages, required=True),
    "system": Field(_system),
    "tools": Field(_tools),
    "temperature": Field(number(2)),
    "top_p": Field(number(1)),
    "top_k": Field(integer),
    "stop_sequences": Field(tuple_of(_stop_sequence)),
    "stream": Field(boolean),
    "tool_choice": Field(_tool_choice),
    "thinking": Field(_thinking),
}
_MAX_TOKENS = {"max_tokens": Field(integer, nullable=False)}


def parse_request(body: object, headers: Mapping[str, str], default_max_tokens: int, counting: bool = False) -> Request:
    """The request in a parsed body. `default_max_tokens` (tokens) is used where the client gives none.

    With `counting` (`/v1/messages/count_tokens`) `max_tokens` is not looked at. Raises `ApiError` 400.
    """
    if not isinstance(body, dict):
        raise bad_request("body: The request body should be a JSON object")
    found = {"max_tokens": default_max_tokens} | read_fields(body, "", _REQUEST if counting else _REQUEST | _MAX_TOKENS)
    client = _client(headers)
    subagent = bool(client.agent_id) or _marks_subagent(body.get("system"))
    request = Request(**found, **_output_config(body.get("output_config")), client=client, subagent=subagent)
    _check_tool_choice(request)
    return request


def _marks_subagent(system: Any) -> bool:
    """Whether the billing line says so; it is no part of the system text."""
    first = system[0].get("text") if isinstance(system, list) and system else system
    line = _BILLING.match(first) if isinstance(first, str) else None
    return bool(line) and "cc_is_subagent=true" in line[0]


def _check_tool_choice(request: Request) -> None:
    choice = request.tool_choice
    names = [tool.name for tool in request.tools if not tool.server_type]
    if choice.kind == "tool" and choice.name not in names:
        raise bad_request(f"tool_choice.name: Tool '{choice.name}' not found in provided tools")
    if choice.kind == "any" and not names:
        raise bad_request("tool_choice.type: 'any' needs at least one tool of the client's own")


def _output_config(value: Any) -> dict[str, Any]:
    """Effort and JSON schema, as far as they are well formed; nothing here is refused."""
    config = value if isinstance(value, dict) else {}
    effort, form = config.get("effort"), config.get("format")
    schema = form.get("schema") if isinstance(form, dict) and form.get("type") == "json_schema" else None
    return {"effort": effort if isinstance(effort, str) else "", "output_schema": schema if isinstance(schema, dict) else None}


def _client(headers: Mapping[str, str]) -> Client:
    lower = {name.lower(): value for name, value in headers.items()}
    names = ("user-agent", "x-claude-code-session-id", "x-claude-code-agent-id")
    return Client(*(lower.get(name, "") for name in names))
