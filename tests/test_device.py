"""The device's limits and figures. Metal is imitated: these tests run where there is none."""
from __future__ import annotations

import os
from pathlib import Path

import mlx.core as mx
import pytest

from mlx_native_server.engine import device
from mlx_native_server.engine.memory import GIB


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """What the limits were set to, on a Mac of 64 GB."""
    made: dict[str, int] = {}
    monkeypatch.setattr(mx, "set_cache_limit", lambda size: made.update(cache=size))
    monkeypatch.setattr(mx, "set_wired_limit", lambda size: made.update(wired=size))
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    monkeypatch.setattr(mx, "device_info", lambda: {"max_recommended_working_set_size": 48 * GIB, "memory_size": 64 * GIB})
    monkeypatch.setattr(device, "on_cpu", lambda: False)
    return made


@pytest.mark.parametrize(("cache_gb", "wired_gb", "expected"), [
    (3.0, None, {"cache": 3 * GIB, "wired": 22 * GIB}),
    (0.0, None, {"wired": 22 * GIB}),  # 0 is no cap: the call is not made
    (3.0, 0.0, {"cache": 3 * GIB}),  # nor for the wired limit's off
    (1.5, 10.0, {"cache": int(1.5 * GIB), "wired": 10 * GIB}),
])
def test_limits(calls: dict[str, int], cache_gb: float, wired_gb: float | None, expected: dict[str, int]) -> None:
    device.set_limits(cache_gb, wired_gb, weights_bytes=20 * GIB, kv_bytes=0)
    assert calls == expected


def test_compiled_kernels_are_kept_where_the_user_says_or_in_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLX_PTX_CACHE_DIR", "/mine")
    device.keep_kernels(Path("/cache/kernels"))
    assert os.environ["MLX_PTX_CACHE_DIR"] == "/mine"
    monkeypatch.delenv("MLX_PTX_CACHE_DIR")
    device.keep_kernels(Path("/cache/kernels"))
    assert os.environ["MLX_PTX_CACHE_DIR"].startswith("/cache/kernels/0.")
    monkeypatch.delenv("MLX_PTX_CACHE_DIR")


@pytest.mark.parametrize(("cpu", "metal", "expected"), [(True, False, False), (False, True, False), (False, False, True)])
def test_kernels_are_compiled_on_cuda_alone(calls: dict[str, int], monkeypatch: pytest.MonkeyPatch, cpu: bool, metal: bool, expected: bool) -> None:
    monkeypatch.setattr(device, "on_cpu", lambda: cpu)
    monkeypatch.setattr(mx.metal, "is_available", lambda: metal)
    assert device.compiles_kernels() is expected


def test_no_limit_is_set_on_the_cpu(calls: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "on_cpu", lambda: True)
    device.set_limits(3.0, None, weights_bytes=20 * GIB, kv_bytes=0)
    assert calls == {}


def test_the_peak_is_that_since_it_was_last_taken() -> None:
    device.take_peak()
    held = mx.zeros(4 * 1024 * 1024)
    mx.eval(held)
    size_bytes = held.nbytes
    del held
    assert device.take_peak() >= size_bytes
    assert device.take_peak() < mx.get_active_memory() + size_bytes


def test_the_highest_peak_is_shown_although_it_is_reset() -> None:
    """A peak that is reset after each request is never seen by whoever asks later."""
    assert device.figures_gb(peak_bytes=500 * GIB)["mx_peak_gb"] == 500.0


@pytest.mark.parametrize(("error", "is_one", "usable"), [
    (RuntimeError("[METAL] Command buffer execution failed: Insufficient Memory (00000008:…)"), True, True),
    (RuntimeError("[METAL] Command buffer execution failed: Ignored (00000004:…)"), True, False),
    (RuntimeError("shapes differ"), False, True),
    (ValueError("[METAL]"), False, True),
])
def test_device_errors(error: Exception, is_one: bool, usable: bool) -> None:
    assert device.is_device_error(error) is is_one
    assert device.is_usable_after(error) is usable
