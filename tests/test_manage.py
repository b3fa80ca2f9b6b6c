"""Starting, stopping and watching the server in the background: who is on the port decides what is done."""
from __future__ import annotations

import io
import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from stubs import NoService, Port

from mlx_native_server.operate import detached, machine, manage, running
from mlx_native_server.config import Settings, fingerprint
from mlx_native_server.operate.places import Places, places
from mlx_native_server.operate.running import Who


@pytest.fixture
def port() -> Iterator[Port]:
    port = Port()
    yield port
    port.close()


@pytest.fixture
def here(tmp_path: Path) -> Places:
    return places({"HOME": str(tmp_path)}, "linux")


class Rig:
    """A `Background` whose processes are played; `started` has what was started, `born` is what that does."""

    def __init__(self, here: Places, port: Port, monkeypatch: pytest.MonkeyPatch, service: NoService | None = None, **settings: Any):
        self.here, self.port, self.out, self.started, self.alive = here, port, io.StringIO(), [], True
        self.service, self.settings = service or NoService(), Settings(port=port.number, **settings)
        self.born = lambda: port.answer(self.health())
        monkeypatch.setattr(detached, "start", self._start)
        monkeypatch.setattr(detached, "stop", self._stop)
        self.background = manage.Background(self.settings, here, {"A": "b"}, self.out, self.service, lambda seconds: None)

    def _start(self, places: Places, env: dict[str, str]) -> Any:
        self.started.append(dict(env))
        self.born()
        return lambda: self.alive

    def _stop(self, file: Path, pause: Any) -> bool:
        self.port.close()
        self.started.append("stop")
        return running.read(file) is not None

    def health(self, status: str = "ok", settings: Settings | None = None, **more: Any) -> dict[str, Any]:
        return {"status": status, "model": "m", "prefill_size": 512, "pid": 77, "context_tokens": 9, "fingerprint": fingerprint(settings or self.settings), **more}

    def ours(self) -> None:
        running.write(self.here.running, running.Record(77, self.port.number, "f"))


@pytest.fixture
def rig(here: Places, port: Port, monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(here, port, monkeypatch)


# ── who is there ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("answer, who", [
    (None, Who.NOBODY), (b"<html>", Who.STRANGER), ({"status": "ok"}, Who.STRANGER), ([1], Who.STRANGER),
    ({"status": "loading", "prefill_size": 1}, Who.SERVER), ({"status": "failed", "prefill_size": 1}, Who.SERVER),
])  # fmt: skip
def test_who_answers_on_the_port(port: Port, answer: Any, who: Who) -> None:
    if answer is not None:
        port.answer(answer if isinstance(answer, bytes) else json.dumps(answer).encode())
    assert running.look(Settings(port=port.number)).who is who


def test_a_program_that_speaks_no_http_is_a_stranger(port: Port) -> None:
    with socket.create_server(("127.0.0.1", port.number)):
        assert running.look(Settings(port=port.number), wait_s=0.1).who is Who.STRANGER


@pytest.mark.parametrize("host, url", [("0.0.0.0", "http://127.0.0.1:4000"), ("::", "http://[::1]:4000"), ("10.1.2.3", "http://10.1.2.3:4000")])
def test_the_address_is_one_that_can_be_reached(host: str, url: str) -> None:
    assert running.url(Settings(host=host)) == url


# ── start ────────────────────────────────────────────────────────────────────────────────────────


def test_start_starts_and_waits_for_the_model(rig: Rig) -> None:
    loading = rig.health("loading", progress="downloading: 1 of 2 GB")
    rig.born = lambda: rig.port.answer(loading, loading, rig.health("loading", progress="loading the weights"), rig.health())
    assert rig.background.start()["status"] == "ok"
    assert rig.started == [{"A": "b"}]
    assert rig.out.getvalue().splitlines() == ["downloading: 1 of 2 GB", "loading the weights"]


def test_a_server_that_runs_with_the_same_settings_is_kept(rig: Rig) -> None:
    rig.port.answer(rig.health("loading"), rig.health())
    assert rig.background.start()["pid"] == 77 and rig.started == []


@pytest.mark.parametrize("any_settings", [False, True])
def test_a_server_of_other_settings_is_replaced_where_it_is_ours_and_they_matter(rig: Rig, any_settings: bool) -> None:
    rig.ours()
    rig.port.answer(rig.health(settings=replace(rig.settings, model="other")))
    rig.background.start(any_settings)
    assert rig.started == ([] if any_settings else ["stop", {"A": "b"}])


REFUSED = [
    (lambda rig: rig.port.answer(rig.health(settings=Settings(model="other"))), "other settings runs at .* was started by hand"),
    (lambda rig: rig.port.answer(b"<html>"), "another program answers at http://127.0.0.1:.*choose another port with MLX_PORT"),
    (lambda rig: setattr(rig, "born", lambda: rig.port.answer(rig.health("failed", progress="why"))), "has no model: why"),
    (lambda rig: setattr(rig, "born", lambda: setattr(rig, "alive", False)), "the server has ended before its model was ready"),
    (lambda rig: setattr(rig, "born", lambda: rig.port.answer(b"nonsense")), "another program answers"),
]


