"""Arithmetic on bytes, and that the system tells the resident size."""
from __future__ import annotations

import pytest

from mlx_native_server.engine.memory import GIB, gb, resident_bytes, wired_limit_bytes


def wired(asked_gb: float | None, working_gb: float, weights_gb: float, kv_gb: float, ram_gb: float) -> float:
    return wired_limit_bytes(asked_gb, int(working_gb * GIB), int(weights_gb * GIB), int(kv_gb * GIB), int(ram_gb * GIB)) / GIB


@pytest.mark.parametrize(("case", "expected"), [
    ((None, 96, 40, 10, 128), 52),  # what is needed and no more
    ((None, 96, 90, 10, 128), 96),  # within the working set
    ((None, 11.8, 8, 1, 16), 0),  # a small Mac is left its memory
    ((None, 48, 46, 4, 64), 48),
    ((0, 96, 40, 10, 128), 0),
    ((20, 96, 40, 10, 128), 20),
    ((200, 96, 40, 10, 128), 96),  # more than Metal takes would raise
])
def test_the_wired_limit(case: tuple[float, float, float, float, float], expected: float) -> None:
    assert wired(*case) == expected


def test_gigabytes_have_one_decimal() -> None:
    assert (gb(0), gb(1.26 * GIB)) == (0.0, 1.3)


def test_the_resident_size_grows_with_what_is_held() -> None:
    before = resident_bytes()
    held = bytearray(b"x" * (64 * 1024 * 1024))
    assert resident_bytes() - before > 32 * 1024 * 1024
    assert before > 1024 * 1024 and held
