"""An engine over a tiny model for the tests, what a handler does with it, and what mlx-lm alone says to the same prompt."""
from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm import load as load_model
from mlx_lm.generate import generate_step

from mlx_native_server.config import Settings
from mlx_native_server.engine.engine import Engine, Loaded
from mlx_native_server.protocol import Client, Failed, Finished, Job, Piece, Reply, Sampling, Started

GREEDY = Sampling(temperature=0.0)
FAMILIES = ["llama", "qwen3", "gemma3", "gemma4", "qwen3_next", "qwen3_5"]
WAIT_S = 60.0
WIDE = dict(hidden_size=256, num_attention_heads=4, num_key_value_heads=2)
"""Heads of 64 values, the least that a quantized cache takes."""


class Ids:
    """A detokenizer whose text is the token ids."""

    def __init__(self) -> None:
        self.last_segment = ""

    def add_token(self, token: int) -> None:
        self.last_segment = f"{token} "

    def finalize(self) -> None:
        self.last_segment = ""


class Broken(Ids):
    """One that fails at the first token of an answer."""

    def add_token(self, token: int) -> None:
        raise KeyError(token)


class Rig:
    """An engine over the model in a folder, and what a handler does with it."""

    def __init__(self, folder: Path, settings: Settings = Settings(), detokenizer: Callable[[], Any] = Ids,
                 states: Path | None = None):
        self.folder, self.states, self.failure = folder, states, None
        self.failed, self.loads, self.detokenizer = threading.Event(), threading.Event(), detokenizer
        self.loads.set()
        self.engine = Engine(self._load, settings, on_failure=self._on_failure, self_check=True)

    def _load(self, progress: Callable[[str], None]) -> Loaded:
        progress("reading weights")
        assert self.loads.wait(WAIT_S)
        model, tokenizer = load_model(str(self.folder))
        self.model, self.stop_ids = model, frozenset(tokenizer.eos_token_ids)
        return Loaded(model, self.detokenizer, self.stop_ids, len(tokenizer._tokenizer), self.states)

    def _on_failure(self, error: BaseException) -> None:
        self.failure = error
        self.failed.set()

    def replies(self, ticket: Any) -> list[Reply]:
        """All replies up to the last one."""
        got: list[Reply] = []
        while not got or not isinstance(got[-1], (Finished, Failed)):
            reply = ticket.get(WAIT_S)
            assert reply is not None, f"nothing came after {got[-3:]}"
            got.append(reply)
        return got

    def answer(self, ticket: Any) -> list[int]:
        """The generated token ids, without an end token."""
        got = self.replies(ticket)
        assert isinstance(got[0], Started) and isinstance(got[-1], Finished), got
        return words(got)

    def ask(self, *args: Any, **kwargs: Any) -> list[int]:
        return self.answer(self.engine.submit(job(*args, **kwargs)))


def words(replies: list[Reply]) -> list[int]:
    """The token ids that the pieces among some replies have for their text."""
    return [int(word) for reply in replies if isinstance(reply, Piece) for word in reply.text.split()]


@pytest.fixture
def rig(tiny_model: Callable[..., Path]) -> Iterator[Callable[..., Rig]]:
    """`rig(family, **settings)`: a started engine that is closed at the end of the test."""
    made: list[Rig] = []

    def start(family: str = "llama", folder: Path | None = None, detokenizer: Callable[[], Any] = Ids, hold: bool = False,
              states: Path | None = None, **settings: Any) -> Rig:
        made.append(Rig(folder or tiny_model(family), Settings(**settings), detokenizer, states))
        if hold:
            made[-1].loads.clear()
        made[-1].engine.start()
        return made[-1]

    yield start
    for each in made:
        each.loads.set()
        assert each.engine.close(WAIT_S)


def prompt(seed: int, length: int) -> list[int]:
    """Token ids that every tiny model has."""
    rng = random.Random(seed)
    return [rng.randrange(300, 580) for _ in range(length)]


def job(tokens: list[int], max_tokens: int = 12, sampling: Sampling = GREEDY, name: str = "req", checkpoints: tuple[int, ...] = (),
        session: str = "") -> Job:
    return Job(name, tokens, max_tokens, sampling, Client(session_id=session), checkpoints)


@pytest.fixture(scope="session")
def alone(tiny_model: Callable[..., Path]) -> Callable[..., list[int]]:
    """What mlx-lm's own generator says to a prompt, alone and unbatched."""
    models: dict[str, Any] = {}

    def say(family: str, tokens: list[int], max_tokens: int = 12) -> list[int]:
        if family not in models:
            models[family] = load_model(str(tiny_model(family)))
        model, tokenizer = models[family]
        said = []
        for token, _ in generate_step(mx.array(tokens), model, max_tokens=max_tokens):
            if token in tokenizer.eos_token_ids:
                break
            said.append(token)
        return said

    return say


def state_files(folder: Path) -> list[Path]:
    """The files of states in a folder."""
    return sorted(folder.glob("*.safetensors"))


HEADER = [301, 302, 303]
"""What a template writes before each answer."""
CLOSE = [304]
"""And after it."""


@dataclass
class Talk:
    """A conversation as a client keeps it, rendered to tokens."""

    system: list[int]
    session: str
    turns: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    typed: int = 0

    def say(self, tokens: list[int], typed: bool = False) -> None:
        """A user message, or (not `typed`) a tool result."""
        if typed:
            self.typed = len(self.system) + len(self.turns)
        self.turns += tokens
        self.ends.append(len(self.system) + len(self.turns))

    def answered(self, tokens: list[int]) -> None:
        self.turns += HEADER + tokens + CLOSE

    def job(self, max_tokens: int = 6) -> Job:
        places = {len(self.system), self.typed, *self.ends[-2:]}
        return job(self.system + self.turns + HEADER, max_tokens, checkpoints=tuple(sorted(places)), session=self.session)
