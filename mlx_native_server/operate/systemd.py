"""systemd's user manager: the twin of `launchd.py` on Linux, with the same names.

systemctl waits until it is done, so nothing is polled here.
"""
from __future__ import annotations

from pathlib import Path

from .launchd import ServiceError, call
from .places import NAME, Places

UNIT = f"{NAME}.service"


def quoted(value: object) -> str:
    """A word of a unit file: quoted, with systemd's own signs taken literally."""
    text = str(value).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{text}"'


class Systemd:
    """The service of this user."""

    name = "systemd"

    def __init__(self, places: Places):
        self._places = places

    @property
    def is_installed(self) -> bool:
        """Whether the unit file is there."""
        return self._places.unit.exists()

    def install(self, template: str, python: Path, path: str) -> bool:
        """Write the unit and enable it; returns whether it changed. Raises `ServiceError`, OSError."""
        places = self._places
        if (said := self._trouble()):
            raise ServiceError(said)
        for folder in (places.logs, places.state, places.unit.parent):
            folder.mkdir(parents=True, exist_ok=True)
        words = {"PYTHON": quoted(python), "PATH": quoted(f"PATH={path}"), "CRASH_LOG": str(places.crash_log).replace("%", "%%")}
        for name, value in words.items():
            template = template.replace("{{" + name + "}}", value)
        if self.is_installed and places.unit.read_text(encoding="utf-8") == template:
            return False
        new = places.unit.with_suffix(".new")
        new.write_text(template, encoding="utf-8")
        new.replace(places.unit)
        self._must("daemon-reload")
        self._must("enable", "--quiet", UNIT)
        return True

    def uninstall(self) -> None:
        """Stop the service and take the unit away."""
        call("systemctl", "--user", "disable", "--now", UNIT)
        self._places.unit.unlink(missing_ok=True)
        call("systemctl", "--user", "daemon-reload")

    def is_running(self) -> bool:
        """Whether it runs or is about to."""
        return call("systemctl", "--user", "is-active", UNIT)[1] in ("active", "activating", "reloading")

    def start(self, changed: bool = False) -> None:
        """Have it run; nothing happens where it does, unless the unit `changed`."""
        self._must("restart" if changed else "start", UNIT)

    def restart(self) -> None:
        """Have it run anew."""
        self._must("restart", UNIT)

    def stop(self) -> None:
        """Have it not run; it comes back at the next login."""
        self._must("stop", UNIT)

    def _trouble(self) -> str:
        """Why systemd cannot be used here, or nothing."""
        status, said = call("systemctl", "--user", "show-environment")
        return f"systemd's user manager cannot be used here ({said.splitlines()[-1] if said else status}); without it, mlx-native-server start runs the server in the background" if status else ""

    def _must(self, *arguments: str) -> None:
        status, said = call("systemctl", "--user", *arguments)
        if status:
            raise ServiceError(f"systemctl --user {' '.join(arguments)} failed with {status}: {said}")
