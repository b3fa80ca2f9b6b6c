"""What fits into memory, as arithmetic and as an engine that has little of it."""
from __future__ import annotations

import gc
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm import load

from engine_rig import FAMILIES, WAIT_S, Rig, alone, job, prompt, rig, words  # noqa: F401  (fixtures)
from mlx_native_server.engine import kv, space
from mlx_native_server.config import Settings
from mlx_native_server.engine.engine import Engine
from mlx_native_server.engine.memory import GIB
from mlx_native_server.engine.plan import KEPT_PLACES, MARGIN, SMALLEST_CHUNK, Costs, Plan, rounded
from mlx_native_server.protocol import ApiError, Failed, Finished, Piece, Started

MB = 1 << 20
BIG = Costs(weights=16 * GIB, token=76_000, fixed=780 * MB, chunk_token=7 * MB, pair=128)
"""About Gemma 4 31B, four bits."""


@pytest.mark.parametrize(("limit_gb", "least", "most"), [(16, 0, 0), (24, 0, 30_000), (32, 80_000, 130_000), (141, 1_000_000, 1_600_000)])
def test_the_window_is_what_memory_leaves(limit_gb: int, least: int, most: int) -> None:
    plan = Plan(limit_gb * GIB, BIG)
    window = plan.window_tokens()
    assert least <= window <= most
    if window:
        held = BIG.weights + plan.state_bytes(window) + KEPT_PLACES * BIG.fixed + plan.chunk_bytes(SMALLEST_CHUNK, window)
        assert MARGIN * limit_gb * GIB - 400 * MB <= held <= MARGIN * limit_gb * GIB


def test_a_state_without_plain_layers_sets_no_window() -> None:
    assert Plan(32 * GIB, Costs(GIB, 0.0, GIB, 1.0, 0.0)).window_tokens() > 1_000_000


@pytest.mark.parametrize(("wanted", "held", "free_gb", "expected"), [
    (512, 0, 10, 512), (512, 20_000, 10, 512), (512, 20_000, 4, 256), (512, 900_000, 4, 64), (512, 0, 0, 64), (40, 0, 0, 40), (1, 0, 0, 1),
])
def test_a_chunk_is_as_large_as_fits(wanted: int, held: int, free_gb: float, expected: int) -> None:
    assert Plan(32 * GIB, BIG).chunk_tokens(wanted, held, int(free_gb * GIB)) == expected


def test_what_attention_takes_is_learned_from_chunks_that_ran() -> None:
    plan = Plan(32 * GIB, BIG)
    before = plan.chunk_bytes(512, 20_000)
    plan.observe(512, 100, 50 * GIB)  # too early to tell
    assert plan.chunk_bytes(512, 20_000) == before
    plan.observe(512, 20_000, 512 * 7 * MB)
    assert plan.chunk_bytes(512, 20_000) == 512 * 7 * MB
    plan.observe(512, 20_000, 512 * 7 * MB + 2 * GIB)
    assert plan.chunk_bytes(512, 20_000) >= 512 * 7 * MB + 2 * GIB


def test_what_running_requests_will_still_take_is_counted() -> None:
    plan = Plan(32 * GIB, BIG)
    assert plan.promised_bytes([(100, 1100), (5000, 5000), (10, 5)]) == plan.grown_bytes(1000)


@pytest.mark.parametrize(("tokens", "expected"), [(100, 100), (8191, 8191), (8192, 8192), (100_000, 99_328)])
def test_a_window_is_a_round_number(tokens: int, expected: int) -> None:
    assert rounded(tokens) == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_the_measured_size_of_a_state_is_that_of_a_long_one(tiny_model: Any, family: str) -> None:
    model, _ = load(str(tiny_model(family)))
    short, long = kv.new(model), kv.new(model)
    kv.prefill(model, short, prompt(1, 128))
    from_short = kv.costs(short)
    kv.prefill(model, long, prompt(1, 512))
    long_bytes = sum(part.nbytes for part in kv.parts(long, 512) if part)
    assert abs(from_short[0] * 512 + from_short[1] - long_bytes) <= 0.25 * long_bytes


class Small(Rig):
    """An engine with little memory beside its weights."""

    def __init__(self, folder: Any, free_bytes: int, **settings: Any):
        super().__init__(folder, Settings(**settings))
        weights_bytes = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        limit_bytes = int((weights_bytes + free_bytes) / MARGIN)
        self.engine = Engine(self._load, Settings(**settings), on_failure=self._on_failure, self_check=True, limit_bytes=limit_bytes)
        self.engine.start()


