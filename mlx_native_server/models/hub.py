"""Hugging Face: a model's snapshot, from the local cache or downloaded.

A finished local snapshot is used without asking the network. Else exactly the files that mlx-lm reads are
fetched, after a look at the model type and at the free disk. Every failure becomes a `ModelError` of a sentence or two.
"""
from __future__ import annotations

import errno
import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)
from mlx_lm.utils import DEFAULT_ALLOW_PATTERNS
from tqdm import tqdm

from .folder import ModelError, ModelFolder, Progress, read_folder

_WORKERS = 3  # an interrupted file starts again, so few are in flight
_SPARE_BYTES = 2 * 10**9  # the disk never gets fuller than this
_TRANSPORT_ERROR = HfHubHTTPError.__bases__[0]  # the base of all errors of the HTTP library that the hub's client uses


def go_offline() -> None:
    """From now on nothing in this process asks the hub. The variable is read at import, so the read value is set too."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    constants.HF_HUB_OFFLINE = True


def has_weights(folder: Path) -> bool:
    """Whether every weight file is there: those that the index names, else any."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return any(folder.glob("model*.safetensors"))
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError):
        return False
    return all((folder / name).exists() for name in names)


def snapshot(repo: str, check: Callable[[ModelFolder], None], progress: Progress) -> Path:
    """The folder of `repo`, downloaded if need be. `check` refuses a model by its config before the big files come.

    Raises `ModelError`.
    """
    if local := _local_snapshot(repo):
        return local
    try:
        progress(f"looking up {repo}")
        check(read_folder(Path(snapshot_download(repo, allow_patterns=["config.json"]))))
        need_bytes = _missing_bytes(repo)
        _check_disk(repo, need_bytes)
        progress(f"downloading {repo} ({need_bytes / 1e9:.1f} GB)")
        bar = _progress_bar(repo, need_bytes, progress)
        return Path(snapshot_download(repo, allow_patterns=DEFAULT_ALLOW_PATTERNS, max_workers=_WORKERS, tqdm_class=bar))
    except (OSError, HFValidationError, _TRANSPORT_ERROR) as error:
        raise ModelError(_explain(repo, error)) from error


def missing_bytes(repo: str) -> int:
    """How much of `repo` is still to be downloaded; the hub is asked where it is not all here. Raises `ModelError`."""
    if _local_snapshot(repo):
        return 0
    try:
        return _missing_bytes(repo)
    except (OSError, HFValidationError, _TRANSPORT_ERROR) as error:
        raise ModelError(_explain(repo, error)) from error


def _local_snapshot(repo: str) -> Path | None:
    """A finished snapshot in the local cache; nothing is asked."""
    try:
        found = Path(snapshot_download(repo, allow_patterns=DEFAULT_ALLOW_PATTERNS, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        return None
    return found if (found / "config.json").exists() and has_weights(found) else None


def _missing_bytes(repo: str) -> int:
    files = snapshot_download(repo, allow_patterns=DEFAULT_ALLOW_PATTERNS, dry_run=True)
    return sum(file.file_size for file in files if file.will_download)


def _check_disk(repo: str, need_bytes: int) -> None:
    cache = Path(constants.HF_HUB_CACHE)
    volume = next(p for p in (cache, *cache.parents) if p.exists())
    free_bytes = shutil.disk_usage(volume).free
    if free_bytes < need_bytes + _SPARE_BYTES:
        raise ModelError(
            f"{repo} needs {need_bytes / 1e9:.1f} GB more on the disk that holds {cache}, which has {free_bytes / 1e9:.1f} GB free: "
            "make room, or set HF_HOME to a folder on another disk."
        )


def _progress_bar(repo: str, need_bytes: int, progress: Progress) -> type[tqdm]:
    """A bar for `snapshot_download` that reports the bytes written, about once a second, as lines of text."""

    class Bar(tqdm):
        def __init__(self, *args: Any, **options: Any):
            super().__init__(*args, **options | {"file": io.StringIO(), "mininterval": 1.0})

        def display(self, *_: Any, **__: Any) -> None:
            if self.unit == "B" and self.desc.startswith("Reconstruct"):
                progress(f"downloading {repo}: {self.n / 1e9:.1f} of {need_bytes / 1e9:.1f} GB")

    return Bar


def _explain(repo: str, error: BaseException) -> str:
    """What a user should know of a failed download."""
    tried = f"{repo} is no folder here and has no finished snapshot in {constants.HF_HUB_CACHE}"
    causes = [error, *filter(None, (error.__cause__, error.__context__))]
    for cause in causes:
        if isinstance(cause, GatedRepoError):
            return f"{repo} is gated: accept its terms at {constants.ENDPOINT}/{repo}, then log in with `hf auth login` or set HF_TOKEN."
        if isinstance(cause, RepositoryNotFoundError):
            return f"{tried}, and {constants.ENDPOINT} knows no such model (a private one looks the same without a valid HF_TOKEN)."
        if isinstance(cause, HFValidationError):
            return f"{repo} is neither a folder nor a Hugging Face id (owner/name)."
        if isinstance(cause, OSError) and cause.errno == errno.ENOSPC:
            return f"The disk that holds {constants.HF_HUB_CACHE} became full while {repo} was downloaded: make room and start again."
        if isinstance(cause, HfHubHTTPError) and cause.response is not None:
            return f"{tried}, and {constants.ENDPOINT} answered with status {cause.response.status_code} (401: check HF_TOKEN)."
    if constants.HF_HUB_OFFLINE:
        return f"{tried}, and HF_HUB_OFFLINE forbids to download it."
    if any("CERTIFICATE_VERIFY_FAILED" in str(cause) for cause in causes):
        return f"{tried}, and the certificate of {constants.ENDPOINT} is not trusted here: name a file with the right ones in SSL_CERT_FILE (where a proxy opens the traffic, its own)."
    reason = str(causes[-1]).strip().splitlines()
    return f"{tried}, and {constants.ENDPOINT} could not be reached: {reason[0] if reason else type(causes[-1]).__name__}"
