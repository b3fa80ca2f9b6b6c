"""Start, stop, watch: the commands for a server that runs in the background.

Where a service is installed it is the service that runs, as long as it would serve what is asked for; else a process of
its own does. Each command may be repeated, waits until it is true, and ends with a sentence where it cannot be. Nothing
waits for ever: a server that ends, fails, or says nothing new for `STALLED_S` seconds ends the wait.
"""
from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any, TextIO

from . import detached, guard, running
from ..config import Settings, fingerprint, load, parse_file
from .launchd import Launchd, ServiceError
from .machine import disk_free_gb
from .places import Places
from .running import Seen, Who
from .systemd import Systemd

logger = logging.getLogger(__name__)

STALLED_S = 360.0
FULL_GB = 0.01
BIND_S = 30.0
"""How long a started server may take until it answers at all."""


class ManageError(Exception):
    """The command cannot be done. The message is a sentence or two for the user."""


def manager(places: Places, platform: str = sys.platform) -> Launchd | Systemd:
    """The service manager of this system."""
    return Launchd(places) if platform == "darwin" else Systemd(places)


def read_settings_file(places: Places) -> dict[str, str]:
    """The variables of the settings file. Raises `SettingError`; a file that is not there has none."""
    try:
        return parse_file(places.settings.read_text(encoding="utf-8"), places.settings)
    except FileNotFoundError:
        return {}


class Background:
    """The server in the background, for one user and one set of settings. `env` is what a new process gets."""

    def __init__(self, settings: Settings, places: Places, env: Mapping[str, str], out: TextIO = sys.stderr,
                 service: Launchd | Systemd | None = None, pause: Callable[[float], None] = time.sleep):
        self.settings, self.places, self._env, self._out, self._pause = settings, places, env, out, pause
        self.service = service or manager(places)

    # ── commands ─────────────────────────────────────────────────────────────────────────────────

    def start(self, any_settings: bool = False, but_not: Collection[str] = ()) -> Mapping[str, Any]:
        """Have a server answer with these settings, and wait for its model; returns its health.

        A server of other settings is replaced where it was started in the background. `any_settings`: whatever
        server runs will do, but for one from the background with a fingerprint in `but_not`. Raises `ManageError`.
        """
        if not self.settings.port:
            raise ManageError("MLX_PORT is 0, which takes any free port: in the background the server needs one that its clients know.")
        seen, alive = running.look(self.settings), lambda: True
        if seen.who is Who.SERVER and not self._fits(seen, any_settings, but_not):
            if not self.is_ours(seen):
                raise ManageError(f"a server with other settings runs at {self.url} (model {seen.health.get('model')}) and was started by hand: stop it there, or choose another port with MLX_PORT.")
            self._say(f"the server runs with other settings (model {seen.health.get('model')}), starting it anew")
            self.stop()
            seen = running.look(self.settings)
        if seen.who is Who.STRANGER:
            raise ManageError(f"another program answers at {self.url}: choose another port with MLX_PORT, or see who it is with  lsof -nP -iTCP:{self.settings.port} -sTCP:LISTEN")
        if seen.who is Who.SERVER and seen.status == "failed" and self.is_ours(seen):
            self.stop()
            seen = Seen(Who.NOBODY, {})
        log = LogTail(self.places.server_log)
        if seen.who is Who.NOBODY:
            guard.clear(self.places.state)
            alive = self._begin()
        return self._wait(alive, log)

    def stop(self) -> bool:
        """Have none run; False where none did. A server that was started by hand is left alone. Raises `ManageError`."""
        stopped = False
        try:
            if self.service.is_installed:
                stopped = self.service.is_running()
                self.service.stop()
        except ServiceError as error:
            raise ManageError(str(error)) from error
        return detached.stop(self.places.running, self._pause) or stopped

    def restart(self) -> Mapping[str, Any]:
        """Stop it, start it."""
        self.stop()
        return self.start()

    def status(self) -> tuple[bool, list[str]]:
        """Whether the server is well, and lines that say how it is."""
        seen = running.look(self.settings)
        if seen.who is Who.SERVER:
            health = seen.health
            how = "in the background" if self.is_ours(seen) else "started by hand"
            lines = [f"server: {health['status']} at {self.url}, {how}", f"model: {health.get('model')}, window {health.get('context_tokens') or 'not known yet'}"]
            lines += [f"progress: {health['progress']}"] if health.get("progress") else []
            lines += [f"requests: {health.get('requests_running', 0)} running, {health.get('requests_waiting', 0)} waiting"]
        else:
            lines = [f"server: {'another program answers' if seen.who is Who.STRANGER else 'not running'} at {self.url}"]
        state = ("running" if self.service.is_running() else "installed, not running") if self.service.is_installed else "not installed"
        lines += [f"service: {state} ({self.service.name})", f"settings: {self.places.settings}", f"log: {self.places.server_log}"]
        return seen.status == "ok", lines

    # ── how ──────────────────────────────────────────────────────────────────────────────────────

    @property
    def url(self) -> str:
        """The server's address."""
        return running.url(self.settings)

    def is_ours(self, seen: Seen) -> bool:
        """Whether the server that answers is the one that was started in the background."""
        record = running.read(self.places.running)
        return record is not None and record.pid == seen.health.get("pid")

    def _fits(self, seen: Seen, any_settings: bool, but_not: Collection[str]) -> bool:
        runs = seen.health.get("fingerprint")
        return runs == fingerprint(self.settings) or (any_settings and (runs not in but_not or not self.is_ours(seen)))

    def _begin(self) -> Callable[[], bool]:
        """Start it; returns whether it lives, as a function."""
        plain = load({}, {}, read_settings_file(self.places))
        same_place = (plain.port, plain.host, plain.api_key) == (self.settings.port, self.settings.host, self.settings.api_key)
        try:
            if self.service.is_installed and same_place and fingerprint(plain) == fingerprint(self.settings):
                self.service.start()
                return self.service.is_running
            if self.service.is_installed and self.service.is_running():
                self.service.stop()  # two models do not fit in one memory
            return detached.start(self.places, self._env)
        except (ServiceError, OSError) as error:
            raise ManageError(f"the server cannot be started: {error}") from error

    def _wait(self, alive: Callable[[], bool], log: LogTail) -> Mapping[str, Any]:
        begun_s = changed_s = time.monotonic()
        said = None
        while True:
            seen = running.look(self.settings)
            if seen.status == "ok":
                return seen.health
            if seen.status == "failed":
                raise ManageError(f"the server has no model: {seen.health.get('progress') or 'see its log'} (log: {self.places.server_log})")
            if seen.who is Who.STRANGER:
                raise ManageError(f"another program answers at {self.url}: choose another port with MLX_PORT.")
            now_s = time.monotonic()
            if seen.who is Who.NOBODY and (not alive() or now_s - begun_s > BIND_S):
                raise ManageError(self._why_ended(log))
            if said != (said := seen.health.get("progress") or said or "the server is starting"):
                changed_s = now_s
                self._say(said)
            if now_s - changed_s > STALLED_S:
                raise ManageError(f"the server says nothing new for {STALLED_S:.0f} s (log: {self.places.server_log})")
            self._pause(0.3)

    def _why_ended(self, log: LogTail) -> str:
        """A sentence for a server that is gone: its own last words, else what can be seen from here."""
        if words := log.reason():
            return words
        if disk_free_gb(self.places.state) < FULL_GB:
            return f"the server has ended, since the disk that holds {self.places.state} is full: make room and start it again."
        words = " ".join(last_lines(self.places.crash_log, 1)) or (
            "it gave no reason, as when the system ends it for want of memory or somebody kills it; if it happens again, choose a smaller model")
        return f"the server has ended before its model was ready: {words} (log: {self.places.server_log})"

    def _say(self, line: str) -> None:
        print(line, file=self._out, flush=True)


