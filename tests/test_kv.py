"""States of every kind of layer cache: cutting back, second handles, sizes, quantization."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm import load as load_model
from mlx_lm.generate import generate_step

from mlx_native_server.engine import kv

TOKENS = [300 + (7 * i) % 250 for i in range(200)]


@pytest.fixture(scope="module")
def model(tiny_model: Callable[..., Path]) -> Callable[..., Any]:
    loaded: dict[str, Any] = {}

    def get(family: str, **shape: Any) -> Any:
        key = family + repr(shape)
        if key not in loaded:
            loaded[key] = load_model(str(tiny_model(family, **shape)))[0]
        return loaded[key]

    return get


def goes_on(model: Any, state: kv.State, tokens: list[int]) -> list[int]:
    """What the model says after the state and then `tokens`."""
    return [token for token, _ in generate_step(mx.array(tokens), model, max_tokens=8, prompt_cache=state)]


def filled(model: Any, tokens: list[int]) -> kv.State:
    state = kv.new(model)
    kv.prefill(model, state, tokens)
    return state


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_state_cut_back_goes_on_as_a_cold_one(model: Any, family: str) -> None:
    plain, fixed = kv.parts(filled(model(family), TOKENS), 200)
    assert fixed is None
    state = kv.joined(model(family), plain.cut(120), None)
    assert goes_on(model(family), state, [400, 401]) == goes_on(model(family), filled(model(family), TOKENS[:120]), [400, 401])


@pytest.mark.parametrize("family", ["gemma3", "gemma4", "qwen3_next", "qwen3_5"])
def test_every_layer_is_asked_whether_it_can_be_cut(model: Any, family: str) -> None:
    """Gemma's first layer is a rotating one, and Qwen's last is a plain one: no single layer answers for all."""
    plain, fixed = kv.parts(filled(model(family), TOKENS), 200)
    assert plain.layers and fixed.layers
    with pytest.raises(ValueError):
        fixed.shortened(120)


@pytest.mark.parametrize("family", ["gemma3", "gemma4"])
@pytest.mark.parametrize(("chunks", "place"), [
    ([40], 1), ([40], 30), ([40], 40),  # before the window is full
    ([200], 199), ([200], 150), ([200], 40), ([200], 1),
    ([150, 50], 199), ([150, 50], 151), ([150, 50], 200),
    ([150, 1, 49], 180), ([199, 1], 200), ([190, 5, 5], 196),
])
@pytest.mark.parametrize("next_tokens", [[400], [400, 401], [301] * 90])
def test_a_window_still_holds_what_each_place_inside_of_the_last_chunk_needs(
        model: Any, family: str, chunks: list[int], place: int, next_tokens: list[int]) -> None:
    state, held = kv.new(model(family)), 0
    for size in chunks:
        kv.prefill(model(family), state, TOKENS[held:held + size])
        held += size
    assert all(kv.is_plain(layer) or kv.is_window(layer) for layer in kv.layers(state))
    at_place = kv.joined(model(family), kv.plain_part(state, place), kv.fixed_part(state, place, held - place))
    cold = filled(model(family), TOKENS[:place])
    assert goes_on(model(family), at_place, next_tokens) == goes_on(model(family), cold, next_tokens)


@pytest.mark.parametrize("family", ["llama", "gemma3", "gemma4", "qwen3_next", "qwen3_5"])
def test_continuing_one_handle_leaves_the_other_as_it_was(model: Any, family: str) -> None:
    state = filled(model(family), TOKENS)
    twin = kv.handles(state)
    expected = goes_on(model(family), filled(model(family), TOKENS), [400, 401])
    goes_on(model(family), twin, [350, 351, 352] * 30)
    assert goes_on(model(family), state, [400, 401]) == expected


def test_handles_of_a_quantized_state_are_separate_too(model: Any) -> None:
    wide = model("llama", hidden_size=256)
    state = filled(wide, TOKENS)
    kv.quantize(state, 8, 0)
    twin = kv.handles(state)
    goes_on(wide, twin, [350, 351, 352] * 30)
    fresh = filled(wide, TOKENS)
    kv.quantize(fresh, 8, 0)
    assert goes_on(wide, state, [400, 401]) == goes_on(wide, fresh, [400, 401])


@pytest.mark.parametrize(("family", "shape", "refused"), [
    ("llama", {"hidden_size": 256}, False),
    ("llama", {}, True),  # heads of 16 values
    ("gemma3", {}, True),
    ("qwen3_next", {}, True),
    ("qwen3_next", {"head_dim": 64}, False),  # its recurrent layers stay as they are
])
def test_which_models_can_have_a_quantized_cache(model: Any, family: str, shape: dict[str, int], refused: bool) -> None:
    assert bool(kv.quantization_refusal(model(family, **shape), 4)) is refused


def test_the_size_is_that_of_the_arrays(model: Any) -> None:
    assert kv.nbytes(kv.new(model("gemma3"))) == 0
    # 4 layers, keys and values, 2 heads of 16 float32 values, 256 tokens as the least allocation
    assert kv.nbytes(filled(model("llama"), TOKENS)) == 4 * 2 * 2 * 16 * 4 * 256


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("held", [0, 40])
def test_short_prompts_read_together_go_on_as_each_alone(model: Any, family: str, held: int) -> None:
    prompts = [TOKENS[held:held + size] for size in (20, 33, 1)]
    states = [filled(model(family), TOKENS[:held]) if held else kv.new(model(family)) for _ in prompts]
    assert kv.can_read_together(states)
    kv.prefill_together(model(family), states, prompts)
    for state, prompt in zip(states, prompts):
        assert {layer.offset for layer in state} == {held + len(prompt)}
        assert goes_on(model(family), state, [301]) == goes_on(model(family), filled(model(family), TOKENS[:held] + prompt), [301])


@pytest.mark.parametrize("family, together", [("llama", True), ("gemma3", False), ("qwen3_5", False)])
def test_only_plain_states_of_one_length_are_read_together(model: Any, family: str, together: bool) -> None:
    short, long = filled(model(family), TOKENS[:10]), filled(model(family), TOKENS[:11])
    assert kv.can_read_together([short, filled(model(family), TOKENS[10:20])]) is together
    assert not kv.can_read_together([short, long])
