"""Calls as JSON without marks: when an object is a call, an example, or the answer itself."""
from __future__ import annotations

import json

import pytest

from mlx_native_server.answer.streaming import ResponseStream
from outputs import BASH, PAGES, STRING, WRITE, answer, run, tool

READ = tool("Read", {"file_path": STRING, "limit": {"type": "number"}}, ["file_path"])
GLOB = tool("Glob", {"pattern": STRING}, ["pattern"])
TOOLS = (BASH, WRITE, READ, GLOB, PAGES)
LS = '{"name": "Bash", "arguments": {"command": "ls"}}'
LLAMA = '{"name": "Bash", "parameters": {"command": "ls"}}'
CALLED = ("Bash", {"command": "ls"})

ALONE = {  # the whole answer is one call
    "bare": LS,
    "parameters": LLAMA,
    "type first": '{"type": "function", "name": "Bash", "parameters": {"command": "ls"}}',
    "type last": '{"name": "Bash", "parameters": {"command": "ls"}, "type": "function"}',
    "no spaces": '{"type":"function","name":"Bash","parameters":{"command":"ls"}}',
    "printed over lines": json.dumps({"name": "Bash", "type": "function", "parameters": {"command": "ls"}}, indent=4),
    "arguments first": '{"parameters": {"command": "ls"}, "name": "Bash"}',
    "arguments as text": '{"name": "Bash", "parameters": "{\\"command\\": \\"ls\\"}"}',
    "OpenAI's nesting": '{"id": "call_1", "type": "function", "function": {"name": "Bash", "arguments": {"command": "ls"}}}',
    "function_call": '{"function_call": {"name": "Bash", "arguments": {"command": "ls"}}}',
    "key tool": '{"tool": "Bash", "input": {"command": "ls"}}',
    "key tool_name": '{"tool_name": "Bash", "args": {"command": "ls"}}',
    "key function": '{"function": "Bash", "parameters": {"command": "ls"}}',
    "wrong case": '{"name": "bash", "parameters": {"command": "ls"}}',
    "Python's spelling": "{'name': 'Bash', 'parameters': {'command': 'ls'}}",
    "a last brace missing": '{"name": "Bash", "parameters": {"command": "ls"}',
    "an alias of a key": '{"name": "Bash", "parameters": {"cmd": "ls"}}',
    "array": f"[{LS}]",
    "OpenAI's list": f'{{"tool_calls": [{LS}]}}',
    "OpenAI's list in a fence": f'```json\n{{\n  "tool_calls": [\n    {LS}\n  ]\n}}\n```',
    "array over lines": f"[\n  {LS}\n]",
    "array without its end": f"[{LS}",
    "leading space": f"\n\n  {LS}\n",
    "end of message": f"{LLAMA}<|eom_id|>",
    "end of turn": f"{LLAMA}<|eot_id|>\n",
    "python tag": f"<|python_tag|>{LLAMA}",
    "python tag, type": '<|python_tag|>{"type": "function", "name": "Bash", "parameters": {"command": "ls"}}<|eom_id|>',
    "python tag twice": f"<|python_tag|><|python_tag|>{LLAMA}",
    "python tag and a newline": f"<|python_tag|>\n{LLAMA}",
    "python tag, list": f"<|python_tag|>[{LLAMA}]",
    "python tag, builtin": '<|python_tag|>Bash.call(command="ls")',
    "python tag, Python": "<|python_tag|>[Bash(command='ls')]",
    "python tag, Python without brackets": "<|python_tag|>Bash(command='ls')",
    "pipe tags": f"<|tool_call|>{LS}<|/tool_call|>",
    "pipe tags, list": f"<|tool_call|>[{LS}]<|/tool_call|>",
    "pipe tags, no closer": f"<|tool_call|>[{LS}]",
    "pipe tags, parameters": f"<|tool_call|>\n{LLAMA}\n<|/tool_call|>",
    "tools tag, parameters": f"<tools>\n{LLAMA}\n</tools>",
    "tools tag, list": f"<tools>[{LS}]</tools>",
    "functools": f"functools[{LS}]",
    "upper-case tags": f"<TOOLCALL>[{LS}]</TOOLCALL>",
    **{f"fence {label!r}": f"```{label}\n{LS}\n```" for label in ("json", "", "tool_call", "tool-call", "tool_code", "JSON", "javascript", "python", "text", "jsonc")},
    "fence, array": f"```json\n[{LS}]\n```",
    "fence, one line": f"```json {LS} ```",
    "fence, Llama": f"```json\n{LLAMA}\n```",
    "fence of four": f"````json\n{LS}\n````",
    "fence not closed": f"```json\n{LS}",
    "fence closed, brace missing": '```json\n{"name": "Bash", "arguments": {"command": "ls"}\n```',
    "fence closed, both braces missing": '```json\n{"name": "Bash", "arguments": {"command": "ls"\n```',
    "fence, newlines behind": f"```json\n\n{LS}\n\n```\n\n",
    "fence, end of turn": f"```json\n{LS}\n```<|im_end|>",
    "indented fence": f"  ```json\n  {LS}\n  ```",
}


