"""The device MLX runs on: its limits, its memory figures, and whether it still works after a failure.

Only the engine's thread changes anything here; `figures_gb` may be called from any thread and does not wait.
"""
from __future__ import annotations

import logging
import os
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx

from . import memory

logger = logging.getLogger(__name__)


def on_cpu() -> bool:
    """Whether MLX computes on the CPU, where the limits below mean nothing."""
    return mx.default_device() == mx.Device(mx.cpu)


def compiles_kernels() -> bool:
    """Whether MLX compiles kernels when they are first used: on CUDA, up to a minute for each."""
    return not on_cpu() and not mx.metal.is_available()


def keep_kernels(folder: Path) -> None:
    """Have compiled kernels kept in `folder` and not among temporary files, unless the environment says where. Before the first use of MLX."""
    os.environ.setdefault("MLX_PTX_CACHE_DIR", str(folder / version("mlx")))


def limit_bytes() -> int:
    """All the memory that MLX may take: Metal's working set, the GPU's memory, or what the system has for a process."""
    info = {} if on_cpu() else mx.device_info()
    known = info.get("max_recommended_working_set_size") or info.get("total_memory") or info.get("memory_size")
    return int(known or memory.system_bytes())


def set_limits(cache_limit_gb: float, wired_limit_gb: float | None, weights_bytes: int, kv_bytes: int) -> None:
    """Cap the free-buffer cache (0 leaves it) and, on Metal, wire memory (0 is off, None chooses)."""
    if cache_limit_gb and not on_cpu():
        mx.set_cache_limit(int(cache_limit_gb * memory.GIB))
        logger.info("free-buffer cache: at most %.1f GB", cache_limit_gb)
    if not mx.metal.is_available() or on_cpu():
        return
    info = mx.device_info()
    limit_bytes = memory.wired_limit_bytes(
        wired_limit_gb, info["max_recommended_working_set_size"], weights_bytes, kv_bytes, info["memory_size"])
    # Never called for 0: Macs that panic under load do so only once the limit was set.
    if limit_bytes:
        mx.set_wired_limit(limit_bytes)
    logger.info("wired memory: %.1f GB", limit_bytes / memory.GIB)


def figures_gb(peak_bytes: int) -> dict[str, float]:
    """Memory now, for `/health`, in GB. `peak_bytes` is the highest that `take_peak` has returned so far."""
    figures_bytes = {
        "rss_gb": memory.resident_bytes(),
        "mx_active_gb": mx.get_active_memory(),
        "mx_cache_gb": mx.get_cache_memory(),
        "mx_peak_gb": max(peak_bytes, mx.get_peak_memory()),
    }
    return {name: memory.gb(size_bytes) for name, size_bytes in figures_bytes.items()}


def active_bytes() -> int:
    """Memory that arrays take now, in bytes."""
    return mx.get_active_memory()


def take_peak() -> int:
    """The highest active memory since the last call, in bytes."""
    peak_bytes = mx.get_peak_memory()
    mx.reset_peak_memory()
    return peak_bytes


def release() -> int:
    """Give free buffers back to the system; returns how many bytes."""
    cached_bytes = mx.get_cache_memory()
    mx.clear_cache()
    return cached_bytes - mx.get_cache_memory()


def is_device_error(error: BaseException) -> bool:
    """Whether a Metal command buffer failed. Any array that was in flight may then be zeros, whoever it belongs to."""
    return isinstance(error, RuntimeError) and "[METAL]" in str(error)


def is_memory_error(error: BaseException) -> bool:
    """Whether memory was asked for that there is not; nothing was computed then, and what there was is as before."""
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in ("malloc", "allocate", "out of memory"))


def is_usable_after(error: BaseException) -> bool:
    """Whether the device computes after a device error. Code 4 means that the driver refuses this process for good."""
    return "00000004" not in str(error) and mx.sum(mx.ones(1024)).item() == 1024
