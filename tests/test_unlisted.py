"""Tools that a request names or a model remembers, but that the request does not define."""
from __future__ import annotations

import json
from typing import Any

import pytest
from outputs import answer

from mlx_native_server.config import Settings
from mlx_native_server.prompt.conversion import offered_tools, to_prompt
from mlx_native_server.prompt.late_text import PLAN_END
from mlx_native_server.prompt.profiles import apply_profiles
from mlx_native_server.prompt.request import parse_request
from mlx_native_server.protocol import Request, Traits
from mlx_native_server.turn.turn import declared

CLAUDE_CODE = {"User-Agent": "claude-cli/2.1.332 (external, cli)"}
GET, CLICK = "mcp__my-dashed-server__get-the_thing", "mcp__chrome-devtools__click"
LIST = f"The following deferred tools are now available via a search:\nCronList\nExitPlanMode\n{GET}\n{CLICK}\n\nOther words.\nNoTool"
PLAN = "Plan mode is active. Only read.\n\n## Plan Workflow\n\nMuch."
TOOLS = [{"name": name, "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}}} for name in ("Bash", "ToolSearch")]


def asked(*more: dict[str, Any], listed: str = LIST, tools: list[dict[str, Any]] = TOOLS, **settings: Any) -> Request:
    messages = [{"role": "user", "content": "go"}, {"role": "system", "content": listed}, *more]
    body = {"model": "m", "max_tokens": 100, "messages": messages, "tools": tools}
    return apply_profiles(parse_request(body, CLAUDE_CODE, 100), Settings(**settings))


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.mark.parametrize(("name", "arguments"), [
    (GET, {"thing-id": "42", "max-count": None, "opts": {"deep": True}}), ("CronList", {}), ("ExitPlanMode", {}),
    ("TodoWrite", {"todos": [{"content": "a"}]}), ("Grep", {"pattern": "x"}), ("Write", {"file_path": "/a", "content": "b"}),
])  # fmt: skip
def test_a_call_of_a_tool_that_was_not_defined_goes_to_the_client(name: str, arguments: dict[str, Any]) -> None:
    request = asked()
    got = answer(call(name, **arguments), tools=declared(request))
    assert (got["calls"], got["text"], got["stop_reason"]) == ([(name, arguments)], "", "tool_use")
    assert [tool.name for tool in offered_tools(request)] == ["Bash", "ToolSearch"]


@pytest.mark.parametrize("name", ["NoTool", "Launch", "mcp__my-dashed-server__other"])
def test_a_name_that_nobody_knows_stays_text(name: str) -> None:
    assert answer(call(name), tools=declared(asked()))["calls"] == []


def test_a_defined_tool_keeps_its_definition() -> None:
    own = {"name": GET, "input_schema": {"type": "object", "properties": {"a": {"type": "string"}}}, "defer_loading": True}
    found = [tool for tool in asked(tools=[*TOOLS, own]).tools if tool.name == GET]
    assert [tool.input_schema for tool in found] == [own["input_schema"]]


def test_a_reference_to_a_tool_without_a_definition_defines_nothing() -> None:
    searched = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "ToolSearch", "input": {}}]}
    found = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "tool_reference", "tool_name": GET}]}
    made = to_prompt(asked(searched, {"role": "user", "content": [found]}), Traits(), True)
    assert made.messages[-1]["content"] == f"Tool found: {GET}"


def test_a_request_without_tools_gets_none() -> None:
    assert asked(tools=[]).tools == ()


def test_plan_mode_ends_with_its_tool_although_it_is_only_listed() -> None:
    assert PLAN_END in to_prompt(asked(listed=f"{LIST}\n\n{PLAN}"), Traits(), True).messages[-1]["content"]
    assert PLAN_END not in to_prompt(asked(listed=PLAN), Traits(), True).messages[-1]["content"]


def test_in_browser_mode_only_tools_for_a_browser_count() -> None:
    assert [tool.name for tool in asked(browser_mode=True).tools] == ["ToolSearch", CLICK]
