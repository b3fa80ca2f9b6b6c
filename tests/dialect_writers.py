"""Valid calls as each dialect's models write them, for random round trips: one function a dialect."""
from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass


def _object(rng: random.Random, given: dict) -> str:
    return json.dumps(given, ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, None, 2]))


def as_mistral(rng: random.Random, name: str, given: dict) -> str:
    call_id = rng.choice(["", "[CALL_ID]k3Jd9sLq2"])
    return f"[TOOL_CALLS]{name}{call_id}[ARGS]{_object(rng, given)}"


def as_mistral_list(rng: random.Random, name: str, given: dict) -> str:
    arguments = given if rng.random() < 0.7 else json.dumps(given)
    return "[TOOL_CALLS]" + rng.choice(["", " "]) + json.dumps([{"name": name, "arguments": arguments, "id": "k3Jd9sLq2"}])


def as_harmony(rng: random.Random, name: str, given: dict) -> str:
    header = rng.choice([
        f"<|start|>assistant<|channel|>commentary to=functions.{name} <|constrain|>json", f"<|channel|>commentary to=functions.{name}",
        f"<|start|>assistant to=functions.{name}<|channel|>commentary json", f"<|channel|>analysis to={name}<|constrain|>json",
    ])
    return f"{header}<|message|>{_object(rng, given)}<|call|>"


def as_kimi(rng: random.Random, name: str, given: dict) -> str:
    call_id = rng.choice(["functions.{}:0", "{}:12", "functions_{}_1", "functions.{}"]).format(name)
    call = f"<|tool_call_begin|>{call_id}<|tool_call_argument_begin|>{_object(rng, given)}<|tool_call_end|>"
    return rng.choice([call, f"<|tool_calls_section_begin|>{call}<|tool_calls_section_end|>"])


def as_deepseek(rng: random.Random, name: str, given: dict) -> str:
    old = f"function<｜tool▁sep｜>{name}\n```json\n{_object(rng, given)}\n```"
    call = rng.choice([old, f"{name}<｜tool▁sep｜>{_object(rng, given)}"])
    return f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{call}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"


def as_python(rng: random.Random, name: str, given: dict) -> str:
    def spell(value: object) -> str:
        if isinstance(value, (dict, list)):
            return json.dumps(value)
        return rng.choice([repr, json.dumps])(value)

    arguments = ", ".join(f"{key}={spell(value)}" for key, value in given.items())
    return f"<|tool_call_start|>[{name}({arguments})]<|tool_call_end|>"


def as_kimi_k3(rng: random.Random, name: str, given: dict) -> str:
    def argument(key: str, value: object) -> str:
        kind, text = ("string", value) if isinstance(value, str) else ("object", json.dumps(value))
        return f'<|open|>argument key="{key}" type="{kind}"<|sep|>{text}<|close|>argument<|sep|>'

    arguments = "".join(argument(key, value) for key, value in given.items())
    if rng.random() < 0.2:
        arguments = f'<|open|>json type="object"<|sep|>{_object(rng, given)}<|close|>json<|sep|>'
    return f'<|open|>tools<|sep|><|open|>call tool="{name}" index="1"<|sep|>{arguments}<|close|>call<|sep|><|close|>tools<|sep|>'


def as_muse(rng: random.Random, name: str, given: dict) -> str:
    def parameter(key: str, value: object) -> str:
        return f'<atem:parameter name="{key}">{value if isinstance(value, str) else json.dumps(value)}</atem:parameter>\n'

    parameters = "".join(parameter(key, value) for key, value in given.items())
    block = f'<atem:function_calls>\n<atem:invoke name="{name}">\n{parameters}</atem:invoke>\n</atem:function_calls>'
    return f"<|start|>assistant to={name}<|message|>{block}<|eom|>"


# ── dialects in tags: raw values ─────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Tags:
    """A writer of one such dialect: the pieces around names, keys and values, and its own marks."""

    head: str
    argument: str
    tail: str
    marks: tuple[str, ...]
    cdata: bool = False

    def __call__(self, rng: random.Random, name: str, given: dict) -> str:
        return self.head.format(name) + "".join(self._argument(rng, key, value) for key, value in given.items()) + self.tail

    def _argument(self, rng: random.Random, key: str, value: object) -> str:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=rng.random() < 0.5)
        if self.cdata and (set(text) & set("<&\n") or rng.random() < 0.3):
            text = f"<![CDATA[{text}]]>"
        return self.argument.format(key, text, "true" if isinstance(value, str) else "false")

    def can_say(self, given: object) -> object:
        """The same with what the dialect cannot say taken out: its own marks where they might be the call's."""
        if isinstance(given, dict):
            return {key: self.can_say(inner) for key, inner in given.items()}
        if isinstance(given, list):
            return [self.can_say(inner) for inner in given]
        if given == "null":
            return "none"
        return re.sub("|".join(map(re.escape, self.marks)), r".\g<0>.", given) if isinstance(given, str) else given


