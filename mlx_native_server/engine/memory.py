"""What memory is held, and how much MLX may take: arithmetic on bytes, and the process's own footprint.

The functions take numbers and return numbers; the one exception is `resident_bytes`, which asks the operating
system without starting a process. Figures that only MLX knows are passed in by the engine.
"""
from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

GIB = 1024**3
"""Bytes in what settings and `/health` call a GB."""

WORKING_BYTES = 2 * GIB
"""Room for activations beside weights and KV, when the wired limit is chosen."""
LEFT_FOR_OTHERS_BYTES = 8 * GIB
LEFT_FOR_OTHERS_SHARE = 0.25
PROMPT_CACHE_SHARE = 0.4
"""Of what the weights and the working room leave, when the size of the prompt cache is chosen."""
CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_RUSAGE_V4 = 4
_RESIDENT_OFFSET = 64
"""Of `ri_resident_size` in macOS's `struct rusage_info_v4` (XNU, bsd/sys/resource.h)."""


def gb(size_bytes: float) -> float:
    """Bytes as gigabytes with one decimal, as `/health` shows them."""
    return round(size_bytes / GIB, 1)


def resident_bytes() -> int:
    """The process's resident size in bytes; 0 where the system does not tell. Metal buffers may not be in it."""
    if sys.platform == "darwin":
        return _resident_bytes_macos()
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _resident_bytes_macos() -> int:
    library = ctypes.CDLL("/usr/lib/libSystem.B.dylib")
    buffer = ctypes.create_string_buffer(512)
    if library.proc_pid_rusage(ctypes.c_int(os.getpid()), ctypes.c_int(_RUSAGE_V4), buffer):
        return 0
    return int.from_bytes(buffer.raw[_RESIDENT_OFFSET:_RESIDENT_OFFSET + 8], sys.byteorder)


def system_bytes() -> int:
    """Memory that this process may take: the machine's, or its container's (cgroup) where that is less. 0 where unknown."""
    try:
        sizes_bytes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    except (OSError, ValueError):
        return 0
    for name in CGROUP_LIMITS:
        try:
            sizes_bytes.append(int(Path(name).read_text()))
        except (OSError, ValueError):  # there is none, or its limit is "max"
            continue
    return min(sizes_bytes)


def prompt_cache_bytes(asked_gb: float | None, limit_bytes: int, weights_bytes: int) -> int:
    """The budget for kept states. `asked_gb` is the setting (0 keeps none, None chooses); `limit_bytes` is all that MLX may take."""
    if asked_gb is not None:
        return int(asked_gb * GIB)
    return int(PROMPT_CACHE_SHARE * max(0, limit_bytes - weights_bytes - WORKING_BYTES))


def wired_limit_bytes(asked_gb: float | None, working_set_bytes: int, weights_bytes: int, kv_bytes: int, ram_bytes: int) -> int:
    """How much memory Metal should keep wired; 0 wires nothing.

    `asked_gb` is the setting (0 is off, None chooses). Chosen: weights, KV budget and working room, within
    Metal's working set; nothing where that would leave the rest of the system too little, since a Mac whose
    memory is wired away freezes.
    """
    if asked_gb is not None:
        return min(int(asked_gb * GIB), working_set_bytes)
    wanted = min(working_set_bytes, weights_bytes + kv_bytes + WORKING_BYTES)
    left = ram_bytes - wanted
    return 0 if left < max(LEFT_FOR_OTHERS_BYTES, LEFT_FOR_OTHERS_SHARE * ram_bytes) else wanted
