"""Kimi K3 and Muse: raw values between tags, in messages with channels or recipients."""
from __future__ import annotations

import pytest

from outputs import STRING, TOOLS, answer, tool

LS, LIST = ("Bash", {"command": "ls"}), ("list_pages", {})
EDIT = tool("edit_file", {"text": STRING, "opts": {"type": "object"}, "n": {"type": "integer"}, "id": STRING})


def opened(tag: str) -> str:
    return f"<|open|>{tag}<|sep|>"


def closed(tag: str) -> str:
    return f"<|close|>{tag}<|sep|>"


def argument(key: str, value: str, kind: str = "string") -> str:
    return opened(f'argument key="{key}" type="{kind}"') + value + closed("argument")


def call(name: str, *arguments: str) -> str:
    return opened(f'call tool="{name}" index="1"') + "".join(arguments) + closed("call")


def tools(*calls: str) -> str:
    return opened("tools") + "".join(calls) + closed("tools")


def message(recipient: str, body: str, end: str = "<|eom|>") -> str:
    return f"<|start|>assistant to={recipient}<|message|>{body}{end}"


def invoke(name: str, **values: str) -> str:
    parameters = "".join(f'<atem:parameter name="{key}">{value}</atem:parameter>\n' for key, value in values.items())
    return f'<atem:function_calls>\n<atem:invoke name="{name}">\n{parameters}</atem:invoke>\n</atem:function_calls>'


K3_LS, MUSE_LS = call("Bash", argument("command", "ls")), message("Bash", invoke("Bash", command="ls"))

ANSWERS = {  # text -> thinking, visible text, calls
    "K3": (tools(K3_LS), "", "", [LS]),
    "K3 several": (tools(K3_LS, call("list_pages")), "", "", [LS, LIST]),
    "K3 without the tools tag": (K3_LS, "", "", [LS]),
    "K3 JSON": (tools(call("Bash", opened('json type="object"') + '{"command": "ls"}' + closed("json"))), "", "", [LS]),
    "K3 channels": (opened("think") + "Plan." + closed("think") + opened("response") + "Hi." + closed("response") + tools(K3_LS) + closed("message"), "Plan.", "Hi.", [LS]),
    "K3 the prompt opened the answer": ("Hi." + closed("response") + tools(K3_LS) + "<|end_of_msg|>", "", "Hi.", [LS]),
    "K3 stops within a mark": ("Hi." + closed("response") + "<|close|>", "", "Hi.", []),
    "K3 stops within an opener": ("Hi.<|open|>", "", "Hi.", []),
    "K3 unclosed": (opened("tools") + K3_LS, "", "", [LS]),
    "K3 closer in a value": (tools(call("edit_file", argument("text", f"a{closed('argument')} b{closed('call')}"))), "", "",
                             [("edit_file", {"text": f"a{closed('argument')} b{closed('call')}"})]),
    "K3 types": (tools(call("edit_file", argument("n", "3", "number"), argument("opts", '{"k": [null]}', "object"), argument("id", "012"))), "", "",
                 [("edit_file", {"n": 3, "opts": {"k": [None]}, "id": "012"})]),
    "K3 undeclared": (tools(call("nope", argument("a", "x"))), "", tools(call("nope", argument("a", "x"))), []),
    "K3 a word of the text": ("The <|open|> token", "", "The <|open|> token", []),
    "Muse": (" to=self<|message|>Plan.<|eom|>" + MUSE_LS, "Plan.", "", [LS]),
    "Muse at the start": (MUSE_LS.removeprefix("<|start|>assistant"), "", "", [LS]),
    "Muse several": (MUSE_LS + message("list_pages", invoke("list_pages"), "<|eot|>"), "", "", [LS, LIST]),
    "Muse answer": (" to=user<|message|>Hi.<|eot|>", "", "Hi.", []),
    "Muse commentary": (" to=commentary<|message|>Hi.<|eom|>" + MUSE_LS, "", "Hi.", [LS]),
    "Muse doubled name": (message("Bash.Bash", invoke("Bash.Bash", command="ls")), "", "", [LS]),
    "Muse closers in a value": (message("edit_file", invoke("edit_file", text="a </atem:invoke> b </atem:parameter> ", n="3")), "", "",
                                [("edit_file", {"text": "a </atem:invoke> b </atem:parameter> ", "n": 3})]),
    "Muse types": (message("edit_file", invoke("edit_file", id="123", opts='{"k": [1]}')), "", "", [("edit_file", {"id": "123", "opts": {"k": [1]}})]),
    "Muse an example in the answer": (" to=user<|message|>" + invoke("Bash", command="ls"), "", invoke("Bash", command="ls"), []),
    "Muse a draft in a thought": (" to=self<|message|>" + invoke("Bash", command="ls") + "<|eom|>" + message("user", "Hi."), invoke("Bash", command="ls"), "Hi.", []),
    "Muse undeclared": (message("nope", invoke("nope", a="1"), ""), "", message("nope", invoke("nope", a="1"), ""), []),
    "Muse header cut": ("<|start|>assistant to=se", "", "", []),
}


@pytest.mark.parametrize("text, thinking, visible, calls", ANSWERS.values(), ids=ANSWERS)
def test_answer(text: str, thinking: str, visible: str, calls: list) -> None:
    got = answer(text, tools=[*TOOLS, EDIT])
    assert (got["thinking"], got["text"], got["calls"]) == (thinking, visible, calls)


def test_a_thought_that_the_prompt_opened_ends_at_its_tag() -> None:
    got = answer("Plan." + closed("think") + opened("response") + "Hi." + closed("response"), opens_thinking=True)
    assert (got["thinking"], got["text"]) == ("Plan.", "Hi.")


@pytest.mark.parametrize("text", [tools(K3_LS), MUSE_LS])
def test_an_open_value_is_never_closed(text: str) -> None:
    start = text.index(">ls<") + 2
    for end in range(start, start + 12):
        got = answer(text[:end], "length")
        assert (got["calls"], got["unfinished"]) == ([], 1)
