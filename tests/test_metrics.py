"""The Prometheus text: every kind of value, and what is counted at the engine's door."""
from __future__ import annotations

import json
import re

import pytest
from fakes import FakeEngine as ScriptedEngine, FakeTokenizer, body

from mlx_native_server.config import Settings
from mlx_native_server.monitor.awake import Awake
from mlx_native_server.monitor.metrics import COUNTERS, HISTOGRAMS, Metrics
from mlx_native_server.service import Service
from mlx_native_server.protocol import ApiError, Client, Failed, Finished, Job, Piece, Started
from mlx_native_server.monitor.watch import SLOW_PREFILL_S, WatchedEngine

HEALTH = {
    "status": "ok", "requests_running": 2, "mx_active_gb": 1.5, "context_tokens": None,
    "prompt_cache": {"entries": 3, "bytes": 1024, "budget_bytes": 4096, "evictions": 1, "reasons": {"cold": 2, 'odd"one': 1}},
}  # fmt: skip


def samples(text: str) -> dict[str, float]:
    return {line.rpartition(" ")[0].removeprefix("mlx_server_"): float(line.rpartition(" ")[2]) for line in text.splitlines() if not line.startswith("#")}


def test_the_text_is_well_formed() -> None:
    metrics = Metrics()
    metrics.add("http_responses_total", route="/", status="200")
    text = metrics.text(HEALTH)
    line = re.compile(r'# (HELP \w+ \S.*|TYPE \w+ (counter|gauge|histogram))|\w+(\{\w+="([^"\\]|\\.)*"(,\w+="([^"\\]|\\.)*")*\})? -?[\d.e+-]+')
    assert [row for row in text.splitlines() if not line.fullmatch(row)] == [] and text.endswith("\n")
    names = re.findall(r"# TYPE (\w+)", text)
    assert len(names) == len(set(names)) and {f"mlx_server_{name}" for name in (*COUNTERS, *HISTOGRAMS)} <= set(names)


def test_figures_of_the_health_are_shown_and_those_that_are_not_known_left_out() -> None:
    shown = samples(Metrics().text(HEALTH))
    assert (shown["up"], shown["requests_running"], shown["memory_active_bytes"]) == (1, 2, 1.5 * 1024**3)
    assert (shown["prompt_cache_bytes"], shown["prompt_cache_evictions_total"], shown['prompt_cache_lookups_total{reason="cold"}']) == (1024, 1, 2)
    assert shown['prompt_cache_lookups_total{reason="odd\\"one"}'] == 1 and "context_tokens" not in shown
    assert samples(Metrics().text({"status": "loading"}))["up"] == 0


@pytest.mark.parametrize("value, first", [(0.05, "0.1"), (0.1, "0.1"), (0.11, "0.25"), (999, "+Inf")])
def test_a_value_is_in_its_bucket_and_in_all_above(value: float, first: str) -> None:
    metrics = Metrics()
    metrics.observe("time_to_first_token_seconds", value)
    buckets = {name: count for name, count in samples(metrics.text({})).items() if name.startswith("time_to_first_token_seconds_bucket")}
    counts = list(buckets.values())
    assert counts == sorted(counts) and next(name for name, count in buckets.items() if count) == f'time_to_first_token_seconds_bucket{{le="{first}"}}'
    assert samples(metrics.text({}))["time_to_first_token_seconds_sum"] == value


class FakeEngine:
    """An engine whose tickets give what they are told."""

    def __init__(self, *replies):
        self.replies, self.cancelled = list(replies), 0
        self.prefilled: dict[str, int] = {}

    def submit(self, job):
        return self

    def get(self, timeout_s):
        return self.replies.pop(0) if self.replies else None

    def cancel(self):
        self.cancelled += 1

    def health(self):
        return {"status": "ok", "prefilled": self.prefilled}


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class CountedAwake(Awake):
    held_now = 0

    def take(self) -> None:
        self.held_now += 1

    def release(self) -> None:
        self.held_now -= 1


def watched(*replies) -> tuple[WatchedEngine, FakeEngine, Metrics, Clock, CountedAwake]:
    engine, metrics, clock, awake = FakeEngine(*replies), Metrics(), Clock(), CountedAwake()
    return WatchedEngine(engine, metrics, {"fingerprint": "f"}, awake, clock), engine, metrics, clock, awake


JOB = Job("req_1", [1] * 100, 5, client=Client(agent_id="a"))


