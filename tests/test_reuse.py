"""Prompts that share a prefix: no token is prefilled twice, and every answer is the one a cold run gives."""
from __future__ import annotations

import logging
from typing import Any

import pytest

from engine_rig import WAIT_S, WIDE, Rig, Talk, alone, job, prompt, rig, words  # noqa: F401  (fixtures)
from mlx_native_server.engine import kv
from mlx_native_server.engine.memory import GIB
from mlx_native_server.protocol import Failed, Finished, Job, Piece, Started
from mlx_native_server.engine.reuse import WORTH_WAITING_TOKENS

class Books:
    """Sends jobs and holds each against a cold run and against the least that had to be prefilled."""

    def __init__(self, engine: Rig, cold: Any, family: str):
        self.engine, self.cold, self.family = engine, cold, family
        self.known: list[list[int]] = []
        self.prefilled = self.new = self.requests = 0

    def send(self, wanted: Job) -> list[int]:
        return self.settle(wanted, self.engine.engine.submit(wanted))

    def settle(self, wanted: Job, ticket: Any) -> list[int]:
        replies = self.engine.replies(ticket)
        started, answer = replies[0], words(replies)
        assert isinstance(started, Started) and isinstance(replies[-1], Finished), replies
        assert answer == self.cold(self.family, wanted.tokens, wanted.max_tokens)
        assert started.reused_tokens + started.prefilled_tokens == len(wanted.tokens) and started.prefilled_tokens >= 1
        self.note(wanted.tokens, started)
        self.known.append(wanted.tokens + answer)
        return answer

    def note(self, tokens: list[int], started: Started) -> None:
        new = len(tokens) - max((agree(tokens, known) for known in self.known), default=0)
        self.prefilled, self.new, self.requests = self.prefilled + started.prefilled_tokens, self.new + new, self.requests + 1
        assert started.prefilled_tokens <= 1.05 * new + 32