NAMED_MARKS = ("<parameter", "</parameter>", "<function", "</function>", "<tool_call>", "</tool_call>")
INVOKE_MARKS = ("<parameter", "</parameter>", "<invoke", "</invoke>")
DSML_MARKS = tuple(f"{before}{marker}{name}" for before in ("<", "</") for marker in ("｜DSML｜", "｜DSML｜ ", "") for name in (
    "parameter", "invoke", "function_calls>", "tool_calls>", "toolcalls>", "calls>"))
GLM_MARKS = ("<arg_key>", "</arg_key>", "</arg_value>", "<tool_call>", "</tool_call>")

as_qwen_xml = Tags(
    "<tool_call>\n<function={}>\n", "<parameter={}>\n{}\n</parameter>\n", "</function>\n</tool_call>", NAMED_MARKS)
as_seed = Tags(
    "<seed:tool_call>\n<function={}>\n", "<parameter={}>{}</parameter>\n", "</function>\n</seed:tool_call>",
    (*NAMED_MARKS, "<seed:tool_call>", "</seed:tool_call>"))
as_glm45 = Tags("<tool_call>{}\n", "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n", "</tool_call>", GLM_MARKS)
as_glm47 = Tags("<tool_call>{}", "<arg_key>{}</arg_key><arg_value>{}</arg_value>", "</tool_call>", GLM_MARKS)
as_longcat = Tags(
    "<longcat_tool_call>{}\n", "<longcat_arg_key>{}</longcat_arg_key>\n<longcat_arg_value>{}</longcat_arg_value>\n", "</longcat_tool_call>",
    ("<longcat_arg_key>", "</longcat_arg_key>", "</longcat_arg_value>", "<longcat_tool_call>", "</longcat_tool_call>"))
as_minimax = Tags(
    '<minimax:tool_call>\n<invoke name="{}">\n', '<parameter name="{}">{}</parameter>\n', "</invoke>\n</minimax:tool_call>",
    (*INVOKE_MARKS, "<minimax:tool_call>", "</minimax:tool_call>"))
as_dsml = Tags(
    '<｜DSML｜function_calls>\n<｜DSML｜invoke name="{}">\n', '<｜DSML｜parameter name="{0}" string="{2}">{1}</｜DSML｜parameter>\n',
    "</｜DSML｜invoke>\n</｜DSML｜function_calls>", DSML_MARKS)
as_dsml41 = Tags(
    '<｜DSML｜ calls>\n<｜DSML｜ invoke name="{}">\n', '<｜DSML｜ parameter name="{0}" string="{2}">{1}</｜DSML｜ parameter>\n',
    "</｜DSML｜ invoke>\n</｜DSML｜ calls>", DSML_MARKS)
as_minicpm = Tags(
    '<function name="{}">', '<param name="{}">{}</param>', "</function>", ("<param", "</param>", "<function", "</function>", "]]>", "&"), cdata=True)
as_minimax_m3 = Tags(
    ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="{}">', "]<]minimax[>[<{0}>{1}]<]minimax[>[</{0}>", "]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>",
    ("]<]minimax[>[",))

TAG_WRITERS = (as_qwen_xml, as_seed, as_glm45, as_glm47, as_longcat, as_minimax, as_minimax_m3, as_dsml, as_dsml41, as_minicpm)
"""Those whose values are raw text. They write only what they `can_say`."""


def as_bare(rng: random.Random, name: str, given: dict) -> str:
    kind = {"type": "function"} if rng.random() < 0.3 else {}
    return _object(rng, kind | {"name": name, rng.choice(["arguments", "parameters"]): given})


def as_fence(rng: random.Random, name: str, given: dict) -> str:
    call = as_bare(rng, name, given)
    return f"```{rng.choice(['json', '', 'tool_call'])}\n{rng.choice([call, f'[{call}]'])}\n```"


def as_llama(rng: random.Random, name: str, given: dict) -> str:
    return f"<|python_tag|>{as_bare(rng, name, given)}"


def as_functools(rng: random.Random, name: str, given: dict) -> str:
    return f"functools[{as_bare(rng, name, given)}]"


def as_pipe_tags(rng: random.Random, name: str, given: dict) -> str:
    call = as_bare(rng, name, given)
    return f"<|tool_call|>{rng.choice([call, f'[{call}]'])}<|/tool_call|>"


ALONE_WRITERS = (as_bare, as_fence)
"""Those without marks: a call only where no text follows."""

PLAIN_WRITERS = (as_mistral, as_mistral_list, as_kimi, as_deepseek, as_python, as_llama, as_functools, as_pipe_tags)
"""Those whose markup is single marks: no words are dropped with it."""

WRITERS = (*PLAIN_WRITERS, as_harmony, as_kimi_k3, as_muse, *TAG_WRITERS)
