"""What is left of the texts that Claude Code puts between the turns."""
from __future__ import annotations

import pytest

from mlx_native_server.prompt.late_text import EVENT, PLAN_END, PLAN_END_ALONE, PLAN_STEPS, UNKNOWN_CHARS, slim_reminder, slim_system

ALL = {"Agent", "Skill", "ToolSearch"}

ENVIRONMENT = """# Environment
You have been invoked in a place:
 - Primary working directory: /home/u/p
 - Is a git repository: true
 - Additional working directories:
  - /tmp/other
 - Files from the net are not to be trusted, because they may hold: anything that one can think of.
 - In `curl`, take care."""
DEFERRED = "The following deferred tools are now available. They are not loaded:\nCronList\nmcp__a-b__c"
AGENTS = "Available agent types for the Agent tool:\n- Explore: Looks for things. Not for reviews. (Tools: Read, Bash)\n- x: Y (Tools: *)"
SKILLS = "The following skills are available here:\n\n- deploy: Puts it on the server. Use it when asked to.\nTRIGGER always\n- a:b: C"
PLAN = "Plan mode is active. Do not edit.\n\n## Plan File Info:\nIt is /home/u/plan.md.\n\n## Plan Workflow\n\n### Phase 1\nMuch.\n\n### Phase 2\nMore."

SYSTEM = {
    "environment: facts stay, advice goes": (ENVIRONMENT, "\n".join(ENVIRONMENT.split("\n")[i] for i in (0, 2, 3, 4, 5))),
    "deferred tools: their names": (DEFERRED, 'More tools, by name only. To use one, first load it: ToolSearch with query "select:NAME". Their names: CronList, mcp__a-b__c'),
    "agents: a line each": (AGENTS, "Agent types for the Agent tool:\n- Explore: Looks for things. Not for reviews.\n- x: Y"),
    "skills: a line each": (SKILLS, "Skills for the Skill tool:\n- deploy: Puts it on the server. Use it when asked to.\n- a:b: C"),
    "plan mode: the rule and the file": (PLAN, f"Plan mode is active. Do not edit.\n\n## Plan File Info:\nIt is /home/u/plan.md.\n\n{PLAN_STEPS}{PLAN_END_ALONE}"),
    "plan mode without steps": ("Plan mode is active. Do not edit.", "Plan mode is active. Do not edit."),
    "the model's name": ("You are powered by the best.", ""),
    "a date": ("Today's date is 2026-12-01.", "Today's date is 2026-12-01."),
    "an output style, whole": ("# Output Style: X\nRhyme.\n\n# More\nAlways.", "# Output Style: X\nRhyme.\n\n# More\nAlways."),
    "what servers say of their tools": ("# MCP Server Instructions\n\nOf servers:\n\n## a\nDo b.", "# MCP Server Instructions\n\nOf servers:\n\n## a\nDo b."),
    "what a hook says": ("SessionStart:startup hook success: one\n\n- two", "SessionStart:startup hook success: one\n\n- two"),
    "something new": ("The build is red.", "The build is red."),
    "nothing": (" \n", ""),
}


@pytest.mark.parametrize(("text", "slim"), SYSTEM.values(), ids=SYSTEM)
def test_a_section_alone_and_between_others(text: str, slim: str) -> None:
    assert slim_system(text, ALL) == slim
    around = [DEFERRED, text, "You are powered by it."] if text.strip() else [DEFERRED]
    assert slim_system("\n\n".join(around), ALL) == "\n\n".join(filter(None, (SYSTEM["deferred tools: their names"][1], slim)))


def test_lists_are_for_those_who_can_use_them() -> None:
    assert slim_system("\n\n".join((DEFERRED, AGENTS, SKILLS, "Today's date is x.")), {"Bash"}) == "Today's date is x."


def test_a_plan_ends_with_the_tool_for_it_where_there_is_one() -> None:
    assert slim_system(PLAN, ALL | {"ExitPlanMode"}).endswith(f"\n\n{PLAN_STEPS}{PLAN_END}")


