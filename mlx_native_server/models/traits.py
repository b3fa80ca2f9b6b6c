"""What a chat template takes, found out by rendering small conversations with sentinel words.

Names of models and texts of templates are not looked at: a fork with a mended template gets the traits that it has.
A word that does not come out was dropped, one in the wrong place was moved, and a refusal is an `ApiError`.
The dialect is known by the markers that the template itself writes for a call.
"""
from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..protocol import ApiError, Traits

Message = dict[str, Any]
Render = Callable[[list[Message], "list[Message] | None", Mapping[str, Any]], str]
"""Messages, tools and template variables to the prompt's text, generation header included. `ApiError` where refused."""

# letters only, so that neither trimming nor JSON nor a sort changes them
SYSTEM, LATE, USER, MORE, SAID, TEXT, THOUGHT = "qzsystem", "qzlate", "qzuser", "qzmore", "qzsaid", "qztext", "qzthought"
CALL, CALL2, KEY, VALUE, VALUE2, RESULT, RESULT2 = "qzcall", "qzcallb", "qzkey", "qzvalue", "qzvalueb", "qzresult", "qzresultb"
_ID, _ID2 = "qzcall001", "qzcall002"  # nine letters and digits: some templates insist

DIALECT_MARKERS: tuple[tuple[str, str], ...] = (
    ("<|tool_call>call:", "gemma4"),
    ("<start_function_call>", "functiongemma"),
    ("<minimax:tool_call>", "minimax"),
    ("]<]minimax[>[", "minimax_m3"),
    ("<longcat_tool_call>", "longcat"),
    ("<seed:tool_call>", "seed"),
    ("<atem:function_calls>", "muse"),
    ("<｜DSML｜", "deepseek_dsml"),
    ("<｜tool▁call", "deepseek"),
    ("<|tool_call_begin|>", "kimi"),
    ("[TOOL_CALLS]", "mistral"),
    ("to=functions.", "harmony"),
    ("<arg_key>", "glm"),
    ('<function name="', "minicpm"),
    ("<function=", "qwen_xml"),
    ("<tool_call>", "json_tags"),
    ("<|tool_call|>", "json_tags"),
    (f"{CALL}({KEY}=", "pythonic"),
    ('"parameters":', "llama3"),
)
"""What a template writes for a call, and whose form that is; the first marker found counts."""

_THINKING_OPTIONS = ("enable_thinking", "thinking")
_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")


def _tool(name: str) -> Message:
    schema = {"type": "object", "properties": {KEY: {"type": "string", "description": "a value"}}, "required": [KEY]}
    return {"type": "function", "function": {"name": name, "description": "does it", "parameters": schema}}


TOOLS = [_tool(CALL), _tool(CALL2)]


def _call(name: str, call_id: str, value: str, as_text: bool) -> Message:
    arguments: Any = {KEY: value}
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments) if as_text else arguments}}


def _result(name: str, call_id: str, content: str) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "name": name, "content": content}


def _says(role: str, content: str, **more: Any) -> Message:
    return {"role": role, "content": content, **more}


def _in_order(text: str | None, *words: str) -> bool:
    """Whether all words are there, each one after the one before."""
    at = 0
    for word in words:
        at = -1 if text is None else text.find(word, at)
        if at < 0:
            return False
        at += len(word)
    return True


def _after(text: str, word: str) -> str:
    return text[text.rfind(word) + len(word) :]


