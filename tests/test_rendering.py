"""Chat templates as they are rendered: thinking, answers that are continued, and conversations that they refuse."""
from __future__ import annotations

from typing import Any

import pytest
import tiny_models

from mlx_native_server.models.template import thinking_at_end
from mlx_native_server.models.tokens import load_tokenizer
from mlx_native_server.protocol import ApiError, Prompt
from tokenizer_rig import BASH, altered, assistant, tokenizer, user  # noqa: F401  (fixtures)


@pytest.mark.parametrize(
    ("tail", "opens", "suppresses"),
    [
        ("<|im_start|>assistant\n<think>\n", True, False),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False, True),
        ("<|turn>model\n<|channel>thought\n", True, False),
        ("<|turn>model\n<|channel>thought\n<channel|>", False, True),
        ("<|im_start|>user\nwhat is <think>?<|im_end|>\n<|im_start|>assistant\n", False, False),
        ("<｜Assistant｜></think>", False, True),
        ("<|start_header_id|>assistant<|end_header_id|>\n\n", False, False),
    ],
)
def test_thinking_at_the_end_of_a_prompt(tail: str, opens: bool, suppresses: bool) -> None:
    assert thinking_at_end(tail) == (opens, suppresses)


@pytest.mark.parametrize(
    ("family", "options", "opens", "suppresses"),
    [
        ("qwen3", {}, False, False),
        ("qwen3", {"enable_thinking": False}, False, True),
        ("qwen3_5", {}, True, False),
        ("qwen3_5", {"enable_thinking": False}, False, True),
        ("gemma4", {}, False, True),
        ("gemma4", {"enable_thinking": True}, False, False),
    ],
)
def test_the_thinking_option_reaches_the_template(tokenizer: Any, family: str, options: dict[str, bool], opens: bool, suppresses: bool) -> None:
    encoded = tokenizer(family).encode(Prompt([user("what is <think>")], options=options))
    assert (encoded.opens_thinking, encoded.suppresses_thinking) == (opens, suppresses)


def test_a_thought_that_the_client_spells_at_the_end_opens_none(tokenizer: Any) -> None:
    encoded = tokenizer("qwen3").encode(Prompt([user("hi"), assistant("so <think>")], continues=True))
    assert not encoded.opens_thinking and encoded.text.endswith("so <think>")


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_a_prefill_is_left_open(tokenizer: Any, family: str) -> None:
    made = tokenizer(family)
    encoded = made.encode(Prompt([user("hi"), assistant("The capital <eos> of")], continues=True))
    assert encoded.text.endswith("The capital <eos> of")
    assert made.decode(encoded.tokens) == encoded.text


def test_a_prefill_that_the_template_drops_is_refused(altered: Any) -> None:
    made = load_tokenizer(altered("qwen3", tokenizer_config={"chat_template": "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"}))
    with pytest.raises(ApiError, match=r"messages\.1: .* cannot continue") as caught:
        made.encode(Prompt([user("hi"), assistant("The")], continues=True))
    assert caught.value.status == 400


@pytest.mark.parametrize(("family", "message", "words"), [
    pytest.param("qwen3_5", {"role": "system", "content": "late"}, "messages: .*System message must be at the beginning", id="refused"),
    pytest.param("gemma4", assistant("", tool_calls=[{"id": "x", "function": {"name": 3, "arguments": {}}}]), "messages: ", id="tripped over"),
])  # fmt: skip
def test_what_a_template_does_not_take_is_a_400_in_its_words(tokenizer: Any, family: str, message: dict[str, Any], words: str) -> None:
    with pytest.raises(ApiError, match=words) as caught:
        tokenizer(family).encode(Prompt([user("hi"), message]))
    assert caught.value.status == 400


def test_a_template_of_its_own_for_tools_is_used_with_tools(altered: Any) -> None:
    named = [
        {"name": "default", "template": "plain {{ messages[0].content }}"},
        {"name": "tool_use", "template": "{{ tools[0].function.name }} {{ tools[0].function.parameters.type }} {{ messages[0].content }}"},
    ]
    made = load_tokenizer(altered("qwen3", tokenizer_config={"chat_template": named}))
    assert made.encode(Prompt([user("hi")])).text == "plain hi"
    assert made.encode(Prompt([user("hi")], [BASH])).text == "Bash object hi"


@pytest.mark.parametrize("expression", ["strftime_now('%Y-%m-%d')", "date_string"])
def test_the_clock_is_not_in_the_prompt(altered: Any, expression: str) -> None:
    made = load_tokenizer(altered("qwen3", tokenizer_config={"chat_template": "{{ " + expression + " }}{% for m in messages %}{{ m.content }}{% endfor %}"}))
    assert made.encode(Prompt([user(" x")])).text in ("2024-07-26 x", "26 Jul 2024 x")
