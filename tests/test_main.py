"""The command line: which command runs, with which settings, and how it ends when an argument is wrong."""
from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from mlx_native_server import __main__ as command_line
from mlx_native_server import __version__
from mlx_native_server.config import SETTINGS, Settings


@pytest.fixture(autouse=True)
def no_settings_around(monkeypatch: pytest.MonkeyPatch) -> None:
    for row in SETTINGS:
        monkeypatch.delenv(row.env, raising=False)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings that `serve` was run with; nothing is served."""
    runs: list[Settings] = []
    module = SimpleNamespace(main=lambda settings, warning: runs.append(settings) or 3)
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
