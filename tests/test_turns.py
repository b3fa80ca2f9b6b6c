"""A longer conversation only adds to the prompt of a shorter one: Claude Code's requests with every tiny template."""
from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from claude_code import Sent, sent, turns
from tiny_models import FAMILIES

from mlx_native_server.config import Settings
from mlx_native_server.prompt.conversion import to_prompt
from mlx_native_server.prompt.profiles import apply_profiles
from mlx_native_server.protocol import Encoded
from mlx_native_server.models.tokens import ModelTokenizer, load_tokenizer

TEMPLATES = [(family, None) for family in FAMILIES if family != "qwen3_moe"] + [  # it has qwen3's
    ("gemma4", "gemma4_small"), ("gemma4", "gemma4_launch"), ("qwen3_5", "qwen3_6"), ("qwen3_5", "qwen3_8"), ("qwen3_next", "qwen_coder"),
]  # fmt: skip
REQUESTS = {
    "none": ["10", "11", "14", "18", "25", "27"],
    "code": [number for number, request in sent().items() if len(list(turns(request))) > 1],
}

TAKES_EMPTY_THOUGHTS_BACK = ("qwen3_5", "qwen3_6")
"""These write an empty thought into each turn after the last user's message, and take it out when a user speaks again."""
SPEAKS_AGAIN = {("11", 2), ("26", 2), ("27", 2), ("27", 4)}
"""Number of a request and of the turn in which a user's message follows an answer that ended a tool loop."""


@pytest.fixture(scope="module", params=TEMPLATES, ids=lambda pair: pair[1] or pair[0])
def tokenizer(request: pytest.FixtureRequest, tokenizer_folder: Callable[..., Path]) -> tuple[str, ModelTokenizer]:
    family, template = request.param
    return template or family, load_tokenizer(tokenizer_folder(family, template))


def encoded(tokenizer: ModelTokenizer, request: Sent, mode: str) -> list[Encoded]:
    """The prompt of each turn that led to a request."""
    parsed = (request.parsed(messages=messages) for messages in turns(request))
    changed = (apply_profiles(each, Settings(), mode=mode) for each in parsed)
    return [tokenizer.encode(to_prompt(each, tokenizer.traits, True)) for each in changed]


@pytest.mark.parametrize("mode", REQUESTS)
def test_the_prompt_up_to_the_answer_is_a_prefix_of_the_next_turns(tokenizer: tuple[str, ModelTokenizer], mode: str) -> None:
    name, model = tokenizer
    changed = set()
    for number in REQUESTS[mode]:
        for turn, (before, after) in enumerate(pairwise(encoded(model, sent()[number], mode)), 1):
            kept = before.checkpoints[-1]  # before the generation header
            assert kept > 0.9 * len(before.tokens)
            if after.tokens[:kept] != before.tokens[:kept]:
                changed.add((number, turn))
    expected = SPEAKS_AGAIN if name in TAKES_EMPTY_THOUGHTS_BACK else set()
    assert changed == {(number, turn) for number, turn in expected if number in REQUESTS[mode]}
