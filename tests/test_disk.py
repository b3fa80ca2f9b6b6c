"""Files of states: which are found, which go, and what is left of them when something fails."""
from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from engine_rig import prompt, state_files
from mlx_native_server.engine import archive, disk, disk_writer, state_file
from mlx_native_server.engine.disk import FIXED, PLAIN, WORTH_TOKENS, Entry, Shelf, fingerprint
from mlx_native_server.engine.disk_writer import MOST_WAITING, Saving, Writer
from mlx_native_server.engine.prefix_tree import pack
from mlx_native_server.engine.state_file import Tensor


def shelf(folder: Path, limit_bytes: int = 1 << 30, has_fixed: bool = False) -> Shelf:
    made = Shelf(folder, limit_bytes, True, has_fixed)
    made.open()
    return made


def saving(tokens: list[int], part: str = PLAIN, size_bytes: int = 100, keep: frozenset[int] = frozenset(), is_system: bool = False) -> Saving:
    return Saving(pack(tokens), part, is_system, "[]", [Tensor("0", "U8", (size_bytes,), (memoryview(bytes(size_bytes)),))], keep)


def write(on: Shelf, *savings: Saving) -> Writer:
    writer = Writer(on)
    writer.start()
    for each in savings:
        writer.save(each)
    assert writer.close(60)
    return writer


A, B, C = prompt(1, 300), prompt(2, 300), prompt(3, 300)


def test_a_file_is_found_by_what_a_prompt_has_in_common_with_it(tmp_path: Path) -> None:
    on = shelf(tmp_path / "m")
    write(on, saving(A + B))
    for each in (on, shelf(tmp_path / "m")):
        assert each.find(pack(A + B + C), 0).tokens == 600
        assert each.find(pack(A + C), 0).tokens == 300
        assert each.find(pack(A + C), 300) is not None and each.find(pack(A + C), 301) is None
        assert each.find(pack(C), 0) is None
        assert each.find(pack(A[:WORTH_TOKENS]), 0) is None, "so few are as soon computed"


def test_a_fixed_part_is_used_at_its_own_length_and_with_a_plain_part_that_covers_it(tmp_path: Path) -> None:
    on = shelf(tmp_path / "m", has_fixed=True)
    write(on, saving(A, FIXED), saving(A + B, FIXED))
    assert on.find(pack(A + B + C), 0) is None
    write(on, saving(A + B, PLAIN, keep=frozenset({300, 600})))
    found = on.find(pack(A + B + C), 0)
    assert (found.tokens, sorted(found.entries)) == (600, [FIXED, PLAIN])
    found = on.find(pack(A + C), 0)
    assert (found.tokens, found.entries[PLAIN].tokens) == (300, 600)


def test_a_conversations_newest_state_takes_the_place_of_its_older_ones(tmp_path: Path) -> None:
    on = shelf(tmp_path / "m", has_fixed=True)
    write(on, saving(A[:280], FIXED, is_system=True), saving(A[:280], is_system=True), saving(A, FIXED), saving(A), saving(A + B, FIXED),
          saving(A + B, keep=frozenset({600})), saving(A + C[:10], FIXED))
    assert sorted(path.name.split("-")[0] for path in state_files(tmp_path / "m")) == ["280", "280", "310", "600", "600"]


def test_the_least_lately_used_go_first_and_systems_last(tmp_path: Path) -> None:
    on = shelf(tmp_path / "m", limit_bytes=13_500)
    write(on, saving(A, is_system=True), saving(B), saving(C))
    for age_s, tokens in ((500, A), (400, C), (300, B)):
        for path in state_files(tmp_path / "m"):
            if path.name.startswith(on.target(pack(tokens), PLAIN, tokens is A).name):
                os.utime(path, (time.time() - age_s,) * 2)
    write(on, saving(prompt(4, 300), size_bytes=8000))
    assert [on.find(pack(tokens + [5]), 0) is not None for tokens in (A, B, C, prompt(4, 300))] == [True, True, False, True]
    assert sum(path.stat().st_size for path in state_files(tmp_path / "m")) <= 13_500
    assert write(on, saving(prompt(5, 300), size_bytes=20_000)).dropped == 1, "larger than all there may be"
    assert on.find(pack(A + [5]), 0)


def test_old_files_go_whatever_room_there_is(tmp_path: Path) -> None:
    write(shelf(tmp_path / "m"), saving(A), saving(B))
    os.utime(shelf(tmp_path / "m").target(pack(A), PLAIN, False), (time.time() - disk.MOST_AGE_S - 60,) * 2)
    on = shelf(tmp_path / "m")
    assert on.find(pack(A + [5]), 0) is None and on.find(pack(B + [5]), 0)


def test_files_of_other_models_count_against_the_limit(tmp_path: Path) -> None:
    write(shelf(tmp_path / "m"), saving(A, size_bytes=5000))
    on = shelf(tmp_path / "n", limit_bytes=8000)
    assert on.is_elsewhere(pack(A + B)) and not on.is_elsewhere(pack(B))
    write(on, saving(B, size_bytes=5000))
    assert not state_files(tmp_path / "m") and state_files(tmp_path / "n")


