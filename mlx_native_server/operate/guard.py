"""What keeps a service manager from doing harm again and again.

A Mac that crashes whenever the model loads would do so at each login. Before the model loads a mark is left, and taken away when the model is there. A start that finds the mark of another
boot knows that the machine went down while loading; the second time it does not load.
"""
from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from pathlib import Path

from ..config import EXIT_CONFIG
from .machine import Run, run

logger = logging.getLogger(__name__)

FILE = "loading.json"
MOST = 2
"""So many machine restarts in the middle of loading, one after another, are enough."""
REASON = (
    "this machine restarted twice while the model was loading, so the model is not loaded; "
    "try a smaller model, or MLX_WIRED_LIMIT_GB=0, then run  mlx-native-server restart"
)


def exit_status(status: int, env: Mapping[str, str]) -> int:
    """launchd starts anew whatever does not end with 0, so it gets 0 for what a restart cannot mend; systemd heeds 78."""
    if status == EXIT_CONFIG and "INVOCATION_ID" not in env:
        logger.warning("a restart cannot mend this: the service stays down until it is started")
        return 0
    return status


def boot_id(run: Run = run, platform: str = sys.platform) -> str:
    """What is the same until the machine starts anew; empty where it cannot be known."""
    if platform == "darwin":
        return run(["sysctl", "-n", "kern.bootsessionuuid"]) or run(["sysctl", "-n", "kern.boottime"]).partition(",")[0]
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def begin(state: Path, boot: str) -> bool:
    """Leave the mark that loading begins; False when it should not. Raises OSError."""
    mark = _read(state / FILE)
    restarts = mark.get("restarts", 0) if isinstance(mark.get("restarts"), int) else 0
    if mark.get("boot") not in (None, boot):
        restarts += 1
    state.mkdir(parents=True, exist_ok=True)
    (state / FILE).write_text(json.dumps({"boot": boot, "restarts": restarts}) + "\n", encoding="utf-8")
    return restarts < MOST


def clear(state: Path) -> None:
    """Loading has ended well, or a person wants another try."""
    (state / FILE).unlink(missing_ok=True)


def _read(path: Path) -> dict[str, object]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
