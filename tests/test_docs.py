"""The README is kept true: settings, commands, files and the lineup are what the code says."""
from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mlx_native_server.__main__ import COMMANDS
from mlx_native_server.config import SETTINGS
from mlx_native_server.operate.install import LAUNCHERS
from mlx_native_server.operate.lineup import CHOICES

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("row", SETTINGS, ids=lambda row: row.env)
def test_every_setting_is_in_the_table_with_its_default_and_help(row) -> None:
    assert f"| `{row.env}` | {row.default_text} | {row.help} |\n" in README


def test_the_readme_names_no_setting_that_is_not_there() -> None:
    assert set(re.findall(r"MLX_[A-Z_]+", README)) <= {row.env for row in SETTINGS} | {"MLX_NATIVE_VENV", "MLX_NATIVE_BUILD"}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_named(command: str) -> None:
    assert f"`mlx-native-server {command}`" in README


@pytest.mark.parametrize("command", ["install", "status", "start", "stop", "restart", "logs", "update", "uninstall", "serve", "test"])
def test_the_commands_of_setup_are_named_where_they_are_looked_for(command: str) -> None:
    install = README[README.index("## Install"):README.index("## Run")]
    assert f"`{command}`" in install or command == "install"
    assert re.search(rf"(?m)^#   .*\b{command}\b", (ROOT / "setup.sh").read_text(encoding="utf-8"))


def test_install_fits_one_screen() -> None:
    assert len(README[README.index("## Install"):README.index("| memory |")].splitlines()) <= 25


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: choice.repo)
def test_the_models_by_memory_are_those_of_the_code(choice) -> None:
    assert f"| {choice.memory_gb} GB | {choice.repo} | {choice.size_gb:.0f} GB | {choice.licence} | {choice.note} |\n" in README


@pytest.mark.parametrize("name", LAUNCHERS)
def test_every_launcher_is_there_and_named(name: str) -> None:
    assert (ROOT / "launchers" / name).exists() and f"`{name}`" in README


def test_the_picture_is_there() -> None:
    picture = re.search(r"!\[.*?\]\((.*?)\)", README).group(1)
    assert (ROOT / picture).read_bytes().startswith(b"\x89PNG")


def test_files_that_are_named_exist() -> None:
    names = set(re.findall(r"`([\w/]+(?:\.py|\.sh|/))`", README))
    assert len(names) > 10
    assert [name for name in sorted(names) if not (ROOT / name).exists() and not (ROOT / "mlx_native_server" / name).exists()] == []


def test_the_lineup_is_the_one_in_the_code() -> None:
    tree = ast.parse((ROOT / "mlx_native_server" / "models" / "loading.py").read_text(encoding="utf-8"))
    lineup = next(node.value for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == "LINEUP")
    for name, repo in ast.literal_eval(lineup).items():
        assert re.search(rf"\| `{name}` \| {re.escape(repo)}", README)


def test_the_replay_example_works_as_it_is_written() -> None:
    example = re.search(r"echo '(\{.*?\})' \\\n", README, re.S).group(1).replace("\n", "")
    done = subprocess.run([sys.executable, "-m", "mlx_native_server", "replay"], input=example, capture_output=True, text=True, cwd=ROOT)
    message = json.loads(done.stdout)["message"]
    assert [(block["name"], block["input"]) for block in message["content"]] == [("Bash", {"command": "ls"})]


def test_nothing_in_the_project_names_a_package_index() -> None:
    hosts = re.compile(r"pypi\.org|pythonhosted|" + "index" + r"-url|registry\.npmjs", re.I)
    files = [ROOT / name for name in ("pyproject.toml", "setup.sh", "README.md", ".ci/run")] + [path for path in (ROOT / "launchers").rglob("*") if path.is_file()] + list((ROOT / "mlx_native_server").rglob("*.py"))
    assert [path.name for path in files if hosts.search(path.read_text(encoding="utf-8"))] == []
