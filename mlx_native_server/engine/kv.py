"""KV states: what a model has computed for the tokens it has read, one list of layer caches per conversation.

Everything that depends on the kinds of mlx-lm's layer caches is here: making a state, prefilling it, its two parts, of
which one can be cut back (`Plain`) and the other not (`Fixed`; every layer is asked, never the first one alone), its size,
and whether it can be quantized. What to keep and what to reuse is policy, and not here.
"""
from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map
from mlx_lm.generate import maybe_quantize_kv_cache
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, QuantizedKVCache, RotatingKVCache, make_prompt_cache

State = list[Any]
"""One layer cache of mlx-lm per layer that has one."""

PLAIN = {KVCache, QuantizedKVCache}
"""Kinds that hold all tokens in order, so that a shorter state can always be cut from them."""
KNOWN = PLAIN | {RotatingKVCache, ArraysCache}

GROUP_SIZE = 64
"""Values that share a scale in a quantized cache; a model's head size must be a multiple of it."""


def new(model: nn.Module) -> State:
    """An empty state for `model`."""
    return make_prompt_cache(model)


def prefill(model: nn.Module, state: State, tokens: Sequence[int]) -> None:
    """Read `tokens` into `state` (in place, evaluated). One call is one chunk: it cannot be interrupted."""
    model(mx.array(tokens)[None], cache=state)
    mx.eval([layer.state for layer in state])


def warm_up(model: nn.Module, sizes: Sequence[int]) -> None:
    """Prefill prompts of these sizes for nothing: CUDA compiles its kernels for a range of sizes at their first use."""
    for size in sizes:
        prefill(model, new(model), [0] * size)


def can_read_together(states: Sequence[State]) -> bool:
    """Whether `prefill_together` takes these states: plain KV caches in every layer, all of one length."""
    return all(type(layer) is KVCache for state in states for layer in state) and len({layer.offset for state in states for layer in state}) == 1


