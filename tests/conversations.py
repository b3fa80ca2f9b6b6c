"""Short ways to write a client's messages, and what a chat template is given for them."""
from __future__ import annotations

from typing import Any

from mlx_native_server.prompt.conversion import to_prompt
from mlx_native_server.prompt.request import parse_request
from mlx_native_server.protocol import Prompt, Request, Traits

FULL = Traits()
GEMMA4 = Traits(dialect="gemma4", text_beside_calls=False, thinking_option="enable_thinking", moves_late_text=True)
LLAMA3 = Traits(dialect="llama3", several_calls=False, text_beside_calls=False, reasoning_key="")
PLAIN = Traits(tools=False, tool_calls=False, several_calls=False, text_beside_calls=False, reasoning_key="", alternates=True)
MISTRAL = Traits(alternates=True, reasoning_key="")
MOVES = Traits(moves_late_text=True)

SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
BASH = {"name": "Bash", "description": "Run a command.", "input_schema": SCHEMA, "cache_control": {"type": "ephemeral"}}


def request(*messages: dict[str, Any], **fields: Any) -> Request:
    """What these messages and fields are read as."""
    return parse_request({"messages": list(messages), **fields}, {}, 100)


def prompt(*messages: dict[str, Any], traits: Traits = FULL, suppress_thinking: bool = True, **fields: Any) -> Prompt:
    """What a template with these traits is given."""
    return to_prompt(request(*messages, **fields), traits, suppress_thinking)


def user(*blocks: Any) -> dict[str, Any]:
    """A user turn; a bare text stands for its block."""
    return {"role": "user", "content": [text(b) if isinstance(b, str) else b for b in blocks]}


def assistant(*blocks: Any) -> dict[str, Any]:
    """An assistant turn, likewise."""
    return user(*blocks) | {"role": "assistant"}


def late(content: str) -> dict[str, Any]:
    """A system message among the turns."""
    return {"role": "system", "content": content}


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


def thought(content: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": content, "signature": "c2ln"}


def call(call_id: str, name: str = "Bash", **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def result(call_id: str, content: Any = "", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


def outline(made: Prompt) -> list[tuple[Any, ...]]:
    """Role, content and call ids of each message."""
    return [(m["role"], m["content"], *([[c["id"] for c in m["tool_calls"]]] if "tool_calls" in m else [])) for m in made.messages]
