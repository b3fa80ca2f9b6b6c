"""What a model's files say, and folders that cannot be used."""
from __future__ import annotations

import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_models
from huggingface_hub import constants

from mlx_native_server.models.folder import DEFAULT_CONTEXT_TOKENS, ModelError
from mlx_native_server.models.tokens import load_tokenizer
from mlx_native_server.protocol import Prompt, Sampling
from tokenizer_rig import altered, edited, user  # noqa: F401  (fixtures)


@pytest.mark.parametrize(
    ("config", "tokenizer_config", "expected"),
    [
        ({"max_position_embeddings": 4096}, {}, 4096),
        ({"max_position_embeddings": None, "text_config": {"max_position_embeddings": 777}}, {}, 777),
        ({"max_position_embeddings": None}, {"model_max_length": 2048}, 2048),
        ({"max_position_embeddings": None}, {"model_max_length": 10**30}, DEFAULT_CONTEXT_TOKENS),
        ({"max_position_embeddings": 0}, {"model_max_length": None}, DEFAULT_CONTEXT_TOKENS),
    ],
)
def test_context_tokens(altered: Any, config: dict[str, Any], tokenizer_config: dict[str, Any], expected: int) -> None:
    assert load_tokenizer(altered("qwen3", config=config, tokenizer_config=tokenizer_config)).context_tokens == expected


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        ({}, Sampling(1.0, 1.0, 0)),
        ({"temperature": 0.6, "top_p": 0.95, "top_k": 20}, Sampling(0.6, 0.95, 20)),
        ({"temperature": 0, "top_p": 0, "top_k": None}, Sampling(0.0, 1.0, 0)),
        ({"temperature": "hot", "top_p": 2, "top_k": -1}, Sampling(1.0, 1.0, 0)),
    ],
)
def test_sampling(altered: Any, generation: dict[str, Any], expected: Sampling) -> None:
    assert load_tokenizer(altered("qwen3", generation_config=generation)).sampling == expected


@pytest.mark.parametrize("form", ["int", "list", "missing"])
def test_stop_ids_are_the_union_of_all_files_and_of_the_familys_turn_ends(altered: Any, form: str) -> None:
    one = {"int": 5, "list": [5, 7], "missing": None}[form]
    made = load_tokenizer(altered("gemma4", config={"eos_token_id": one}, generation_config={"eos_token_id": 3 if one else None}))
    names = {made._shared.token_to_id(t) for t in ("<turn|>", "<eos>", "<|tool_response>")}
    assert made.stop_ids == names | {"int": {5, 3}, "list": {5, 7, 3}, "missing": set()}[form]


# ── folders that cannot be used ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (shutil.rmtree, "does not exist"),
        (edited("config.json", None), "no config.json"),
        (edited("config.json", "{"), "config.json cannot be read"),
        (edited("config.json", "[]"), "not a JSON object"),
        (edited("config.json", '{"model_type": "qwen3", "max_position_embeddings": "many"}'), "does not load"),
        (edited("tokenizer.json", "{}"), "tokenizer in .* does not load"),
        (edited("tokenizer.json", '{"version": "1.0", "model": {"type": "BPE"}}'), "tokenizer in .* does not load"),
        (edited("tokenizer.json", None), "tokenizer in "),
        (edited("chat_template.jinja", "{% for %}"), "chat template in .* is damaged"),
    ],
)
def test_a_folder_that_cannot_be_used_is_named(altered: Any, change: Callable[[Path], None], message: str) -> None:
    folder = altered("qwen3")
    change(folder)
    with pytest.raises(ModelError, match=message) as caught:
        load_tokenizer(folder)
    assert str(folder) in str(caught.value)


def test_loading_opens_no_connection(tokenizer_folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Any] = []

    def connect(self: socket.socket, address: Any) -> None:
        tried.append(address)
        raise OSError("no network")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *address, **_: connect(None, address))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    for family in tiny_models.FAMILIES:
        load_tokenizer(tokenizer_folder(family)).encode(Prompt([user("hi")]))
    assert tried == []


def test_a_broken_generation_config_is_ignored(altered: Any, caplog: pytest.LogCaptureFixture) -> None:
    folder = altered("qwen3")
    (folder / "generation_config.json").write_text("{")
    assert load_tokenizer(folder).sampling == Sampling()
    assert "generation_config.json is ignored" in caplog.text
