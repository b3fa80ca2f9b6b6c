"""Whose turn it is and for how long, without a model."""
from __future__ import annotations

import threading

import pytest

from mlx_native_server.engine.memory import GIB
from mlx_native_server.protocol import ApiError, Client, Failed, Finished, Job, Piece
from mlx_native_server.engine.queueing import Counters, Door, EngineTicket, Task
from mlx_native_server.engine.scheduling import ALONE_S, BURST_S, SLICE_S, Prompts, choose, chunk_tokens, newer_rate, whole_tiles


def task(prompt_tokens: int, arrived_s: float = 0.0, held_tokens: int = 0, session: str = "") -> Task:
    return Task(Job("req", [1] * prompt_tokens, 8, client=Client(session_id=session)), EngineTicket(), arrived_s, held_tokens=held_tokens)


@pytest.mark.parametrize(("rests", "turn", "expected"), [
    ([900, 40, 100], 0, 1),
    ([900, 40, 100], 3, 0),  # the oldest has every fourth turn
    ([900, 40, 100], 4, 1),
    ([40, 40], 1, 0),  # among equals the older
    ([7], 2, 0),
])
def test_short_prompts_go_first_and_the_oldest_now_and_then(rests: list[int], turn: int, expected: int) -> None:
    tasks = [task(rest, arrived_s=number) for number, rest in enumerate(rests)]
    assert choose(tasks, turn) is tasks[expected]


def test_what_counts_is_the_rest_of_a_prompt() -> None:
    begun, new = task(1000, held_tokens=990), task(100, arrived_s=1.0)
    assert choose([begun, new], 0) is begun


def test_nobody_is_chosen_from_nobody() -> None:
    assert choose([], 0) is None


@pytest.mark.parametrize(("rate", "alone", "left_s", "largest", "expected"), [
    (1000.0, False, 3.0, 2048, 500),
    (1000.0, True, 3.0, 2048, 1000),
    (1000.0, False, 0.2, 2048, 200),
    (1000.0, False, 3.0, 300, 300),
    (20.0, False, 0.5, 512, 16),  # never less
    (20.0, True, 1.0, 512, 64),  # alone: each chunk is a pass over all weights
    (20.0, True, 1.0, 8, 8),  # unless the setting is
    (0.0, False, 0.5, 512, 64),  # nothing measured yet
    (1000.0, False, -1.0, 512, 16),
])
def test_a_chunk_is_sized_from_the_measured_rate(rate: float, alone: bool, left_s: float, largest: int, expected: int) -> None:
    assert chunk_tokens(rate, alone, left_s, largest) == expected


@pytest.mark.parametrize(("held", "size", "rest", "expected"), [
    (0, 1024, 5000, 1024), (1, 1024, 5000, 1023), (16, 64, 5000, 64),
    (1, 1024, 1024, 1024),  # the prompt's end is where it is
    (1, 16, 5000, 15), (9, 16, 5000, 16), (0, 1, 5000, 1),  # nothing is halved for it
])
def test_a_chunk_ends_where_attentions_tiles_are_full(held: int, size: int, rest: int, expected: int) -> None:
    assert whole_tiles(held, size, rest) == expected


@pytest.mark.parametrize(("rate", "tokens", "seconds", "expected"), [
    (0.0, 100, 1.0, 100.0),
    (100.0, 300, 1.0, 200.0),
    (100.0, 50, 1.0, 75.0),
    (100.0, 2, 1.0, 100.0),  # too small to say anything
    (1000.0, 20, 0.1, 1000.0),  # brief: overhead
    (100.0, 20, 0.1, 150.0),  # brief, and quicker all the same
])
def test_the_rate_follows_recent_chunks_but_for_those_that_are_mostly_overhead(rate: float, tokens: int, seconds: float, expected: float) -> None:
    assert newer_rate(rate, tokens, seconds) == expected


def test_a_prompt_far_in_has_its_own_slower_rate_whatever_short_ones_took_meanwhile() -> None:
    both = Prompts(16, 512)
    deep, short = task(6001), task(41, arrived_s=1.0)
    both.took(deep, 64, 1.0)
    both.took(short, 40, 0.3)
    both.waiting.append(deep)
    assert both.next_chunk(0.0, True, [task(5)], True) == (deep, 32)
    both.waiting[0] = new = task(6001)
    assert both.next_chunk(0.0, True, [task(5)], True) == (new, 49)


def prompts(*rests: int, rate: float = 100.0, max_running: int = 16) -> Prompts:
    made = Prompts(max_running, 512)
    made.waiting += [task(rest + 1, arrived_s=number) for number, rest in enumerate(rests)]
    made.rate = rate
    return made


@pytest.mark.parametrize(("rests", "rows", "streaming", "expected"), [
    ([6000], 0, False, 100),  # alone: a second's worth
    ([6000], 1, True, 50),
    ([6000, 7000], 0, False, 50),
    ([30], 1, True, 30),
])
def test_a_chunk_is_shorter_while_others_wait_or_decode(rests: list[int], rows: int, streaming: bool, expected: int) -> None:
    chunk = prompts(*rests).next_chunk(0.0, True, [task(5)] * rows, streaming)
    assert chunk is not None and chunk[1] == expected


@pytest.mark.parametrize(("spent_s", "streaming", "goes_on"), [
    (0.1, True, True), (0.3, True, False), (0.3, False, True), (SLICE_S + 1, False, True), (BURST_S, False, False),
])
def test_a_slice_goes_on_with_prompts_that_fit(spent_s: float, streaming: bool, goes_on: bool) -> None:
    """30 tokens take 0.3 s. Nobody watches a gap before the first text, so a burst may take longer then."""
    assert (prompts(30, 30).next_chunk(spent_s, False, [task(5)], streaming) is not None) is goes_on