def test_what_is_too_much_for_the_writer_is_left_out_the_oldest_first(tmp_path: Path) -> None:
    on, gone = shelf(tmp_path / "m"), []
    writer = Writer(on)
    for number in range(MOST_WAITING + 3):
        each = saving(prompt(number, 300))
        writer.save(Saving(each.packed, PLAIN, False, "[]", each.tensors, dropped=lambda number=number: gone.append(number)))
    assert gone == [0, 1, 2] and writer.pending_bytes() == MOST_WAITING * 100
    writer.start()
    assert writer.close(60)
    assert len(state_files(tmp_path / "m")) == MOST_WAITING and writer.pending_bytes() == 0


def test_a_disk_that_cannot_be_written_costs_the_file_and_no_more(tmp_path: Path, monkeypatch: Any, caplog: Any) -> None:
    on = shelf(tmp_path / "m")
    real = state_file.write

    def full(path: Path, *rest: Any) -> int:
        real(path, *rest)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk_writer.state_file, "write", full)
    assert write(on, saving(A)).dropped == 1
    assert list((tmp_path / "m").iterdir()) == [] and "No space left" in caplog.text


def test_remains_of_a_process_that_has_ended_and_foreign_files_are_removed(tmp_path: Path) -> None:
    write(shelf(tmp_path / "m"), saving(A))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for name in (f"writing-{ended.pid}-1.safetensors", "something.safetensors", f"300-{'0' * 32}-plain.safetensors"):
        (tmp_path / "m" / name).write_bytes(state_files(tmp_path / "m")[0].read_bytes())
    (tmp_path / "m" / f"writing-{os.getppid()}-1.safetensors").write_bytes(b"another server writes this")
    assert shelf(tmp_path / "m").find(pack(A + [5]), 0)
    assert sorted(path.name.split("-")[0] for path in state_files(tmp_path / "m")) == ["300", "writing"]


WRITES = """
import sys
from pathlib import Path
from mlx_native_server.engine.disk import Shelf
from mlx_native_server.engine.disk_writer import Saving, Writer
from mlx_native_server.engine.prefix_tree import pack
from mlx_native_server.engine.state_file import Tensor
on = Shelf(Path(sys.argv[1]), 1 << 40, True, False)
on.open()
writer = Writer(on)
writer.start()
number = 0
while True:
    number += 1
    if writer.pending_bytes() < 1 << 26:
        writer.save(Saving(pack([number] * 300), "plain", False, "[]", [Tensor("0", "U8", (1 << 23,), (memoryview(bytes(1 << 23)),))]))
        print(number, flush=True)
"""


def test_a_process_that_is_killed_while_it_writes_leaves_whole_state_files(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", WRITES, str(tmp_path / "m")], stdout=subprocess.PIPE, cwd=Path(archive.__file__).parents[2])
    for _ in range(12):
        child.stdout.readline()
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    on = shelf(tmp_path / "m")
    for path in state_files(tmp_path / "m"):
        header = state_file.read_header(path)
        assert all(state_file.block_is_right(path, header, number) for number in range(len(header.checks)))
        assert not path.name.startswith("writing"), "what was being written is gone"
    assert on.nbytes == sum(path.stat().st_size for path in state_files(tmp_path / "m")) > 0


def test_tensors_of_any_pieces_are_read_back(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(state_file, "BLOCK_BYTES", 7)
    data = bytes(range(40))
    tensors = [Tensor("a", "U8", (25,), (memoryview(data[:3]), memoryview(data[3:25]))), Tensor("b", "U8", (15,), (memoryview(data[25:]),))]
    assert state_file.write(tmp_path / "x", {"what": 'a "quoted" fact'}, tensors) == (tmp_path / "x").stat().st_size
    header = state_file.read_header(tmp_path / "x")
    assert header.facts == {"what": 'a "quoted" fact'} and len(header.checks) == 6
    assert (state_file.read_bytes(tmp_path / "x", header, "a"), state_file.read_bytes(tmp_path / "x", header, "b")) == (data[:25], data[25:])
    assert all(state_file.block_is_right(tmp_path / "x", header, number) for number in range(6))
    with pytest.raises(state_file.Damaged):
        state_file.read_bytes(tmp_path / "x", header, "c")


def test_models_are_told_apart_by_their_files_and_settings(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}weights")
    seen = {fingerprint(tmp_path), fingerprint(tmp_path, 8)}
    os.utime(tmp_path / "model.safetensors", (1, 1))
    seen.add(fingerprint(tmp_path))
    (tmp_path / "config.json").write_text("{ }")
    seen.add(fingerprint(tmp_path))
    assert len(seen) == 4 and fingerprint(tmp_path) in seen


def test_a_cut_entry_is_not_found(tmp_path: Path) -> None:
    """Somebody else has removed the file."""
    on = shelf(tmp_path / "m")
    write(on, saving(A))
    state_files(tmp_path / "m")[0].unlink()
    found = on.find(pack(A + [5]), 0)
    until_s = time.monotonic() + 60
    while not found.done and time.monotonic() < until_s:
        found.done
    assert found.done and not found.is_right and isinstance(found.entries[PLAIN], Entry)
    assert on.find(pack(A + [5]), 0) is None
