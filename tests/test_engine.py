"""The engine against tiny models: every answer is the one its prompt gets alone, whatever happens beside it."""
from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlx_lm import load as load_model

from engine_rig import FAMILIES, GREEDY, WAIT_S, Broken, Ids, Rig, alone, job, prompt, rig, words  # noqa: F401  (fixtures)
from mlx_native_server.config import Settings
from mlx_native_server.engine import device, kv
from mlx_native_server.engine.engine import Engine, Loaded
from mlx_native_server.protocol import ApiError, Client, Failed, Finished, Piece, Sampling, Started

@pytest.mark.parametrize("family", FAMILIES)
def test_eight_jobs_at_once_each_give_the_tokens_they_give_alone(rig: Any, alone: Any, family: str) -> None:
    prompts = [prompt(seed, length) for seed, length in enumerate([1, 2, 40, 63, 65, 150, 300, 9])]
    expected = [alone(family, tokens) for tokens in prompts]
    engine = rig(family, prefill_size=100)
    tickets = [engine.engine.submit(job(tokens)) for tokens in prompts]
    assert [engine.answer(ticket) for ticket in tickets] == expected


def test_usage_is_what_was_prefilled_and_generated(rig: Any) -> None:
    engine = rig()
    started, *pieces, finished = engine.replies(engine.engine.submit(job(prompt(1, 30), max_tokens=5)))
    assert started == Started(reused_tokens=0, prefilled_tokens=30)
    assert finished == Finished("length") and sum(piece.tokens for piece in pieces) == 5


def test_an_end_token_is_counted_and_has_no_text(rig: Any, scripted_model: Any) -> None:
    folder = scripted_model("llama", "ls")
    ids = load_model(str(folder))[1].apply_chat_template([{"role": "user", "content": "hi"}], add_generation_prompt=True)
    engine = rig(folder=folder)
    _, *pieces, finished = engine.replies(engine.engine.submit(job(ids, max_tokens=50)))
    assert finished == Finished("stop", tokens=1)
    assert pieces and all(piece.text for piece in pieces)


def test_no_tokens_wanted_is_a_prefill_only(rig: Any) -> None:
    engine = rig()
    assert engine.replies(engine.engine.submit(job(prompt(1, 30), max_tokens=0))) == [Started(0, 30), Finished("length")]


def test_text_held_back_by_the_detokenizer_comes_before_the_end(rig: Any) -> None:
    class Holding(Ids):
        def add_token(self, token: int) -> None:
            self.last_segment = ""

        def finalize(self) -> None:
            self.last_segment = "rest"

    engine = rig(detokenizer=Holding)
    replies = engine.replies(engine.engine.submit(job(prompt(1, 30), max_tokens=2)))
    assert [(reply.text, reply.tokens) for reply in replies[1:-1]] == [("", 1), ("", 1), ("rest", 0)] and replies[-1] == Finished("length")


def test_jobs_wait_while_the_model_loads(rig: Any, alone: Any) -> None:
    engine = rig(hold=True)
    ticket = engine.engine.submit(job(prompt(3, 20)))
    assert ticket.get(0.05) is None
    health = engine.engine.health()
    assert (health["status"], health["requests_waiting"], health["requests_running"]) == ("loading", 1, 0)
    engine.loads.set()
    assert engine.answer(ticket) == alone("llama", prompt(3, 20))
    assert engine.engine.health()["status"] == "ok"


def test_kernels_are_compiled_before_the_first_request_and_not_by_it(rig: Any, monkeypatch: Any) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(device, "compiles_kernels", lambda: True)
    monkeypatch.setattr(kv, "warm_up", lambda model, sizes: seen.append((sizes, engine.engine.health()["status"], engine.engine.health()["progress"])))
    engine = rig(hold=True, prefill_size=300)
    ticket = engine.engine.submit(job(prompt(1, 20)))
    engine.loads.set()
    engine.answer(ticket)
    ((sizes, status, progress),) = seen
    assert sizes[0] == 300 and {16, 32, 64} <= set(sizes)
    assert status == "loading" and progress.startswith("compiling kernels")


def test_sampling_with_a_temperature_works_on_the_engines_thread(rig: Any) -> None:
    engine = rig()
    settings = [Sampling(1.0), Sampling(0.7, top_p=0.9), Sampling(1.2, top_k=20), GREEDY]
    tickets = [engine.engine.submit(job(prompt(1, 30), sampling=each, max_tokens=30)) for each in settings * 2]
    answers = [engine.answer(ticket) for ticket in tickets]
    assert answers[3] == answers[7] and len({tuple(answer) for answer in answers}) > 2


# ── cancellation ─────────────────────────────────────────────────────────────────────────────────


