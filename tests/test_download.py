"""A model comes from a hub for real: set-up's second half in a process of its own, cut off, repeated, and taken back."""
from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_hub import FakeHub, files_of, hub_server  # noqa: F401  (fixture)

from mlx_native_server.config import SETTINGS

ROOT = Path(__file__).resolve().parent.parent
WEIGHTS = "model.safetensors"


class Home:
    """A scratch home directory, with set-up's Python half to run in it."""

    def __init__(self, folder: Path, hub: FakeHub):
        self.folder = folder
        own = {row.env for row in SETTINGS} | {"HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"}
        around = {name: value for name, value in os.environ.items() if name not in own}
        self.env = {**around, "HOME": str(folder), "HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "MLX_PORT": "1", "PYTHONPATH": str(ROOT)}
        (folder / ".local" / "mlx-native-server").mkdir(parents=True)
        (folder / ".local" / "mlx-native-server" / "new-folders").write_text(f"{folder}/.local\n{folder}/.local/mlx-native-server\n")

    def start(self, what: str, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "mlx_native_server.operate.install", what, "--checkout", str(ROOT), *arguments]
        return subprocess.Popen(command, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run(self, what: str, *arguments: str) -> str:
        process = self.start(what, *arguments)
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 0, said
        return said

    def finished(self) -> set[str]:
        return {path.name for path in self.folder.glob(".cache/huggingface/hub/models--own--model/snapshots/*/*") if path.exists()}


def fetched(hub: FakeHub) -> list[str]:
    """The files that were sent since the last look."""
    asked, hub.asked[:] = list(hub.asked), []
    return [line.rpartition("/")[2] for line in asked if line.startswith("GET") and "/resolve/" in line]


@pytest.mark.parametrize("how, status", [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)])
def test_a_download_that_was_cut_off_goes_on_with_the_file_it_was_at(hub_server: FakeHub, tmp_path: Path, tiny_model: Any, how: int, status: int) -> None:
    files = files_of(tiny_model("llama"))
    hub_server.repos["own/model"], hub_server.stalls = files, WEIGHTS
    home = Home(tmp_path, hub_server)
    process = home.start("install", "--model", "own/model")
    assert hub_server.halfway.wait(60)
    process.send_signal(how)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == status and (status < 0 or "run it again to go on" in said)
    assert WEIGHTS in fetched(hub_server)
    before = home.finished()
    assert "config.json" in before and WEIGHTS not in before and not (tmp_path / ".config").exists()

    hub_server.stalls = ""
    assert "downloading own/model" in home.run("install", "--model", "own/model")
    again = fetched(hub_server)
    assert again.count(WEIGHTS) == 1 and not before & set(again) and home.finished() == set(files)


def test_a_model_that_was_downloaded_is_used_without_the_hub_and_taken_away_at_last(hub_server: FakeHub, tmp_path: Path, tiny_model: Any) -> None:
    hub_server.repos["own/model"] = files_of(tiny_model("llama"))
    home = Home(tmp_path, hub_server)
    home.run("install", "--model", "own/model")
    assert WEIGHTS in fetched(hub_server)
    home.run("install")
    assert fetched(hub_server) == []
    home.run("remove")
    assert sorted(tmp_path.rglob("*")) == []
