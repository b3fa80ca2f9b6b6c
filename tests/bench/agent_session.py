"""An agent's session and eight streams at once, on this server and on mlx_lm.server, one after the other.

A session begins with a long system prompt; each step sends everything again with the model's answer and a tool's result
appended. What counts there is the time to the first text (TTFT). Prints one Markdown table. Two ways to run it:

    python tests/bench/agent_session.py --serve                    # starts both servers on the same model, and ends them
    python tests/bench/agent_session.py --url http://127.0.0.1:4000 --api anthropic     # one that runs already
"""
from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import zip_longest

import paths  # noqa: F401  (the import path)
import servers
import sessions
from client import Ask, BenchError, HealthWatch, Target, together
from tables import machine, markdown, median, middle_and_worst, seconds, share


@dataclass
class Measured:
    """What one server did. Times in seconds, one entry a measurement; `answers` by what was asked."""

    name: str
    prompt_tokens: list[int] = field(default_factory=list)
    cold_s: list[float] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    step_tokens: list[int] = field(default_factory=list)
    step_computed: list[int] = field(default_factory=list)
    new_s: list[float] = field(default_factory=list)
    streams_tokens_per_s: list[float] = field(default_factory=list)
    streams_last_s: list[float] = field(default_factory=list)
    health_s: list[float] = field(default_factory=list)
    memory_gb: float | None = None
    answers: dict[str, str] = field(default_factory=dict)


def measure(target: Target, options: argparse.Namespace, measured: Measured) -> Iterator[None]:
    """Run everything on one server; yields after each request, or each group of them. Raises `BenchError`."""
    for number in range(options.rounds):
        salt = str(1001 + number)
        for part in (session, new_sessions, streams):
            work = part(target, salt, options, measured)
            while True:
                with HealthWatch(target, measured.health_s):
                    if next(work, work) is work:
                        break
                yield
    measured.memory_gb = servers.peak_memory_gb(target)


def session(target: Target, salt: str, options: argparse.Namespace, measured: Measured) -> Iterator[None]:
    """One append-only session, from cold."""
    messages: tuple[tuple[str, str], ...] = (("user", sessions.FIRST),)
    before_tokens = 0
    for step in range(options.steps + 1):
        answer = target.ask(Ask(messages, sessions.system(salt), options.answer_tokens, f"session-{salt}"))
        (measured.step_s if step else measured.cold_s).append(answer.ttft_s)
        (measured.step_tokens if step else measured.prompt_tokens).append(answer.prompt_tokens - before_tokens)
        measured.step_computed += [answer.prompt_tokens - answer.cached_tokens] if step else []
        measured.answers[f"session {salt}, step {step}"] = answer.text
        before_tokens = answer.prompt_tokens
        messages += (("assistant", answer.text), ("user", sessions.result(step)))
        yield


def new_sessions(target: Target, salt: str, options: argparse.Namespace, measured: Measured) -> Iterator[None]:
    """Other sessions with the same system prompt, one after the other."""
    for number, question in enumerate(sessions.OTHERS):
        ask = Ask((("user", question),), sessions.system(salt), options.answer_tokens, f"new-{salt}-{number}")
        answer = target.ask(ask)
        measured.new_s.append(answer.ttft_s)
        measured.answers[f"new session {salt}, {number}"] = answer.text
        yield


def streams(target: Target, salt: str, options: argparse.Namespace, measured: Measured) -> Iterator[None]:
    """Several streams that begin at the same moment."""
    asks = [Ask((("user", sessions.stream(index, salt)),), "", options.stream_tokens, f"stream-{salt}-{index}") for index in range(options.streams)]
    answers = together(target, asks)
    begun_s, end_s = min(each.sent_s for each in answers), max(each.end_s for each in answers)
    measured.streams_tokens_per_s.append(sum(each.output_tokens for each in answers) / (end_s - begun_s))
    measured.streams_last_s.append(max(each.ttft_s for each in answers))
    measured.answers |= {f"stream {salt}, {index}": answer.text for index, answer in enumerate(answers)}
    yield


# ── the table ────────────────────────────────────────────────────────────────────────────────────


