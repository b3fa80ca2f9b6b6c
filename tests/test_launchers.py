"""The launchers: which client is run, with which server, and what it is told."""
from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest

from mlx_native_server.config import SETTINGS, Settings, fingerprint, load
from mlx_native_server.operate import launch, manage, running
from mlx_native_server.operate.places import places
from mlx_native_server.operate.running import Seen, Who

ROOT = Path(__file__).resolve().parent.parent
HEALTH = {"status": "ok", "model": "org/Some-Model-4bit", "context_tokens": 65536, "prefill_size": 512, "pid": 1}


# ── the client ───────────────────────────────────────────────────────────────────────────────────


def program(path: Path, text: str = "exit 0") -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("places_there, found", [
    (["bin/claude", ".local/bin/claude"], "bin/claude"),
    ([".local/bin/claude", ".claude/local/claude"], ".local/bin/claude"),
    ([".claude/local/claude"], ".claude/local/claude"),
    ([".npm-global/bin/claude"], ".npm-global/bin/claude"),
    ([".nvm/versions/node/v20.1.0/bin/claude", ".nvm/versions/node/v22.0.0/bin/claude"], ".nvm/versions/node/v22.0.0/bin/claude"),
])  # fmt: skip
@pytest.mark.skipif(bool(shutil.which("claude", path="/opt/homebrew/bin:/usr/local/bin")), reason="this machine has the client in a usual place")
def test_the_client_is_found_in_its_usual_places(tmp_path: Path, places_there: list[str], found: str) -> None:
    for place in places_there:
        program(tmp_path / place)
    assert launch.find_client({"HOME": str(tmp_path), "PATH": str(tmp_path / "bin")}) == str(tmp_path / found)


def test_a_named_client_is_used_or_refused(tmp_path: Path) -> None:
    mine = program(tmp_path / "mine")
    assert launch.find_client({"CLAUDE_BIN": mine, "HOME": str(tmp_path), "PATH": ""}) == mine
    with pytest.raises(launch.LaunchError, match="CLAUDE_BIN is /no/such"):
        launch.find_client({"CLAUDE_BIN": "/no/such", "HOME": str(tmp_path), "PATH": ""})


@pytest.mark.parametrize("model, name", [
    ("mlx-community/Qwen3.5-9B-4bit", "Qwen3.5-9B-4bit"), ("/models/My Model/", "My-Model"), ("tiny", "tiny"),
    ("claude-3", "local"), ("org/Claude-like", "local"), ("", "local"),
])  # fmt: skip
def test_the_models_name_is_one_whose_window_the_client_heeds(model: str, name: str) -> None:
    assert launch.model_id(model) == name and not name.lower().startswith("claude")


def test_the_client_is_told_everything_it_needs() -> None:
    env = launch.client_env(HEALTH, "http://127.0.0.1:4010", 'k"\\')
    assert (env["ANTHROPIC_BASE_URL"], env["ANTHROPIC_AUTH_TOKEN"], env["ANTHROPIC_API_KEY"]) == ("http://127.0.0.1:4010", 'k"\\', "")
    assert (env["CLAUDE_CODE_MAX_CONTEXT_TOKENS"], env["CLAUDE_CODE_MAX_OUTPUT_TOKENS"]) == ("65536", "8192")
    assert {env[name] for name in launch.MODEL_VARIABLES} == {"Some-Model-4bit"}
    assert all(env[f"CLAUDE_CODE_USE_{cloud}"] == "" for cloud in ("BEDROCK", "VERTEX", "FOUNDRY"))
    assert env["CLAUDE_CODE_ATTRIBUTION_HEADER"] == "0" and env["CLAUDE_CODE_TOTAL_TOKENS_REMINDER"] == "off" and env["DISABLE_AUTOUPDATER"] == "1"
    assert all(isinstance(value, str) for value in env.values())
    assert launch.client_env({}, "u", "")["ANTHROPIC_AUTH_TOKEN"] == "local"


