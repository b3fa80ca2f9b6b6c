"""A model folder's JSON files, read once and plainly.

Weights, tokenizer and template are read elsewhere; nothing here imports MLX. Facts that a file leaves out or
has in an unusable form fall back to a value that works, and say so in the log.
"""
from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..protocol import Sampling

logger = logging.getLogger(__name__)

DEFAULT_CONTEXT_TOKENS = 32768
_LARGEST_COUNT = 16 * 1024 * 1024  # tokenizers without a limit say 10**30
_CONTEXT_KEYS = ("max_position_embeddings", "max_sequence_length", "seq_length", "max_seq_len", "n_positions", "n_ctx")


Progress = Callable[[str], None]
"""Takes lines of text while a model is got."""


class ModelError(Exception):
    """A model that is not there or does not load. The message says what was tried; trying again cannot help."""


def _read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises OSError and ValueError."""
    value = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def _is_count(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= _LARGEST_COUNT


@dataclass(frozen=True)
class ModelFolder:
    """`config`, `generation` and `tokenizer` are config.json, generation_config.json and tokenizer_config.json."""

    path: Path
    config: Mapping[str, Any]
    generation: Mapping[str, Any]
    tokenizer: Mapping[str, Any]

    @property
    def text_config(self) -> Mapping[str, Any]:
        """The language model's own part, where the config also describes vision or audio."""
        nested = self.config.get("text_config")
        return nested if isinstance(nested, dict) else {}

    def _value(self, key: str) -> Any:
        """A fact of the language model; its own part of the config counts first."""
        return self.text_config.get(key, self.config.get(key))

    @property
    def model_type(self) -> str:
        """mlx-lm's name of the architecture; empty where the config has none."""
        return str(self.config.get("model_type", ""))

    @property
    def context_tokens(self) -> int:
        """The window in tokens."""
        for value in [*map(self._value, _CONTEXT_KEYS), self.tokenizer.get("model_max_length")]:
            if _is_count(value):
                return int(value)
        logger.warning("%s does not say how long a prompt may be: %d tokens are assumed", self.path, DEFAULT_CONTEXT_TOKENS)
        return DEFAULT_CONTEXT_TOKENS

    @property
    def vocab_size(self) -> int | None:
        """Rows of the output layer, padding included; None where the config does not say."""
        value = self._value("vocab_size")
        return int(value) if _is_count(value) else None

    @property
    def stop_ids(self) -> frozenset[int]:
        """The end tokens that config.json and generation_config.json name; each may be an id or a list."""
        return frozenset(i for source in (self.config, self.text_config, self.generation) for i in _ids(source.get("eos_token_id")))

    @property
    def sampling(self) -> Sampling:
        """What the publisher recommends; temperature 1 where nothing is said."""
        values = {key: self.generation.get(key) for key in ("temperature", "top_p", "top_k")}
        numbers = {key: value for key, value in values.items() if isinstance(value, (int, float)) and not isinstance(value, bool)}
        temperature, top_p, top_k = numbers.get("temperature", 1.0), numbers.get("top_p", 1.0), numbers.get("top_k", 0)
        return Sampling(max(0.0, float(temperature)), float(top_p) if 0 < top_p <= 1 else 1.0, max(0, int(top_k)))


def _ids(value: Any) -> Iterator[int]:
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, int) and not isinstance(item, bool) and item >= 0:
            yield item


def _read_optional(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        return _read_object(path)
    except (OSError, ValueError) as error:
        logger.warning("%s is ignored: %s", path, error)
        return {}


def read_folder(path: Path) -> ModelFolder:
    """Read a model folder. Raises `ModelError` where it or its config.json is missing or unreadable."""
    if not path.is_dir():
        what = "is a file, not a folder" if path.exists() else "does not exist"
        raise ModelError(f"The model folder {path} {what}.")
    try:
        config = _read_object(path / "config.json")
    except FileNotFoundError:
        raise ModelError(f"The folder {path} has no config.json: it holds no MLX model.") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path / 'config.json'} cannot be read: {error}.") from error
    return ModelFolder(path, config, _read_optional(path / "generation_config.json"), _read_optional(path / "tokenizer_config.json"))
