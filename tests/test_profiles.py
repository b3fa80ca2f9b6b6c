"""What settings change in a request: the appended system prompt."""
from __future__ import annotations

import logging
from pathlib import Path

import pytest

from mlx_native_server.config import Settings
from mlx_native_server.prompt.profiles import apply_profiles
from mlx_native_server.protocol import Request

REQUEST = Request(messages=(), system="Be brief.")


def appended(path: Path | str, request: Request = REQUEST) -> str:
    return apply_profiles(request, Settings(append_system_prompt_file=str(path))).system


def test_without_a_file_the_request_is_the_same() -> None:
    assert apply_profiles(REQUEST, Settings()) is REQUEST


def test_the_text_is_appended_to_a_new_request(tmp_path: Path) -> None:
    file = tmp_path / "more.txt"
    file.write_text("\nAnswer in German: ü.\n", encoding="utf-8")
    assert appended(file) == "Be brief.\n\n---\n\nAnswer in German: ü."
    assert appended(file, Request(messages=())) == "Answer in German: ü."
    assert REQUEST.system == "Be brief."


def test_the_file_is_read_for_every_request(tmp_path: Path) -> None:
    file = tmp_path / "more.txt"
    for text in ("one", "two"):
        file.write_text(text)
        assert appended(file).endswith(text)


def test_the_home_directory_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "more.txt").write_text("more")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert appended("~/more.txt").endswith("more")


@pytest.mark.parametrize("content", [b"", b" \n\t\n"])
def test_an_empty_file_changes_nothing(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "more.txt"
    file.write_bytes(content)
    assert appended(file) == "Be brief."


def test_a_file_that_cannot_be_read_is_logged_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    not_text = tmp_path / "more.bin"
    not_text.write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "missing.txt", tmp_path, not_text, "nul\0byte", "~no-such-user-here/x"):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert appended(path) == "Be brief."
        assert repr(str(path))[1:-1] in repr(caplog.messages)
