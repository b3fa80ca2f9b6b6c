"""Bodies that are taken, bodies that are refused, and the field that each refusal names."""
from __future__ import annotations

import json
from typing import Any

import pytest

from mlx_native_server.prompt.request import parse_json, parse_request
from mlx_native_server.protocol import (
    ApiError, Client, DocumentBlock, ImageBlock, Message, OtherBlock, Request, TextBlock, Thinking, ThinkingBlock,
    Tool, ToolChoice, ToolReferenceBlock, ToolResultBlock, ToolUseBlock,
)  # fmt: skip

HELLO = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
BASH = {"name": "Bash", "description": "run it", "input_schema": SCHEMA}


def read(body: dict[str, Any], counting: bool = False, headers: dict[str, str] | None = None) -> Request:
    return parse_request(parse_json(json.dumps({"messages": HELLO} | body).encode()), headers or {}, 8192, counting)


def refusal(body: dict[str, Any]) -> str:
    with pytest.raises(ApiError) as caught:
        read(body)
    assert (caught.value.status, caught.value.kind) == (400, "invalid_request_error")
    return caught.value.message


def says(role: str, *content: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": list(content)}]}


# ── fields ───────────────────────────────────────────────────────────────────────────────────────

TAKEN: list[tuple[dict[str, Any], str, Any]] = [
    ({}, "max_tokens", 8192),
    ({"max_tokens": 0}, "max_tokens", 0),
    ({"max_tokens": 64000}, "max_tokens", 64000),
    ({}, "model", ""),
    ({"model": "claude-x"}, "model", "claude-x"),
    ({"model": None}, "model", ""),
    ({}, "temperature", None),
    ({"temperature": None}, "temperature", None),
    ({"temperature": 0}, "temperature", 0.0),
    ({"temperature": 1.5}, "temperature", 1.5),
    ({"top_p": 0.9}, "top_p", 0.9),
    ({"top_k": 40}, "top_k", 40),
    ({"stop_sequences": ["END", "\n\nHuman:"]}, "stop_sequences", ("END", "\n\nHuman:")),
    ({"stop_sequences": None}, "stop_sequences", ()),
    ({"stream": True}, "stream", True),
    ({"stream": None}, "stream", False),
    ({"system": None}, "system", ""),
    ({"system": "Be brief."}, "system", "Be brief."),
    ({"system": []}, "system", ""),
    ({"system": [{"type": "text", "text": "A", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "B"}]}, "system", "A\nB"),
    ({"tools": None}, "tools", ()),
    ({"tools": [BASH | {"cache_control": {"type": "ephemeral"}, "strict": True}]}, "tools", (Tool("Bash", "run it", SCHEMA),)),
    ({"tools": [BASH | {"type": "custom", "defer_loading": True}]}, "tools", (Tool("Bash", "run it", SCHEMA, defer_loading=True),)),
    ({"tools": [{"name": "X", "description": None, "input_schema": {}}]}, "tools", (Tool("X", "", {}),)),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 3}]}, "tools",
     (Tool("web_search", server_type="web_search_20250305"),)),
    ({"tools": [{"type": "mcp_toolset", "mcp_server_name": "s"}]}, "tools", (Tool("mcp_toolset", server_type="mcp_toolset"),)),
    ({"tool_choice": {"type": "auto"}}, "tool_choice", ToolChoice()),
    ({"tool_choice": {"type": "none"}}, "tool_choice", ToolChoice("none")),
    ({"tools": [BASH], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}, "tool_choice", ToolChoice("any", parallel=False)),
    ({"tools": [BASH], "tool_choice": {"type": "tool", "name": "Bash"}}, "tool_choice", ToolChoice("tool", "Bash")),
    ({}, "thinking", None),
    ({"thinking": {"type": "adaptive", "display": "updates"}}, "thinking", Thinking("adaptive", display="updates")),
    ({"thinking": {"type": "enabled", "budget_tokens": 31999, "display": "updates"}}, "thinking", Thinking("enabled", 31999, "updates")),
    ({"thinking": {"type": "disabled"}}, "thinking", Thinking("disabled")),
    ({"thinking": {"type": "a later kind"}}, "thinking", Thinking("adaptive")),
    ({"output_config": {"effort": "high"}}, "effort", "high"),
    ({"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}, "output_schema", SCHEMA),
    ({"output_config": "what"}, "effort", ""),
    ({"output_config": {"effort": 3, "format": []}}, "output_schema", None),
]  # fmt: skip


@pytest.mark.parametrize(("body", "field", "value"), TAKEN, ids=str)
def test_a_field_is_taken(body: dict[str, Any], field: str, value: Any) -> None:
    assert getattr(read(body), field) == value


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": "100"}, "max_tokens: "),
    ({"max_tokens": 1.5}, "max_tokens: "),
    ({"max_tokens": True}, "max_tokens: "),
    ({"max_tokens": None}, "max_tokens: "),
    ({"max_tokens": -1}, "max_tokens: "),
    ({"model": 4}, "model: "),
    ({"temperature": "hot"}, "temperature: "),
    ({"temperature": True}, "temperature: "),
    ({"temperature": -0.1}, "temperature: "),
    ({"temperature": 10**400}, "temperature: "),
    ({"top_p": 1.1}, "top_p: "),
    ({"top_k": 1.0}, "top_k: "),
    ({"top_k": -1}, "top_k: "),
    ({"stream": "true"}, "stream: "),
    ({"stream": 1}, "stream: "),
    ({"stop_sequences": "END"}, "stop_sequences: "),
    ({"stop_sequences": ["a", 1]}, "stop_sequences.1: "),
    ({"stop_sequences": ["  "]}, "stop_sequences.0: "),
    ({"system": 5}, "system: "),
    ({"system": ["a"]}, "system.0: "),
    ({"system": [{"text": "a"}]}, "system.0.type: "),
    ({"system": [{"type": "image", "text": "a"}]}, "system.0.type: "),
    ({"system": [{"type": "text"}]}, "system.0.text: "),
    ({"tools": 3}, "tools: "),
    ({"tools": {"name": "X"}}, "tools: "),
    ({"tools": ["Bash"]}, "tools.0: "),
    ({"tools": [{"input_schema": {}}]}, "tools.0.name: "),
    ({"tools": [{"name": "X"}]}, "tools.0.input_schema: "),
    ({"tools": [{"name": "X", "input_schema": None}]}, "tools.0.input_schema: "),
    ({"tools": [{"name": "X", "input_schema": []}]}, "tools.0.input_schema: "),
    ({"tools": [{"name": "", "input_schema": {}}]}, "tools.0.name: "),
    ({"tools": [{"name": 'a"b', "input_schema": {}}]}, "tools.0.name: "),
    ({"tools": [{"name": ["X"], "input_schema": {}}]}, "tools.0.name: "),
    ({"tools": [{"name": "X", "description": 1, "input_schema": {}}]}, "tools.0.description: "),
    ({"tools": [{"type": 1, "name": "X"}]}, "tools.0.type: "),
    ({"tools": [{"type": "function", "function": BASH}]}, "tools.0.name: "),
    ({"tools": [BASH, BASH]}, "tools.1.name: "),
    ({"tool_choice": "auto"}, "tool_choice: "),
    ({"tool_choice": {"type": "maybe"}}, "tool_choice.type: "),
    ({"tool_choice": {"type": "tool"}}, "tool_choice.name: "),
    ({"tool_choice": {"type": "tool", "name": "Read"}, "tools": [BASH]}, "tool_choice.name: "),
    ({"tool_choice": {"type": "any"}}, "tool_choice.type: "),
    ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}}, "tool_choice.disable_parallel_tool_use: "),
    ({"thinking": "on"}, "thinking: "),
    ({"thinking": {}}, "thinking.type: "),
    ({"thinking": {"type": "enabled", "budget_tokens": True}}, "thinking.budget_tokens: "),
    ({"messages": None}, "messages: "),
    ({"messages": "hi"}, "messages: "),
    ({"messages": []}, "messages: "),
    ({"messages": ["x"]}, "messages.0: "),
    ({"messages": [{"content": "x"}]}, "messages.0.role: "),
    ({"messages": [*HELLO, {"role": "tool", "content": "x"}]}, "messages.1.role: "),
    ({"messages": [{"role": [], "content": "x"}]}, "messages.0.role: "),
    ({"messages": [{"role": "user"}]}, "messages.0.content: "),
    ({"messages": [{"role": "user", "content": None}]}, "messages.0.content: "),
    ({"messages": [{"role": "user", "content": ""}]}, "messages.0.content: "),
    (says("user"), "messages.0.content: "),
    (says("user", {"type": "text", "text": ""}), "messages.0.content: "),
    (says("user", "x"), "messages.0.content.0: "),
    (says("user", {"text": "x"}), "messages.0.content.0.type: "),
    (says("user", {"type": 1}), "messages.0.content.0.type: "),
    (says("user", {"type": "text", "text": "a"}, {"type": "text", "text": None}), "messages.0.content.1.text: "),
    (says("user", {"type": "tool_use", "id": "a", "name": "B", "input": {}}), "messages.0.content.0: "),
    (says("assistant", {"type": "tool_result", "tool_use_id": "a"}), "messages.0.content.0: "),
    (says("assistant", {"type": "tool_use", "name": "B"}), "messages.0.content.0.id: "),
    (says("assistant", {"type": "tool_use", "id": "a", "name": ""}), "messages.0.content.0.name: "),
    (says("assistant", {"type": "tool_use", "id": "a", "name": "B", "input": [1]}), "messages.0.content.0.input: "),
    (says("assistant", {"type": "tool_use", "id": "a", "name": "B", "input": "[1]"}), "messages.0.content.0.input: "),
    (says("assistant", {"type": "tool_use", "id": "a", "name": "B", "input": "{"}), "messages.0.content.0.input: "),
    (says("assistant", {"type": "thinking"}), "messages.0.content.0.thinking: "),
    (says("user", {"type": "tool_result"}), "messages.0.content.0.tool_use_id: "),
    (says("user", {"type": "tool_result", "tool_use_id": "a", "is_error": "no"}), "messages.0.content.0.is_error: "),
    (says("user", {"type": "tool_result", "tool_use_id": "a", "content": 5}), "messages.0.content.0.content: "),
    (says("user", {"type": "tool_result", "tool_use_id": "a", "content": ["x"]}), "messages.0.content.0.content.0: "),
    (says("user", {"type": "image"}), "messages.0.content.0.source: "),
    (says("user", {"type": "document", "source": {"type": "text", "data": 1}}), "messages.0.content.0.source.data: "),
    (says("user", {"type": "document", "title": 1, "source": {}}), "messages.0.content.0.title: "),
]