def agree(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_an_agents_session_prefills_each_token_once(rig: Any, alone: Any, family: str) -> None:
    """Twelve tool steps, two sub-agents, a title request, a step cancelled and sent again, a second session."""
    engine = rig(family, prefill_size=64)
    books = Books(engine, alone, family)
    system, agents = prompt(1, 110), prompt(2, 90)
    main = Talk(system, "one")
    main.say(prompt(3, 30), typed=True)
    for step in range(12):
        if step == 2:
            title = Talk(prompt(4, 40), "one")
            title.say(prompt(5, 20), typed=True)
            books.send(title.job())
        if step in (4, 6):
            helper = Talk(agents, "one")
            helper.say(prompt(40 + step, 25), typed=True)
            for turn in range(2):
                helper.answered(books.send(helper.job()))
                helper.say(prompt(50 + 10 * step + turn, 20))
        if step == 8:
            ticket = engine.engine.submit(main.job(max_tokens=100_000))
            while not isinstance(ticket.get(WAIT_S), Piece):
                pass
            ticket.cancel()
            assert isinstance(engine.replies(ticket)[-1], Failed)
            books.known.append(main.job().tokens)
        main.answered(books.send(main.job()))
        main.say(prompt(100 + step, 20), typed=step == 6)
    second = Talk(system, "two")
    second.say(prompt(6, 30), typed=True)
    for turn in range(2):
        second.answered(books.send(second.job()))
        second.say(prompt(70 + turn, 30))
    main.answered(books.send(main.job()))
    assert books.prefilled <= 1.05 * books.new + 32 * books.requests


# ── sharing while requests run ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen3_next"])
def test_twenty_requests_with_a_common_prefix_sent_at_once_prefill_it_once(rig: Any, alone: Any, family: str) -> None:
    engine = rig(family, prefill_size=256)
    shared = 1000 if family == "llama" else 400
    wanted = [job(prompt(1, shared) + prompt(100 + number, 10), 4, checkpoints=(shared,)) for number in range(20)]
    replies = [engine.replies(ticket) for ticket in [engine.engine.submit(each) for each in wanted]]
    assert sum(each[0].prefilled_tokens for each in replies) == shared + 20 * 10
    for each, got in list(zip(wanted, replies))[::7]:
        assert words(got) == alone(family, each.tokens, 4)


def test_a_prompt_waits_for_the_part_that_it_shares_and_no_longer(rig: Any, alone: Any) -> None:
    """The other's long rest is not waited for."""
    engine = rig(prefill_size=64)
    system = prompt(1, 800)
    long = engine.engine.submit(job(system + prompt(2, 20_000)))
    assert isinstance(long.get(WAIT_S), Started)
    short = job(system + prompt(3, 20))
    replies = engine.replies(engine.engine.submit(short))
    assert replies[0].prefilled_tokens <= 20 + WORTH_WAITING_TOKENS
    assert words(replies) == alone("llama", short.tokens)
    assert long.get(0) is None, "the long prompt was done first"
    long.cancel()
    engine.replies(long)


def test_a_request_branches_off_from_one_that_is_decoding(rig: Any, alone: Any) -> None:
    engine = rig()
    running = engine.engine.submit(job(prompt(1, 300), max_tokens=100_000))
    while not isinstance(running.get(WAIT_S), Piece):
        pass
    branch = job(prompt(1, 200) + prompt(2, 20))
    replies = engine.replies(engine.engine.submit(branch))
    assert replies[0] == Started(200, 20)
    assert words(replies) == alone("llama", branch.tokens)
    running.cancel()
    engine.replies(running)


@pytest.mark.parametrize("family", ["llama", "gemma4", "qwen3_5"])
def test_a_cancelled_prefill_is_kept_as_far_as_it_got(rig: Any, alone: Any, family: str) -> None:
    engine = rig(family, prefill_size=64)
    tokens = prompt(1, 20_000)
    ticket = engine.engine.submit(job(tokens))
    assert isinstance(ticket.get(WAIT_S), Started)
    for number in range(2):  # each goes between two chunks
        engine.ask(prompt(2 + number, 5), 1)
    ticket.cancel()
    engine.replies(ticket)
    again = job(tokens[:500], 4)
    replies = engine.replies(engine.engine.submit(again))
    assert replies[0].reused_tokens >= 64
    assert words(replies) == alone(family, again.tokens, 4)


def test_a_retry_with_a_longer_prompt_prefills_what_it_adds(rig: Any) -> None:
    engine = rig()
    tokens = prompt(1, 300)
    answer = engine.ask(tokens)
    assert engine.replies(engine.engine.submit(job(tokens + answer + prompt(2, 15))))[0].prefilled_tokens <= 16


def test_a_background_request_does_not_evict_the_conversation(rig: Any) -> None:
    engine = rig()
    tokens = prompt(1, 300)
    answer = engine.ask(tokens)
    engine.ask(prompt(2, 40))
    assert engine.replies(engine.engine.submit(job(tokens + answer + [400])))[0].prefilled_tokens <= 2


def test_a_prefill_only_job_warms_the_prompt(rig: Any, alone: Any) -> None:
    engine = rig()
    tokens = prompt(1, 300)
    assert engine.replies(engine.engine.submit(job(tokens, max_tokens=0)))[-1] == Finished("length")
    replies = engine.replies(engine.engine.submit(job(tokens)))
    assert replies[0] == Started(299, 1)
    assert words(replies) == alone("llama", tokens)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_new_question_behind_a_long_system_is_answered_and_not_the_old_one(rig: Any, alone: Any, family: str) -> None:
    """The length of what is held is its tokens', never that of an allocation."""
    engine = rig(family)
    system = prompt(1, 700)
    engine.ask(system + prompt(2, 20), checkpoints=(700,))
    second = job(system + prompt(3, 20), checkpoints=(700,))
    replies = engine.replies(engine.engine.submit(second))
    assert replies[0] == Started(700, 20)
    assert words(replies) == alone(family, second.tokens)


@pytest.mark.parametrize("extra", ["rotating", "arrays"])
def test_one_layer_that_cannot_be_cut_is_enough_to_reuse_exact_places_only(rig: Any, scripted_model: Any, extra: str) -> None:
    """Its first layers are plain: asking those alone would cut the others wrongly."""
    engine = rig(folder=scripted_model("llama", "ls -la", extra_caches=(extra,)))
    tokens = prompt(1, 200)
    first = engine.ask(tokens, checkpoints=(100,))
    replies = engine.replies(engine.engine.submit(job(tokens[:150] + prompt(2, 50), checkpoints=(100,))))
    assert replies[0] == Started(100, 100)
    assert engine.ask(tokens) == first


def test_reuse_works_across_the_start_of_quantization(rig: Any, tiny_model: Any) -> None:
    engine = rig(folder=tiny_model("llama", **WIDE), kv_bits=8, kv_quant_start=100, prefill_size=64)
    system = prompt(1, 80)
    engine.ask(system + prompt(2, 10))
    for length in (60, 200, 20):
        replies = engine.replies(engine.engine.submit(job(system + prompt(3, length))))
        assert replies[0].reused_tokens >= 80 and isinstance(replies[-1], Finished)


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen3_next"])
def test_little_room_costs_time_and_no_answer(rig: Any, alone: Any, family: str) -> None:
    engine = rig(family, prompt_cache_gb=600_000 / GIB)
    for number in range(12):
        tokens = prompt(number % 4, 150) + prompt(number, 10)
        assert engine.ask(tokens, 4, checkpoints=(150,)) == alone(family, tokens, 4)
        assert engine.engine.health()["prompt_cache"]["bytes"] <= 600_000


def test_no_room_is_no_cache(rig: Any) -> None:
    engine = rig(prompt_cache_gb=0.0)
    for _ in range(2):
        assert engine.replies(engine.engine.submit(job(prompt(1, 100))))[0] == Started(0, 100)


@pytest.mark.parametrize("family", ["gemma3", "qwen3_5"])
def test_where_prompts_part_without_a_checkpoint_the_next_one_finds_one(rig: Any, alone: Any, family: str) -> None:
    """Tools in front of the system prompt are common to all agents."""
    engine, tools = rig(family), prompt(1, 200)
    for number, reused in ((2, 0), (3, 0), (4, 200)):
        wanted = job(tools + prompt(number, 80) + prompt(9, 10), 4, checkpoints=(280, 287))
        replies = engine.replies(engine.engine.submit(wanted))
        assert replies[0].reused_tokens == reused
        assert words(replies) == alone(family, wanted.tokens, 4)


def test_why_it_missed_is_logged_and_counted(rig: Any, caplog: Any) -> None:
    caplog.set_level(logging.INFO)
    engine = rig()
    tokens = prompt(1, 200)
    engine.ask(tokens, checkpoints=(100, 190), name="a")
    engine.ask(tokens[:150] + prompt(2, 60), checkpoints=(100, 200), name="b")
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("request ")]
    assert "reused=0 prefilled=200" in lines[0] and lines[0].endswith("from=- miss=cold@0")
    assert "reused=150 prefilled=60" in lines[1] and lines[1].endswith("from=memory miss=messages_changed@150")
    cache = engine.engine.health()["prompt_cache"]
    assert cache["reasons"] == {"cold": 1, "messages_changed": 1} and cache["entries"] == 2 and cache["bytes"] > 0


