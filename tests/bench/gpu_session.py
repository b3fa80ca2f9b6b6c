"""An agent's steps on a model of a real size, through HTTP and against the bare loop on the same machine in the same run.

Builds a model with the shape of a real one and random weights, measures bare loops on it (`gpu_server.py`), then serves
it and measures from another process: cold TTFT, the next step, decoding, memory; after a restart the next step from
disk, and the steps of many sessions at once. Prints one Markdown table, also when it is cut off. No model is needed:

    python tests/bench/gpu_session.py --shape gemma4-31b      # on a machine with a GPU, less than 9 minutes
    python tests/bench/gpu_session.py --shape qwen3-small --history 600 --step 60 --streams 3 --tokens 8    # anywhere
"""
from __future__ import annotations

import argparse
import http.client
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paths import BENCH
import servers
from client import APIS, Answer, Ask, BenchError, HealthWatch, Target, together
from tables import machine, markdown, median, middle_and_worst, seconds, share

STEPS = 3
ANSWER_TOKENS = 4
WRITTEN_S, LOOK_S = 60.0, 3.0
"""What writing a session's state to disk may take, and how long its figures stay the same once it is done."""
WORDS = "the quick brown fox jumps over lazy dog you are helpful assistant that can call tools function name file path type role".split()

Messages = tuple[tuple[str, str], ...]


@dataclass
class Bench:
    """One run: the running server, the sizes asked for, and the rows so far."""

    target: Target
    options: argparse.Namespace
    bare: dict[str, Any]
    rows: list[list[str]]
    begun_s: float
    health_s: list[float] = field(default_factory=list)
    cold_s: float = 0.0

    def row(self, name: str, ours: str, bare: str = "", ratio: float | None = None) -> None:
        """Add a row, and show it at once."""
        self.rows.append([name, ours, bare, "" if ratio is None else f"{ratio:.2f}"])
        print(" | ".join(self.rows[-1]), file=sys.stderr, flush=True)

    def has_time(self, needed_s: float, name: str) -> bool:
        """Whether so many seconds are left; otherwise the row says that it was left out."""
        enough = time.monotonic() - self.begun_s + needed_s < self.options.limit
        if not enough:
            self.row(name, "left out: no time")
        return enough

    def peak_gb(self) -> float:
        """The most memory that MLX held since the model was there."""
        return self.target.get("/health")[1]["mx_peak_gb"]


# ── prompts of an exact length ───────────────────────────────────────────────────────────────────


def count(target: Target, messages: Messages) -> int:
    """The tokens of a prompt, as the server counts them."""
    body = APIS["anthropic"].body(Ask(messages))
    connection = http.client.HTTPConnection(target.host, target.port, timeout=60)
    try:
        connection.request("POST", "/v1/messages/count_tokens", json.dumps({"model": "local", "messages": body["messages"]}))
        return json.loads(connection.getresponse().read())["input_tokens"]
    finally:
        connection.close()