@pytest.mark.parametrize("text", ALONE.values(), ids=ALONE)
def test_the_whole_answer_is_a_call(text: str) -> None:
    got = answer(text, tools=TOOLS)
    assert (got["calls"], got["text"], got["kinds"]) == ([CALLED], "", ["tool_use"])


BEHIND_TEXT = {
    "bare": LS,
    "Llama's": LLAMA,
    "printed": json.dumps({"name": "Bash", "arguments": {"command": "ls"}}, indent=2),
    "array": f"[{LS}]",
    "fence": f"```json\n{LS}\n```",
    "fence without label": f"```\n{LS}\n```",
    "fence not closed": f"```json\n{LS}",
    "end of turn": f"{LLAMA}<|eot_id|>",
    "white space behind": f"```json\n{LS}\n```\n\n",
    "brace missing": '{"name": "Bash", "arguments": {"command": "ls"}',
}


@pytest.mark.parametrize("before", ["Listing the files.\n", "I will list the files first:\n\n", "To see what is there, I will use `Bash`.\n\nThen I read them.\n\n"])
@pytest.mark.parametrize("text", BEHIND_TEXT.values(), ids=BEHIND_TEXT)
def test_the_last_thing_of_an_answer_is_a_call(before: str, text: str) -> None:
    got = answer(before + text, tools=TOOLS)
    assert (got["calls"], got["text"], got["kinds"]) == ([CALLED], before.strip(), ["text", "tool_use"])


def test_an_object_with_its_type_may_stand_within_the_last_line() -> None:
    got = answer('I will look: {"type": "function", "name": "Bash", "parameters": {"command": "ls"}}', tools=TOOLS)
    assert (got["calls"], got["text"]) == ([CALLED], "I will look:")


TWO = {
    "objects": f'{LS}\n{{"name": "list_pages", "arguments": {{}}}}',
    "semicolon": f'{LLAMA}; {{"name": "list_pages", "parameters": {{}}}}',
    "comma": f'{LS}, {{"name": "list_pages", "arguments": {{}}}}',
    "nothing between": f'{LS}{{"name": "list_pages", "arguments": {{}}}}',
    "array": f'[{LS}, {{"name": "list_pages", "arguments": {{}}}}]',
    "in one fence": f'```json\n{LS}\n{{"name": "list_pages", "arguments": {{}}}}\n```',
    "fences": f'```json\n{LS}\n```\n\n```\n{{"name": "list_pages", "arguments": {{}}}}\n```',
    "fence and bare": f'```json\n{LS}\n```\n{{"name": "list_pages", "arguments": {{}}}}',
    "python tag": f'<|python_tag|>{LLAMA}; {{"name": "list_pages", "parameters": {{}}}}',
    "python tags": f'<|python_tag|>{LLAMA}<|python_tag|>{{"name": "list_pages", "parameters": {{}}}}<|eom_id|>',
    "no arguments": f'{LS}\n{{"name": "list_pages"}}',
    "null": f'{LS}\n{{"name": "list_pages", "arguments": null}}',
    "functools": f'functools[{LS}, {{"name": "list_pages", "arguments": {{}}}}]',
    "pipe tags": f'<|tool_call|>[{LS}, {{"name": "list_pages", "arguments": {{}}}}]<|/tool_call|>',
}


@pytest.mark.parametrize("before", ["", "Two things.\n"])
@pytest.mark.parametrize("text", TWO.values(), ids=TWO)
def test_several_calls(before: str, text: str) -> None:
    got = answer(before + text, tools=TOOLS)
    assert (got["calls"], got["text"]) == ([CALLED, ("list_pages", {})], before.strip())


