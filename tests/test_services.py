"""The two service managers, with stubs in their place: idempotent, patient, and exact in what they are given."""
from __future__ import annotations

import configparser
import os
import plistlib
from pathlib import Path

import pytest

from mlx_native_server.operate.launchd import START_S, STOP_S, Launchd, ServiceError
from mlx_native_server.operate.places import LABEL, Places, places
from mlx_native_server.operate.systemd import UNIT, Systemd
from stubs import LAUNCHCTL, SYSTEMCTL, Stubs

LAUNCHERS = Path(__file__).resolve().parent.parent / "launchers"
PLIST = (LAUNCHERS / "com.mlx-native-server.plist").read_text()
UNIT_TEXT = (LAUNCHERS / "mlx-native-server.service").read_text()
PYTHON = Path("/Users/a & b/venv/bin/python")
JOB = f"gui/{os.getuid()}/{LABEL}"


@pytest.fixture
def stubs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stubs:
    stubs = Stubs(tmp_path, monkeypatch)
    stubs.add("launchctl", LAUNCHCTL)
    stubs.add("systemctl", SYSTEMCTL)
    stubs.add("plutil", "exit 0")
    return stubs


@pytest.fixture
def mac(tmp_path: Path) -> Places:
    return places({"HOME": str(tmp_path / "a & b")}, "darwin")


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def launchd(mac: Places, stubs: Stubs, pauses: list[float]) -> Launchd:
    launchd = Launchd(mac, pauses.append)
    launchd.install(PLIST, PYTHON, "/bin")
    stubs.calls()
    return launchd


# ── the plist ────────────────────────────────────────────────────────────────────────────────────


def test_the_plist_has_exactly_these_keys(launchd: Launchd, mac: Places) -> None:
    with mac.unit.open("rb") as file:
        plist = plistlib.load(file)
    assert plist == {
        "Label": "com.mlx-native-server",
        "ProgramArguments": [str(PYTHON), "-m", "mlx_native_server", "serve", "--service"],
        "EnvironmentVariables": {"PATH": "/bin", "LANG": "en_US.UTF-8"},
        "WorkingDirectory": str(mac.state),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": 15,
        "ProcessType": "Interactive",
        "ExitTimeOut": 30,
        "SoftResourceLimits": {"NumberOfFiles": 8192},
        "StandardOutPath": str(mac.crash_log),
        "StandardErrorPath": str(mac.crash_log),
    }
    assert mac.unit.name == f"{LABEL}.plist" and mac.state.is_dir() and mac.logs.is_dir()


def test_the_paths_of_the_plist_are_absolute_and_where_a_service_may_write(launchd: Launchd, mac: Places) -> None:
    plist = plistlib.loads(mac.unit.read_bytes())
    for key in ("WorkingDirectory", "StandardOutPath", "StandardErrorPath"):
        assert Path(plist[key]).is_absolute()
        assert not {"Documents", "Desktop", "Downloads"} & set(Path(plist[key]).relative_to(mac.prefix.parent.parent).parts)


def test_installing_again_changes_nothing_and_something_else_does(launchd: Launchd) -> None:
    assert launchd.install(PLIST, PYTHON, "/bin") is False
    assert launchd.install(PLIST, PYTHON, "/usr/bin:/bin") is True


def test_a_plist_that_is_not_well_formed_does_not_take_the_place_of_the_old_one(launchd: Launchd, mac: Places, stubs: Stubs) -> None:
    before = mac.unit.read_bytes()
    stubs.add("plutil", "echo 'is broken'; exit 1")
    with pytest.raises(ServiceError, match="is broken"):
        launchd.install(PLIST + "<", PYTHON, "/bin")
    assert mac.unit.read_bytes() == before and [path.name for path in mac.unit.parent.iterdir()] == [mac.unit.name]


# ── launchd ──────────────────────────────────────────────────────────────────────────────────────


STATES = [
    # state before, call that start must end with (None: none at all)
    ((), f"launchctl bootstrap gui/{os.getuid()}"),
    (("loaded",), f"launchctl kickstart {JOB}"),
    (("loaded", "running"), None),
]


@pytest.mark.parametrize("state, call", STATES)
def test_start_makes_it_run_from_every_state(launchd: Launchd, stubs: Stubs, state: tuple[str, ...], call: str | None) -> None:
    stubs.set(*state)
    launchd.start()
    calls = stubs.calls("print", "enable")
    assert launchd.is_running() and (not calls if call is None else len(calls) == 1 and calls[0].startswith(call))
    stubs.calls()
    launchd.start()
    assert stubs.calls("print", "enable") == []


