"""What looks like a call and does not parse: which of it becomes one, and that nothing else does."""
from __future__ import annotations

import json
import random
from typing import Any

import pytest

from mlx_native_server.parsers.salvage import SIZE, salvage
from mlx_native_server.parsers.schema import Tools
from outputs import BASH, GLOB, PAGES, STRING, WRITE, answer, check_grammar, run, splits, summary, tool

READ = tool("Read", {"file_path": STRING, "limit": {"type": "number"}, "lines": {"type": "array"}}, ["file_path"])
AGENT = tool("Agent", {"name": STRING, "input": STRING}, ["name"])
TOOLS = (BASH, WRITE, READ, GLOB, PAGES)
CALLED = ("Bash", {"command": "ls -la"})

GARBLED = {  # between the tags -> the call
    "arguments beside the name": '{"name": "Bash", "command": "ls -la"}',
    "beside the name, with an id": '{"id": "1", "type": "function", "name": "Bash", "command": "ls -la"}',
    "in Python's spelling": "{'name': 'Bash', 'command': 'ls -la',}",
    "the name as a key": '{"Bash": {"command": "ls -la"}}',
    "the name in front": 'Bash\n{"command": "ls -la"}',
    "the name in front, a colon": 'Bash: {"command": "ls -la"}',
    "like a function": 'Bash({"command": "ls -la"})',
    "like Python": 'Bash(command="ls -la")',
    "no name, one tool fits": '{"command": "ls -la"}',
    "no name, arguments": '{"arguments": {"command": "ls -la"}}',
    "no quotes on keys": '{name: "Bash", arguments: {command: "ls -la"}}',
    "no quotes at all": "{name: Bash, arguments: {command: ls -la}}",
    "no quotes on the value": '{"name": "Bash", "arguments": {"command": ls -la}}',
    "no quote before the value": '{"name": "Bash", "arguments": {"command": ls -la"}}',
    "no quote behind a key": '{"name": "Bash", "arguments": {"command: "ls -la"}}',
    "no brackets": '"name": "Bash", "arguments": {"command": "ls -la"}}',
    "no inner bracket": '{"name": "Bash", "arguments": "command": "ls -la"}',
    "equals signs": '{"name"="Bash", "arguments"={"command"="ls -la"}}',
    "arrows": '{"name" => "Bash", "arguments" => {"command" => "ls -la"}}',
    "a parameter in JSON": '{"name": "Bash", "parameter=command>ls -la</parameter></function>',
    "a tag in JSON": '{"name": "Bash", "arguments": {<parameter=command>ls -la</parameter>}}',
    "a tag for a key": '{"name": "Bash", <parameter_command>ls -la</parameter_command>}',
    "tags and JSON": '<name>Bash</name><arguments>{"command": "ls -la"}</arguments>',
    "tags": "<tool_name>Bash</tool_name>\n<parameters><command>ls -la</command></parameters>",
    "lines": "name: Bash\ncommand: ls -la",
    "lines with the name in front": "Bash\ncommand: ls -la",
    "in a fence": '```json\n{"name": "Bash", "command": "ls -la"}\n```',
    "wrapped": '{"tool_call": {"function": {"name": "Bash", "command": "ls -la"}}}',
    "tool_input": '{"tool_name": "Bash", "tool_input": {"command": "ls -la"}}',
    "wrong case": '{"name": "bash", "command": "ls -la"}',
}


@pytest.mark.parametrize("body", GARBLED.values(), ids=GARBLED)
def test_a_garbled_call_in_a_tag(body: str) -> None:
    for opener, closer in (("<tool_call>\n", "\n</tool_call>"), ("<tool_call>", "</tool_call>"), ("<tools>\n", "\n</tools>"), ("<|tool_call|>", "<|/tool_call|>")):
        assert salvage(opener + body + closer, Tools(TOOLS)) == [CALLED]
        for before in ("", "I look.\n"):
            got = answer(before + opener + body + closer, tools=TOOLS)
            assert (got["calls"], got["text"], got["unfinished"]) == ([CALLED], before.strip(), 0)