TEXT = {
    "in a sentence": f"For example {LS} would delete it.",
    "at a sentence's end": f"You write {LS}",
    "a line in an explanation": f"Write\n{LS}\nand it runs.",
    "a fence in an explanation": f"The body is\n\n```json\n{LS}\n```\n\nwhere command is required.",
    "two fences with words between": f"One way:\n```json\n{LS}\n```\nOr another:\n```json\n{LS}\n```",
    "an example by its words": f"For example:\n```json\n{LS}\n```",
    "a shape by its words": f"A call looks like this:\n\n{LS}",
    "a refusal": f"I will not run this:\n{LS}",
    "a placeholder": 'The request body:\n```json\n{"name": "Read", "arguments": {"file_path": "string"}}\n```',
    "dots": 'The request body:\n{"name": "Read", "arguments": {"file_path": "..."}}',
    "a key for its value": 'The request body:\n{"name": "Read", "arguments": {"file_path": "<file_path>"}}',
    "an undeclared tool": '{"name": "web", "input": {"dir": "src"}, "output": {"dir": "dist"}}',
    "an undeclared tool in a fence": '```json\n{"name": "web", "arguments": {"dir": "src"}}\n```',
    "a package": '{"name": "Bash", "version": "1.0.0", "main": "index.js"}',
    "a record": '{"name": "Read", "age": 4}',
    "a definition": '{"type": "function", "name": "Bash", "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}}',
    "a described definition": '{"name": "list_pages", "description": "Lists.", "parameters": {"type": "object", "properties": {}}}',
    "definitions": '[{"type": "function", "function": {"name": "Bash", "description": "Runs.", "parameters": {"type": "object"}}}]',
    "a name only": '{"name": "Bash"}',
    "a required key missing": 'Saving.\n{"name": "Write", "arguments": {"file_path": "/a"}}',
    "no declared key": '{"name": "Write", "arguments": {}}',
    "another type": '{"type": "module", "name": "Bash", "arguments": {"command": "ls"}}',
    "arguments that are words": '{"name": "Bash", "arguments": "ls -l"}',
    "arguments that are a list": '{"name": "Bash", "arguments": ["ls"]}',
    "a name that is an object": '{"name": {"a": 1}, "arguments": {"command": "ls"}}',
    "no name": '{"arguments": {"command": "ls"}}',
    "a list of numbers": "[1, 2, 3]",
    "a list of lists": "[[[[",
    "a list of objects": '[{"id": 1}, {"id": 2}]',
    "braces": "{\n  a: 1\n}",
    "an empty object": "{}",
    "an empty list of calls": '{"tool_calls": []}',
    "a list of other calls": '{"tool_calls": [{"name": "web", "arguments": {}}]}',
    "an empty fence": "```json\n```",
    "code": '```python\nprint({"name": "Bash"})\n```',
    "a fence with data": '```json\n{"port": 80}\n```',
    "JSON in code": """const pet = '{"name": "Bash", "arguments": {"command": "ls"}}';""",
    "inside a span": f"`{LS}`",
    "a line of a fence": f"```sh\ncat call.json\n{LS}\n```",
    "the tag in a sentence": "Llama writes <|python_tag|> before code.",
    "a builtin that is not declared": '<|python_tag|>brave.call(payload={"name": "Bash", "parameters": {"command": "ls"}})',
    "functools in a sentence": "import functools[1]",
    "functools without a call": "functools[a]",
    "functools of nothing": "functools[] is empty",
    "the head only": '{"name": "Bash", "argu',
    "half a fence": "```js",
    "a list, then words": f"Calls:\n[{LS}] and more",
    "another object behind it": f'See:\n{LS}\n{{"a": 1}}',
    "too many lists": f"[[{LS}]]",
}


@pytest.mark.parametrize("text", TEXT.values(), ids=TEXT)
def test_what_is_no_call_is_text_to_the_character(text: str) -> None:
    got = answer(text, tools=TOOLS)
    assert (got["calls"], got["unfinished"], got["text"], got["stop_reason"]) == ([], 0, text, "end_turn")


def test_text_behind_a_call_that_began_the_answer_is_text() -> None:
    got = answer(f"{LS}\nThat lists the files.\n```json\n{LS}\n```\nDone.", tools=TOOLS)
    assert got["calls"] == [CALLED] and got["text"] == f"That lists the files.\n```json\n{LS}\n```\nDone."
    got = answer(f'{LS}\n{{"a": 1}}', tools=TOOLS)
    assert got["calls"] == [CALLED] and got["text"] == '{"a": 1}'


def test_a_file_whose_content_has_fences_and_calls_is_one_call() -> None:
    content = f"# Notes\n\n```json\n{LS}\n```\n<tool_call>{LS}</tool_call>\n"
    written = json.dumps({"name": "Write", "arguments": {"file_path": "/a", "content": content}})
    for text in (written, f"```json\n{written}\n```", f"Saving.\n```json\n{written}\n```", written.replace("\\n", "\n")):
        assert answer(text, tools=TOOLS)["calls"] == [("Write", {"file_path": "/a", "content": content})]


def test_code_behind_a_plain_python_tag_is_the_answer() -> None:
    assert answer("<|python_tag|>print(1)", tools=TOOLS)["text"] == "print(1)"