def table(measured: Sequence[Measured], options: argparse.Namespace) -> str:
    """All servers side by side."""
    first, tokens = measured[0], measured[0].step_tokens
    steps = f"{min(tokens)} to {max(tokens)}" if tokens else "0"
    rows = [
        [f"cold TTFT, {first.prompt_tokens[0]} tokens", *(middle_and_worst(each.cold_s) for each in measured)],
        [f"next step TTFT, +{steps} tokens, median (worst) of {len(tokens)}", *(middle_and_worst(each.step_s) for each in measured)],
        ["prompt tokens computed for a step, median (most)", *(_computed(each) for each in measured)],
        [f"new session TTFT, same system prompt, median (worst) of {len(first.new_s)}", *(middle_and_worst(each.new_s) for each in measured)],
        [f"{options.streams} streams together, tokens/s", *(f"{max(each.streams_tokens_per_s):.1f}" for each in measured)],
        [f"{options.streams} streams together, last TTFT", *(seconds(min(each.streams_last_s)) for each in measured)],
        ["`/health` meanwhile, 95 % within (slowest)", *(_health(each) for each in measured)],
    ]
    if all(each.memory_gb for each in measured):
        rows.append(["most memory resident", *(f"{each.memory_gb:.2f} GB" for each in measured)])
    if len(measured) > 1:
        rows.append([f"answers equal to those of {first.name}", *(agreement(first, each) for each in measured)])
    return markdown(["", *(each.name for each in measured)], rows)


def _computed(measured: Measured) -> str:
    return f"{median(measured.step_computed)} ({max(measured.step_computed)})" if measured.step_computed else "-"


def _health(measured: Measured) -> str:
    return f"{seconds(share(measured.health_s, 0.95))} ({seconds(max(measured.health_s))})" if measured.health_s else "-"


def agreement(first: Measured, other: Measured) -> str:
    """How many answers are the same; all of them were asked for at temperature 0."""
    return f"{len(first.answers) - len(list(differences(first, other)))} of {len(first.answers)}"


def differences(first: Measured, other: Measured) -> Iterator[str]:
    """What was asked where the answers differ; white space around them does not count."""
    return (name for name, text in first.answers.items() if text.strip() != other.answers.get(name, "").strip())


def notes(measured: Sequence[Measured]) -> Iterator[str]:
    """What a reader of the table has to know."""
    for other in measured[1:]:
        if other.prompt_tokens != measured[0].prompt_tokens:
            yield f"{other.name} counts {other.prompt_tokens[0]} tokens for the first prompt."
        for name in list(differences(measured[0], other))[:3]:
            yield f"{name}: {measured[0].name} says {measured[0].answers[name]!r}, {other.name} {other.answers.get(name)!r}."


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    servers.add_arguments(top, "ours,mlx_lm")
    top.add_argument("--steps", type=int, default=6, help="steps after the first prompt")
    top.add_argument("--answer-tokens", type=int, default=24, help="tokens of each answer in a session")
    top.add_argument("--streams", type=int, default=8, help="streams at once")
    top.add_argument("--stream-tokens", type=int, default=64, help="tokens of each stream")
    top.add_argument("--rounds", type=int, default=1, help="times to do everything: of streams the best is shown, of the rest the median")
    return top


def run(options: argparse.Namespace) -> list[Measured]:
    """Measure every server: each by itself, or in turn after each request of another."""
    measured = []
    with closing(servers.groups(options)) as groups:
        for group in groups:
            print("measuring", *(target.name for target in group), file=sys.stderr, flush=True)
            measured += (found := [Measured(target.name) for target in group])
            for _ in zip_longest(*(measure(target, options, each) for target, each in zip(group, found))):
                pass
    return measured


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print the table."""
    options = parser().parse_args(argv)
    servers.end_on_sigterm()
    try:
        measured = run(options)
    except BenchError as error:
        print(f"{error}", file=sys.stderr)
        return 1
    print(f"{machine()}; model: {options.url or options.model}\n\n{table(measured, options)}")
    for note in notes(measured):
        print(note, file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
