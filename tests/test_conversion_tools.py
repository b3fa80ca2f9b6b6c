"""Tools of a request as a chat template takes them, those that are found later among them."""
from __future__ import annotations

import json

from conversations import BASH, FULL, GEMMA4, LLAMA3, MISTRAL, PLAIN, SCHEMA, assistant, call, prompt, request, result, user
from mlx_native_server.prompt.conversion import offered_tools


def test_tools_are_shown_with_name_description_and_whole_schema_only() -> None:
    made = prompt(user("x"), tools=[BASH | {"strict": True, "eager_input_streaming": True}])
    assert made.tools == [{"type": "function", "function": {"name": "Bash", "description": "Run a command.", "parameters": SCHEMA}}]
    assert prompt(user("x")).tools is None and prompt(user("x"), tools=[]).tools is None


def test_tools_that_the_model_cannot_use_are_not_offered() -> None:
    server = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
    assert [t["function"]["name"] for t in prompt(user("x"), tools=[server, BASH]).tools or ()] == ["Bash"]
    assert prompt(user("x"), tools=[server]).tools is None
    assert prompt(user("x"), tools=[BASH], tool_choice={"type": "none"}).tools is None
    assert "# Tools" not in json.dumps(prompt(user("x"), tools=[BASH], tool_choice={"type": "none"}, traits=PLAIN, system="S").messages)


def test_a_deferred_tool_is_defined_where_it_is_first_referenced_and_the_head_stays() -> None:
    tools = [{"name": name, "description": f"Does {name}.", "input_schema": {"type": "object"}, "defer_loading": name in "CDE"} for name in "ACDBE"]
    found = [{"type": "tool_reference", "tool_name": name} for name in ("D", "Z", "D", "A")]
    turns = [user("go"), assistant(call("a", "ToolSearch")), user(result("a", found)), assistant(call("b", "D")), user(result("b", [found[0]]))]
    made = prompt(*turns, tools=tools)
    assert [t["function"]["name"] for t in made.tools or ()] == ["A", "B"]
    assert made.messages[2]["content"].splitlines() == [
        "Tool found: D. It can be called like the other tools:",
        '{"name": "D", "description": "Does D.", "parameters": {"type": "object"}}',
        "Tool found: Z", "Tool found: D", "Tool found: A",
    ]  # fmt: skip
    assert made.messages[4]["content"] == "Tool found: D"
    for traits in (FULL, GEMMA4, LLAMA3, PLAIN, MISTRAL):
        before = prompt(*turns[:1], tools=[tool for tool in tools if tool["name"] in "AB"], traits=traits)
        after = prompt(*turns, tools=tools, traits=traits)
        assert (after.tools, after.messages[: len(before.messages)]) == (before.tools, before.messages)


def test_a_template_without_tools_gets_a_found_one_as_text() -> None:
    tools = [BASH, BASH | {"name": "Late", "defer_loading": True}]
    found = [{"type": "tool_reference", "tool_name": "Late"}]
    made = prompt(user("go"), assistant(call("a", "ToolSearch")), user(result("a", found)), tools=tools, traits=PLAIN)
    assert "## Late" not in made.messages[0]["content"]
    assert "## Late\nRun a command.\nParameters:\n- command (string, required)" in made.messages[-1]["content"]


def test_a_reference_outside_of_a_result_is_marked_as_not_typed() -> None:
    made = prompt(user({"type": "tool_reference", "tool_name": "Late"}, "go"), tools=[BASH | {"name": "Late", "defer_loading": True}])
    assert made.tools is None
    assert made.messages[0]["content"].startswith("<system-reminder>\nTool found: Late.") and made.messages[0]["content"].endswith("</system-reminder>\ngo")


def test_a_deferred_tool_that_is_demanded_is_at_the_head() -> None:
    tools = [BASH, BASH | {"name": "Late", "defer_loading": True}, BASH | {"name": "Later", "defer_loading": True}]
    assert [tool.name for tool in offered_tools(request(user("x"), tools=tools, tool_choice={"type": "tool", "name": "Late"}))] == ["Bash", "Late"]
