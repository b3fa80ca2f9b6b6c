"""The command line: which command runs, with which settings, and how it ends when an argument is wrong."""
from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from mlx_native_server import __main__ as command_line
from mlx_native_server import __version__
from mlx_native_server.config import SETTINGS, Settings
from mlx_native_server.operate.places import places


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory of its own, and no settings around."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    for row in SETTINGS:
        monkeypatch.delenv(row.env, raising=False)
    return tmp_path


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings that `serve` was run with; nothing is served."""
    runs: list[Settings] = []
    module = SimpleNamespace(main=lambda settings, warning, background: runs.append(settings) or 3)
    monkeypatch.setattr(command_line, "preload_blas", lambda: None)
    monkeypatch.setattr(command_line, "_module", {"serve": module}.__getitem__)
    return runs


@pytest.mark.parametrize("argv", [[], ["serve"], ["--port", "0"], ["serve", "--port=0"]])
def test_serve_is_the_default_command(argv: list[str], served: list[Settings]) -> None:
    assert command_line.main(argv) == 3
    assert served == [Settings(port=0) if len(argv) > 1 or "--port" in argv else Settings()]


@pytest.mark.parametrize("row", SETTINGS, ids=lambda row: row.field)
def test_every_setting_is_a_flag(row, served: list[Settings]) -> None:
    text, value = ("4", 4)
    if isinstance(row.default, bool):
        text, value = str(not row.default), not row.default
    elif row.field == "log_format":
        text = value = "json"
    elif isinstance(row.default, str):
        text = value = "other"
    assert command_line.main(["serve", row.flag, text]) == 3
    assert served == [replace(Settings(), **{row.field: value})]


def test_a_bad_setting_ends_with_78_and_says_which(capsys: pytest.CaptureFixture[str], served: list[Settings]) -> None:
    assert command_line.main(["serve", "--kv-bits", "7"]) == 78
    assert capsys.readouterr().err == "mlx-native-server: --kv-bits: '7' is not allowed, it takes one of 0, 2, 3, 4, 5, 6, 8\n"
    assert not served


@pytest.mark.parametrize("argv", [["srve"], ["serve", "--prot", "1"], ["serve", "extra"], ["render", "--profile", "x"], ["--port"]])
def test_a_wrong_argument_ends_with_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command_line.main(argv)
    assert caught.value.code == 2
    assert argv[-1] in capsys.readouterr().err


def test_help_lists_every_setting_with_variable_and_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command_line.main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    assert caught.value.code == 0
    for row in SETTINGS:
        assert any(line.split()[:3] == [row.flag, row.env, row.default_text] and line.endswith(row.help) for line in lines), row
    assert all(any(line.split()[:1] == [name] for line in lines) for name in command_line.COMMANDS)


@pytest.mark.parametrize("command", [["--version"], ["--help"], ["serve", "--help"], ["render", "--help"], ["replay", "--help"]])
def test_help_and_version_need_no_mlx(command: list[str]) -> None:
    script = f"import sys\nfrom mlx_native_server.__main__ import main\ntry: main({command!r})\nfinally: print(sorted(set(sys.modules) & {{'mlx', 'mlx_lm', 'transformers'}}))"
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL).stdout
    assert output.splitlines()[-1] == "[]"
    assert __version__ in output or "usage:" in output


def run(*arguments: str, text: str) -> tuple[list[dict], str]:
    """One command in a process of its own: its output lines as JSON, and which heavy modules it had imported."""
    script = (
        "import sys\nfrom mlx_native_server.__main__ import main\n"
        f"code = main({list(arguments)!r})\nsys.stderr.write(repr(sorted(set(sys.modules) & {{'mlx', 'mlx_lm', 'transformers'}})))\nsys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", script], input=text, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


TOOL = {"name": "Bash", "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}}


def test_replay_answers_each_line_without_mlx() -> None:
    call = '<tool_call>{"name": "Bash", "arguments": {"command": "ls"}}</tool_call>'
    lines = [{"chunks": ["Hel", "lo"]}, {"text": call, "tools": [TOOL]}]
    answers, modules = run("replay", text="".join(json.dumps(line) + "\n" for line in lines))
    assert [answer["message"]["stop_reason"] for answer in answers] == ["end_turn", "tool_use"]
    assert answers[0]["message"]["content"][0]["text"] == "Hello"
    assert answers[1]["message"]["content"][-1]["input"] == {"command": "ls"}
    assert modules == "[]"


def test_render_answers_each_line_without_mlx() -> None:
    body = {"max_tokens": 5, "system": "Be brief.", "messages": [{"role": "user", "content": "Hi"}], "tools": [TOOL]}
    answers, modules = run("render", text=json.dumps(body) + "\n" + json.dumps({"messages": "x"}) + "\n")
    assert answers[0]["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert answers[0]["tools"][0]["function"]["name"] == "Bash"
    assert "messages" in json.dumps(answers[1]["error"])
    assert modules == "[]"


# ── the settings file, and the commands for a server in the background ───────────────────────────


def settings_file(home: Path, text: str) -> None:
    file = home / ".config" / "mlx-native-server" / "env"
    file.parent.mkdir(parents=True)
    file.write_text(text)


def test_the_settings_file_is_read_and_variables_win(home: Path, served: list[Settings], monkeypatch: pytest.MonkeyPatch) -> None:
    settings_file(home, "MLX_MODEL=org/m\nMLX_PORT=4005\nHF_TEST_HOME=/disk\n")
    monkeypatch.setenv("MLX_PORT", "4006")
    monkeypatch.delenv("HF_TEST_HOME", raising=False)
    monkeypatch.setattr(command_line.os, "environ", dict(os.environ))
    assert command_line.main([]) == 3
    assert served == [Settings(model="org/m", port=4006)] and command_line.os.environ["HF_TEST_HOME"] == "/disk"


def test_a_bad_settings_file_ends_with_78_and_a_service_with_0_and_a_log(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """launchd would start it again for ever."""
    settings_file(home, "MLX_PORT=x\n")
    assert command_line.main(["serve"]) == 78
    script = "from mlx_native_server.__main__ import main; raise SystemExit(main(['serve', '--service']))"
    env = {key: value for key, value in os.environ.items() if key != "INVOCATION_ID"}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "MLX_PORT in the settings file: 'x' is not allowed" in done.stderr
    assert "error: MLX_PORT in the settings file" in places(os.environ).server_log.read_text()


def test_status_logs_and_stop_without_a_server(home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MLX_PORT", str(free.getsockname()[1]))
    assert command_line.main(["status"]) == 1
    assert command_line.main(["stop"]) == 0
    assert command_line.main(["logs"]) == 0
    said = capsys.readouterr().out
    assert "server: not running" in said and "no server runs in the background" in said and "there is no log yet" in said


def test_logs_show_the_end_of_the_log_and_what_a_crash_wrote(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = places(os.environ)
    here.logs.mkdir(parents=True)
    here.server_log.write_text("".join(f"line {i}\n" for i in range(300)))
    here.crash_log.write_text("Fatal\n")
    assert command_line.main(["logs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (lines[0], lines[-2:]) == ("line 200", ["line 299", "crash: Fatal"])


def test_a_command_that_cannot_be_done_ends_with_1_and_a_sentence(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLX_PORT", "0")
    assert command_line.main(["start"]) == 1
    assert capsys.readouterr().err.startswith("mlx-native-server: MLX_PORT is 0")