def test_a_slice_has_always_a_first_chunk() -> None:
    assert prompts(6000, rate=33).next_chunk(0.0, True, [task(5)], True) is not None


def test_nobody_begins_beyond_the_limit_of_running_jobs() -> None:
    full = prompts(30, 40, max_running=2)
    assert full.next_chunk(0.0, True, [task(5)] * 2, True) is None
    full.begin(full.waiting[1])
    chunk = full.next_chunk(0.0, True, [task(5)], True)
    assert chunk is not None and chunk[0] is full.begun[0]


def take_turn(these: Prompts) -> Task:
    """The next chunk is prefilled; whose it was."""
    chosen, size = these.next_chunk(0.0, True, [], False)
    if chosen.state is None:
        these.begin(chosen)
        chosen.state = []
    chosen.held_tokens += size
    return chosen


def test_a_sessions_twenty_sub_agents_leave_another_session_its_half() -> None:
    many = Prompts(16, 512)
    many.rate = 1000.0
    many.waiting += [task(5001, arrived_s=number, session="many") for number in range(20)]
    for _ in range(5):
        take_turn(many)
    other = task(2001, arrived_s=30.0, session="one")
    many.waiting.append(other)
    served = []
    while other.prefill_tokens:
        served.append(take_turn(many) is other)
    assert served.count(True) >= len(served) / 2 - 1


def test_a_session_leaves_places_for_others() -> None:
    full = Prompts(8, 512)
    full.waiting += [task(30, session="many"), task(40, session="one")]
    chunk = full.next_chunk(0.0, True, [task(5, session="many") for _ in range(7)], True)
    assert chunk is not None and chunk[0].job.client.session_id == "one"
    full.waiting.pop()
    assert full.next_chunk(0.0, True, [task(5, session="many") for _ in range(7)], True) is None
    assert full.next_chunk(0.0, True, [task(5, session="many") for _ in range(6)], True) is not None


def test_a_session_leaves_room_in_the_queue() -> None:
    door = Door(16, Counters())
    jobs = [Job("req", [1], 8, client=Client(session_id="many"))] * 14
    tickets = [door.submit(job) for job in jobs]
    with pytest.raises(ApiError, match="too many requests"):
        door.submit(jobs[0])
    door.submit(Job("req", [1], 8, client=Client(session_id="one")))
    door.leave(tickets[0])
    door.submit(jobs[0])


def test_a_title_request_goes_before_the_long_prompt_beside_it() -> None:
    """And delays that by its own prefill, no more."""
    both = Prompts(16, 512)
    both.waiting += [task(6000, session="s"), task(300, arrived_s=1.0, session="s")]
    assert both.next_chunk(0.0, True, [], False)[0].arrived_s == 1.0


def test_a_lone_prompt_on_a_fast_machine_gets_the_whole_chunk() -> None:
    chunk = prompts(6000, rate=5000).next_chunk(0.0, True, [], False)
    assert chunk is not None and chunk[1] == 512 and ALONE_S * 5000 > 512


def test_a_ticket_ends_once_whoever_ends_it() -> None:
    ticket = EngineTicket()
    results: list[bool] = []
    failed = Failed(ApiError(500, "api_error", "x"))
    threads = [threading.Thread(target=lambda: results.append(ticket.put(failed))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results.count(True) == 1
    assert not ticket.put(Piece("late", 1))
    assert ticket.get(0) == failed and ticket.get(0) is None


def test_the_last_prompt_token_is_not_prefilled() -> None:
    assert task(1).prefill_tokens == 0
    assert task(10, held_tokens=4).prefill_tokens == 5
    assert task(0).prefill_tokens == 0


def test_rates_and_times_of_a_task() -> None:
    done = task(10, arrived_s=1.0)
    assert (done.ttft_s, done.decode_rate) == (0.0, 0.0)
    done.first_token_s, done.last_token_s, done.generated = 3.0, 5.0, [7] * 21
    assert (done.ttft_s, done.decode_rate) == (2.0, 10.0)


def test_the_log_line_says_what_a_request_cost() -> None:
    done = Task(Job("req_1", [1] * 30, 8, client=Client(session_id="s", agent_id="a")), EngineTicket(), 1.0, reused_tokens=20, peak_bytes=3 * GIB)
    assert done.summary("stop", GIB // 2) == (
        "request req_1 agent=a session=s prompt=30 reused=20 prefilled=10 generated=0 ttft_s=0.00 tokens_per_s=0.0 stop=stop "
        "peak_gb=3.00 released_gb=0.50 from=- miss=-")


def test_an_end_is_final() -> None:
    ticket = EngineTicket()
    assert ticket.put(Finished("stop")) and ticket.ended
    assert not ticket.put(Finished("stop"))


@pytest.mark.parametrize(("rests", "tokens", "streaming", "expected"), [
    ([30, 20, 40], 30, False, 20),  # the shortest of the others
    ([30, 200], 30, False, None),  # a long prompt is read alone
    ([30, 20], 45, True, None),  # half a second is full
    ([30, 20], 45, False, 20),
    ([30], 30, False, None),
])
def test_short_prompts_are_read_with_others(rests: list[int], tokens: int, streaming: bool, expected: int | None) -> None:
    many = prompts(*rests)
    many.next_chunk(0.0, True, [task(5)], streaming)
    other = many.companion(many.waiting[:1], tokens, [task(5)], streaming)
    assert (other.prefill_tokens if other else None) == expected
