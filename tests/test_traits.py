"""What is found out about a chat template by rendering it."""
from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import tiny_models

from mlx_native_server.protocol import Traits
from mlx_native_server.models.template import ChatTemplate, jinja_template
from mlx_native_server.models.traits import marks_results, probe

PLAIN = Traits(
    tools=False, tool_calls=False, several_calls=False, text_beside_calls=False, reasoning_key="", late_system=True
)
SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou help<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
QWEN = Traits(thinking_option="enable_thinking", moves_late_text=True)
QWEN_XML = dataclasses.replace(QWEN, dialect="qwen_xml")
GEMMA4 = Traits(dialect="gemma4", text_beside_calls=False, late_system=True, thinking_option="enable_thinking", moves_late_text=True)
NO_THINKING = dict(reasoning_key="", thinking_option="", moves_late_text=False)
CODER = dataclasses.replace(QWEN_XML, late_system=True, **NO_THINKING)

FAMILIES = {
    "llama": Traits(dialect="llama3", several_calls=False, text_beside_calls=False, late_system=True, reasoning_key=""),
    "gemma3": dataclasses.replace(PLAIN, late_system=False, alternates=True),
    "gemma4": GEMMA4,
    "gemma4_small": GEMMA4,
    "gemma4_launch": dataclasses.replace(GEMMA4, reasoning_key="", moves_late_text=False),
    "qwen3": dataclasses.replace(QWEN, late_system=True),
    "qwen3_moe": dataclasses.replace(QWEN, late_system=True),
    "qwen3_5": QWEN_XML,
    "qwen3_6": QWEN_XML,
    "qwen3_8": dataclasses.replace(QWEN_XML, moves_late_text=False),
    "qwen3_next": CODER,
    "qwen_coder": CODER,
    "smollm2": PLAIN,
}
SOURCES = {**tiny_models.TEMPLATE, **tiny_models.EXTRA, "smollm2": SMOLLM2}


def template(source: str) -> ChatTemplate:
    return jinja_template(lambda tools: source, {"bos_token": "<bos>"}, source)


def traits(source: str) -> Traits:
    return probe(template(source).render)


@pytest.mark.parametrize("name", SOURCES)
def test_families(name: str) -> None:
    assert traits(SOURCES[name]) == FAMILIES[name]


# ── other forms of one thing at a time ───────────────────────────────────────────────────────────


