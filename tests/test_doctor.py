"""The doctor: what it finds on played machines, that each fault has advice, and that it works where MLX does not."""
from __future__ import annotations

import importlib
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from mlx_native_server.operate import bench, doctor, mac, manage, modelcheck, running, speed
from mlx_native_server.config import Settings, fingerprint
from mlx_native_server.operate.doctor import Line, Patient
from mlx_native_server.models.folder import ModelError
from mlx_native_server.operate.machine import Machine, look
from mlx_native_server.operate.modelcheck import fitting_tokens, layer_kinds
from mlx_native_server.operate.places import places
from mlx_native_server.operate.running import Seen, Who

MAC = Machine("macOS", "26.1", "Apple M4 Pro", 14, 48.0)
LINUX = Machine("Linux", "Debian", "a CPU", 8, 64.0)


def patient(tmp_path: Path, computer: Machine = MAC, **env: str) -> Patient:
    env = {"HOME": str(tmp_path), "PATH": "", **env}
    return Patient(Settings(), places(env, "linux"), env, computer, lambda command: "2.1.332 (Claude Code)")


def one(lines) -> Line:
    (line,) = lines
    return line


MACHINES = [
    (MAC, "ok", "Apple M4 Pro"),
    (replace(MAC, translated=True), "bad", "macOS"),
    (replace(MAC, version="13.6"), "bad", "13.6"),
    (LINUX, "warn", "a CPU"),
    (replace(LINUX, gpu="NVIDIA H100", gpu_gb=80.0), "ok", "NVIDIA H100"),
]


@pytest.mark.parametrize("computer, state, words", MACHINES)
def test_the_machine(tmp_path: Path, computer: Machine, state: str, words: str) -> None:
    line = one(doctor.check_machine(patient(tmp_path, computer)))
    assert (line.state, bool(line.advice)) == (state, state != "ok") and words in line.text


@pytest.mark.parametrize("memory_gb, limit_mb, states", [(48, 0, ["ok"]), (8, 0, ["warn"]), (48, 40_000, ["ok", "ok"]), (48, 48_000, ["ok", "warn"])])
def test_memory_and_a_limit_that_was_set_by_hand(tmp_path: Path, memory_gb: float, limit_mb: int, states: list[str]) -> None:
    lines = list(doctor.check_memory(patient(tmp_path, replace(MAC, memory_gb=memory_gb, wired_limit_mb=limit_mb))))
    assert [line.state for line in lines] == states


SEEN = [
    (Seen(Who.NOBODY, {}), "port", "ok"),
    (Seen(Who.STRANGER, {}), "port", "bad"),
    (Seen(Who.SERVER, {"status": "failed", "progress": "why"}), "server", "bad"),
    (Seen(Who.SERVER, {"status": "ok", "model": "m", "fingerprint": fingerprint(Settings())}), "server", "ok"),
    (Seen(Who.SERVER, {"status": "ok", "model": "m", "fingerprint": "other"}), "server", "warn"),
]


@pytest.mark.parametrize("seen, name, state", SEEN)
def test_who_has_the_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: Seen, name: str, state: str) -> None:
    monkeypatch.setattr(running, "look", lambda settings: seen)
    line = one(doctor.check_server(patient(tmp_path)))
    assert (line.name, line.state) == (name, state)


@pytest.mark.parametrize("level, words", [("1", []), ("2", ["is short"]), ("4", ["has run out"]), ("", [])])
def test_a_mac_is_asked_whether_its_memory_is_short(tmp_path: Path, level: str, words: list[str]) -> None:
    looked = replace(patient(tmp_path), run=lambda command: level if command[-1] == "kern.memorystatus_vm_pressure_level" else "")
    assert [line.text.rpartition(" it ")[2] for line in doctor.check_memory(looked) if line.name == "memory now"] == words


@pytest.mark.parametrize("days, told", [(0, False), (3, True)])
@pytest.mark.parametrize("variable", ["HOME", "HF_HOME", "HF_HUB_CACHE"])
def test_what_cut_off_downloads_have_left_is_told(tmp_path: Path, days: int, told: bool, variable: str) -> None:
    hub = tmp_path / {"HOME": ".cache/huggingface/hub", "HF_HOME": "hub", "HF_HUB_CACHE": ""}[variable]
    rest = hub / "models--a--b" / "blobs" / "x.0123abcd.incomplete"
    rest.parent.mkdir(parents=True)
    rest.write_bytes(b"x")
    os.utime(rest, (time.time() - days * 86_400,) * 2)
    lines = [line for line in doctor.check_disk(patient(tmp_path, **{variable: str(tmp_path)})) if line.name == "downloads"]
    assert bool(lines) is told and all(f"find {hub}" in line.advice for line in lines)


