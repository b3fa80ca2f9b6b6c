"""The tree of token sequences: what prompts have in common, in little memory and little time."""
from __future__ import annotations

import random
import sys
import time

import pytest

from mlx_native_server.engine.prefix_tree import BYTES_PER_TOKEN, PrefixTree, common_tokens, pack


class Part:
    nbytes = 1

    def shortened(self, tokens: int) -> "Part":
        return self


def tree_of(*sequences: list[int]) -> PrefixTree:
    tree = PrefixTree()
    for tokens in sequences:
        tree.insert(pack(tokens), len(tokens)).plain = Part()
    return tree


@pytest.mark.parametrize(("a", "b", "expected"), [
    ([], [1], 0), ([1, 2], [1, 2], 2), ([1, 2, 3], [1, 2, 9], 2), ([256], [1], 0), ([1] * 5000, [1] * 4999 + [2], 4999),
    ([1] * 5000, [1] * 1500 + [2] * 3500, 1500), ([1] * 1024 + [2], [1] * 1024 + [3], 1024), ([1] * 3000, [1] * 7000, 3000),
])
def test_common_tokens(a: list[int], b: list[int], expected: int) -> None:
    assert common_tokens(pack(a), pack(b)) == expected == common_tokens(pack(b), pack(a))


def test_common_tokens_at_every_place() -> None:
    base = list(range(2100))
    for place in [*range(0, 2100, 97), 1023, 1024, 1025, 2099]:
        assert common_tokens(pack(base), pack(base[:place] + [9999] + base[place + 1:])) == place
    assert common_tokens(pack(base), pack(base[500:]), 500) == 1600


def test_a_path_ends_where_a_prompt_leaves_what_is_known() -> None:
    tree = tree_of([1, 2, 3, 4], [1, 2, 7, 8], [1, 2, 7, 8, 9])
    assert tree.path(pack([1, 2, 7, 5]))[1] == 3
    assert [node.end_tokens for node in tree.path(pack([1, 2, 7, 8, 9, 10]))[0]] == [2, 4, 5]
    assert tree.path(pack([5])) == ([], 0)


def test_a_random_tree_agrees_with_a_list_of_sequences() -> None:
    rng = random.Random(7)
    tree, known = PrefixTree(), []
    for _ in range(400):
        base = rng.choice(known) if known and rng.random() < 0.8 else []
        tokens = base[:rng.randrange(len(base) + 1)] + [rng.randrange(3) for _ in range(rng.randrange(1, 12))]
        if rng.random() < 0.3 and known:
            gone = known.pop(rng.randrange(len(known)))
            node = tree.path(pack(gone))[0][-1]
            node.plain = None
            tree.tidy(node)
        elif tokens not in known:
            tree.insert(pack(tokens), len(tokens)).plain = Part()
            known.append(tokens)
        asked = [rng.randrange(3) for _ in range(20)]
        expected = max((common_tokens(pack(asked), pack(other)) for other in known), default=0)
        assert tree.path(pack(asked))[1] == expected
        assert sorted(list(pack(k)) for k in known) == sorted(list(tree.tokens(node)) for node in tree if node.plain)
        assert all(node.is_needed for node in tree)


def test_a_hundred_thousand_tokens_are_looked_up_in_little_time_and_memory() -> None:
    rng = random.Random(1)
    base = [rng.randrange(200_000) for _ in range(100_000)]
    tree = PrefixTree()
    for end in range(5_000, 100_001, 5_000):  # as a conversation grows, with its checkpoints
        tree.insert(pack(base), end).plain = Part()
    for branch in range(50):  # and others leave it
        tree.insert(pack(base[:2000 * branch] + [branch] * 300), 2000 * branch + 300).plain = Part()
    begun_s = time.perf_counter()
    assert tree.path(pack(base))[1] == 100_000
    assert time.perf_counter() - begun_s < 0.02
    tokens = sum(len(node.edge) // BYTES_PER_TOKEN for node in tree)
    assert sum(sys.getsizeof(node) + sys.getsizeof(node.edge) + sys.getsizeof(node.children) for node in tree) <= 8 * tokens
