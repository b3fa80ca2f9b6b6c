"""Answers of several jobs with a real engine, real tokenizers and scripted models: what is reused, and what is counted."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes import body
from tiny_models import FAMILIES

from mlx_native_server.turn.forced import FORMS
from mlx_native_server.models.tokens import load_tokenizer
from served import Served, serve_folder  # noqa: F401  (fixtures)

LOOK_UP = {"name": "look_up", "description": "Looks up.", "input_schema": {
    "type": "object", "properties": {"parameter": {"type": "string"}}, "required": ["parameter"]}}


@pytest.fixture
def serve_model(scripted_model: Callable[..., Path], serve_folder: Callable[..., Served]) -> Callable[..., Served]:
    """`serve_model(family, rules, **options of scripted_model)`."""
    return lambda family, rules, **options: serve_folder(scripted_model(family, rules, **options))


def wanted(**fields: Any) -> dict[str, Any]:
    return body(**{"max_tokens": 400, **fields})


def calls(message: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(block["name"], block["input"]) for block in message["content"] if block["type"] == "tool_use"]


# ── demanded calls ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "qwen3_moe"])
@pytest.mark.parametrize("choice", [{"type": "tool", "name": "look_up"}, {"type": "any"}])
def test_a_model_goes_on_in_the_middle_of_its_own_call(serve_model, scripted_model, family: str, choice: dict[str, Any]) -> None:
    """The scripted model does so only where what was begun ends between two of its own tokens."""
    dialect = load_tokenizer(scripted_model(family, "x")).traits.dialect
    server = serve_model(family, FORMS[dialect].example("look_up"))
    asked = wanted(tools=[LOOK_UP, LOOK_UP | {"name": "another"}], tool_choice=choice, thinking={"type": "enabled", "budget_tokens": 1024})
    message = server.ask(asked)
    assert (calls(message), len(message["content"]), message["stop_reason"]) == ([("look_up", {"parameter": "value"})], 1, "tool_use")
    assert message["usage"]["input_tokens"] == server.count(asked)


# ── thoughts ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("extra_caches", [(), ("arrays",), ("rotating",)])
def test_ending_a_thought_computes_nothing_twice(serve_model, extra_caches: tuple[str, ...]) -> None:
    server = serve_model("qwen3_5", [{"reply": "So it is. ", "no_eos": True}], extra_caches=extra_caches)
    asked = wanted(thinking={"type": "enabled", "budget_tokens": 40}, max_tokens=100, messages=[{"role": "user", "content": "word " * 200}])
    message = server.ask(asked)
    thought, answer = message["content"]
    assert thought["thinking"].startswith("So it is. So it is.") and answer["text"].startswith("So it is. So it is.")
    assert (thought["type"], answer["type"], message["stop_reason"]) == ("thinking", "text", "max_tokens")
    end_tokens = len(server.tokenizer.ids("\n</think>\n\n"))
    assert message["usage"]["output_tokens"] == 100 - end_tokens
    prompt_tokens = server.count(asked)
    assert message["usage"]["input_tokens"] + message["usage"]["cache_read_input_tokens"] == prompt_tokens
    again = server.prefilled_tokens() - prompt_tokens
    assert again <= (end_tokens + 2 if not extra_caches else prompt_tokens // 4 + 40 + end_tokens), "the prompt was computed again"


# ── second attempts ──────────────────────────────────────────────────────────────────────────────

GARBLED = '<tool_call>\n{"name": "look_up", "arguments": {"value": 1, "x": 2}}\n</tool_call>'
RULES = [
    {"match": "RESULT", "reply": "Done."},
    {"match": "could not be read", "reply": FORMS["json_tags"].example("look_up")},
    {"reply": f"Let me see.\n{GARBLED}"},
]


@pytest.mark.parametrize("extra_caches", [(), ("arrays",), ("rotating",)])
def test_a_second_attempt_is_cheap_and_leaves_no_trace(serve_model, extra_caches: tuple[str, ...]) -> None:
    """Neither in the message, nor in the prompt of the next turn or what that reuses; only in the tokens that it took."""
    server = serve_model("qwen3", RULES, extra_caches=extra_caches)
    messages: list[dict[str, Any]] = [{"role": "user", "content": "word " * 300}]
    asked = wanted(tools=[LOOK_UP], messages=messages)
    message = server.ask(asked)
    said, call = message["content"]
    assert (said["text"], call["name"], call["input"], message["stop_reason"]) == ("Let me see.", "look_up", {"parameter": "value"}, "tool_use")
    prompt_tokens, answered = server.count(asked), server.prefilled_tokens()
    written = len(server.tokenizer.ids(f"Let me see.\n{GARBLED}"))
    assert message["usage"]["output_tokens"] > written + 5
    assert message["usage"]["input_tokens"] == prompt_tokens
    assert answered - prompt_tokens < 400, "the prompt was computed again"

    messages += [{"role": "assistant", "content": message["content"]},
                 {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call["id"], "content": "RESULT"}]}]
    after = server.ask(asked)
    assert after["content"] == [{"type": "text", "text": "Done."}]
    assert after["usage"]["cache_read_input_tokens"] >= prompt_tokens - 16
    assert after["usage"]["cache_read_input_tokens"] + after["usage"]["input_tokens"] == server.count(asked)


def test_a_schema_is_met_at_the_second_attempt(serve_model) -> None:
    server = serve_model("gemma4", [{"match": "does not fit", "reply": 'Here:\n```json\n{"title": "A"}\n```'}, {"reply": "A fine title"}])
    schema = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}
    message = server.ask(wanted(output_config={"format": {"type": "json_schema", "schema": schema}}))
    assert message["content"] == [{"type": "text", "text": '{"title": "A"}'}]


def test_max_tokens_0_prefills_and_says_nothing(serve_model) -> None:
    server = serve_model("qwen3", "Hello.")
    asked = wanted(messages=[{"role": "user", "content": "word " * 200}], tools=[LOOK_UP])
    for choice in ({"type": "auto"}, {"type": "any"}):
        message = server.ask(asked | {"max_tokens": 0, "tool_choice": choice})
        assert (message["content"], message["stop_reason"], message["usage"]["output_tokens"]) == ([], "max_tokens", 0)
    assert server.ask(asked)["usage"]["cache_read_input_tokens"] > 0.9 * server.count(asked)
