"""The launchers, with stubs for `curl` (the server's health) and `claude` (which writes down its arguments)."""
from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

LAUNCHER = Path(__file__).resolve().parent.parent / "launchers" / "claude-local"
OK = json.dumps({"status": "ok", "model": "org/m", "context_tokens": 65536, "requests": {"finished": 1}})
LOADING = json.dumps({"status": "loading", "model": "org/m", "context_tokens": None})


def run(folder: Path, answers: list[str], *arguments: str, claude: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the launcher; each look at `/health` gets the next answer, an empty one is a refused connection."""
    folder.joinpath("bin").mkdir()
    for tool in ("bash", "sed", "cat", "head", "mv"):
        folder.joinpath("bin", tool).symlink_to(shutil.which(tool))
    folder.joinpath("answers").write_text("".join(answer + "\n" for answer in answers))
    stubs = {
        "curl": f'cd {folder}; echo "$@" >>curl; read -r line <answers; sed 1d answers >left; mv left answers; [ -n "$line" ] && printf %s "$line"',
        "sleep": "",
        "claude": f"printf '%s\\n' \"$@\" >{folder}/arguments; exit 5",
    }
    for name in stubs if claude else ("curl", "sleep"):
        path = folder / "bin" / name
        path.write_text(f"#!/bin/bash\n{stubs[name]}\n")
        path.chmod(0o755)
    return subprocess.run(["bash", LAUNCHER, *arguments], env={"PATH": str(folder / "bin")} | env, capture_output=True, text=True, timeout=30)


def test_the_client_gets_the_servers_address_window_and_its_own_arguments(tmp_path: Path) -> None:
    done = run(tmp_path, [LOADING, LOADING, OK], "-p", "a b", MLX_PORT="4010", MLX_API_KEY='k"\\')
    assert (done.returncode, done.stderr) == (5, "claude-local: the server is loading its model\n")
    flag, settings, *rest = (tmp_path / "arguments").read_text().splitlines()
    env = json.loads(settings)["env"]
    assert (flag, rest) == ("--settings", ["--model", "local", "-p", "a b"])
    assert (env["ANTHROPIC_BASE_URL"], env["ANTHROPIC_AUTH_TOKEN"], env["CLAUDE_CODE_MAX_CONTEXT_TOKENS"]) == ("http://127.0.0.1:4010", 'k"\\', "65536")
    assert env["ANTHROPIC_API_KEY"] == "" and all(isinstance(value, str) for value in env.values())
    assert "http://127.0.0.1:4010/health" in (tmp_path / "curl").read_text()


REFUSALS = [
    ([""], {}, "no server answers at http://127.0.0.1:4000; start it with  ./setup.sh serve"),
    (["<html>"], {}, "another program answers at http://127.0.0.1:4000"),
    ([json.dumps({"status": "failed"})], {}, "has failed to load its model"),
    ([OK], {"claude": False}, "Claude Code (claude) is not on PATH"),
]


@pytest.mark.parametrize("answers, options, words", REFUSALS)
def test_what_is_missing_is_said_and_the_client_not_started(tmp_path: Path, answers: list[str], options: dict, words: str) -> None:
    done = run(tmp_path, answers, **options)
    assert done.returncode == 1 and words in done.stderr
    assert not (tmp_path / "arguments").exists()


def test_a_short_window_is_warned_about(tmp_path: Path) -> None:
    done = run(tmp_path, [OK.replace("65536", "8192")])
    assert done.returncode == 5 and "the window of 8192 tokens is short" in done.stderr


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not installed")
def test_shellcheck() -> None:
    done = subprocess.run(["shellcheck", LAUNCHER], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
