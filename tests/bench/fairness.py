"""What one long prompt costs everybody else, and whether a common prefix is prefilled once.

Three measurements on one server: a short request by itself and behind a long prefill; the worst gap between two pieces
of a running stream during a long prefill; many requests at once that share a long prefix. Prints one Markdown table.

    python tests/bench/fairness.py                                    # starts this server with `tiny`, and ends it
    python tests/bench/fairness.py --serve ours,mlx_lm                # and mlx_lm.server after it
    python tests/bench/fairness.py --model random-llama               # a model so small that only the scheduling shows
"""
from __future__ import annotations

import argparse
import random
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import paths  # noqa: F401  (the import path)
import servers
from client import Answer, Ask, Background, BenchError, Target, together
from tables import machine, markdown, median, seconds

WORDS = """time people way day man thing woman life child world school state family student group country problem hand part
place case week company system program question work government number night point home water room mother area money story
fact month lot right study book eye job word business issue side kind head house service friend father power hour game line
end member law car city community name president team minute idea body information back parent face others level office""".split()

ALONE_STEPS = 16
"""Pieces of a stream from which the time of one step is taken."""
ALONE_FACTOR, ALONE_EXTRA_S = 3.0, 1.0
"""A short request behind a long one should take at most this many times its time alone, and this much more."""


@dataclass
class Measured:
    """What one server did. Times in seconds, sizes in tokens; a reader's numbers are what its usage says."""

    name: str
    short_tokens: int = 0
    long_tokens: int = 0
    long_s: float = 0.0
    alone_s: list[float] = field(default_factory=list)
    behind_s: list[float] = field(default_factory=list)
    step_s: float = 0.0
    gaps_s: list[float] = field(default_factory=list)
    shared_prompts: list[int] = field(default_factory=list)
    shared_computed: list[int] = field(default_factory=list)
    shared_counter: int | None = None
    shared_last_s: float = 0.0


Prompts = Callable[[str, int], str]
"""`prompt(salt, tokens)`: a user's text that makes a prompt of about so many tokens, unlike that of any other salt."""


def prompts(target: Target) -> Prompts:
    """Learn from two small requests how many tokens the model's template and words take."""

    def words(salt: str, count: int) -> str:
        rng = random.Random(salt)
        return f"{salt}: " + " ".join(rng.choice(WORDS) for _ in range(count))

    small, large = (target.ask(Ask((("user", words("measure", count)),))).prompt_tokens for count in (20, 220))
    per_word = (large - small) / 200
    overhead_tokens = small - 20 * per_word
    return lambda salt, tokens: words(salt, max(1, round((tokens - overhead_tokens) / per_word)))


def short_behind_long(target: Target, prompt: Prompts, options: argparse.Namespace, measured: Measured) -> None:
    """A short request's time by itself, then while a long prompt is being prefilled."""

    def short(salt: str) -> Answer:
        return target.ask(Ask((("user", prompt(salt, options.short_tokens)),), "", options.answer_tokens, salt))

    alone = [short(f"Alone {number}") for number in range(3)]
    measured.short_tokens = alone[0].prompt_tokens
    measured.alone_s = [answer.total_s for answer in alone]
    long = Background(target, Ask((("user", prompt("Long one", options.long_tokens)),), "", 1, "long"))
    long.wait(lambda answer: answer.begun_s > 0)
    for number in range(options.shorts):
        answer = short(f"Behind {number}")
        if long.answer.pieces_s and measured.behind_s:
            break  # the long one was through before this one ended
        measured.behind_s.append(answer.total_s)
    answer = long.end()
    measured.long_tokens, measured.long_s = answer.prompt_tokens, answer.ttft_s


def stream_beside_long(target: Target, prompt: Prompts, options: argparse.Namespace, measured: Measured) -> None:
    """The gaps of a running stream by itself, then while a long prompt is being prefilled."""
    text = "Write a very long story about a lighthouse. Take your time, and never stop."
    stream = Background(target, Ask((("user", text),), "", options.stream_tokens, "stream"))
    stream.wait(lambda answer: len(answer.pieces_s) > ALONE_STEPS)
    measured.step_s = median(gaps(list(stream.answer.pieces_s)))
    long = target.ask(Ask((("user", prompt("Long two", options.long_tokens)),), "", 1, "long"))
    measured.gaps_s = gaps(between(stream.end(now=True).pieces_s, long.sent_s, (long.pieces_s or [long.end_s])[0]))


def between(times_s: Sequence[float], from_s: float, to_s: float) -> list[float]:
    """The times from the last one before `from_s` to the first one after `to_s`."""
    return list(times_s)[max(0, bisect_left(times_s, from_s) - 1):bisect_right(times_s, to_s) + 1]


