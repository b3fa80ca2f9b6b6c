"""Where everything of an installation lives on this machine, for one user.

Paths follow from `HOME` (and the XDG variables on Linux) alone, so a scratch `HOME` moves all of it. `setup.sh` knows
the first two as well, since it works before there is a Python.
"""
from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

NAME = "mlx-native-server"
LABEL = "com.mlx-native-server"
"""The service's name for launchd."""


@dataclass(frozen=True)
class Places:
    """`prefix` holds the environment and what install remembers; `unit` is the service's plist or systemd unit."""

    prefix: Path
    bin: Path
    settings: Path
    logs: Path
    state: Path
    unit: Path

    @property
    def server_log(self) -> Path:
        """What the server says when it runs in the background."""
        return self.logs / "server.log"

    @property
    def crash_log(self) -> Path:
        """What the process wrote past its log: traces of a crash."""
        return self.logs / "crash.log"

    @property
    def running(self) -> Path:
        """Who runs in the background: written by the server, see `running.py`."""
        return self.state / "running.json"


def places(env: Mapping[str, str], platform: str = sys.platform) -> Places:
    """The places for the user whose home directory `env` names. `platform` is as in `sys.platform`."""
    home = Path(env.get("HOME") or Path.home())
    prefix, settings = home / ".local" / NAME, home / ".config" / NAME / "env"
    if platform == "darwin":
        library = home / "Library"
        logs, state = library / "Logs" / NAME, library / "Application Support" / NAME
        return Places(prefix, home / ".local" / "bin", settings, logs, state, library / "LaunchAgents" / f"{LABEL}.plist")
    state = Path(env.get("XDG_STATE_HOME") or home / ".local" / "state") / NAME
    config = Path(env.get("XDG_CONFIG_HOME") or home / ".config")
    return Places(prefix, home / ".local" / "bin", settings, state / "logs", state, config / "systemd" / "user" / f"{NAME}.service")
