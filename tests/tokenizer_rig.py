"""Tokenizers of every family for the tests, changed ones too, and the messages that a chat template takes."""
from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from mlx_native_server.models.tokens import ModelTokenizer, load_tokenizer

BASH = {
    "type": "function",
    "function": {
        "name": "Bash",
        "description": "Run a command",
        "parameters": {"type": "object", "properties": {"command": {"type": "string", "description": "what to run"}, "n": {"type": "integer"}}, "required": ["command"]},
    },
}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def call(command: str, call_id: str = "toolu_01") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "Bash", "arguments": {"command": command, "n": 3}}}


def result(text: str, call_id: str = "toolu_01") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "name": "Bash", "content": text}


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder: Callable[..., Path]) -> Callable[..., ModelTokenizer]:
    """`tokenizer(family, template=None)`, loaded once."""
    made: dict[Any, ModelTokenizer] = {}

    def get(family: str, template: str | None = None) -> ModelTokenizer:
        if (family, template) not in made:
            made[family, template] = load_tokenizer(tokenizer_folder(family, template))
        return made[family, template]

    return get


def copy_altered(source: Path, out: Path, **files: dict[str, Any]) -> Path:
    """A copy of a model's folder with some keys of its JSON files changed; None removes a key."""
    shutil.copytree(source, out)
    for name, changes in files.items():
        path = out / f"{name}.json"
        facts = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({key: value for key, value in facts.items() if value is not None}))
    return out


@pytest.fixture
def altered(tokenizer_folder: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """`altered(family, **files)`, as `copy_altered`."""
    return lambda family, **files: copy_altered(tokenizer_folder(family), tmp_path / family, **files)


def edited(name: str, content: str | None) -> Callable[[Path], None]:
    """A change of a folder: this file has this content, or is gone."""

    def change(folder: Path) -> None:
        (folder / name).write_text(content) if content is not None else (folder / name).unlink()

    return change


def load_made(folder: Path, raw: Tokenizer) -> ModelTokenizer:
    """What the server makes of a tokenizer built in a test."""
    raw.save(str(folder / "tokenizer.json"))
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    facts = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template, "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(facts))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": raw.get_vocab_size()}))
    return load_tokenizer(folder)
