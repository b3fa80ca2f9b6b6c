"""Dialects whose arguments are JSON between marks of their own, and functiongemma: Mistral, Kimi K2, DeepSeek."""
from __future__ import annotations

import pytest

from outputs import BASH, GLOB, PAGES, STRING, answer, tool

LS, LIST = ("Bash", {"command": "ls"}), ("list_pages", {})
ARGUMENTS = '{"command": "ls"}'


def kimi(call_id: str, arguments: str = ARGUMENTS) -> str:
    return f"<|tool_call_begin|>{call_id}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"


def kimi_section(*calls: str) -> str:
    return "<|tool_calls_section_begin|>" + "".join(calls) + "<|tool_calls_section_end|>"


def deepseek(between: str) -> str:
    return f"<｜tool▁call▁begin｜>{between}<｜tool▁call▁end｜>"


def deepseek_section(*calls: str) -> str:
    return "<｜tool▁calls▁begin｜>" + "".join(calls) + "<｜tool▁calls▁end｜>"


FENCED = "function<｜tool▁sep｜>Bash\n```json\n" + ARGUMENTS + "\n```"

ONE_CALL = {
    "mistral": f"[TOOL_CALLS]Bash[ARGS]{ARGUMENTS}",
    "mistral id": f"[TOOL_CALLS]Bash[CALL_ID]k3Jd9sLq2[ARGS]{ARGUMENTS}</s>",
    "mistral without [ARGS]": f"[TOOL_CALLS]Bash{ARGUMENTS}",
    "mistral spaces": f"[TOOL_CALLS] Bash [ARGS] {ARGUMENTS}",
    "mistral namespace": f"[TOOL_CALLS]fs.Bash[ARGS]{ARGUMENTS}",
    "mistral list": '[TOOL_CALLS] [{"name": "Bash", "arguments": {"command": "ls"}, "id": "k3Jd9sLq2"}]',
    "mistral arguments first": '[TOOL_CALLS][{"arguments": {"command": "ls"}, "name": "Bash"}]',
    "mistral arguments as text": '[TOOL_CALLS][{"name": "Bash", "arguments": "{\\"command\\": \\"ls\\"}"}]',
    "mistral old closer": '[TOOL_CALLS] [{"name": "Bash", "arguments": {"command": "ls"}}] [/TOOL_CALLS]',
    "mistral one object": '[TOOL_CALLS]{"name": "Bash", "arguments": {"command": "ls"}}',
    "kimi": kimi_section(kimi("functions.Bash:0")),
    "kimi singular": kimi_section(kimi("functions.Bash:0")).replace("calls_section", "call_section"),
    "kimi without a section": kimi("functions.Bash:0"),
    "kimi closer of a section that never opened": kimi("functions.Bash:0") + "<|tool_calls_section_end|>",
    "kimi short id": kimi("Bash:3"),
    "kimi name only": kimi("Bash"),
    "kimi underscores": kimi("functions_Bash_1"),
    "kimi run together": kimi("functionsBash5"),
    "kimi name in the JSON": kimi("call_9f2", '{"name": "Bash", "arguments": {"command": "ls"}}'),
    "kimi number": kimi("0"),
    "kimi copied id": kimi("toolu_01Ab"),
    "kimi no id": kimi(""),
    "kimi no argument mark": "<|tool_call_begin|>functions.Bash:0" + ARGUMENTS,
    "kimi newlines": f"<|tool_calls_section_begin|>\n<|tool_call_begin|> functions.Bash:0\n<|tool_call_argument_begin|>\n{ARGUMENTS}\n<|tool_call_end|>\n",
    "kimi arguments as text": kimi("functions.Bash:0", '"{\\"command\\": \\"ls\\"}"'),
    "kimi missing brace": kimi("functions.Bash:0", '{"command": "ls"'),
    "deepseek V3": deepseek_section(deepseek(FENCED)),
    "deepseek V3.1": deepseek_section(deepseek(f"Bash<｜tool▁sep｜>{ARGUMENTS}")),
    "deepseek fence without a language": deepseek(FENCED.replace("json", "")),
    "deepseek no fence": deepseek(f"function<｜tool▁sep｜>Bash\n{ARGUMENTS}"),
    "deepseek distilled": deepseek_section(deepseek(FENCED)).replace("<｜tool▁calls▁begin｜>", "<｜tool_calls_begin｜>"),
    "deepseek missing brace": deepseek('Bash<｜tool▁sep｜>{"command": "ls"'),
    "deepseek end of sentence": deepseek_section(deepseek(FENCED)) + "<｜end▁of▁sentence｜>",
    "deepseek outputs begin": deepseek_section(deepseek(FENCED)) + "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>a.txt",
    "functiongemma": "<start_function_call>call:Bash{command:<escape>ls<escape>}<end_function_call>",
    "functiongemma unclosed": "<start_function_call>call:Bash{command:<escape>ls<escape>}",
    "functiongemma response": "<start_function_call>call:Bash{command:<escape>ls<escape>}<end_function_call><start_function_response>response:Bash{a:1}",
}


@pytest.mark.parametrize("text", ONE_CALL.values(), ids=ONE_CALL)
def test_spelling_of_one_call(text: str) -> None:
    got = answer(text, tools=[BASH, PAGES])
    assert (got["calls"], got["text"], got["kinds"]) == ([LS], "", ["tool_use"])


