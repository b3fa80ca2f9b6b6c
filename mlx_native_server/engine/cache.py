"""The prompt cache: what is kept of earlier prompts, what a new one reuses of it, what goes when room is short.

Rules: what is recorded for a node is what is held, at every moment between two chunks; whoever changes a state takes
it out first and records it last. Each leaf of the tree has a plain part (or, in models without one, a fixed part), so
that a prefix found in the tree is always there to be reused. States are opaque; the tree is in `prefix_tree.py`,
the states in `kv.py`, and who calls what when in `reuse.py`.
"""
from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .prefix_tree import BYTES_PER_TOKEN, Held, Node, PrefixTree

TURN, USER, SYSTEM = 1, 2, 3
"""Marks: before a generation header; before the last message that a person typed; the end of system and tools."""
NEAR_TOKENS = 32
"""So few tokens are not worth a copy, a wait, or a word in the log."""
IDLE_S = 600.0
"""A session that asked for nothing in this time is taken for ended."""
REMEMBERED = 4096
"""How many evicted places are remembered, to tell an eviction from a prompt that is new."""

HIT, COLD, EVICTED, UNTRIMMABLE = "hit", "cold", "evicted", "untrimmable"
SYSTEM_CHANGED, TOOLS_CHANGED, MESSAGES_CHANGED, MODEL_CHANGED = "system_changed", "tools_changed", "messages_changed", "model_changed"


@dataclass(frozen=True)
class Match:
    """What a prompt can reuse: its first `tokens` tokens, from `plain` (cut back) and `fixed` (as it is).

    `agreed` is where the prompt leaves what is known; `reason` why no more is reused (`HIT`: nothing more could be).
    `taken`: `plain` is nobody else's, so the request may go on in it, in place of a copy.
    """

    tokens: int = 0
    agreed: int = 0
    reason: str = COLD
    plain: Held | None = None
    fixed: Held | None = None
    taken: bool = False