def grown(target: Target, messages: Messages, tokens: int, salt: str) -> Messages:
    """The conversation with one more user message, that of `salt`, so that its prompt has `tokens` tokens (or hardly more)."""
    rng = random.Random(salt)
    text, have = salt, count(target, (*messages, ("user", salt)))
    while have < tokens:
        text += "".join(f" {rng.choice(WORDS)}" for _ in range(max(1, (tokens - have) // 2)))
        have = count(target, (*messages, ("user", text)))
    return (*messages, ("user", text))


def next_step(bench: Bench, messages: Messages, salt: str) -> Messages:
    """The conversation with an answer and a tool's result, longer by one step."""
    answered: Messages = (*messages, ("assistant", "I will look at the file first, then answer the question."))
    return grown(bench.target, answered, count(bench.target, messages) + bench.options.step, salt)


def ask(messages: Messages, max_tokens: int, session: str) -> Ask:
    return Ask(messages, "", max_tokens, session)


# ── measurements ─────────────────────────────────────────────────────────────────────────────────


def warm_up(bench: Bench) -> None:
    """Let a new process compile its kernels, and learn how quick they are."""
    bench.target.ask(ask(grown(bench.target, (), 2 * bench.options.step, f"Warm-up {len(bench.rows)}"), ANSWER_TOKENS, "warm-up"))


def cold_and_steps(bench: Bench) -> Messages:
    """One session from cold, and its next steps; the last one decodes for longer. Returns the conversation."""
    target, options = bench.target, bench.options
    warm_up(bench)
    messages = grown(target, (), options.history, "Main session")
    answer = target.ask(ask(messages, ANSWER_TOKENS, "main"))
    bench.cold_s, (slow_s, quick_s), peaks_gb = answer.ttft_s, bench.bare["cold_s"], bench.bare["cold_peak_gb"]
    bench.row(f"cold TTFT, {answer.prompt_tokens} tokens; bare in chunks of 1024 (512)", seconds(answer.ttft_s),
              f"{seconds(quick_s)} ({seconds(slow_s)})", answer.ttft_s / quick_s)
    bench.row("most memory meanwhile, GB; bare in chunks of 512 (1024)", f"{bench.peak_gb():.1f}", f"{peaks_gb[0]:.1f} ({peaks_gb[1]:.1f})",
              bench.peak_gb() / peaks_gb[0])
    steps: list[Answer] = []
    for number in range(STEPS):
        messages = next_step(bench, messages, f"Step {number}")
        steps.append(target.ask(ask(messages, options.tokens if number == STEPS - 1 else ANSWER_TOKENS, "main")))
    times_s, bare_s = [each.ttft_s for each in steps], median(bench.bare["step_s"])
    computed = max(each.prompt_tokens - each.cached_tokens for each in steps)
    bench.row(f"next step TTFT, +{options.step} tokens, median (worst) of {STEPS}; at most {computed} computed",
              middle_and_worst(times_s), seconds(bare_s), median(times_s) / bare_s)
    report_decoding(bench, steps[-1:], "decoding alone, tokens/s")
    return messages


def agents_of_one_history(bench: Bench, history: Messages) -> None:
    """Many steps at once that go on from the same history."""
    asks = [ask(next_step(bench, history, f"Agent {number}"), ANSWER_TOKENS, f"agent-{number}") for number in range(bench.options.streams)]
    report_together(bench, asks, "from one history")


def sessions_of_their_own(bench: Bench) -> None:
    """Many steps at once, each of a session with its own history; then they decode together."""
    target, options = bench.target, bench.options
    name = f"{options.streams} steps at once of sessions of their own"
    if not bench.has_time((bench.cold_s + 3) * options.streams + 30, name):
        return
    asks = []
    for number in range(options.streams):
        messages = grown(target, (), options.history, f"Session {number}")
        target.ask(ask(messages, ANSWER_TOKENS, f"own-{number}"))
        asks.append(ask(next_step(bench, messages, f"Own step {number}"), options.tokens, f"own-{number}"))
    answers = report_together(bench, asks, "of sessions of their own")
    report_decoding(bench, answers, f"decoding in {options.streams} streams, tokens/s")


def report_together(bench: Bench, asks: Sequence[Ask], name: str) -> list[Answer]:
    answers = together(bench.target, asks)
    last_s, bare_s = max(each.ttft_s for each in answers), len(asks) * median(bench.bare["step_s"])
    computed = sum(each.prompt_tokens - each.cached_tokens for each in answers)
    bench.row(f"{len(asks)} steps at once {name}, last TTFT; {computed} tokens computed", seconds(last_s),
              f"{seconds(bare_s)} ({len(asks)} × one)", last_s / bare_s)
    return answers


def report_decoding(bench: Bench, answers: Sequence[Answer], name: str) -> None:
    rate, ceiling = decode_rate(answers), bench.bare["decode_tokens_per_s"][str(len(answers))]
    bench.row(name, f"{rate:.1f}" if rate else "never all at once", f"{ceiling:.1f}", rate / ceiling if rate else None)


def decode_rate(answers: Sequence[Answer]) -> float:
    """Tokens per second while all of these answers were being decoded, 0 where that was never so."""
    from_s, to_s = max(each.pieces_s[0] for each in answers), min(each.pieces_s[-1] for each in answers)
    pieces = sum(sum(from_s < at <= to_s for at in each.pieces_s) for each in answers)
    return pieces / (to_s - from_s) if to_s > from_s else 0.0


def wait_until_written(bench: Bench) -> None:
    """Until the idle session's state is on disk: the cache's figures stay as they are."""
    time.sleep(bench.options.idle)
    figures, deadline_s = None, time.monotonic() + WRITTEN_S
    while figures != (now := bench.target.get("/health")[1]["prompt_cache"]) and time.monotonic() < deadline_s:
        figures = now
        time.sleep(LOOK_S)


def after_restart(bench: Bench, messages: Messages) -> None:
    """The next step of a session that only the disk still knows."""
    answer = bench.target.ask(ask(next_step(bench, messages, "After the restart"), ANSWER_TOKENS, "main"))
    bench.row(f"next step after a restart, from disk; {answer.prompt_tokens - answer.cached_tokens} tokens computed (ratio: to cold)",
              seconds(answer.ttft_s), "", answer.ttft_s / bench.cold_s)


# ── the run ──────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def served(options: argparse.Namespace, folder: Path, *flags: str) -> Iterator[Target]:
    """The server over the shape, ready."""
    sizes = [f"--{name}={getattr(options, name)}" for name in ("history", "step", "streams", "tokens")]
    kind = servers.Kind("through HTTP", "anthropic", lambda where, port: [
        sys.executable, str(BENCH / "gpu_server.py"), options.shape, where, "--port", port, *sizes, *flags])
    with servers.running(kind, str(folder)) as target:
        yield target


def run(options: argparse.Namespace, folder: Path, rows: list[list[str]]) -> None:
    """All measurements that the time allows, into `rows`. Raises `BenchError`."""
    begun_s = time.monotonic()
    with served(options, folder) as target:
        bench = Bench(target, options, json.loads((folder / "bare.json").read_text()), rows, begun_s)
        with HealthWatch(target, bench.health_s):
            messages = cold_and_steps(bench)
        if options.idle:
            wait_until_written(bench)
    with served(options, folder, "--no-bare") as bench.target:
        with HealthWatch(bench.target, bench.health_s):
            warm_up(bench)
            after_restart(bench, messages)
            agents_of_one_history(bench, messages)
            sessions_of_their_own(bench)
        bench.row("`/health` meanwhile, 95 % within (slowest)", f"{seconds(share(bench.health_s, 0.95))} ({seconds(max(bench.health_s))})")
        bench.row("most memory after the restart, GB", f"{bench.peak_gb():.1f}")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print the table."""
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--shape", default="gemma4-31b", help="a shape of shapes.py: gemma4-31b, qwen3-8b, gemma4-small, qwen3-small")
    top.add_argument("--history", type=int, default=21_400, help="tokens of the first prompt")
    top.add_argument("--step", type=int, default=600, help="tokens that each step adds")
    top.add_argument("--streams", type=int, default=8, help="sessions at once")
    top.add_argument("--tokens", type=int, default=128, help="tokens that are decoded where decoding is measured")
    top.add_argument("--idle", type=float, default=22.0, help="seconds after which an idle session is being written to disk")
    top.add_argument("--limit", type=float, default=500.0, help="seconds after which nothing more is begun")
    options = top.parse_args(argv)
    servers.end_on_sigterm()
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as work:
        try:
            run(options, Path(work), rows)
        except BenchError as error:
            print(f"{error}", file=sys.stderr)
            return 1
        finally:
            if rows:
                print(f"{machine()}; shape: {options.shape}, random weights\n")
                print(markdown(["", "through HTTP", "bare loop", "ratio"], rows), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