@pytest.mark.parametrize("window, answer", [(8192, 1024), (32768, 4096), (65536, 8192), (262144, 8192)])
def test_the_answers_limit_leaves_the_window_to_the_conversation(window: int, answer: int) -> None:
    """The client compacts at the window less this less 13,000: with its own 32,000 a small window is always full."""
    assert launch.client_env({"context_tokens": window}, "u", "")["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == str(answer)


@pytest.mark.parametrize("profile, arguments, start, end", [
    ("code", ["-p", "a b"], ["c", "--settings"], ["--permission-mode", "acceptEdits", "-p", "a b"]),
    ("code", ["--permission-mode=plan"], ["c", "--settings"], ["--permission-mode=plan"]),
    ("chat", [], ["c", "--tools", "", "--settings"], ["--permission-mode", "acceptEdits"]),
    ("browser", ["x"], ["c", "--mcp-config", json.dumps(launch.DEVTOOLS), "--settings"], ["acceptEdits", "x"]),
    ("narrate", [], ["c", "--settings"], ["acceptEdits"]),
])  # fmt: skip
def test_each_profile_has_its_arguments_and_the_users_come_last(profile: str, arguments: list[str], start: list[str], end: list[str]) -> None:
    words = launch.command("c", launch.PROFILES[profile], {"ANTHROPIC_MODEL": "m"}, arguments)
    assert words[:len(start)] == start and words[-len(end):] == end
    assert json.loads(words[words.index("--settings") + 1]) == {"env": {"ANTHROPIC_MODEL": "m"}} and words[words.index("--model") + 1] == "m"
    assert words.count("--permission-mode") + sum(word.startswith("--permission-mode=") for word in words) == 1


# ── the server ───────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Settings, bool]]:
    """The settings with which a server was asked for, and whether any would do."""
    asked: list[tuple[Settings, bool]] = []

    def start(background: manage.Background, any_settings: bool = False, but_not: Collection[str] = ()) -> dict:
        asked.append((background.settings, any_settings))
        return HEALTH

    monkeypatch.setattr(manage.Background, "start", start)
    return asked


@pytest.mark.parametrize("profile, env, field, value, any_settings", [
    ("code", {}, "model", "tiny", True),
    ("code", {"MLX_PORT": "4011"}, "port", 4011, True),
    ("code", {"MLX_MODEL": "org/m"}, "model", "org/m", False),
    ("chat", {"MLX_KV_BITS": "8"}, "kv_bits", 8, False),
    ("browser", {}, "browser_mode", True, False),
    ("browser", {"MLX_BROWSER_MODE": "0"}, "browser_mode", False, False),
    ("narrate", {}, "append_system_prompt_file", str(launch.NARRATION), False),
    ("narrate", {"MLX_APPEND_SYSTEM_PROMPT_FILE": "/mine"}, "append_system_prompt_file", "/mine", False),
])  # fmt: skip
def test_the_server_has_what_profile_and_variables_ask_for(tmp_path: Path, started, profile: str, env: dict[str, str], field: str, value: object, any_settings: bool) -> None:
    env = {"HOME": str(tmp_path), "PATH": "", "CLAUDE_BIN": program(tmp_path / "c")} | env
    words = launch.prepare(launch.PROFILES[profile], env, places(env, "linux"), [], lambda line: None)
    settings, any_will_do = started[0]
    assert getattr(settings, field) == value and any_will_do is any_settings
    told = json.loads(words[words.index("--settings") + 1])["env"]
    assert told["ANTHROPIC_BASE_URL"] == f"http://127.0.0.1:{settings.port}"
    assert told.get("ENABLE_TOOL_SEARCH") == ("false" if profile == "browser" else None)


@pytest.mark.parametrize("left_behind, profile, reused", [
    ("code", "code", True), ("code", "chat", True), ("narrate", "narrate", True), ("narrate", "code", False), ("browser", "chat", False),
    ("code", "narrate", False), ("other model", "code", True),
])  # fmt: skip
def test_the_server_of_another_launcher_is_not_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left_behind: str, profile: str, reused: bool) -> None:
    """After claude-local-narrate, claude-local went on narrating."""
    env = {"HOME": str(tmp_path), "PATH": "", "CLAUDE_BIN": program(tmp_path / "c")}
    other = {"MLX_MODEL": "org/m"} if left_behind == "other model" else launch.PROFILES[left_behind].server
    seen = Seen(Who.SERVER, HEALTH | {"fingerprint": fingerprint(load(other))})
    stopped: list[str] = []
    monkeypatch.setattr(running, "look", lambda settings: seen)
    monkeypatch.setattr(manage.Background, "is_ours", lambda background, seen: True)
    monkeypatch.setattr(manage.Background, "stop", lambda background: stopped.append("stop"))
    launch.prepare(launch.PROFILES[profile], env, places(env, "linux"), [], lambda line: None)
    assert (stopped == []) is reused


def test_the_narration_prompt_is_there() -> None:
    assert "spoken" in launch.NARRATION.read_text()


