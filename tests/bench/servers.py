"""Servers that a benchmark starts, each as a process of its own on a free port, and ends by its process id.

All get the same environment. On a Linux CPU that has OpenBLAS loaded in front of MLX for every one of them, since this
project's server would load it by itself and others would not.
"""
from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from client import APIS, Ask, BenchError, Target
from paths import ROOT, TESTS
from tables import OPENBLAS, has_openblas, is_cpu_build

READY_S = 300.0
STOP_S = 10.0
RANDOM = "random-"
BUILD_RANDOM = "import sys, tiny_models; tiny_models.build(sys.argv[1], sys.argv[2])"


@dataclass(frozen=True)
class Kind:
    """A server program. `command` gets the model's folder and a port."""

    name: str
    api: str
    command: Callable[[str, str], list[str]]


KINDS = {
    "ours": Kind("mlx-native-server", "anthropic", lambda folder, port: [
        sys.executable, "-m", "mlx_native_server", "serve", "--model", folder, "--host", "127.0.0.1", "--port", port]),
    "mlx_lm": Kind("mlx_lm.server", "openai", lambda folder, port: [
        sys.executable, "-m", "mlx_lm", "server", "--model", folder, "--host", "127.0.0.1", "--port", port]),
}


def environment() -> dict[str, str]:
    """The environment of every server."""
    env = {name: value for name, value in os.environ.items() if name not in ("MLX_API_KEY", "MLX_CACHE_DIR")}
    env |= {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), str(TESTS), env.get("PYTHONPATH")])), "HF_HUB_OFFLINE": "1"}
    if is_cpu_build() and has_openblas():
        env["LD_PRELOAD"] = " ".join(filter(None, [OPENBLAS, env.get("LD_PRELOAD")]))
    return env


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@contextmanager
def model_folder(name: str) -> Iterator[str]:
    """The folder of a model: `tiny`, a folder, or `random-FAMILY` for a model of `tiny_models` (gone afterwards)."""
    if name == "tiny":
        yield _printed([sys.executable, "-m", "mlx_native_server.models.tiny"]).splitlines()[-1]
    elif name.startswith(RANDOM):
        with tempfile.TemporaryDirectory() as work:
            _printed([sys.executable, "-c", BUILD_RANDOM, name.removeprefix(RANDOM), f"{work}/model"])
            yield f"{work}/model"
    else:
        yield str(Path(name).expanduser().resolve())


def _printed(command: list[str]) -> str:
    done = subprocess.run(command, env=environment(), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise BenchError(f"{' '.join(command)} ended with status {done.returncode}")
    return done.stdout


@contextmanager
def running(kind: Kind, folder: str) -> Iterator[Target]:
    """A started server that is ready to answer, ended afterwards. Raises `BenchError` with its last words.

    It finds an empty cache directory: what an earlier run left on disk would make a cold prompt a known one.
    """
    port = free_port()
    with tempfile.TemporaryDirectory() as work, open(log := Path(work) / "log", "wb") as out:
        process = subprocess.Popen(kind.command(folder, str(port)), env={"MLX_CACHE_DIR": work} | environment(), cwd=ROOT, stdin=subprocess.DEVNULL,
                                   stdout=out, stderr=subprocess.STDOUT)
        try:
            target = Target(kind.name, "127.0.0.1", port, kind.api, process.pid, log)
            _wait_ready(target, process)
            yield target
        finally:
            _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait_ready(target: Target, process: subprocess.Popen[bytes]) -> None:
    """Until `/health` is fine and one token was generated: some servers are healthy before they have a model."""
    deadline_s = time.monotonic() + READY_S
    while not _is_healthy(target):
        if process.poll() is not None or time.monotonic() > deadline_s:
            raise BenchError(f"{target.name} does not start:{target.last_words()}")
        time.sleep(0.1)
    target.ask(Ask((("user", "Hello"),)))


def _is_healthy(target: Target) -> bool:
    try:
        status, health = target.get("/health")
    except (OSError, ValueError):
        return False
    return status == 200 and health.get("status", "ok") == "ok"


def peak_memory_gb(target: Target) -> float | None:
    """The most memory that the server's process had resident, where Linux tells."""
    status = Path(f"/proc/{target.pid}/status")
    found = re.search(r"^VmHWM:\s+(\d+) kB", status.read_text(), re.M) if target.pid and status.exists() else None
    return int(found[1]) / 1024**2 if found else None


# ── the command line that the scripts share ──────────────────────────────────────────────────────


def add_arguments(parser: argparse.ArgumentParser, default: str) -> None:
    """`--serve` or `--url`, and the model."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--serve", nargs="?", const=default, default=default, metavar="NAMES",
                       help=f"start these servers one after the other, of {', '.join(KINDS)} (default {default})")
    where.add_argument("--url", help="measure a server that runs, http://127.0.0.1:4000")
    parser.add_argument("--api", choices=sorted(APIS), default="anthropic", help="what the server at --url speaks")
    parser.add_argument("--in-turn", action="store_true",
                        help="run all servers at the same time and let each do a request in turn: fairer on a machine that others use too")
    parser.add_argument("--model", default="tiny", help="tiny, a folder, or random-FAMILY for a tiny random model (llama, gemma3, …)")


def groups(arguments: argparse.Namespace) -> Iterator[list[Target]]:
    """The servers to measure, in groups that run at the same time: each alone, or all with `--in-turn`."""
    if arguments.url:
        parts = urlsplit(arguments.url)
        yield [Target(arguments.url, parts.hostname or "127.0.0.1", parts.port or 80, arguments.api)]
        return
    kinds = [KINDS[name] for name in arguments.serve.split(",")]
    with model_folder(arguments.model) as folder:
        for group in [kinds] if arguments.in_turn else [[kind] for kind in kinds]:
            with ExitStack() as stack:
                yield [stack.enter_context(running(kind, folder)) for kind in group]


def end_on_sigterm() -> None:
    """Let a SIGTERM unwind the program, so that what it started is ended too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
