"""Random calls with every delimiter inside their strings: seeded, each under random splits."""
from __future__ import annotations

import json
import random
import re

import pytest

from dialect_writers import ALONE_WRITERS, TAG_WRITERS, WRITERS
from mlx_native_server.parsers import CLOSERS, END_MARKERS, TURN_MARKERS, Openers, thinking
from outputs import STRING, check_grammar, run, splits, summary, tool

MARKS = (*Openers((), True).all, *thinking.CLOSERS, *CLOSERS, *TURN_MARKERS, *END_MARKERS)
WORDS = (
    *MARKS, '<|"|>', "<escape>", "`", "```", "```json\n", "~~~", '"', "'", "\\", "\\n", "\\u00", "{", "}", "[", "]", ",", ":", "call:", "\n", "\r\n",
    "\t", "  ", "é", "🚀", "\u2028", "null", "true", "12", "name", "arguments", '{"name": "Bash", "arguments": {"command": "rm"}}', "text", "and", "</", "<",
    "<parameter=text>\n", "</parameter>", '<parameter name="text">', "<function=Bash>", '<invoke name="Bash">', '<param name="text">', "</param>",
    "<arg_key>text</arg_key>", "<arg_value>", "</arg_value>", "</longcat_arg_value>", "</｜DSML｜parameter>", "</｜DSML｜ parameter>", "]]>", "&lt;",
)
ANY_TOOL = tool("mcp__any-thing", {
    "text": STRING, "other": STRING, "-n": {"type": "integer"}, "x": {"type": "number"}, "flag": {"type": "boolean"},
    "note": {"type": ["string", "null"]}, "list": {"type": "array"}, "object": {"type": "object"},
})
BASH = tool("Bash", {"command": STRING}, ["command"])
KINDS = {key: node.get("type") for key, node in ANY_TOOL.input_schema["properties"].items()}


def words(rng: random.Random) -> str:
    return "".join(rng.choice(WORDS) for _ in range(rng.randint(0, 12)))


def value(rng: random.Random, kind: object, depth: int = 0) -> object:
    if isinstance(kind, list):
        return None if rng.random() < 0.2 else words(rng)
    if kind == "array":
        return [value(rng, rng.choice(("string", "integer", "boolean", "array", "object")[:5 - 2 * depth]), depth + 1) for _ in range(rng.randint(0, 3))]
    if kind == "object":
        return {f"key_{n}": value(rng, rng.choice(("string", "number", "boolean", "object", "array")[:5 - 2 * depth]), depth + 1) for n in range(rng.randint(0, 3))}
    scalars = {"string": words(rng), "integer": rng.randint(-99, 10**12), "number": round(rng.uniform(-9, 9), 3), "boolean": rng.random() < 0.5}
    return scalars[kind]


def arguments(rng: random.Random) -> dict:
    return {key: value(rng, KINDS[key]) for key in rng.sample(sorted(KINDS), rng.randint(1, len(KINDS)))}


def as_json(rng: random.Random, name: str, given: dict) -> str:
    written = json.dumps({"name": name, "arguments": given}, ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, 2]))
    return f"<tool_call>\n{written}\n</tool_call>"


def as_gemma(rng: random.Random, name: str, given: dict) -> str:
    def spell(item: object) -> str:
        if isinstance(item, str):
            return f'<|"|>{_distinct(item)}<|"|>'
        if isinstance(item, dict):
            return "{" + ",".join(f"{key}:{spell(inner)}" for key, inner in item.items()) + "}"
        return "[" + ",".join(map(spell, item)) + "]" if isinstance(item, list) else json.dumps(item)

    return f"<|tool_call>call:{name}{spell(given)}<tool_call|>"


def _distinct(text: str) -> str:
    """The dialect has no escapes: a quote mark in front of a delimiter cannot be told from the end of the string."""
    return re.sub(r'<\|"\|>(?=\s*([,}\]<]|$))', "<quote>", text)


def _gemma_can_say(item: object) -> object:
    if isinstance(item, str):
        return _distinct(item)
    if isinstance(item, dict):
        return {key: _gemma_can_say(inner) for key, inner in item.items()}
    return [_gemma_can_say(inner) for inner in item] if isinstance(item, list) else item


@pytest.mark.parametrize("write", [as_json, as_gemma, *WRITERS])
@pytest.mark.parametrize("seed", range(40))
def test_a_valid_call_arrives_as_it_was_meant(write, seed: int) -> None:
    rng = random.Random(seed)
    given = arguments(rng)
    if write in TAG_WRITERS:
        given = write.can_say(given)
    meant = _gemma_can_say(given) if write is as_gemma else given
    text = "Text.\n" + write(rng, "mcp__any-thing", given) + "\nMore."
    for chunks in list(splits(text, seed, cuts=1))[1:]:
        events = run(chunks, tools=[ANY_TOOL, BASH])
        check_grammar(events)
        got = summary(events)
        assert got["calls"] == [("mcp__any-thing", meant)] and got["text"] == "Text.\nMore."


@pytest.mark.parametrize("write", ALONE_WRITERS)
@pytest.mark.parametrize("seed", range(120))
def test_a_valid_call_without_marks_arrives_as_it_was_meant(write, seed: int) -> None:
    rng = random.Random(seed)
    given, before = arguments(rng), rng.choice(["", "Text.\n"])
    text = before + write(rng, "mcp__any-thing", given)
    for chunks in list(splits(text, seed, cuts=1))[1:]:
        got = summary(run(chunks, tools=[ANY_TOOL, BASH]))
        assert got["calls"] == [("mcp__any-thing", given)] and got["text"] == before.strip()
