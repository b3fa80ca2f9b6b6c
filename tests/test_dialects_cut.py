"""Calls of each dialect, cut off at every position or damaged: what was not finished is no call, and no text is lost."""
from __future__ import annotations

import json
import random

import pytest

from dialect_writers import WRITERS
from outputs import BASH, STRING, check_grammar, run, splits, summary, tool
from test_parsers_random import as_gemma, as_json

GIVEN = {"path": "a.py", "text": "it's \"x\"\n{[<|end|>)] é🚀", "n": 12, "opts": {"k": [1, None]}}
EDIT = tool("edit", {"path": STRING, "text": STRING, "n": {"type": "integer"}, "opts": {"type": "object"}}, ["path", "text"])


@pytest.mark.parametrize("write", [as_json, as_gemma, *WRITERS])
@pytest.mark.parametrize("reason", ["stop", "length"])
def test_cut_at_every_position(write, reason: str) -> None:
    text = "Hello.\n" + write(random.Random(3), "edit", GIVEN)
    whole = False
    for end in range(len("Hello.\n"), len(text) + 1):
        events = run(list(text[:end]), reason, tools=[EDIT])
        check_grammar(events)
        got = summary(events)
        assert got["stop_reason"] == ("max_tokens" if reason == "length" else "tool_use" if got["calls"] else "end_turn")
        assert not got["calls"] or not got["unfinished"]
        for name, arguments in got["calls"]:
            assert name == "edit" and all(arguments.get(key, GIVEN[key]) == GIVEN[key] for key in ("path", "text")), "a string was closed for the model"
            assert reason == "stop" or arguments == GIVEN, "a call that the limit cut"
        if not got["calls"] and not got["unfinished"]:
            assert got["text"] == text[:end].strip() or got["text"] == "Hello." and json.dumps(GIVEN)[:3] not in text[:end]
        whole = whole or bool(got["calls"])
    assert whole and got["calls"] == [("edit", GIVEN)] and got["text"] == "Hello."


PIECES = (
    "<|message|>", "<|constrain|>", "<|channel|>", "<|start|>", "<|end|>", "<|eom|>", "to=functions.Bash", "to=self", "assistant", "analysis", "final",
    "<|open|>", "<|close|>", "<|sep|>", "<|close|>argument<|sep|>", "<|tool_call_argument_begin|>", "<｜tool▁sep｜>", "[ARGS]", "[CALL_ID]", "'''", '"""',
    "(", ")", "Bash(command='", "</atem:parameter>", "</atem:invoke>", "```", "`", "<think>", "</think>", "{", "}", "[", "\"", "\\", "\n", " ", "text",
)


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_call_gives_the_same_answer_under_every_split(write, seed: int) -> None:
    rng = random.Random(seed)
    words = ["".join(rng.choice(PIECES) for _ in range(rng.randint(0, 8))) for _ in range(4)]
    text = words[0] + write(rng, rng.choice(["Bash", "nope"]), {"command": words[1], "timeout": 5, "why": words[2]}) + words[3]
    for _ in range(rng.randint(0, 4)):
        a, b = sorted((rng.randint(0, len(text)), rng.randint(0, len(text))))
        b = min(b, a + 25)
        text = rng.choice([text[:a] + text[b:], text[:b] + text[a:], text[:a] + rng.choice(PIECES) + text[b:]])
    reason, seen = rng.choice(["stop", "length"]), []
    for chunks in splits(text, seed, cuts=2):
        events = run(chunks, reason, tools=[BASH])
        check_grammar(events)
        seen.append(summary(events))
    assert all(other == seen[0] for other in seen) and {name for name, _ in seen[0]["calls"]} <= {"Bash"}
