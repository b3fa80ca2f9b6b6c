"""The thread that writes states to disk, behind everybody's back.

Rule: whoever has something written never waits; what is too much is left out, the oldest first. The states' memory is
held until it is written, and is counted (`pending_bytes`). Where the files are and which of them go is `disk.py`'s.
"""
from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from . import state_file
from .disk import Entry, Shelf
from .prefix_tree import BYTES_PER_TOKEN
from .state_file import Tensor

logger = logging.getLogger(__name__)

MOST_WAITING = 12
"""Files that may wait."""


@dataclass(frozen=True)
class Saving:
    """A part to be written, of exactly the tokens `packed`; see `kv_files.described` and `Shelf.add`.

    `dropped` is called, on any thread, when it is not written after all.
    """

    packed: bytes
    part: str
    is_system: bool
    layers: str
    tensors: Sequence[Tensor]
    keep: frozenset[int] = frozenset()
    dropped: Callable[[], None] = lambda: None

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
        return sum(tensor.nbytes for tensor in self.tensors)


class Writer:
    """Writes to the files of `shelf`. `start` it once; `save` may be called from one thread, the rest from any."""

    def __init__(self, shelf: Shelf):
        self._shelf = shelf
        self._changed = threading.Condition()
        self._waiting: deque[Saving] = deque()
        self._now: Saving | None = None
        self._closed = False
        self._count = self.written = self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="disk-writer", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def save(self, saving: Saving) -> None:
        """Have a part written some time. Never waits."""
        with self._changed:
            if self._closed:
                return
            oldest = self._waiting.popleft() if len(self._waiting) >= MOST_WAITING else None
            self._waiting.append(saving)
            self._changed.notify_all()
        if oldest:
            self._leave_out(oldest)

    def pending_bytes(self) -> int:
        """Memory that is held for what is not written yet."""
        with self._changed:
            return sum(saving.nbytes for saving in (*self._waiting, self._now) if saving)

    def close(self, timeout_s: float) -> bool:
        """Write what waits, for so long at most, and stop. Whether all was written."""
        until_s = time.monotonic() + timeout_s
        with self._changed:
            while (self._waiting or self._now) and (left_s := until_s - time.monotonic()) > 0:
                self._changed.wait(left_s)
            is_done = not (self._waiting or self._now)
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()
        return is_done

    def _run(self) -> None:
        while saving := self._next():
            try:
                self._write(saving)
            except OSError as error:
                logger.warning("a prompt's state is not written: %s", error)
                self._leave_out(saving)
            del saving  # it holds the state's memory

    def _next(self) -> Saving | None:
        with self._changed:
            self._now = None
            self._changed.notify_all()
            while not self._waiting and not self._closed:
                self._changed.wait()
            self._now = None if self._closed else self._waiting.popleft()
            return self._now

    def _write(self, saving: Saving) -> None:
        target = self._shelf.target(saving.packed, saving.part, saving.is_system)
        if target.exists():
            os.utime(target)
            return
        own = Tensor("tokens", "U32", (len(saving.packed) // BYTES_PER_TOKEN,), (memoryview(saving.packed),))
        facts, tensors = {"layers": saving.layers}, [own, *saving.tensors]
        if not self._shelf.make_room(state_file.size_bytes(facts, tensors)):
            self._leave_out(saving)
            return
        self._count += 1
        temporary = self._shelf.folder / f"writing-{os.getpid()}-{self._count}.safetensors"
        try:
            size_bytes = state_file.write(temporary, facts, tensors)
            header = state_file.read_header(temporary)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
        self.written += 1
        self._shelf.add(saving.packed, saving.part, Entry(target, size_bytes, own.shape[0], saving.is_system, header), saving.keep)

    def _leave_out(self, saving: Saving) -> None:
        self.dropped += 1
        saving.dropped()
