"""Settings: defaults, what each accepts, and errors that name the variable, the value and what is allowed."""
from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from mlx_native_server.config import SETTINGS, SettingError, Settings, cache_dir, fingerprint, load, parse_file, with_variable

EXAMPLES = {
    # field: (texts and values that it takes, texts that it does not)
    "model": ([("/models/a b", "/models/a b"), (" org/name ", "org/name")], []),
    "host": ([("0.0.0.0", "0.0.0.0"), ("::1", "::1")], []),
    "port": ([("0", 0), ("65535", 65535), (" 8080\n", 8080)], ["65536", "-1", "http", "40.0", "4000 4001"]),
    "api_key": ([("s3cret", "s3cret")], []),
    "allowed_hosts": ([(" my.mac,box ", "my.mac,box")], []),
    "context_tokens": ([("0", 0), ("200000", 200000)], ["-1", "32k"]),
    "max_tokens": ([("1", 1)], ["0", "many"]),
    "max_running": ([("1", 1)], ["0"]),
    "max_waiting": ([("0", 0)], ["-1"]),
    "prefill_size": ([("64", 64)], ["0", "512.5"]),
    "cache_limit_gb": ([("0", 0.0), ("2.5", 2.5)], ["-1", "nan", "inf", "3GB"]),
    "prompt_cache_gb": ([("auto", None), ("Auto", None), ("0", 0.0), ("12", 12.0)], ["-1", "nan", "all"]),
    "cache_dir": ([("/var/cache/m", "/var/cache/m")], []),
    "disk_cache_gb": ([("0", 0.0), ("2.5", 2.5)], ["-1", "auto"]),
    "wired_limit_gb": ([("auto", None), ("0", 0.0), ("40", 40.0)], ["-1", "inf"]),
    "kv_bits": ([("0", 0), ("4", 4), ("8", 8)], ["1", "7", "16", "four"]),
    "kv_quant_start": ([("0", 0)], ["-1"]),
    "tool_retries": ([("0", 0), ("5", 5)], ["-1", "no"]),
    "log_format": ([("text", "text"), ("JSON", "json")], ["xml", "1"]),
    "code_tools": ([("all", "all"), (" Bash,Read ", "Bash,Read")], []),
    "transcript_dir": ([("~/transcripts", "~/transcripts")], []),
    "append_system_prompt_file": ([("~/prompt.txt", "~/prompt.txt")], []),
}
SWITCHES = ["suppress_thinking", "code_mode", "browser_mode", "live_stream", "debug_request", "debug_response"]
for switch in SWITCHES:
    on, off = ("1", "true", "YES", "On"), ("0", "false", "NO", "Off")
    EXAMPLES[switch] = [(text, True) for text in on] + [(text, False) for text in off], ["2", "maybe", "enabled"]

ROW = {row.field: row for row in SETTINGS}
GOOD = [(field, text, value) for field, (good, _) in EXAMPLES.items() for text, value in good]
BAD = [(field, text) for field, (_, bad) in EXAMPLES.items() for text in bad]


def test_every_setting_has_examples() -> None:
    assert set(EXAMPLES) == set(ROW) == {field.name for field in dataclasses.fields(Settings)}


@pytest.mark.parametrize("field, text, value", GOOD)
def test_a_value_is_taken_from_the_variable_and_from_the_flag(field: str, text: str, value: object) -> None:
    from_variable, from_flag = load({ROW[field].env: text}), load({}, {field: text})
    assert getattr(from_variable, field) == value and type(getattr(from_variable, field)) is type(value)
    assert from_flag == from_variable == dataclasses.replace(Settings(), **{field: value})


@pytest.mark.parametrize("field, text", BAD)
def test_a_bad_value_names_the_variable_the_value_and_what_is_allowed(field: str, text: str) -> None:
    row = ROW[field]
    for name, env, flags in ((row.env, {row.env: text}, {}), (row.flag, {}, {field: text})):
        with pytest.raises(SettingError) as caught:
            load(env, flags)
        assert str(caught.value) == f"{name}: {text!r} is not allowed, it takes {row.kind.allowed}"


@pytest.mark.parametrize("blank", ["", " ", "\t\n"])
@pytest.mark.parametrize("row", SETTINGS, ids=lambda row: row.field)
def test_blank_means_the_default(row, blank: str) -> None:
    assert load({row.env: blank}) == load({}, {row.field: blank}) == Settings()