def test_without_tools_json_is_text() -> None:
    assert answer(LS, tools=())["text"] == LS


CUTS = [  # text, whether it is still a call, whether it was begun
    (LS[:-5], 0, 1), (LS[:28], 0, 0), (f"Look.\n{LS[:-5]}", 0, 0), (f"Look.\n{LS}", 0, 0), (f"Look.\n```json\n{LS}\n```", 0, 0), (LS, 1, 0),
    ("```json\n" + LS[:-4], 0, 1),
]


@pytest.mark.parametrize("text, calls, unfinished", CUTS)
def test_a_call_that_the_limit_cuts(text: str, calls: int, unfinished: int) -> None:
    got = answer(text, "length", tools=TOOLS)
    assert (len(got["calls"]), got["unfinished"], got["stop_reason"]) == (calls, unfinished, "max_tokens")
    assert got["text"] == ("" if calls or unfinished else text)


# ── live ─────────────────────────────────────────────────────────────────────────────────────────


def shown(events: list[dict]) -> str:
    return "".join(e["delta"].get("text", "") + e["delta"].get("partial_json", "") for e in events if e["type"] == "content_block_delta")


@pytest.mark.parametrize("text", [
    '{"version": 1, "files": [', '[{"id": 1}, {"id": 2}, ', '{"name": "site", "input": {"dir": ', '```json\n{"compilerOptions": {"strict": ',
    "```python\nimport os\n", '{"type": "module", "name": ', '{"input": {"dir": "src", ', 'Here it is:\n```json\n{"name": "site", "version": ',
])
def test_json_that_is_no_call_is_shown_at_once(text: str) -> None:
    assert len(shown(run(list(text), tools=TOOLS)[:-3])) >= len(text.rstrip()) - 12


@pytest.mark.parametrize("before", ["", "```json\n", "<|python_tag|>", "[", "functools[", "<|tool_call|>"])
def test_a_call_that_begins_the_answer_is_live(before: str) -> None:
    stream = ResponseStream(model="m", tools=TOOLS)
    stream.start(1)
    stream.feed(before + '{"name": "Bash", "parameters": {"command": "')
    assert shown(stream.feed("echo one; ")) == "echo one; " and shown(stream.feed("echo two")) == "echo two"


def test_long_json_costs_the_same_per_character() -> None:
    """Counted in events' sizes, not in time: nothing is held."""
    rows = [f'{{"id": {n}, "name": "row"}}' for n in range(3000)]
    text = "[\n" + ",\n".join(rows) + "\n]"
    stream = ResponseStream(model="m", tools=TOOLS)
    stream.start(1)
    behind = 0
    for at in range(0, len(text), 50):
        behind += len(text[at:at + 50]) - len(shown(stream.feed(text[at:at + 50])))
        assert behind < 40


# ── in thoughts, beside stop sequences, and a second attempt ─────────────────────────────────────


@pytest.mark.parametrize("call", [LS, f"```json\n{LS}\n```", f"<tool_call>{LS}</tool_call>"])
@pytest.mark.parametrize("end", ["", "\n", "<|im_end|>"])
def test_a_call_at_the_end_of_a_thought_that_was_never_closed_counts(call: str, end: str) -> None:
    got = answer(f"<think>First the list.\n{call}{end}", tools=TOOLS)
    assert (got["calls"], got["thinking"], got["text"]) == ([CALLED], "First the list.", "")


@pytest.mark.parametrize("behind", ["\nNo, better not.</think>Done.", "</think>Done."])
def test_json_within_a_thought_is_thinking(behind: str) -> None:
    got = answer(f"<think>I could say\n{LS}{behind}", tools=TOOLS)
    assert got["calls"] == [] and got["text"] == "Done." and LS in got["thinking"]


def test_a_stop_sequence_ends_the_answer_behind_a_call() -> None:
    got = answer(f"Look.\n{LS}END", tools=TOOLS, stop_sequences=["END"])
    assert (got["calls"], got["text"], got["stop_sequence"]) == ([CALLED], "Look.", "END")


@pytest.mark.parametrize("text, failed", [
    (f"For example:\n{LS}", ""), ('A call:\n{"name": "Read", "arguments": {"file_path": "string"}}', ""),
    ('Saving.\n{"name": "Write", "arguments": {"file_path": "/a"}}', "Write"),
])
def test_an_example_needs_no_second_attempt(text: str, failed: str) -> None:
    stream = ResponseStream(model="m", tools=TOOLS, holds_failed=True)
    stream.start(1)
    stream.feed(text)
    stream.end("stop")
    assert stream.failed_call == failed
