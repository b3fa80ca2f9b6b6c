"""The system's OpenBLAS, loaded before MLX on Linux without a GPU.

The CPU build of MLX links a reference BLAS whose float32 products are about ten times slower. A library that
is loaded first with its symbols made global takes its place. So this must run before the first `import mlx`,
and this file imports nothing but the standard library.
"""
from __future__ import annotations

import ctypes
import sys
from importlib import metadata

_LIBRARY = "libopenblas.so.0"


def _is_cpu_build() -> bool:
    """Whether the installed MLX computes on a Linux CPU."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        metadata.distribution("mlx-cpu")
    except metadata.PackageNotFoundError:
        return False
    return True


def preload_blas() -> str | None:
    """Load OpenBLAS where it helps. Returns a line for the log when it is missing, else None."""
    if not _is_cpu_build():
        return None
    try:
        ctypes.CDLL(_LIBRARY, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return f"{_LIBRARY} is not installed: answers take about ten times as long on this CPU (Debian, Ubuntu: apt install libopenblas0-pthread)"
    return None
