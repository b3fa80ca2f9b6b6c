"""The engine: one thread owns MLX, loads the model, and turns jobs (token ids) into replies (text pieces).

One turn of its loop: take what arrived or was cancelled, prefill for a while (one prompt at a time, in chunks),
let every decoding row have its next tokens. Requests, HTTP, tools and markup are not known here. `start`, `submit`,
`health` and `close` may be called from any thread and never wait for a chunk. What is kept of prompts: `reuse.py`.
"""
from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.generate import generation_stream

from . import device, kv, memory
from .config import Settings
from .decode import Decoder, Group, Start, Step
from .protocol import ApiError, Failed, Finished, Job, Piece, Started
from .queueing import Counters, Door, EngineTicket, Prompts, Task
from .reuse import Reuse

logger = logging.getLogger(__name__)

Progress = Callable[[str], None]
"""Takes one line about how far loading is, for `/health`."""
CLEAR_EVERY_TICKS = 256


@dataclass(frozen=True)
class Loaded:
    """What the engine needs of a model.

    `detokenizer` makes a streaming detokenizer for an answer that follows the given last prompt token.
    `stop_ids` end an answer and have no text. `vocab_size`: ids from there on would read garbage.
    """

    model: nn.Module
    detokenizer: Callable[[int], Any]
    stop_ids: frozenset[int]
    vocab_size: int


