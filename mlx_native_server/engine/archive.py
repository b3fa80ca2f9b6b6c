"""Between the prompt cache and the disk: when a state is written, and how one comes back. On the engine's thread.

Written are the system and tools of a prompt once, and the newest state of a conversation when it was idle for a while,
when memory has no room for it any more, and when the server ends. A sub-agent's only when room is short: it seldom
lives longer than that. A state is read when a prompt has more in common with it than with anything in memory.
"""
from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

from . import disk, kv_files
from .cache import SYSTEM, TURN, USER, Cache
from ..config import Settings
from .disk import FIXED, PLAIN, WORTH_TOKENS, Entry, Fetch, Shelf
from .disk_writer import Saving, Writer
from .kv import Fixed, Plain
from .prefix_tree import BYTES_PER_TOKEN, Node
from ..protocol import Client
from .queueing import Task
from .state_file import Damaged

logger = logging.getLogger(__name__)

IDLE_S = 20.0
"""A conversation that asked for nothing in this time has its state written."""
LOOK_EVERY_S = 1.0
PENDING_SHARE = 0.25
"""Of the memory for kept states, what evicted ones may still hold until they are written."""


def owner(client: Client) -> str:
    """Whose conversation it is; of a session's sub-agents each has its own."""
    return f"{client.session_id}/{client.agent_id}" if client.agent_id else client.session_id


def states_folder(cache_dir: Path, model: Path, settings: Settings) -> Path | None:
    """Where the states of the model in a folder are kept; None where its files cannot be read."""
    try:
        name = disk.fingerprint(model, version("mlx-lm"), settings.kv_bits, settings.kv_quant_start)
    except OSError as error:
        logger.warning("prompts are not kept on disk: %s", error)
        return None
    return cache_dir / "prompts" / name


