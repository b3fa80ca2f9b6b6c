"""States that outlive the memory and the process: which files there are, which one a prompt can go on from, which go.

Rules: a file's name says for which tokens it is, and they are in it; what is damaged or not ours is removed and never
used. One folder holds the states of one model (`fingerprint`); the folders beside it count against the same limit of
bytes, and what was used least lately goes first. States are opaque here: `kv_files.py` makes them into tensors,
`state_file.py` reads and writes files, `disk_writer.py` is the thread that has them written.
"""
from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import state_file
from .prefix_tree import BYTES_PER_TOKEN, Node, PrefixTree
from .state_file import Damaged, Header

logger = logging.getLogger(__name__)

PLAIN, FIXED = "plain", "fixed"
WORTH_TOKENS = 256
"""Fewer tokens than these are as soon computed as read."""
MOST_AGE_S = 30 * 86400.0
SYSTEM_AGE_S = 7 * 86400.0
"""So much younger a system's state is taken for when it is decided what goes: every new session begins with it."""
FREE_BYTES = 2 << 30
"""What is always left free on the disk."""
READERS = 4
_NAME = re.compile(r"(\d+)-([0-9a-f]{32})-(system-)?(plain|fixed)\.safetensors")
_TEMPORARY = re.compile(r"writing-(\d+)-\d+\.safetensors")


def fingerprint(model: Path, *facts: object) -> str:
    """Sixteen characters that are equal for the same model files and the same `facts` (versions, settings of the cache).

    Weights are told apart by size, time and header. Raises OSError.
    """
    found = hashlib.sha256(repr(facts).encode())
    found.update((model / "config.json").read_bytes())
    for path in sorted(model.glob("*.safetensors")):
        about = path.stat()
        found.update(f"{path.name} {about.st_size} {about.st_mtime_ns}".encode())
        with path.open("rb") as file:
            found.update(file.read(min(int.from_bytes(file.read(8), "little"), state_file.MOST_HEADER_BYTES)))
    return found.hexdigest()[:16]


def digests(tokens: bytes, lengths: Iterable[int]) -> Iterator[tuple[int, str]]:
    """What names hold of the first so many tokens, for ascending `lengths` up to that of `tokens`."""
    running, done = hashlib.sha256(), 0
    for length in lengths:
        if length * BYTES_PER_TOKEN > len(tokens):
            return
        running.update(tokens[done:length * BYTES_PER_TOKEN])
        done = length * BYTES_PER_TOKEN
        yield length, running.hexdigest()[:32]


@dataclass(eq=False)
class Entry:
    """A file that is there. `layers` is its description by `kv_files`."""

    path: Path
    nbytes: int
    tokens: int
    is_system: bool = False
    header: Header | None = None


@dataclass(eq=False)
class Fetch:
    """Files from which a prompt's first `tokens` tokens can be restored, being checked: usable once `done` and `is_right`.

    `parts`: what `kv_files` reads of them meanwhile.
    """

    tokens: int
    entries: dict[str, Entry]
    parts: dict[str, Any] = field(default_factory=dict)
    left: int = 0
    is_right: bool = True
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def done(self) -> bool:
        """Whether all of it is checked, or some of it found wrong."""
        return self.left == 0 or not self.is_right

    def ended(self, is_right: bool) -> None:
        """A share of the check is over."""
        with self.lock:
            self.left, self.is_right = self.left - 1, self.is_right and is_right