def gaps(times_s: Sequence[float]) -> list[float]:
    """What lies between each time and the next."""
    return [after - before for before, after in zip(times_s, times_s[1:])]


def shared_prefix(target: Target, prompt: Prompts, options: argparse.Namespace, measured: Measured) -> None:
    """Requests with the same long system prompt and different questions, all at the same moment."""
    system = prompt("Shared", options.prefix_tokens)
    asks = [Ask((("user", f"Question {number:02d}: what is {WORDS[number % len(WORDS)]}?"),), system, 4, f"shared-{number}")
            for number in range(options.requests)]
    before = counters(target)
    answers = together(target, asks)
    after = counters(target)
    if "prefilled_tokens" in after:
        measured.shared_counter = after["prefilled_tokens"] - before["prefilled_tokens"]
    measured.shared_prompts = [answer.prompt_tokens for answer in answers]
    measured.shared_computed = [answer.prompt_tokens - answer.cached_tokens for answer in answers]
    measured.shared_last_s = max(answer.ttft_s for answer in answers)


def counters(target: Target) -> dict[str, Any]:
    """The request counters of `/health`, empty where it has none."""
    return target.get("/health")[1].get("requests") or {}


# ── the table ────────────────────────────────────────────────────────────────────────────────────


def measure(target: Target, options: argparse.Namespace) -> Measured:
    """Run all three on one server. Raises `BenchError`."""
    measured, prompt = Measured(target.name), prompts(target)
    for part in (short_behind_long, stream_beside_long, shared_prefix):
        print(f"{target.name}: {part.__name__.replace('_', ' ')} …", file=sys.stderr, flush=True)
        part(target, prompt, options, measured)
    return measured


def table(measured: Sequence[Measured]) -> str:
    """All servers side by side."""
    first = measured[0]
    rows = [
        [f"{first.short_tokens} tokens, whole answer, alone", *(seconds(median(each.alone_s)) for each in measured)],
        [f"the same behind a prefill of {first.long_tokens} tokens, worst", *(behind(each) for each in measured)],
        ["that prefill's own TTFT meanwhile", *(seconds(each.long_s) for each in measured)],
        ["a running stream: one step alone, median", *(seconds(each.step_s) for each in measured)],
        [f"its worst gap during a prefill of {first.long_tokens} tokens", *(worst_gap(each) for each in measured)],
        [f"{len(first.shared_prompts)} requests at once with a common prefix: prompt tokens", *(f"{sum(each.shared_prompts)}" for each in measured)],
        ["of those computed, by usage (by `/health`)", *(computed(each) for each in measured)],
        ["last TTFT of them", *(seconds(each.shared_last_s) for each in measured)],
    ]
    return markdown(["", *(each.name for each in measured)], rows)


def behind(measured: Measured) -> str:
    """The worst time, how many times that is of the time alone, and whether it is within the limit."""
    if not measured.behind_s:
        return "-"
    worst_s, alone_s = max(measured.behind_s), median(measured.alone_s)
    limit_s = ALONE_FACTOR * alone_s + ALONE_EXTRA_S
    return f"{seconds(worst_s)} ({worst_s / alone_s:.1f} times; limit {seconds(limit_s)})"


def worst_gap(measured: Measured) -> str:
    """The worst gap, and of how many."""
    return f"{seconds(max(measured.gaps_s))} of {len(measured.gaps_s)}" if measured.gaps_s else "it had ended"


def computed(measured: Measured) -> str:
    """The sum over all requests, and what the last of them needed on top of the first."""
    total, most = sum(measured.shared_computed), max(measured.shared_computed)
    others = (total - most) / max(1, len(measured.shared_computed) - 1)
    counter = "" if measured.shared_counter is None else f" ({measured.shared_counter})"
    return f"{total}{counter}: one {most}, each other {others:.0f}"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    servers.add_arguments(top, "ours")
    top.add_argument("--short-tokens", type=int, default=40, help="prompt of the short request")
    top.add_argument("--long-tokens", type=int, default=6000, help="prompt of the long request")
    top.add_argument("--shorts", type=int, default=4, help="short requests behind the long one, one after the other")
    top.add_argument("--answer-tokens", type=int, default=16, help="answer of the short request")
    top.add_argument("--stream-tokens", type=int, default=4000, help="longest answer of the running stream")
    top.add_argument("--prefix-tokens", type=int, default=3000, help="common prefix")
    top.add_argument("--requests", type=int, default=20, help="requests with the common prefix")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print the table."""
    options = parser().parse_args(argv)
    servers.end_on_sigterm()
    measured = []
    try:
        with closing(servers.groups(options)) as groups:
            for group in groups:
                measured += [measure(target, options) for target in group]
    except BenchError as error:
        print(f"{error}", file=sys.stderr)
        return 1
    print(f"{machine()}; model: {options.url or options.model}\n\n{table(measured)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
