"""From a name to a folder and its weights; downloads go to a stand-in for the hub on this machine."""
from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_hub import FakeHub, fake_hub, files_of, hub_server  # noqa: F401  (fixtures)
from huggingface_hub import constants

from mlx_native_server.models import hub, loading as models
from mlx_native_server.models.folder import ModelError
from mlx_native_server.models.loading import LINEUP, cache_kinds, load_weights, resolve
from tokenizer_rig import edited

def quiet(line: str) -> None:
    """Progress that nobody reads."""


# ── downloads ────────────────────────────────────────────────────────────────────────────────────


def test_a_model_is_downloaded_once_and_then_found_without_the_network(fake_hub: FakeHub, tiny_model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_hub.repos["own/model"] = files_of(tiny_model("llama")) | {"README.md": b"x", "original/weights.bin": b"y"}
    lines: list[str] = []
    folder = resolve("own/model", lines.append)
    assert sorted(path.name for path in folder.iterdir()) == sorted(files_of(tiny_model("llama")))
    assert any(line.startswith("downloading own/model") for line in lines)
    assert constants.HF_HUB_OFFLINE is True
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    asked = len(fake_hub.asked)
    assert resolve("own/model", quiet) == folder
    assert len(fake_hub.asked) == asked


def test_an_interrupted_download_is_finished(fake_hub: FakeHub, tiny_model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_hub.repos["own/model"] = files_of(tiny_model("llama"))
    folder = resolve("own/model", quiet)
    (folder / "model.safetensors").unlink()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert (resolve("own/model", quiet) / "model.safetensors").exists()


def test_a_lineup_name_is_its_hub_id(fake_hub: FakeHub, tiny_model: Any) -> None:
    fake_hub.repos[LINEUP["quick"]] = files_of(tiny_model("llama"))
    assert "gemma-4-31b" in str(resolve("quick", quiet))


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (404, "RepoNotFound", "knows no such model"),
        (401, "RepoNotFound", "knows no such model"),
        (403, "GatedRepo", "own/model is gated: accept its terms"),
        (401, "", "no such model|status 401"),
        (500, "", "status 500"),
    ],
)
def test_what_the_hub_refuses_is_told(fake_hub: FakeHub, status: int, code: str, message: str) -> None:
    fake_hub.status["own/model"] = status, code
    with pytest.raises(ModelError, match=message) as caught:
        resolve("own/model", quiet)
    assert "own/model" in str(caught.value)


def test_an_unreachable_hub_is_told(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ModelError, match="no finished snapshot in .*hub, and http://127.0.0.1:9 could not be reached"):
        resolve("own/model", quiet)