def test_a_short_window_is_warned_about(tmp_path: Path, started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(HEALTH, "context_tokens", 8192)
    said: list[str] = []
    env = {"HOME": str(tmp_path), "PATH": "", "CLAUDE_BIN": program(tmp_path / "c")}
    launch.prepare(launch.PROFILES["code"], env, places(env, "linux"), [], said.append)
    assert said == ["the window of 8192 tokens is short for Claude Code, which needs 48,000 or more"]


# ── the first run ────────────────────────────────────────────────────────────────────────────────


FIRST_RUNS = [
    # the file before, the answer, whether it is asked, what is in it afterwards
    (None, "y", True, {"hasCompletedOnboarding": True}),
    (None, "", True, None),
    ({"a": [1]}, "yes", True, {"a": [1], "hasCompletedOnboarding": True}),
    ({"a": 1}, "n", True, {"a": 1}),
    ({"hasCompletedOnboarding": True}, "y", False, {"hasCompletedOnboarding": True}),
    ({"hasCompletedOnboarding": False}, "y", False, {"hasCompletedOnboarding": False}),
]


@pytest.mark.parametrize("before, answer, asked, after", FIRST_RUNS)
@pytest.mark.parametrize("own_folder", [False, True])
def test_the_first_run_is_marked_as_done_only_with_consent(tmp_path: Path, before, answer: str, asked: bool, after, own_folder: bool) -> None:
    file = tmp_path / ".claude.json"
    if before is not None:
        file.write_text(json.dumps(before))
        file.chmod(0o600)
    questions: list[str] = []
    env = {"HOME": str(tmp_path / "no"), "CLAUDE_CONFIG_DIR": str(tmp_path)} if own_folder else {"HOME": str(tmp_path)}
    launch.offer_first_run(env, lambda question: questions.append(question) or answer)
    assert bool(questions) is asked and (json.loads(file.read_text()) if file.exists() else None) == after
    if before is not None:
        assert file.stat().st_mode & 0o777 == 0o600


def test_a_damaged_file_of_the_clients_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / ".claude.json").write_text("{")
    launch.offer_first_run({"HOME": str(tmp_path)}, lambda question: pytest.fail("asked"))
    assert (tmp_path / ".claude.json").read_text() == "{"


# ── the scripts, for real ────────────────────────────────────────────────────────────────────────


def run_script(tmp_path: Path, name: str, *arguments: str, server: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """Run a launcher through a link, with a client that writes down what it was given. `server` answers on a port."""
    client = program(tmp_path / "claude", f'printf "%s\\n" "$@" >{tmp_path}/arguments; echo "$ANTHROPIC_BASE_URL" >{tmp_path}/env; exit 5')
    link = tmp_path / "bin" / name
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(ROOT / "launchers" / name)
    own = {row.env for row in SETTINGS}
    around = {key: value for key, value in os.environ.items() if key not in own} | {"HOME": str(tmp_path), "CLAUDE_BIN": client, "MLX_PYTHON": sys.executable}
    return subprocess.run(["bash", str(link), *arguments], env=around | env, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, cwd=tmp_path)


def test_a_script_becomes_the_client_with_its_exit_status(tmp_path: Path) -> None:
    answer = json.dumps(HEALTH)
    code = f"""
import http.server, sys
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write({answer.encode()!r})
    def log_message(self, *a): pass
s = http.server.HTTPServer(("127.0.0.1", 0), H); print(s.server_port, flush=True); s.serve_forever()"""
    server = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        port = server.stdout.readline().strip()
        done = run_script(tmp_path, "claude-local", "-p", "a b", MLX_PORT=port)
        assert (done.returncode, done.stderr) == (5, "")
        words = (tmp_path / "arguments").read_text().split("\n")
        assert words[0] == "--settings" and words[-3:] == ["-p", "a b", ""]
        assert (tmp_path / "env").read_text().strip() == f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


def test_what_is_missing_is_said_and_the_client_not_started(tmp_path: Path) -> None:
    done = run_script(tmp_path, "claude-local-chat", CLAUDE_BIN="/no/such")
    assert (done.returncode, done.stderr) == (1, "claude-local-chat: CLAUDE_BIN is /no/such, and there is no such program.\n")
    done = run_script(tmp_path, "claude-local", MLX_PORT="x")
    assert done.returncode == 78 and "MLX_PORT: 'x' is not allowed" in done.stderr
    done = run_script(tmp_path, "claude-local-narrate", MLX_PORT="0")
    assert done.returncode == 1 and "needs one that its clients know" in done.stderr
    assert not (tmp_path / "arguments").exists()


def test_a_script_without_an_installation_says_what_to_run(tmp_path: Path) -> None:
    if (ROOT / ".venv").exists():
        pytest.skip("this checkout has an environment")
    done = run_script(tmp_path, "claude-local", MLX_PYTHON="/no/such")
    assert done.returncode == 1 and f"run  {ROOT}/setup.sh install" in done.stderr
