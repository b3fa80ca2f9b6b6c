"""A loaded model, as far as the engine needs to know it."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.nn as nn


@dataclass(frozen=True)
class Loaded:
    """What the engine needs of a model.

    `detokenizer` makes a streaming detokenizer for one answer, from its first token on.
    `stop_ids` end an answer and have no text. `vocab_size`: ids from there on would read garbage.
    `states`: the folder for states on disk, which is this model's alone; None keeps none there.
    """

    model: nn.Module
    detokenizer: Callable[[], Any]
    stop_ids: frozenset[int]
    vocab_size: int
    states: Path | None = None
