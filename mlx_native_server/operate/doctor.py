"""The `doctor` command: whether a session with Claude Code would work here, and what to do where it would not.

Each check is a function that gives lines; a line is fine, a warning or a fault, and says what to do. Faults decide the
exit status. Nothing is changed, downloaded or started; the hub is asked about a model that is not here. Only `--bench`
loads the model.
"""
from __future__ import annotations

import importlib
import json
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from . import launch, mac, machine, manage, running, speed
from ..models import blas
from ..config import Settings, fingerprint
from ..models.folder import ModelError
from .download import hub_cache
from .places import Places
from .running import Who

MARKS = {"ok": "ok  ", "warn": "warn", "bad": "BAD "}
PYTHONS = ((3, 11), (3, 14))
ROOM_GB = 20
PRESSURE = {"2": "is short", "4": "has run out"}
"""What macOS says of the memory that is left, where that is not well."""
LEFTOVER_S = 86_400
SLOWER = 1.3
"""How much slower the service may be than a process in a terminal."""
CHECKOUT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Line:
    """One finding. `state` is `ok`, `warn` or `bad`; `advice` is empty where there is nothing to do."""

    name: str
    state: str
    text: str
    advice: str = ""


@dataclass(frozen=True)
class Patient:
    """What is examined."""

    settings: Settings
    here: Places
    env: Mapping[str, str]
    computer: machine.Machine
    run: machine.Run
    bench: bool = False

    @property
    def home(self) -> Path:
        """The user's home directory."""
        return Path(self.env.get("HOME") or Path.home())

    @property
    def hub(self) -> Path:
        """Where downloaded models are."""
        return hub_cache({**self.env, "HOME": str(self.home)})


def main(settings: Settings, here: Places, env: Mapping[str, str], as_json: bool, bench: bool) -> int:
    """Examine, print, and return 0 where a session would work, else 1."""
    patient = Patient(settings, here, env, machine.look(), machine.run, bench)
    lines = []
    for line in examine(patient):
        lines.append(line)
        if not as_json:
            print(f"{MARKS[line.state]} {line.name}: {line.text}" + (f"\n       -> {line.advice}" if line.advice else ""), flush=True)
    is_well = all(line.state != "bad" for line in lines)
    if as_json:
        print(json.dumps({"ok": is_well, "checks": [asdict(line) for line in lines]}, indent=2))
    return 0 if is_well else 1


def examine(patient: Patient) -> Iterator[Line]:
    """Every check's lines, in order."""
    for check in CHECKS:
        yield from check(patient)


# ── the machine ──────────────────────────────────────────────────────────────────────────────────


def check_machine(patient: Patient) -> Iterator[Line]:
    """Whether MLX runs here at all."""
    computer = patient.computer
    text = f"{computer.system} {computer.version}, {computer.chip}, {computer.cores} cores" + (f", {computer.gpu}" if computer.gpu else "")
    if computer.translated:
        yield Line("machine", "bad", text, "this Python runs under Rosetta, where MLX does not work: install a native (arm64) Python and run ./setup.sh install")
    elif computer.is_mac and _major(computer.version) < 14:
        yield Line("machine", "bad", text, "MLX needs macOS 14 or newer")
    elif not computer.has_gpu:
        yield Line("machine", "warn", text, "there is no GPU that MLX uses: expect minutes where a Mac takes seconds")
    else:
        yield Line("machine", "ok", text)


def check_memory(patient: Patient) -> Iterator[Line]:
    """Memory, and Metal's limit where it was set by hand."""
    computer = patient.computer
    gpu = f", {computer.gpu_gb:.0f} GB on the GPU" if computer.gpu_gb else ""
    state, advice = ("ok", "") if computer.model_memory_gb >= 15.5 else ("warn", "under 16 GB only the smallest models fit, which make poor agents")
    yield Line("memory", state, f"{computer.memory_gb:.0f} GB{gpu}", advice)
    if computer.is_mac and (word := PRESSURE.get(patient.run(["sysctl", "-n", "kern.memorystatus_vm_pressure_level"]))):
        yield Line("memory now", "warn", f"by macOS's own measure it {word}", "close other programs, or choose a smaller model")
    if limit_mb := computer.wired_limit_mb:
        share = limit_mb / 1024 / max(1.0, computer.memory_gb)
        state, advice = ("ok", "") if share <= 0.9 else ("warn", "so little is left for the rest that the Mac may freeze: sudo sysctl iogpu.wired_limit_mb=0 is the default")
        yield Line("GPU limit", state, f"iogpu.wired_limit_mb is {limit_mb} ({share:.0%} of the memory)", advice)


