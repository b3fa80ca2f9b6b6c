"""What is kept, reused and let go, with states that are nothing but their size."""
from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

from mlx_native_server.engine.cache import (
    COLD, EVICTED, HIT, IDLE_S, MESSAGES_CHANGED, SYSTEM, SYSTEM_CHANGED, TURN, UNTRIMMABLE, USER, Cache, Match)
from mlx_native_server.engine.prefix_tree import pack


@dataclass(eq=False)
class Part:
    """A state's part of one byte a token, or of `nbytes`."""

    tokens: int
    nbytes: int = 0

    def shortened(self, tokens: int) -> "Part":
        assert tokens <= self.tokens
        return Part(tokens, tokens)


def plain(tokens: int) -> Part:
    return Part(tokens, tokens)


FIXED_BYTES = 100


class Model:
    """A cache and what an engine does with it. `now` is the clock's time in seconds."""

    def __init__(self, budget_bytes: int = 1 << 30, has_plain: bool = True, has_fixed: bool = True):
        self.now, self.gone = 0.0, []
        self.has_plain, self.has_fixed = has_plain, has_fixed
        self.cache = Cache(budget_bytes, has_plain, has_fixed, clock=lambda: self.now, on_evicted=lambda *what: self.gone.append(what))

    def begin(self, prompt: list[int], marks: dict[int, int] = {}, session: str = "s") -> tuple[Match, Part]:
        match, live = self.cache.match(pack(prompt), marks, session), Part(0)
        self.cache.begin(pack(prompt), match, live, session)
        self.cache.check()
        return match, live

    def prefill(self, live: Part, prompt: list[int], start: int, marks: dict[int, int], session: str = "s", stop: int | None = None) -> None:
        for end in sorted({*marks, len(prompt) - 1}):
            if start < end <= (len(prompt) if stop is None else stop):
                self.cache.reach(live, pack(prompt), end)
                if self.has_fixed and end in marks:
                    self.cache.mark(pack(prompt), end, marks[end], Part(end, FIXED_BYTES), session)
                self.cache.check()

    def commit(self, live: Part, tokens: list[int], marks: dict[int, int], session: str = "s", continued: bool = False) -> None:
        parts = plain(len(tokens)) if self.has_plain else None, Part(len(tokens), FIXED_BYTES) if self.has_fixed else None
        self.cache.commit(live, pack(tokens), *parts, marks, session, continued)
        self.cache.check()

    def run(self, prompt: list[int], marks: dict[int, int] = {}, answer: tuple[int, ...] = (9, 9, 9), session: str = "s") -> Match:
        match, live = self.begin(prompt, marks, session)
        self.prefill(live, prompt, match.tokens, marks, session)
        self.commit(live, prompt + list(answer), marks, session, match.tokens > min(marks, default=0))
        return match


def seq(seed: int, length: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(1000, 2000) for _ in range(length)]


S, U, R = seq(1, 100), seq(2, 60), seq(3, 60)
MARKS = {100: SYSTEM, 160: TURN}
KINDS = [{"has_fixed": False}, {}, {"has_plain": False}]


@pytest.mark.parametrize("kinds", KINDS)
def test_a_step_reuses_prompt_and_answer(kinds: dict[str, bool]) -> None:
    model = Model(**kinds)
    assert model.run(S + U + [5], MARKS).reason == COLD
    match = model.run(S + U + [5, 9, 9, 9] + R + [5], {100: SYSTEM, 160: TURN, 224: TURN})
    assert (match.tokens, match.reason) == (164, HIT)


@pytest.mark.parametrize(("kinds", "reused"), list(zip(KINDS, [162, 160, 160])))
def test_where_the_answer_is_rendered_otherwise_the_turn_before_is_reused(kinds: dict[str, bool], reused: int) -> None:
    model = Model(**kinds)
    model.run(S + U + [5], MARKS)
    match = model.run(S + U + [5, 9, 4, 4] + R + [5], {100: SYSTEM, 160: TURN, 224: TURN})
    assert (match.tokens, match.reason) == (reused, HIT)


@pytest.mark.parametrize("kinds", KINDS)
def test_a_prompts_last_token_is_always_computed(kinds: dict[str, bool]) -> None:
    model = Model(**kinds)
    model.run(S + U + [5], MARKS)
    assert model.run(S + U + [5], MARKS).tokens <= 160


