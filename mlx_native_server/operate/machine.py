"""What this computer is: system, chip, memory, disk. Read from the system's own tools, with nothing installed.

A fact that cannot be had is empty or 0, and nothing here takes longer than a few seconds. On a Mac only real programs
are run, never those that open Apple's install dialog when the Command Line Tools are missing.
"""
from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..engine.memory import GIB, system_bytes

Run = Callable[[Sequence[str]], str]
"""Runs a program and returns what it printed; empty where it is not there, fails or takes too long."""
WAIT_S = 5.0


def run(command: Sequence[str]) -> str:
    """See `Run`."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=WAIT_S, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


@dataclass(frozen=True)
class Machine:
    """Memory and disk in GB of 1024³ bytes. `wired_limit_mb`: Metal's limit where somebody has set it, else 0.

    `translated`: this process runs under Rosetta. `gpu_gb`: memory of an NVIDIA GPU.
    """

    system: str
    version: str
    chip: str
    cores: int
    memory_gb: float
    gpu: str = ""
    gpu_gb: float = 0.0
    wired_limit_mb: int = 0
    translated: bool = False

    @property
    def is_mac(self) -> bool:
        """Whether this is macOS."""
        return self.system == "macOS"

    @property
    def model_memory_gb(self) -> float:
        """The memory that a model has to fit in by the table of models."""
        return self.gpu_gb or self.memory_gb

    @property
    def has_gpu(self) -> bool:
        """Whether MLX would compute on a GPU."""
        return self.is_mac or bool(self.gpu)


def look(run: Run = run, system: str = sys.platform) -> Machine:
    """The machine that this runs on."""
    if system == "darwin":
        return _mac(run)
    gpu, gpu_gb = _nvidia(run)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0
    return Machine("Linux", _linux_name(), _cpu_name(), cores, system_bytes() / GIB, gpu, gpu_gb)


def _mac(run: Run) -> Machine:
    def sysctl(name: str) -> str:
        return run(["sysctl", "-n", name])

    return Machine(
        system="macOS", version=run(["sw_vers", "-productVersion"]), chip=sysctl("machdep.cpu.brand_string"),
        cores=_number(sysctl("hw.ncpu")), memory_gb=_number(sysctl("hw.memsize")) / GIB,
        wired_limit_mb=_number(sysctl("iogpu.wired_limit_mb")), translated=sysctl("sysctl.proc_translated") == "1",
    )  # fmt: skip


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _nvidia(run: Run) -> tuple[str, float]:
    """Name and memory of the first GPU, where the driver answers."""
    first = (run(["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]).splitlines() or [""])[0]
    name, _, memory_mib = first.rpartition(",")
    return (name.strip(), _number(memory_mib.strip()) / 1024) if name else ("", 0.0)


def _linux_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return platform.release()


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def disk_free_gb(folder: Path) -> float:
    """Free room on the disk that holds `folder`, or would hold it once it is made."""
    volume = next(place for place in (folder, *folder.parents) if place.exists())
    return shutil.disk_usage(volume).free / GIB