def test_a_job_cancelled_in_prefill_ends_and_the_next_answer_is_right(rig: Any, alone: Any, scripted_model: Any) -> None:
    engine = rig(prefill_size=64)
    ticket = engine.engine.submit(job(prompt(1, 30_000)))
    assert isinstance(ticket.get(WAIT_S), Started)
    ticket.cancel()
    ticket.cancel()
    assert isinstance(engine.replies(ticket)[-1], Failed)
    assert engine.ask(prompt(2, 50)) == alone("llama", prompt(2, 50))
    assert engine.engine.health()["requests_running"] == 0


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen3_next"])
def test_a_job_cancelled_in_decode_leaves_the_others_unchanged(rig: Any, alone: Any, family: str) -> None:
    engine = rig(family)
    long = engine.engine.submit(job(prompt(1, 90), max_tokens=100_000))
    beside = engine.engine.submit(job(prompt(2, 40), max_tokens=40))
    while not isinstance(long.get(WAIT_S), Piece):
        pass
    while not isinstance(beside.get(WAIT_S), Piece):
        pass
    long.cancel()
    rest = words(engine.replies(beside))
    expected = alone(family, prompt(2, 40), 40)
    assert rest == expected[1:]
    assert isinstance(engine.replies(long)[-1], Failed)
    assert engine.ask(prompt(1, 90)) == alone(family, prompt(1, 90))


def test_a_waiting_job_can_be_cancelled(rig: Any) -> None:
    engine = rig(max_running=1)
    first = engine.engine.submit(job(prompt(1, 30), max_tokens=100_000))
    second = engine.engine.submit(job(prompt(2, 30)))
    assert isinstance(first.get(WAIT_S), Started)
    second.cancel()
    assert [type(reply) for reply in engine.replies(second)] == [Failed]
    first.cancel()
    engine.replies(first)
    assert engine.engine.health()["requests"]["cancelled"] == 2


# ── failures ─────────────────────────────────────────────────────────────────────────────────────


def test_an_exception_in_one_job_leaves_the_others_and_the_server(rig: Any, alone: Any) -> None:
    kinds = iter([Ids, Broken, Ids, Ids])
    engine = rig(detokenizer=lambda: next(kinds)())
    tickets = [engine.engine.submit(job(prompt(seed, 40))) for seed in range(3)]
    ends = [engine.replies(ticket) for ticket in tickets]
    (broken,) = [replies[-1] for replies in ends if isinstance(replies[-1], Failed)]
    assert (broken.error.status, broken.error.kind) == (500, "api_error")
    for seed, replies in enumerate(ends):
        assert replies[-1] is broken or words(replies) == alone("llama", prompt(seed, 40))
    assert engine.ask(prompt(4, 40)) == alone("llama", prompt(4, 40))
    assert engine.engine.health()["status"] == "ok"


@pytest.mark.parametrize("tokens", [[], [5, 100_000, 6], [5, -1]])
def test_token_ids_outside_the_vocabulary_are_refused(rig: Any, tokens: list[int]) -> None:
    engine = rig()
    assert isinstance(engine.replies(engine.engine.submit(job(tokens)))[-1], Failed)
    assert engine.ask([5, 6])


def test_an_exception_in_a_shared_batch_fails_everybody_and_ends_the_engine(rig: Any, monkeypatch: Any) -> None:
    engine = rig()
    tickets = [engine.engine.submit(job(prompt(seed, 20), max_tokens=100_000)) for seed in range(3)]
    for ticket in tickets:
        while not isinstance(ticket.get(WAIT_S), Piece):
            pass

    def broken(*args: Any, **kwargs: Any) -> None:
        raise ValueError("broken")

    monkeypatch.setattr(type(engine.model), "__call__", broken)
    for ticket in tickets:
        assert isinstance(engine.replies(ticket)[-1], Failed)
    assert engine.failed.wait(WAIT_S) and str(engine.failure) == "broken"
    assert engine.engine.health()["status"] == "failed"
    with pytest.raises(ApiError) as refused:
        engine.engine.submit(job([1, 2]))
    assert (refused.value.status, refused.value.kind) == (503, "api_error")