class Cache:
    """Kept states by their tokens, at most `budget_bytes` of them. Not thread-safe, but for the counters.

    `has_plain` and `has_fixed`: which parts the model's states have. `on_evicted` gets a leaf before it is let go, with the
    places above it that nobody else needs.
    """

    def __init__(self, budget_bytes: int, has_plain: bool, has_fixed: bool, clock: Callable[[], float] = time.monotonic,
                 on_evicted: Callable[[Node], None] = lambda leaf: None):
        self.budget_bytes, self.has_plain, self.has_fixed = budget_bytes, has_plain, has_fixed
        self.clock, self.on_evicted = clock, on_evicted
        self.tree = PrefixTree()
        self.live: dict[Held, Node | None] = {}
        self._evicted: OrderedDict[tuple[int, int], None] = OrderedDict()
        self.nbytes = self.entries = self.evictions = self.version = 0
        self.reasons: Counter[str] = Counter()

    # ── look-up ──────────────────────────────────────────────────────────────────────────────────

    def match(self, tokens: bytes, marks: Mapping[int, int] = {}, session: str = "") -> Match:
        """The longest reusable prefix of a prompt, less its last token. `marks`: its places of note by their length. Changes nothing."""
        nodes, agreed = self.tree.path(tokens)
        reach = min(agreed, len(tokens) // BYTES_PER_TOKEN - 1)
        length, fixed, source = reach, None, None
        if self.has_fixed:
            best = next((node for node in reversed(nodes) if node.end_tokens <= reach and node.fixed), None)
            length, fixed = (best.end_tokens, best.fixed) if best else (0, None)
        if length > 0 and self.has_plain:
            source = self._source(nodes[-1])
        reason = self._reason(tokens, nodes, agreed, reach, length, marks)
        if length <= 0:
            return Match(0, agreed, reason)
        taken = source is not None and self._may_take(source, length, session)
        return Match(length, agreed, reason, source.plain if source else None, fixed, taken)

    def _source(self, node: Node) -> Node:
        """A node at or below `node` with a plain part, which then covers `node`; a stored one before a request's own."""
        covering = [under for under in node.below() if under.plain]
        return next((under for under in covering if under.plain not in self.live), covering[0])

    def _may_take(self, node: Node, length: int, session: str) -> bool:
        if node.children or node.plain in self.live:
            return False
        if node.session != session and node.end_tokens - length > NEAR_TOKENS:
            return False
        beyond = [each for each in (node, *node.ancestors()) if each.end_tokens > length]
        return all(len(each.children) <= 1 and not each.mark for each in beyond)

    def _reason(self, tokens: bytes, nodes: list[Node], agreed: int, reach: int, length: int, marks: Mapping[int, int]) -> str:
        if any(end > length + NEAR_TOKENS and _place(tokens, end) in self._evicted for end in marks):
            return EVICTED
        if reach - length > NEAR_TOKENS:
            return UNTRIMMABLE
        if agreed > reach:
            return HIT
        if agreed < NEAR_TOKENS:
            return COLD
        if not any(node.mark and node.end_tokens > agreed for node in nodes[-1].below()):
            return HIT  # what was known there is the end of an answer at most
        return SYSTEM_CHANGED if agreed < min((end for end, mark in marks.items() if mark == SYSTEM), default=0) else MESSAGES_CHANGED

    # ── one request's way ────────────────────────────────────────────────────────────────────────

    def begin(self, tokens: bytes, match: Match, live: Held, session: str) -> None:
        """A request goes on from `match`. `live` stands for its state, which from now on covers what it reuses."""
        self.reasons[match.reason] += 1
        self.live[live] = None
        if not match.tokens:
            return
        nodes, _ = self.tree.path(tokens[:match.tokens * BYTES_PER_TOKEN])
        for node in nodes:
            if node.end_tokens <= match.tokens:
                node.used_s, node.session = self.clock(), session
        source = next((node for node in nodes[-1].below() if node.plain is match.plain), None) if match.taken else None
        if source:
            self._set(source, plain=None, fixed=source.fixed if source.end_tokens == match.tokens else None)
        self.reach(live, tokens, match.tokens)
        if source:
            self._uncover(source)

    def reach(self, live: Held, tokens: bytes, length: int) -> None:
        """The request's state now holds the first `length` tokens."""
        old, node = self.live[live], self.tree.insert(tokens, length)
        self.live[live] = node
        if node.plain is None:
            self._set(node, live, node.fixed)
        node.used_s = self.clock()
        if old is not None and old is not node:
            self._leave(old, live)
        self.version += 1

    def mark(self, tokens: bytes, length: int, mark: int, fixed: Held | None, session: str) -> None:
        """The request's state passed a place where later prompts may branch off; `fixed` is that place's fixed part."""
        node = self.tree.insert(tokens, length)
        node.mark, node.used_s, node.session = max(node.mark, mark), self.clock(), session
        if fixed and node.fixed is None:
            self._set(node, node.plain, fixed)
            self.fit()
        self.version += 1

    def commit(self, live: Held, tokens: bytes, plain: Held | None, fixed: Held | None, keep: Mapping[int, int], session: str, continued: bool) -> None:
        """The request ended with a state of exactly `tokens`. `keep`: its marks by their length.

        Earlier places of the same conversation that are not among them are let go, unless sequences part there.
        """
        for length, mark in keep.items():
            if length * BYTES_PER_TOKEN <= len(tokens):
                node = self.tree.insert(tokens, length)
                node.mark = max(node.mark, mark)
        node = self.tree.insert(tokens, len(tokens) // BYTES_PER_TOKEN)
        self._set(node, node.plain if node.children else plain, fixed or node.fixed)
        node.used_s, node.session, node.continued = self.clock(), session, continued
        self.drop(live)
        for above in list(node.ancestors()):
            superseded = above.mark < SYSTEM and above.end_tokens not in keep and len(above.children) == 1
            if superseded:
                above.mark = 0
            self._set(above, above.plain if above.plain in self.live else None, None if superseded else above.fixed)
            self.tree.tidy(above)
        self.fit()
        self.version += 1

    def insert(self, tokens: bytes, plain: Held | None, fixed: Held | None, mark: int, session: str) -> None:
        """Keep a state of exactly `tokens` that comes from elsewhere."""
        node = self.tree.insert(tokens, len(tokens) // BYTES_PER_TOKEN)
        self._set(node, node.plain if node.children or plain is None else plain, fixed or node.fixed)
        node.mark, node.used_s, node.session, node.continued = max(node.mark, mark), self.clock(), session, True
        for above in list(node.ancestors()):
            self._set(above, above.plain if above.plain in self.live else None, above.fixed)
            self.tree.tidy(above)
        self.fit()
        self.version += 1

    def drop(self, live: Held) -> None:
        """The request's state is gone, and what only it covered with it."""
        node = self.live.pop(live)
        if node is not None:
            self._leave(node, live)
        self.version += 1

    def _leave(self, node: Node, live: Held) -> None:
        if node.plain is live:
            self._set(node, None, node.fixed)
        self._uncover(node)

    def _uncover(self, node: Node) -> None:
        """Take out leaves, from `node` upwards, that nothing covers any more."""
        for each in [node, *node.ancestors()]:
            if each.parent is not None:
                if not each.children and not (each.plain or (each.fixed and not self.has_plain)):
                    self._set(each, None, None)
                    each.mark = 0
                self.tree.tidy(each)

    def _set(self, node: Node, plain: Held | None, fixed: Held | None) -> None:
        """What a node holds from now on; without a plain part, that of a request which stands there."""
        plain = plain or next((live for live, at in self.live.items() if at is node), None)
        for held, sign in ((node.plain, -1), (node.fixed, -1), (plain, 1), (fixed, 1)):
            if held is not None:
                self.nbytes += sign * held.nbytes
                self.entries += sign
        node.plain, node.fixed = plain, fixed

    # ── eviction ─────────────────────────────────────────────────────────────────────────────────

    def fit(self, room_bytes: int = 0) -> None:
        """Let the least valuable go until the budget holds what is kept and `room_bytes` more."""
        while self.nbytes + room_bytes > self.budget_bytes and self._evict_one():
            self.evictions += 1
            self.version += 1

    def release(self, size_bytes: int) -> None:
        """Let so many bytes go, the least valuable first, however much is allowed."""
        self.fit(self.budget_bytes - max(0, self.nbytes - size_bytes))

    def _worth(self, node: Node) -> tuple[int, float, int]:
        """Systems, then conversations that went on, then one-off prompts, then ended sessions; late before early."""
        idle_s = self.clock() - node.used_s
        rank = 3 if node.mark == SYSTEM else 0 if idle_s > IDLE_S else 2 if node.continued else 1
        return rank, node.used_s // 60, node.end_tokens

    def _evict_one(self) -> bool:
        leaves = [node for node in self.tree if not node.children and node.plain not in self.live]
        if not leaves:
            return self._thin([node for node in self.tree if node.fixed])
        leaf = min(leaves, key=self._worth)
        spare = [node for node in self._branch(leaf)[1:] if node.fixed and node.mark < SYSTEM][1:]
        if self._worth(leaf)[0] and self._thin(spare):
            return True  # a conversation goes on without its earlier places before it goes
        self._evict_branch(leaf)
        return True

    def _thin(self, nodes: list[Node]) -> bool:
        """Let the fixed part of the least of these places go."""
        if not nodes:
            return False
        node = min(nodes, key=lambda each: (each.mark == SYSTEM, each.mark, each.end_tokens))
        self._forget(node, node.plain)
        self.tree.tidy(node)
        return True

    def _branch(self, leaf: Node) -> list[Node]:
        """The leaf and the nodes above it that nobody else needs, deepest first."""
        branch = [leaf]
        for node in leaf.ancestors():
            if len(node.children) > 1 or node.plain in self.live:
                break
            branch.append(node)
        return branch

    def _evict_branch(self, leaf: Node) -> None:
        """Let a leaf go, back to where it parts from others or to a place of more worth, which gets its plain part."""
        self.on_evicted(leaf)
        branch, rank = self._branch(leaf), self._worth(leaf)[0]
        kept = next((node for node in branch[1:] if self._worth(node)[0] > rank and (node.fixed or not self.has_fixed)), None)
        shortened = leaf.plain.shortened(kept.end_tokens) if kept and leaf.plain else None
        for node in branch[:branch.index(kept)] if kept else branch:
            self._forget(node, None)
        if kept:
            self._set(kept, shortened, kept.fixed)
        self._uncover(leaf)

    def _forget(self, node: Node, plain: Held | None) -> None:
        tokens = self.tree.tokens(node)
        self._evicted[_place(tokens, node.end_tokens)] = None
        while len(self._evicted) > REMEMBERED:
            self._evicted.popitem(last=False)
        self._set(node, plain, None)
        node.mark = 0

    # ── what is held ─────────────────────────────────────────────────────────────────────────────

    def figures(self) -> dict[str, object]:
        """Counters for `/health`; may be called from any thread."""
        return {"entries": self.entries, "bytes": self.nbytes, "budget_bytes": self.budget_bytes, "evictions": self.evictions,
                "reasons": dict(self.reasons)}

    def check(self) -> None:
        """Raise AssertionError where the record contradicts itself."""
        held = [part for node in self.tree for part in (node.plain, node.fixed) if part is not None]
        assert sum(part.nbytes for part in held) == self.nbytes and len(held) == self.entries, "the sums are wrong"
        for node in self.tree:
            assert node.parent is not None and node.parent.children[node.edge[:BYTES_PER_TOKEN]] is node, "a node is misplaced"
            assert node.end_tokens == node.parent.end_tokens + len(node.edge) // BYTES_PER_TOKEN, "a node has a wrong length"
            assert node.is_needed, "a node is not needed"
            assert node.children or node.plain or (node.fixed and not self.has_plain), "a leaf is not covered"
        nodes = set(self.tree)
        assert all(node in nodes for node in self.live.values() if node is not None), "a request's node is not in the tree"
        assert all(node.plain for node in self.live.values() if node is not None), "a request's node is not covered"


def _place(tokens: bytes, end_tokens: int) -> tuple[int, int]:
    return end_tokens, hash(tokens[:end_tokens * BYTES_PER_TOKEN])
