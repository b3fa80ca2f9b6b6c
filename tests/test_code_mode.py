"""Code mode: who gets it, the head that is always the same, and what of a request's texts and tools is left."""
from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from claude_code import Sent, sent

from mlx_native_server.prompt.code_mode import AGENT_PROMPT, CODE_PROMPT, NOT_HERE, TEMPERATURE
from mlx_native_server.config import Settings
from mlx_native_server.prompt.conversion import to_prompt
from mlx_native_server.prompt.profiles import apply_profiles
from mlx_native_server.protocol import Prompt, Request, Traits
from mlx_native_server.prompt.request import parse_request
from mlx_native_server.models.tokens import load_tokenizer

AGENT = "claude-cli/2.1.332 (external, cli)"
IDENTITY = "You are Claude Code, made by Anthropic for the terminal."
HARNESS = "Do as you are asked.\n\n# Harness\n - Be good.\n\n# Context management\nWhen the conversation grows it is cut."
CHARS_A_TOKEN = 3.6
"""Of such prompts, by Qwen2.5's tokenizer, and rather few."""


def tool(name: str, **more: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
    return {"name": name, "description": f"{name} does it. " + "It has a long story. " * 40, "input_schema": schema} | more


TOOLS = [tool("Bash"), tool("Workflow"), tool("ScheduleWakeup"), tool("mcp__git-hub__get-issue"), tool("DeferredToolPlaceholder", defer_loading=True)]


def user(*texts: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text} if isinstance(text, str) else text for text in texts]}


def body(*messages: dict[str, Any], system: Any = f"{IDENTITY}\n{HARNESS}", **more: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 100, "messages": list(messages) or [user("hi")], "system": system, "tools": TOOLS} | more


def changed(request: dict[str, Any], headers: dict[str, str] | None = None, mode: str | None = None, **settings: Any) -> Request:
    return apply_profiles(parse_request(request, headers or {}, 100), Settings(**settings), mode=mode)


def prompt(request: Request, **traits: Any) -> Prompt:
    return to_prompt(request, Traits(**traits), True)


def shown(request: Request) -> list[str]:
    return [each["function"]["name"] for each in prompt(request).tools or ()]


# ── who gets it ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("request_body", "headers", "settings", "is_on"), [
    (body(), {}, {}, True),
    (body(system=[{"type": "text", "text": "x-anthropic-billing-header: a;"}, {"type": "text", "text": IDENTITY}, {"type": "text", "text": HARNESS}]), {}, {}, True),
    (body(system="You are a Claude agent, built on a kit of Anthropic's.\n" + HARNESS), {}, {}, True),
    (body(system=HARNESS), {"User-Agent": AGENT}, {}, True),
    (body(system=HARNESS), {"user-agent": AGENT.upper()}, {}, True),
    (body(system=HARNESS), {"User-Agent": "anthropic-python/1"}, {}, False),
    (body(system="You are Claude."), {}, {}, False),
    (body(user(IDENTITY), system="Be brief."), {}, {}, False),
    (body(), {"User-Agent": AGENT}, {"code_mode": False}, False),
], ids=lambda value: None)  # fmt: skip
def test_it_is_for_claude_code_only(request_body: dict[str, Any], headers: dict[str, str], settings: dict[str, Any], is_on: bool) -> None:
    before = parse_request(request_body, headers, 100)
    after = apply_profiles(before, Settings(**settings))
    assert (after.system == CODE_PROMPT) is is_on
    assert is_on or after is before


def test_it_can_be_demanded_and_forbidden() -> None:
    assert changed(body(system=HARNESS), mode="code").system == CODE_PROMPT
    assert changed(body(), {"User-Agent": AGENT}, mode="none").system.startswith(IDENTITY)


def test_the_texts_of_requests_without_tools_stay_as_they_are() -> None:
    requests = [sent()[number].parsed() for number in ("12", "16")]
    requests.append(parse_request(body(system=f"{IDENTITY}\n{HARNESS}{'Judge. ' * 1000}", tools=[]), {"User-Agent": AGENT}, 100))
    assert all(apply_profiles(before, Settings()) == dataclasses.replace(before, temperature=TEMPERATURE) for before in requests)


def test_a_request_for_a_search_says_that_there_is_none() -> None:
    before = sent()["31"].parsed()
    after = apply_profiles(before, Settings())
    assert after.system == f"{before.system}\n\n{NOT_HERE.format(tools='web_search')}" and after.messages == before.messages


def test_a_temperature_of_its_own_where_the_client_gives_none() -> None:
    assert changed(body()).temperature == TEMPERATURE
    assert changed(body(temperature=1.0)).temperature == 1.0


# ── the head ─────────────────────────────────────────────────────────────────────────────────────


