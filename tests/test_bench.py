"""The benchmarks run: each in a form of a few seconds, on fakes or tiny models. No time is judged here."""
from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

BENCH = Path(__file__).resolve().parent / "bench"
sys.path.append(str(BENCH))

import agent_session  # noqa: E402  (after the path above)
import fairness  # noqa: E402
import gpu_session  # noqa: E402
import parsers  # noqa: E402
import servers  # noqa: E402
from client import Answer, Ask, Background, BenchError, Target, together  # noqa: E402
from tables import markdown, median, middle_and_worst, seconds, share  # noqa: E402

from engine_rig import Rig, rig  # noqa: E402, F401
from fakes import FakeEngine, serve, start_server  # noqa: E402, F401
from mlx_native_server.config import Settings  # noqa: E402
from mlx_native_server.protocol import ApiError, Failed, Started  # noqa: E402
from mlx_native_server.service import Service  # noqa: E402
from mlx_native_server.models.tokens import load_tokenizer  # noqa: E402

ASK = Ask((("user", "Hello"),), "You are terse.", 8)


class OpenAI(BaseHTTPRequestHandler):
    """Answers as mlx_lm.server does: comments while it prefills, a chunk for each token, usage at the end."""

    def do_GET(self) -> None:
        self._head()
        self.wfile.write(b'{"status": "ok"}')

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        words = sum(len(message["content"].split()) for message in body["messages"])
        self._head()
        self.wfile.write(b": keepalive 1/2\n\n")
        for text in ("", "Hello", " there"):
            self._chunk({"choices": [{"delta": {"content": text}}]})
        usage = {"prompt_tokens": words, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": words - 1}}
        self._chunk({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def _head(self) -> None:
        self.send_response(200)
        self.end_headers()

    def _chunk(self, value: object) -> None:
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def openai() -> Iterator[Target]:
    with ThreadingHTTPServer(("127.0.0.1", 0), OpenAI) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield Target("other", "127.0.0.1", server.server_port, "openai")
        server.shutdown()


@pytest.fixture
def ours(serve: Callable[..., int]) -> Target:
    return Target("ours", "127.0.0.1", serve(FakeEngine([Started(20, 3), "Hello", " there"])), "anthropic")


# ── the client ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("which, counts", [("ours", (23, 20, 2)), ("openai", (4, 3, 2))])
def test_both_protocols_give_the_same_answer(which: str, counts: tuple[int, int, int], request: pytest.FixtureRequest) -> None:
    answer = request.getfixturevalue(which).ask(ASK)
    assert answer.text == "Hello there" and len(answer.pieces_s) == 2
    assert (answer.prompt_tokens, answer.cached_tokens, answer.output_tokens) == counts
    assert 0 < answer.begun_s <= answer.pieces_s[0] <= answer.pieces_s[1] <= answer.end_s
    assert 0 < answer.ttft_s <= answer.total_s


REFUSALS = [
    (FakeEngine(refusal=ApiError(529, "overloaded_error", "too many requests")), "529: .*too many requests"),
    (FakeEngine([Failed(ApiError(500, "api_error", "it broke"))]), "it broke"),
]


@pytest.mark.parametrize("engine, words", REFUSALS)
def test_a_server_that_fails_ends_the_benchmark_with_its_words(serve: Callable[..., int], engine: FakeEngine, words: str) -> None:
    target = Target("ours", "127.0.0.1", serve(engine), "anthropic")
    with pytest.raises(BenchError, match=words):
        target.ask(ASK)
    with pytest.raises(BenchError, match=words):
        together(target, [ASK, ASK])


def test_nobody_at_the_address_is_an_error_with_the_name() -> None:
    with pytest.raises(BenchError, match="gone: ConnectionRefused"):
        Target("gone", "127.0.0.1", servers.free_port(), "openai").ask(ASK)


def test_a_request_in_the_background_is_waited_for_and_cut_off(openai: Target) -> None:
    running = Background(openai, ASK)
    running.wait(lambda answer: len(answer.pieces_s) > 0)
    assert running.end(now=True).text.startswith("Hello")


# ── servers as processes ─────────────────────────────────────────────────────────────────────────

SERVE_FAKES = "import sys, threading, fakes; fakes.start_server(port=int(sys.argv[1])); threading.Event().wait()"


def test_a_started_server_is_ready_and_gone_afterwards() -> None:
    kind = servers.Kind("fake", "anthropic", lambda folder, port: [sys.executable, "-c", SERVE_FAKES, port])
    with servers.running(kind, "") as target:
        assert target.ask(ASK).text == "Hello there" and target.pid
    with pytest.raises(OSError):
        target.get("/health")


def test_a_server_that_does_not_start_is_an_error_with_its_last_words() -> None:
    kind = servers.Kind("fake", "anthropic", lambda folder, port: [sys.executable, "-c", f"raise SystemExit('no model in {folder}')"])
    with pytest.raises(BenchError, match="fake does not start:\nno model in nowhere"), servers.running(kind, "nowhere"):
        pass


# ── the scripts ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("which", ["ours", "openai"])
def test_agent_session_prints_its_table(which: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> None:
    target = request.getfixturevalue(which)
    url = f"http://127.0.0.1:{target.port}"
    assert agent_session.main(["--url", url, "--api", target.api, "--steps", "2", "--streams", "3", "--rounds", "2"]) == 0
    rows = {line.split(" | ")[0].strip("| "): line.count(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("|")}
    assert set(rows.values()) <= {1, 2} and sum("TTFT" in name for name in rows) == 4 and "3 streams together, tokens/s" in rows


def test_agent_session_compares_the_answers_of_two_servers(ours: Target, openai: Target) -> None:
    options = agent_session.parser().parse_args(["--steps", "1", "--streams", "2"])
    measured = [agent_session.Measured(target.name) for target in (ours, openai)]
    for target, each in zip((ours, openai), measured):
        assert len(list(agent_session.measure(target, options, each))) == 2 + 3 + 1
    assert agent_session.agreement(*measured) == "7 of 7"
    measured[1].answers["stream 1001, 1"] = "Bye"
    assert agent_session.agreement(*measured) == "6 of 7" and "6 of 7" in agent_session.table(measured, options)
    assert any("'Bye'" in note for note in agent_session.notes(measured))


def test_a_session_only_appends_and_another_salt_shares_nothing(ours: Target) -> None:
    first, other = agent_session.sessions.system("1001"), agent_session.sessions.system("1002")
    assert first != other and first[:12] != other[:12] and first[12:] == other[12:]
    assert agent_session.sessions.result(0) != agent_session.sessions.result(6)


@pytest.fixture
def tiny_engine(rig: Callable[..., Rig], tiny_model: Callable[..., Path]) -> Iterator[Target]:
    """The real engine over a tiny random model, behind the real server."""
    tokenizer = load_tokenizer(tiny_model("llama"))
    settings = Settings(port=0)
    service = Service(settings, rig("llama", detokenizer=tokenizer.detokenizer).engine)
    service.use(tokenizer)
    server = start_server(service)
    yield Target("ours", "127.0.0.1", server.server_port, "anthropic")
    assert server.shutdown_gracefully(10)


def test_fairness_measures_a_real_engine(tiny_engine: Target, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--long-tokens", "900", "--prefix-tokens", "500", "--requests", "5", "--stream-tokens", "300", "--answer-tokens", "4"]
    options = fairness.parser().parse_args(sizes)
    measured = fairness.measure(tiny_engine, options)
    assert 850 < measured.long_tokens < 1000 and len(measured.alone_s) == 3 and measured.behind_s
    assert measured.shared_counter == sum(measured.shared_computed)
    assert max(measured.shared_computed) > 450, "nobody prefilled the prefix"
    assert sum(measured.shared_computed) < 1.5 * 500, "the prefix was prefilled more than once"
    assert fairness.main(["--url", f"http://127.0.0.1:{tiny_engine.port}", *sizes]) == 0
    assert "5 requests at once with a common prefix" in capsys.readouterr().out


def test_the_gaps_during_a_prefill_include_the_ones_at_its_ends() -> None:
    times_s = [1.0, 2.0, 5.0, 6.0, 9.0, 9.5]
    assert fairness.gaps(fairness.between(times_s, 2.5, 8.0)) == [3.0, 1.0, 3.0]
    assert fairness.gaps(fairness.between(times_s, 2.5, 4.0)) == [3.0], "one gap that spans it all"
    assert fairness.gaps(fairness.between([1.0], 2.5, 4.0)) == [], "the stream had ended"


def test_parsers_understands_every_dialect(capsys: pytest.CaptureFixture[str]) -> None:
    assert parsers.main(["--sizes", "300,3000"]) == 0
    out = capsys.readouterr().out
    assert "not understood" not in out
    assert all(f"\n| {name} | " in out for name in parsers.WRITERS) and len(parsers.WRITERS) > 5


def test_a_slope_of_one_is_linear_and_of_two_quadratic() -> None:
    assert parsers.slope({10: 1.0, 100: 10.0, 1000: 100.0}) == pytest.approx(1)
    assert parsers.slope({10: 1.0, 100: 100.0, 1000: 10000.0}) == pytest.approx(2)


def test_the_longest_silence_counts_what_was_fed_between_two_events_of_the_input() -> None:
    live, other = [{"type": "content_block_delta", "delta": {"type": "input_json_delta"}}], [{"type": "ping"}]
    assert parsers.silent_chars([other, live, [], other, live, live, []]) == 3 * parsers.PIECE_CHARS


def test_gpu_session_runs_on_a_small_shape(tmp_path: Path) -> None:
    sizes = ["--shape", "gemma4-small", "--history", "200", "--step", "40", "--streams", "2", "--tokens", "6", "--idle", "0"]
    done = subprocess.run([sys.executable, str(BENCH / "gpu_session.py"), *sizes], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    names = [line.split(" | ")[0] for line in done.stdout.splitlines() if line.startswith("| ")]
    rows = ("cold TTFT, 20", "next step TTFT, +40", "decoding alone", "2 steps at once from one", "2 steps at once of", "next step after a restart")
    for start in rows:
        assert any(name.startswith(f"| {start}") for name in names), (start, done.stdout)


def test_decoding_is_counted_while_all_answers_go_on() -> None:
    first = Answer(0.0, pieces_s=[1.0, 2.0, 3.0, 4.0])
    second = Answer(0.0, pieces_s=[2.0, 3.0, 4.0, 5.0, 6.0])
    assert gpu_session.decode_rate([first, second]) == (2 + 2) / 2
    assert gpu_session.decode_rate([first, Answer(0.0, pieces_s=[5.0, 6.0])]) == 0


# ── what is printed ──────────────────────────────────────────────────────────────────────────────


def test_numbers_are_those_that_were_measured() -> None:
    values = [0.4, 0.1, 0.3, 0.2]
    assert (median(values), share(values, 0.95), share(values, 0.5)) == (0.3, 0.4, 0.2)
    assert middle_and_worst(values) == "0.30 s (0.40 s)" and middle_and_worst([0.0123]) == "12 ms" and middle_and_worst([]) == "-"
    assert seconds(float("inf")) == "never"
    assert markdown(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"