@pytest.mark.parametrize("row", SETTINGS, ids=lambda row: row.field)
def test_the_default_as_written_reads_back_as_the_default(row) -> None:
    if row.default_text != "unset":
        assert load({row.env: row.default_text}) == Settings()


def test_a_flag_wins_over_the_variable_even_when_it_is_blank() -> None:
    env = {"MLX_PORT": "5000", "MLX_MODEL": "org/other"}
    settings = load(env, {"port": "6000", "model": "", "host": None})
    assert (settings.port, settings.model, settings.host) == (6000, "tiny", "127.0.0.1")


def test_unknown_variables_are_ignored() -> None:
    assert load({"MLX_METAL_FAST_SYNCH": "1", "HOME": "/root"}) == Settings()


def test_names_are_unique_and_follow_one_pattern() -> None:
    for row in SETTINGS:
        assert row.env == "MLX_" + row.field.upper()
        assert row.flag == "--" + row.field.replace("_", "-")
        assert row.help and not row.help.endswith(".")


def test_the_key_is_not_shown_where_settings_are_printed() -> None:
    assert "s3cret" not in repr(load({"MLX_API_KEY": "s3cret"}))


# ── the settings file ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("env, flags, port", [
    ({}, {}, 5001), ({"MLX_PORT": "5002"}, {}, 5002), ({"MLX_PORT": " "}, {}, 5001), ({"MLX_PORT": "5002"}, {"port": "5003"}, 5003), ({}, {"port": ""}, 4000),
])  # fmt: skip
def test_variables_win_over_the_file_and_flags_over_both(env: dict, flags: dict, port: int) -> None:
    assert load(env, flags, {"MLX_PORT": "5001"}).port == port


def test_a_bad_value_in_the_file_says_that_it_is_there() -> None:
    with pytest.raises(SettingError, match="^MLX_PORT in the settings file: 'x' is not allowed"):
        load({}, {}, {"MLX_PORT": "x"})


def test_a_file_is_lines_of_variables() -> None:
    text = "# mine\n\nMLX_MODEL=org/a b\nexport MLX_PORT = 4001\nHF_HOME='/big disk/hf'\nMLX_API_KEY=\"a#b='\"\nMLX_HOST=\n"
    assert parse_file(text) == {"MLX_MODEL": "org/a b", "MLX_PORT": "4001", "HF_HOME": "/big disk/hf", "MLX_API_KEY": "a#b='", "MLX_HOST": ""}


@pytest.mark.parametrize("line", ["MLX_MODEL", "=x", "set MLX_PORT=1", "MLX-PORT=1"])
def test_a_line_that_is_none_is_named(line: str) -> None:
    with pytest.raises(SettingError, match="env, line 2: "):
        parse_file(f"# mine\n{line}\n", "env")


@pytest.mark.parametrize("text, after", [
    ("", "MLX_MODEL=b\n"), ("# x\nMLX_MODEL=a\nMLX_PORT=1", "# x\nMLX_MODEL=b\nMLX_PORT=1\n"), ("#MLX_MODEL=a\n", "#MLX_MODEL=a\nMLX_MODEL=b\n"),
])  # fmt: skip
def test_setting_one_variable_keeps_the_rest(text: str, after: str) -> None:
    assert with_variable(text, "MLX_MODEL", "b") == after


def test_the_fingerprint_is_about_the_answers_and_shows_no_key() -> None:
    same = [Settings(), Settings(port=1), Settings(api_key="k"), Settings(debug_request=True)]
    assert len({fingerprint(settings) for settings in same}) == 1
    other = [Settings(model="m"), Settings(browser_mode=True), Settings(kv_bits=4), Settings(append_system_prompt_file="f"), Settings(context_tokens=9)]
    assert len({fingerprint(settings) for settings in [*other, Settings()]}) == 6


@pytest.mark.parametrize(
    ("env", "platform", "expected"),
    [
        ({"HOME": "/h"}, "darwin", "/h/Library/Caches/mlx-native-server"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/x"}, "darwin", "/h/Library/Caches/mlx-native-server"),
        ({"HOME": "/h"}, "linux", "/h/.cache/mlx-native-server"),
        ({"HOME": "/h", "XDG_CACHE_HOME": ""}, "linux", "/h/.cache/mlx-native-server"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/x"}, "linux", "/x/mlx-native-server"),
    ],
)
def test_cache_dir(env: dict[str, str], platform: str, expected: str) -> None:
    assert cache_dir(env, platform) == Path(expected)