def check_disk(patient: Patient) -> Iterator[Line]:
    """Room where models go, and what interrupted downloads have left there."""
    folder = patient.hub
    free_gb = machine.disk_free_gb(folder)
    yield Line("disk", "ok" if free_gb >= ROOM_GB else "warn", f"{free_gb:.0f} GB free for models in {folder}",
               "" if free_gb >= ROOM_GB else "make room, or set HF_HOME in the settings file to a folder on another disk")
    old = [path for path in folder.glob("*/blobs/*.incomplete") if time.time() - path.stat().st_mtime > LEFTOVER_S]
    if old:
        yield Line("downloads", "warn", f"{sum(path.stat().st_size for path in old) / 1e9:.1f} GB of {len(old)} files that were cut off more than a day ago",
                   f"nothing uses them: find {folder} -name '*.incomplete' -mtime +1 -delete")


def check_python(patient: Patient) -> Iterator[Line]:
    """Python and the libraries."""
    fits = PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1]
    yield Line("Python", "ok" if fits else "warn", f"{platform.python_version()} {platform.machine()}, {sys.executable}", "" if fits else "tested are 3.11 to 3.14")
    for name in ("mlx", "mlx-lm"):
        try:
            yield Line(name, "ok", metadata.version(name))
        except metadata.PackageNotFoundError:
            yield Line(name, "bad", "is not installed", "run ./setup.sh install")
    if warning := blas.preload_blas():
        yield Line("BLAS", "warn", warning)


def _major(version: str) -> int:
    first = version.partition(".")[0]
    return int(first) if first.isdigit() else 0


def check_mac(patient: Patient) -> Iterator[Line]:
    """What macOS keeps from a service, and whether the Mac itself has crashed."""
    if not patient.computer.is_mac:
        return
    model = Path(patient.settings.model).expanduser()
    for what, path in {"the program": CHECKOUT, "the model": model if model.is_dir() else patient.hub}.items():
        if place := mac.kept_from_services(path, patient.home):
            yield Line("privacy", "bad" if patient.here.unit.exists() else "warn", f"{what} is in {path}: macOS lets no service read {place}",
                       "move it to another folder of your home, or allow the service's Python under System Settings, Privacy & Security, Full Disk Access")
    if panics := mac.gpu_panics():
        yield Line("crashes", "warn", f"the Mac has crashed in its GPU driver, {len(panics)} times in 30 days, last {panics[0]}",
                   "set MLX_WIRED_LIMIT_GB=0, leave iogpu.wired_limit_mb at 0, and keep macOS and mlx up to date")


# ── server and client ────────────────────────────────────────────────────────────────────────────


def check_server(patient: Patient) -> Iterator[Line]:
    """Who has the port, and whether the service is as it was installed."""
    background = manage.Background(patient.settings, patient.here, patient.env)
    seen = running.look(patient.settings)
    if seen.who is Who.STRANGER:
        yield Line("port", "bad", f"another program answers at {background.url}", "choose another port with MLX_PORT")
    elif seen.who is Who.NOBODY:
        yield Line("port", "ok", f"{background.url} is free; the server does not run", "start it with  mlx-native-server start")
    elif seen.status == "failed":
        yield Line("server", "bad", f"has no model: {seen.health.get('progress')}", "mlx-native-server logs  says more")
    else:
        same = seen.health.get("fingerprint") == fingerprint(patient.settings)
        yield Line("server", "ok" if same else "warn", f"{seen.status} at {background.url}, model {seen.health.get('model')}",
                   "" if same else "it runs with other settings than a new one would: mlx-native-server restart")
    service = background.service
    if service.is_installed:
        is_running = service.is_running()
        yield Line("service", "ok" if is_running else "warn", f"{service.name}, {'running' if is_running else 'not running'}",
                   "" if is_running else "mlx-native-server start; on a Mac see also System Settings, General, Login Items")


def check_client(patient: Patient) -> Iterator[Line]:
    """Claude Code."""
    try:
        client = launch.find_client(patient.env)
    except launch.LaunchError as error:
        yield Line("Claude Code", "bad", "was not found", str(error))
        return
    yield from _client_settings(patient)
    version = patient.run([client, "--version"])
    yield Line("Claude Code", "ok" if version else "warn", f"{version or 'does not say its version'}, {client}", "" if version else f"see what  {client} --version  says")


