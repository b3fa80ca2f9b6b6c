"""A tree of token sequences that shares what they have in common: nodes are where something is held.

Rule: a node ends where something is held or where sequences part, and nowhere else. Tokens are `bytes`, four for
each, so that comparing is a memory comparison; the tree keeps each shared stretch once. What the nodes hold, and
for how long, is policy: see `cache.py`.
"""
from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Protocol

BYTES_PER_TOKEN = 4
_BLOCK_BYTES = 4096


class Held(Protocol):
    """Something held for the tokens up to a node, opaque here."""

    nbytes: int

    def shortened(self, tokens: int) -> "Held":
        """The same for the first `tokens` tokens alone, in memory of its own."""


def pack(tokens: Sequence[int]) -> bytes:
    """Token ids (0 to 2**32 - 1) as the bytes that the tree compares."""
    return array("I", tokens).tobytes()


def common_tokens(a: bytes, b: bytes, a_start: int = 0, b_start: int = 0) -> int:
    """How many tokens `a` from token `a_start` and `b` from token `b_start` have in common."""
    a_at, b_at = a_start * BYTES_PER_TOKEN, b_start * BYTES_PER_TOKEN
    length = min(len(a) - a_at, len(b) - b_at)
    done, step = 0, _BLOCK_BYTES
    while done < length:
        size = min(step, length - done)
        if a[a_at + done:a_at + done + size] == b[b_at + done:b_at + done + size]:
            done, step = done + size, step * 2
        elif size == BYTES_PER_TOKEN:
            break
        else:
            step = max(BYTES_PER_TOKEN, size // 2 // BYTES_PER_TOKEN * BYTES_PER_TOKEN)
            length = done + size  # the first difference is within this block
    return done // BYTES_PER_TOKEN


class Node:
    """The tokens from the parent's end to `end_tokens`, and what is held there.

    `plain` holds what can be cut back to any shorter length, `fixed` what is right for this length alone. `mark` is
    how much this place matters (0: nothing ends here for its own sake). `session` used it last, at `used_s`;
    `continued` says that a later request went on from here.
    """

    __slots__ = ("parent", "edge", "end_tokens", "children", "plain", "fixed", "mark", "session", "used_s", "continued")

    def __init__(self, parent: "Node | None", edge: bytes, end_tokens: int):
        self.parent, self.edge, self.end_tokens = parent, edge, end_tokens
        self.children: dict[bytes, Node] = {}
        self.plain: Held | None = None
        self.fixed: Held | None = None
        self.mark, self.session, self.used_s, self.continued = 0, "", 0.0, False

    @property
    def start_tokens(self) -> int:
        """Where the node's own tokens begin."""
        return self.end_tokens - len(self.edge) // BYTES_PER_TOKEN

    @property
    def is_needed(self) -> bool:
        """Whether something is held here, or sequences part here."""
        return self.parent is None or bool(self.plain or self.fixed or self.mark) or len(self.children) > 1

    def ancestors(self) -> Iterator["Node"]:
        """The nodes above this one, nearest first, without the root."""
        node = self.parent
        while node is not None and node.parent is not None:
            yield node
            node = node.parent

    def below(self) -> Iterator["Node"]:
        """This node and all under it."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack += node.children.values()


class PrefixTree:
    """The nodes, from a root that has no tokens."""

    def __init__(self) -> None:
        self.root = Node(None, b"", 0)

    def __iter__(self) -> Iterator[Node]:
        nodes = self.root.below()
        next(nodes)
        return nodes

    def path(self, tokens: bytes) -> tuple[list[Node], int]:
        """The nodes that `tokens` run through, and how far they agree; the last node may agree only in part."""
        nodes, depth, node = [], 0, self.root
        while child := node.children.get(_first(tokens, depth)):
            shared = common_tokens(tokens, child.edge, depth)
            nodes.append(child)
            depth += shared
            if depth < child.end_tokens:
                break
            node = child
        return nodes, depth

    def insert(self, tokens: bytes, end_tokens: int) -> Node:
        """The node at the end of the first `end_tokens` tokens, made where there is none."""
        tokens = tokens[:end_tokens * BYTES_PER_TOKEN]
        nodes, depth = self.path(tokens)
        node = nodes[-1] if nodes else self.root
        if depth < node.end_tokens:
            node = self._split(node, depth)
        if depth < end_tokens:
            child = Node(node, tokens[depth * BYTES_PER_TOKEN:], end_tokens)
            node.children[_first(child.edge, 0)] = child
            node = child
        return node

    def _split(self, node: Node, at_tokens: int) -> Node:
        parent, cut = node.parent, (at_tokens - node.start_tokens) * BYTES_PER_TOKEN
        upper = Node(parent, node.edge[:cut], at_tokens)
        parent.children[_first(upper.edge, 0)] = upper
        node.edge, node.parent = node.edge[cut:], upper
        upper.children[_first(node.edge, 0)] = node
        return upper

    def tidy(self, node: Node) -> None:
        """Take out `node`, and its ancestors, where they are needed no more."""
        while not node.is_needed:
            parent, key = node.parent, _first(node.edge, 0)
            if node.children:
                (child,) = node.children.values()
                child.edge, child.parent = node.edge + child.edge, parent
                parent.children[key] = child
                node.parent = None
                return
            del parent.children[key]
            node.parent, node = None, parent

    def tokens(self, node: Node) -> bytes:
        """All tokens up to a node's end."""
        return b"".join(reversed([node.edge, *(above.edge for above in node.ancestors())]))


def _first(tokens: bytes, at: int) -> bytes:
    return tokens[at * BYTES_PER_TOKEN:(at + 1) * BYTES_PER_TOKEN]