class Shelf:
    """The files of one model's states in `folder`, at most `limit_bytes` with those of the other models beside it.

    `has_plain`, `has_fixed`: see `cache.Cache`. `on_ready` is called when a fetch is done, on another thread.
    """

    def __init__(self, folder: Path, limit_bytes: int, has_plain: bool, has_fixed: bool, on_ready: Callable[[], None] = lambda: None):
        self.folder, self.limit_bytes, self._on_ready = folder, limit_bytes, on_ready
        self._has_plain, self._has_fixed = has_plain, has_fixed
        self._lock = threading.Lock()
        self._tree = PrefixTree()
        self._nodes: dict[Entry, Node] = {}
        self.nbytes = self.read = 0
        self._elsewhere: dict[int, set[str]] = {}
        self._readers = ThreadPoolExecutor(READERS, "disk-reader")

    def open(self) -> None:
        """Find the files that are there. Raises OSError where the folder cannot be made."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in sorted(self.folder.iterdir()):
            self._take_in(path)
        for path in self.folder.parent.glob("*/*.safetensors"):
            if path.parent != self.folder and (match := _NAME.fullmatch(path.name)):
                self._elsewhere.setdefault(int(match[1]), set()).add(match[2])
        self.make_room(0)
        logger.info("prompts on disk: %d files, %.1f GB in %s", len(self._nodes), self.nbytes / (1 << 30), self.folder)

    def _take_in(self, path: Path) -> None:
        if temporary := _TEMPORARY.fullmatch(path.name):
            if not _is_running(int(temporary[1])):
                path.unlink(missing_ok=True)
            return
        match = _NAME.fullmatch(path.name)
        try:
            if not match:
                raise Damaged(f"{path.name} is none of ours")
            header = state_file.read_header(path)
            packed = state_file.read_bytes(path, header, "tokens")
            if next(digests(packed, [int(match[1])]), None) != (int(match[1]), match[2]):
                raise Damaged(f"{path.name} holds other tokens")
        except (Damaged, OSError) as error:
            logger.warning("a file of kept prompts is removed: %s", error)
            with suppress(OSError):
                path.unlink()
            return
        self._add(packed, match[4], Entry(path, path.stat().st_size, int(match[1]), bool(match[3]), header))

    # ── look-up ──────────────────────────────────────────────────────────────────────────────────

    def find(self, packed: bytes, more_than: int) -> Fetch | None:
        """What is there for the longest beginning of a prompt, less its last token, where that has more than so many tokens.

        Its files are being checked from now on, which also has the system read them ahead.
        """
        with self._lock:
            nodes, agreed = self._tree.path(packed)
            reach = min(agreed, len(packed) // BYTES_PER_TOKEN - 1)
            found: dict[str, Entry] = {}
            if self._has_fixed:
                best = next((node for node in reversed(nodes) if node.end_tokens <= reach and node.fixed and self._covering(node)), None)
                nodes, reach = ([best], best.end_tokens) if best else ([], 0)
                found = {FIXED: best.fixed} if best else {}
            if nodes and self._has_plain:
                covering = self._covering(nodes[-1])
                found, reach = (found | {PLAIN: covering}, reach) if covering else ({}, 0)
        if not found or reach < max(more_than, WORTH_TOKENS):
            return None
        return self._checked(Fetch(reach, found))

    def _covering(self, node: Node) -> Entry | None:
        """The smallest plain part at or below `node`."""
        below = [under.plain for under in node.below() if under.plain]
        return min(below, key=lambda entry: entry.nbytes, default=None)

    def _checked(self, fetch: Fetch) -> Fetch:
        fetch.left = READERS * len(fetch.entries)
        for entry in fetch.entries.values():
            for share in range(READERS):
                self._readers.submit(self._check, fetch, entry, share)
        return fetch

    def _check(self, fetch: Fetch, entry: Entry, share: int) -> None:
        try:
            blocks = range(share, len(entry.header.checks), READERS)
            is_right = all(state_file.block_is_right(entry.path, entry.header, number) for number in blocks)
            if share == 0:
                os.utime(entry.path)
        except OSError:
            is_right = False
        if not is_right:
            self.discard(entry, "it has changed or is gone")
        fetch.ended(is_right)
        if fetch.done:
            self._on_ready()

    def discard(self, entry: Entry, why: str) -> None:
        """Remove a file that cannot be used."""
        logger.warning("a file of kept prompts is removed: %s: %s", entry.path.name, why)
        with self._lock:
            self._remove(entry)

    def is_elsewhere(self, packed: bytes) -> bool:
        """Whether another model's states would have served this prompt."""
        return any(digest in self._elsewhere[length] for length, digest in digests(packed, sorted(self._elsewhere)))

    # ── what comes and goes ──────────────────────────────────────────────────────────────────────

    def target(self, packed: bytes, part: str, is_system: bool) -> Path:
        """The file for a part of exactly these tokens."""
        tokens = len(packed) // BYTES_PER_TOKEN
        (_, digest), = digests(packed, [tokens])
        return self.folder / f"{tokens}-{digest}-{'system-' if is_system else ''}{part}.safetensors"

    def add(self, packed: bytes, part: str, entry: Entry, keep: Collection[int]) -> None:
        """A file was written. A plain part takes the place of shorter ones of the same conversation, and of the fixed parts
        on its way, but for those at the lengths in `keep`."""
        with self._lock:
            node = self._add(packed, part, entry)
            if part == FIXED and self._has_plain:
                return
            for above in list(node.ancestors()):
                if len(above.children) == 1:
                    if above.plain and not above.plain.is_system:
                        self._remove(above.plain)
                    if above.fixed and not above.fixed.is_system and above.end_tokens not in keep:
                        self._remove(above.fixed)

    def _add(self, packed: bytes, part: str, entry: Entry) -> Node:
        node = self._tree.insert(packed, entry.tokens)
        setattr(node, part, entry)
        self._nodes[entry] = node
        self.nbytes += entry.nbytes
        return node

    def _remove(self, entry: Entry) -> None:
        with suppress(OSError):
            entry.path.unlink()
        if node := self._nodes.pop(entry, None):
            node.plain, node.fixed = (None if part is entry else part for part in (node.plain, node.fixed))
            self._tree.tidy(node)
            self.nbytes -= entry.nbytes

    def make_room(self, size_bytes: int) -> bool:
        """Remove what is old, and the least worth keeping until so many bytes more are within the limit; False where they never are."""
        now_s, files = time.time(), sorted(self._files())
        if size_bytes > self.limit_bytes:
            return False
        left_bytes = sum(nbytes for _, nbytes, _ in files)
        for used_s, nbytes, path in files:
            if now_s - used_s < MOST_AGE_S and left_bytes + size_bytes <= self.limit_bytes:
                break
            left_bytes -= nbytes
            with self._lock:
                entry = next((entry for entry in self._nodes if entry.path == path), None)
                self._remove(entry or Entry(path, nbytes, 0))
        return shutil.disk_usage(self.folder).free > size_bytes + FREE_BYTES

    def _files(self) -> Iterator[tuple[float, int, Path]]:
        """All models' files: when they were used last (seconds since the epoch, systems later than they were), bytes, path."""
        for path in self.folder.parent.glob("*/*.safetensors"):
            if match := _NAME.fullmatch(path.name):
                with suppress(OSError):
                    about = path.stat()
                    yield about.st_mtime + (SYSTEM_AGE_S if match[3] else 0.0), about.st_size, path

    def figures(self) -> dict[str, int]:
        """For `/health`; any thread may ask."""
        return {"entries": len(self._nodes), "bytes": self.nbytes, "limit_bytes": self.limit_bytes, "read": self.read}

    def close(self) -> None:
        """Check no more files."""
        self._readers.shutdown(wait=False, cancel_futures=True)


def _is_running(process: int) -> bool:
    """Whether another process of this number lives; the own number is that of one that has ended, its files are not open yet."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return process != os.getpid()