@pytest.mark.parametrize("folder, place", [
    ("Documents/m", "Documents"), ("Desktop", "the Desktop"), ("Downloads/a/b", "Downloads"), ("Library/Mobile Documents/x", "iCloud Drive"),
    ("models", ""), ("Documents2/m", ""), ("/Volumes/SSD/m", "an external disk"),
])  # fmt: skip
def test_folders_that_a_mac_keeps_from_services(tmp_path: Path, folder: str, place: str) -> None:
    assert mac.kept_from_services(tmp_path / folder, tmp_path) == place


@pytest.mark.parametrize("service, state", [(False, "warn"), (True, "bad")])
def test_a_model_where_no_service_may_read_is_a_fault_once_there_is_a_service(tmp_path: Path, service: bool, state: str) -> None:
    model = tmp_path / "Documents" / "m"
    model.mkdir(parents=True)
    looked = replace(patient(tmp_path), settings=Settings(model=str(model)))
    if service:
        looked.here.unit.parent.mkdir(parents=True)
        looked.here.unit.touch()
    line = one(doctor.check_mac(looked))
    assert (line.name, line.state) == ("privacy", state) and "Documents" in line.text and "Full Disk Access" in line.advice
    assert list(doctor.check_mac(replace(looked, computer=LINUX))) == []


def test_crashes_of_the_whole_mac_are_told_where_they_are_recent_and_the_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mac, "REPORTS", tmp_path)
    for name, text, days in [("panic-full-1.panic", "x IOGPUMemory.cpp:550", 2), ("panic-2.panic", "IOGPU", 1), ("old.panic", "IOGPU", 60), ("disk.panic", "apfs", 1), ("app.ips", "IOGPU", 1)]:
        (tmp_path / name).write_text(text)
        os.utime(tmp_path / name, (time.time() - days * 86_400,) * 2)
    line = one(doctor.check_mac(patient(tmp_path)))
    assert line.state == "warn" and "2 times in 30 days, last panic-2.panic" in line.text and "MLX_WIRED_LIMIT_GB=0" in line.advice


@pytest.mark.parametrize("text, told", [
    ('{"env": {"ANTHROPIC_BASE_URL": "https://elsewhere"}}', True), ('{"env": {"ANTHROPIC_BASE_URL": "http://127.0.0.1:4000/"}}', False),
    ('{"env": {}}', False), ('{"env": null}', False), ("{", False), ("[]", False),
])  # fmt: skip
def test_the_clients_own_settings_may_point_elsewhere(tmp_path: Path, text: str, told: bool) -> None:
    (tmp_path / ".claude").mkdir()
    (tmp_path / ".claude" / "settings.json").write_text(text)
    client = tmp_path / "claude"
    client.write_text("#!/bin/sh\n")
    client.chmod(0o755)
    lines = list(doctor.check_client(patient(tmp_path, CLAUDE_BIN=str(client))))
    assert [line.name for line in lines] == ["client settings"] * told + ["Claude Code"]


def test_the_client_and_its_version(tmp_path: Path) -> None:
    client = tmp_path / "claude"
    client.write_text("#!/bin/sh\n")
    client.chmod(0o755)
    assert "2.1.332" in one(doctor.check_client(patient(tmp_path, CLAUDE_BIN=str(client)))).text
    assert one(doctor.check_client(patient(tmp_path, CLAUDE_BIN="/no"))).state == "bad"


def test_a_models_files_are_read_without_loading_it(tmp_path: Path, tiny_model) -> None:
    looked = replace(patient(tmp_path), settings=Settings(model=str(tiny_model("qwen3"))))
    lines = {line.name: line for line in doctor.check_model(looked)}
    assert list(lines) == ["model", "template", "window"]
    assert "qwen3" in lines["model"].text and "full_attention" in lines["model"].text and "dialect" in lines["template"].text


@pytest.mark.parametrize("error, words", [(ImportError("no libmlx"), "MLX does not load: no libmlx")])
def test_the_doctor_works_where_mlx_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, words: str) -> None:
    def broken(name: str):
        raise error

    monkeypatch.setattr(importlib, "import_module", broken)
    line = one(doctor.check_model(patient(tmp_path)))
    assert line.state == "bad" and words in line.text and "setup.sh install" in line.advice


def test_a_missing_model_is_a_fault_with_advice(tmp_path: Path) -> None:
    looked = replace(patient(tmp_path), settings=Settings(model=str(tmp_path / "none")))
    line = one(doctor.check_model(looked))
    assert line.state == "bad" and "does not exist" in line.text and line.advice


@pytest.mark.parametrize("missing_gb, error, state, words", [
    (18.7, None, "warn", "is not here yet: 18.7 GB to download"), (0.0, "knows no such model", "bad", "knows no such model"),
])  # fmt: skip
def test_the_hub_is_asked_about_a_model_that_is_not_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing_gb: float, error: str | None, state: str, words: str) -> None:
    def ask(name: str) -> float:
        if error:
            raise ModelError(error)
        return missing_gb

    monkeypatch.setattr(modelcheck, "missing_gb", ask)
    line = one(doctor.check_model(replace(patient(tmp_path), settings=Settings(model="org/m"))))
    assert (line.state, bool(line.advice)) == (state, True) and words in line.text


