"""The engine: one thread owns MLX, loads the model, and turns jobs (token ids) into replies (text pieces).

Here is what other threads may call, and the thread's beginning and end; what it does meanwhile is `loop.py`. Requests,
HTTP, tools and markup are not known here. `start`, `submit`, `health` and `close` may be called from any thread and
never wait for a chunk.
"""
from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import mlx.core as mx
from mlx_lm.generate import generation_stream

from . import device, kv, memory
from ..config import Settings
from .decode import Decoder
from .loaded import Loaded
from .loop import Loop
from .plan import Plan
from ..protocol import Job, bad_request
from .queueing import Counters, Door, EngineTicket
from .reuse import Reuse
from .scheduling import Prompts
from .space import Space, measured

__all__ = ["Engine", "Loaded", "Progress"]

logger = logging.getLogger(__name__)

Progress = Callable[[str], None]
"""Takes one line about how far loading is, for `/health`."""
SAVE_S = 0.6
"""How long the end may take for what is still to be written to disk; most was written when it had been idle."""

KERNEL_SIZES = (64, 32, 16, 8, 2)
"""Tokens at once for which CUDA has kernels of their own."""
COMPILING = "compiling kernels for this GPU (minutes the first time; they are kept)"


class Engine:
    """The owner of MLX. `load` runs on the engine's thread; `on_failure` is called there when the engine is lost.

    `self_check` compares, after each turn, what the prompt cache says it holds with what it holds (for tests).
    `limit_bytes`: all the memory that there is for MLX, 0 asks the machine.
    """

    def __init__(self, load: Callable[[Progress], Loaded], settings: Settings,
                 on_failure: Callable[[BaseException], None] = lambda error: None, wired_limit_gb: float | None = None, self_check: bool = False,
                 limit_bytes: int = 0):
        self._load, self._settings, self._on_failure, self._wired_limit_gb = load, settings, on_failure, wired_limit_gb
        self._self_check, self._limit_bytes = self_check, limit_bytes
        self._reuse: Reuse | None = None
        self._loop: Loop | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._status, self._progress = "loading", ""
        self._prompts = Prompts(settings.max_running, settings.prefill_size)
        self._kv_bits, self._window_tokens = 0, None
        self.counters = Counters()
        self._door = Door(settings.max_running + settings.max_waiting, self.counters)

    # ── any thread ───────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Begin to load the model. Jobs may be submitted before; they wait for it."""
        self._thread.start()

    def submit(self, job: Job) -> EngineTicket:
        """Queue a job. Raises `ApiError`: 529 when the queue is full, 503 when the engine failed or is closing, 400 for what
        could never fit into memory."""
        if self._window_tokens is not None and len(job.tokens) > self._window_tokens:
            raise bad_request(f"prompt is too long: {len(job.tokens)} tokens > {self._window_tokens} maximum")
        return self._door.submit(job)

    def health(self) -> dict[str, Any]:
        """Status, loads and memory as JSON values. Memory in GB; never waits for the engine's thread."""
        running = self._loop.running if self._loop else 0
        return {
            "status": self._status,
            "progress": self._progress,
            "requests_running": running,
            "requests_waiting": max(0, self._door.open_jobs - running),
            **device.figures_gb(self._loop.peak_bytes if self._loop else 0), **(self._loop.peaks_gb() if self._loop else {}),
            "safe_context_tokens": self._window_tokens,
            "kv_bits": self._kv_bits,
            "requests": asdict(self.counters), "prefilled": self._prompts.held_tokens(),
            "prompt_cache": self._reuse.figures() if self._reuse else {},
        }

    def close(self, timeout_s: float) -> bool:
        """Fail what is open, at once, and stop. False when the thread is still inside a chunk after `timeout_s`.

        After False the process must end by `os._exit`: an ordinary exit aborts while MLX computes. It takes up to
        `SAVE_S` longer where conversations are still to be written to disk.
        """
        self._door.close("the server is shutting down")
        if self._thread.ident:
            self._thread.join(timeout_s)
        if self._reuse and self._reuse.archive:
            self._reuse.archive.close(0.0 if self._thread.is_alive() else SAVE_S)
        return not self._thread.is_alive()

    # ── the thread ───────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        try:
            self._open_model(self._load(lambda line: setattr(self, "_progress", line)))
            with mx.stream(generation_stream):
                self._serve()
        except Exception as error:  # the thread's outermost level: nobody else can answer for this
            logger.exception("the engine has failed")
            self._status, self._progress = "failed", str(error)
            self._door.close("the model has failed")
            self._on_failure(error)
        finally:
            mx.clear_streams()  # a thread that ends with streams of its own makes the process abort at exit

    def _open_model(self, loaded: Loaded) -> None:
        settings = self._settings
        weights_bytes = kv.weights_bytes(loaded.model)
        budget_bytes = memory.prompt_cache_bytes(settings.prompt_cache_gb, device.limit_bytes(), weights_bytes)
        self._reuse = Reuse(loaded.model, budget_bytes, loaded.detokenizer if settings.debug_request else None)
        if loaded.states and settings.disk_cache_gb and budget_bytes:
            self._reuse.open_archive(loaded.states, int(settings.disk_cache_gb * memory.GIB), self._door.wake)
        device.set_limits(settings.cache_limit_gb, self._wired_limit_gb, weights_bytes, budget_bytes)
        decoder = Decoder(loaded.model, loaded.stop_ids, settings.kv_bits, settings.kv_quant_start)
        self._kv_bits = decoder.kv_bits
        if device.compiles_kernels():
            self._progress = COMPILING
            logger.info(COMPILING)
            kv.warm_up(loaded.model, (settings.prefill_size, *KERNEL_SIZES))
            decoder.warm_up()
        space = Space(Plan(self._limit_bytes or device.limit_bytes(), measured(loaded.model, decoder.kv_bits, weights_bytes)), self._reuse.cache)
        self._window_tokens = space.window_tokens
        self._loop = Loop(loaded, self._door, self._prompts, self._reuse, decoder, space, self.counters)
        device.release()
        self._status, self._progress = "ok", ""

    def _serve(self) -> None:
        while not self._door.closed:
            try:
                self._loop.turn()
                if self._self_check:
                    self._reuse.check()
            except RuntimeError as error:
                self._recover(error)
        if self._reuse.archive:
            self._reuse.archive.keep_all()

    def _recover(self, error: RuntimeError) -> None:
        if not device.is_device_error(error):
            raise error
        logger.error("the device failed, every running request is ended: %s", error)
        self._loop.fail_all(error)
        if not device.is_usable_after(error):
            raise error