class Archive:
    """The states of one model that have files, and those that will."""

    def __init__(self, cache: Cache, shelf: Shelf, writer: Writer):
        self._cache, self._shelf, self._writer = cache, shelf, writer
        self._systems: set[int] = set()
        self._look_s, self._refused = 0.0, False
        self._reading: Callable[[], Fetch | None] = lambda: None
        cache.on_evicted = self._evicted

    # ── reading ──────────────────────────────────────────────────────────────────────────────────

    def look_up(self, task: Task, more_than: int) -> None:
        """Have the files read and checked that have more of a new task's prompt than the memory's so many tokens."""
        task.fetch = self._shelf.find(task.packed, more_than)
        if task.fetch and not self._reading():  # one at a time: nobody has promised memory for more
            self._reading = weakref.ref(task.fetch)
            self._read(task.fetch)

    def is_elsewhere(self, task: Task) -> bool:
        """Whether another model's files have the beginning of this prompt."""
        return self._shelf.is_elsewhere(task.packed)

    def _read(self, fetch: Fetch) -> bool:
        """Begin to read a fetch's files, where there is room for them."""
        room_bytes = sum(entry.nbytes for entry in fetch.entries.values())
        if room_bytes > self._cache.budget_bytes:
            return False
        self._cache.fit(room_bytes)
        for name, entry in fetch.entries.items():
            try:
                if entry.path.stat().st_size != entry.nbytes:
                    raise Damaged(f"{entry.path.name} has another size")
                fetch.parts[name] = kv_files.load(entry.path, entry.header.facts["layers"], entry.tokens, name == PLAIN)
            except (Damaged, KeyError, OSError, RuntimeError) as error:
                return self._discard(fetch, entry, error)
        return True

    def _discard(self, fetch: Fetch, entry: Entry, error: Exception) -> bool:
        self._shelf.discard(entry, str(error))
        fetch.parts, fetch.is_right = {}, False
        return False

    def restore(self, task: Task) -> bool:
        """Bring what was found for a task into the cache; False where that did not work."""
        fetch = task.fetch
        if not fetch.is_right or not (fetch.parts or self._read(fetch)):
            return False
        for name, entry in fetch.entries.items():
            try:
                kv_files.finish(fetch.parts[name])
            except RuntimeError as error:
                return self._discard(fetch, entry, error)
        plain = self._fitting(fetch.parts.get(PLAIN), fetch.tokens)
        self._cache.insert(task.packed[:fetch.tokens * BYTES_PER_TOKEN], plain, _saved(fetch.parts.get(FIXED)), self._mark(task), owner(task.job.client))
        self._shelf.read += 1
        return True

    def _fitting(self, plain: Plain | None, tokens: int) -> Plain | None:
        if plain is None or plain.tokens == tokens:
            return _saved(plain)
        return plain.shortened(tokens) if plain.tokens > 1.25 * tokens else plain.cut(tokens)

    def _mark(self, task: Task) -> int:
        entry: Entry = next(iter(task.fetch.entries.values()))
        return SYSTEM if entry.is_system else task.marks.get(task.fetch.tokens, 0)

    # ── writing ──────────────────────────────────────────────────────────────────────────────────

    def keep_system(self, task: Task, plain: Plain | None) -> None:
        """A task has ended with a state whose plain part is `plain`: write its system and tools, if that was not done."""
        tokens = next((end for end, mark in task.marks.items() if mark == SYSTEM and end >= WORTH_TOKENS), 0)
        packed = task.packed[:tokens * BYTES_PER_TOKEN]
        if not tokens or (name := hash(packed)) in self._systems:
            return
        nodes, _ = self._cache.tree.path(packed)
        fixed = nodes[-1].fixed if nodes and nodes[-1].end_tokens == tokens else None
        if self._cache.has_fixed and not isinstance(fixed, Fixed):
            return
        self._systems.add(name)
        for name, part in ((FIXED, fixed), (PLAIN, plain)):
            if part is not None:
                self._write(Saving(packed, name, True, *self._described(part, tokens)))

    def _evicted(self, leaf: Node) -> None:
        if self._writer.pending_bytes() <= PENDING_SHARE * self._cache.budget_bytes:
            self.keep(leaf)

    def keep(self, leaf: Node) -> None:
        """Write a conversation's newest state, as far as it has no files: all of its plain part, and the fixed ones of the
        places that its next prompt may go on from."""
        if leaf.end_tokens < WORTH_TOKENS or not (isinstance(leaf.plain, Plain) or not self._cache.has_plain):
            return
        above = list(leaf.ancestors())
        places = [leaf, *(next((node for node in above if node.mark == mark and node.fixed), leaf) for mark in (TURN, USER))]
        lengths = frozenset(node.end_tokens for node in places)
        packed = self._cache.tree.tokens(leaf)
        for node in dict.fromkeys(reversed(places)):
            self._keep(packed, node.end_tokens, FIXED, node.fixed, lengths)
        self._keep(packed, leaf.end_tokens, PLAIN, leaf.plain, lengths)

    def _keep(self, packed: bytes, tokens: int, name: str, part: Plain | Fixed | None, lengths: frozenset[int]) -> None:
        if part is None or part.saved or self._refused:
            return
        part.saved = True
        described = self._described(part, tokens)
        self._write(Saving(packed[:tokens * BYTES_PER_TOKEN], name, False, *described, lengths, lambda: setattr(part, "saved", False)))

    def _described(self, part: Plain | Fixed, tokens: int) -> tuple[str, list]:
        try:
            return kv_files.described(part, tokens)
        except ValueError as error:
            if not self._refused:
                logger.warning("this model's prompts are not kept on disk: %s", error)
            self._refused = True
            return "", []

    def _write(self, saving: Saving) -> None:
        if not self._refused:
            self._writer.save(saving)

    def keep_idle(self) -> None:
        """Write the newest state of each conversation that has been idle for `IDLE_S`; looks at most once a second."""
        if (now_s := self._cache.clock()) < self._look_s:
            return
        self._look_s = now_s + LOOK_EVERY_S
        for leaf in self._unsaved():
            if now_s - leaf.used_s >= IDLE_S:
                self.keep(leaf)

    def _unsaved(self) -> Iterator[Node]:
        """The newest leaves of the sessions that have no files, but for sub-agents'."""
        newest: dict[object, Node] = {}
        for node in self._cache.tree:
            if not node.children and node.end_tokens >= WORTH_TOKENS and "/" not in node.session:
                key = node.session or node
                if key not in newest or (newest[key].continued, newest[key].used_s) < (node.continued, node.used_s):
                    newest[key] = node
        for leaf in newest.values():
            part = leaf.plain if self._cache.has_plain else leaf.fixed
            if isinstance(part, (Plain, Fixed)) and not part.saved:
                yield leaf

    def keep_all(self) -> None:
        """Have everything written that would be after a while."""
        for leaf in self._unsaved():
            self.keep(leaf)

    @property
    def wait_s(self) -> float | None:
        """For how long the engine may do nothing before it looks for idle conversations again; None for ever."""
        return None if self._refused or next(self._unsaved(), None) is None else LOOK_EVERY_S

    def figures(self) -> dict[str, int]:
        """For `/health`; any thread may ask."""
        return {**self._shelf.figures(), "written": self._writer.written, "left_out": self._writer.dropped}

    def pending_bytes(self) -> int:
        """Memory that is held only to be written."""
        return self._writer.pending_bytes()

    def close(self, timeout_s: float) -> None:
        """Write what is not written, for so long at most. May be called once the engine's thread has ended or by it."""
        self._writer.close(timeout_s)
        self._shelf.close()


def _saved(part: Plain | Fixed | None) -> Plain | Fixed | None:
    if part is not None:
        part.saved = True
    return part
