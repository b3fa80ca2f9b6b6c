"""From a model's name to its weights.

A name is a folder, one of the lineup, or a Hugging Face id. Whatever cannot work is a `ModelError` that says what was
tried, as early as possible: a wrong model type is found before a download, a missing file before the weights load.
Once a name is resolved, nothing asks the network any more. Tokenizers are `tokens.py`'s.
"""
from __future__ import annotations

import importlib.util
import logging
import os
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import MODEL_REMAPPING, load_model

from . import hub, tiny
from .folder import ModelError, ModelFolder, Progress, read_folder

logger = logging.getLogger(__name__)

LINEUP = {
    "tiny": "",
    "quick": "divinetribe/gemma-4-31b-it-abliterated-4bit-mlx",
    "wise": "divinetribe/Llama-3.3-70B-Instruct-abliterated-8bit-mlx",
    "beast": "mlx-community/Qwen3.5-122B-A10B-4bit",
}
"""Short names of models that are known to work; `tiny` is embedded, for a smoke test only."""

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_PATH_STARTS = ("/", "./", "../", "~")


def resolve(name: str, progress: Progress) -> Path:
    """The folder of a model, downloaded or built if need be; `progress` gets lines of text meanwhile.

    Uses MLX where `tiny` is built: call it on the thread that owns MLX. Raises `ModelError`.
    """
    if name == "tiny":
        folder = tiny.build(progress)
    else:
        folder = _local_folder(name) or hub.snapshot(_hub_id(name), _check_type, progress)
    _check_folder(read_folder(folder))
    hub.go_offline()
    return folder


def missing_bytes(name: str) -> int:
    """How much of a model is still to be downloaded (0 for `tiny`, which comes otherwise). Asks the hub. Raises `ModelError`."""
    return 0 if name == "tiny" or _local_folder(name) else hub.missing_bytes(_hub_id(name))


def _local_folder(name: str) -> Path | None:
    """The folder that `name` means, None where it must be a hub id. A missing path is a `ModelError`."""
    path = Path(name).expanduser()
    if name in LINEUP or not (path.exists() or name.startswith(_PATH_STARTS) or os.sep in name.rstrip(os.sep).partition(os.sep)[2]):
        return None
    read_folder(path)
    return path.resolve()


def _hub_id(name: str) -> str:
    repo = LINEUP.get(name, name)
    if not _HUB_ID.fullmatch(repo):
        raise ModelError(f"There is no model {name!r}: it is no folder here, no Hugging Face id (owner/name), and none of {', '.join(LINEUP)}.")
    return repo


def _check_type(folder: ModelFolder) -> None:
    """Refuse a model that mlx-lm cannot run."""
    if "model_file" in folder.config:
        raise ModelError(f"{folder.path} wants to run its own code ({folder.config['model_file']}), which this server does not do.")
    kind = folder.model_type
    if not kind:
        raise ModelError(f"{folder.path / 'config.json'} has no model_type: it describes no language model.")
    module = MODEL_REMAPPING.get(kind, kind)
    if not module.isidentifier() or importlib.util.find_spec(f"mlx_lm.models.{module}") is None:
        raise ModelError(f"The installed mlx-lm does not know the model type {kind!r} of {folder.path}.")


def _check_folder(folder: ModelFolder) -> None:
    _check_type(folder)
    if not hub.has_weights(folder.path):
        raise ModelError(f"{folder.path} lacks weights: model*.safetensors, each one that model.safetensors.index.json names.")


def load_weights(folder: Path) -> Any:
    """The model with its weights in memory. Call it on the thread that owns MLX. Raises `ModelError`."""
    start_s = time.monotonic()
    try:
        model, _ = load_model(folder, lazy=False)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        raise ModelError(f"The model in {folder} does not load: {_first_line(error)}") from error
    size_bytes = sum(value.nbytes for _, value in tree_flatten(model.parameters()) if isinstance(value, mx.array))
    kinds = ", ".join(f"{count} {kind}" for kind, count in cache_kinds(model).items())
    logger.info("loaded %s: %.1f GB in %.1f s; caches: %s", folder, size_bytes / 1e9, time.monotonic() - start_s, kinds)
    return model


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


def cache_kinds(model: Any) -> dict[str, int]:
    """How many of the model's layers have which kind of cache, by class name."""
    return dict(Counter(type(cache).__name__ for cache in make_prompt_cache(model)))
