"""macOS's launchd: the service's plist, and starting and stopping it whatever state it is in.

launchd answers before it has acted (`bootout` drains for seconds, and `bootstrap` fails with 5 meanwhile), so each
step is followed by looking until it is so. What `launchctl print` writes is no interface; only its exit status and
its line `state = running` are used.
"""
from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from xml.sax.saxutils import escape

from .places import LABEL, Places

STOP_S = 45.0
"""Longer than the plist's ExitTimeOut."""
START_S = 20.0


class ServiceError(Exception):
    """The service manager refused. The message is for the user."""


def fill(template: str, values: Mapping[str, str]) -> str:
    """A template with each `{{NAME}}` replaced by its value, escaped for XML."""
    for name, value in values.items():
        template = template.replace("{{" + name + "}}", escape(value))
    return template


def call(*command: str) -> tuple[int, str]:
    """Exit status and output of a program; 127 where it is not there."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, timeout=60)
    except FileNotFoundError:
        return 127, f"{command[0]} is not there"
    except subprocess.TimeoutExpired:
        return 124, f"{command[0]} does not answer"
    return done.returncode, (done.stdout + done.stderr).strip()


class Launchd:
    """The service of this user."""

    name = "launchd"

    def __init__(self, places: Places, pause: Callable[[float], None] = time.sleep):
        self._places, self._pause = places, pause

    # ── the file ─────────────────────────────────────────────────────────────────────────────────

    @property
    def is_installed(self) -> bool:
        """Whether the plist is there."""
        return self._places.unit.exists()

    def install(self, template: str, python: Path, path: str) -> bool:
        """Write the plist; returns whether it changed. `path` is the PATH of the service. Raises `ServiceError`, OSError."""
        places = self._places
        for folder in (places.logs, places.state, places.unit.parent):
            folder.mkdir(parents=True, exist_ok=True)
        text = fill(template, {"LABEL": LABEL, "PYTHON": str(python), "STATE": str(places.state), "CRASH_LOG": str(places.crash_log), "PATH": path})
        if self.is_installed and places.unit.read_text(encoding="utf-8") == text:
            return False
        new = places.unit.with_suffix(".new")
        new.write_text(text, encoding="utf-8")
        status, said = call("plutil", "-lint", str(new))
        if status not in (0, 127):
            new.unlink()
            raise ServiceError(f"the plist is not well-formed: {said}")
        new.replace(places.unit)
        return True

    def uninstall(self) -> None:
        """Stop the service and take the plist away."""
        self.stop()
        self._places.unit.unlink(missing_ok=True)

    # ── what runs ────────────────────────────────────────────────────────────────────────────────

    @property
    def domain(self) -> str:
        """Where the service lives: the user's screen session, or the user's own domain where nobody is logged in."""
        uid = os.getuid()
        return f"gui/{uid}" if call("launchctl", "print", f"gui/{uid}")[0] == 0 else f"user/{uid}"

    def is_running(self) -> bool:
        """Whether launchd has a process of it."""
        status, said = call("launchctl", "print", f"{self.domain}/{LABEL}")
        return status == 0 and "state = running" in said

    def start(self, changed: bool = False) -> None:
        """Have it run; nothing happens where it does. `changed`: the plist is new, so launchd has to read it again."""
        domain = self.domain
        if changed:
            self.stop()
        call("launchctl", "enable", f"{domain}/{LABEL}")
        if not self._is_loaded(domain):
            self._bootstrap(domain)
        elif not self.is_running():
            self._must("kickstart", f"{domain}/{LABEL}")

    def restart(self) -> None:
        """Have it run anew."""
        domain = self.domain
        if self._is_loaded(domain):
            self._must("kickstart", "-k", f"{domain}/{LABEL}")
        else:
            self.start()

    def stop(self) -> None:
        """Have it not run; it comes back at the next login. Nothing happens where launchd does not have it."""
        domain = self.domain
        status, said = call("launchctl", "bootout", f"{domain}/{LABEL}")
        if not self._until(lambda: not self._is_loaded(domain), STOP_S):
            raise ServiceError(f"launchd does not let go of {LABEL} (status {status}): {said}")

    def _is_loaded(self, domain: str) -> bool:
        return call("launchctl", "print", f"{domain}/{LABEL}")[0] == 0

    def _bootstrap(self, domain: str) -> None:
        said = ""

        def done() -> bool:
            nonlocal said
            status, said = call("launchctl", "bootstrap", domain, str(self._places.unit))
            return status == 0 or self._is_loaded(domain)

        if not self._until(done, START_S):
            raise ServiceError(f"launchd does not take {self._places.unit}: {said}. Is it switched off under System Settings, General, Login Items?")

    def _must(self, *arguments: str) -> None:
        status, said = call("launchctl", *arguments)
        if status:
            raise ServiceError(f"launchctl {' '.join(arguments)} failed with {status}: {said}")

    def _until(self, is_so: Callable[[], bool], wait_s: float) -> bool:
        """Look once a second until it is so; False when `wait_s` looks were not enough."""
        for _ in range(int(wait_s)):
            if is_so():
                return True
            self._pause(1.0)
        return is_so()
