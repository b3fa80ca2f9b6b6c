"""A service over a real engine, without HTTP: whole requests in, messages out."""
from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine_rig import WAIT_S
from mlx_native_server.answer.streaming import fold
from mlx_native_server.config import Settings
from mlx_native_server.engine.engine import Engine, Loaded
from mlx_native_server.models.loading import load_weights
from mlx_native_server.models.tokens import load_tokenizer
from mlx_native_server.service import Service


class Served:
    """A service over an engine with the model of a folder; `states` is for its files."""

    def __init__(self, folder: Path, states: Path | None = None, **settings: Any):
        self.folder, self.states = folder, states
        self.tokenizer = load_tokenizer(folder)
        given = Settings(**{"model": str(folder), "context_tokens": 100_000, **settings})
        self.engine = Engine(self._load, given, self_check=True)
        self.service = Service(given, self.engine)
        self.service.use(self.tokenizer)
        self.engine.start()

    def _load(self, progress: Callable[[str], None]) -> Loaded:
        return Loaded(load_weights(self.folder), self.tokenizer.detokenizer, self.tokenizer.stop_ids, self.tokenizer.vocab_size, self.states)

    def tokens(self, body: dict[str, Any]) -> list[int]:
        """The prompt that a request becomes."""
        return self.service._begin(json.dumps(body).encode(), {}).encoded.tokens

    def count(self, body: dict[str, Any]) -> int:
        """What counting says to a request."""
        return self.service.count(json.dumps(body).encode(), {})

    def ask(self, body: dict[str, Any], session: str = "s", agent: str = "") -> dict[str, Any]:
        """The message to a request."""
        headers = {"x-claude-code-session-id": session, "x-claude-code-agent-id": agent}
        return fold(event for event in self.service.answer(json.dumps(body).encode(), headers, "req").events if event)

    def cut_off(self, body: dict[str, Any]) -> None:
        """A client that leaves after the first text."""
        events = self.service.answer(json.dumps(body | {"max_tokens": 5000}).encode(), {"x-claude-code-session-id": "s"}, "req").events
        while (event := next(events)) is None or event.get("type") != "content_block_delta":
            pass
        events.close()

    def prefilled_tokens(self) -> int:
        """Of all requests so far."""
        return self.engine.counters.prefilled_tokens


@pytest.fixture
def serve_folder() -> Iterator[Callable[..., Served]]:
    """`serve_folder(folder, states=None, **settings)`: closed after the test."""
    made: list[Served] = []

    def start(folder: Path, states: Path | None = None, **settings: Any) -> Served:
        made.append(Served(folder, states, **settings))
        return made[-1]

    yield start
    for each in made:
        assert each.engine.close(WAIT_S)