def test_a_changed_plist_is_read_again_once_launchd_has_let_go(launchd: Launchd, stubs: Stubs, pauses: list[float]) -> None:
    """`bootstrap` right after `bootout` fails with 5: the old process is still draining."""
    stubs.set("loaded", "running")
    launchd.start(changed=True)
    assert [call.split()[1] for call in stubs.calls("print", "enable")] == ["bootout", "bootstrap"]
    assert launchd.is_running() and pauses


@pytest.mark.parametrize("state", [(), ("loaded",), ("loaded", "running")])
def test_stop_waits_until_launchd_has_let_go_and_may_be_repeated(launchd: Launchd, stubs: Stubs, state: tuple[str, ...]) -> None:
    stubs.set(*state)
    launchd.stop()
    launchd.stop()
    assert not launchd.is_running() and not (stubs.state / "loaded").exists()


@pytest.mark.parametrize("state, verb", [((), "bootstrap"), (("loaded", "running"), "kickstart -k")])
def test_restart(launchd: Launchd, stubs: Stubs, state: tuple[str, ...], verb: str) -> None:
    stubs.set(*state)
    launchd.restart()
    calls = stubs.calls("print", "enable")
    assert len(calls) == 1 and calls[0].startswith(f"launchctl {verb} ")


def test_waits_have_an_end(launchd: Launchd, stubs: Stubs, pauses: list[float]) -> None:
    stubs.set("refused")
    with pytest.raises(ServiceError, match="does not take .*: Bootstrap failed: 5.* Login Items"):
        launchd.start()
    assert len(pauses) == START_S
    pauses.clear()
    (stubs.state / "refused").unlink()
    stubs.set("loaded", "stuck")
    with pytest.raises(ServiceError, match="does not let go"):
        launchd.stop()
    assert len(pauses) == STOP_S


def test_without_a_screen_session_the_users_own_domain_is_used(launchd: Launchd, stubs: Stubs) -> None:
    stubs.set("no-gui")
    launchd.start()
    launchd.stop()
    assert {call.split()[2].split("/")[0] for call in stubs.calls("print")} == {"user"}


def test_uninstall_stops_and_removes(launchd: Launchd, stubs: Stubs, mac: Places) -> None:
    stubs.set("loaded", "running")
    launchd.uninstall()
    launchd.uninstall()
    assert not launchd.is_installed and not launchd.is_running()


# ── systemd ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def linux(tmp_path: Path) -> Places:
    return places({"HOME": str(tmp_path / "100 % $HOME")}, "linux")


@pytest.fixture
def systemd(linux: Places, stubs: Stubs) -> Systemd:
    systemd = Systemd(linux)
    systemd.install(UNIT_TEXT, Path("/h/100 % $x/python"), "/usr/bin:/bin")
    return systemd


def test_the_unit_has_these_keys(systemd: Systemd, linux: Places, stubs: Stubs) -> None:
    unit = configparser.RawConfigParser(strict=True)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(linux.unit.read_text())
    service = dict(unit["Service"])
    assert service.pop("ExecStart") == '"/h/100 %% $$x/python" -m mlx_native_server serve --service'
    log = str(linux.crash_log).replace("%", "%%")
    assert service == {
        "Type": "exec", "Environment": '"PATH=/usr/bin:/bin"', "Restart": "on-failure", "RestartSec": "15", "RestartPreventExitStatus": "78",
        "TimeoutStopSec": "30", "LimitNOFILE": "8192", "StandardOutput": f"append:{log}", "StandardError": f"append:{log}",
    }  # fmt: skip
    assert unit["Install"]["WantedBy"] == "default.target"
    assert [call.split()[2] for call in stubs.calls()] == ["show-environment", "daemon-reload", "enable"]


def test_systemd_starts_stops_and_is_looked_at(systemd: Systemd, linux: Places, stubs: Stubs) -> None:
    assert systemd.install(UNIT_TEXT, Path("/h/100 % $x/python"), "/usr/bin:/bin") is False
    assert not systemd.is_running()
    systemd.start()
    assert systemd.is_running()
    systemd.stop()
    systemd.restart()
    assert systemd.is_running()
    stubs.calls()
    systemd.start(changed=True)
    assert stubs.calls() == [f"systemctl --user restart {UNIT}"]
    systemd.uninstall()
    assert not systemd.is_installed and not systemd.is_running()


def test_a_machine_without_systemd_is_told_what_works_instead(linux: Places, stubs: Stubs) -> None:
    stubs.set("no-manager")
    with pytest.raises(ServiceError, match="No medium found.*mlx-native-server start runs the server in the background"):
        Systemd(linux).install(UNIT_TEXT, PYTHON, "/bin")
    assert not linux.unit.exists()


def test_what_systemd_refuses_is_passed_on(systemd: Systemd, stubs: Stubs) -> None:
    stubs.set("refused")
    with pytest.raises(ServiceError, match="start mlx-native-server.service failed with 1: Job failed"):
        systemd.start()
