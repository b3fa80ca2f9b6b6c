"""A server in the background without a service manager: started in a session of its own, stopped by its record."""
from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from . import running
from .places import Places

STOP_S = 15.0
ROOT = Path(__file__).resolve().parents[2]
"""Python finds this package from here, whether it is installed or not."""


def start(places: Places, env: Mapping[str, str], python: str = sys.executable) -> Callable[[], bool]:
    """Start a server with these variables; returns whether it still lives, as a function. Raises OSError."""
    for folder in (places.logs, places.state):
        folder.mkdir(parents=True, exist_ok=True)
    with places.crash_log.open("ab") as crash:
        process = subprocess.Popen(
            [python, "-m", "mlx_native_server", "serve", "--service"], cwd=ROOT, env=dict(env),
            stdin=subprocess.DEVNULL, stdout=crash, stderr=crash, start_new_session=True)  # fmt: skip
    return lambda: process.poll() is None


def stop(record_file: Path, pause: Callable[[float], None] = time.sleep) -> bool:
    """Stop the server of the record, the hard way after `STOP_S` seconds; False where there is none."""
    record = running.read(record_file)
    if record is None or not running.is_server(record.pid):
        record_file.unlink(missing_ok=True)
        return False
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(record.pid, number)
        for _ in range(int(STOP_S * 10)):
            if not running.is_server(record.pid):
                record_file.unlink(missing_ok=True)
                return True
            pause(0.1)
    return False
