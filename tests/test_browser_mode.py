"""Browser mode: when it acts, and what it shows."""
from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from mlx_native_server.prompt.browser_mode import BROWSER_PROMPT, steers_browser
from mlx_native_server.prompt.code_mode import AGENT_PROMPT
from mlx_native_server.config import Settings
from mlx_native_server.prompt.conversion import to_prompt
from mlx_native_server.prompt.profiles import apply_profiles
from mlx_native_server.protocol import Request, Traits
from mlx_native_server.prompt.request import parse_request

CLAUDE_CODE = {"User-Agent": "claude-cli/2.1.332 (external, cli)"}
NINE = [f"mcp__chrome-devtools__{name}" for name in
        ("navigate_page", "take_snapshot", "click", "fill", "type_text", "press_key", "evaluate_script", "select_page", "list_pages")]  # fmt: skip


def changed(*names: str, headers: dict[str, str] | None = None, mode: str | None = None, messages: Any = None, deferred: tuple[str, ...] = (), **settings: Any) -> Request:
    tools = [{"name": name, "description": "It does it. " * 60, "input_schema": {"type": "object"}, "defer_loading": name in deferred} for name in names]
    body = {"messages": messages or [{"role": "user", "content": "hi"}], "system": "Be good.", "tools": tools}
    return apply_profiles(parse_request(body, headers or {}, 100), Settings(**({"browser_mode": True} | settings)), mode=mode)


def names(request: Request) -> list[str]:
    return [tool.name for tool in request.tools]


def test_the_prompt_and_the_nine_tools() -> None:
    request = changed("Bash", *NINE, "mcp__chrome-devtools__take_screenshot", "mcp__chrome-devtools__resize_page")
    assert request.system == BROWSER_PROMPT and names(request) == NINE
    assert max(len(tool.description) for tool in request.tools) <= 300


def test_it_wins_over_code_mode_and_leaves_other_requests_to_it(caplog: pytest.LogCaptureFixture) -> None:
    assert changed("Bash", "Read", NINE[0], headers=CLAUDE_CODE).system == BROWSER_PROMPT
    with caplog.at_level(logging.INFO):
        assert changed("Bash", "Read").system == "Be good."
    assert "no tool of this request steers a browser" in caplog.text
    assert AGENT_PROMPT in changed("Bash", "mcp__chrome-devtools__take_screenshot", headers=CLAUDE_CODE).system
    assert names(changed("Bash", "mcp__chrome-devtools__take_screenshot", headers=CLAUDE_CODE, code_mode=False)) == ["Bash", "mcp__chrome-devtools__take_screenshot"]


def test_it_is_off_unless_it_is_wanted() -> None:
    assert changed("Bash", *NINE, browser_mode=False).system == "Be good."
    assert changed("Bash", *NINE, browser_mode=False, mode="browser").system == BROWSER_PROMPT
    assert changed("Bash", *NINE, mode="none").system == "Be good."


STEERS = [
    *[(name, True) for name in NINE],
    ("mcp__chrome-devtools__take_screenshot", False), ("mcp__chrome-devtools__performance_start_trace", False),
    ("mcp__playwright__browser_navigate", True), ("mcp__playwright__browser_snapshot", True), ("mcp__playwright__browser_fill_form", True),
    ("mcp__playwright__browser_press_key", True), ("mcp__playwright__browser_tabs", True), ("mcp__playwright__browser_wait_for", True),
    ("mcp__playwright__browser_take_screenshot", False), ("mcp__playwright__browser_network_requests", False),
    ("mcp__plugin_playwright_playwright__browser_click", True), ("mcp__browsermcp__browser_type", True), ("mcp__puppeteer__puppeteer_evaluate", True),
    ("mcp__claude-in-chrome__read_page", True), ("mcp__claude-in-chrome__form_input", True), ("mcp__my-Firefox__goto", True),
    ("mcp__github__click", False), ("navigate_page", False), ("Bash", False),
]  # fmt: skip


@pytest.mark.parametrize(("name", "expected"), STEERS)
def test_which_tools_steer_a_browser(name: str, expected: bool) -> None:
    assert steers_browser(name) is expected


def test_tools_that_are_loaded_on_demand_keep_their_loader_and_the_head() -> None:
    listed = {"role": "system", "content": f"The following deferred tools are now there:\nCronList\n{NINE[1]}"}
    start = [{"role": "user", "content": "hi"}, listed]
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "ToolSearch", "input": {}}]}
    found = [{"type": "tool_reference", "tool_name": NINE[1]}]
    loaded = [*start, call, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": found}]}]
    before = to_prompt(changed("Bash", "ToolSearch", messages=start, headers=CLAUDE_CODE), Traits(), True)
    after = to_prompt(changed("Bash", NINE[1], "ToolSearch", messages=loaded, headers=CLAUDE_CODE, deferred=(NINE[1],)), Traits(), True)
    assert [tool["function"]["name"] for tool in before.tools or ()] == ["ToolSearch"]
    assert after.tools == before.tools and after.messages[: len(before.messages)] == before.messages
    assert json.dumps(NINE[1]) in after.messages[-1]["content"]
