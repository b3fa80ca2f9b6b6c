"""What a Mac does behind a service's back: folders that it may not read, and crashes of the whole machine.

A terminal may read those folders, so a model that was tried by hand is not found by the service.
"""
from __future__ import annotations

import time
from pathlib import Path

KEPT = {
    "Desktop": "the Desktop", "Documents": "Documents", "Downloads": "Downloads",
    "Library/Mobile Documents": "iCloud Drive", "Library/CloudStorage": "a cloud's folder",
}  # fmt: skip
VOLUMES = Path("/Volumes")
REPORTS = Path("/Library/Logs/DiagnosticReports")
RECENT_S = 30 * 86_400
READ_BYTES = 1_000_000


def kept_from_services(path: Path, home: Path) -> str:
    """The place that holds `path` and that macOS lets no service read; empty where it may."""
    path = path.expanduser().resolve()
    for folder, name in KEPT.items():
        if path.is_relative_to((home / folder).resolve()):
            return name
    return "an external disk" if path.is_relative_to(VOLUMES) else ""


def gpu_panics(now_s: float | None = None) -> list[str]:
    """Names of recent reports of a crash of the whole Mac that name the GPU's driver, newest first."""
    since_s = (time.time() if now_s is None else now_s) - RECENT_S
    found = [(path.stat().st_mtime, path) for path in REPORTS.glob("*panic*") if path.is_file()] if REPORTS.is_dir() else []
    return [path.name for time_s, path in sorted(found, reverse=True) if time_s >= since_s and _names_gpu(path)]


def _names_gpu(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return b"IOGPU" in file.read(READ_BYTES)
    except OSError:
        return False
