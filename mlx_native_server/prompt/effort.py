"""How long a thought may be: from the client's budget or effort to tokens. Who holds the model to it is not known here."""
from __future__ import annotations

from ..protocol import Request

EFFORT_TOKENS = {"minimal": 512, "low": 1024, "medium": 4096, "high": 16384}
"""By `output_config.effort`; another effort (`xhigh`, `max`, one not known yet) or none sets no limit of its own."""


def thinking_budget(request: Request) -> int | None:
    """Tokens that a thought may take, None for no limit. A quarter of `max_tokens` is always left for the answer."""
    thinking = request.thinking
    given = thinking.budget_tokens if thinking and thinking.kind == "enabled" else None
    budget = EFFORT_TOKENS.get(request.effort) if given is None else given
    return min(budget, request.max_tokens * 3 // 4) if budget is not None and request.max_tokens else budget
