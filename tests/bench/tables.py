"""What the benchmarks print: one Markdown table under one line that says on what machine it was measured."""
from __future__ import annotations

import ctypes
import math
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

OPENBLAS = "libopenblas.so.0"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def seconds(value_s: float) -> str:
    """A duration with two places, more for short ones."""
    return "never" if math.isinf(value_s) else f"{value_s:.2f} s" if value_s >= 0.1 else f"{value_s * 1000:.0f} ms"


def median(values: Sequence[float]) -> float:
    """The middle value (the upper one of two), so that it is one that was measured. NaN where there is none."""
    return sorted(values)[len(values) // 2] if values else math.nan


def share(values: Sequence[float], part: float) -> float:
    """The value that `part` of the values do not exceed. NaN where there is none."""
    return sorted(values)[max(0, math.ceil(part * len(values)) - 1)] if values else math.nan


def middle_and_worst(values_s: Sequence[float]) -> str:
    """`median (worst)` of some durations; only that one where there is one."""
    if len(values_s) < 2:
        return seconds(values_s[0]) if values_s else "-"
    return f"{seconds(median(values_s))} ({seconds(max(values_s))})"


# ── the machine ──────────────────────────────────────────────────────────────────────────────────


def _said(*command: str) -> str:
    """What a program prints, "" where it is not there or fails."""
    if not shutil.which(command[0]):
        return ""
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=20)
    return done.stdout.strip() if done.returncode == 0 else ""


def _processor() -> str:
    if sys.platform == "darwin":
        return _said("sysctl", "-n", "machdep.cpu.brand_string")
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M) if Path("/proc/cpuinfo").exists() else None
    return found[1].strip() if found else platform.machine()


def _memory_gb() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3


def _version(package: str) -> str:
    try:
        return f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return f"{package} (unknown version)"


def is_cpu_build() -> bool:
    """Whether MLX computes on a Linux CPU, where a fast BLAS has to be loaded in front of it."""
    return sys.platform.startswith("linux") and "unknown" not in _version("mlx-cpu")


def has_openblas() -> bool:
    """Whether OpenBLAS can be loaded."""
    try:
        ctypes.CDLL(OPENBLAS)
    except OSError:
        return False
    return True


def machine() -> str:
    """The line under which numbers mean something: processor, memory, GPU, versions."""
    gpus = _said("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader").replace("\n", "; ")
    device = gpus or ("its GPU" if sys.platform == "darwin" else "no GPU")
    blas = (["OpenBLAS"] if has_openblas() else ["no OpenBLAS"]) if is_cpu_build() and not gpus else []
    parts = [f"{os.cpu_count()} cores of {_processor()}", f"{_memory_gb():.0f} GB of memory", device,
             f"{platform.system()} {platform.machine()}", f"Python {platform.python_version()}", _version("mlx"), _version("mlx-lm"), *blas]
    return ", ".join(parts)