SEVERAL = {
    "mistral": f"[TOOL_CALLS]Bash[ARGS]{ARGUMENTS}[TOOL_CALLS]list_pages[ARGS]{{}}",
    "mistral missing brace": '[TOOL_CALLS]Bash[ARGS]{"command": "ls"[TOOL_CALLS]list_pages[ARGS]{}',
    "mistral list": '[TOOL_CALLS][{"name": "Bash", "arguments": {"command": "ls"}}, {"name": "list_pages", "arguments": {}}]',
    "kimi": kimi_section(kimi("functions.Bash:0"), kimi("functions.list_pages:1", "{}")),
    "kimi no arguments": kimi_section(kimi("functions.Bash:0"), kimi("functions.list_pages:1", "")),
    "kimi two sections": kimi_section(kimi("functions.Bash:0")) + kimi_section(kimi("functions.list_pages:1", "{}")),
    "kimi missing brace": kimi_section(kimi("functions.Bash:0", '{"command": "ls"'), kimi("functions.list_pages:1", "{}")),
    "deepseek V3": deepseek_section(deepseek(FENCED), "\n", deepseek("function<｜tool▁sep｜>list_pages\n```json\n{}\n```")),
    "deepseek V3.1": deepseek_section(deepseek(f"Bash<｜tool▁sep｜>{ARGUMENTS}"), deepseek("list_pages<｜tool▁sep｜>{}")),
    "deepseek no arguments": deepseek_section(deepseek(f"Bash<｜tool▁sep｜>{ARGUMENTS}"), deepseek("list_pages<｜tool▁sep｜>")),
    "functiongemma": "<start_function_call>call:Bash{command:<escape>ls<escape>}<end_function_call><start_function_call>call:list_pages{}<end_function_call>",
}


@pytest.mark.parametrize("text", SEVERAL.values(), ids=SEVERAL)
def test_several_calls_with_text_around_them(text: str) -> None:
    got = answer(f"One.\n{text}\nTwo.", tools=[BASH, PAGES])
    assert (got["calls"], got["text"].split()) == ([LS, LIST], ["One.", "Two."])


@pytest.mark.parametrize("text", [kimi("functions.Bash:0"), deepseek(FENCED), f"[TOOL_CALLS]Bash[ARGS]{ARGUMENTS}"])
def test_identical_calls_are_two_calls(text: str) -> None:
    assert answer(text + text)["calls"] == [LS, LS]


TEXT = {
    "mistral undeclared": '[TOOL_CALLS]Nope[ARGS]{"a": "[TOOL_CALLS]Bash[ARGS]{}"}',
    "mistral a word of the text": "[TOOL_CALLS] is how a call begins",
    "mistral at the end": "see [TOOL_CALLS]",
    "mistral name only": "[TOOL_CALLS]list_pages",
    "mistral a list of strings": '[TOOL_CALLS]Bash[ARGS]["ls"]',
    "kimi undeclared": kimi_section(kimi("functions.Nope:0")),
    "kimi nothing fits": kimi_section(kimi("call_1", '{"x": 1}')),
    "kimi a call in the arguments of none": kimi("call_1", '{"x": "<tool_call>{\\"name\\": \\"list_pages\\"}</tool_call>"}'),
    "kimi no JSON": kimi_section(kimi("functions.Bash:0", "ls -l")),
    "kimi prose": "<|tool_calls_section_begin|> opens it",
    "kimi cut in the id": "<|tool_call_begin|>functions.Ba",
    "deepseek undeclared": deepseek_section(deepseek(f"Nope<｜tool▁sep｜>{ARGUMENTS}")),
    "deepseek no separator": deepseek_section(deepseek("Bash" + ARGUMENTS)),
    "deepseek prose": "<｜tool▁calls▁begin｜> opens it",
    "in code": "`[TOOL_CALLS]` and\n```\n" + kimi("Bash") + deepseek(FENCED) + "\n```",
}


@pytest.mark.parametrize("text", TEXT.values(), ids=TEXT)
def test_what_is_no_call_stays_text(text: str) -> None:
    got = answer(text)
    assert (got["calls"], got["text"], got["unfinished"]) == ([], text, 0)


def test_a_nameless_call_is_not_given_to_one_of_two_tools_that_fit() -> None:
    search = tool("search", {"pattern": STRING}, ["pattern"])
    text = kimi_section(kimi("7", '{"pattern": "a"}'))
    assert answer(text, tools=[GLOB])["calls"] == [("Glob", {"pattern": "a"})]
    assert answer(text, tools=[GLOB, search])["text"] == text


def test_a_tool_whose_name_ends_in_a_number_is_not_taken_for_another() -> None:
    first, second = tool("step", {"a": STRING}), tool("step_1", {"a": STRING})
    text = kimi("functions.step_1:0", '{"a": "x"}') + kimi("functions.step:1", '{"a": "y"}')
    assert answer(text, tools=[first, second])["calls"] == [("step_1", {"a": "x"}), ("step", {"a": "y"})]


def test_marks_inside_strings_are_content() -> None:
    inner = "[TOOL_CALLS] [ARGS] <|tool_call_end|><|tool_calls_section_end|> <｜tool▁call▁end｜> ``` </s>"
    arguments = f'{{"command": "{inner}"}}'
    for text in (f"[TOOL_CALLS]Bash[ARGS]{arguments}", kimi_section(kimi("Bash:0", arguments)), deepseek_section(deepseek(FENCED.replace(ARGUMENTS, arguments)))):
        assert answer(text)["calls"] == [("Bash", {"command": inner})]