@pytest.mark.parametrize("served, slower", [((100.0, 10.0), ""), ((100.0, 5.0), "2.0 times slower"), ((40.0, 10.0), "2.5 times slower")])
def test_a_service_that_is_throttled_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, served: tuple[float, float], slower: str) -> None:
    monkeypatch.setattr(running, "look", lambda settings: Seen(Who.SERVER, {"status": "ok"}))
    monkeypatch.setattr(speed, "through_server", lambda settings: speed.ServedSpeed(*served))
    monkeypatch.setattr(modelcheck, "look", lambda name: SimpleNamespace(weights_gb=1, limit_gb=9, path=tmp_path, vocab_size=9))
    monkeypatch.setattr(bench, "measure", lambda folder, vocab_size: bench.Speed(100.0, 10.0))
    lines = list(doctor.check_speed(replace(patient(tmp_path), bench=True)))
    assert [line.text for line in lines if line.state == "warn"] == ([f"the server is {slower} than this process"] if slower else [])


def test_the_bench_measures_prefill_and_decode(tmp_path: Path, tiny_model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "look", lambda settings: Seen(Who.NOBODY, {}))
    looked = replace(patient(tmp_path), settings=Settings(model=str(tiny_model("llama"))), bench=True)
    line = one(doctor.check_speed(looked))
    assert line.state == "ok" and "prefill" in line.text and "tokens/s" in line.text
    assert list(doctor.check_speed(replace(looked, bench=False))) == []


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("state, status", [("ok", 0), ("warn", 0), ("bad", 1)])
def test_faults_decide_the_exit_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], as_json: bool, state: str, status: int) -> None:
    monkeypatch.setattr(doctor, "CHECKS", (lambda patient: iter([Line("a", "ok", "fine"), Line("b", state, "x", "do y")]),))
    assert doctor.main(Settings(), places({"HOME": str(tmp_path)}), os.environ, as_json, False) == status
    said = capsys.readouterr().out
    if as_json:
        assert json.loads(said) == {"ok": not status, "checks": [
            {"name": "a", "state": "ok", "text": "fine", "advice": ""}, {"name": "b", "state": state, "text": "x", "advice": "do y"}]}  # fmt: skip
    else:
        assert said.startswith("ok   a: fine\n") and "-> do y" in said


# ── what a config says ───────────────────────────────────────────────────────────────────────────


CONFIGS = [
    ({"num_hidden_layers": 4}, {"full_attention": 4}),
    ({"num_hidden_layers": 4, "layer_types": ["sliding_attention"] * 3 + ["full_attention"]}, {"sliding_attention": 3, "full_attention": 1}),
    ({"num_hidden_layers": 48, "full_attention_interval": 4}, {"linear_attention": 36, "full_attention": 12}),
]


@pytest.mark.parametrize("config, kinds", CONFIGS)
def test_layers_are_counted_by_kind(config: dict, kinds: dict[str, int]) -> None:
    assert layer_kinds(config) == kinds
    assert fitting_tokens({**config, "num_key_value_heads": 2, "head_dim": 64}, 1e6) == int(1e6 / (kinds["full_attention"] * 2 * 64 * 4))


def test_no_room_is_no_window_and_a_model_without_growing_layers_fits_any() -> None:
    assert fitting_tokens({"num_hidden_layers": 4, "num_attention_heads": 8, "hidden_size": 512}, -1e9) == 0
    assert fitting_tokens({"num_hidden_layers": 0}, 1e9) > 10**9


def test_a_mac_is_read_from_its_own_tools() -> None:
    says = {"hw.memsize": str(16 * 1024**3), "hw.ncpu": "8", "machdep.cpu.brand_string": "Apple M1", "iogpu.wired_limit_mb": "0", "sysctl.proc_translated": "1"}
    machine = look(lambda command: says.get(command[-1], "14.5" if command[0] == "sw_vers" else ""), "darwin")
    assert machine == Machine("macOS", "14.5", "Apple M1", 8, 16.0, translated=True) and machine.has_gpu


def test_a_gpu_is_read_from_its_driver() -> None:
    machine = look(lambda command: "NVIDIA H100 80GB HBM3, 81559\nNVIDIA H100 80GB HBM3, 81559", "linux")
    assert machine.gpu == "NVIDIA H100 80GB HBM3" and 79 < machine.model_memory_gb < 80
    assert not look(lambda command: "", "linux").has_gpu


def test_nothing_is_started_or_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("start", "stop"):
        monkeypatch.setattr(manage.Background, name, lambda *arguments: pytest.fail("started"))
    list(doctor.examine(patient(tmp_path / "home")))
    assert not (tmp_path / "home").exists()