@pytest.mark.parametrize(("body", "start"), REFUSED, ids=str)
def test_a_refusal_starts_with_the_field(body: dict[str, Any], start: str) -> None:
    assert refusal(body).startswith(start)


@pytest.mark.parametrize(("body", "words"), [*[(odd, "^body: ") for odd in (None, [], "x", 5)], ({}, "^messages: Field required")])
def test_a_body_that_is_no_object_or_has_no_messages_is_refused(body: Any, words: str) -> None:
    with pytest.raises(ApiError, match=words):
        parse_request(body, {}, 1)


def test_counting_does_not_look_at_max_tokens() -> None:
    assert read({"max_tokens": "many"}, counting=True).max_tokens == 8192


def test_what_clients_add_is_taken() -> None:
    more = {"metadata": {"user_id": "u"}, "context_management": {"edits": []}, "safeguards": [{"type": "x"}], "betas": ["b"], "service_tier": "auto"}
    messages = [{"role": "user", "content": "hi", "output_config": {"effort": "low"}}]
    assert read(more | {"messages": messages}) == read({})


def test_headers_say_who_asks_in_any_case() -> None:
    headers = {"User-Agent": "claude-cli/2", "X-Claude-Code-Session-Id": "s", "x-claude-code-agent-id": "a"}
    assert read({}, headers=headers).client == Client("claude-cli/2", "s", "a")