def _client_settings(patient: Patient) -> Iterator[Line]:
    """The client's own settings beat the shell's variables."""
    file = Path(patient.env.get("CLAUDE_CONFIG_DIR") or patient.home / ".claude") / "settings.json"
    try:
        address = json.loads(file.read_text(encoding="utf-8"))["env"]["ANTHROPIC_BASE_URL"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    if str(address).rstrip("/") != running.url(patient.settings):
        yield Line("client settings", "warn", f"{file} sends Claude Code to {address}", "claude-local passes its own address; claude by itself goes there, whatever the shell says")


# ── the model ────────────────────────────────────────────────────────────────────────────────────


def _modelcheck() -> Any:
    """The module that knows models. Imported here, so that the doctor works where MLX does not."""
    return importlib.import_module("mlx_native_server.operate.modelcheck")


def check_model(patient: Patient) -> Iterator[Line]:
    """The model's files: what they are, and what window fits in the memory."""
    name = patient.settings.model
    try:
        if missing_gb := _modelcheck().missing_gb(name):
            yield Line("model", "warn", f"{name} is not here yet: {missing_gb:.1f} GB to download", "mlx-native-server start  gets it")
            return
        found = _modelcheck().look(name)
    except ModelError as error:
        yield Line("model", "bad", f"{name}: {error}", "choose another one with  ./setup.sh install --model NAME")
        return
    except (ImportError, OSError) as error:
        yield Line("model", "bad", f"MLX does not load: {error}", "run ./setup.sh install")
        return
    if found is None:
        yield Line("model", "warn", "tiny is not there yet", "the first start gets it")
        return
    yield Line("model", "ok", f"{found.model_type}, {found.weights_gb:.1f} GB, {found.quantization}, layers: {found.layers} ({found.path})")
    yield Line("template", "ok" if found.takes_tools else "warn", f"dialect {found.dialect}, {'renders' if found.takes_tools else 'does not render'} tools",
               "" if found.takes_tools else "tools are described in the system prompt instead; a model made for tools works better")
    fitting = min(found.context_tokens, patient.settings.context_tokens or found.context_tokens, found.fitting_tokens)
    state, advice = ("ok", "") if fitting >= launch.SMALLEST_WINDOW_TOKENS else ("warn", f"Claude Code needs {launch.SMALLEST_WINDOW_TOKENS:,} or more: choose a model with a longer window, or a smaller one")
    if found.weights_gb > found.limit_gb:
        state, advice = "bad", "the weights do not fit in the memory that MLX may take: choose a smaller model"
    yield Line("window", state, f"{found.context_tokens:,} tokens by its config, about {fitting:,} fit beside the weights in {found.limit_gb:.0f} GB", advice)


def check_speed(patient: Patient) -> Iterator[Line]:
    """With `--bench`: prefill and decode, in this process and through a server that runs."""
    if not patient.bench:
        return
    served = speed.through_server(patient.settings) if running.look(patient.settings).status == "ok" else None
    if served:
        yield Line("speed, server", "ok", f"prefill {served.prefill:.0f} tokens/s, decode {served.decode:.1f} tokens/s")
    try:
        found = _modelcheck().look(patient.settings.model)
        if found is None or (served and 2 * found.weights_gb > found.limit_gb):
            yield Line("speed", "warn", "not measured", "stop the server first: the model does not fit in memory twice")
            return
        own = importlib.import_module("mlx_native_server.operate.bench").measure(found.path, found.vocab_size)
    except ModelError as error:
        yield Line("speed", "bad", str(error))
        return
    yield Line("speed", "ok", f"prefill {own.prefill:.0f} tokens/s, decode {own.decode:.1f} tokens/s; a first prompt of 12,000 tokens takes about {12_000 / own.prefill:.0f} s")
    slower = max(own.decode / served.decode, own.prefill / served.prefill) if served else 1.0
    if patient.computer.is_mac and slower > SLOWER:
        yield Line("speed", "warn", f"the server is {slower:.1f} times slower than this process",
                   "where it is the service: its plist must say ProcessType Interactive; ./setup.sh install --service writes it anew")


CHECKS: tuple[Callable[[Patient], Iterator[Line]], ...] = (
    check_machine, check_memory, check_disk, check_python, check_mac, check_server, check_client, check_model, check_speed,
)  # fmt: skip
