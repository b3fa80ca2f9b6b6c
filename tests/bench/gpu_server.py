"""This project's server over a model of a real shape (`shapes.py`), for `gpu_session.py`.

The real engine, service and HTTP server; only the weights are random and the detokenizer has a text for every id.
Before the model is handed to the engine, on the engine's thread, the bare loops of `bare.py` run on it; what they took
goes to `bare.json` in the given folder. Ends with SIGTERM.
"""
from __future__ import annotations

import argparse
import json
import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import paths  # noqa: F401  (the import path)
from mlx_native_server.models.blas import preload_blas

preload_blas()

import mlx.core as mx  # noqa: E402  (after the library above)
import mlx.nn as nn  # noqa: E402
from mlx_lm.generate import generation_stream  # noqa: E402

import bare  # noqa: E402
from mlx_native_server import config
from mlx_native_server.engine import kv  # noqa: E402
from mlx_native_server.engine.archive import states_folder  # noqa: E402
from mlx_native_server.engine.engine import Engine, Loaded  # noqa: E402
from mlx_native_server.web.server import Server  # noqa: E402
from mlx_native_server.service import Service  # noqa: E402
from mlx_native_server.models.tokens import ModelTokenizer, load_tokenizer  # noqa: E402
from shapes import SHAPES, build, write_tokenizer  # noqa: E402

CHUNKS = (512, 1024)
STEP_REPEATS = 3
GRACE_S = 1.0


class Words:
    """A detokenizer with a text for every id."""

    def __init__(self) -> None:
        self.last_segment = ""

    def add_token(self, token: int) -> None:
        """Take the next generated id."""
        self.last_segment = f" {token}"

    def finalize(self) -> None:
        """Nothing is held back."""
        self.last_segment = ""


@dataclass
class Ceilings:
    """What the bare loops took. Lists by `CHUNKS`, decode rates by number of rows."""

    cold_s: list[float]
    cold_peak_gb: list[float]
    step_s: list[float]
    decode_tokens_per_s: dict[int, float]


def measure_bare(model: nn.Module, options: argparse.Namespace, vocab_size: int) -> Ceilings:
    """Run the bare loops. Kernels are compiled and tuned at their first use, so each is run once before."""
    rng = random.Random(0)
    tokens = [rng.randrange(vocab_size) for _ in range(options.history)]
    step = [rng.randrange(vocab_size) for _ in range(options.step)]
    for chunk_tokens in CHUNKS:
        bare.first_token(model, kv.new(model), tokens[:3 * chunk_tokens + 1], chunk_tokens)
    cold_s, peaks_gb, state = [], [], kv.new(model)
    for chunk_tokens in CHUNKS:
        state = kv.new(model)
        taken_s, peak_gb = bare.first_token(model, state, tokens, chunk_tokens)
        cold_s.append(taken_s)
        peaks_gb.append(peak_gb)
    times_s = [bare.first_token(model, kv.handles(state), [*tokens[-1:], *step], max(CHUNKS))[0] for _ in range(STEP_REPEATS + 1)]
    rates = {rows: bare.decode_rate(model, state, rows, options.tokens) for rows in sorted({1, options.streams})}
    return Ceilings(cold_s, peaks_gb, times_s[1:], rates)


def load(options: argparse.Namespace, chosen: config.Settings, tokenizer: ModelTokenizer, progress: Callable[[str], None]) -> Loaded:
    """Build the model and measure the ceilings. Runs on the engine's thread."""
    begun_s = time.perf_counter()
    progress("building the model")
    model = build(SHAPES[options.shape])
    print(f"built in {time.perf_counter() - begun_s:.1f} s, {mx.get_active_memory() / bare.GB:.1f} GB", file=sys.stderr, flush=True)
    if not options.no_bare:
        progress("running the bare loops")
        with mx.stream(generation_stream):
            ceilings = measure_bare(model, options, tokenizer.vocab_size)
        (options.folder / "bare.json").write_text(json.dumps(asdict(ceilings)))
    mx.clear_cache()
    mx.reset_peak_memory()
    states = states_folder(Path(chosen.cache_dir), options.folder, chosen) if chosen.disk_cache_gb else None
    return Loaded(model, Words, frozenset(), tokenizer.vocab_size, states)


def settings(options: argparse.Namespace) -> config.Settings:
    """From the environment, but for what the benchmark decides."""
    return config.load(os.environ, {
        "host": "127.0.0.1", "port": str(options.port), "model": options.shape, "context_tokens": str(4 * options.history),
        "cache_dir": str(options.folder / "cache")})


def main() -> None:
    """Serve until SIGTERM."""
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("shape", choices=SHAPES)
    top.add_argument("folder", type=Path)
    for name in ("port", "history", "step", "streams", "tokens"):
        top.add_argument(f"--{name}", type=int, required=True)
    top.add_argument("--no-bare", action="store_true")
    options = top.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    chosen = settings(options)
    tokenizer = load_tokenizer(write_tokenizer(SHAPES[options.shape], options.folder))
    engine = Engine(lambda progress: load(options, chosen, tokenizer, progress), chosen, lambda error: os._exit(1))
    service = Service(chosen, engine)
    service.use(tokenizer)
    server = Server(service, chosen)
    engine.start()
    server.start()
    while not ended.wait(0.5):
        pass
    server.shutdown_gracefully(GRACE_S)
    engine.close(GRACE_S)
    sys.stderr.flush()
    os._exit(0)  # the engine's thread may be inside a chunk


if __name__ == "__main__":
    main()
