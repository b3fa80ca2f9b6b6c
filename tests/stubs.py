"""What is around a server and is not this machine's own: programs of another system, a service manager, a port that answers.

Programs are played by scripts on PATH that write down how they were called.
"""
from __future__ import annotations

import http.server
import json
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

LAUNCHCTL = """
# The state is in files: `loaded` while launchd has the job, `running` while it has a process, `draining` counts the looks
# for which a job that was booted out is still there.
cd "$STUB_STATE"
case $1 in
  print)
    case $2 in gui/*/* | user/*/*) ;; gui/*) [ ! -e no-gui ]; exit ;; user/*) exit 0 ;; esac
    if [ -e draining ]; then
      left=$(($(cat draining) - 1))
      if [ $left -le 0 ]; then rm -f draining loaded running; else echo $left >draining; fi
    fi
    [ -e loaded ] || { echo "Could not find service" >&2; exit 113; }
    [ -e running ] && printf 'job = {\\n\\tstate = running\\n}\\n' || printf 'job = {\\n\\tstate = not running\\n}\\n' ;;
  bootout)
    [ -e loaded ] || { echo "Boot-out failed: 3: No such process" >&2; exit 3; }
    [ -e stuck ] || echo 3 >draining ;;
  bootstrap)
    if [ -e loaded ] || [ -e refused ]; then echo "Bootstrap failed: 5: Input/output error" >&2; exit 5; fi
    touch loaded running ;;
  kickstart) [ -e loaded ] || exit 113; touch running ;;
esac
"""
SYSTEMCTL = """
cd "$STUB_STATE"
[ "$1" = --user ] || exit 9
case $2 in
  show-environment) [ ! -e no-manager ] || { echo "Failed to connect to bus: No medium found" >&2; exit 1; } ;;
  is-active) [ -e running ] && echo active || { echo inactive; exit 3; } ;;
  start | restart) [ ! -e refused ] || { echo "Job failed." >&2; exit 1; }; touch running ;;
  stop) rm -f running ;;
  disable) rm -f running ;;
esac
"""


class Stubs:
    """A PATH with stubs in front, and what they were called with."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        self.bin, self.state = folder / "stubs", folder / "stub-state"
        self.bin.mkdir()
        self.state.mkdir()
        monkeypatch.setenv("PATH", f"{self.bin}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("STUB_STATE", str(self.state))

    def add(self, name: str, text: str) -> None:
        """A program of this name that runs the text as a script."""
        path = self.bin / name
        path.write_text(f'#!/bin/bash\necho "{name} $*" >>"$STUB_STATE/calls"\n{text}\n')
        path.chmod(0o755)

    def set(self, *names: str) -> None:
        """Make state files."""
        for name in names:
            (self.state / name).touch()

    def calls(self, *leave_out: str) -> list[str]:
        """What was called since the last look, without calls whose second word is left out."""
        path = self.state / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return [line for line in lines if line.split()[1] not in leave_out]


class NoService:
    """A service manager; the calls are written down."""

    name = "none"

    def __init__(self, is_installed: bool = False, active: bool = False):
        self.is_installed, self.active, self.calls = is_installed, active, []

    def is_running(self) -> bool:
        return self.active

    def start(self, changed: bool = False) -> None:
        self.calls.append("start")
        self.active = True

    def stop(self) -> None:
        self.calls.append("stop")
        self.active = False


class Answers(http.server.BaseHTTPRequestHandler):
    """Gives the server's next answer to each request, the last one again and again."""

    def do_GET(self) -> None:
        body = self.server.bodies.pop(0) if len(self.server.bodies) > 1 else self.server.bodies[0]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        pass


class Port:
    """A port of this machine: free, or answering."""

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.number = probe.getsockname()[1]
        self._server: http.server.HTTPServer | None = None

    def answer(self, *answers: bytes | dict[str, Any]) -> None:
        self.close()
        self._server = http.server.HTTPServer(("127.0.0.1", self.number), Answers)
        self._server.bodies = [answer if isinstance(answer, bytes) else json.dumps(answer).encode() for answer in answers]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        if self._server:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
