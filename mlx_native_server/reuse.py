"""The engine's side of the prompt cache: one request's way from look-up to commit, on the engine's thread.

Rule: a request's own state is in the cache as a `Live` from `begin` to `commit` or `drop`, so that others can branch
off from it while it runs, and its record never runs ahead of what was computed. What is worth keeping is decided in
`cache.py`, how states are cut and joined in `kv.py`.
"""
from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import mlx.nn as nn

from . import kv
from .cache import HIT, NEAR_TOKENS, SYSTEM, TURN, USER, Cache
from .prefix_tree import BYTES_PER_TOKEN, common_tokens, pack
from .protocol import Job, Started
from .queueing import Task

logger = logging.getLogger(__name__)

WORTH_WAITING_TOKENS = 2 * NEAR_TOKENS
"""A request waits for another's prefill when that saves it at least so many tokens."""


class Live:
    """A running request's state, as the cache knows it: others may have copies of its plain part."""

    nbytes = 0

    def __init__(self) -> None:
        self.state: Callable[[], kv.State] = list

    def shortened(self, tokens: int) -> kv.Plain:
        """A copy of the plain part for the first `tokens` tokens."""
        return kv.plain_part(self.state(), tokens)


class Reuse:
    """The cache of one model's states, at most `budget_bytes`; 0 keeps none."""

    def __init__(self, model: nn.Module, budget_bytes: int):
        plain, others = (any(kv.is_plain(layer) is kind for layer in kv.layers(kv.new(model))) for kind in (True, False))
        self._model, self._stops = model, others
        self.cache = Cache(budget_bytes, has_plain=plain, has_fixed=others)

    # ── before a request has a state ─────────────────────────────────────────────────────────────

    def prepare(self, task: Task) -> None:
        """Note what the look-ups of a new task need."""
        task.packed, task.marks = pack(task.job.tokens), marks(task.job)

    def expect(self, tasks: Iterable[Task]) -> None:
        """Note for waiting tasks how much they would reuse now."""
        for task in tasks:
            if task.looked_up != self.cache.version:
                match = self.cache.match(task.packed, task.marks, task.job.client.session_id)
                task.expected_tokens, task.looked_up = match.tokens, self.cache.version

    def should_wait(self, task: Task, running: Iterable[Task]) -> bool:
        """Whether a prompt that is being prefilled will soon have much more of this one's than there is now."""
        return any(self._will_share(task, other) - task.expected_tokens >= WORTH_WAITING_TOKENS for other in running)

    def _will_share(self, task: Task, other: Task) -> int:
        if other.uid not in task.shared_tokens:
            task.shared_tokens[other.uid] = min(common_tokens(task.packed, other.packed), len(task.job.tokens) - 1, len(other.job.tokens) - 1)
        shared = task.shared_tokens[other.uid]
        if self._stops:
            shared = max((end for end in other.marks if end <= shared), default=0)
        return shared if shared > other.held_tokens else 0

    # ── a request with a state ───────────────────────────────────────────────────────────────────

    def begin(self, task: Task) -> Started:
        """Give a task its state, which holds the longest prefix that can be reused."""
        session = task.job.client.session_id
        match = self.cache.match(task.packed, task.marks, session)
        task.live = Live()
        self.cache.begin(task.packed, match, task.live, session)
        plain = match.plain
        if plain is not None:
            plain = plain.cut(match.tokens) if match.taken else plain.shortened(match.tokens)
        task.state = state = kv.joined(self._model, plain, match.fixed) if match.tokens else kv.new(self._model)
        task.live.state = lambda: state
        task.held_tokens = task.reused_tokens = match.tokens
        task.source = "" if not match.tokens else "running" if isinstance(match.plain, Live) else "memory"
        task.miss = "" if match.reason == HIT else f"{match.reason}@{match.agreed}"
        return Started(match.tokens, len(task.job.tokens) - match.tokens)

    def chunk_tokens(self, task: Task, size_tokens: int) -> int:
        """`size_tokens`, or less where a place to keep comes first."""
        ends = [end for end in task.marks if end > task.held_tokens] if self._stops else []
        return min([size_tokens, task.prefill_tokens, *(end - task.held_tokens for end in ends)])

    def advanced(self, task: Task) -> None:
        """A chunk was computed: record how far the state goes, and keep what a later prompt may branch off from."""
        session, held = task.job.client.session_id, task.held_tokens
        self.cache.reach(task.live, task.packed, held)
        if self._stops and held in task.marks:
            self.cache.mark(task.packed, held, task.marks[held], kv.fixed_part(task.state, held), session)

    def commit(self, task: Task, state: kv.State, length: int) -> None:
        """The request ended in order, with a state of the first `length` tokens of its prompt and answer."""
        tokens = (task.packed + pack(task.generated))[:length * BYTES_PER_TOKEN]
        said = kv.lengths(kv.layers(state))
        if not length or len(tokens) != length * BYTES_PER_TOKEN or said - {length}:
            logger.error("request %s: a state of %s tokens is not kept as one of %d", task.job.id, sorted(said), length)
            self.drop(task)
            return
        plain, fixed = kv.parts(state, length)
        continued = task.reused_tokens > min(task.marks, default=0)
        self.cache.commit(task.live, tokens, plain, fixed, task.marks, task.job.client.session_id, continued)
        task.live = None

    def drop(self, task: Task) -> None:
        """The request failed, or has ended without a `commit`: nothing of its state is used again."""
        if task.live is not None:
            self.cache.drop(task.live)
        task.state = task.live = None

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
