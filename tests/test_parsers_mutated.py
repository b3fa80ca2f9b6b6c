"""Outputs that were cut, doubled, swapped and mixed, in every dialect: nothing raises, nothing is lost, nothing is made up.

What a client got must account for the whole input: text and thoughts in order, each call in place of a stretch that an
opener begins, and else only marks. `pytest --mutations 200000 -k mutated` tries more of them.
"""
from __future__ import annotations

import random
import re

import pytest

from dialect_writers import ALONE_WRITERS, WRITERS
from mlx_native_server.answer.streaming import ResponseStream
from mlx_native_server.parsers import CLOSERS, END_MARKERS, TURN_MARKERS, Openers, thinking
from outputs import check_grammar, run, splits, summary
from test_parsers_random import ANY_TOOL, BASH, WORDS, arguments, as_gemma, as_json, words

BLOCK = 100  # mutations a test
TOOLS = (ANY_TOOL, BASH)
DECLARED = {tool.name for tool in TOOLS}
WRITE = (as_json, as_gemma, *WRITERS, *ALONE_WRITERS)


# ── mutations ────────────────────────────────────────────────────────────────────────────────────


def cut(rng: random.Random, text: str) -> str:
    a = rng.randint(0, len(text))
    return rng.choice([text[:a], text[:a] + text[a + rng.randint(1, 40):]])


def doubled(rng: random.Random, text: str) -> str:
    a = rng.randint(0, len(text))
    b = a + rng.randint(1, 40)
    return text[:b] + text[a:]


def swapped(rng: random.Random, text: str) -> str:
    a, b, c, d = sorted(rng.randint(0, len(text)) for _ in range(4))
    return text[:a] + text[c:d] + text[b:c] + text[a:b] + text[d:]


def inserted(rng: random.Random, text: str) -> str:
    a = rng.randint(0, len(text))
    return text[:a] + rng.choice(WORDS) + text[a:]


def interleaved(rng: random.Random, text: str) -> str:
    other, mixed = output(rng), []
    while text or other:
        a, b = rng.randint(1, 60), rng.randint(0, 60)
        mixed += [text[:a], other[:b]]
        text, other = text[a:], other[b:]
    return "".join(mixed)


MUTATIONS = (cut, doubled, swapped, inserted, interleaved)


def output(rng: random.Random) -> str:
    """Prose, calls and marks."""
    parts = [words(rng)]
    for _ in range(rng.choice([1, 1, 2])):
        name = rng.choice(["Bash", "mcp__any-thing", "nope"])
        parts += [rng.choice(WRITE)(rng, name, {"command": words(rng)} if name == "Bash" else arguments(rng)), words(rng)]
    return "".join(parts)


def mutated(rng: random.Random) -> str:
    text = output(rng)
    for _ in range(rng.randint(1, 4)):
        text = rng.choice(MUTATIONS)(rng, text)
    return text


# ── what became of a text ────────────────────────────────────────────────────────────────────────

ALL = Openers((), True)
NO_MARKS = {"<function=", '{"type": "function"', '{"type":"function"'}  # no region is empty that these begin
MARKS = {*filter(ALL.is_strong, ALL.all), *thinking.CLOSERS, *CLOSERS, *END_MARKERS} - NO_MARKS
FRAMES = (
    re.compile(r"(?:<\|start\|>|<\|channel\|>|assistant<\|channel\|>| ?to=)[^\n]{0,900}?\s*<\|message\|>"),  # a header, with what does not belong in it
    re.compile(r"<\|(?:start|channel)\|>(?:<\|(?:start|channel|constrain)\|>|assistant|analysis|commentary|final|json|code|to=[\w.:/-]*|[\s–?-])*[a-z]*(?:<\|?[a-z]*\|?)?\Z"),  # or its beginning
    re.compile(r"<\|open\|>(?:response|message|tools|think)\b[^<]*<\|sep\|>"), re.compile(r"<\|channel>[a-z]*\n?"),
)
BESIDE_MARKS = re.compile(r"[\[\]{})\s]|```(?:json|python|py)?|<\|message\|>|<\|constrain\|>|assistant|<\|eo[mt]\|>")
OTHER_MEMBER = re.compile(r',\s*"(?:(?:[^{}\[\]]|\[[^\[\]]*\]|\{[^{}]*\})*[}\]]|[^{}\[\]]{0,90}\Z)')  # of a call's object, behind its arguments
OPENING = re.compile("|".join([*map(re.escape, sorted(ALL.all, key=len, reverse=True)), r"[,;]", r"\w+\(", "<atem:invoke"]))
CALL = object()


Received = list[tuple[object, int]]
"""Characters and calls, each with the number of characters that were in by then."""


