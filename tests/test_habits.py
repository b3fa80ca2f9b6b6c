"""What Claude Code's own requests become on their way to the engine, and what it gets back."""
from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from claude_code import Sent, sent
from fakes import FakeEngine, FakeTokenizer, make_service

from mlx_native_server.answer.streaming import fold
from mlx_native_server.prompt.code_mode import TEMPERATURE
from mlx_native_server.prompt.effort import EFFORT_TOKENS
from mlx_native_server.protocol import Sampling, Traits

THINKS = Traits(thinking_option="enable_thinking")
ASKED = [number for number, request in sent().items() if request.path.startswith("/v1/messages") and "count_tokens" not in request.path]


def answered(request: Sent, tokenizer: FakeTokenizer | None = None, engine: FakeEngine | None = None, **settings: Any) -> dict[str, Any]:
    service = make_service(engine or FakeEngine(), tokenizer or FakeTokenizer(200_000), **settings)
    return fold(event for event in service.answer(json.dumps(request.body).encode(), request.headers, "req_1").events if event)


@pytest.mark.parametrize("number", ASKED)
def test_each_is_answered_under_the_name_that_it_asked_for_and_at_a_low_temperature(number: str) -> None:
    engine, request = FakeEngine(), sent()[number]
    message = answered(request, engine=engine)
    assert (message["model"], message["content"][0]["text"]) == (request.body["model"], "Hello there")
    assert engine.jobs[0].sampling == Sampling(TEMPERATURE, 0.9, 40) and engine.jobs[0].max_tokens <= request.body["max_tokens"]


@pytest.mark.parametrize("suppress", [True, False])
def test_a_title_is_small_has_no_tools_and_is_not_thought_about(suppress: bool) -> None:
    tokenizer = FakeTokenizer(traits=THINKS)
    engine = FakeEngine(['Here: {"title": "A short one"}'])
    message = answered(sent()["12"], tokenizer, engine, suppress_thinking=suppress)
    (prompt,) = tokenizer.prompts
    assert (prompt.tools, prompt.options) == (None, {"enable_thinking": False}) and len(json.dumps(prompt.messages)) < 5000
    assert json.loads(message["content"][0]["text"]) == {"title": "A short one"}


def test_a_tool_that_only_anthropics_servers_run_is_said_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    tokenizer = FakeTokenizer()
    answered(sent()["31"], tokenizer)
    assert not tokenizer.prompts[0].tools and "'web_search' ('web_search_20250305') runs on Anthropic's servers only" in caplog.text


@pytest.mark.parametrize("effort", ["low", "medium", "high"])
def test_its_effort_is_how_long_a_thought_may_be(effort: str) -> None:
    request = sent()["01"]
    asks = Sent(request.name, request.path, request.headers, request.body | {"output_config": {"effort": effort}, "max_tokens": 128_000})
    engine = FakeEngine(scripts=[[f"{n} " for n in range(30_000)], ["So."]])
    message = answered(asks, FakeTokenizer(200_000, THINKS, opens_thinking=True), engine, suppress_thinking=False)
    assert len(engine.jobs) == 2 and message["content"][-1]["text"] == "So."
    assert message["usage"]["output_tokens"] == EFFORT_TOKENS[effort] + 1