def head(request: Sent) -> tuple[str, str]:
    made = prompt(apply_profiles(request.parsed(), Settings()))
    return made.messages[0]["content"], json.dumps(made.tools)


def test_the_head_is_the_same_in_every_session_folder_and_turn() -> None:
    main = ["01", "02", "05", "06", "07", "11", "17", "18", "21", "24", "25", "26", "27", "28", "29", "32", "33", "35", "38", "39", "41", "42", "43", "44"]
    heads = {head(sent()[number]) for number in main}
    assert len(heads) == 1
    assert head(sent()["13"]) == head(sent()["14"])
    assert head(sent()["08"]) == head(sent()["08"]) and head(sent()["09"]) == head(sent()["10"])


@pytest.mark.parametrize(("number", "tokens"), [("01", 2500), ("02", 2500), ("08", 2500), ("27", 3500), ("41", 2500), ("44", 2600)])
def test_what_is_left_of_a_request(number: str, tokens: int, tokenizer_folder: Callable[..., Path]) -> None:
    model = load_tokenizer(tokenizer_folder("qwen3"))
    parsed = sent()[number].parsed()
    text = model.encode(to_prompt(apply_profiles(parsed, Settings()), model.traits, True)).text
    assert len(text) / CHARS_A_TOKEN < tokens
    assert len(model.encode(to_prompt(parsed, model.traits, True)).text) > 2 * len(text)


@pytest.mark.parametrize(("system", "kept", "late"), [
    (f"{IDENTITY}\n{HARNESS}", CODE_PROMPT, ""),
    (f"{IDENTITY}\n{HARNESS}\n\nSay moin.\n\nAlways.", CODE_PROMPT, "Say moin.\n\nAlways."),
    (f"{IDENTITY}\n# House rules\nNo jokes.\n\n{HARNESS}", CODE_PROMPT, "# House rules\nNo jokes."),
    (f"{IDENTITY}\n{HARNESS}\n\n# Memory\nA file-based memory at `/home/u/notes/`. Use it.", CODE_PROMPT, "kept in /home/u/notes/ "),
    (f"{IDENTITY}\nCWD: /home/u\nDate: 2026-12-01", CODE_PROMPT, "CWD: /home/u\nDate: 2026-12-01"),
    (f"{IDENTITY}\n# Code style\nNone.\n\n<env>\nWorking directory: /home/u\nPlatform: linux\n</env>", CODE_PROMPT, "Working directory: /home/u\nPlatform: linux"),
    (f"{IDENTITY}\n{HARNESS}\n\ngitStatus: as it was.\nBranch: main\n\nStatus:\nM a", CODE_PROMPT, "gitStatus: as it was.\nBranch: main\n\nStatus:\nM a"),
    (f"{'Be good. ' * 700}\nToday's date: 2026-12-01", CODE_PROMPT, "Today's date: 2026-12-01"),
    (f"{IDENTITY}\nYou review code.", f"You review code.\n\n{AGENT_PROMPT}", ""),
    (f"{IDENTITY}\n{'You review code. ' * 500}", f"{('You review code. ' * 500).strip()}\n\n{AGENT_PROMPT}", ""),
    ("You review code. " * 500, CODE_PROMPT, ""),
    (IDENTITY, CODE_PROMPT, ""),
    ("", "", ""),
], ids=lambda value: None)  # fmt: skip
def test_the_system_prompt_and_what_users_put_into_it(system: str, kept: str, late: str) -> None:
    request = changed(body(system=system), {"User-Agent": AGENT})
    assert request.system == kept
    first = prompt(request).messages[-1]["content"]
    assert first == "hi" if not late else (first.startswith("<system-reminder>\n") and late in first and first.endswith("</system-reminder>\nhi"))


@pytest.mark.parametrize(("headers", "billing"), [({"X-Claude-Code-Agent-Id": "a1"}, ""), ({}, "x-anthropic-billing-header: v=1; cc_is_subagent=true;\n")])
def test_a_helper_agent_keeps_its_task(headers: dict[str, str], billing: str) -> None:
    request = changed(body(system=f"{billing}{IDENTITY}\nYou search files.\n# Environment\nHere."), headers)
    assert request.system == f"You search files.\n# Environment\nHere.\n\n{AGENT_PROMPT}"


def test_no_system_prompt_is_added_where_only_parts_are_counted() -> None:
    counted = apply_profiles(sent()["15"].parsed(), Settings())
    assert counted.system == "" and shown(counted) == ["Agent", "Bash", "Edit", "Read", "Skill", "ToolSearch", "Write"]