def test_every_name_of_a_long_list_stays() -> None:
    slim = slim_system("The following skills are available:\n\n" + "\n".join(f"- skill-{n}: {'very ' * 40}useful." for n in range(100)), ALL)
    assert all(f"- skill-{n}: very" in slim for n in range(100)) and len(slim) < 6500


def test_of_long_text_of_which_nothing_is_known_the_beginnings_stay() -> None:
    text = "\n\n".join(f"- item {n} has a long story. {'And so on. ' * 30}\n - Platform: {'os ' * 40}{n}" for n in range(10))
    slim = slim_system(text, ALL)
    assert all(f"- item {n} has a long story." in slim and f"{'os ' * 40}{n}" in slim for n in range(10))
    assert len(slim) <= UNKNOWN_CHARS + 10 * 140


def test_long_text_beside_known_sections_stays_whole() -> None:
    text = "A long story. " * 300
    assert slim_system(f"{text}\n\nToday's date is x.", ALL) == f"{text.rstrip()}\n\nToday's date is x."


def marked(text: str) -> str:
    return f"<system-reminder>\n{text}\n</system-reminder>"


CALLED = "<tool-use-id>t1</tool-use-id>\n"
TASK = f"<task-notification>\n<task-id>a1</task-id>\n{CALLED}<output-file>/tmp/a1</output-file>\n<status>completed</status>\n<summary>It ended</summary>\n"
REPORT = "Two files.\n<note>a</note>\n\nThe following skills are gone.\n<result>b</result>\n<usage>c</usage>"

REMINDERS = {
    "a section": (marked(SKILLS), marked(SYSTEM["skills: a line each"][1])),
    "not needed": (marked("<total_tokens>15 tokens left</total_tokens>"), ""),
    "git state without the client's comment": (
        marked("As you answer, know this:\n# gitStatus\nBranch: main\n\nClaude Code attached this context by itself."),
        marked("As you answer, know this:\n# gitStatus\nBranch: main"),
    ),
    "commit lines without the client's comment": (
        marked("Attribution for git commits from now on (this replaces all; that is so):\n- End them with X"),
        marked("Attribution for git commits from now on:\n- End them with X"),
    ),
    "the client's own notes after a summary": (marked("<tools-used-before-summary>Bash</tools-used-before-summary>"), ""),
    "a task's end, its report as it is": (
        marked(f"[SYSTEM NOTIFICATION - NOT USER INPUT]\nDo not take it for one.\n\n{TASK}<note>Long.\nIt may come again.</note>\n"
               f"<result>{REPORT}</result>\n<usage><tool_uses>1</tool_uses></usage>\n</task-notification>"),
        marked(f"{EVENT}\n{TASK.replace(CALLED, '')}<result>{REPORT}</result>\n</task-notification>"),
    ),
    "a task's end without a report": (
        marked(f"[SYSTEM NOTIFICATION - NOT USER INPUT]\nDo not take it for one.\n{TASK}</task-notification>"),
        marked(f"{EVENT}\n{TASK.replace(CALLED, '')}</task-notification>"),
    ),
    "a notification of another kind": (marked("[SYSTEM NOTIFICATION] x"), marked("[SYSTEM NOTIFICATION] x")),
    "a user's instructions, byte for byte": (marked(f"Contents of CLAUDE.md:\n\n{ENVIRONMENT}\n\n{PLAN}") + "\n", marked(f"Contents of CLAUDE.md:\n\n{ENVIRONMENT}\n\n{PLAN}") + "\n"),
    "something long and new": (marked("x y. " * 1000), marked("x y. " * 1000)),
}


@pytest.mark.parametrize(("text", "slim"), REMINDERS.values(), ids=REMINDERS)
def test_a_reminder(text: str, slim: str) -> None:
    assert slim_reminder(text, ALL) == slim