def test_a_failed_command_buffer_ends_the_running_jobs_and_not_the_engine(rig: Any, alone: Any, monkeypatch: Any) -> None:
    engine = rig()
    engine.ask(prompt(1, 10))
    real = type(engine.model).__call__

    def broken(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("[METAL] Command buffer execution failed: Insufficient Memory (00000008)")

    monkeypatch.setattr(type(engine.model), "__call__", broken)
    assert isinstance(engine.replies(engine.engine.submit(job(prompt(2, 30))))[-1], Failed)
    monkeypatch.setattr(type(engine.model), "__call__", real)
    assert engine.ask(prompt(2, 30)) == alone("llama", prompt(2, 30))
    assert engine.engine.health()["status"] == "ok"


def test_a_model_that_does_not_load_fails_what_waits(tmp_path: Path) -> None:
    seen: list[BaseException] = []
    failed = threading.Event()

    def load(progress: Any) -> Loaded:
        raise OSError("no such model")

    engine = Engine(load, Settings(), on_failure=lambda error: (seen.append(error), failed.set()))
    ticket = engine.submit(job([1, 2]))
    engine.start()
    assert isinstance(ticket.get(WAIT_S), Failed)
    assert failed.wait(WAIT_S) and isinstance(seen[0], OSError)
    assert (engine.health()["status"], engine.health()["progress"]) == ("failed", "no such model")


# ── the queue ────────────────────────────────────────────────────────────────────────────────────


def test_a_full_queue_refuses_with_529_and_takes_jobs_again_later(rig: Any) -> None:
    engine = rig(max_running=1, max_waiting=1)
    running = engine.engine.submit(job(prompt(1, 20), max_tokens=100_000))
    waiting = engine.engine.submit(job(prompt(2, 20), max_tokens=3))
    with pytest.raises(ApiError) as refused:
        engine.engine.submit(job(prompt(3, 20)))
    assert (refused.value.status, refused.value.retry_after_s) == (529, 5)
    running.cancel()
    engine.replies(running)
    assert len(engine.answer(waiting)) == 3
    assert len(engine.ask(prompt(3, 20))) == 12


def test_a_short_prompt_overtakes_a_long_one_being_prefilled(rig: Any) -> None:
    engine = rig(prefill_size=64)
    long = engine.engine.submit(job(prompt(1, 20_000), max_tokens=1))
    assert isinstance(long.get(WAIT_S), Started)
    engine.ask(prompt(2, 30))
    assert long.get(0) is None, "the long prompt was done first"
    long.cancel()


def test_many_short_prompts_do_not_starve_a_long_one(rig: Any) -> None:
    engine = rig(max_running=2, prefill_size=64)
    long = engine.engine.submit(job(prompt(1, 2000), max_tokens=2))
    short = [engine.engine.submit(job(prompt(seed, 30), max_tokens=2)) for seed in range(2, 60)]
    assert len(engine.answer(long)) == 2
    assert short[-1].get(0) is None, "every short prompt was done first"
    for ticket in short:
        engine.answer(ticket)


# ── closing ──────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def inside_a_chunk(engine: Rig) -> Iterator[Any]:
    """A job whose first chunk runs until this is left."""
    inside, go_on = threading.Event(), threading.Event()
    real = type(engine.model).__call__

    def slow(self: Any, *args: Any, **kwargs: Any) -> Any:
        inside.set()
        assert go_on.wait(WAIT_S)
        return real(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(engine.model), "__call__", slow)
        ticket = engine.engine.submit(job(prompt(1, 50)))
        assert inside.wait(WAIT_S)
        try:
            yield ticket
        finally:
            go_on.set()


def test_closing_fails_running_jobs_without_waiting_for_a_chunk(rig: Any) -> None:
    """The reply must not come from the engine's thread, which may be inside a chunk for seconds."""
    engine = rig()
    engine.ask([5, 6])
    with inside_a_chunk(engine) as ticket:
        assert engine.engine.close(0.01) is False
        last = engine.replies(ticket)[-1]
        assert isinstance(last, Failed) and last.error.message == "the server is shutting down"
        with pytest.raises(ApiError):
            engine.engine.submit(job([1]))
    assert engine.engine.close(WAIT_S) is True


def test_health_answers_while_a_chunk_runs(rig: Any) -> None:
    engine = rig()
    engine.ask([5, 6])
    with inside_a_chunk(engine) as ticket:
        assert engine.engine.health()["requests_running"] == 1
    engine.answer(ticket)


def test_each_request_leaves_one_line_in_the_log(rig: Any, caplog: Any) -> None:
    caplog.set_level(logging.INFO)
    engine = rig()
    wanted = replace(job(prompt(1, 30), max_tokens=4, name="req_7"), client=Client(session_id="s1", agent_id="a1"))
    engine.answer(engine.engine.submit(wanted))
    (line,) = [record.getMessage() for record in caplog.records if "req_7" in record.getMessage()]
    for part in ("agent=a1", "session=s1", "prompt=30", "reused=0", "prefilled=30", "generated=4", "stop=length", "ttft_s=", "tokens_per_s=", "peak_gb="):
        assert part in line
