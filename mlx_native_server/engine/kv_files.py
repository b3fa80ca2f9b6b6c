"""Parts of states as tensors and back: what `state_file.py` writes and MLX reads.

A part's layers are described by the attributes of their caches, arrays by number; a plain part can be written as a
shorter one without copying it. The engine's thread prepares the memory, and from then on writing it needs no MLX;
reading back is begun and ended here, on the engine's thread, which goes on meanwhile. Kinds of caches that are not known have no files.
"""
from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, KVCache, QuantizedKVCache, RotatingKVCache

from .kv import Fixed, Plain
from .state_file import Damaged, Tensor

KINDS = {kind.__name__: kind for kind in (KVCache, QuantizedKVCache, RotatingKVCache, ArraysCache)}
DTYPES = {mx.float32: "F32", mx.float16: "F16", mx.bfloat16: "BF16", mx.uint32: "U32", mx.int32: "I32", mx.uint8: "U8"}
"""safetensors' names."""


def described(part: Plain | Fixed, tokens: int) -> tuple[str, list[Tensor]]:
    """A part as a text and tensors over its own memory; a plain part's first `tokens` tokens. On the engine's thread.

    Raises ValueError for a kind of layer that has no files. While the tensors are held, whoever goes on in the state
    copies what it changes.
    """
    arrays: list[mx.array] = []
    layers = [_layer(layer, arrays) for layer in part.layers]
    flat = [mx.view(mx.contiguous(array).reshape(-1), mx.uint8) for array in arrays]
    mx.eval(flat)
    cut = tokens if isinstance(part, Plain) else None
    tensors = [_tensor(f"{number}", array, memoryview(memory), cut) for number, (array, memory) in enumerate(zip(arrays, flat))]
    return json.dumps(layers), tensors


def _layer(layer: Any, arrays: list[mx.array]) -> dict[str, Any]:
    if KINDS.get(type(layer).__name__) is not type(layer):
        raise ValueError(f"a {type(layer).__name__} has no files")
    return {"kind": type(layer).__name__, **{name: _numbered(value, arrays) for name, value in vars(layer).items()}}


def _numbered(value: Any, arrays: list[mx.array]) -> Any:
    if isinstance(value, mx.array):
        if value.dtype not in DTYPES:
            raise ValueError(f"arrays of {value.dtype} have no files")
        arrays.append(value)
        return {"array": len(arrays) - 1}
    if isinstance(value, (list, tuple)):
        return {type(value).__name__: [_numbered(item, arrays) for item in value]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ValueError(f"a {type(value).__name__} has no files")


def _tensor(name: str, array: mx.array, memory: memoryview, tokens: int | None) -> Tensor:
    """`tokens`: how many of the array's last axis but one are written; None is all."""
    shape = tuple(array.shape)
    if tokens is None or tokens >= shape[-2]:
        return Tensor(name, DTYPES[array.dtype], shape, (memory,))
    row_bytes = shape[-1] * array.itemsize
    head_bytes = shape[-2] * row_bytes
    pieces = (memory[head * head_bytes:head * head_bytes + tokens * row_bytes] for head in range(math.prod(shape[:-2])))
    return Tensor(name, DTYPES[array.dtype], (*shape[:-2], tokens, shape[-1]), tuple(pieces))


def load(path: Path, layers: str, tokens: int, is_plain: bool) -> Plain | Fixed:
    """A part of `tokens` tokens from its file and its description there, being read; `finish` waits for it.

    Raises `Damaged`, OSError, RuntimeError.
    """
    arrays = mx.load(str(path), stream=mx.cpu)  # beside the device's work, and four times as quick as on CUDA's stream
    try:
        made = [_made(description, arrays, tokens if is_plain else None) for description in json.loads(layers)]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Damaged(f"{path.name} does not describe its layers") from error
    mx.async_eval(list(_arrays(made)))
    return Plain(made, tokens) if is_plain else Fixed(made, tokens)


def finish(part: Plain | Fixed) -> None:
    """Wait until a part is read. Raises RuntimeError."""
    mx.eval(list(_arrays(part.layers)))


def _made(description: dict[str, Any], arrays: dict[str, mx.array], tokens: int | None) -> Any:
    kind = KINDS[description.pop("kind")]
    layer = kind.__new__(kind)
    for name, value in description.items():
        setattr(layer, name, _filled(value, arrays))
    if tokens is not None and not layer.empty():
        layer.offset = tokens  # it may have been written from a longer one
    return layer


def _filled(value: Any, arrays: dict[str, mx.array]) -> Any:
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return arrays[str(value["array"])]
    (name, items), = value.items()
    return {"list": list, "tuple": tuple}[name](_filled(item, arrays) for item in items)


def _arrays(layers: list[Any]) -> Iterator[mx.array]:
    for layer in layers:
        yield from _in(list(vars(layer).values()))


def _in(value: Any) -> Iterator[mx.array]:
    if isinstance(value, mx.array):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _in(item)
