"""The names of mlx and mlx-lm that the engine uses exist with the parameters it passes: an update that moves one fails here."""
from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.generate import (
    GenerationBatch,
    PromptProcessingBatch,
    StopSequences,
    generate_step,
    generation_stream,
    maybe_quantize_kv_cache,
)
from mlx_lm.models import cache
from mlx_lm.sample_utils import make_sampler


@pytest.mark.parametrize(("function", "parameters"), [
    (generate_step, ["prompt", "model", "max_tokens", "sampler", "prompt_cache", "kv_bits", "kv_group_size", "quantized_kv_start"]),
    (PromptProcessingBatch.__init__, ["model", "uids", "caches", "tokens", "samplers", "logits_processors", "stop_sequences", "max_tokens"]),
    (PromptProcessingBatch.generate, ["tokens"]),
    (GenerationBatch.extend, ["batch"]),
    (GenerationBatch.filter, ["keep"]),
    (GenerationBatch.next, []),
    (GenerationBatch.extract_cache, ["idx"]),
    (StopSequences.__init__, ["stop_sequences"]),
    (maybe_quantize_kv_cache, ["prompt_cache", "quantized_kv_start", "kv_group_size", "kv_bits"]),
    (make_sampler, ["temp", "top_p", "top_k"]),
    (cache.make_prompt_cache, ["model"]),
    (cache.can_trim_prompt_cache, ["cache"]),
    (cache.trim_prompt_cache, ["cache", "num_tokens"]),
])
def test_function(function: Callable[..., Any], parameters: list[str]) -> None:
    known = inspect.signature(function).parameters
    assert [name for name in parameters if name not in known] == []


def test_quantizing_takes_its_arguments_in_the_order_we_pass_them() -> None:
    assert list(inspect.signature(maybe_quantize_kv_cache).parameters) == ["prompt_cache", "quantized_kv_start", "kv_group_size", "kv_bits"]


@pytest.mark.parametrize("field", ["uid", "token", "finish_reason", "prompt_cache", "all_tokens"])
def test_a_batch_response_has(field: str) -> None:
    assert field in GenerationBatch.Response.__dataclass_fields__


@pytest.mark.parametrize("kind", [cache.KVCache, cache.RotatingKVCache, cache.ArraysCache, cache.QuantizedKVCache, cache.CacheList])
@pytest.mark.parametrize("name", ["state", "nbytes", "is_trimmable", "empty"])
def test_a_layer_cache_has(kind: type, name: str) -> None:
    assert hasattr(kind, name)


@pytest.mark.parametrize("name", ["set_cache_limit", "set_wired_limit", "get_active_memory", "get_cache_memory", "get_peak_memory",
                                  "reset_peak_memory", "clear_cache", "clear_streams", "device_info", "default_device"])
def test_mlx_has(name: str) -> None:
    assert callable(getattr(mx, name))


def test_the_generation_stream_is_one_of_the_thread_that_uses_it() -> None:
    assert isinstance(generation_stream, mx.ThreadLocalStream)
