"""gpt-oss: channels, headers in every state of repair, and the call among the messages."""
from __future__ import annotations

import pytest

from outputs import BASH, answer

LS = ("Bash", {"command": "ls"})
BODY = '<|message|>{"command": "ls"}<|call|>'
CALL = "<|channel|>commentary to=functions.Bash <|constrain|>json" + BODY
THINK = "<|channel|>analysis<|message|>Think.<|end|>"
START = "<|start|>assistant"

HEADERS = {
    "recipient behind the channel": "<|channel|>commentary to=functions.Bash <|constrain|>json",
    "mark touches the recipient": "<|channel|>commentary to=functions.Bash<|constrain|>json",
    "no content type": "<|channel|>commentary to=functions.Bash",
    "another content type": "<|channel|>commentary to=functions.Bash code",
    "recipient in the role": "<|start|>assistant to=functions.Bash<|channel|>commentary json",
    "recipient without a channel": "<|start|>assistant to=functions.Bash",
    "the prompt held the role": " to=functions.Bash<|channel|>commentary <|constrain|>json",
    "bare name": "<|channel|>commentary to=Bash",
    "analysis channel": "<|channel|>analysis to=functions.Bash <|constrain|>json",
    "final channel": "<|channel|>final to=functions.Bash <|constrain|>json",
    "doubled channel": "<|channel|>commentary<|channel|>commentary to=functions.Bash",
    "control token in the name": "<|start|>assistant to=functions.Bash<|channel|>commentary<|channel|>commentary",
    "dashes": "<|channel|>––commentary to=functions.Bash",
    "question mark": "<|channel|>commentary? to=functions.Bash",
    "start token missing": "assistant<|channel|>commentary to=functions.Bash",
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
def test_header_of_a_call(header: str) -> None:
    got = answer(header + BODY)
    assert (got["calls"], got["text"], got["thinking"]) == ([LS], "", "")


@pytest.mark.parametrize("header", [h for h in HEADERS.values() if "channel" in h.split("assistant")[0] or h.startswith(("<|start|>", "assistant"))])
def test_header_of_a_call_behind_a_thought(header: str) -> None:
    got = answer(THINK + header + BODY)
    assert (got["calls"], got["text"], got["thinking"]) == ([LS], "", "Think.")


BODIES = {
    "closed": '{"command": "ls"}<|call|>', "stopped at the call token": '{"command": "ls"}', "end token": '{"command": "ls"}<|end|>',
    "brace missing": '{"command": "ls"<|call|>', "brace too many": '{"command": "ls"}}<|call|>', "space": '\n{"command": "ls"}\n<|call|>',
    "brace and mark missing": '{"command": "ls"',
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_body_of_a_call(body: str) -> None:
    got = answer("<|channel|>commentary to=functions.Bash<|message|>" + body)
    assert (got["calls"], got["text"]) == ([LS], "")


TURNS = [  # text, thinking, visible text, calls
    (THINK + START + CALL, "Think.", "", [LS]),
    (THINK + START + "<|channel|>final<|message|>Done.<|return|>", "Think.", "Done.", []),
    (THINK + START + "<|channel|>commentary<|message|>I will look.<|end|>" + START + CALL, "Think.", "I will look.", [LS]),
    ("<|channel|>commentary<|message|>One.<|end|>" + START + "<|channel|>final<|message|>Two.", "", "One.\n\nTwo.", []),
    ("<|channel|>final<|message|>One.<|end|>Two.<|return|>", "", "One.\n\nTwo.", []),
    ("<|channel|>analysis<|message|>No end." + START + CALL, "No end.", "", [LS]),
    ("<|channel|>analysis<|message|>No end, no start." + CALL, "No end, no start.", "", [LS]),
    (THINK + THINK.replace("Think", "More") + CALL, "Think.\nMore.", "", [LS]),
    (CALL + START + CALL, "", "", [LS, LS]),
    (CALL + " Behind it.", "", " Behind it.", [LS]),
    ("<|channel|>analysis to=functions.Bash<|message|>I should run it.<|end|>" + START + "<|channel|>final<|message|>Which?", "I should run it.", "Which?", []),
    ("<|channel|>analysis to=python code<|message|>print(1)<|end|>" + START + "<|channel|>final<|message|>1", "print(1)", "1", []),
    ("<|channel|>commentary to=functions.Bash<|message|>I cannot.<|end|>", "", "I cannot.", []),
    ("<|channel|>commentary to=functions.list_pages<|message|><|call|>", "", "", [("list_pages", {})]),
    ("<|channel|>commentary to=functions.list_pages<|message|>", "", "", [("list_pages", {})]),
    ("<|channel|>commentary to=<|constrain|>json" + BODY, "", '{"command": "ls"}', []),
    ("<|channel|>final<|message|>Hi.<|end|><|start|>user<|message|>And?", "", "Hi.", []),
    (CALL + "<|start|>functions.Bash to=assistant<|channel|>commentary<|message|>a.txt<|end|>", "", "", [LS]),
    ("<|channel|>analysis<|message|>`<|channel|>` marks one.<|end|>" + START + "<|channel|>final<|message|>Ok.", "`<|channel|>` marks one.", "Ok.", []),
    ("<|channel|>final<|message|>Say `<|end|>`:\n```\n<|start|>assistant<|channel|>final<|message|>\n```\n<|return|>", "",
     "Say `<|end|>`:\n```\n<|start|>assistant<|channel|>final<|message|>\n```", []),
]


@pytest.mark.parametrize("text, thinking, visible, calls", TURNS)
def test_turn(text: str, thinking: str, visible: str, calls: list) -> None:
    got = answer(text)
    assert (got["thinking"], got["text"], got["calls"]) == (thinking, visible, calls)


def test_marks_and_headers_inside_a_string_are_content() -> None:
    inner = "to=functions.x <|call|><|end|><|start|>assistant<|channel|>final<|message|>hi"
    assert answer(CALL.replace("ls", inner))["calls"] == [("Bash", {"command": inner})]


TEXT = {
    "undeclared": "<|channel|>commentary to=functions.Nope" + BODY,
    "required key missing": '<|channel|>commentary to=functions.Bash<|message|>{"cmd": "ls", "x": 1}<|call|>',
    "cut before a key": '<|channel|>commentary to=functions.Bash<|message|>{"comm',
    "a word of the text": "<|channel|> is a token, as <|start|> is",
    "a newline in it": "<|channel|>commentary\nand so on",
    "never a message": "<|channel|>commentary " + "word " * 80,
    "to=": "to=5 and to=six seven eight",
    "to= at the end": "to=",
    "end mark of another family": "One.<|end|>Two.",
}


@pytest.mark.parametrize("text", TEXT.values(), ids=TEXT)
def test_what_is_no_message_stays_text(text: str) -> None:
    got = answer(text)
    assert (got["calls"], got["text"], got["unfinished"]) == ([], text.strip(), 0)


HEADER = START + "<|channel|>commentary to=functions.Bash <|constrain|>json<|message|>"


@pytest.mark.parametrize("end", range(len("<|start|>"), len(HEADER) + 1))
@pytest.mark.parametrize("before", ["<|channel|>final<|message|>Hello.<|end|>", "Hello."])
def test_no_part_of_a_header_is_ever_text(before: str, end: int) -> None:
    assert answer(before + HEADER[:end], "length")["text"] == "Hello."


def test_channels_are_read_without_tools() -> None:
    got = answer(THINK + START + "<|channel|>final<|message|>Done.<|return|>", tools=[])
    assert (got["thinking"], got["text"]) == ("Think.", "Done.")


def test_a_call_that_breaks_off_is_left_unfinished() -> None:
    got = answer('<|channel|>commentary to=functions.Bash<|message|>{"command": "ls', "length", tools=[BASH])
    assert (got["calls"], got["unfinished"], got["text"], got["stop_reason"]) == ([], 1, "", "max_tokens")