@pytest.mark.parametrize("kinds", KINDS)
def test_a_new_session_reuses_system_and_tools_and_leaves_the_old_one(kinds: dict[str, bool]) -> None:
    model = Model(**kinds)
    model.run(S + U + [5], MARKS)
    match = model.run(S + R + [5], MARKS, session="t")
    assert (match.tokens, match.taken, match.reason) == (100, False, MESSAGES_CHANGED)
    assert model.run(S + U + [5, 9, 9, 9, 6], {100: SYSTEM, 160: TURN}).tokens == 164


def test_a_leaf_is_taken_by_its_own_conversation_only() -> None:
    model = Model()
    model.run(S + U + [5], MARKS)
    match, live = model.begin(S + U + [5, 9, 9, 9] + R, {100: SYSTEM, 160: TURN})
    assert match.taken and model.cache.nbytes == 3 * FIXED_BYTES  # of the plain part the request's own is the only one
    model.cache.drop(live)
    model.cache.check()
    assert model.cache.nbytes == 0, "fixed parts that nothing covers are of no use"


def test_who_branches_off_while_a_request_runs_gets_a_copy_of_its_state() -> None:
    model = Model()
    prompt = S + U + [5]
    _, live = model.begin(prompt, MARKS)
    model.prefill(live, prompt, 0, MARKS, stop=130)
    match, other = model.begin(S + R + [5], MARKS, "t")
    assert (match.tokens, match.plain, match.taken) == (100, live, False)
    model.cache.drop(live)
    model.cache.check()
    assert model.cache.match(pack(S + [1, 2, 3])).tokens == 100, "the second request covers the system now"
    model.cache.drop(other)
    assert list(model.cache.tree) == []


@pytest.mark.parametrize(("prompt", "reason", "agreed"), [
    (seq(8, 300), COLD, 0),
    (S[:90] + seq(8, 100), SYSTEM_CHANGED, 90),
    (S + U[:10] + seq(8, 100), MESSAGES_CHANGED, 110),
    (S + U[:50] + seq(8, 100), UNTRIMMABLE, 150),
    (S + U + [5] + seq(8, 100), HIT, 161),
])
def test_each_miss_has_a_reason_and_a_place(prompt: list[int], reason: str, agreed: int) -> None:
    model = Model(has_fixed=reason == UNTRIMMABLE)
    model.run(S + U + [5], MARKS)
    match = model.run(prompt, {100: SYSTEM, len(prompt) - 5: TURN})
    assert (match.reason, match.agreed) == (reason, agreed)
    assert model.cache.figures()["reasons"] == ({COLD: 2} if reason == COLD else {COLD: 1, reason: 1})


def test_an_evicted_prompt_is_told_from_a_new_one() -> None:
    model = Model(budget_bytes=700)
    model.run(S + U + [5], MARKS)
    for other in range(20, 25):
        model.run(seq(other, 160) + [5], MARKS, session=str(other))
    assert model.run(S + U + [5, 9, 9, 9] + R, {100: SYSTEM, 160: TURN}).reason == EVICTED
    assert model.gone and model.cache.nbytes <= 700


@pytest.mark.parametrize("kinds", KINDS)
def test_systems_outlive_the_conversations(kinds: dict[str, bool]) -> None:
    model = Model(budget_bytes=1200, **kinds)
    model.run(S + U + [5], MARKS)
    for number in range(30):
        model.now += 60
        model.run(seq(100 + number, 150), {149: TURN}, session=f"other {number}")
        assert model.cache.nbytes <= 1200
    assert model.cache.match(pack(S + R)).tokens == 100


def test_a_title_request_does_not_push_out_the_conversation_beside_it() -> None:
    model = Model(budget_bytes=1500, has_fixed=False)
    talk = S + U + [5]
    model.run(talk, MARKS)
    model.run(talk + [9, 9, 9] + R + [5], {100: SYSTEM, 160: TURN, 224: TURN})
    for number in range(20):
        model.run(seq(50 + number, 300), {290: TURN})
    assert model.cache.match(pack(talk + [9, 9, 9] + R + [5, 9, 9, 9, 1])).tokens == 228