# ── tools ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("chosen", "names"), [
    ("core", ["Bash", "mcp__git-hub__get-issue"]),
    ("all", ["Bash", "Workflow", "ScheduleWakeup", "mcp__git-hub__get-issue"]),
    ("Workflow", ["Workflow", "mcp__git-hub__get-issue"]),
    ("core, Workflow", ["Bash", "Workflow", "mcp__git-hub__get-issue"]),
])  # fmt: skip
def test_which_tools_are_shown(chosen: str, names: list[str]) -> None:
    assert shown(changed(body(), code_tools=chosen)) == names


def test_a_demanded_tool_is_shown_and_a_tool_that_only_servers_run_is_not() -> None:
    assert shown(changed(body(tool_choice={"type": "tool", "name": "Workflow"}))) == ["Bash", "Workflow", "mcp__git-hub__get-issue"]
    assert shown(changed(body(tools=[*TOOLS, {"type": "web_search_20250305", "name": "web_search"}]))) == ["Bash", "mcp__git-hub__get-issue"]


def test_every_tool_can_still_be_called() -> None:
    assert [tool.name for tool in changed(body()).tools][: len(TOOLS)] == [tool["name"] for tool in TOOLS]


@pytest.mark.parametrize(("text", "found"), [
    ("Use a workflow for it", ["Workflow"]), ("please ScheduleWakeup", ["ScheduleWakeup"]), ("schedule a wakeup", []), ("schedule wakeup", ["ScheduleWakeup"]),
    ("Workflows and schedule_wakeup", ["ScheduleWakeup", "Workflow"]), ("networkflow", []), ("<system-reminder>Workflow</system-reminder>", []),
])  # fmt: skip
def test_a_held_back_tool_is_defined_where_a_person_names_it(text: str, found: list[str]) -> None:
    request = changed(body(user(text), {"role": "assistant", "content": "ok"}, user(text)))
    contents = [message["content"] for message in prompt(request).messages[1:]]
    assert [name for name in ("ScheduleWakeup", "Workflow") if f'{{"name": "{name}"' in contents[0]] == found
    assert '{"name"' not in contents[2]
    assert shown(request) == ["Bash", "mcp__git-hub__get-issue"]
    assert contents[0].endswith(text)


def test_a_held_back_tool_is_defined_where_it_was_called() -> None:
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "Workflow", "input": {}}]}
    made = prompt(changed(body(user("go"), call, user({"type": "tool_result", "tool_use_id": "a", "content": "Missing: command"}))))
    assert made.messages[-1]["content"].startswith('Missing: command\nTool found: Workflow. It can be called like the other tools:\n{"name": "Workflow"')


# ── what cannot be shown ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("number", "marker"), [("05", "image/png"), ("06", "image/png"), ("32", "application/pdf"), ("33", "image/")])
def test_images_and_documents_are_said_where_they_stood(number: str, marker: str) -> None:
    parsed = sent()[number].parsed()
    for request in (parsed, apply_profiles(parsed, Settings())):
        text = json.dumps(prompt(request).messages)
        assert f"({marker}" in text and "base64" not in text


# ── the texts between the turns ──────────────────────────────────────────────────────────────────

SESSION = "# Environment\nYou have been invoked here:\n - Primary working directory: /home/u/p\n - Platform: linux\n\nToday's date is 2026-12-01."
SLIM = "# Environment\n - Primary working directory: /home/u/p\n - Platform: linux\n\nToday's date is 2026-12-01."


def test_what_describes_the_session_goes_in_front_of_what_was_typed() -> None:
    rules = "<system-reminder>\nContents of CLAUDE.md: use tabs\n</system-reminder>"
    made = prompt(changed(body(user(rules, "List the files."), {"role": "system", "content": SESSION})), late_system=True)
    assert [message["role"] for message in made.messages] == ["system", "user"]
    assert made.messages[1]["content"] == f"<system-reminder>\n{SLIM}\n</system-reminder>\n{rules}\nList the files."


def test_a_later_one_stays_behind_the_results() -> None:
    turns = [user("go"), {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "Bash", "input": {}}]}]
    results = user({"type": "tool_result", "tool_use_id": "a", "content": "A"})
    made = prompt(changed(body(*turns, results, {"role": "system", "content": SESSION})), moves_late_text=True)
    assert made.messages[-1] == {"role": "tool", "tool_call_id": "a", "name": "Bash", "content": f"A\n\n<system-reminder>\n{SLIM}\n</system-reminder>"}


def test_a_system_message_of_which_nothing_is_needed_vanishes() -> None:
    made = prompt(changed(body(user("a"), {"role": "assistant", "content": "b"}, {"role": "system", "content": "You are powered by a model."}, user("c"))))
    assert [message["content"] for message in made.messages[1:]] == ["a", "b", "c"]


def test_the_callers_request_is_not_changed() -> None:
    before, again = sent()["41"].parsed(), sent()["41"].parsed()
    apply_profiles(before, Settings())
    assert before == again