@pytest.mark.parametrize("situation, words", REFUSED)
def test_what_stands_in_the_way_is_said(rig: Rig, situation, words: str) -> None:
    situation(rig)
    with pytest.raises(manage.ManageError, match=words):
        rig.background.start()


@pytest.mark.parametrize("line, words", [
    ("[2026-12-01 10:00:00] error: the engine has failed: There is no model 'x'.", "There is no model 'x'."),
    (json.dumps({"level": "error", "message": "There is no model 'x'."}), "There is no model 'x'."),
    ("[2026-12-01 10:00:00] error: failed\nTraceback (most recent call last):\n  File x\nMemoryError: no room\n", "failed: MemoryError: no room"),
    (json.dumps({"level": "error", "message": "failed", "trace": "Traceback\nMemoryError: no room"}), "failed: MemoryError: no room"),
])  # fmt: skip
def test_a_server_that_ends_is_quoted_from_its_log(rig: Rig, line: str, words: str) -> None:
    """The log of earlier runs does not count."""
    rig.here.logs.mkdir(parents=True)
    rig.here.server_log.write_text("[2026-12-01 09:00:00] error: old\n")

    def born() -> None:
        rig.alive = False
        with rig.here.server_log.open("a") as log:
            log.write(f"{line}\n[2026-12-01 10:00:01] Stopped.\n")

    rig.born = born
    with pytest.raises(manage.ManageError) as caught:
        rig.background.start()
    assert words in str(caught.value) and "old" not in str(caught.value)


@pytest.mark.parametrize("free_bytes, crash, words", [
    (10**9, "", "before its model was ready: it gave no reason, as when the system ends it for want of memory"),
    (10**9, "Segmentation fault", "before its model was ready: Segmentation fault"),
    (1000, "", "the disk that holds .* is full: make room"),
])  # fmt: skip
def test_a_server_that_ends_without_a_word_is_told_about_all_the_same(rig: Rig, monkeypatch: pytest.MonkeyPatch, free_bytes: int, crash: str, words: str) -> None:
    rig.here.logs.mkdir(parents=True)
    rig.here.crash_log.write_text(crash)
    rig.born = lambda: setattr(rig, "alive", False)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: SimpleNamespace(free=free_bytes))
    with pytest.raises(manage.ManageError, match=words):
        rig.background.start()


def test_a_server_that_says_nothing_new_for_long_ends_the_wait(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.born = lambda: rig.port.answer(rig.health("loading", progress="p"))
    monkeypatch.setattr(manage, "STALLED_S", 0.05)
    with pytest.raises(manage.ManageError, match="says nothing new for .*server.log"):
        rig.background.start()


def test_a_server_without_its_model_is_started_anew(rig: Rig) -> None:
    rig.ours()
    rig.port.answer(rig.health("failed", progress="restarted twice"))
    assert rig.background.start()["status"] == "ok" and rig.started == ["stop", {"A": "b"}]


# ── with a service ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("file, calls, detached_runs", [("", ["start"], 0), ("MLX_KV_BITS=8\n", [], 1)])
def test_the_service_runs_where_it_would_serve_what_is_asked_for(here: Places, port: Port, monkeypatch: pytest.MonkeyPatch, file: str, calls: list[str], detached_runs: int) -> None:
    service = NoService(is_installed=True)
    rig = Rig(here, port, monkeypatch, service)
    here.settings.parent.mkdir(parents=True)
    here.settings.write_text(f"MLX_PORT={port.number}\n{file}")
    service.start = lambda changed=False: (service.calls.append("start"), rig.port.answer(rig.health()))
    rig.background.start()
    assert service.calls == calls and len(rig.started) == detached_runs


def test_two_models_are_never_loaded_at_once(here: Places, port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    service = NoService(is_installed=True, active=True)
    rig = Rig(here, port, monkeypatch, service, browser_mode=True)
    rig.background.start()
    assert service.calls == ["stop"] and len(rig.started) == 1


@pytest.mark.parametrize("service, record, stopped", [(NoService(), False, False), (NoService(), True, True), (NoService(True, True), False, True)])
def test_stop_says_whether_there_was_something_to_stop(here: Places, port: Port, monkeypatch: pytest.MonkeyPatch, service: NoService, record: bool, stopped: bool) -> None:
    rig = Rig(here, port, monkeypatch, service)
    if record:
        rig.ours()
    assert rig.background.stop() is stopped


@pytest.mark.parametrize("answer, is_well, words", [
    (None, False, "server: not running at"), (b"x", False, "another program answers"), ("loading", False, "server: loading at"), ("ok", True, "started by hand"),
])  # fmt: skip
def test_status_says_what_runs_and_where_its_files_are(rig: Rig, answer: Any, is_well: bool, words: str) -> None:
    if answer:
        rig.port.answer(answer if isinstance(answer, bytes) else rig.health(answer))
    well, lines = rig.background.status()
    assert well is is_well and words in lines[0]
    assert f"settings: {rig.here.settings}" in lines and f"log: {rig.here.server_log}" in lines
