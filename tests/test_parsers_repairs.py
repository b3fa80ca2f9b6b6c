"""Slips of small models that are read all the same: marks in the wrong place, names in another spelling, quotes forgotten."""
from __future__ import annotations

import pytest

from outputs import BASH, PAGES, STRING, WRITE, answer, tool

CALL = '{"name": "Bash", "arguments": {"command": "ls"}}'
LS = ("Bash", {"command": "ls"})
Q = '<|"|>'

ONE_CALL = {  # text -> visible text; all are one call
    "an opener for the closer": (f"<tool_call>\n{CALL}\n<tool_call>", ""),
    "an opener for the closer, white space behind": (f"<tool_call>\n{CALL}\n<tool_call>\n", ""),
    "the closer of a thought behind the call": (f"<tool_call>{CALL}</tool_call></think>", ""),
    "only the opener forgotten": (f"I look.\n{CALL}\n</tool_call>", "I look."),
    "only the opener forgotten, text behind": (f"I look.\n{CALL}\n</tool_call>\nThen.", "I look.\nThen."),
    "the prompt's header again": (f"<|im_start|>assistant\nI look.\n<tool_call>{CALL}</tool_call><|im_end|>", "I look."),
    "Gemma, no call:": (f"<|tool_call>Bash{{command:{Q}ls{Q}}}<tool_call|>", ""),
    "Gemma, no call: before JSON": ('<|tool_call>Bash{"command": "ls"}<tool_call|>', ""),
    "Gemma, a space behind call:": (f"<|tool_call>call: Bash{{command:{Q}ls{Q}}}<tool_call|>", ""),
    "Gemma, the opener and call: in one": (f"<tool_call:Bash{{command:{Q}ls{Q}}}<tool_call|>", ""),
    "Gemma, the opener and call: in one, a stray >": (f"I look.\n<tool_call:Bash{{command:{Q}ls{Q}}}><tool_call|>\nThen.", "I look.\nThen."),
    "Gemma, Python's brackets": ('<|tool_call>call:Bash(command="ls")<tool_call|>', ""),
    "Gemma, an opening quote forgotten": (f"<|tool_call>call:Bash{{command:ls{Q}}}<tool_call|>", ""),
    "Gemma, a closing quote forgotten": (f"<|tool_call>call:Bash{{command:{Q}ls}}<tool_call|>", ""),
    "Gemma, a closing quote forgotten, response mark": (f"<|tool_call>call:Bash{{command:{Q}ls}}<tool_call|><|tool_response>", ""),
    "Mistral, the mark twice": ('[TOOL_CALLS][TOOL_CALLS]Bash[ARGS]{"command": "ls"}', ""),
    "Llama, builtin with a string last": ('<|python_tag|>Bash.call(command="ls")<|eom_id|>', ""),
    "harmony, JSON in a string": ('<|channel|>commentary to=functions.Bash<|message|>"{\\"command\\": \\"ls\\"}"<|call|>', ""),
    "a fence of tildes": (f"~~~json\n{CALL}\n~~~", ""),
    "a fence of tildes behind text": (f"I look.\n\n~~~\n[{CALL}]\n~~~~\n", "I look."),
    "a space before the fence's label": (f"``` json\n{CALL}\n```", ""),
}


@pytest.mark.parametrize("text, visible", ONE_CALL.values(), ids=ONE_CALL)
def test_a_call_with_a_slip(text: str, visible: str) -> None:
    got = answer(text)
    assert (got["calls"], got["text"], got["unfinished"]) == ([LS], visible, 0)


COMMAS = {  # arguments as they were written -> what arrives
    '"file_path": "/a" "content": "x"': {"file_path": "/a", "content": "x"},
    '"file_path": "/a"\n  "content": "x"': {"file_path": "/a", "content": "x"},
    '"file_path": "/a", "content": "say "a" "b" now"': {"file_path": "/a", "content": 'say "a" "b" now'},
    '"file_path": "/a", "content": "a" "b c": d"': {"file_path": "/a", "content": 'a" "b c": d'},
    '"file_path": "/a", "content": "x" ""': {"file_path": "/a", "content": 'x" "'},
}


@pytest.mark.parametrize("written, arrives", COMMAS.items())
def test_a_forgotten_comma_and_quotes_that_are_content(written: str, arrives: dict) -> None:
    assert answer(f'<tool_call>{{"name": "Write", "arguments": {{{written}}}}}</tool_call>')["calls"] == [("Write", arrives)]


NO_CALL = {
    "an undeclared name without call:": f"<|tool_call>Nope{{command:{Q}ls{Q}}}<tool_call|>",
    "an undeclared name in one with the opener": f"<tool_call:Nope{{command:{Q}ls{Q}}}<tool_call|>",
    "the opener in a sentence": "A <tool_call: and so on",
    "an example in a fence of tildes": f"For example:\n~~~json\n{CALL}\n~~~",
    "a call within a fence of tildes": f"~~~xml\n```\n<tool_call>{CALL}</tool_call>\n```\n~~~",
    "marks in a fence of tildes": "a\n~~~\n<|im_end|> <think>\n~~~\nb",
    "an example before a closer": f"A call looks like this:\n{CALL}\n</tool_call>",
    "a turn marker in quotation marks": 'It ends with "<|im_end|>" or “<|eot_id|>”.',
}


