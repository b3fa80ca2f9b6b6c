"""Valid calls as each dialect's models write them, for random round trips: one function a dialect."""
from __future__ import annotations

import json
import random


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


PLAIN_WRITERS = (as_mistral, as_mistral_list, as_kimi, as_deepseek, as_python)
"""Those whose markup is single marks: no words are dropped with it."""

WRITERS = (*PLAIN_WRITERS, as_harmony, as_kimi_k3, as_muse)
