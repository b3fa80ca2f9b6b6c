"""Which rows may share a batch, and what a row's state holds when it leaves."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm import load as load_model
from mlx_lm.generate import generate_step

from mlx_native_server.engine import kv
from mlx_native_server.engine.decode import Decoder, Start, fits, padding
from mlx_native_server.protocol import Sampling

TOKENS = [300 + (7 * i) % 250 for i in range(200)]


@pytest.mark.parametrize(("lengths", "expected"), [
    ([10, 10, 10], True),
    ([3] * 8, True),
    ([2400] + [3] * 7, False),  # would take 8 times the memory of the long row
    ([30_000, 40], False),
    ([30_000, 24_000], True),
    ([900, 40], True),
    ([900] + [40] * 4, False),
])
def test_rows_of_about_the_same_length_share_a_batch(lengths: list[int], expected: bool) -> None:
    assert fits(lengths) is expected


def test_padding_is_what_the_longest_row_adds_to_the_others() -> None:
    assert padding([5, 3, 1]) == 6


@pytest.fixture(scope="module")
def llama(tiny_model: Callable[..., Path]) -> Any:
    return load_model(str(tiny_model("llama")))[0]


def add(decoder: Decoder, model: Any, uid: int, tokens: list[int], max_tokens: int = 5) -> None:
    state = kv.new(model)
    kv.prefill(model, state, tokens[:-1])
    for group in decoder.prepare([Start(uid, tokens, state, max_tokens, Sampling(0.0))]):
        decoder.join(group)


def run(decoder: Decoder) -> dict[int, list[Any]]:
    steps: dict[int, list[Any]] = {}
    while len(decoder):
        for group in decoder.groups():
            for step in group.step():
                steps.setdefault(step.uid, []).append(step)
    return steps


def test_short_and_long_rows_step_in_batches_of_their_own(llama: Any) -> None:
    decoder = Decoder(llama, frozenset(), 0, 0)
    for uid, length in enumerate([20, 1500, 25, 1450]):
        add(decoder, llama, uid, (TOKENS * 15)[:length])
    assert sorted(tuple(group.uids()) for group in decoder.groups()) == [(0, 2), (1, 3)]
    assert {uid: len(steps) for uid, steps in run(decoder).items()} == {0: 5, 1: 5, 2: 5, 3: 5}


def removed(decoder: Decoder, uid: int) -> kv.State:
    state, length = decoder.remove(uid)
    assert state[0].offset == length
    return state


@pytest.mark.parametrize("leaves", ["finished", "removed"])
def test_the_state_of_a_row_holds_its_prompt_and_what_it_gave(llama: Any, leaves: str) -> None:
    decoder = Decoder(llama, frozenset(), 0, 0)
    add(decoder, llama, 1, TOKENS[:50])
    add(decoder, llama, 2, TOKENS[:90], max_tokens=50)
    steps = [step for _ in range(5) for group in decoder.groups() for step in group.step()]
    uid, prompt = (1, TOKENS[:50]) if leaves == "finished" else (2, TOKENS[:90])
    given = [step.token for step in steps if step.uid == uid]
    state = next(s.state for s in steps if s.uid == 1 and s.reason) if leaves == "finished" else removed(decoder, 2)
    assert state is not None and state[0].offset == len(prompt) + len(given)
    go_on = [token for token, _ in generate_step(mx.array([400]), llama, max_tokens=6, prompt_cache=state)]
    cold = [token for token, _ in generate_step(mx.array(prompt + given + [400]), llama, max_tokens=6)]
    assert go_on == cold


def test_one_sampler_serves_all_rows_with_the_same_parameters(llama: Any) -> None:
    """A batch of different sampler objects samples row by row."""
    decoder = Decoder(llama, frozenset(), 0, 0)
    assert decoder._sampler(Sampling(0.7, 0.9, 5)) is decoder._sampler(Sampling(0.7, 0.9, 5))


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen3_5"])
def test_a_warm_up_leaves_nothing_behind(tiny_model: Callable[..., Path], family: str) -> None:
    decoder = Decoder(load_model(str(tiny_model(family)))[0], frozenset(), 0, 0)
    decoder.warm_up()
    assert len(decoder) == 0 and not list(decoder.groups())