def test_a_request_is_counted_and_timed_as_its_replies_pass() -> None:
    door, engine, metrics, clock, awake = watched(Started(60, 40), Piece("a", 1), None, Piece("", 0), Piece("b", 1), Finished("stop", 1))
    ticket = door.submit(JOB)
    assert awake.held_now == 1
    for wait_s in (1.0, 2.0, 0.1, 0.1, 0.3, 0.1):
        clock.now_s += wait_s
        ticket.get(0.1)
    ticket.cancel()
    shown = samples(metrics.text(door.health()))
    assert (shown["prompt_tokens_reused_total"], shown["prompt_tokens_prefilled_total"], shown["tokens_generated_total"]) == (60, 40, 3)
    assert shown["time_to_first_token_seconds_sum"] == 3.0 and shown["inter_token_seconds_sum"] == pytest.approx(0.5)
    assert shown['requests_total{end="stop"}'] == 1 and 'requests_total{end="cancelled"}' not in shown
    assert awake.held_now == 0 and door.live() == [] and engine.cancelled == 1


TOOL = {"name": "Bash", "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"], "additionalProperties": False}}
THINKING = {"type": "enabled", "budget_tokens": 1024}
RARE = [
    # what the model writes in each job, what is counted
    ([["hi"]], {}),
    ([['<tool_call>{"name": "Bash", "arguments": {"command": "ls"}}</tool_call>']], {}),
    ([['<tool_call>{name: Bash, command: ls}</tool_call>']], {"salvaged_calls_total": 1}),
    ([['<tool_call>\n{"name": "Bash", "arguments": {"cmd": "ls", "x": 1}}\n</tool_call>'], [' {"command": "ls"}}\n</tool_call>']], {"second_attempts_total": 1}),
    ([["<think>", *["a "] * 1100], ["hi"]], {"thoughts_ended_total": 1}),
]


@pytest.mark.parametrize("scripts, counted", RARE)
def test_what_an_answer_cost_besides_is_counted(scripts: list[list[str]], counted: dict[str, int]) -> None:
    metrics = Metrics()
    service = Service(Settings(), ScriptedEngine(scripts=scripts), metrics.add)
    service.use(FakeTokenizer())
    asked = body(max_tokens=4000, tools=[TOOL], **({"thinking": THINKING} if "thoughts_ended_total" in counted else {}))
    assert [event["type"] for event in service.answer(json.dumps(asked).encode(), {}, "req_1").events if event][-1] == "message_stop"
    names = ("salvaged_calls_total", "second_attempts_total", "thoughts_ended_total")
    assert {name: samples(metrics.text({}))[name] for name in names} == dict.fromkeys(names, 0) | counted


@pytest.mark.parametrize("replies, end", [([Failed(ApiError(500, "api_error", "no"))], "failed"), ([Finished("length")], "length"), ([], "cancelled")])
def test_each_end_is_counted_once(replies: list, end: str) -> None:
    door, _, metrics, _, awake = watched(*replies)
    ticket = door.submit(JOB)
    ticket.get(0.1)
    ticket.cancel()
    ticket.cancel()
    assert samples(metrics.text({}))[f'requests_total{{end="{end}"}}'] == 1 and awake.held_now == 0
    assert [error["message"] for error in door.health()["last_errors"]] == (["no"] if end == "failed" else [])


def test_the_health_shows_open_requests_with_their_progress() -> None:
    door, engine, _, clock, _ = watched(Started(60, 40), Piece("a", 1), Piece("b", 1))
    ticket = door.submit(JOB)
    clock.now_s += 1
    assert door.health()["open"][0] | {"seconds": 0} == {
        "id": "req_1", "agent_id": "a", "state": "waiting", "seconds": 0, "prompt_tokens": 100, "reused_tokens": 0,
        "prompt_tokens_done": 0, "generated_tokens": 0, "tokens_per_s": 0.0}  # fmt: skip
    ticket.get(0.1)
    clock.now_s, engine.prefilled = clock.now_s + 2, {"req_1": 80}
    shown = door.health()["open"][0]
    assert (shown["state"], shown["prompt_tokens_done"], shown["tokens_per_s"]) == ("prefill", 80, 10.0)
    ticket.get(0.1)
    clock.now_s += 0.5
    ticket.get(0.1)
    shown = door.health()["open"][0]
    assert (shown["state"], shown["prompt_tokens_done"], shown["generated_tokens"], shown["tokens_per_s"]) == ("decode", 100, 2, 2.0)
    assert "prefilled" not in door.health() and door.health()["fingerprint"] == "f"


def test_facts_may_replace_the_engines_status() -> None:
    door, *_ = watched()
    door.facts |= {"status": "failed", "progress": "why"}
    assert (door.health()["status"], door.health()["progress"]) == ("failed", "why")


def test_a_slow_prefill_is_told_about_now_and_then() -> None:
    door, engine, _, clock, _ = watched(Started(0, 100))
    door.submit(JOB).get(0.1)
    engine.prefilled = {"req_1": 25}
    assert door.slow_prefills() == []
    clock.now_s += SLOW_PREFILL_S
    assert door.slow_prefills() == ["request req_1 prefill 25 % of 100 tokens, 2 tokens/s, 30 s left"]
    assert door.slow_prefills() == []
