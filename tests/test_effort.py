"""How long a thought may be."""
from __future__ import annotations

import pytest

from mlx_native_server.prompt.effort import EFFORT_TOKENS, thinking_budget
from mlx_native_server.protocol import Request, Thinking

ENABLED = Thinking("enabled", 2048)

ROWS = [
    (None, "", 32000, None),
    (Thinking("adaptive"), "", 32000, None),
    (Thinking("adaptive"), "low", 32000, EFFORT_TOKENS["low"]),
    (Thinking("adaptive"), "high", 32000, EFFORT_TOKENS["high"]),
    (Thinking("adaptive"), "high", 4096, 3072),
    (Thinking("adaptive"), "max", 4096, None),
    (Thinking("adaptive"), "of a later kind", 4096, None),
    (Thinking("adaptive", 2048), "medium", 32000, EFFORT_TOKENS["medium"]),
    (ENABLED, "", 32000, 2048),
    (ENABLED, "high", 32000, 2048),
    (ENABLED, "", 1000, 750),
    (Thinking("enabled", 0), "high", 32000, 0),
    (Thinking("enabled"), "low", 32000, EFFORT_TOKENS["low"]),
    (ENABLED, "", 0, 2048),
]


@pytest.mark.parametrize(("thinking", "effort", "max_tokens", "budget"), ROWS, ids=str)
def test_the_budget_is_the_clients_own_or_follows_from_the_effort(thinking: Thinking | None, effort: str, max_tokens: int, budget: int | None) -> None:
    assert thinking_budget(Request((), thinking=thinking, effort=effort, max_tokens=max_tokens)) == budget
