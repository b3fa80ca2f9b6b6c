"""The engine's side of the prompt cache: one request's way from look-up to commit, on the engine's thread.

Rule: a request's own state is in the cache as a `Live` from `begin` to `commit` or `drop`, so that others can branch
off from it while it runs, and its record never runs ahead of what was computed. What is worth keeping is decided in
`cache.py`, how states are cut and joined in `kv.py`.
"""
from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.nn as nn

from . import kv
from .archive import Archive, owner
from .cache import (
    COLD, HIT, MESSAGES_CHANGED, MODEL_CHANGED, NEAR_TOKENS, REMEMBERED, SYSTEM, SYSTEM_CHANGED, TOOLS_CHANGED, TURN, USER, Cache)
from .disk import Shelf
from .disk_writer import Writer
from .prefix_tree import BYTES_PER_TOKEN, common_tokens, pack
from ..protocol import Job, Started
from .queueing import Task

logger = logging.getLogger(__name__)

WORTH_WAITING_TOKENS = 2 * NEAR_TOKENS
"""A request waits for another's prefill when that saves it at least so many tokens."""
SHOWN_TOKENS = 12
"""How much is shown of a prompt from where it leaves what is known."""


class Live:
    """A running request's state, as the cache knows it: others may have copies of its plain part."""

    nbytes = 0

    def __init__(self) -> None:
        self.state: Callable[[], kv.State] = list

    def shortened(self, tokens: int) -> kv.Plain:
        """A copy of the plain part for the first `tokens` tokens."""
        return kv.plain_part(self.state(), tokens)


