"""Which model for how much memory: the one table that set-up, the doctor and the README follow.

A model fits when its weights leave room for a conversation of some 64,000 tokens within what Metal may use, which is
two thirds of a small Mac's memory and three quarters of a large one's. Sizes are what is downloaded. What a publisher
says on the model's own page counts more than the licence named here.
"""
from __future__ import annotations

from dataclasses import dataclass

SMALLEST_GB = 8


@dataclass(frozen=True)
class Choice:
    """`memory_gb`: from how much memory on it is the one to take. `dialect` and `caches`: what the server will meet."""

    memory_gb: int
    repo: str
    size_gb: float
    licence: str
    dialect: str
    caches: str
    note: str


HYBRID = "KVCache, ArraysCache"
SLIDING = "KVCache, RotatingKVCache"
CHOICES = (
    Choice(SMALLEST_GB, "mlx-community/Qwen3.5-4B-MLX-4bit", 3.0, "Apache-2.0", "qwen_xml", HYBRID, "for small edits; poor as an agent"),
    Choice(16, "mlx-community/Qwen3.5-9B-4bit", 6.0, "Apache-2.0", "qwen_xml", HYBRID, "the least that works as an agent"),
    Choice(32, "mlx-community/gemma-4-12B-it-4bit", 7.0, "Gemma or Apache-2.0, see its page", "gemma4", SLIDING, "leaves a 32 GB Mac room to work"),
    Choice(36, "mlx-community/Qwen3.6-35B-A3B-4bit", 20.4, "Apache-2.0", "qwen_xml", HYBRID, "fast: 3B of its 35B work on each token"),
    Choice(64, "mlx-community/Qwen3-Coder-Next-4bit", 45.0, "Apache-2.0", "qwen_xml", HYBRID, "made for code; 64 GB is its least"),
    Choice(96, "mlx-community/Qwen3.5-122B-A10B-4bit", 68.0, "Apache-2.0", "qwen_xml", HYBRID, "the best of this table"),
)


def choose(memory_gb: float, has_gpu: bool = True) -> Choice | None:
    """The model for a machine; None (which means `tiny`) where it has too little memory, or only a CPU.

    A machine sold with 16 GB reports a little less or more: half a gigabyte is forgiven.
    """
    fitting = [choice for choice in CHOICES if has_gpu and choice.memory_gb <= memory_gb + 0.5]
    return fitting[-1] if fitting else None


def about(repo: str) -> Choice | None:
    """The table's row for a model."""
    return next((choice for choice in CHOICES if choice.repo == repo), None)