def test_offline_mode_is_told(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE forbids"):
        resolve("own/model", quiet)
    assert fake_hub.asked == []


def test_a_model_of_unknown_type_is_refused_before_its_weights_come(fake_hub: FakeHub) -> None:
    fake_hub.repos["own/model"] = {"config.json": b'{"model_type": "from_next_year"}', "model.safetensors": b"x" * 100}
    with pytest.raises(ModelError, match="does not know the model type 'from_next_year'"):
        resolve("own/model", quiet)
    assert not any("model.safetensors" in line for line in fake_hub.asked)


def test_the_bytes_written_are_told_while_it_downloads() -> None:
    lines: list[str] = []
    bar = hub._progress_bar("own/model", 2 * 10**9, lines.append)
    for unit, description in (("B", "Downloading bytes"), ("it", "Fetching 3 files"), ("B", "Reconstructing (incomplete total...)")):
        with bar(total=10, unit=unit, desc=description) as one:
            one.n = 10**9
            one.refresh()
    assert set(lines) == {"downloading own/model: 1.0 of 2.0 GB", "downloading own/model: 0.0 of 2.0 GB"}


def test_a_full_disk_is_told_before_the_download(fake_hub: FakeHub, tiny_model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_hub.repos["own/model"] = files_of(tiny_model("llama"))
    monkeypatch.setattr(hub.shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(ModelError, match=r"needs 0\.0 GB more on the disk .* 0\.0 GB free"):
        resolve("own/model", quiet)
    assert not any(line.startswith("GET") and line.endswith("model.safetensors") for line in fake_hub.asked)


# ── folders and names ────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def model_copy(tiny_model: Any, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model("llama"), tmp_path / "model"))


def test_a_folder_is_taken_as_it_is(model_copy: Path) -> None:
    assert resolve(str(model_copy), quiet) == model_copy
    assert resolve(f"{model_copy}/", quiet) == model_copy


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "no model 'nothing': it is no folder here, no Hugging Face id .* tiny, quick, wise, beast"),
        ("/not/there", "folder /not/there does not exist"),
        ("./not", "folder not does not exist"),
        ("a/b/c", "folder a/b/c does not exist"),
        ("bad name/x", "no model 'bad name/x'"),
        (__file__, "is a file, not a folder"),
    ],
)
def test_a_name_that_is_nothing_says_what_was_tried(name: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        resolve(name, quiet)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (edited("config.json", None), "no config.json"),
        (edited("config.json", "{}"), "has no model_type"),
        (edited("config.json", '{"model_type": "../x"}'), "does not know the model type"),
        (edited("config.json", '{"model_type": "llama", "model_file": "x.py"}'), r"run its own code \(x.py\)"),
        (edited("model.safetensors", None), "lacks weights"),
        (edited("model.safetensors.index.json", '{"weight_map": {"a": "model-00001.safetensors"}}'), "lacks weights"),
        (edited("model.safetensors.index.json", "broken"), "lacks weights"),
    ],
)
def test_a_folder_that_cannot_work_is_refused_at_once(model_copy: Path, change: Callable[[Path], None], message: str) -> None:
    change(model_copy)
    with pytest.raises(ModelError, match=message):
        resolve(str(model_copy), quiet)


# ── weights ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("family", "kinds"),
    [
        ("llama", {"KVCache": 4}),
        ("gemma3", {"RotatingKVCache": 4, "KVCache": 2}),
        ("qwen3_5", {"ArraysCache": 3, "KVCache": 1}),
    ],
)
def test_weights_load_and_the_log_says_what_caches_they_need(tiny_model: Any, caplog: pytest.LogCaptureFixture, family: str, kinds: dict[str, int]) -> None:
    with caplog.at_level("INFO"):
        model = load_weights(tiny_model(family))
    assert cache_kinds(model) == kinds
    assert "GB in" in caplog.text and "KVCache" in caplog.text


def test_a_scripted_model_loads(scripted_model: Any) -> None:
    assert cache_kinds(load_weights(scripted_model("llama", "hi", extra_caches=["rotating"]))) == {"KVCache": 1, "RotatingKVCache": 1}


OTHER_CONFIG = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 9, "intermediate_size": 8,
    "num_attention_heads": 4, "rms_norm_eps": 1e-5, "vocab_size": 10,
}  # fmt: skip


def cut_in_half(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])


@pytest.mark.parametrize(
    "change",
    [
        cut_in_half,
        edited("model.safetensors", "not weights"),
        edited("config.json", '{"model_type": "llama"}'),
        edited("config.json", json.dumps(OTHER_CONFIG)),
    ],
    ids=["truncated", "garbage", "config without sizes", "config of another model"],
)  # fmt: skip
def test_damaged_weights_are_a_clear_error(model_copy: Path, change: Callable[[Path], None]) -> None:
    change(model_copy)
    with pytest.raises(ModelError, match="does not load: ") as caught:
        load_weights(model_copy)
    assert str(model_copy) in str(caught.value) and "\n" not in str(caught.value)


def test_the_lineup_names_are_hub_ids() -> None:
    assert list(LINEUP) == ["tiny", "quick", "wise", "beast"]
    assert all(models._HUB_ID.fullmatch(repo) for name, repo in LINEUP.items() if name != "tiny")