def test_ended_sessions_go_before_those_that_live() -> None:
    model = Model(budget_bytes=800, has_fixed=False)
    for step in range(2):
        model.run(seq(70, 100) + [5] + [9, 9, 9, 5] * step, {90: TURN}, session="old")
    model.now += IDLE_S + 1
    model.run(seq(71, 300), {290: TURN}, session="one")
    model.run(seq(72, 450), {440: TURN}, session="two")
    assert model.cache.match(pack(seq(70, 100) + [5])).tokens == 0
    assert model.cache.match(pack(seq(71, 300) + [1])).tokens == 300


def test_a_conversation_loses_its_earlier_places_before_its_last() -> None:
    model = Model(budget_bytes=720)
    prompt, marks = S + U + R + [5], {100: SYSTEM, 130: USER, 160: TURN, 220: TURN}
    model.run(prompt, marks)
    assert model.cache.nbytes <= 720
    assert [node.end_tokens for node in model.cache.tree if node.fixed] == [100, 130, 220, 224]


def test_a_state_larger_than_the_budget_leaves_what_fits_of_it() -> None:
    model = Model(budget_bytes=250)
    model.run(S + U + [5] + seq(5, 300), {100: SYSTEM, 160: TURN, 450: TURN})
    assert model.cache.nbytes == 200  # the system's plain and fixed part
    assert model.run(S + R, {100: SYSTEM}).tokens == 100


def test_a_budget_of_nothing_keeps_nothing() -> None:
    model = Model(budget_bytes=0)
    model.run(S + U + [5], MARKS)
    assert model.cache.nbytes == 0 and list(model.cache.tree) == []


def test_earlier_places_of_a_conversation_are_let_go_as_it_grows() -> None:
    model, talk = Model(), list(S)
    ends: list[int] = []
    for step in range(12):
        talk += seq(200 + step, 30)
        ends.append(len(talk))
        model.run(talk + [5], {100: SYSTEM, 130: USER} | {end: TURN for end in ends[-2:] if end > 130})
        talk += [5, 9, 9, 9]
    assert sorted(node.end_tokens for node in model.cache.tree) == [100, 130, *ends[-2:], len(talk)]


@pytest.mark.parametrize("kinds", KINDS)
def test_a_cancelled_prefill_is_kept_as_far_as_it_got(kinds: dict[str, bool]) -> None:
    model, prompt = Model(**kinds), S + U + [5]
    _, live = model.begin(prompt, MARKS)
    model.prefill(live, prompt, 0, {}, stop=0)
    model.cache.reach(live, pack(prompt), 80)
    model.commit(live, prompt[:80], MARKS)
    assert model.begin(prompt, MARKS)[0].tokens == 80


@pytest.mark.parametrize("kinds", KINDS)
def test_the_record_holds_through_anything(kinds: dict[str, Any]) -> None:
    """Random requests that share, branch, fail, are cut off, and run beside each other, in little room."""
    rng = random.Random(3)
    model = Model(budget_bytes=3000, **kinds)
    talks = [S + seq(300 + number, 40) for number in range(4)] + [R + seq(310, 40)]
    running: list[Any] = []
    for _ in range(600):
        model.now += rng.choice([0, 1, 30, 400])
        if running and rng.random() < 0.5:
            live, prompt, marks, start, which = running.pop(rng.randrange(len(running)))
            stop = rng.randrange(start, len(prompt)) if rng.random() < 0.3 else None
            model.prefill(live, prompt, start, marks, str(which), stop)
            if rng.random() < 0.2 or stop == 0:
                model.cache.drop(live)
            else:
                at = max([start, *(end for end in {*marks, len(prompt) - 1} if stop is None or end <= stop)])
                done = prompt + [9] * rng.randrange(5) if stop is None else prompt[:at]
                if done:
                    model.commit(live, done, marks, str(which), start > 100)
                else:
                    model.cache.drop(live)
                if stop is None:
                    talks[which] = done if len(done) < 600 else talks[which][:140]
            model.cache.check()
            assert model.cache.nbytes <= 3000
        else:
            which = rng.randrange(len(talks))
            prompt = talks[which] + seq(rng.randrange(1000), rng.randrange(1, 50)) + [5]
            marks = {100: SYSTEM, len(prompt) - 2: TURN}
            match, live = model.begin(prompt, marks, str(which))
            assert match.tokens < len(prompt)
            running.append((live, prompt, marks, match.tokens, which))
    for live, *_ in running:
        model.cache.drop(live)
    model.cache.check()
    assert model.cache.live == {}
