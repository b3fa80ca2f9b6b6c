"""OpenBLAS is loaded where it helps, and its absence is told."""
from __future__ import annotations

from importlib import metadata

import pytest

from mlx_native_server.models import blas


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_elsewhere_than_on_linux_nothing_is_loaded(monkeypatch: pytest.MonkeyPatch, platform: str) -> None:
    monkeypatch.setattr(blas.sys, "platform", platform)
    monkeypatch.setattr(blas, "_LIBRARY", "libnothing.so.0")
    assert blas.preload_blas() is None


def test_a_gpu_build_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(blas.sys, "platform", "linux")
    monkeypatch.setattr(blas.metadata, "distribution", missing)
    monkeypatch.setattr(blas, "_LIBRARY", "libnothing.so.0")
    assert blas.preload_blas() is None


def test_a_missing_library_is_one_line_that_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "_is_cpu_build", lambda: True)
    monkeypatch.setattr(blas, "_LIBRARY", "libnothing.so.0")
    line = blas.preload_blas()
    assert line and "libopenblas0-pthread" in line and "\n" not in line


def test_a_library_that_loads_needs_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[tuple[str, int]] = []
    monkeypatch.setattr(blas, "_is_cpu_build", lambda: True)
    monkeypatch.setattr(blas.ctypes, "CDLL", lambda name, mode: loaded.append((name, mode)))
    assert blas.preload_blas() is None
    assert loaded == [("libopenblas.so.0", blas.ctypes.RTLD_GLOBAL)]
