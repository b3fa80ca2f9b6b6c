"""What is written for the model: the beginning of a call that it must make, and the end of a thought that is too long.

One row a dialect, by the names of `parsers`. A beginning ends where the next token begins in the tokenizers of its
models: behind `"arguments":`, not behind the space that belongs to the next word. A dialect without a row begins as
`json_tags`, which most models fall back to. Reading what the model makes of it is the parsers' work.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

from ..parsers.thinking import CLOSERS, TAGS


@dataclass(frozen=True)
class Form:
    """How a call begins: of any tool, of the tool `NAME`, and how it ends after that (for the model to read).

    `needs`: a control token without which the model speaks the row `otherwise`.
    """

    any: str
    named: str
    rest: str
    needs: str = ""
    otherwise: str = ""

    def opening(self, name: str) -> str:
        """The beginning of a call of the tool `name`, or of any tool where that is ""."""
        return self.named.replace("NAME", name) if name else self.any

    def example(self, name: str) -> str:
        """A whole call of this tool."""
        return (self.named + self.rest).replace("NAME", name)


_JSON = '{"name": "NAME", "arguments":'
_REST = ' {"parameter": "value"}}'

FORMS = {
    "json_tags": Form("<tool_call>\n", f"<tool_call>\n{_JSON}", f"{_REST}\n</tool_call>"),
    "qwen_xml": Form("<tool_call>\n<function", "<tool_call>\n<function=NAME>\n", "<parameter=parameter>\nvalue\n</parameter>\n</function>\n</tool_call>"),
    "gemma4": Form("<|tool_call>call:", "<|tool_call>call:NAME", '{parameter:<|"|>value<|"|>}<tool_call|>'),
    "functiongemma": Form("<start_function_call>call:", "<start_function_call>call:NAME", "{parameter:<escape>value<escape>}<end_function_call>"),
    "llama3": Form('{"name', '{"name": "NAME", "parameters":', _REST),
    "bare_json": Form('{"name', _JSON, _REST),
    "mistral": Form("[TOOL_CALLS]", "[TOOL_CALLS]NAME[ARGS]", '{"parameter": "value"}', needs="[ARGS]", otherwise="mistral_list"),
    "mistral_list": Form("[TOOL_CALLS]", f"[TOOL_CALLS] [{_JSON}", f"{_REST}]"),
    "harmony": Form("<|channel|>commentary to", "<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>", '{"parameter": "value"}<|call|>'),
    "muse": Form(" to", ' to=NAME<|message|><atem:function_calls>\n<atem:invoke name="NAME">\n',
                 '<atem:parameter name="parameter">value</atem:parameter>\n</atem:invoke>\n</atem:function_calls>'),
    "kimi": Form("<|tool_calls_section_begin|><|tool_call_begin|>", "<|tool_calls_section_begin|><|tool_call_begin|>functions.NAME:",
                 '0<|tool_call_argument_begin|>{"parameter": "value"}<|tool_call_end|><|tool_calls_section_end|>'),
    "kimi_k3": Form("<|open|>tools<|sep|><|open|>", '<|open|>tools<|sep|><|open|>call tool="NAME" index="1"<|sep|>',
                    '<|open|>argument key="parameter" type="string"<|sep|>value<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>'),
    "deepseek": Form("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜>",
                     '{"parameter": "value"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>'),
    "deepseek_dsml": Form("<｜DSML｜function_calls>\n", '<｜DSML｜function_calls>\n<｜DSML｜invoke name="NAME">\n',
                          '<｜DSML｜parameter name="parameter" string="true">value</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>'),
    "glm": Form("<tool_call>", "<tool_call>NAME", "<arg_key>parameter</arg_key><arg_value>value</arg_value></tool_call>"),
    "minimax": Form("<minimax:tool_call>\n", '<minimax:tool_call>\n<invoke name="NAME">\n',
                    '<parameter name="parameter">value</parameter>\n</invoke>\n</minimax:tool_call>'),
    "minimax_m3": Form("]<]minimax[>[<tool_call>\n", ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="NAME">',
                       "]<]minimax[>[<parameter>value]<]minimax[>[</parameter>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>"),
    "seed": Form("<seed:tool_call>\n", "<seed:tool_call>\n<function=NAME>\n", "<parameter=parameter>value</parameter>\n</function>\n</seed:tool_call>"),
    "longcat": Form("<longcat_tool_call>", "<longcat_tool_call>NAME\n",
                    "<longcat_arg_key>parameter</longcat_arg_key>\n<longcat_arg_value>value</longcat_arg_value>\n</longcat_tool_call>"),
    "minicpm": Form("<function", '<function name="NAME">', '<param name="parameter">value</param></function>'),
    "pythonic": Form("<|tool_call_start|>", "<|tool_call_start|>[NAME", '(parameter="value")]<|tool_call_end|>',
                     needs="<|tool_call_start|>", otherwise="pythonic_bare"),
    "pythonic_bare": Form("[", "[NAME", '(parameter="value")]'),
}

END_OF_THOUGHT = {
    "</think>": "\n</think>\n\n", "</longcat_think>": "\n</longcat_think>\n", "<|end|>": "<|end|><|start|>assistant",
    "<|eom|>": "<|eom|><|start|>assistant",
}
"""What follows a thought's last word, by the mark that closes it; another mark stands alone."""

Knows = Callable[[str], bool]
"""Whether a text is one token of the model's."""


def form(dialect: str, knows: Knows) -> Form:
    """The row of a dialect, as far as the model's vocabulary has it."""
    row = FORMS.get(dialect, FORMS["json_tags"])
    return FORMS[row.otherwise] if row.needs and not knows(row.needs) else row


def end_of_thought(prompt: str, closers: tuple[str, ...] = CLOSERS) -> str:
    """What closes a thought that ends with one of `closers`; with any of them where the prompt has opened it."""
    closer = TAGS[max(TAGS, key=prompt.rfind)] if closers == CLOSERS else closers[0]
    return END_OF_THOUGHT.get(closer, closer)
