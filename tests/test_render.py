"""The render command: a line in, a line out."""
from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from mlx_native_server import render
from mlx_native_server.prompt.browser_mode import BROWSER_PROMPT
from mlx_native_server.prompt.code_mode import CODE_PROMPT
from mlx_native_server.config import Settings
from mlx_native_server.protocol import Encoded, Prompt, Traits

HELLO = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi ü"}]}
TOOL = {"name": "Bash", "input_schema": {"type": "object", "properties": {}}}


def run(*lines: Any, **options: Any) -> list[dict[str, Any]]:
    out = io.StringIO()
    render.main([line if isinstance(line, (str, bytes)) else json.dumps(line) for line in lines], out, **options)
    return [json.loads(line) for line in out.getvalue().splitlines()]


class Words:
    """A model whose tokens are the words of the last message."""

    traits = Traits(tools=False, tool_calls=False)

    def encode(self, prompt: Prompt) -> Encoded:
        text = prompt.messages[-1]["content"]
        return Encoded(text, list(range(len(text.split()))))


def test_messages_and_tools_as_the_template_gets_them() -> None:
    assert run(HELLO | {"system": "S", "tools": [TOOL]}) == [
        {
            "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "hi ü"}],
            "tools": [{"type": "function", "function": {"name": "Bash", "description": "", "parameters": TOOL["input_schema"]}}],
        }
    ]


def test_bytes_and_missing_fields_are_taken_as_the_server_takes_them() -> None:
    body = {"messages": HELLO["messages"]}
    assert run(json.dumps(body, ensure_ascii=False).encode(), "\n") == [{"messages": HELLO["messages"], "tools": []}]


@pytest.mark.parametrize(("line", "start"), [
    ("{", "body: "),
    ("[]", "body: "),
    (b"\xff", "body: "),
    ({"messages": "x"}, "messages: "),
    (HELLO | {"max_tokens": None}, "max_tokens: "),
])  # fmt: skip
def test_a_refused_body_gives_an_error_and_the_next_line_is_read(line: Any, start: str) -> None:
    error, after = run(line, HELLO)
    assert list(error) == ["error"] and error["error"]["type"] == "invalid_request_error" and error["error"]["message"].startswith(start)
    assert after["messages"]


def test_with_a_model_its_traits_count_and_text_and_tokens_are_shown() -> None:
    shown = run(HELLO | {"tools": [TOOL]}, model=Words())[0]
    assert (shown["text"], shown["input_tokens"], shown["tools"]) == ("hi ü", 2, [])
    assert shown["messages"][0]["content"].startswith("# Tools")


def test_the_profiles_of_the_settings_are_applied(tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text("More.")
    shown = run(HELLO, settings=Settings(append_system_prompt_file=str(tmp_path / "more.txt")))[0]
    assert shown["messages"][0] == {"role": "system", "content": "More."}


def test_an_unknown_profile_is_refused() -> None:
    assert run(HELLO, profile="other")[0]["error"]["message"].startswith("profile: ")


CLAUDE_CODE = HELLO | {"system": "You are Claude Code, of Anthropic.\n# Harness\nMuch.", "tools": [TOOL, TOOL | {"name": "Workflow"}]}


def test_a_mode_is_rendered_whoever_the_client_is_and_only_when_it_is_asked_for() -> None:
    assert run(CLAUDE_CODE)[0]["messages"][0]["content"].startswith("You are Claude Code")
    shown = run(CLAUDE_CODE, profile="code")[0]
    assert shown["messages"][0]["content"] == CODE_PROMPT and [tool["function"]["name"] for tool in shown["tools"]] == ["Bash"]
    browser = {"name": "mcp__chrome-devtools__click", "input_schema": {}}
    shown = run(CLAUDE_CODE | {"tools": [TOOL, browser]}, profile="browser")[0]
    assert shown["messages"][0]["content"] == BROWSER_PROMPT and [tool["function"]["name"] for tool in shown["tools"]] == [browser["name"]]