VALUES = {  # body -> calls
    '{"name": "Read", "file_path": "/a", "limit": "20"}': [("Read", {"file_path": "/a", "limit": 20})],
    '{name: Read, file_path: /a/b.txt, limit: 20}': [("Read", {"file_path": "/a/b.txt", "limit": 20})],
    "Read\nfile_path: /a\nlimit: 20\nlines: [1, 2]": [("Read", {"file_path": "/a", "limit": 20, "lines": [1, 2]})],
    '{"name": "Write", "file_path": "/a", "content": "x\\n\\"y\\"\tz"}': [("Write", {"file_path": "/a", "content": 'x\n"y"\tz'})],
    '{"name": "Write", <parameter=file_path>/a</parameter><parameter=content>\n  a <b> "c": d,\n\ne\n</parameter>': [("Write", {"file_path": "/a", "content": '  a <b> "c": d,\n\ne'})],
    '{"name": "Bash", "arguments": {"command": awk \'{print $1, $2}\' a | grep "x, y"}}': [("Bash", {"command": "awk '{print $1, $2}' a | grep \"x, y\""})],
    '[{"name": "Bash", "command": "ls"}, {"name": "Glob", "pattern": "*"}]': [("Bash", {"command": "ls"}), ("Glob", {"pattern": "*"})],
    'name: Glob\npattern: *.py\nname: Bash\ncommand: id': [("Glob", {"pattern": "*.py"}), ("Bash", {"command": "id"})],
}


@pytest.mark.parametrize("body, calls", VALUES.items())
def test_values_arrive_typed_and_to_the_character(body: str, calls: list) -> None:
    assert salvage(f"<tool_call>{body}</tool_call>", Tools(TOOLS)) == calls
    assert answer(f"<tool_call>{body}</tool_call>", tools=TOOLS)["calls"] == calls


def test_a_key_called_name_is_an_argument() -> None:
    assert salvage('<tool_call>{"Agent": {"name": "Bash", "input": "x"}}</tool_call>', Tools((AGENT, BASH))) == [("Agent", {"name": "Bash", "input": "x"})]
    assert salvage("<tool_call>Agent\nname: Bash\ninput: x</tool_call>", Tools((AGENT, BASH))) == [("Agent", {"name": "Bash", "input": "x"})]


IN_DOUBT = {
    "no key": "Bash\nls -la",
    "a command alone": "ls -la",
    "a command in a string": '{"name": "Bash", "arguments": "ls -la"}',
    "a sentence": "run Bash with command: ls -la",
    "a value over lines": "name: Bash\ncommand: ls\nrm -r x",
    "an open string": '{"name": "Bash", "command": "ls -la',
    "an open string and a bracket": '{"name": "Bash", command: "ls -la}}',
    "an undeclared tool": '{"name": "Nope", "command": "ls -la"}',
    "an undeclared tool in front": 'Nope({"command": "ls -la"})',
    "an undeclared key": '{name: Bash, cmd: ls}',
    "undeclared keys": '{"name": "Bash", "cmd": "ls", "x": 1}',
    "a required key missing": '{"name": "Write", "file_path": "/a"}',
    "a key twice": "name: Bash\ncommand: ls\ncommand: rm",
    "a type that does not fit": '{"name": "Read", "file_path": "/a", "limit": "many"}',
    "an object for text": '{"name": "Bash", "command": {"a": 1}}',
    "a name that is an object": '{"name": {"a": 1}, "arguments": {"command": "ls"}}',
    "two tools fit": '{"file_path": "/a"}',
    "a definition": '{"name": "list_pages", "parameters": {"type": "object", "properties": {}}}',
    "nothing": "",
    "an escaped call": '{\\"name\\": \\"Bash\\", \\"arguments\\": {\\"command\\": \\"ls\\"}}',
}


@pytest.mark.parametrize("body", IN_DOUBT.values(), ids=IN_DOUBT)
def test_what_is_in_doubt_stays_text(body: str) -> None:
    tools = (*TOOLS, tool("Stat", {"file_path": STRING}, ["file_path"]))
    assert salvage(f"<tool_call>{body}</tool_call>", Tools(tools)) == []
    if body:
        got = answer(f"See:\n<tool_call>{body}</tool_call>", tools=tools)
        assert got["calls"] == [] and got["text"] == f"See:\n<tool_call>{body}</tool_call>"


@pytest.mark.parametrize("text", [
    'Write <tool_call>{"name": "Bash", "command": "ls"}</tool_call> to run it.', '`<tool_call>{"name": "Bash", "command": "ls"}</tool_call>`',
    '```\n<tool_call>{"name": "Bash", "command": "ls"}</tool_call>\n```', '{"name": "Bash", "command": "ls"}', 'Bash(command="ls")',
    '"name": "Bash", "command": "ls"', "<parameter=command>ls</parameter>",
])
def test_only_between_marks_that_begin_a_line(text: str) -> None:
    got = answer(text, tools=TOOLS)
    assert got["calls"] == [] and got["text"] == text


