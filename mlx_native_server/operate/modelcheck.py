"""What a model's files say, without its weights in memory: for the doctor. Nothing is downloaded."""
from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..engine import device, memory
from ..models import hub, loading as models, tiny, tokens
from ..models.folder import read_folder

_FULL = "full_attention"


@dataclass(frozen=True)
class Found:
    """A complete model. GB are 1024³ bytes; `limit_gb` is what MLX may take, `fitting_tokens` what fits beside the weights."""

    path: Path
    model_type: str
    weights_gb: float
    quantization: str
    layers: str
    dialect: str
    takes_tools: bool
    context_tokens: int
    fitting_tokens: int
    limit_gb: float
    vocab_size: int


def missing_gb(name: str) -> float:
    """How many GB of a model are still to be downloaded, by what the hub says. Raises `ModelError`."""
    return models.missing_bytes(name) / memory.GIB


def look(name: str) -> Found | None:
    """The model of that name, None where it is `tiny` and not there yet. Raises `ModelError`."""
    if name == "tiny" and not tiny.folder().is_dir():
        return None
    hub.go_offline()
    path = models.resolve(name, lambda line: None)
    folder, tokenizer = read_folder(path), tokens.load_tokenizer(path)
    config = {**folder.config, **folder.text_config}
    weights_bytes, limit_bytes = sum(file.stat().st_size for file in path.glob("model*.safetensors")), device.limit_bytes()
    bits = (folder.config.get("quantization") or {}).get("bits")
    kinds = layer_kinds(config)
    return Found(
        path=path, model_type=folder.model_type, weights_gb=weights_bytes / memory.GIB, quantization=f"{bits} bits" if bits else "not quantized",
        layers=", ".join(f"{count} {kind}" for kind, count in kinds.items()), dialect=tokenizer.traits.dialect, takes_tools=tokenizer.traits.tools,
        context_tokens=tokenizer.context_tokens, fitting_tokens=fitting_tokens(config, limit_bytes - weights_bytes - memory.WORKING_BYTES),
        limit_gb=limit_bytes / memory.GIB, vocab_size=tokenizer.vocab_size,
    )  # fmt: skip


def layer_kinds(config: Mapping[str, Any]) -> dict[str, int]:
    """How many layers have which kind of attention; all are full where the config does not tell."""
    kinds, count = config.get("layer_types"), int(config.get("num_hidden_layers") or 0)
    if isinstance(kinds, list) and kinds:
        return dict(Counter(map(str, kinds)))
    every = config.get("full_attention_interval")
    if isinstance(every, int) and every > 1:
        return {"linear_attention": count - count // every, _FULL: count // every}
    return {_FULL: count}


def fitting_tokens(config: Mapping[str, Any], free_bytes: float) -> int:
    """How long a conversation fits: only layers with full attention grow with it. Two bytes a value."""
    heads = int(config.get("num_key_value_heads") or config.get("num_attention_heads") or 0)
    width = int(config.get("head_dim") or int(config.get("hidden_size") or 0) // max(1, int(config.get("num_attention_heads") or 1)))
    token_bytes = layer_kinds(config).get(_FULL, 0) * heads * width * 2 * 2
    return max(0, int(free_bytes / token_bytes)) if token_bytes else 2**31
