"""What Claude Code sends back in another form or place than the model and its template know."""
from __future__ import annotations

from typing import Any

import pytest

from mlx_native_server.config import Settings
from mlx_native_server.prompt.conversion import to_prompt
from mlx_native_server.prompt.echoes import as_written, with_results
from mlx_native_server.prompt.profiles import apply_profiles
from mlx_native_server.prompt.request import parse_request
from mlx_native_server.protocol import ImageBlock, TextBlock, ToolResultBlock, ToolUseBlock, Traits

GIVEN = {"file_path": "/a", "old_string": "b", "new_string": "c"}
EDITS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "a default that the client put in front": ("Edit", {"replace_all": False} | GIVEN, GIVEN),
    "a value that the client moved to the front": ("Edit", {"replace_all": True} | GIVEN, GIVEN | {"replace_all": True}),
    "a default behind": ("Edit", GIVEN | {"replace_all": False}, GIVEN | {"replace_all": False}),
    "another tool": ("mcp__a__Edit", {"replace_all": False} | GIVEN, {"replace_all": False} | GIVEN),
    "nothing": ("Edit", {}, {}),
}


@pytest.mark.parametrize(("name", "echoed", "written"), EDITS.values(), ids=EDITS)
def test_an_edit_as_the_model_wrote_it(name: str, echoed: dict[str, Any], written: dict[str, Any]) -> None:
    block = as_written(ToolUseBlock("t", name, echoed))
    assert isinstance(block, ToolUseBlock) and list(block.input.items()) == list(written.items())


def result(*parts: Any, error: bool = False) -> ToolResultBlock:
    return ToolResultBlock("t", tuple(TextBlock(part) if isinstance(part, str) else part for part in parts), error)


PNG, SIZE = ImageBlock("image/png"), "[Image: original 3000x2000, displayed at 2000x1333.]"
SKILL, SKILL_2, BODY, BODY_2 = "Launching skill: a", "Launching skill: b", "Base directory for this skill: /a", "Do b."
STOPPED, NOTE = "[Request interrupted by user for tool use]", "<system-reminder>\nx\n</system-reminder>"
PLACES = {
    "an image's size": ([result(PNG), SIZE], [result(PNG, SIZE)]),
    "a skill's instructions": ([result(SKILL), BODY], [result(SKILL, BODY)]),
    "beside another result": ([result(SKILL), result("x"), BODY], [result(SKILL, BODY), result("x")]),
    "two skills": ([result(SKILL), result(SKILL_2), BODY, BODY_2], [result(SKILL, BODY), result(SKILL_2, BODY_2)]),
    "a skill in several texts": ([result(SKILL), BODY, BODY_2], [result(SKILL, BODY, BODY_2)]),
    "a skill and an image": ([result(PNG), result(SKILL), SIZE, BODY], [result(PNG, SIZE), result(SKILL, BODY)]),
    "a reminder stays": ([result(SKILL), NOTE, BODY], [result(SKILL, BODY), NOTE]),
    "what a person typed": ([result("x"), "And now y."], [result("x"), "And now y."]),
    "what a person typed after stopping it": ([result(SKILL), STOPPED, "And now y."], [result(SKILL), STOPPED, "And now y."]),
    "an image that a person gave": ([PNG, SIZE, "What is it?"], [PNG, SIZE, "What is it?"]),
}


@pytest.mark.parametrize(("sent", "placed"), PLACES.values(), ids=PLACES)
def test_where_texts_behind_results_belong(sent: list[Any], placed: list[Any]) -> None:
    assert [with_results(blocks(sent))] == [blocks(placed)]


def blocks(parts: list[Any]) -> tuple[Any, ...]:
    return tuple(TextBlock(part) if isinstance(part, str) else part for part in parts)


def test_a_skill_within_a_tool_loop_does_not_begin_a_new_round() -> None:
    """Templates that drop older thoughts would render the whole loop anew."""
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "Skill", "input": {"skill": "a"}}]}
    back = [{"type": "tool_result", "tool_use_id": "a", "content": SKILL}, {"type": "text", "text": BODY}]
    body = {"messages": [{"role": "user", "content": "go"}, call, {"role": "user", "content": back}], "model": "m", "max_tokens": 9,
            "tools": [{"name": "Skill", "input_schema": {"type": "object"}}]}  # fmt: skip
    request = apply_profiles(parse_request(body, {"user-agent": "claude-cli/2"}, 9), Settings())
    roles = [(message["role"], message["content"]) for message in to_prompt(request, Traits(moves_late_text=True), True).messages]
    assert roles[-2:] == [("assistant", ""), ("tool", f"{SKILL}\n{BODY}")]