# ── blocks ───────────────────────────────────────────────────────────────────────────────────────

PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBOR"}}
BLOCKS: list[tuple[str, dict[str, Any], Any]] = [
    ("user", {"type": "text", "text": "a", "cache_control": {}}, TextBlock("a")),
    ("user", PNG, ImageBlock("image/png")),
    ("user", {"type": "image", "source": {"type": "url", "url": "u"}}, ImageBlock()),
    ("user", {"type": "document", "title": "t", "source": {"type": "text", "media_type": "text/plain", "data": "d"}}, DocumentBlock("t", "text/plain", "d")),
    ("user", {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBE"}}, DocumentBlock("", "application/pdf")),
    ("user", {"type": "document", "title": None, "source": {"type": "content", "content": [{"type": "text", "text": "d"}, PNG]}}, DocumentBlock(text="d")),
    ("user", {"type": "search_result", "title": "t", "source": "u", "content": [{"type": "text", "text": "d"}]}, DocumentBlock("t u", "text/plain", "d")),
    ("user", {"type": "tool_result", "tool_use_id": "a"}, ToolResultBlock("a")),
    ("user", {"type": "tool_result", "tool_use_id": "a", "content": None, "is_error": None}, ToolResultBlock("a")),
    ("user", {"type": "tool_result", "tool_use_id": "a", "content": "x", "is_error": True}, ToolResultBlock("a", (TextBlock("x"),), True)),
    ("user", {"type": "tool_result", "tool_use_id": "a", "content": [PNG, {"type": "tool_reference", "tool_name": "X"}]},
     ToolResultBlock("a", (ImageBlock("image/png"), ToolReferenceBlock("X")))),
    ("user", {"type": "a later kind"}, OtherBlock("a later kind")),
    ("assistant", {"type": "thinking", "thinking": "t", "signature": "s"}, ThinkingBlock("t", "s")),
    ("assistant", {"type": "redacted_thinking", "data": "x"}, OtherBlock("redacted_thinking")),
    ("assistant", {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}, OtherBlock("server_tool_use")),
    ("assistant", {"type": "tool_use", "id": "a", "name": "B", "input": {"k": [1]}}, ToolUseBlock("a", "B", {"k": [1]})),
    ("assistant", {"type": "tool_use", "id": "a", "name": "B", "input": '{"k": 1}'}, ToolUseBlock("a", "B", {"k": 1})),
    ("assistant", {"type": "tool_use", "id": "a", "name": "B", "input": None}, ToolUseBlock("a", "B", {})),
    ("assistant", {"type": "tool_use", "id": "a", "name": "no.such_tool"}, ToolUseBlock("a", "no.such_tool", {})),
    ("system", {"type": "text", "text": "late"}, TextBlock("late")),
]  # fmt: skip


@pytest.mark.parametrize(("role", "block", "value"), BLOCKS, ids=str)
def test_a_block_is_taken(role: str, block: dict[str, Any], value: Any) -> None:
    assert read(says(role, block)).messages == (Message(role, (value,)),)


def test_empty_assistant_and_system_messages_are_taken() -> None:
    messages = [*HELLO, {"role": "assistant", "content": ""}, {"role": "assistant", "content": []}, {"role": "system", "content": ""}]
    assert len(read({"messages": messages}).messages) == 4


# ── the billing line ─────────────────────────────────────────────────────────────────────────────

BILLING = "x-anthropic-billing-header: cc_version=2.1.250.0aa; cc_entrypoint=cli; cch=1a2b3;"


@pytest.mark.parametrize("system", [
    [{"type": "text", "text": BILLING}, {"type": "text", "text": "You help."}],
    [{"type": "text", "text": BILLING + "\n"}, {"type": "text", "text": "You help."}],
    [{"type": "text", "text": "\n" + BILLING + "\nYou help."}],
    BILLING + "\nYou help.",
    BILLING + "\r\n\r\nYou help.",
    "  X-Anthropic-Billing-Header :cch=9\nYou help.",
], ids=str)  # fmt: skip
def test_the_billing_line_is_removed_without_a_trace(system: Any) -> None:
    assert read({"system": system}).system == "You help."


def test_a_system_text_that_mentions_the_billing_header_is_kept() -> None:
    text = f"Explain this line:\n{BILLING}"
    assert read({"system": text}).system == text
    assert read({"system": BILLING}).system == ""
