"""Set-up's model: fetched with progress to be seen, written down as ours, and taken away again.

The libraries are imported only when something is fetched or removed: a dry run and a broken environment go without.
"""
from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .made import Maker

INTERRUPTED = "\nsetup: interrupted; run it again to go on (files that are complete stay)"
HUB_VARIABLES = ("HF_HOME", "HF_HUB_CACHE", "HF_TOKEN", "HF_ENDPOINT")
OWN_PARTS = ("models--*", "datasets--*", "spaces--*")


def hub_cache(env: Mapping[str, str]) -> Path:
    """Where the hub's library keeps what it downloads."""
    home = Path(env.get("HF_HOME") or Path(env.get("XDG_CACHE_HOME") or Path(env["HOME"]) / ".cache") / "huggingface")
    return Path(env.get("HF_HUB_CACHE") or home / "hub")


class Models:
    """Fetches and removes. `file` is the settings file: what it says about the hub counts where `env` says nothing."""

    def __init__(self, made: Maker, env: Mapping[str, str], file: Mapping[str, str], say: Callable[[str], None]):
        self._made, self._say = made, say
        self._set = {name: file[name] for name in HUB_VARIABLES if name in file and not env.get(name)}
        self.cache = hub_cache({**env, **self._set})

    def get(self, model: str) -> Path:
        """The folder of a model, downloaded where it is not here. The weights are not loaded. Raises `ModelError`."""
        os.environ.update(self._set)  # that library reads its variables when it is imported
        _module("models.blas").preload_blas()
        models = _module("models.loading")
        repo = models.LINEUP.get(model, model)
        folder = self.cache / f"models--{repo.replace('/', '--')}"
        is_ours, show = repo in self._made.made.models or not folder.exists(), Progress(sys.stderr)

        def progress(line: str) -> None:
            if is_ours and line.startswith(("looking up", "downloading")) and repo in line:
                self._made.folder(self.cache)
                self._made.note("models", repo)
            show(line)

        with _interruptible(folder), show:
            return models.resolve(model, progress)

    def remove(self) -> None:
        """Take away the models that were written down, and the cache itself where it was made for them and holds nothing else."""
        os.environ.update(self._set)
        for repo in self._made.made.models:
            self._say(f"{'would remove' if self._made.dry_run else 'removing'} the model {repo}")
            if not self._made.dry_run:
                self._remove(repo)
        if str(self.cache) in self._made.made.folders and not any(path for part in OWN_PARTS for path in self.cache.glob(part)):
            for rest in (self.cache, self.cache.parent / "xet"):
                self._made.tree(rest)

    def _remove(self, repo: str) -> None:
        try:
            hub, errors = importlib.import_module("huggingface_hub"), importlib.import_module("huggingface_hub.errors")
        except ImportError:
            self._say(f"{repo} stays: the environment is broken. Remove it with  hf cache rm model/{repo}")
            return
        with contextlib.suppress(errors.CacheNotFound):
            cache = hub.scan_cache_dir(self.cache)
            revisions = [revision.commit_hash for found in cache.repos if found.repo_id == repo for revision in found.revisions]
            cache.delete_revisions(*revisions).execute()
        name = f"models--{repo.replace('/', '--')}"
        for rest in (self.cache / name, self.cache / ".locks" / name):  # of a download that never was complete
            shutil.rmtree(rest, ignore_errors=True)


@contextmanager
def _interruptible(folder: Path) -> Iterator[None]:
    """Ctrl-C ends the process at once: the library would first wait for the files that it is at, and then drop them."""

    def end(*_: object) -> None:
        for rest in folder.glob("blobs/*.incomplete"):
            rest.unlink(missing_ok=True)
        print(INTERRUPTED, file=sys.stderr, flush=True)
        os._exit(130)

    before = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _module(name: str) -> Any:
    return importlib.import_module(f"mlx_native_server.{name}")


class Progress:
    """Lines of progress: on a terminal each takes the place of the one before, elsewhere a changed tenth is a new line."""

    def __init__(self, out: Any):
        self._out, self._last, self._open = out, "", False

    def __enter__(self) -> Progress:
        return self

    def __call__(self, line: str) -> None:
        if self._out.isatty():
            print(f"\r\033[K{line}", end="", file=self._out, flush=True)
            self._open = True
        elif line.partition(":")[0] != self._last:
            print(line, file=self._out, flush=True)
        self._last = line.partition(":")[0]

    def __exit__(self, *_: object) -> None:
        """Leave the line."""
        if self._open:
            print(file=self._out)