class Engine:
    """The owner of MLX. `load` runs on the engine's thread; `on_failure` is called there when the engine is lost.

    `self_check` compares, after each turn, what the prompt cache says it holds with what it holds (for tests).
    """

    def __init__(self, load: Callable[[Progress], Loaded], settings: Settings,
                 on_failure: Callable[[BaseException], None] = lambda error: None, wired_limit_gb: float | None = None, self_check: bool = False):
        self._load, self._settings, self._on_failure, self._wired_limit_gb = load, settings, on_failure, wired_limit_gb
        self._self_check, self._reuse = self_check, None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._status, self._progress = "loading", ""
        self._prompts = Prompts(settings.max_running, settings.prefill_size)
        self._decoding: dict[int, Task] = {}
        self._uids = self._ticks = self._peak_bytes = 0
        self._decoder: Decoder | None = None
        self.counters = Counters()
        self._door = Door(settings.max_running + settings.max_waiting, self.counters)

    # ── any thread ───────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Begin to load the model. Jobs may be submitted before; they wait for it."""
        self._thread.start()

    def submit(self, job: Job) -> EngineTicket:
        """Queue a job. Raises `ApiError`: 529 when the queue is full, 503 when the engine failed or is closing."""
        return self._door.submit(job)

    def health(self) -> dict[str, Any]:
        """Status, loads and memory as JSON values. Memory in GB; never waits for the engine's thread."""
        running = len(self._prompts.begun) + len(self._decoding)
        return {
            "status": self._status,
            "progress": self._progress,
            "requests_running": running,
            "requests_waiting": max(0, self._door.open_jobs - running),
            **device.figures_gb(self._peak_bytes),
            "kv_bits": 0 if self._decoder is None else self._decoder.kv_bits,
            "requests": asdict(self.counters),
            "prompt_cache": self._reuse.cache.figures() if self._reuse else {},
        }

    def close(self, timeout_s: float) -> bool:
        """Fail what is open, at once, and stop. False when the thread is still inside a chunk after `timeout_s`.

        After False the process must end by `os._exit`: an ordinary exit aborts while MLX computes.
        """
        self._door.close("the server is shutting down")
        if self._thread.ident:
            self._thread.join(timeout_s)
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
        settings, self._loaded = self._settings, loaded
        weights_bytes = kv.weights_bytes(loaded.model)
        budget_bytes = memory.prompt_cache_bytes(settings.prompt_cache_gb, device.limit_bytes(), weights_bytes)
        self._reuse = Reuse(loaded.model, budget_bytes)
        device.set_limits(settings.cache_limit_gb, self._wired_limit_gb, weights_bytes, budget_bytes)
        self._decoder = Decoder(loaded.model, loaded.stop_ids, settings.kv_bits, settings.kv_quant_start)
        device.release()
        self._status, self._progress = "ok", ""

    def _serve(self) -> None:
        while not self._door.closed:
            try:
                self._collect()
                self._decode(self._prefill())
                if self._self_check:
                    self._reuse.check()
            except RuntimeError as error:
                self._recover(error)

    def _recover(self, error: RuntimeError) -> None:
        if not device.is_device_error(error):
            raise error
        logger.error("the device failed, every running request is ended: %s", error)
        for task in [*self._prompts.begun, *self._decoding.values()]:
            self._fail(task, error)
        if not device.is_usable_after(error):
            raise error

    def _collect(self) -> None:
        """Take arrivals, waiting for one when there is nothing else to do, and drop cancelled tasks."""
        for task in self._door.take(wait=not (self._prompts or self._decoding)):
            with self._on_behalf_of(task):
                self._take_in(task)
        for task in [*self._prompts, *self._decoding.values()]:
            if task.ticket.cancelled:
                self.counters.cancelled += 1
                with self._on_behalf_of(task):
                    self._keep(task)
                if not task.ticket.ended:
                    self._end(task, Failed(ApiError(499, "api_error", "the request was cancelled")), "cancelled")

    def _take_in(self, task: Task) -> None:
        tokens = task.job.tokens
        if not tokens or min(tokens) < 0 or max(tokens) >= self._loaded.vocab_size:
            raise ValueError("the prompt is empty or has token ids outside the model's vocabulary")
        self._reuse.prepare(task)
        self._prompts.waiting.append(task)

    def _keep(self, task: Task) -> None:
        """Give the cache what a cancelled task has computed."""
        if task.uid in self._decoding:
            self._reuse.commit(task, *self._decoder.remove(task.uid))
        elif task.state is not None:
            self._reuse.commit(task, task.state, task.held_tokens)

    def _prefill(self) -> float:
        """Prefill for one slice; returns the seconds that decoding rows are owed for it.

        A slice goes on with the next prompt only when one is complete. A prompt that is not complete owes the
        others as much time as it took, so that it takes half of the machine at most.
        """
        begun_s, spent_s, first = time.perf_counter(), 0.0, True
        while chunk := self._next_chunk(spent_s, first):
            task, size_tokens = chunk
            with self._on_behalf_of(task):
                self._prefill_chunk(task, size_tokens)
            spent_s, first = time.perf_counter() - begun_s, False
            if task in self._prompts.begun:
                return spent_s
        return 0.0

    def _next_chunk(self, spent_s: float, first: bool) -> tuple[Task, int] | None:
        self._reuse.expect(self._prompts.waiting)
        streaming = any(task.first_token_s for task in self._decoding.values())
        return self._prompts.next_chunk(spent_s, first, len(self._decoding), streaming,
                                        held_back=lambda task: self._reuse.should_wait(task, self._prompts.begun))

    def _prefill_chunk(self, task: Task, size_tokens: int) -> None:
        if task.state is None:
            self._admit(task)
        begun_s, size_tokens = time.perf_counter(), self._reuse.chunk_tokens(task, size_tokens)
        if size_tokens:
            kv.prefill(self._loaded.model, task.state, task.job.tokens[task.held_tokens:task.held_tokens + size_tokens])
            self._decoder.quantize(task.state)
            task.held_tokens += size_tokens
            self._prompts.rate.add(size_tokens, time.perf_counter() - begun_s)
            self._note_peak()
            self._reuse.advanced(task)
            device.release()  # a growing cache leaves buffers of sizes that are never asked for again
        if not task.prefill_tokens:
            self._hand_over(task)

    def _admit(self, task: Task) -> None:
        self._prompts.begin(task)
        self._uids = task.uid = self._uids + 1
        started = self._reuse.begin(task)
        self.counters.add(started)
        task.ticket.put(started)

    def _hand_over(self, task: Task) -> None:
        job = task.job
        if job.max_tokens < 1:
            self._reuse.commit(task, task.state, task.held_tokens)
            self._end(task, Finished("length"), "length")
            return
        task.detokenizer = self._loaded.detokenizer(job.tokens[-1])
        group = self._decoder.prepare(Start(task.uid, job.tokens, task.state, job.max_tokens, job.sampling))
        task.state = None
        self._prompts.remove(task)
        self._decoding[task.uid] = task
        self._decoder.join(group)
        task.live.state = lambda: self._decoder.peek(task.uid)

    def _decode(self, owed_s: float) -> None:
        """One token for every row, and more of them until `owed_s` seconds are used or somebody new arrives."""
        begun_s = time.perf_counter()
        while self._decoding and not self._door.closed:
            for group in self._decoder.groups():
                self._step(group)
            self._note_peak()
            self._ticks += 1
            if self._ticks % CLEAR_EVERY_TICKS == 0:
                device.release()
            if self._door.has_arrivals or time.perf_counter() - begun_s >= owed_s:
                return
            self._collect()

    def _step(self, group: Group) -> None:
        uids, steps = group.uids(), []
        # With several rows an error is nobody's own: it ends the engine.
        with self._on_behalf_of(self._decoding[uids[0]]) if len(uids) == 1 else nullcontext():
            steps = group.step()
        for step in steps:
            task = self._decoding[step.uid]
            with self._on_behalf_of(task):
                self._deliver(task, step)

    def _deliver(self, task: Task, step: Step) -> None:
        task.last_token_s = time.perf_counter()
        task.first_token_s = task.first_token_s or task.last_token_s
        task.generated.append(step.token)
        self.counters.generated_tokens += 1
        if step.reason != "stop":
            task.detokenizer.add_token(step.token)
            task.ticket.put(Piece(task.detokenizer.last_segment, 1))
        if step.reason:
            task.detokenizer.finalize()
            if rest := task.detokenizer.last_segment:
                task.ticket.put(Piece(rest, 0))
            self._reuse.commit(task, step.state, len(task.job.tokens) + len(task.generated))
            self._end(task, Finished(step.reason, tokens=1 if step.reason == "stop" else 0), step.reason)

    @contextmanager
    def _on_behalf_of(self, task: Task) -> Iterator[None]:
        """Work for one job: what it raises ends that job and nothing else."""
        try:
            yield
        except Exception as error:  # the job's outermost level
            if device.is_device_error(error):  # not the job's own: see _recover
                raise
            self._fail(task, error)

    def _fail(self, task: Task, error: Exception) -> None:
        logger.error("request %s failed", task.job.id, exc_info=error)
        self.counters.failed += 1
        self._end(task, Failed(ApiError(500, "api_error", f"generation failed: {type(error).__name__}")), "error")

    def _end(self, task: Task, reply: Finished | Failed, reason: str) -> None:
        """Take a task out of everything, log it, and let the handler know."""
        self._prompts.remove(task)
        if self._decoding.pop(task.uid, None):
            self._decoder.forget(task.uid)
        self._reuse.drop(task)
        self.counters.finished += isinstance(reply, Finished)
        logger.info("%s", task.summary(reason, device.release()))
        self._door.leave(task.ticket)
        task.ticket.put(reply)

    def _note_peak(self) -> None:
        """Each running task's peak is the highest that memory stood at while it ran."""
        self._peak_bytes = max(self._peak_bytes, peak_bytes := device.take_peak())
        for task in [*self._prompts.begun, *self._decoding.values()]:
            task.peak_bytes = max(task.peak_bytes, peak_bytes)