@pytest.fixture
def small(tiny_model: Any) -> Any:
    made: list[Small] = []

    def start(free_bytes: int, family: str = "llama", **settings: Any) -> Small:
        made.append(Small(tiny_model(family), free_bytes, **settings))
        return made[-1]

    yield start
    for each in made:
        assert each.engine.close(WAIT_S)


def test_what_could_never_fit_is_refused_and_the_largest_that_may_is_answered(small: Any, alone: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(space, "LEAST_WINDOW_TOKENS", 100)
    engine = small(4 * MB)
    engine.ask(prompt(1, 5), 1)
    window = engine.engine.health()["safe_context_tokens"]
    assert 300 < window < 3000
    with pytest.raises(ApiError, match=f"prompt is too long: {window + 1} tokens > {window} maximum") as raised:
        engine.engine.submit(job(prompt(1, window + 1)))
    assert raised.value.status == 400
    largest = prompt(1, window - 4)
    assert engine.ask(largest, 4) == alone("llama", largest, 4)
    assert engine.engine.health()["status"] == "ok"


@pytest.mark.parametrize(("family", "free_mb"), [("llama", 5), ("gemma3", 2)])
def test_what_does_not_fit_at_once_waits_and_kept_states_go(rig: Any, alone: Any, family: str, free_mb: int) -> None:
    engine = rig(family, prompt_cache_gb=1.0)
    engine.ask(prompt(99, 5), 1)
    gc.collect()
    plan = engine.engine._loop._space.plan
    plan.limit_bytes = mx.get_active_memory() + free_mb * MB
    wanted = [job(prompt(number, 700), 4, session=str(number)) for number in range(7)]
    replies = [engine.replies(ticket) for ticket in [engine.engine.submit(each) for each in wanted]]
    for each, got in list(zip(wanted, replies))[::3]:
        assert words(got) == alone(family, each.tokens, 4)
    assert all(isinstance(got[0], Started) and isinstance(got[-1], Finished) for got in replies)
    health = engine.engine.health()
    assert health["prompt_cache"]["evictions"] > 0, "the budget alone would have kept them all"
    assert mx.get_active_memory() <= plan.limit_bytes + MB // 2 and engine.failure is None


def test_answers_that_outgrow_the_memory_end_one_by_one_and_not_the_server(rig: Any, alone: Any) -> None:
    engine = rig()
    tickets = [engine.engine.submit(job(prompt(number, 50), 100_000 if number else 300)) for number in range(4)]
    for ticket in tickets:
        while not isinstance(ticket.get(WAIT_S), Piece):
            pass
    plan = engine.engine._loop._space.plan
    limit_bytes, plan.limit_bytes = plan.limit_bytes, 0
    ends = [engine.replies(ticket)[-1] for ticket in tickets[1:]]
    assert [end.error.status for end in ends] == [529] * 3
    assert isinstance(engine.replies(tickets[0])[-1], Finished)
    plan.limit_bytes = limit_bytes
    assert engine.ask(prompt(9, 20)) == alone("llama", prompt(9, 20))


def test_memory_that_cannot_be_had_ends_those_who_asked_for_it(rig: Any, alone: Any, monkeypatch: Any) -> None:
    engine = rig()
    engine.ask(prompt(1, 5), 1)
    real = type(engine.model).__call__

    def broken(model: Any, inputs: Any, **rest: Any) -> Any:
        if inputs.shape[0] > 1:
            raise RuntimeError("[malloc] Unable to allocate 123456789 bytes.")
        return real(model, inputs, **rest)

    monkeypatch.setattr(type(engine.model), "__call__", broken)
    ends = [engine.replies(ticket)[-1] for ticket in [engine.engine.submit(job(prompt(number, 50), 40)) for number in range(3)]]
    assert any(isinstance(end, Failed) for end in ends)
    monkeypatch.setattr(type(engine.model), "__call__", real)
    assert engine.ask(prompt(1, 40)) == alone("llama", prompt(1, 40)) and engine.failure is None


def test_without_a_known_limit_there_is_no_window() -> None:
    assert Plan(0, BIG).window_tokens() == 0