def received(text: str, reason: str) -> tuple[Received, bool]:
    """What came out, white space left out, and whether the answer was stopped."""
    stream = ResponseStream(model="m", tools=TOOLS)
    out: Received = []
    events = [(0, stream.start(1))] + [(n, stream.feed(character)) for n, character in enumerate(text, 1)]
    events.append((len(text), stream.finish(reason, 1)))
    for n, event in ((n, event) for n, group in events for event in group):
        if event["type"] == "content_block_start" and event["content_block"]["type"] == "tool_use":
            assert event["content_block"]["name"] in DECLARED
            out.append((CALL, n))
        delta = event.get("delta", {})
        out += [(character, n) for character in (delta.get("text") or delta.get("thinking") or "") if not character.isspace()]
        if event["type"] == "content_block_stop" and out and out[-1][0] is CALL:
            out[-1] = (CALL, n)
    return out, stream.stopped


def accounts_for(text: str, got: Received, stopped: bool, unfinished: bool) -> bool:
    """Whether the text is what was got, in order, and else marks alone."""
    places = {(0, False)}
    for token, by in got:
        reached = _past_marks(text, places)
        if token is CALL:
            if unfinished and (token, by) == got[-1]:
                return any(OPENING.match(text, at) for at, _ in reached)
            starts = [at for at, _ in reached if OPENING.match(text, at)]
            places = {(end, True) for end in range(min(starts, default=by), by + 1)}
        else:
            places = {(at + 1, False) for at, _ in reached if at < by and text[at:at + 1] == token}
        if not places:
            return False
    return any(at == len(text) or stopped and text.startswith(tuple(TURN_MARKERS), at) for at, _ in _past_marks(text, places))


def _past_marks(text: str, places: set[tuple[int, bool]]) -> set[tuple[int, bool]]:
    """All places that can be reached from these by passing marks; each with whether a mark stands before it."""
    found, left = set(), list(places)
    while left:
        at, beside = place = left.pop()
        if place in found or at > len(text):
            continue
        found.add(place)
        if text[at:at + 1].isspace():
            left.append((at + 1, beside))
        left += [(at + len(mark), True) for mark in MARKS if text.startswith(mark, at)]
        left += [(match.end(), True) for frame in FRAMES if (match := frame.match(text, at))]
        left += [(match.end(), True) for pattern in (BESIDE_MARKS, OTHER_MEMBER) if beside and (match := pattern.match(text, at))]
        if beside and any(mark.startswith(text[at:]) for mark in MARKS):
            left.append((len(text), True))  # the end cut it off
    return found


# ── the tests ────────────────────────────────────────────────────────────────────────────────────


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "block" in metafunc.fixturenames:
        metafunc.parametrize("block", range(-(-metafunc.config.getoption("--mutations") // BLOCK)))


def test_a_mutated_output_is_accounted_for(block: int) -> None:
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        rng = random.Random(seed)
        check(mutated(rng), rng.choice(["stop", "length"]), seed)


def check(text: str, reason: str, seed: int = 0) -> None:
    seen = []
    for chunks in splits(text, seed, cuts=1):
        events = run(chunks, reason, tools=TOOLS)
        check_grammar(events)
        seen.append(summary(events))
    assert all(other == seen[0] for other in seen), f"splits differ: {(seed, reason, text)}"
    got, stopped = received(text, reason)
    assert accounts_for(text, got, stopped, bool(seen[0]["unfinished"])), f"lost or made up: {(seed, reason, text)}"


BROKEN = {  # output, the text that must be kept
    "a mark in front of a call": ('One.<|return|><tool_call>{"name": "Bash", "arguments": {"command": "ls"}}</tool_call>Two.', "One.Two."),
    "a mark that begins the answer": ('<|call|><tool_call>{"name": "Bash", "arguments": {"command": "ls"}}</tool_call>Two.', "Two."),
    "a header with other text, cut": ("One.<|channel|>commentary to=ab>~~~<|channel|>commentary to=functions.n", "One.<|channel|>commentary to=ab>~~~<|channel|>commentary to=functions.n"),
    "a header with other marks, cut": ("One.<|start|>assistant<|channel|><|python_end|> x", "One.<|start|>assistant<|channel|><|python_end|> x"),
    "an open string behind a call": ('[TOOL_CALLS][{"name": "Bash", "arguments": {"command": "ls"}, "id": "k3J}]' + "Some words. " * 9, ', "id": "k3J}]' + ("Some words. " * 9).strip()),
    "lists of something else": ("<tool_call>[[1], 2]</tool_call>", "<tool_call>[[1], 2]</tool_call>"),
    "a comma behind the last call of a list": ('[TOOL_CALLS][{"name": "Bash", "arguments": {"command": "ls"}}, "id": 7}]', ', "id": 7}]'),
    "other marks in a header": ("<|start|>assistant<|channel|>\n}<b><|start|>assistant to=x<|message|>Hi.", "<|start|>assistant<|channel|>\n}<b>\n\nHi."),
    "other marks in a recipient": ("to=<|start|>functional <b> <|start|>assistant<|message|>Hi.", "to=<|start|>functional <b> \n\nHi."),
    "a tag that begins with a newline": ("One.<|open|>\nto=\\<b>", "One.<|open|>\nto=\\<b>"),
}


@pytest.mark.parametrize("text, kept", BROKEN.values(), ids=BROKEN)
def test_nothing_of_a_broken_output_is_lost(text: str, kept: str) -> None:
    check(text, "stop")
    assert summary(run([text], tools=TOOLS))["text"] == kept
