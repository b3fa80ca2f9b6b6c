"""setup.sh on machines of every kind: what it refuses, what it installs, and that a second run does nothing."""
from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from setup_machine import ROOT, UV_STUB, Machine

PARTS = sorted((ROOT / "launchers" / "lib").glob("*.sh"))
LAUNCHERS = sorted(path for path in (ROOT / "launchers").glob("claude-*"))
SCRIPTS = [ROOT / "setup.sh", ROOT / ".ci" / "run", *LAUNCHERS]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def sentence(done: subprocess.CompletedProcess[str]) -> str:
    """The one line that a refused run prints."""
    assert done.returncode == 1 and done.stdout == ""
    line = done.stderr.splitlines()[-1]
    assert line.startswith("setup: ") and line.endswith(".")
    return line


# ── the script itself ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("flag", ["--help", "-h", "help"])
def test_help_is_the_header(machine: Machine, flag: str) -> None:
    header = re.match(r"#!.*\n((?:#.*\n)+)\n", (ROOT / "setup.sh").read_text()).group(1)
    done = machine.run(flag)
    assert (done.returncode, done.stdout, done.stderr) == (0, re.sub(r"(?m)^# ?", "", header), "")
    assert all(re.search(rf"(?m)^  {command}\b", done.stdout) for command in ("install", "status", "start", "logs", "update", "uninstall", "serve", "test"))


UNKNOWN = [("instal",), ("--port", "1"), ("install", "--modell", "x"), ("install", "--model"), ("install", "tiny"), ("uninstall", "--service"), ("update", "now")]


@pytest.mark.parametrize("arguments", UNKNOWN)
def test_an_unknown_command_or_option_is_usage_and_2(machine: Machine, arguments: tuple[str, ...]) -> None:
    machine.python()
    done = machine.run(*arguments)
    assert done.returncode == 2 and "Usage: ./setup.sh" in done.stderr and machine.calls() == []
    assert arguments[-1] in done.stderr or arguments[0] in done.stderr


