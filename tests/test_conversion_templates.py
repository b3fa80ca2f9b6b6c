"""Conversations through real chat templates: in order, complete, and each step an extension of the one before."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conversations import BASH, assistant, call, late, prompt, result, text, thought, user
from mlx_native_server.models.tokens import ModelTokenizer, load_tokenizer

SESSION = [
    user("<system-reminder>\nclaudeMd\n</system-reminder>\n", "What is in a.txt?"),
    late("cwd: /home/user"),
    assistant(thought("read it"), "I will read it.", call("t1", "Read", path="/a.txt", opts={"deep": True, "n": None})),
    user(result("t1", "ALPHA"), "<system-reminder>5 tokens</system-reminder>"),
    assistant(thought("and list"), call("t2", command="ls"), call("t3", command="id")),
    user(result("t3", [text("uid"), {"type": "image", "source": {}}], is_error=True), result("t2", "a.txt")),
    late("two agents"),
    assistant("It holds ALPHA."),
    user("Thanks. And b.txt?"),
    assistant(call("t4", "Read", path="/b.txt")),
    user("never mind"),
]
FAMILIES = ["llama", "gemma3", "gemma4", "gemma4_small", "gemma4_launch", "qwen3", "qwen3_5", "qwen3_6", "qwen3_8", "qwen3_next"]
TEMPLATES = {"gemma4_small": "gemma4", "gemma4_launch": "gemma4", "qwen3_6": "qwen3_5", "qwen3_8": "qwen3_5"}
STEPS = [(2, "cwd: /home/user"), (4, "5 tokens"), (7, "two agents")]  # where requests of one turn end, and their last words
ORDER = ("You help.", "claudeMd", "What is in", "cwd: ", "I will read it.", "/a.txt", "ALPHA", "two agents", "It holds ALPHA.", "never mind")


@pytest.fixture(scope="module", params=FAMILIES)
def tokenizer(request: pytest.FixtureRequest, tokenizer_folder: Callable[..., Path]) -> ModelTokenizer:
    base = TEMPLATES.get(request.param)
    return load_tokenizer(tokenizer_folder(base, request.param) if base else tokenizer_folder(request.param))


@pytest.mark.parametrize("thinking", ["enabled", "disabled"])
def test_each_step_of_a_turn_extends_the_rendered_text_of_the_one_before(tokenizer: ModelTokenizer, thinking: str) -> None:
    kept = ""
    for end, last_words in STEPS:
        made = prompt(*SESSION[:end], traits=tokenizer.traits, tools=[BASH], system="You help.", thinking={"type": thinking})
        rendered = tokenizer.encode(made).text
        assert rendered.startswith(kept)
        kept = rendered[: rendered.rindex(last_words) + len(last_words)]


def test_a_whole_session_renders_in_order(tokenizer: ModelTokenizer) -> None:
    rendered = tokenizer.encode(prompt(*SESSION, traits=tokenizer.traits, tools=[BASH], system="You help.")).text
    places = [rendered.find(words) for words in ORDER]
    assert -1 not in places and places == sorted(places)


def test_a_prefill_ends_the_rendered_text(tokenizer: ModelTokenizer) -> None:
    assert tokenizer.encode(prompt(user("Give JSON"), assistant('{"a":'), traits=tokenizer.traits)).text.endswith('{"a":')


def test_the_deepest_accepted_schema_renders(tokenizer: ModelTokenizer) -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(29):
        schema = {"type": "object", "properties": {"a": schema}}
    made = prompt(user("x"), traits=tokenizer.traits, tools=[{"name": "Deep", "input_schema": schema}])
    assert "Deep" in tokenizer.encode(made).text


KEEP_OLD_THOUGHTS = ["qwen3_8"]


@pytest.mark.parametrize("keep", ["all", {"type": "thinking_turns", "value": 1}])
def test_old_thoughts_are_the_templates_affair_whatever_the_client_wants_cleared(tokenizer: ModelTokenizer, request: Any, keep: Any) -> None:
    """Most leave them out; one keeps them, and there a cleared thought would make all behind it be computed anew."""
    edits = {"edits": [{"type": "clear_thinking_20251015", "keep": keep}]}
    made = [prompt(*SESSION[:end], traits=tokenizer.traits, tools=[BASH], context_management=edits) for end in (9, 11)]
    assert ["and list" in tokenizer.encode(each).text for each in made] == [request.node.callspec.params["tokenizer"] in KEEP_OLD_THOUGHTS] * 2
