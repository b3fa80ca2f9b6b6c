"""What is kept back for the end of an answer: it changes when text goes out, never which."""
from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest
from outputs import TOOLS, check_grammar, run, splits, summary

from mlx_native_server.answer.streaming import ResponseStream

CASES = [json.loads(line)["input"] for line in (Path(__file__).parent / "cases/output.jsonl").read_text(encoding="utf-8").splitlines()]
TEXTS = [case["text"] for case in CASES if "text" in case]
SALVAGED = '<tool_call>\n{"Bash": {"command": "ls"}}\n</tool_call>'
GARBLED = '<tool_call>\n{"name": "Bash", "arguments": {"cmd": "ls", "x": 1}}\n</tool_call>'


def damaged(rng: random.Random) -> str:
    """Parts of model outputs, cut and joined."""
    texts = [rng.choice([*TEXTS, *[GARBLED, SALVAGED] * 10]) for _ in range(rng.randint(1, 3))]
    return rng.choice(["", "\n"]).join(text[rng.choice([0, 0, rng.randint(0, len(text))]):rng.choice([len(text), rng.randint(0, len(text))])] for text in texts)


@pytest.mark.parametrize("seed", range(8))
def test_failed_calls_that_are_held_end_as_the_text_they_are(seed: int) -> None:
    rng = random.Random(seed)
    for n in range(40):
        text = damaged(rng)
        plain = summary(run([text], tools=TOOLS))
        for chunks in splits(text, seed=n, cuts=2):
            events = run(chunks, tools=TOOLS, holds_failed=True)
            check_grammar(events)
            assert summary(events) == plain, (text, chunks)


@pytest.mark.parametrize("text, tool, kept", [
    (GARBLED, "Bash", GARBLED),
    ("First.\n" + GARBLED + "\n", "Bash", GARBLED + "\n"),
    (GARBLED + GARBLED, "Bash", GARBLED),
    ("<tool_call>Bash ls</tool_call>", "Bash", "<tool_call>Bash ls</tool_call>"),
    ("<tool_call>Bash ls", "", "<tool_call>Bash ls"),
    ("<tool_call>BashOutput(x)</tool_call>", "", "<tool_call>BashOutput(x)</tool_call>"),
    (GARBLED + " and so on", "", None),
    ("all is well", "", None),
])
def test_what_is_kept_back_at_the_end(text: str, tool: str, kept: str | None) -> None:
    for chunks in splits(text):
        stream = ResponseStream(model="m", tools=TOOLS, holds_failed=True)
        for chunk in chunks:
            stream.feed(chunk)
        stream.end("stop")
        assert (stream.failed_call, stream.kept_back) == (tool, kept)


def test_text_that_stands_for_what_was_kept_back() -> None:
    stream = ResponseStream(model="m", tools=TOOLS, holds_text=True)
    events = stream.start(1) + stream.feed("Sure: {}") + stream.end("stop")
    assert [event["type"] for event in events] == ["message_start"] and stream.kept_back == "Sure: {}"
    events += stream.settle("{}") + stream.finish("stop", 1)
    check_grammar(events)
    assert summary(events)["text"] == "{}"


def test_text_is_not_lost_where_nobody_settles_it() -> None:
    assert summary(run(["Sure: ", "{}"], holds_text=True))["text"] == "Sure: {}"


def test_a_second_attempt_starts_afresh_in_the_same_message() -> None:
    """Stop sequences do not count in it, an open fence of the first one is forgotten."""
    stream = ResponseStream(model="m", tools=TOOLS, holds_failed=True, stop_sequences=["ls"])
    events = stream.start(1) + stream.feed("`` Look.\n" + GARBLED.replace("ls", "l")) + stream.end("stop")
    stream.again('<tool_call>\n{"name": "Bash",')
    events += stream.feed(' "arguments": {"command": "ls"}}\n</tool_call>') + stream.end("stop")
    assert stream.kept_back is None
    events += stream.finish("stop", 1)
    check_grammar(events)
    got = summary(events)
    assert (got["text"], got["calls"], got["stop_reason"]) == ("`` Look.", [("Bash", {"command": "ls"})], "tool_use")


def test_a_long_held_region_costs_no_more_for_each_character() -> None:
    def seconds(size: int) -> float:
        stream = ResponseStream(model="m", tools=TOOLS, holds_failed=True)
        stream.feed("<tool_call>Bash(")
        begun_s = time.process_time()
        for _ in range(size // 4):
            stream.feed("word")
        stream.end("stop")
        return time.process_time() - begun_s

    assert seconds(200_000) < 40 * seconds(20_000) + 0.2