@pytest.mark.parametrize("script", [*SCRIPTS, *PARTS], ids=lambda path: path.name)
def test_syntax(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True)
    assert os.access(script, os.X_OK) == (script in SCRIPTS)


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not installed")
@pytest.mark.parametrize("script", [*SCRIPTS, *PARTS], ids=lambda path: path.name)
def test_shellcheck(script: Path) -> None:
    done = subprocess.run(["shellcheck", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


NOT_IN_BASH_3 = [r"declare -A", r"\bmapfile\b", r"\breadarray\b", r"\$\{\w+(,,|\^\^|@)", r"&>>", r"\|&", r"\[\[ -v", r"wait -n"]
NOT_ON_A_MAC = [r"\btimeout \d", r"\bflock\b", r"\bnproc\b", r"sha256sum", r"readlink -f", r"sed -i", r"grep -P", r"date -d", r"/proc/"]


@pytest.mark.parametrize("pattern", NOT_IN_BASH_3 + NOT_ON_A_MAC)
def test_scripts_use_only_what_a_mac_has(pattern: str) -> None:
    assert [path.name for path in (ROOT / "setup.sh", *PARTS, *LAUNCHERS) if re.search(pattern, path.read_text())] == []


# ── machines that are refused ────────────────────────────────────────────────────────────────────


def intel_mac(machine: Machine) -> None:
    machine.mac(machine="x86_64", silicon=False)


def rosetta(machine: Machine) -> None:
    machine.mac(machine="x86_64", silicon=True)


def old_macos(machine: Machine) -> None:
    machine.mac(version="13.7.2")


def other_system(machine: Machine) -> None:
    machine.system("FreeBSD", "amd64")


REFUSED = [
    (intel_mac, "this is an Intel Mac, and MLX needs Apple Silicon"),
    (rosetta, "this shell runs under Rosetta"),
    (old_macos, "this is macOS 13.7.2, and MLX needs macOS 14 or newer"),
    (other_system, "this runs on macOS and Linux, not on FreeBSD"),
]


@pytest.mark.parametrize("command", ["serve", "test", "install", "status"])
@pytest.mark.parametrize("setting, words", REFUSED, ids=lambda value: getattr(value, "__name__", ""))
def test_a_machine_that_cannot_is_told_in_one_sentence(machine: Machine, command: str, setting, words: str) -> None:
    machine.python()
    setting(machine)
    done = machine.run(command)
    assert words in sentence(done) and len(done.stderr.splitlines()) == 1
    assert machine.calls() == [] and not machine.venv.exists()


@pytest.mark.parametrize("system", ["Linux", "Darwin"])
@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac may have Python in places that are not on PATH")
def test_without_a_python_the_one_command_that_gets_it_is_said(machine: Machine, system: str) -> None:
    if system == "Darwin":
        machine.mac()
    words = sentence(machine.run("serve"))
    assert "no Python 3.11 or newer was found" in words
    assert ("apt-get install python3 python3-venv" if system == "Linux" else "brew install python@3.13") in words


PYTHONS = [
    # what the only Python says of itself, on a Mac or not, what the sentence must have
    ("3.10 x86_64 yes", False, "is Python 3.10"),
    ("2.7 x86_64 no", False, "is Python 2.7"),
    ("3.12 x86_64 yes", True, "is an Intel build"),
    ("3.11 x86_64 no", False, "apt-get install python3-venv"),
    ("", False, "no Python 3.11 or newer was found;"),
]


@pytest.mark.parametrize("says, mac, words", PYTHONS)
@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac may have Python in places that are not on PATH")
def test_a_python_that_does_not_fit_is_named(machine: Machine, says: str, mac: bool, words: str) -> None:
    machine.python("python3")
    if mac:
        machine.mac()
    assert words in sentence(machine.run("serve", STUB_PYTHON=says))


def test_a_given_python_is_used_or_refused_but_never_replaced(machine: Machine) -> None:
    machine.python()
    machine.python("mine")
    mine = str(machine.folder / "bin" / "mine")
    assert machine.run("serve", PYTHON=mine).returncode == 0
    assert f"{mine} is Python 3.9" in sentence(machine.run("serve", PYTHON=mine, STUB_PYTHON="3.9 x86_64 yes", MLX_NATIVE_VENV=str(machine.folder / "other")))


@pytest.mark.skipif(sys.platform == "darwin" or not Path("/usr/bin/python3").exists(), reason="needs a Linux with /usr/bin/python3")
@pytest.mark.parametrize("tools, words", [("exit 2", "no Python 3.11 or newer was found;"), ("exit 0", "/usr/bin/python3")])
def test_apples_python_is_not_run_without_the_command_line_tools(machine: Machine, tools: str, words: str) -> None:
    """It opens Apple's install dialog. With the tools it is asked, and here turned down: it is no arm64 build or too old."""
    machine.mac()
    machine.stub("xcode-select", tools)
    done = machine.run("serve", PATH=machine.env["PATH"] + ":/usr/bin")
    assert words in sentence(done)


# ── installing ───────────────────────────────────────────────────────────────────────────────────


def installed(calls: list[str]) -> str:
    """The requirements given to the first pip (or uv) install."""
    return next(line for line in calls if " install " in line)


def nvidia(text: str):
    return lambda machine: machine.stub("nvidia-smi", text)


BUILDS = [
    # machine, variables, what must be installed, what must not
    (lambda machine: None, {}, "mlx[cpu]", "cuda13"),
    (nvidia("echo 'GPU 0: NVIDIA H100 (UUID: x)'"), {}, "mlx[cuda13]", "[cpu]"),
    (nvidia("echo 'NVIDIA-SMI has failed'; exit 9"), {}, "mlx[cpu]", "cuda13"),
    (nvidia("echo 'GPU 0: NVIDIA H100 (UUID: x)'"), {"MLX_NATIVE_BUILD": "cpu"}, "mlx[cpu]", "cuda13"),
    (lambda machine: machine.mac(), {}, "mlx>=", "cuda13"),
]


@pytest.mark.parametrize("setting, env, wanted, unwanted", BUILDS)
def test_the_mlx_build_that_fits_is_installed(machine: Machine, setting, env: dict[str, str], wanted: str, unwanted: str) -> None:
    machine.python()
    setting(machine)
    assert machine.run("serve", **env).returncode == 0
    calls = machine.calls()
    assert wanted in installed(calls) and unwanted not in installed(calls) and "mlx-lm>=" in installed(calls)
    assert f"--no-deps --editable {machine.folder / 'checkout'}" in calls[1]


def test_the_second_run_installs_nothing(machine: Machine) -> None:
    machine.python()
    assert machine.run("serve").returncode == 0
    assert sum(line.startswith("pip") for line in machine.calls()) == 2
    done = machine.run("serve", "--port", "0")
    assert (done.stderr, machine.calls()) == ("", ["python -m mlx_native_server serve --port 0"])


def test_tests_bring_pytest_and_then_serve_needs_no_install(machine: Machine) -> None:
    machine.python()
    assert machine.run("test", "-k", "a b").returncode == 0
    calls = machine.calls()
    assert "pytest" in installed(calls)
    assert calls[2:] == ["python -m mlx_native_server.models.tiny", "python -m pytest -k a b"]
    machine.run("serve")
    assert machine.calls() == ["python -m mlx_native_server serve"]


CHANGES = {
    "requirements": lambda machine: (machine.folder / "checkout" / "pyproject.toml").open("a").write("\n# new\n"),
    "build": nvidia("echo 'GPU 0: x'"),
    "python": lambda machine: machine.env.update(STUB_PYTHON="3.13 x86_64 yes"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_of_what_it_was_made_from_installs_again(machine: Machine, change) -> None:
    machine.python()
    machine.run("serve")
    machine.calls()
    change(machine)
    machine.run("serve")
    assert "mlx-lm>=" in installed(machine.calls())


FAILURES = [
    ({"STUB_PIP": "no-network"}, "there is no network, or the Python package index cannot be reached"),
    ({"STUB_PIP": "no-space"}, "No space left on device"),
    ({"STUB_ASSERT": "mlx is 0.29.3, needed is <0.33,>=0.32.2"}, "mlx is 0.29.3, needed is <0.33,>=0.32.2"),
]


@pytest.mark.parametrize("env, words", FAILURES)
def test_a_failed_install_is_one_sentence_and_the_next_run_repairs_it(machine: Machine, env: dict[str, str], words: str) -> None:
    machine.python()
    assert words in sentence(machine.run("serve", **env))
    machine.calls()
    assert machine.run("serve").returncode == 0
    assert len(machine.calls()) == 3


def test_a_broken_environment_is_made_anew(machine: Machine) -> None:
    machine.python()
    machine.run("serve")
    machine.calls()
    (machine.venv / "bin" / "python").write_text("#!/no/such/interpreter\n")
    assert machine.run("serve").returncode == 0
    assert "mlx-lm>=" in installed(machine.calls())


def test_a_folder_that_is_no_environment_is_left_alone(machine: Machine) -> None:
    machine.python()
    letters = machine.folder / "letters"
    letters.mkdir()
    (letters / "a.txt").write_text("dear")
    assert "is no virtual environment" in sentence(machine.run("serve", MLX_NATIVE_VENV=str(letters)))
    assert [path.name for path in letters.iterdir()] == ["a.txt"]


@pytest.mark.parametrize("python, chosen", [(True, "/python3.12"), (False, ">=3.11")])
@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac may have Python in places that are not on PATH")
def test_uv_is_used_where_it_is(machine: Machine, python: bool, chosen: str) -> None:
    machine.stub("uv", UV_STUB)
    if python:
        machine.python()
    assert machine.run("serve", STUB_PYTHON="3.12 x86_64 no").returncode == 0
    calls = machine.calls()
    assert calls[0].startswith("uv venv") and chosen in calls[0]
    assert calls[1].startswith(f"uv pip install --python {machine.venv}/bin/python mlx-lm>=") and calls[2].startswith("uv pip install")


def test_the_servers_arguments_and_exit_status_pass_through(machine: Machine) -> None:
    machine.python()
    done = machine.run("serve", "--model", "a b", "", STUB_STATUS="78")
    assert done.returncode == 78 and machine.calls()[-1] == "python -m mlx_native_server serve --model a b "


# ── the commands of an installation ──────────────────────────────────────────────────────────────


def test_install_makes_the_environment_and_hands_over_to_the_python_half(machine: Machine) -> None:
    machine.python()
    checkout = machine.folder / "checkout"
    assert machine.run("install", "--model", "a b", "--service").returncode == 0
    calls = machine.calls()
    assert "mlx-lm>=" in calls[0] and f"--editable {checkout}" in calls[1]
    assert calls[2:] == [f"python -m mlx_native_server.operate.install install --checkout {checkout} --model a b --service"]
    assert (machine.prefix / "venv" / "bin" / "python").exists() and not machine.venv.exists()
    assert (machine.prefix / "new-folders").read_text().split() == [str(machine.prefix.parent), str(machine.prefix)]


@pytest.mark.parametrize("arguments", [(), ("install",)])
def test_without_a_command_it_installs_and_the_second_time_there_is_nothing_to_install(machine: Machine, arguments: tuple[str, ...]) -> None:
    machine.python()
    machine.run(*arguments)
    machine.calls()
    assert machine.run(*arguments).returncode == 0
    assert machine.calls() == [f"python -m mlx_native_server.operate.install install --checkout {machine.folder / 'checkout'}"]
    assert (machine.prefix / "new-folders").read_text().count("\n") == 2


def test_a_dry_run_makes_nothing(machine: Machine) -> None:
    machine.python()
    done = machine.run("install", "--dry-run", "--model=x")
    assert done.returncode == 0 and f"would make the environment {machine.prefix}/venv" in done.stderr
    assert machine.calls() == [f"python -m mlx_native_server.operate.install install --checkout {machine.folder / 'checkout'} --dry-run --model x"]
    assert list((machine.folder / "home").iterdir()) == []


@pytest.mark.parametrize("free_mb, nvidia_gpu, refused", [(2000, False, True), (4000, False, False), (4000, True, True)])
def test_a_full_disk_is_said_before_anything_is_made(machine: Machine, free_mb: int, nvidia_gpu: bool, refused: bool) -> None:
    machine.python()
    machine.disk(free_mb)
    if nvidia_gpu:
        machine.stub("nvidia-smi", "echo 'GPU 0: x'")
    done = machine.run("install")
    assert (done.returncode != 0) == refused
    if refused:
        assert f"has {free_mb} MB free" in sentence(done) and list((machine.folder / "home").iterdir()) == []


@pytest.mark.parametrize("failure", [{"STUB_PIP": "no-network"}, {"STUB_STATUS": "78"}])
def test_a_half_done_install_is_repaired_by_the_next(machine: Machine, failure: dict[str, str]) -> None:
    machine.python()
    assert machine.run("install", **failure).returncode == int(failure.get("STUB_STATUS", "1"))
    machine.calls()
    assert machine.run("install").returncode == 0
    assert machine.calls()[-1].startswith("python -m mlx_native_server.operate.install install")


@pytest.mark.parametrize("command", ["status", "start", "stop", "restart", "logs", "update"])
def test_what_needs_an_installation_says_so(machine: Machine, command: str) -> None:
    machine.python()
    assert "nothing is installed, or it is broken: run" in sentence(machine.run(command)) and machine.calls() == []


@pytest.mark.parametrize("command", [("status",), ("start",), ("stop",), ("restart",), ("logs", "--follow")])
def test_the_programs_own_commands_are_passed_on(machine: Machine, command: tuple[str, ...]) -> None:
    machine.python()
    machine.run("install")
    machine.calls()
    assert machine.run(*command, STUB_STATUS="3").returncode == 3
    assert machine.calls() == ["python -m mlx_native_server " + " ".join(command)]


def test_update_pulls_and_sees_to_the_requirements_and_the_server(machine: Machine) -> None:
    machine.python()
    machine.run("install")
    (machine.folder / "checkout" / ".git").mkdir()
    machine.stub("git", 'echo "git $*" >>"$STUB_CALLS"; echo "# newer" >>"$2/pyproject.toml"')
    machine.calls()
    assert machine.run("update").returncode == 0
    calls = machine.calls()
    assert calls[0] == f"git -C {machine.folder / 'checkout'} pull --ff-only" and calls[1].startswith("pip install")
    assert [call.split()[-1] for call in calls[-2:]] == ["status", "restart"] and "install.install" not in calls[3]


def test_an_update_that_git_refuses_changes_nothing(machine: Machine) -> None:
    machine.python()
    machine.run("install")
    (machine.folder / "checkout" / ".git").mkdir()
    machine.stub("git", "exit 1")
    machine.calls()
    assert "git could not update" in sentence(machine.run("update")) and machine.calls() == []


def test_uninstall_works_with_a_broken_environment_and_twice(machine: Machine) -> None:
    machine.python()
    machine.run("install")
    (machine.prefix / "venv" / "bin" / "python").unlink()
    machine.calls()
    assert machine.run("uninstall", "--keep-models").returncode == 0
    assert machine.calls() == [f"python -m mlx_native_server.operate.install remove --checkout {machine.folder / 'checkout'} --keep-models"]
    shutil.rmtree(machine.prefix)
    done = machine.run("uninstall")
    assert (done.returncode, machine.calls()) == (0, []) and "nothing is installed" in done.stderr


def test_serve_uses_the_installation_from_the_same_folder(machine: Machine) -> None:
    machine.python()
    machine.run("install")
    (machine.prefix / "checkout").symlink_to(machine.folder / "checkout")
    machine.calls()
    machine.run("serve")
    assert machine.calls() == ["python -m mlx_native_server serve"] and not machine.venv.exists()
