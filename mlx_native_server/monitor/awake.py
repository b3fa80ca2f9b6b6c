"""A Mac does not fall asleep while it works on a request or loads a model; in between it may.

A `caffeinate` of the system's own is kept running for as long as anybody holds it. The display is left alone: a lit
one makes the GPU's watchdog stricter.
"""
from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

logger = logging.getLogger(__name__)


class Awake:
    """Counts who needs the machine awake. Any thread may take and release; elsewhere than on a Mac nothing happens."""

    def __init__(self, platform: str = sys.platform, popen: Callable[[Sequence[str]], Any] = subprocess.Popen):
        self._is_mac, self._popen = platform == "darwin", popen
        self._lock = threading.Lock()
        self._holders, self._child = 0, None

    def take(self) -> None:
        """The machine stays awake until `release`."""
        with self._lock:
            self._holders += 1
            if self._holders == 1 and self._is_mac:
                try:
                    # -w: it ends with this process, however that ends
                    self._child = self._popen(["/usr/bin/caffeinate", "-i", "-w", str(os.getpid())])
                except OSError as error:
                    logger.warning("the machine may fall asleep during a request: %s", error)
                    self._child = None

    def release(self) -> None:
        """Undo one `take`."""
        with self._lock:
            self._holders -= 1
            if self._holders == 0 and self._child is not None:
                self._child.kill()
                self._child.wait()
                self._child = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Awake for the length of a block."""
        self.take()
        try:
            yield
        finally:
            self.release()
