"""What keeps a background server well: the guard against crashing again, log files, staying awake, places."""
from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest

from mlx_native_server.operate import guard, logfiles, running
from mlx_native_server.monitor.awake import Awake
from mlx_native_server.models.folder import ModelError
from mlx_native_server.operate.places import places


# ── the guard ────────────────────────────────────────────────────────────────────────────────────


STARTS = [
    # boots in which loading begun, one after another, and whether each may load
    (["a"], [True]),
    (["a", "a", "a"], [True, True, True]),
    (["a", "b"], [True, True]),
    (["a", "b", "c"], [True, True, False]),
    (["a", "b", "b", "c", "c"], [True, True, True, False, False]),
]


@pytest.mark.parametrize("boots, loads", STARTS)
def test_the_second_machine_restart_while_loading_is_the_last(tmp_path: Path, boots: list[str], loads: list[bool]) -> None:
    assert [guard.begin(tmp_path / "state", boot) for boot in boots] == loads


def test_a_load_that_ended_well_is_forgotten(tmp_path: Path) -> None:
    for boot in "abcdef":
        assert guard.begin(tmp_path, boot)
        guard.clear(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"boot": 1, "restarts": "x"}'])
def test_a_damaged_mark_is_no_reason_not_to_load(tmp_path: Path, text: str) -> None:
    (tmp_path / guard.FILE).write_text(text)
    assert guard.begin(tmp_path, "a")


def test_a_boot_is_known_on_a_mac_by_its_session() -> None:
    said = {"kern.bootsessionuuid": "", "kern.boottime": "{ sec = 1700000000, usec = 123 } Tue Nov 14 22:13:20 2023"}
    assert guard.boot_id(lambda command: said[command[-1]], "darwin") == "{ sec = 1700000000"
    assert guard.boot_id(lambda command: "5-6", "darwin") == "5-6"


@pytest.mark.parametrize("status, env, told", [(78, {}, 0), (78, {"INVOCATION_ID": "x"}, 78), (1, {}, 1), (0, {}, 0)])
def test_a_service_manager_is_told_what_it_must_not_restart(status: int, env: dict[str, str], told: int) -> None:
    assert guard.exit_status(status, env) == told


# ── logs ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def root_logger():
    handlers, level = logging.root.handlers[:], logging.root.level
    yield logging.root
    for handler in logging.root.handlers[:]:
        logging.root.removeHandler(handler)
    logging.root.handlers[:], logging.root.level = handlers, level


def test_the_log_file_is_rotated_by_the_process(tmp_path: Path, root_logger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logfiles, "MOST_BYTES", 200)
    logfiles.start("p", file=tmp_path / "logs" / "server.log")
    for i in range(40):
        logging.getLogger("p.x").info("line %d of the log", i)
    files = sorted(path.name for path in (tmp_path / "logs").iterdir())
    assert files == ["server.log", *(f"server.log.{i}" for i in range(1, logfiles.KEPT))]
    assert "line 39" in (tmp_path / "logs" / "server.log").read_text()


def test_a_grown_crash_file_is_emptied_in_place(tmp_path: Path, root_logger, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service manager holds it open: after a rename it would go on writing into the old one."""
    monkeypatch.setattr(logfiles, "MOST_BYTES", 10)
    crash = tmp_path / "crash.log"
    with crash.open("ab") as held:
        held.write(b"x" * 11)
        held.flush()
        logfiles.start("p", file=tmp_path / "server.log", crash_file=crash)
        held.write(b"new")
    assert crash.read_bytes() == b"new"


def test_json_lines_are_one_object_each(tmp_path: Path, root_logger) -> None:
    logfiles.start("p", "json", tmp_path / "server.log")
    logging.getLogger("p").info("two\nlines %s", "ä")
    try:
        raise ValueError("bad")
    except ValueError:
        logging.getLogger("p").exception("failed")
    logging.getLogger("p").error("wrong", exc_info=(ModelError, ModelError("There is no x."), None))
    entries = [json.loads(line) for line in (tmp_path / "server.log").read_text().splitlines()]
    assert [(entry["level"], entry["message"]) for entry in entries] == [("info", "two\nlines ä"), ("error", "failed"), ("error", "wrong: There is no x.")]
    assert "ValueError: bad" in entries[1]["trace"] and "trace" not in entries[2] and entries[0]["time"].endswith("Z")


# ── staying awake ────────────────────────────────────────────────────────────────────────────────


class Child:
    alive = True

    def kill(self) -> None:
        self.alive = False

    def wait(self) -> None:
        assert not self.alive


def test_a_mac_stays_awake_while_anybody_needs_it() -> None:
    started: list[tuple[list[str], Child]] = []

    def popen(command: list[str]) -> Child:
        started.append((command, Child()))
        return started[-1][1]

    awake = Awake("darwin", popen)
    awake.take()
    with awake.held():
        pass
    assert len(started) == 1 and started[0][1].alive
    assert started[0][0] == ["/usr/bin/caffeinate", "-i", "-w", str(os.getpid())]
    awake.release()
    assert not started[0][1].alive
    with awake.held():
        assert len(started) == 2


def test_elsewhere_nothing_is_started_and_a_missing_program_is_no_failure() -> None:
    def popen(command: list[str]) -> Child:
        raise FileNotFoundError(command[0])

    for platform in ("linux", "darwin"):
        awake = Awake(platform, popen)
        with awake.held():
            pass


# ── places and the record ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("env, platform, logs, unit", [
    ({"HOME": "/h"}, "darwin", "/h/Library/Logs/mlx-native-server", "/h/Library/LaunchAgents/com.mlx-native-server.plist"),
    ({"HOME": "/h"}, "linux", "/h/.local/state/mlx-native-server/logs", "/h/.config/systemd/user/mlx-native-server.service"),
    ({"HOME": "/h", "XDG_STATE_HOME": "/s", "XDG_CONFIG_HOME": "/c"}, "linux", "/s/mlx-native-server/logs", "/c/systemd/user/mlx-native-server.service"),
])  # fmt: skip
def test_everything_is_below_the_home_directory(env: dict[str, str], platform: str, logs: str, unit: str) -> None:
    here = places(env, platform)
    assert (str(here.logs), str(here.unit)) == (logs, unit)
    assert (str(here.settings), str(here.prefix)) == ("/h/.config/mlx-native-server/env", "/h/.local/mlx-native-server")


def test_only_its_writer_takes_the_record_away(tmp_path: Path) -> None:
    file = tmp_path / "state" / "running.json"
    record = running.Record(123, 4000, "f")
    running.write(file, record)
    running.remove(file, 124)
    assert running.read(file) == record
    running.remove(file, 123)
    assert running.read(file) is None and list(file.parent.iterdir()) == []


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"pid": 1}'])
def test_a_damaged_record_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "r").write_text(text)
    assert running.read(tmp_path / "r") is None


def test_another_program_with_the_recorded_id_is_not_the_server() -> None:
    assert not running.is_server(os.getppid()) and not running.is_server(2**22 + 1)
