"""A server in the background for real: a process of its own, started, killed, replaced and stopped."""
from __future__ import annotations

import io
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from stubs import NoService, Port

from mlx_native_server.operate import detached, guard, manage, running
from mlx_native_server.config import Settings, load
from mlx_native_server.operate.places import places
from mlx_native_server.operate.running import Who


@pytest.fixture
def port() -> Iterator[Port]:
    port = Port()
    yield port
    port.close()


def test_a_real_server_is_started_kept_replaced_and_stopped(tmp_path: Path, port: Port, tiny_model) -> None:
    env = {**os.environ, "HOME": str(tmp_path), "MLX_MODEL": str(tiny_model("llama")), "MLX_PORT": str(port.number)}
    here = places(env, "linux")
    settings = load(env)
    background = manage.Background(settings, here, env, io.StringIO(), NoService())
    try:
        pid = background.start()["pid"]
        assert running.is_server(pid) and background.start()["pid"] == pid
        other = manage.Background(replace(settings, prefill_size=64), here, {**env, "MLX_PREFILL_SIZE": "64"}, io.StringIO(), NoService())
        health = other.start()
        assert health["pid"] != pid and health["prefill_size"] == 64 and not running.is_server(pid)
        assert background.stop() is True and background.stop() is False
        assert running.look(settings).who is Who.NOBODY and list(here.state.iterdir()) == [here.logs]
        assert "Stopped." in here.server_log.read_text()
    finally:
        background.stop()


def test_a_wrong_model_is_said_at_once_and_stays_down(tmp_path: Path, port: Port) -> None:
    env = {**os.environ, "HOME": str(tmp_path), "MLX_MODEL": str(tmp_path / "none"), "MLX_PORT": str(port.number)}
    background = manage.Background(Settings(model=env["MLX_MODEL"], port=port.number), places(env, "linux"), env, io.StringIO(), NoService())
    with pytest.raises(manage.ManageError, match="The model folder .*none does not exist"):
        background.start()


def test_a_model_that_brought_the_machine_down_twice_waits_for_a_person(tmp_path: Path, port: Port, tiny_model) -> None:
    env = {**os.environ, "HOME": str(tmp_path), "MLX_MODEL": str(tiny_model("llama")), "MLX_PORT": str(port.number)}
    here = places(env, "linux")
    background = manage.Background(Settings(model=env["MLX_MODEL"], port=port.number), here, env, io.StringIO(), NoService())
    here.state.mkdir(parents=True)
    (here.state / guard.FILE).write_text('{"boot": "another", "restarts": 1}')
    try:
        alive = detached.start(here, env)
        while (seen := running.look(background.settings)).who is Who.NOBODY and alive():
            time.sleep(0.05)
        assert seen.status == "failed" and "restarted twice" in seen.health["progress"]
        assert background.start()["status"] == "ok"
    finally:
        background.stop()


def test_a_server_that_is_killed_while_it_loads_ends_the_wait(tmp_path: Path, port: Port) -> None:
    """Its model's config is a pipe: whoever opens the other end knows that loading has come so far."""
    model = tmp_path / "model"
    model.mkdir()
    os.mkfifo(model / "config.json")
    env = {**os.environ, "HOME": str(tmp_path), "MLX_MODEL": str(model), "MLX_PORT": str(port.number)}
    here = places(env, "linux")
    background = manage.Background(Settings(model=str(model), port=port.number), here, env, io.StringIO(), NoService())

    def kill() -> None:
        with (model / "config.json").open("w"):
            os.kill(running.read(here.running).pid, signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    with pytest.raises(manage.ManageError, match="has ended before its model was ready: it gave no reason"):
        background.start()
    killer.join()
    assert background.stop() is False and not here.running.exists()