class LogTail:
    """The end of a log: what came since this was made."""

    def __init__(self, path: Path):
        self._path = path
        self._start_bytes = path.stat().st_size if path.exists() else 0

    def reason(self) -> str:
        """Why the server ended, in its own words: its last error. Empty where it gave none."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._start_bytes if os.fstat(file.fileno()).st_size >= self._start_bytes else 0)
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        for i in range(len(lines) - 1, -1, -1):
            if said := _error_in(lines[i]):
                trace = [line for line in takewhile(lambda line: not line.startswith(("[", "{")), lines[i + 1:]) if line.strip()]
                return ": ".join([said, *trace[-1:]])
        return ""


def _error_in(line: str) -> str:
    if not line.startswith("{"):
        return line.partition(" error: ")[2]
    try:
        entry = json.loads(line)
    except ValueError:
        return ""
    if entry.get("level") != "error":
        return ""
    return ": ".join([str(entry.get("message", "")), *str(entry.get("trace", "")).splitlines()[-1:]])


def last_lines(path: Path, count: int) -> list[str]:
    """The last lines of a file; none where it is not there."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return [line.rstrip("\n") for line in deque(file, count)]
    except OSError:
        return []


def follow(path: Path) -> None:
    """Show what is appended to a log, over its rotations, until the user ends it. Does not return."""
    os.execvp("tail", ["tail", "-n", "40", "-F", str(path)])