class _Probe:
    """The questions; each is one rendering or a few."""

    def __init__(self, render: Render):
        self._render = render
        self.tools: list[Message] | None = None  # offered in every conversation once they are known to be rendered
        self.as_text = False
        self.options: Mapping[str, Any] = {}

    def render(self, *messages: Message, tools: Sequence[Message] | None = None, options: Mapping[str, Any] | None = None) -> str | None:
        """The text, or None where the template refuses."""
        offered = list(tools) if tools is not None else self.tools
        try:
            return self._render(list(messages), offered, self.options if options is None else options)
        except ApiError:
            return None

    def calls(self, *, content: str = "", two: bool = False, **more: Any) -> list[Message]:
        """A user's message, an assistant's with one call or two, and the results."""
        calls = [_call(CALL, _ID, VALUE, self.as_text)] + ([_call(CALL2, _ID2, VALUE2, self.as_text)] if two else [])
        results = [_result(CALL, _ID, RESULT)] + ([_result(CALL2, _ID2, RESULT2)] if two else [])
        return [_says("user", USER), _says("assistant", content, tool_calls=calls, **more), *results]

    def takes_tools(self) -> bool:
        """Declarations are shown, with their parameters."""
        return _in_order(self.render(_says("user", USER), tools=TOOLS), CALL, KEY)

    def takes_calls(self) -> tuple[bool, bool]:
        """Whether calls and results are rendered, and whether only from arguments as JSON text."""
        self.as_text = False
        by_object = self.render(*self.calls())
        self.as_text = True
        by_text = self.render(*self.calls())
        words = (USER, CALL, VALUE, RESULT)
        object_works, text_works = _in_order(by_object, *words), _in_order(by_text, *words)
        python_form = by_object is not None and f"{{'{KEY}': " in by_object
        verbatim = by_text is not None and json.dumps({KEY: VALUE}) in by_text
        self.as_text = text_works and (not object_works or (python_form and verbatim))
        return object_works or text_works, self.as_text

    def takes_several(self) -> bool:
        """Two calls in one message, and both results."""
        text = self.render(*self.calls(two=True))
        return _in_order(text, VALUE, VALUE2, RESULT2) and _in_order(text, CALL, CALL2, RESULT2) and _in_order(text, VALUE, RESULT)

    def takes_text_beside(self) -> bool:
        """In front of the call, and with the same end as without: some templates print it late and drop the header."""
        alone, beside = self.render(*self.calls()), self.render(*self.calls(content=TEXT))
        return alone is not None and beside is not None and _in_order(beside, USER, TEXT, VALUE, RESULT) and _after(alone, RESULT) == _after(beside, RESULT)

    def reasoning_key(self, calls: bool) -> str:
        """Where a thought has to be for the template to show it; empty for nowhere."""
        for key in _REASONING_KEYS:
            thought = {key: THOUGHT}
            in_loop = self.calls(**thought) if calls else [_says("user", USER), _says("assistant", SAID, **thought), _says("user", MORE)]
            if _in_order(self.render(*in_loop), USER, THOUGHT, VALUE if calls else SAID):
                return key
        return ""

    def thinking_option(self) -> str:
        """The variable that changes the prompt, and that may be false."""
        for name in _THINKING_OPTIONS:
            on, off = (self.render(_says("user", USER), options={name: value}) for value in (True, False))
            if on is not None and off is not None and on != off:
                return name
        return ""

    def takes_late_system(self) -> bool:
        """In its place between the turns, also when there is a leading one."""
        turns = [_says("user", USER), _says("assistant", SAID), _says("system", LATE), _says("user", MORE)]
        return _in_order(self.render(*turns), USER, SAID, LATE, MORE) and _in_order(self.render(_says("system", SYSTEM), *turns), SYSTEM, SAID, LATE, MORE)

    def moves_late_text(self, reasoning_key: str) -> bool:
        """Whether a user's message after the results changes what stands before it."""
        for more in ({}, {reasoning_key: THOUGHT} if reasoning_key else {}):
            turns = self.calls(**more)
            before, after = self.render(*turns), self.render(*turns, _says("user", MORE))
            if before is not None and after is not None and not after.startswith(before[: before.rfind(RESULT)]):
                return True
        return False

    def dialect(self, calls: bool) -> str:
        """By the call that is written; else by what the instructions say of one; else the commonest."""
        written = (self.render(*self.calls(), tools=[]) or self.render(*self.calls()) or "") if calls else ""
        instructions = self.render(_says("user", USER), tools=TOOLS) or ""
        for text in (written[written.rfind(USER) : written.rfind(RESULT)], instructions.replace('"parameters":', "")):
            for marker, name in DIALECT_MARKERS:
                if marker in text:
                    return name
        return Traits.dialect


def probe(render: Render) -> Traits:
    """The traits of the template behind `render` (about thirty renderings of a few lines)."""
    ask = _Probe(render)
    tools = ask.takes_tools()
    ask.tools = TOOLS if tools else None
    tool_calls, string_arguments = ask.takes_calls()
    thinking_option = ask.thinking_option()
    ask.options = {thinking_option: True} if thinking_option else {}
    reasoning_key = ask.reasoning_key(tool_calls)
    moves_late_text = tool_calls and ask.moves_late_text(reasoning_key)
    ask.options = {}
    return Traits(
        dialect=ask.dialect(tool_calls),
        tools=tools,
        tool_calls=tool_calls,
        several_calls=tool_calls and ask.takes_several(),
        text_beside_calls=tool_calls and ask.takes_text_beside(),
        string_arguments=string_arguments,
        system=_in_order(ask.render(_says("system", SYSTEM), _says("user", USER)), SYSTEM, USER),
        late_system=ask.takes_late_system(),
        alternates=ask.render(_says("user", USER), _says("user", MORE)) is None,
        reasoning_key=reasoning_key,
        thinking_option=thinking_option,
        moves_late_text=moves_late_text,
    )


def marks_results(render: Render, marker: str) -> bool:
    """Whether the template writes `marker` between a call and its result."""
    ask = _Probe(render)
    text = ask.render(*ask.calls()) or ""
    return marker in text[text.rfind(VALUE) : text.rfind(RESULT)]
