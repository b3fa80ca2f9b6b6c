"""What a server that runs in the background leaves for those who look for it: one JSON file, and the port's answer.

The rule: only a server that wrote the file and answers with the same process id counts as ours, and only ours is ever
stopped. A port that somebody else answers on is told apart from one that nobody answers on.
"""
from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from ..config import Settings

ANSWER_S = 5.0


@dataclass(frozen=True)
class Record:
    """`fingerprint`: of the settings that it runs with (`config.fingerprint`)."""

    pid: int
    port: int
    fingerprint: str


def write(path: Path, record: Record) -> None:
    """Leave the record, whole or not at all. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(f".{record.pid}")
    new.write_text(json.dumps(asdict(record)) + "\n", encoding="utf-8")
    new.replace(path)


def remove(path: Path, pid: int) -> None:
    """Take the record away where it is this process's own."""
    if (record := read(path)) and record.pid == pid:
        path.unlink(missing_ok=True)


def read(path: Path) -> Record | None:
    """The record, None where there is none or it is damaged."""
    try:
        return Record(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def is_server(pid: int) -> bool:
    """Whether a process of this id is alive and is this program: ids are given again after a restart."""
    try:
        os.kill(pid, 0)
        said = subprocess.run(["ps", "-o", "stat=,command=", "-p", str(pid)], capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout
    except OSError:
        return False
    return "mlx_native_server" in said and not said.strip().startswith("Z")


class Who(Enum):
    """Who answers on a port."""

    NOBODY = "nobody"
    STRANGER = "another program"
    SERVER = "a server of this kind"


@dataclass(frozen=True)
class Seen:
    """What came from `/health`; `health` is empty unless `who` is a server."""

    who: Who
    health: Mapping[str, Any]

    @property
    def status(self) -> str:
        """`loading`, `ok` or `failed`; empty where no server answers."""
        return str(self.health.get("status", ""))


def address(settings: Settings) -> tuple[str, int]:
    """Host and port under which this machine reaches the server."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "localhost": "127.0.0.1"}.get(settings.host, settings.host)
    return host, settings.port


def url(settings: Settings) -> str:
    """The address for clients."""
    host, port = address(settings)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def get(settings: Settings, path: str, wait_s: float = ANSWER_S) -> tuple[int, bytes]:
    """Status and body of a GET, straight to the server and through no proxy. Raises OSError or `http.client.HTTPException`."""
    connection = http.client.HTTPConnection(*address(settings), timeout=wait_s)
    with contextlib.closing(connection):
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()


def look(settings: Settings, wait_s: float = ANSWER_S) -> Seen:
    """Who answers where the server would be."""
    try:
        _, body = get(settings, "/health", wait_s)
        health = json.loads(body)
    except (ConnectionRefusedError, ConnectionResetError):
        return Seen(Who.NOBODY, {})
    except (OSError, ValueError, http.client.HTTPException):
        return Seen(Who.STRANGER, {})
    is_ours = isinstance(health, dict) and health.get("status") in ("loading", "ok", "failed") and "prefill_size" in health
    return Seen(Who.SERVER, health) if is_ours else Seen(Who.STRANGER, {})
