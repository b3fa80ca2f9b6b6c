"""Calls written as Python: LFM2, Llama 4, MiniCPM4."""
from __future__ import annotations

import json

import pytest

from outputs import STRING, TOOLS, answer, run, tool

LS, LIST = ("Bash", {"command": "ls"}), ("list_pages", {})
EDIT = tool("edit_file", {
    "path": STRING, "text": STRING, "opts": {"type": "object"}, "n": {"type": "integer"}, "flag": {"type": "boolean"}, "list": {"type": "array"},
    "x": {"type": "number"}, "from": STRING, "dry-run": {"type": "boolean"}, "note": {"type": ["string", "null"]},
})
DASHED = tool("mcp__make-it", {"a": STRING})
ALL = (*TOOLS, EDIT, DASHED)


def marked(inner: str) -> str:
    return f"<|tool_call_start|>{inner}<|tool_call_end|>"


ONE_CALL = {
    "LFM2": marked("[Bash(command='ls')]"),
    "double quotes": marked('[Bash(command="ls")]'),
    "spaces": marked("\n[ Bash ( command = 'ls' , ) ]\n"),
    "undeclared key": marked("[Bash(command='ls', why=\"to see\")]"),
    "namespace": marked("[functions.Bash(command='ls')]"),
    "by position": marked("[Bash('ls')]"),
    "a dictionary": marked('[Bash({"command": "ls"})]'),
    "two stars": marked('[Bash(**{"command": "ls"})]'),
    "colon": marked("[Bash(command: 'ls')]"),
    "no list": marked("Bash(command='ls')"),
    "JSON list": marked('[{"name": "Bash", "arguments": {"command": "ls"}}]'),
    "JSON object": marked('{"name": "Bash", "arguments": {"command": "ls"}}'),
    "fence": marked("\n```python\nBash(command='ls')\n```\n"),
    "fence without a language": marked("\n```\nBash(command='ls')\n```"),
    "square bracket missing": marked("[Bash(command='ls')"),
    "both brackets missing": marked("[Bash(command='ls'"),
    "closer missing": "<|tool_call_start|>[Bash(command='ls')]",
    "all closers missing": "<|tool_call_start|>[Bash(command='ls'",
    "Llama 4 marks": '<|python_start|>[Bash(command="ls")]<|python_end|><|eot|>',
    "Llama 4 JSON": '<|python_start|><|python_end|>{"name": "Bash", "parameters": {"command": "ls"}}<|eot|>',
    "Llama 4 bare": '[Bash(command="ls")]<|eot|>',
    "bare, space before": '\n [Bash(command="ls")]',
    "bare, bracket missing": '[Bash(command="ls")',
    "bare behind a thought": '<think></think>\n[Bash(command="ls")]',
}


@pytest.mark.parametrize("text", ONE_CALL.values(), ids=ONE_CALL)
def test_spelling_of_one_call(text: str) -> None:
    got = answer(text, tools=ALL)
    assert (got["calls"], got["text"], got["kinds"]) == ([LS], "", ["tool_use"])


SEVERAL = [
    marked("[Bash(command='ls'), list_pages()]"), marked("[Bash(command='ls')\n, list_pages( )\n]"), marked("Bash(command='ls'); list_pages()"),
    marked("```python\nBash(command='ls')\nlist_pages()\n```"), marked("[Bash(command='ls')]") + marked("[list_pages()]"),
    '[Bash(command="ls"), list_pages()]', marked('[{"name": "Bash", "arguments": {"command": "ls"}}, {"name": "list_pages"}]'),
    '<|python_start|><|python_end|>{"name": "Bash", "parameters": {"command": "ls"}}{"name": "list_pages", "parameters": {}}',
]


@pytest.mark.parametrize("text", SEVERAL)
def test_several_calls(text: str) -> None:
    got = answer(text, tools=ALL)
    assert (got["calls"], got["text"]) == ([LS, LIST], "")