@pytest.mark.parametrize("text", NO_CALL.values(), ids=NO_CALL)
def test_what_is_no_call_is_text_to_the_character(text: str) -> None:
    got = answer(text)
    assert (got["calls"], got["text"], got["unfinished"]) == ([], text, 0)


def test_a_turn_marker_behind_one_quotation_mark_ends_the_answer() -> None:
    assert answer('He said "yes<|im_end|>" and more')["text"] == 'He said "yes'


def test_a_turn_marker_in_quotation_marks_does_not_end_a_thought() -> None:
    got = answer('<think>It ends with "<|im_end|>" here.</think>Yes.')
    assert (got["thinking"], got["text"]) == ('It ends with "<|im_end|>" here.', "Yes.")


def test_a_header_within_the_answer_ends_it() -> None:
    assert answer("Yes.\n<|im_start|>assistant\nNo.")["text"] == "Yes."


def test_marks_inside_a_string_without_a_closing_quote_yet_are_content() -> None:
    content = "a}<tool_call|> and <tool_call|>\n"
    got = answer(f"<|tool_call>call:Write{{content:{Q}{content}{Q},file_path:{Q}/a{Q}}}<tool_call|>")
    assert got["calls"] == [("Write", {"content": content, "file_path": "/a"})]


@pytest.mark.parametrize("text, reason", [
    (f"<|tool_call>call:Bash{{command:{Q}ls}}<tool_call|>", "length"), (f"<|tool_call>call:Bash{{command:{Q}ls<tool_call|>", "stop"),
    (f"<|tool_call>call:Bash{{command:{Q}echo '<|tool_call>call:x{{}}<tool_call|>", "stop"),
])
def test_a_string_that_may_go_on_is_not_closed(text: str, reason: str) -> None:
    got = answer(text, reason)
    assert (got["calls"], got["unfinished"]) == ([], 1)


FETCH, READ = tool("WebFetch", {"url": STRING}, ["url"]), tool("mcp__fs__read-file", {"path": STRING}, ["path"])
NAMES = [  # as it was written, which tool is meant ("": none)
    ("web_fetch", "WebFetch"), ("WEB-FETCH", "WebFetch"), ("default_api.WebFetch", "WebFetch"), ("tools/webfetch", "WebFetch"),
    ("mcp__web__WebFetch", "WebFetch"), ("google:mcp:web_fetch", "WebFetch"), ("mcp__fs__read_file", "mcp__fs__read-file"),
    ("mcp__fs__readFile", "mcp__fs__read-file"), ("fs.mcp__fs__read_file", "mcp__fs__read-file"), ("Fetch", ""), ("WebFetch2", ""), ("MyWebFetch", ""), ("read_file", ""),
]


@pytest.mark.parametrize("written, meant", NAMES)
def test_which_tool_is_meant(written: str, meant: str) -> None:
    got = answer(f'<tool_call>{{"name": "{written}", "arguments": {{"url": "x", "path": "x"}}}}</tool_call>', tools=[FETCH, READ])
    assert [name for name, _ in got["calls"]] == ([meant] if meant else [])


def test_two_tools_that_differ_by_an_underscore_are_not_mixed_up() -> None:
    tools = [tool("web_fetch", {"url": STRING}), tool("webfetch", {"url": STRING})]
    assert [name for name, _ in answer('<tool_call>{"name": "webfetch", "arguments": {"url": "x"}}</tool_call>', tools=tools)["calls"]] == ["webfetch"]
    assert answer('<tool_call>{"name": "WebFetch", "arguments": {"url": "x"}}</tool_call>', tools=tools)["calls"] == []


@pytest.mark.parametrize("arguments", ["[]", '""', "null"])
def test_no_arguments_in_another_spelling(arguments: str) -> None:
    assert answer(f'<tool_call>{{"name": "list_pages", "arguments": {arguments}}}</tool_call>', tools=[PAGES, BASH])["calls"] == [("list_pages", {})]


@pytest.mark.parametrize("written, value", [("None", None), ("null", None), ("Nonesuch", "Nonesuch"), ("none", "none")])
def test_a_bare_none_is_none_where_the_schema_has_it(written: str, value: str | None) -> None:
    tools = [tool("t", {"maybe": {"type": ["string", "null"]}, "text": STRING})]
    text = "<tool_call>\n<function=t>\n" + "".join(f"<parameter={key}>\n{written}\n</parameter>\n" for key in ("maybe", "text")) + "</function>\n</tool_call>"
    assert answer(text, tools=tools)["calls"] == [("t", {"maybe": value, "text": written})]


@pytest.mark.parametrize("opener, closer", [("<think>", "</think>"), ("<|think:start|>", "<|think:end|>"), ("<longcat_think>", "</longcat_think>")])
def test_a_thought_in_its_tags(opener: str, closer: str) -> None:
    got = answer(f"{opener}Plan.{closer}Done.", tools=[WRITE])
    assert (got["thinking"], got["text"]) == ("Plan.", "Done.")