class Reuse:
    """The cache of one model's states, at most `budget_bytes`; 0 keeps none. `open_archive` gives it the disk.

    `detokenizer`: what makes one; with it a miss is told with the first text that differs (a prompt's: for debugging only).
    """

    def __init__(self, model: nn.Module, budget_bytes: int, detokenizer: Callable[[], Any] | None = None):
        plain, others = (any(kv.is_plain(layer) is kind for layer in kv.layers(kv.new(model))) for kind in (True, False))
        self._model, self._has_places, self._detokenizer = model, others, detokenizer
        self._stops = any(not kv.is_plain(layer) and not kv.is_window(layer) for layer in kv.layers(kv.new(model)))
        self.cache = Cache(budget_bytes, has_plain=plain, has_fixed=others)
        self.archive: Archive | None = None
        self._offers: dict[str, tuple[str, ...]] = {}

    def open_archive(self, folder: Path, limit_bytes: int, on_ready: Callable[[], None]) -> None:
        """Keep states in `folder` too. `on_ready`: called on another thread when `should_wait` may have changed."""
        shelf = Shelf(folder, limit_bytes, self.cache.has_plain, self.cache.has_fixed, on_ready)
        writer = Writer(shelf)
        try:
            shelf.open()
        except OSError as error:
            logger.warning("prompts are not kept on disk: %s", error)
            return
        writer.start()
        self.archive = Archive(self.cache, shelf, writer)

    # ── before a request has a state ─────────────────────────────────────────────────────────────

    def prepare(self, task: Task) -> None:
        """Note what the look-ups of a new task need, and look for it on disk."""
        task.packed, task.marks = pack(task.job.tokens), marks(task.job)
        self.expect([task])
        if self.archive:
            self.archive.look_up(task, task.expected_tokens + WORTH_WAITING_TOKENS)
            task.looked_up = -1

    def expect(self, tasks: Iterable[Task]) -> None:
        """Note for waiting tasks how much they would reuse now."""
        for task in tasks:
            if task.looked_up != self.cache.version:
                match = self.cache.match(task.packed, task.marks, owner(task.job.client))
                fetched_tokens = task.fetch.tokens if task.fetch else 0
                task.expected_tokens, task.looked_up = max(match.tokens, fetched_tokens), self.cache.version

    def should_wait(self, task: Task, running: Iterable[Task]) -> bool:
        """Whether there will soon be much more of this prompt: from disk, or from one that is being prefilled."""
        return bool(task.fetch and not task.fetch.done) or any(self._will_share(task, other) - task.expected_tokens >= WORTH_WAITING_TOKENS for other in running)

    def _will_share(self, task: Task, other: Task) -> int:
        if other.uid not in task.shared_tokens:
            task.shared_tokens[other.uid] = min(common_tokens(task.packed, other.packed), len(task.job.tokens) - 1, len(other.job.tokens) - 1)
        shared = task.shared_tokens[other.uid]
        if self._has_places:
            shared = max((end for end in other.marks if end <= shared), default=0)
        return shared if shared > other.held_tokens else 0

    # ── a request with a state ───────────────────────────────────────────────────────────────────

    def begin(self, task: Task, most_tokens: int | None = None) -> Started:
        """Give a task its state, which holds the longest prefix that can be reused, of `most_tokens` tokens at most."""
        session = owner(task.job.client)
        match = self.cache.match(task.packed, task.marks, session)
        restored = task.fetch is not None and task.fetch.tokens > match.tokens and self.archive.restore(task)
        if restored:
            match = self.cache.match(task.packed, task.marks, session)
        elif self.archive and match.reason == COLD and self.archive.is_elsewhere(task):
            match = replace(match, reason=MODEL_CHANGED)
        elif match.reason in (SYSTEM_CHANGED, MESSAGES_CHANGED) and self._offers.get(session, task.job.offers) != task.job.offers:
            match = replace(match, reason=TOOLS_CHANGED)
        self._note_offers(session, task.job.offers)
        if most_tokens is not None and match.tokens > most_tokens:
            match = self.cache.match(task.packed[:(most_tokens + 1) * BYTES_PER_TOKEN], task.marks, session)
        if self._has_places and match.agreed - match.tokens >= WORTH_WAITING_TOKENS and match.agreed < len(task.job.tokens):
            task.marks[match.agreed] = USER  # sequences part here, and the next one may part here too
        task.live, task.fetch = Live(), None
        self.cache.begin(task.packed, match, task.live, session)
        join_near(task.marks, match.tokens)
        plain = match.plain
        if plain is not None:
            plain = plain.cut(match.tokens) if match.taken else plain.shortened(match.tokens)
        task.state = state = kv.joined(self._model, plain, match.fixed) if match.tokens else kv.new(self._model)
        task.live.state = lambda: state
        task.held_tokens = task.reused_tokens = match.tokens
        task.source = "" if not match.tokens else "running" if isinstance(match.plain, Live) else "disk" if restored else "memory"
        task.miss = "" if match.reason == HIT else f"{match.reason}@{match.agreed}{self._shown(task.job.tokens[match.agreed:])}"
        return Started(match.tokens, len(task.job.tokens) - match.tokens)

    def _shown(self, tokens: list[int]) -> str:
        if self._detokenizer is None:
            return ""
        detokenizer, runs = self._detokenizer(), []
        for token in tokens[:SHOWN_TOKENS]:
            detokenizer.add_token(token)
            runs.append(detokenizer.last_segment)
        detokenizer.finalize()
        return f" {''.join([*runs, detokenizer.last_segment])!r}"

    def _note_offers(self, session: str, offers: tuple[str, ...]) -> None:
        self._offers.pop(session, None)
        self._offers[session] = offers
        while len(self._offers) > REMEMBERED:
            del self._offers[next(iter(self._offers))]

    def chunk_tokens(self, task: Task, size_tokens: int) -> int:
        """`size_tokens`, or less where a place to keep comes first that cannot be had afterwards."""
        ends = [end for end in task.marks if end > task.held_tokens] if self._stops else []
        return min([size_tokens, task.prefill_tokens, *(end - task.held_tokens for end in ends)])

    def advanced(self, task: Task, tokens: int) -> None:
        """A chunk of `tokens` was computed: record how far the state goes, and keep what a later prompt may branch off from."""
        session, held = owner(task.job.client), task.held_tokens
        self.cache.reach(task.live, task.packed, held)
        for end in sorted(task.marks) if self._has_places else ():
            if held - tokens < end <= held:
                self.cache.mark(task.packed, end, task.marks[end], kv.fixed_part(task.state, end, held - end), session)

    def commit(self, task: Task, state: kv.State, length: int) -> None:
        """The request ended in order, with a state of the first `length` tokens of its prompt and answer."""
        tokens = (task.packed + pack(task.generated))[:length * BYTES_PER_TOKEN]
        said = kv.lengths(kv.layers(state))
        if not length or len(tokens) != length * BYTES_PER_TOKEN or said - {length}:
            logger.error("request %s: a state of %s tokens is not kept as one of %d", task.job.id, sorted(said), length)
            self.drop(task)
            return
        plain, fixed = kv.parts(state, length)
        continued = task.reused_tokens > next((end for end, mark in task.marks.items() if mark == SYSTEM), 0)
        self.cache.commit(task.live, tokens, plain, fixed, task.marks, owner(task.job.client), continued)
        task.live = None
        if self.archive:
            self.archive.keep_system(task, plain)

    def drop(self, task: Task) -> None:
        """The request failed, or has ended without a `commit`: nothing of its state is used again."""
        if task.live is not None:
            self.cache.drop(task.live)
        task.state = task.live = None

    def keep_prompt(self, task: Task) -> None:
        """A task has failed: keep what is computed of its prompt, where its state still has that.

        What was in order before the failure is: the plain layers up to there, which later tokens do not change, and the
        fixed parts that were copied. Whatever else its state holds is not used.
        """
        if task.live is None:
            return
        nodes, _ = self.cache.tree.path(task.packed[:task.held_tokens * BYTES_PER_TOKEN])
        places = [(node.end_tokens, node.mark, node.fixed) for node in nodes if node.fixed and node.end_tokens <= task.held_tokens]
        length = max((end for end, _, _ in places), default=0) if self._has_places else task.held_tokens
        if not length or not self.cache.has_plain:
            return
        try:
            plain = task.live.shortened(length)
        except (RuntimeError, ValueError, TypeError, AttributeError, StopIteration) as error:
            logger.info("request %s: its prompt is not kept: %s", task.job.id, error)
            return
        self.drop(task)
        if kv.lengths(plain.layers) == {length}:
            session = owner(task.job.client)
            self.cache.insert(task.packed[:length * BYTES_PER_TOKEN], plain, None, 0, session)
            for end, mark, fixed in places:
                self.cache.insert(task.packed[:end * BYTES_PER_TOKEN], None, fixed, mark, session)

    def figures(self) -> dict[str, object]:
        """For `/health`; any thread may ask."""
        return {**self.cache.figures(), **({"disk": self.archive.figures()} if self.archive else {})}

    def check(self) -> None:
        """Raise AssertionError where what the cache says it holds is not what it holds."""
        self.cache.check()
        for node in self.cache.tree:
            for part in (node.plain, node.fixed):
                if isinstance(part, Live):
                    assert min(kv.lengths(kv.layers(part.state())), default=node.end_tokens) >= node.end_tokens, "a running state is shorter than recorded"
                elif part is not None:
                    assert part.tokens == node.end_tokens and kv.lengths(part.layers) <= {node.end_tokens}, "a state has another length than recorded"


def marks(job: Job) -> dict[int, int]:
    """The places of a prompt where later ones may branch off, and how much each matters.

    `Job.checkpoints` without those that are no places inside of the prompt. The prompt's end is one where no other is near.
    """
    last = len(job.tokens) - 1
    ends = sorted({end for end in job.checkpoints if 0 < end <= last})
    found = {end: SYSTEM if number == 0 and last - end > NEAR_TOKENS else TURN if number >= len(ends) - 2 else USER for number, end in enumerate(ends)}
    if last > 0 and last - max(ends, default=0) > NEAR_TOKENS:
        found[last] = TURN
    return found


def join_near(marks: dict[int, int], start: int) -> None:
    """A place hardly beyond `start`, where a kept state begins, is not worth another one: it becomes that place (in place)."""
    for end in [end for end, mark in marks.items() if start < end < start + NEAR_TOKENS and (mark < SYSTEM or not start)]:
        mark = marks.pop(end)
        if start:
            marks[start] = max(mark, marks.get(start, 0))