VALUES = [  # arguments as written, what arrives
    ("path='a b.py', text=\"it's [x](y), )]\", opts={\"k\": [1, {\"z\": null}]}", {"path": "a b.py", "text": "it's [x](y), )]", "opts": {"k": [1, {"z": None}]}}),
    ("text='', path=\"\"", {"text": "", "path": ""}),
    ("text='it's here', n=1", {"text": "it's here", "n": 1}),
    ("text='say 'hi', then go', n=1", {"text": "say 'hi', then go", "n": 1}),
    ('text="f("a") and g("b")"', {"text": 'f("a") and g("b")'}),
    ("text='<|tool_call_end|>)]', n=2", {"text": "<|tool_call_end|>)]", "n": 2}),
    (r"text='a\'b\\c\n\t\x41\u00e9\ud83d\ude80\U0001F680'", {"text": "a'b\\c\n\tAé🚀🚀"}),
    (r"text='\d+ \x4 \u12 end'", {"text": r"\d+ \x4 \u12 end"}),
    (r"text=r'\bword\n'", {"text": r"\bword\n"}),
    ("text='two\nlines'", {"text": "two\nlines"}),
    ("text='''a 'b' \"c\"\nd''', n=1", {"text": "a 'b' \"c\"\nd", "n": 1}),
    ('text="""say "x" """', {"text": 'say "x" '}),
    ("flag=True, n=-3, x=2.5", {"flag": True, "n": -3, "x": 2.5}),
    ("flag=false, note=None, list=[1, 'a', True, null]", {"flag": False, "note": None, "list": [1, "a", True, None]}),
    ("n='12', x=1e3, flag='true'", {"n": 12, "x": 1000.0, "flag": True}),
    ("text=12, path=007", {"text": "12", "path": "007"}),
    ("opts={'a': \"it's\", 'b': {}}, list=[]", {"opts": {"a": "it's", "b": {}}, "list": []}),
    ("from_='x', dry_run=True", {"from": "x", "dry-run": True}),
    ("text='a', text='b'", {"text": "a"}),
    ("text='f(x), g(y)', n=1", {"text": "f(x), g(y)", "n": 1}),
]


@pytest.mark.parametrize("written, arrives", VALUES)
def test_arguments(written: str, arrives: dict) -> None:
    for text in (marked(f"[edit_file({written})]"), f"[edit_file({written})]"):
        assert json.dumps(answer(text, tools=ALL)["calls"]) == json.dumps([("edit_file", arrives)])


def test_a_dashed_name_comes_back_with_underscores() -> None:
    assert answer(marked("[mcp__make_it(a='x')]"), tools=ALL)["calls"] == [("mcp__make-it", {"a": "x"})]


TEXT = {
    "undeclared": marked("[nope(a='[Bash(command=1)]')]"),
    "undeclared bare": '[nope(a="x")]',
    "no literal": marked("[Bash(command=x + 1)]"),
    "prose between the marks": marked("nothing to call"),
    "bare behind prose": 'So:\n[Bash(command="ls")]',
    "bare in a sentence": 'Use [Bash(command="ls")] here',
    "bare in code": '`[Bash(command="ls")]`',
    "a link": "[Bash](https://example.com) is a shell",
    "a list": "[1, 2, 3] has three",
    "a list of words": "[Bash, Glob]",
    "a box": "[ ] Bash(command='ls')",
    "program": "<|python_start|>print(1)<|python_end|>",
    "cut in the name": "<|tool_call_start|>[Ba",
    "cut in the key": "<|tool_call_start|>[Bash(comm",
}


@pytest.mark.parametrize("text", TEXT.values(), ids=TEXT)
def test_what_is_no_call_stays_text(text: str) -> None:
    got = answer(text, tools=ALL)
    assert (got["calls"], got["text"], got["unfinished"]) == ([], text, 0)


def test_an_empty_list_is_noise() -> None:
    assert answer(f"One.{marked('[]')}", tools=ALL)["text"] == "One."


def test_a_list_drafted_in_a_thought_is_no_call() -> None:
    assert answer('<think>maybe\n[Bash(command="ls")]')["calls"] == []


def test_text_behind_a_bare_list_is_kept() -> None:
    got = answer('[Bash(command="ls")] runs it.')
    assert (got["calls"], got["text"]) == ([LS], " runs it.")


def test_a_string_streams_once_its_quote_is_known() -> None:
    events = run(["<|tool_call_start|>[Bash(command='", "one ", "two ", "three')]"])
    partials = [e["delta"]["partial_json"] for e in events if e["type"] == "content_block_delta"]
    assert partials[1:3] == ["one ", "two "]
