"""Models without a usable chat template: the built-in ones for Gemma 4 and for all others."""
from __future__ import annotations

import logging
from typing import Any

import pytest

from mlx_native_server.models.tokens import ModelTokenizer, load_tokenizer
from mlx_native_server.protocol import Prompt
from tokenizer_rig import BASH, altered, assistant, call, copy_altered, result, tokenizer, user  # noqa: F401  (fixtures)

CONVERSATIONS = {
    "plain": [user("hi")],
    "system": [{"role": "system", "content": " Be brief. "}, user("hi")],
    "turns": [{"role": "system", "content": "s"}, user("hi"), assistant("hello"), user("bye")],
    "call": [user("hi"), assistant("", tool_calls=[call("ls")])],
    "result": [user("hi"), assistant("", tool_calls=[call("ls")]), result("a b")],
    "text beside": [user("hi"), assistant("Looking."), assistant("", tool_calls=[call("ls")]), result("a b")],
    "two calls": [user("hi"), assistant("", tool_calls=[call("ls"), call("pwd", "toolu_02")]), result("a"), result("b", "toolu_02")],
    "answer": [user("hi"), assistant("", tool_calls=[call("ls")]), result("a"), assistant("done"), user("more")],
    "late user": [user("hi"), assistant("", tool_calls=[call("ls")]), result("a"), user("stop")],
    "loop": [user("hi"), assistant("", tool_calls=[call("ls")]), result("a"), assistant("", tool_calls=[call("pwd", "toolu_02")]), result("b", "toolu_02")],
    "thought": [user("hi"), assistant("", reasoning_content="I look", tool_calls=[call("ls")]), result("a")],
    "old thought": [user("hi"), assistant("x", reasoning_content="I look"), user("more")],
    "nameless result": [user("hi"), assistant("", tool_calls=[call("ls")]), {"role": "tool", "content": "a"}],
}
NESTED = {
    "type": "function",
    "function": {
        "name": "Edit",
        "description": "Edits",
        "parameters": {
            "type": "object",
            "properties": {
                "type": {"type": "string", "enum": ["a", "b"]},
                "list": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "string", "description": "d"}}, "required": ["x"]}},
                "opts": {"type": "object", "properties": {"deep": {"type": "boolean", "nullable": True}}, "required": ["deep"]},
                "description": {"type": "string"},
            },
            "required": ["type"],
        },
    },
}


@pytest.fixture(scope="module")
def bare_gemma4(tokenizer_folder: Any, tmp_path_factory: pytest.TempPathFactory) -> ModelTokenizer:
    """One without a template of its own."""
    folder = tmp_path_factory.mktemp("bare") / "gemma4"
    return load_tokenizer(copy_altered(tokenizer_folder("gemma4"), folder, tokenizer_config={"chat_template": None}))


@pytest.mark.parametrize("options", [{}, {"enable_thinking": True}], ids=["quiet", "thinking"])
@pytest.mark.parametrize("tools", [None, [BASH, NESTED]], ids=["no tools", "tools"])
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_the_built_in_gemma_4_template_writes_what_the_published_form_does(
    bare_gemma4: ModelTokenizer, tokenizer: Any, name: str, tools: Any, options: Any,
) -> None:  # fmt: skip
    prompt = Prompt(CONVERSATIONS[name], tools, options)
    assert bare_gemma4.encode(prompt) == tokenizer("gemma4").encode(prompt)


def test_a_built_in_gemma_4_template_keeps_system_text_and_tools(altered: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        made = load_tokenizer(altered("gemma4", tokenizer_config={"chat_template": None}))
    assert "no chat template" in caplog.text and "Gemma 4" in caplog.text
    text = made.encode(Prompt([{"role": "system", "content": "Be brief."}, user("hi")], [BASH])).text
    assert text.startswith("<bos><|turn>system\nBe brief.<|tool>declaration:Bash{") and "<|turn>user\nhi<turn|>" in text
    assert made.traits.dialect == "gemma4" and made.traits.text_beside_calls


def test_an_early_gemma_4_template_is_replaced(tokenizer: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        made = tokenizer("gemma4", "gemma4_launch")
    assert "early chat template" in caplog.text
    text = made.encode(Prompt(CONVERSATIONS["result"], [BASH])).text
    assert "<|tool_response>response:Bash{value:" in text


def test_other_models_without_a_template_get_chatml(altered: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        made = load_tokenizer(altered("llama", tokenizer_config={"chat_template": None}))
    assert "ChatML" in caplog.text
    assert made.encode(Prompt([user("hi")])).text == "<|begin_of_text|><|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert not made.traits.tools
