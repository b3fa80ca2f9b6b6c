"""States on disk under an engine: what comes back is what a cold run computes, and nothing that is damaged is used."""
from __future__ import annotations

import logging
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from engine_rig import WIDE, Rig, Talk, alone, job, prompt, rig, state_files, words  # noqa: F401  (fixtures)
from mlx_native_server.engine import archive, state_file
from mlx_native_server.engine.memory import GIB
from mlx_native_server.protocol import Job


def leave(rig: Any, folder: Path, tokens: list[int], checkpoints: tuple[int, ...] = (), **settings: Any) -> None:
    """An engine that answers one prompt and ends."""
    engine = rig(states=folder, **settings)
    engine.ask(tokens, checkpoints=checkpoints)
    assert engine.engine.close(60)


def reused_and_said(engine: Rig, wanted: Job) -> tuple[int, list[int]]:
    replies = engine.replies(engine.engine.submit(wanted))
    return replies[0].reused_tokens, words(replies)


@pytest.mark.parametrize("family", ["llama", "gemma3", "gemma4", "qwen3_5"])
def test_after_a_restart_a_conversation_goes_on_as_if_cold_and_prefills_what_is_new(rig: Any, alone: Any, family: str, tmp_path: Path,
                                                                                    caplog: Any) -> None:
    caplog.set_level(logging.INFO)
    first = rig(family, states=tmp_path / "m")
    talk = Talk(prompt(1, 300), "one")
    talk.say(prompt(2, 40), typed=True)
    talk.answered(first.answer(first.engine.submit(talk.job())))
    assert first.engine.close(60)
    assert {stat.S_IMODE(path.stat().st_mode) for path in state_files(tmp_path / "m")} == {0o600}

    second = rig(family, states=tmp_path / "m")
    talk.say(prompt(3, 30))
    wanted, new_session = talk.job(), job(prompt(1, 300) + prompt(4, 20), checkpoints=(300, 317), session="two")
    replies = second.replies(second.engine.submit(wanted))
    assert replies[0].prefilled_tokens <= 30 + 8
    assert words(replies) == alone(family, wanted.tokens, 6)
    replies = second.replies(second.engine.submit(new_session))
    assert replies[0].prefilled_tokens == 20
    assert words(replies) == alone(family, new_session.tokens)
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("request ")]
    assert "from=disk" in lines[1]
    assert second.engine.health()["prompt_cache"]["disk"]["read"] >= 1


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_new_session_after_a_restart_begins_with_the_system_from_disk(rig: Any, alone: Any, family: str, tmp_path: Path) -> None:
    """Also when the conversation that had it is not there any more."""
    leave(rig, tmp_path / "m", prompt(1, 300) + prompt(2, 40), (300, 337), family=family)
    for path in state_files(tmp_path / "m"):
        if "system" not in path.name:
            path.unlink()
    wanted = job(prompt(1, 300) + prompt(4, 20), checkpoints=(300, 317))
    assert reused_and_said(rig(family, states=tmp_path / "m"), wanted) == (300, alone(family, wanted.tokens))


def test_a_quantized_state_comes_back(rig: Any, tiny_model: Any, tmp_path: Path) -> None:
    settings = dict(folder=tiny_model("llama", **WIDE), kv_bits=8, kv_quant_start=100, states=tmp_path / "m")
    tokens = prompt(1, 400)
    first = rig(**settings)
    first.ask(tokens)
    expected = first.ask(tokens + [400])
    assert first.engine.close(60)
    reused, said = reused_and_said(rig(**settings), job(tokens + [400]))
    assert reused >= 399 and said == expected


def damage(path: Path, at: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(at * (len(data) - 1))] ^= 0x10
    path.write_bytes(data)


@pytest.mark.parametrize("harm", [
    lambda path: damage(path, 0.9),
    lambda path: damage(path, 0.0),
    lambda path: damage(path, 0.01),
    lambda path: path.write_bytes(path.read_bytes()[:-100]),
    lambda path: path.write_bytes(b""),
    lambda path: path.write_bytes(b"\x10\0\0\0\0\0\0\0[]              "),
])
def test_a_damaged_file_is_not_used_and_goes(rig: Any, alone: Any, tmp_path: Path, harm: Any) -> None:
    tokens = prompt(1, 400)
    leave(rig, tmp_path / "m", tokens, family="gemma3")
    assert state_files(tmp_path / "m")
    for path in state_files(tmp_path / "m"):
        harm(path)
    second = rig("gemma3", states=tmp_path / "m", disk_cache_gb=1.0)
    assert reused_and_said(second, job(tokens + [400])) == (0, alone("gemma3", tokens + [400]))
    assert second.engine.close(60)
    for path in state_files(tmp_path / "m"):
        state_file.read_header(path)  # they are new ones


def test_a_file_that_is_damaged_while_the_server_runs_is_not_used(rig: Any, alone: Any, tmp_path: Path) -> None:
    tokens = prompt(1, 400)
    leave(rig, tmp_path / "m", tokens)
    second = rig(states=tmp_path / "m")
    second.ask(prompt(2, 20))  # it has looked at the files
    for path in state_files(tmp_path / "m"):
        damage(path, 0.9)
    assert reused_and_said(second, job(tokens + [400])) == (0, alone("llama", tokens + [400]))


def test_another_models_files_are_not_used_and_named_as_the_reason(rig: Any, tmp_path: Path, caplog: Any) -> None:
    caplog.set_level(logging.INFO)
    for name in ("a", "b"):
        leave(rig, tmp_path / name, prompt(1, 400), (300,))
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("request ")]
    assert "reused=0" in lines[1] and lines[1].endswith("miss=model_changed@0")


def test_nothing_is_written_without_a_wish_for_it(rig: Any, tmp_path: Path) -> None:
    leave(rig, tmp_path / "m", prompt(1, 400), disk_cache_gb=0.0)
    assert not (tmp_path / "m").exists()


def test_an_idle_conversation_is_written_while_the_server_runs(rig: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(archive, "IDLE_S", 0.0)
    monkeypatch.setattr(archive, "LOOK_EVERY_S", 0.01)
    engine = rig(states=tmp_path / "m")
    engine.ask(prompt(1, 400), session="one")
    until_s = time.monotonic() + 60
    while not any("plain" in path.name for path in state_files(tmp_path / "m")) and time.monotonic() < until_s:
        engine.engine.health()
    assert [path.name.split("-")[0] for path in state_files(tmp_path / "m")] == ["412"]


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_what_memory_has_no_room_for_comes_back_from_disk(rig: Any, alone: Any, family: str, tmp_path: Path) -> None:
    engine = rig(family, states=tmp_path / "m", prompt_cache_gb=2_500_000 / GIB)
    talks = [prompt(number, 400) for number in range(8)]
    for tokens in talks:
        engine.ask(tokens, 2)
    assert engine.engine.health()["prompt_cache"]["evictions"] > 0
    assert engine.engine._reuse.archive._writer.close(60)
    reused, said = reused_and_said(engine, job(talks[0] + [400], 4))
    assert reused >= 399 and said == alone(family, talks[0] + [400], 4)


def test_a_folder_that_cannot_be_had_is_no_reason_to_fail(rig: Any, tmp_path: Path) -> None:
    (tmp_path / "m").write_text("a file")
    engine = rig(states=tmp_path / "m")
    assert engine.ask(prompt(1, 300), 2)