def prefill_together(model: nn.Module, states: Sequence[State], prompts: Sequence[Sequence[int]]) -> None:
    """Read a short prompt into each of several states (in place, evaluated), in one call of the model.

    The rows are padded at their ends: attention looks back only, so what is behind a prompt changes nothing before it,
    and it is cut off.
    """
    longest, held = max(map(len, prompts)), states[0][0].offset
    rows = [KVCache() for _ in states[0]]
    for layers, row in zip(zip(*states), rows) if held else ():
        row.keys = mx.concatenate([layer.keys[..., :held, :] for layer in layers])
        row.values = mx.concatenate([layer.values[..., :held, :] for layer in layers])
        row.offset = held
    model(mx.array([[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts]), cache=rows)
    for number, (state, prompt) in enumerate(zip(states, prompts)):
        for layer, row in zip(state, rows):
            layer.keys, layer.values = (mx.contiguous(a[number:number + 1, :, :held + len(prompt)]) for a in (row.keys, row.values))
            layer.offset = held + len(prompt)
    mx.eval([layer.state for state in states for layer in state])


def quantize(state: State, bits: int, start_tokens: int) -> None:
    """Quantize (in place) the layers that hold `start_tokens` tokens or more."""
    maybe_quantize_kv_cache(state, start_tokens, GROUP_SIZE, bits)


def handles(state: State) -> State:
    """A second state over the same memory, which may be continued or cut without changing the first.

    Layers write with `keys[...] = x`, which changes the Python array object in place: each array is copied as a
    handle. That is free until the next write, which copies that layer's buffer once.
    """
    return [_handle(layer) for layer in state]


def _handle(layer: Any) -> Any:
    twin = copy.copy(layer)
    for name, value in vars(layer).items():
        setattr(twin, name, _handle_value(value))
    return twin


def _handle_value(value: Any) -> Any:
    if isinstance(value, mx.array):
        return copy.copy(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_handle(item) if hasattr(item, "update_and_fetch") else _handle_value(item) for item in value)
    return value


# ── the two parts of a state ─────────────────────────────────────────────────────────────────────


def layers(state: State) -> list[Any]:
    """The layer caches with those inside of a `CacheList` in its place."""
    return [inner for layer in state for inner in (layers(layer.caches) if isinstance(layer, CacheList) else [layer])]


def is_plain(layer: Any) -> bool:
    """Whether a layer belongs to the plain part. Kinds that are not known do not: they are kept as they are."""
    return type(layer) in PLAIN


def is_window(layer: Any) -> bool:
    """Whether a layer still holds, after a chunk, what each place inside of that chunk needs: a window of the last tokens."""
    return type(layer) is RotatingKVCache and not layer.keep


class Plain:
    """The layers that can be cut back, for `tokens` tokens; no other state has their memory. `saved`: it has a file."""

    def __init__(self, layers: list[Any], tokens: int):
        self.layers, self.tokens, self.saved = layers, tokens, False
        self.nbytes = sum(layer.nbytes for layer in layers)

    def shortened(self, tokens: int) -> "Plain":
        """The first `tokens` tokens, copied and evaluated: what is cut off is not kept alive."""
        return plain_part(self.layers, tokens)

    def cut(self, tokens: int) -> "Plain":
        """Drop what comes after the first `tokens` tokens (in place)."""
        for layer in self.layers:
            if not layer.empty():
                layer.trim(layer.offset - tokens)
        self.tokens = tokens
        return self


class Fixed:
    """The layers that are right for exactly `tokens` tokens; no other state has their memory. `saved`: it has a file."""

    def __init__(self, layers: list[Any], tokens: int):
        self.layers, self.tokens, self.saved = layers, tokens, False
        self.nbytes = sum(_layer_nbytes(layer) for layer in layers)

    def shortened(self, tokens: int) -> "Fixed":
        raise ValueError("this part of a state cannot be cut back")


def plain_part(state: State, tokens: int) -> Plain:
    """A copy of a state's plain layers, cut to `tokens` tokens."""
    return Plain(_evaluated([_shorter(layer, tokens) for layer in layers(state) if is_plain(layer)]), tokens)


def fixed_part(state: State, tokens: int, beyond: int = 0) -> Fixed:
    """A copy of a state's other layers as they are for `tokens` tokens, rotating ones cut to their window.

    The state holds so many tokens and `beyond` more. There may be more only where all these layers are windows (`is_window`)
    and those tokens came in one chunk, in which one at least was before them.
    """
    return Fixed(_evaluated([_kept(layer, beyond) for layer in layers(state) if not is_plain(layer)]), tokens)


def parts(state: State, tokens: int) -> tuple[Plain | None, Fixed | None]:
    """A state that nobody goes on in, of `tokens` tokens, as its two parts; a part without layers is None."""
    plain = Plain(_evaluated([layer for layer in layers(state) if is_plain(layer)]), tokens)
    fixed = fixed_part(state, tokens)
    return plain if plain.layers else None, fixed if fixed.layers else None


def joined(model: nn.Module, plain: Plain | None, fixed: Fixed | None) -> State:
    """A state to go on in: `plain` itself and second handles of `fixed`."""
    given = {True: iter(plain.layers if plain else ()), False: iter([_copied(layer) for layer in fixed.layers] if fixed else ())}
    return [_refilled(layer, given) for layer in new(model)]


def lengths(layers: Sequence[Any]) -> set[int]:
    """How many tokens the layers say that they hold; recurrent and unused ones do not say."""
    return {layer.offset for layer in layers if isinstance(getattr(layer, "offset", None), int) and not layer.empty()}


def can_batch(state: State) -> bool:
    """Whether every layer can share a batch with other rows."""
    return all(hasattr(layer, "merge") for layer in layers(state))


def _refilled(layer: Any, given: dict[bool, Any]) -> Any:
    if isinstance(layer, CacheList):
        return CacheList(*(_refilled(inner, given) for inner in layer.caches))
    return next(given[is_plain(layer)])


def _shorter(layer: Any, tokens: int) -> Any:
    twin = _handle(layer)
    if not layer.empty():
        twin.keys, twin.values = tree_map(lambda array: mx.contiguous(array[..., :tokens, :]), (layer.keys, layer.values))
        twin.offset = tokens
    return twin


def _copied(layer: Any) -> Any:
    return _handle(layer) if type(layer) in KNOWN else copy.deepcopy(layer)


def _kept(layer: Any, beyond: int) -> Any:
    twin = _copied(layer)
    if type(layer) not in KNOWN:
        return twin
    if isinstance(layer, ArraysCache):
        twin.cache = [array if array is None else mx.contiguous(array) for array in layer.cache]
    elif not layer.empty():
        keys, values, offset, keep, window, index = layer.state
        in_order = index == keys.shape[2] and not keep  # else it is a ring, which is no longer than its window
        end = index - beyond if in_order else keys.shape[2]
        first = max(0, end - window) if in_order else 0
        twin.state = (*(mx.contiguous(array[..., first:end, :]) for array in (keys, values)), offset - beyond, keep, window, index - beyond - first)
    return twin


def _layer_nbytes(layer: Any) -> int:
    return sum(value.nbytes for _, value in tree_flatten(layer.state) if isinstance(value, mx.array))


def _evaluated(layers: list[Any]) -> list[Any]:
    mx.eval([layer.state for layer in layers])
    return layers


def nbytes(state: State) -> int:
    """Bytes that the state's arrays take."""
    return sum(layer.nbytes for layer in state if not layer.empty())


def costs(state: State) -> tuple[float, int]:
    """Bytes a token in the plain layers, and bytes of the others once their windows are full. The state holds something."""
    token, fixed = 0.0, 0
    for layer in layers(state):
        if layer.empty():
            continue
        if is_plain(layer):
            token += layer.nbytes / _held_rows(layer.keys)
        elif isinstance(layer, RotatingKVCache):
            fixed += layer.nbytes * layer.max_size // _held_rows(layer.keys)
        else:
            fixed += _layer_nbytes(layer)
    return token, fixed


def _held_rows(keys: Any) -> int:
    return tree_flatten(keys)[0][1].shape[-2]


def attention_heads(model: nn.Module, unknown: int) -> int:
    """How many heads its attention has, as its configuration says."""
    for each in (model, getattr(model, "language_model", None)):
        heads = getattr(getattr(each, "args", None), "num_attention_heads", None)
        if isinstance(heads, int):
            return heads
    return unknown


def weights_bytes(model: nn.Module) -> int:
    """Bytes of the model's parameters."""
    return sum(array.nbytes for _, array in tree_flatten(model.parameters()))


def quantization_refusal(model: nn.Module, bits: int) -> str:
    """Why the model's caches cannot be quantized to `bits`, or "" when they can.

    Recurrent layers keep full precision beside quantized ones. A short trial finds head sizes and attention
    code that the layer kinds do not show.
    """
    state = new(model)
    kinds = {type(layer) for layer in state}
    if others := kinds - {KVCache, ArraysCache}:
        return "it has layers of kind " + ", ".join(sorted(kind.__name__ for kind in others))
    if KVCache not in kinds:
        return "it has no KV cache"
    try:
        prefill(model, state, [0, 0])
        quantize(state, bits, 0)
        prefill(model, state, [0])
    except (ValueError, TypeError, NotImplementedError, AttributeError) as error:
        return str(error)
    return "" if any(isinstance(layer, QuantizedKVCache) for layer in state) else "no layer took it"