def test_a_call_that_was_begun_is_not_salvaged() -> None:
    got = answer('<tool_call>{"name": "Bash", "arguments": {"command": "ls", timeout: 5}}</tool_call>', tools=TOOLS)
    assert got["calls"] == [] and got["unfinished"] == 1


def test_what_the_limit_cut_is_not_salvaged() -> None:
    for text in ("<tool_call>name: Bash\ncommand: ls", '<tool_call>Bash({"command": "ls"}'):
        got = answer(text, "length", tools=TOOLS)
        assert got["calls"] == [] and got["text"] == text and got["stop_reason"] == "max_tokens"
    assert answer('<tool_call>Bash({"command": "ls"})', tools=TOOLS)["calls"] == [("Bash", {"command": "ls"})]


# ── beside parsed calls ──────────────────────────────────────────────────────────────────────────

GUESS = '<tool_call>\n{"name": "Bash", "command": "ls"}\n</tool_call>'
PROPER = '<tool_call>\n{"name": "Bash", "arguments": {"command": "ls"}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "Bash", "arguments": {"command": "id"}}\n</tool_call>'
GLOBBED = '<tool_call>\n{"name": "Glob", "arguments": {"pattern": "*"}}\n</tool_call>'
LS, ID, STAR = ("Bash", {"command": "ls"}), ("Bash", {"command": "id"}), ("Glob", {"pattern": "*"})


@pytest.mark.parametrize("parts, calls", [
    ((GUESS, PROPER), [LS]), ((PROPER, GUESS), [LS]), ((GUESS, OTHER), [LS, ID]), ((OTHER, GUESS), [ID, LS]), ((GUESS, GUESS), [LS, LS]),
    ((GUESS, GLOBBED, PROPER), [LS, STAR, LS]), ((PROPER, PROPER), [LS, LS]), ((GUESS, "Then.", PROPER), [LS, LS]), ((GLOBBED, GUESS), [STAR, LS]),
])
def test_only_a_salvaged_call_is_dropped_beside_an_equal_one(parts: tuple[str, ...], calls: list) -> None:
    got = answer("\n".join(parts), tools=TOOLS)
    assert got["calls"] == calls and got["text"] == ("Then." if "Then." in parts else "") and got["stop_reason"] == "tool_use"


def test_a_salvaged_call_before_one_that_breaks_off() -> None:
    got = answer(GUESS + PROPER[:-16], "length", tools=TOOLS)
    assert got["calls"] == [LS] and got["unfinished"] == 1


def test_text_behind_a_salvaged_call() -> None:
    got = answer(f"One.\n{GUESS}\nTwo.", tools=TOOLS)
    assert (got["kinds"], got["text"], got["calls"]) == (["text", "tool_use", "text"], "One.\nTwo.", [LS])


# ── at random, and large ─────────────────────────────────────────────────────────────────────────

BITS = ('{', '}', '"', "'", ":", ",", "=", "name", "Bash", "command", "arguments", "Write", "file_path", "content", "<", ">", "</parameter>", "<parameter=", " ", "\n", "ls", "\\", "[", "]", "(", ")")


@pytest.mark.parametrize("seed", range(300))
def test_random_garble_never_raises_and_never_makes_up_a_value(seed: int) -> None:
    rng = random.Random(seed)
    body = "".join(rng.choice(BITS) for _ in range(rng.randint(1, 40)))
    text = f"<tool_call>{body}</tool_call>"
    for name, given in salvage(text, Tools(TOOLS)):
        assert name in ("Bash", "Write") and all(isinstance(value, str) and set(value.split()) <= _words(body) for value in given.values())
    seen = []
    for chunks in splits(text, seed, cuts=1):
        events = run(chunks, tools=TOOLS)
        check_grammar(events)
        seen.append(summary(events))
    assert all(other == seen[0] for other in seen)


def _words(body: str) -> set[str]:
    return {body[a:b] for a in range(len(body)) for b in range(a + 1, len(body) + 1)}


def test_a_large_region_is_salvaged_and_a_larger_one_is_text() -> None:
    given: dict[str, Any] = {"file_path": "/a", "content": "line {x}\n" * 10_000}
    text = "<tool_call>\n" + json.dumps({"name": "Write", **given}) + "\n</tool_call>"
    events = run([text[at:at + 1000] for at in range(0, len(text), 1000)], tools=TOOLS)
    assert summary(events)["calls"] == [("Write", given)]
    text = "<tool_call>\n" + json.dumps({"name": "Write", "file_path": "/a", "content": "x" * SIZE}) + "\n</tool_call>"
    assert summary(run([text], tools=TOOLS))["text"] == text
