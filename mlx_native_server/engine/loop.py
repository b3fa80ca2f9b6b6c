"""One turn of the engine's work after another: take what came, prefill for a while, let every row have its next tokens.

Rule: one prompt is prefilled at a time, in chunks (only short ones are read together), and what one job raises ends that
job and nothing else. Whose turn it is and how long a chunk may be is `scheduling.py`'s, what is reused `reuse.py`'s, how
rows share batches `decode.py`'s. Runs on the engine's thread, inside its stream.
"""
from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

from . import device, kv
from .decode import Decoder, Group, Start, Step
from .loaded import Loaded
from .memory import gb
from ..protocol import ApiError, Failed, Finished, Piece, overloaded
from .queueing import Counters, Door, Task
from .reuse import Reuse
from .scheduling import SETTLED_S, SHORT_TOKENS, TOGETHER, Prompts, whole_tiles
from .space import Space

logger = logging.getLogger(__name__)

CLEAR_EVERY_TICKS = 256
HELD_BACK_S = 0.05
"""How long to wait for something while every prompt waits for its state."""


class Loop:
    """The jobs that are being worked on, and their next turn."""

    def __init__(self, loaded: Loaded, door: Door, prompts: Prompts, reuse: Reuse, decoder: Decoder, space: Space, counters: Counters):
        self._loaded, self._door, self._prompts, self._reuse, self._decoder = loaded, door, prompts, reuse, decoder
        self._space, self._counters = space, counters
        self._decoding: dict[int, Task] = {}
        self._uids = self._ticks = self.peak_bytes = self.last_peak_bytes = 0
        self._worked = False

    @property
    def running(self) -> int:
        """Jobs that hold a state. Any thread may ask."""
        return len(self._prompts.begun) + len(self._decoding)

    def turn(self) -> None:
        """Do what there is to do, or wait for something for a while."""
        self._collect(self._wait_s())
        self._decode(self._prefill())
        if self._reuse.archive:
            self._reuse.archive.keep_idle()

    def _wait_s(self) -> float | None:
        if self._prompts or self._decoding:
            return 0.0 if self._worked else HELD_BACK_S
        return self._reuse.archive.wait_s if self._reuse.archive else None

    def fail_all(self, error: Exception) -> None:
        """End every job that holds a state."""
        for task in [*self._prompts.begun, *self._decoding.values()]:
            self._fail(task, error)

    def _collect(self, wait_s: float | None = 0.0) -> None:
        """Take arrivals, waiting so long for one, and drop cancelled tasks."""
        for task in self._door.take(wait_s):
            with self._on_behalf_of(task):
                self._take_in(task)
        for task in [*self._prompts, *self._decoding.values()]:
            if task.ticket.cancelled:
                self._counters.cancelled += 1
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
                break
        else:
            spent_s = 0.0
        self._worked = not first or bool(self._decoding)
        return spent_s

    def _next_chunk(self, spent_s: float, first: bool) -> tuple[Task, int] | None:
        self._reuse.expect(self._prompts.waiting)
        return self._prompts.next_chunk(spent_s, first, list(self._decoding.values()), self._is_streaming, self._is_held_back)

    @property
    def _is_streaming(self) -> bool:
        """Whether a decoding row has given text for a while, so that a pause would show."""
        settled_s = time.perf_counter() - SETTLED_S
        return any(0 < task.first_token_s < settled_s for task in self._decoding.values())

    def _is_held_back(self, task: Task) -> bool:
        running = [*self._prompts.begun, *self._decoding.values()]
        return self._reuse.should_wait(task, self._prompts.begun) or self._space.must_wait(task, running)

    def _prefill_chunk(self, task: Task, size_tokens: int) -> None:
        if task.state is None:
            self._admit(task)
        if 0 < size_tokens == task.prefill_tokens <= SHORT_TOKENS and len(rows := self._short_ones(task)) > 1:
            self._prefill_together(rows)
            return
        size_tokens = self._reuse.chunk_tokens(task, whole_tiles(task.held_tokens, size_tokens, task.prefill_tokens))
        size_tokens = self._space.chunk_tokens(task, size_tokens)
        if size_tokens:
            begun_s, before_bytes = time.perf_counter(), device.active_bytes()
            kv.prefill(self._loaded.model, task.state, task.job.tokens[task.held_tokens:task.held_tokens + size_tokens])
            self._decoder.quantize(task.state)
            task.held_tokens += size_tokens
            self._prompts.took(task, size_tokens, time.perf_counter() - begun_s)
            self._space.took(size_tokens, task.held_tokens - size_tokens, before_bytes, self._note_peak())
            self._reuse.advanced(task, size_tokens)
            device.release()  # a growing cache leaves buffers of sizes that are never asked for again
        if not task.prefill_tokens:
            self._hand_over([task])

    def _short_ones(self, task: Task) -> list[Task]:
        """A short prompt, and others that can be read in the same go."""
        rows, taken, decoding = [task], [task], list(self._decoding.values())
        if self._decoder.kv_bits or not kv.can_read_together([task.state]):
            return rows
        most = self._space.chunk_tokens(task, TOGETHER * SHORT_TOKENS) // SHORT_TOKENS
        while len(rows) < most and (other := self._prompts.companion(
                taken, sum(row.prefill_tokens for row in rows), decoding, self._is_streaming, self._is_held_back)):
            taken.append(other)
            with self._on_behalf_of(other):
                if other.state is None:
                    self._admit(other, task.held_tokens)
                if 0 < other.prefill_tokens <= SHORT_TOKENS and kv.can_read_together([task.state, other.state]):
                    rows.append(other)
        return rows

    def _prefill_together(self, rows: list[Task]) -> None:
        with self._on_behalf_of(*rows):
            prompts = [row.job.tokens[row.held_tokens:row.held_tokens + row.prefill_tokens] for row in rows]
            kv.prefill_together(self._loaded.model, [row.state for row in rows], prompts)
            self._note_peak()
            for row, prompt in zip(rows, prompts):
                row.held_tokens += len(prompt)
                self._reuse.advanced(row, len(prompt))
            self._hand_over(rows)
        device.release()

    def _admit(self, task: Task, most_tokens: int | None = None) -> None:
        self._prompts.begin(task)
        self._uids = task.uid = self._uids + 1
        started = self._reuse.begin(task, most_tokens)
        self._counters.add(started)
        task.ticket.put(started)

    def _hand_over(self, rows: list[Task]) -> None:
        """Prompts that are complete begin to decode, or end where nothing is to be generated."""
        for task in [task for task in rows if task.job.max_tokens < 1]:
            rows.remove(task)
            self._reuse.commit(task, task.state, task.held_tokens)
            self._end(task, Finished("length"), "length")
        if not rows:
            return
        for task in rows:
            task.detokenizer = self._loaded.detokenizer()
        groups = self._decoder.prepare([Start(task.uid, task.job.tokens, task.state, task.job.max_tokens, task.job.sampling) for task in rows])
        for task in rows:
            task.state = None
            self._prompts.remove(task)
            self._decoding[task.uid] = task
            task.live.state = partial(self._decoder.peek, task.uid)
        for group in groups:
            self._decoder.join(group)

    def _decode(self, owed_s: float) -> None:
        """One token for every row, and more of them until `owed_s` seconds are used or somebody new arrives."""
        begun_s = time.perf_counter()
        while self._decoding and not self._door.closed:
            if not self._space.before_decoding() and len(self._decoding) > 1:
                self._give_up(max(self._decoding.values(), key=lambda task: task.arrived_s))
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
            try:
                steps = group.step()
            except RuntimeError as error:
                if not device.is_memory_error(error):
                    raise
                self._decoder.drop(group)
                for uid in uids:
                    self._fail(self._decoding[uid], error)
        for step in steps:
            task = self._decoding[step.uid]
            with self._on_behalf_of(task):
                self._deliver(task, step)

    def _deliver(self, task: Task, step: Step) -> None:
        task.last_token_s = time.perf_counter()
        task.first_token_s = task.first_token_s or task.last_token_s
        task.generated.append(step.token)
        self._counters.generated_tokens += 1
        if step.reason != "stop":
            task.detokenizer.add_token(step.token)
            task.ticket.put(Piece(task.detokenizer.last_segment, 1, (step.token,)))
        if step.reason:
            task.detokenizer.finalize()
            if rest := task.detokenizer.last_segment:
                task.ticket.put(Piece(rest, 0))
            self._reuse.commit(task, step.state, len(task.job.tokens) + len(task.generated))
            self._end(task, Finished(step.reason, tokens=1 if step.reason == "stop" else 0), step.reason)

    @contextmanager
    def _on_behalf_of(self, *tasks: Task) -> Iterator[None]:
        """Work for these jobs: what it raises ends them and nothing else."""
        try:
            yield
        except Exception as error:  # the jobs' outermost level
            if device.is_device_error(error):  # not their own: see _recover
                raise
            for task in tasks:
                if not task.ticket.ended:
                    self._fail(task, error)

    def _fail(self, task: Task, error: Exception) -> None:
        logger.error("request %s failed", task.job.id, exc_info=error)
        self._counters.failed += 1
        if not (device.is_device_error(error) or device.is_memory_error(error)):
            self._reuse.keep_prompt(task)
        self._end(task, Failed(ApiError(500, "api_error", f"generation failed: {type(error).__name__}")), "error")

    def _give_up(self, task: Task) -> None:
        """End an answer for which there is no memory; what it has said is not lost, and the client may go on from it."""
        self._counters.failed += 1
        self._end(task, Failed(overloaded("memory is short")), "memory")

    def _end(self, task: Task, reply: Finished | Failed, reason: str) -> None:
        """Take a task out of everything, log it, and let the handler know."""
        self._prompts.remove(task)
        if self._decoding.pop(task.uid, None):
            self._decoder.forget(task.uid)
        self._reuse.drop(task)
        self.last_peak_bytes = task.peak_bytes
        self._counters.finished += isinstance(reply, Finished)
        logger.info("%s", task.summary(reason, device.release()))
        self._door.leave(task.ticket)
        task.ticket.put(reply)

    def _note_peak(self) -> int:
        """Each running task's peak is the highest that memory stood at while it ran. Returns the newest."""
        self.peak_bytes = max(self.peak_bytes, peak_bytes := device.take_peak())
        for task in [*self._prompts.begun, *self._decoding.values()]:
            task.peak_bytes = max(task.peak_bytes, peak_bytes)
        return peak_bytes

    def peaks_gb(self) -> dict[str, float]:
        """The highest that memory stood at during the requests that run, and during the last one; for `/health`, from any thread."""
        running = [task.peak_bytes for task in [*self._prompts.begun, *list(self._decoding.values())]]
        return {"peak_running_gb": gb(max(running, default=0)), "peak_last_gb": gb(self.last_peak_bytes)}