def chat(call: str = "{{ c.function.name }}{{ c.function.arguments | tojson }}", text: str = "{{ m.content }}", before: str = "", loop: str = "") -> str:
    """A plain template that writes a call as `call`, the text of a message with calls as `text`."""
    return (
        "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}" + before + "{% for m in messages %}" + loop + "{{ '<' + m.role + '>' }}"
        "{% if m.tool_calls %}" + text + "{% for c in m.tool_calls %}" + call + "{% endfor %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )


ARGUMENTS = "{{ c.function.arguments | tojson }}"
PAIRS = "{% for k, v in c.function.arguments | items %}"
DIALECTS = {
    "json_tags": '<tool_call>\n{"name": "{{ c.function.name }}", "arguments": ' + ARGUMENTS + "}\n</tool_call>",
    "llama3": '{"name": "{{ c.function.name }}", "parameters": ' + ARGUMENTS + "}",
    "qwen_xml": "<tool_call>\n<function={{ c.function.name }}>" + PAIRS + "<parameter={{ k }}>{{ v }}</parameter>{% endfor %}</function></tool_call>",
    "glm": "<tool_call>{{ c.function.name }}\n" + PAIRS + "<arg_key>{{ k }}</arg_key><arg_value>{{ v }}</arg_value>{% endfor %}</tool_call>",
    "mistral": "[TOOL_CALLS]{{ c.function.name }}[ARGS]" + ARGUMENTS,
    "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>functions.{{ c.function.name }}:0<|tool_call_argument_begin|>" + ARGUMENTS,
    "deepseek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ c.function.name }}<｜tool▁sep｜>" + ARGUMENTS,
    "deepseek_dsml": '<｜DSML｜invoke name="{{ c.function.name }}">' + PAIRS + "{{ k }}{{ v }}{% endfor %}",
    "minimax": '<minimax:tool_call><invoke name="{{ c.function.name }}">' + PAIRS + '<parameter name="{{ k }}">{{ v }}{% endfor %}',
    "harmony": "<|channel|>commentary to=functions.{{ c.function.name }}<|message|>" + ARGUMENTS + "<|call|>",
    "seed": "<seed:tool_call><function={{ c.function.name }}>" + PAIRS + "<parameter={{ k }}>{{ v }}</parameter>{% endfor %}",
    "longcat": "<longcat_tool_call>{{ c.function.name }}" + ARGUMENTS,
    "minicpm": '<function name="{{ c.function.name }}">' + PAIRS + '<param name="{{ k }}">{{ v }}</param>{% endfor %}',
    "pythonic": "<|tool_call_start|>[{{ c.function.name }}(" + PAIRS + '{{ k }}="{{ v }}"{% endfor %})]',
    "functiongemma": "<start_function_call>call:{{ c.function.name }}" + PAIRS + "({{ k }}:<escape>{{ v }}<escape>){% endfor %}",
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_dialect_is_the_one_that_the_template_writes(dialect: str) -> None:
    assert traits(chat(DIALECTS[dialect])).dialect == dialect


def test_a_dialect_that_only_the_instructions_show_is_found() -> None:
    source = "{% if tools %}{{ tools | tojson }} Call with <start_function_call>.{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"
    assert traits(source).dialect == "functiongemma"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (chat(), {"tool_calls": True, "string_arguments": False, "several_calls": True, "text_beside_calls": True}),
        (chat("{{ c.function.name + c.function.arguments }}"), {"tool_calls": True, "string_arguments": True}),
        (chat("{{ c.function.name }}{{ c.function.arguments }}"), {"tool_calls": True, "string_arguments": True}),
        (chat("{% if c.function.arguments is not mapping %}{{ raise_exception('no') }}{% endif %}{{ c.function }}"), {"string_arguments": False}),
        (chat(text=""), {"text_beside_calls": False}),
        (chat(loop="{% if m.tool_calls and m.tool_calls | length > 1 %}{{ raise_exception('one') }}{% endif %}"), {"several_calls": False}),
        (chat(before="{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"), {"system": False, "late_system": False}),
        (chat(loop="{% if m.role == 'system' and not loop.first %}{{ raise_exception('late') }}{% endif %}"), {"system": True, "late_system": False}),
        (chat(before="{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %}", loop="{% if m.role == 'system' %}{% continue %}{% endif %}"), {"system": True, "late_system": False}),
        (chat(before="{% if not thinking %}quick {% endif %}"), {"thinking_option": "thinking"}),
        (chat(before="{% if enable_thinking is defined and not enable_thinking %}{{ raise_exception('always') }}{% endif %}"), {"thinking_option": ""}),
        (chat(text="{{ m.thinking }}{{ m.content }}"), {"reasoning_key": "reasoning_content"}),
        (chat(text="{{ m.content }}", call="{{ m.reasoning_content }}{{ c.function }}"), {"reasoning_key": "reasoning_content"}),
        (chat(), {"reasoning_key": "", "thinking_option": "", "moves_late_text": False}),
    ],
)  # fmt: skip
def test_traits_one_at_a_time(source: str, expected: dict[str, Any]) -> None:
    found = dataclasses.asdict(traits(source))
    assert {name: found[name] for name in expected} == expected


def test_tools_that_stand_before_the_last_user_message_move_late_text() -> None:
    source = (
        "{% set ns = namespace(last=0) %}{% for m in messages if m.role == 'user' %}{% set ns.last = m.content %}{% endfor %}"
        "{% for m in messages %}{% if m.content == ns.last %}{{ tools | tojson }}{% endif %}{{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }}{% endfor %}"
    )
    assert traits(source).moves_late_text


def test_a_template_that_refuses_everything_still_has_traits() -> None:
    found = traits("{{ raise_exception('never') }}")
    assert (found.tools, found.tool_calls, found.system) == (False, False, False)


@pytest.mark.parametrize(("name", "expected"), [("gemma4", True), ("gemma4_small", True), ("gemma4_launch", False)])
def test_an_early_gemma_4_template_is_known_by_its_tool_results(name: str, expected: bool) -> None:
    assert marks_results(template(SOURCES[name]).render, "<|tool_response>") is expected