@pytest.mark.parametrize("shows", [False, True])
def test_the_first_text_that_differs_is_logged_for_debugging_only(rig: Any, caplog: Any, shows: bool) -> None:
    caplog.set_level(logging.INFO)
    engine = rig(debug_request=shows)
    tokens, other = prompt(1, 200), prompt(2, 60)
    for name, asked in (("a", tokens), ("b", tokens[:150] + other), ("c", tokens[:150] + other)):
        engine.ask(asked, checkpoints=(100, 190), name=name)
    misses = [record.getMessage().partition("miss=")[2] for record in caplog.records if record.getMessage().startswith("request ")]
    text = f" {''.join(f'{token} ' for token in other[:12])!r}" if shows else ""
    assert misses[1:] == [f"messages_changed@150{text}", "-"]


@pytest.mark.parametrize(("family", "chunks"), [("llama", [259]), ("gemma3", [259]), ("gemma4", [259]), ("qwen3_5", [100, 150, 9])])
def test_only_recurrent_layers_make_the_prefill_stop_at_a_place_to_keep(rig: Any, monkeypatch: Any, family: str, chunks: list[int]) -> None:
    """And hardly beyond what is kept already no further place is."""
    engine, real, read = rig(family, prefill_size=1024), kv.prefill, []
    engine.ask(prompt(7, 40), 1)
    engine.engine._prompts.rate = 1e6

    def counted(model: Any, state: Any, tokens: Any) -> None:
        read.append(len(tokens))
        real(model, state, tokens)

    monkeypatch.setattr(kv, "prefill", counted)
    tokens = prompt(1, 260)
    engine.ask(tokens, 1, checkpoints=(5, 100, 250))
    assert read == chunks
    longer = tokens[:250] + prompt(2, 100)
    assert engine.replies(engine.engine.submit(job(longer, 1, checkpoints=(5, 100, 260, 340))))[0].reused_tokens == 250
    assert read[len(chunks):] == ([90, 9] if family == "qwen3_5" else [99])
