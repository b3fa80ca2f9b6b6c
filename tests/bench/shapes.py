"""Models with the shape of real ones and random weights: only their speed and memory mean anything.

Each has a tokenizer and a chat template of its family (`tiny_models`), whose vocabulary is far smaller than the model's.
So a generated id may have no text there; the benchmark brings a detokenizer that has one for every id.
"""
from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn

import paths  # noqa: F401  (the import path)
import tiny_models

GROUP_SIZE = 64


@dataclass(frozen=True)
class Shape:
    """`family`: whose tokenizer and template; `module`: the model file of mlx-lm; `arguments`: its `ModelArgs`.

    `bits` 0 is float32, which a CPU is quicker with.
    """

    family: str
    module: str
    arguments: dict[str, Any]
    bits: int = 4


_GEMMA4 = dict(num_kv_shared_layers=0, hidden_size_per_layer_input=0, use_double_wide_mlp=False, attention_k_eq_v=True)
_QWEN3 = dict(model_type="qwen3", rms_norm_eps=1e-6, max_position_embeddings=40960, rope_theta=1e6, tie_word_embeddings=False)

SHAPES = {
    "gemma4-31b": Shape("gemma4", "gemma4_text", dict(
        _GEMMA4, hidden_size=5376, num_hidden_layers=60, intermediate_size=21504, num_attention_heads=32, head_dim=256, global_head_dim=512,
        num_key_value_heads=16, num_global_key_value_heads=4, vocab_size=262144, vocab_size_per_layer_input=262144, sliding_window=1024,
        sliding_window_pattern=6)),
    "qwen3-8b": Shape("qwen3", "qwen3", dict(
        _QWEN3, hidden_size=4096, num_hidden_layers=36, intermediate_size=12288, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
        vocab_size=151936)),
    "gemma4-small": Shape("gemma4", "gemma4_text", dict(
        _GEMMA4, hidden_size=128, num_hidden_layers=6, intermediate_size=256, num_attention_heads=4, head_dim=64, global_head_dim=64,
        num_key_value_heads=2, num_global_key_value_heads=1, vocab_size=1024, vocab_size_per_layer_input=1024, sliding_window=64,
        sliding_window_pattern=3), bits=0),
    "qwen3-small": Shape("qwen3", "qwen3", dict(
        _QWEN3, hidden_size=128, num_hidden_layers=2, intermediate_size=256, num_attention_heads=4, num_key_value_heads=2, head_dim=64,
        vocab_size=1024), bits=0),
}
"""The small ones show that the benchmark runs."""


def build(shape: Shape) -> nn.Module:
    """The model, evaluated; the same weights each time. Call it on the thread that owns MLX."""
    module = importlib.import_module(f"mlx_lm.models.{shape.module}")
    mx.random.seed(0)
    model = module.Model(module.ModelArgs(**shape.arguments))
    if shape.bits:
        model.set_dtype(mx.bfloat16)
        # nothing is computed before the end, and then layer by layer: the bfloat16 weights never all exist at once
        nn.quantize(model, group_size=GROUP_SIZE, bits=shape.bits, class_predicate=lambda path, layer: hasattr(layer, "to_quantized"))
    mx.eval(model.parameters())
    mx.clear_cache()
    return model


def write_tokenizer(shape: Shape, folder: Path) -> Path:
    """The tokenizer's folder, without weights."""
    return tiny_models.build_tokenizer_only(shape.family, folder)
