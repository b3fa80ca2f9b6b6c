"""The second half of set-up, on played machines: what it makes, that twice is once, and that removing leaves nothing."""
from __future__ import annotations

import os
import plistlib
from pathlib import Path

import pytest

from mlx_native_server.operate import install, lineup, manage
from mlx_native_server.models.folder import ModelError
from mlx_native_server.operate.download import Models
from mlx_native_server.operate.install import LAUNCHERS, Installer
from mlx_native_server.operate.lineup import CHOICES, choose
from mlx_native_server.operate.made import Maker
from mlx_native_server.operate.places import places
from mlx_native_server.protocol import Traits
from mlx_native_server.models.traits import DIALECT_MARKERS
from stubs import LAUNCHCTL, SYSTEMCTL, Stubs

ROOT = Path(__file__).resolve().parent.parent
MAC = {
    ("sw_vers", "-productVersion"): "26.1", ("sysctl", "-n", "machdep.cpu.brand_string"): "Apple M4 Pro", ("sysctl", "-n", "hw.ncpu"): "14",
    ("sysctl", "-n", "hw.memsize"): str(48 * 1024**3),
}  # fmt: skip


class Machine:
    """A home directory, and an installer for it whose model is always at hand."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch, platform: str):
        self.home, self.platform, self.said, self.got = home, platform, [], []
        home.mkdir()
        self.env = {**os.environ, "HOME": str(home), "PATH": f"{home}/.local/bin:{os.environ['PATH']}"}
        for name in ("MLX_MODEL", "HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT", "XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
            self.env.pop(name, None)
        self.here = places(self.env, platform)
        self.here.prefix.mkdir(parents=True)
        (self.here.prefix / "new-folders").write_text(f"{home}/.local\n{self.here.prefix}\n")
        monkeypatch.setattr(Models, "get", lambda models, model: self.got.append(model))
        monkeypatch.setattr(manage.Background, "start", lambda background, any_settings=False: self.got.append("start"))

    def installer(self, dry_run: bool = False) -> Installer:
        run = (lambda command: MAC.get(tuple(command), "")) if self.platform == "darwin" else (lambda command: "")
        return Installer(self.here, self.env, ROOT, dry_run, self.platform, run, self.said.append)

    def tree(self) -> set[str]:
        return {str(path.relative_to(self.home)) for path in self.home.rglob("*")}


@pytest.fixture(params=["linux", "darwin"])
def machine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    stubs = Stubs(tmp_path, monkeypatch)
    stubs.add("launchctl", LAUNCHCTL)
    stubs.add("systemctl", SYSTEMCTL)
    return Machine(tmp_path / "home", monkeypatch, request.param)


# ── install and remove ───────────────────────────────────────────────────────────────────────────


def test_commands_and_settings_are_where_they_belong(machine: Machine) -> None:
    machine.installer().install("org/model", service=False)
    bin, prefix = machine.here.bin, machine.here.prefix
    assert (bin / "mlx-native-server").readlink() == prefix / "venv" / "bin" / "mlx-native-server"
    assert all((bin / name).resolve() == ROOT / "launchers" / name for name in LAUNCHERS)
    assert manage.read_settings_file(machine.here) == {"MLX_MODEL": "org/model"} and machine.got == ["org/model"]
    assert machine.here.settings.stat().st_mode & 0o077 == 0
    clicks = {path.name for path in machine.home.glob("Applications/*/*.command")}
    assert clicks == ({f"{name}.command" for name in LAUNCHERS} if machine.platform == "darwin" else set())
    assert all(os.access(path, os.X_OK) for path in machine.home.glob("Applications/*/*.command"))


def test_the_place_of_the_models_is_kept_for_the_service(machine: Machine) -> None:
    machine.env["HF_HOME"] = "/big disk/hf"
    machine.installer().install("m", service=False)
    assert manage.read_settings_file(machine.here) == {"MLX_MODEL": "m", "HF_HOME": "/big disk/hf"}
    machine.env["HF_HOME"] = "/other"
    machine.installer().install("m", service=False)
    assert manage.read_settings_file(machine.here)["HF_HOME"] == "/big disk/hf"


@pytest.mark.parametrize("service", [False, True])
def test_twice_is_once_and_removing_leaves_the_home_as_it_was(machine: Machine, service: bool) -> None:
    machine.installer().install("org/model", service)
    before = machine.tree()
    machine.installer().install(None, service=False)
    assert machine.tree() == before and machine.got.count("org/model") == 2
    machine.installer().remove(keep_models=False)
    assert machine.tree() == set()


def test_a_dry_run_says_the_same_and_does_nothing(machine: Machine) -> None:
    before = machine.tree()
    machine.installer(dry_run=True).install("org/model", service=True)
    machine.installer(dry_run=True).remove(keep_models=False)
    assert machine.tree() == before and machine.got == []
    assert any(line.startswith("would link") for line in machine.said) and any("would write" in line for line in machine.said)


def test_what_is_somebody_elses_is_left_alone(machine: Machine) -> None:
    machine.here.bin.mkdir(parents=True)
    (machine.here.bin / "claude-local").write_text("mine")
    (machine.here.bin / "other").write_text("mine")
    machine.here.settings.parent.mkdir(parents=True)
    machine.here.settings.write_text("MLX_PORT=4005\n")
    machine.installer().install("org/model", service=False)
    assert any("claude-local is there and is not this program's" in line for line in machine.said)
    assert machine.here.settings.read_text() == "MLX_PORT=4005\nMLX_MODEL=org/model\n"
    machine.installer().remove(keep_models=False)
    assert {path for path in machine.tree() if "." in path and (machine.home / path).is_file()} == {
        ".local/bin/claude-local", ".local/bin/other", ".config/mlx-native-server/env"}  # fmt: skip


def test_a_moved_checkout_takes_the_links_along(machine: Machine, tmp_path: Path) -> None:
    machine.installer().install("org/model", service=False)
    moved = machine.installer()
    moved.checkout = tmp_path / "elsewhere"
    moved.install(None, service=False)
    assert (machine.here.prefix / "checkout").readlink() == tmp_path / "elsewhere"


def test_the_service_is_written_started_and_kept_up_to_date(machine: Machine) -> None:
    machine.installer().install("org/model", service=True)
    assert machine.here.unit.exists() and machine.got == ["org/model", "start"]
    python = str(machine.here.prefix / "venv" / "bin" / "python")
    if machine.platform == "darwin":
        assert plistlib.loads(machine.here.unit.read_bytes())["ProgramArguments"][0] == python
    else:
        assert f'"{python}"' in machine.here.unit.read_text()
    machine.here.unit.write_text("old")
    machine.installer().install(None, service=False)
    assert python in machine.here.unit.read_text()


def test_a_model_that_cannot_be_had_is_not_chosen(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def get(models: Models, model: str) -> None:
        raise ModelError("There is no model 'x'.")

    monkeypatch.setattr(Models, "get", get)
    with pytest.raises(ModelError):
        machine.installer().install("x", service=False)
    assert not machine.here.settings.exists()


def test_the_command_line_ends_with_78_for_a_wrong_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / ".local" / "mlx-native-server").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert install.main(["install", "--checkout", str(ROOT), "--model", str(tmp_path / "none")]) == 78
    assert capsys.readouterr().err.splitlines()[-1] == f"setup: The model folder {tmp_path / 'none'} does not exist."


def test_the_path_is_hinted_at_only_where_it_lacks_the_commands(machine: Machine) -> None:
    machine.installer().install("m", service=False)
    assert not any("PATH" in line for line in machine.said)
    machine.env["PATH"] = "/bin"
    machine.installer().install("m", service=False)
    hint = next(line for line in machine.said if "PATH" in line)
    assert (".zshrc" if machine.platform == "darwin" else ".profile") in hint


def test_downloaded_models_are_removed_unless_they_are_to_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path / "home", monkeypatch, "linux")
    cache = tmp_path / "hub"
    for name, commit in (("models--org--ours", "a" * 40), ("models--org--theirs", "b" * 40)):
        snapshot = cache / name / "snapshots" / commit
        snapshot.mkdir(parents=True)
        (cache / name / "refs").mkdir()
        (cache / name / "refs" / "main").write_text(commit)
        (cache / name / "blobs").mkdir()
        (cache / name / "blobs" / "b").write_text("weights")
        (snapshot / "config.json").symlink_to("../../blobs/b")
    machine.env["HF_HUB_CACHE"] = str(cache)
    machine.installer().made.note("models", "org/ours")
    machine.installer(dry_run=True).remove(keep_models=False)
    machine.installer().remove(keep_models=True)
    assert len(list(cache.iterdir())) == 2
    machine.here.prefix.mkdir(parents=True)
    machine.installer().made.note("models", "org/ours")
    machine.installer().remove(keep_models=False)
    assert [path.name for path in cache.iterdir() if path.name.startswith("models")] == ["models--org--theirs"]


# ── which model ──────────────────────────────────────────────────────────────────────────────────


def test_the_model_follows_from_the_memory_and_stays(machine: Machine) -> None:
    machine.installer().install(None, service=False)
    chosen = "mlx-community/Qwen3.6-35B-A3B-4bit" if machine.platform == "darwin" else "tiny"
    assert machine.got == [chosen] and manage.read_settings_file(machine.here)["MLX_MODEL"] == chosen
    if machine.platform == "darwin":
        assert any("about 20 GB in" in line and "Apache-2.0" in line for line in machine.said)
    machine.installer().install("org/other", service=False)
    machine.installer().install(None, service=False)
    assert machine.got == [chosen, "org/other", "org/other"]


@pytest.mark.parametrize("memory_gb, gpu, repo", [
    (7, True, None), (8, True, "4B"), (15.6, True, "9B"), (16, True, "9B"), (24, True, "9B"), (32, True, "gemma"), (36, True, "35B-A3B"), (48, True, "35B-A3B"),
    (64, True, "Coder-Next"), (96, True, "122B"), (512, True, "122B"), (64, False, None),
])  # fmt: skip
def test_each_memory_has_its_model(memory_gb: float, gpu: bool, repo: str | None) -> None:
    found = choose(memory_gb, gpu)
    assert (found is None) if repo is None else (found is not None and repo in found.repo)


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: choice.repo)
def test_each_choice_fits_and_is_complete(choice: lineup.Choice) -> None:
    metal_gb = choice.memory_gb * (2 / 3 if choice.memory_gb <= 36 else 3 / 4)
    assert choice.size_gb * 1e9 / 1024**3 + 2 < metal_gb
    assert choice.repo.count("/") == 1 and choice.licence and choice.note and "Cache" in choice.caches
    assert choice.dialect in {name for _, name in DIALECT_MARKERS} | {Traits().dialect}


def test_the_table_is_in_order() -> None:
    assert [choice.memory_gb for choice in CHOICES] == sorted({choice.memory_gb for choice in CHOICES})


# ── the record ───────────────────────────────────────────────────────────────────────────────────


def test_a_folder_with_something_new_in_it_stays(tmp_path: Path) -> None:
    (tmp_path / "prefix").mkdir()
    maker = Maker(tmp_path / "prefix", lambda line: None)
    maker.folder(tmp_path / "a" / "b")
    (tmp_path / "a" / "b" / "theirs").touch()
    maker.remove_folders()
    assert (tmp_path / "a" / "b" / "theirs").exists()
    (tmp_path / "a" / "b" / "theirs").unlink()
    Maker(tmp_path / "prefix", lambda line: None).remove_folders()
    assert not (tmp_path / "a").exists()


def test_a_link_that_the_user_has_changed_into_a_file_stays(tmp_path: Path) -> None:
    maker = Maker(tmp_path, lambda line: None)
    assert maker.link(tmp_path / "command", tmp_path / "target")
    (tmp_path / "command").unlink()
    (tmp_path / "command").write_text("mine")
    maker.remove()
    assert (tmp_path / "command").read_text() == "mine"
