"""The `serve` command: puts the parts together, starts them, and ends them.

The port is bound first; then the engine's thread loads the model while `/health` tells how far it is. The main thread
only waits for the end: a signal, or an engine that failed. Under a service manager the log goes to a file, and what a
restart cannot mend ends with 0, so that nobody restarts it. What a part does is told in its own file.
"""
from __future__ import annotations

import logging
import os
import queue
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .engine import device, kv, memory
from .operate import guard, logfiles, running
from .engine.archive import states_folder
from .monitor.awake import Awake
from .config import EXIT_CONFIG, Settings, cache_dir, fingerprint
from .web.connections import BindError
from .engine.engine import Engine, Loaded
from .models.folder import ModelError
from .monitor.metrics import Metrics
from .models.loading import load_weights, resolve
from .operate.places import Places
from .web.server import Server
from .service import Service
from .models.tokens import load_tokenizer
from .monitor.watch import WatchedEngine

logger = logging.getLogger(__name__)

GRACE_S = 1.0
"""How long open connections get to take their last event; with the engine's share the end stays under 2 s."""
ENGINE_GRACE_S = 0.3
OPEN_FILES = 8192


class Ending:
    """How the process ends: the first to say so decides the exit status."""

    def __init__(self) -> None:
        self._statuses: queue.SimpleQueue[int] = queue.SimpleQueue()  # the one primitive whose `put` a signal handler may call

    def end(self, status: int) -> None:
        """Let the process end. Safe in any thread and in a signal handler."""
        self._statuses.put(status)

    def follow_signals(self) -> None:
        """Ctrl-C and a service manager's request end the process. For the main thread only."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: self.end(0))

    def engine_failed(self, error: BaseException) -> None:
        """For the engine: a wrong model is not mended by a restart, anything else may be."""
        self.end(EXIT_CONFIG if isinstance(error, ModelError) else 1)

    def wait(self, timeout_s: float | None = None) -> int | None:
        """The exit status, None when the end is not decided within `timeout_s` seconds."""
        try:
            return self._statuses.get(timeout=timeout_s)
        except queue.Empty:
            return None


def main(settings: Settings, warning: str | None = None, background: Places | None = None) -> int:
    """Serve until a signal or a failure. Does not return once the port is bound: the process ends here.

    `warning` is a line about this machine for the log. `background`: run as a service, with its log and record there.
    """
    start_logging(settings, background)
    allow_open_files()
    ending = Ending()
    ending.follow_signals()
    engine = Engine(lambda progress: load(settings, service, watched, progress), settings, ending.engine_failed, settings.wired_limit_gb)
    metrics, awake = Metrics(), Awake()
    watched = WatchedEngine(engine, metrics, {"fingerprint": fingerprint(settings)}, awake)
    service = Service(settings, watched, metrics.add)
    try:
        server = Server(service, settings)
    except BindError as error:
        logger.error("%s.", error)
        return 1
    server.metrics = metrics
    logger.info("listening on %s, loading %s", url(server), settings.model)
    if warning:
        logger.warning(warning)
    if background:
        running.write(background.running, running.Record(os.getpid(), server.server_port, watched.facts["fingerprint"]))
    loads = background is None or guard.begin(background.state, guard.boot_id())
    if loads:
        engine.start()
    else:
        logger.error(guard.REASON)
        watched.facts |= {"status": "failed", "progress": guard.REASON}
    server.start()
    status = wait(ending, watched, lambda health: summary(settings, url(server), service.context_tokens, health),
                  lambda: guard.clear(background.state) if background else None)
    end(server, engine)
    if background:
        running.remove(background.running, os.getpid())
        if loads:  # an end in good order is none of the machine's crashes
            guard.clear(background.state)
    leave(guard.exit_status(status, os.environ) if background else status)
    return status


def end(server: Server, engine: Engine) -> None:
    """Let open connections take their last event, and the engine its last chunk, where that is quick."""
    server.shutdown_gracefully(GRACE_S)
    engine.close(ENGINE_GRACE_S)
    logger.info("Stopped.")


def wait(ending: Ending, engine: WatchedEngine, lines: Callable[[Mapping[str, Any]], list[str]], ready: Callable[[], None] = lambda: None) -> int:
    """Wait for the end and return the exit status; once the model is there call `ready` and log the summary."""
    said = False
    # never without a time limit: a signal that another thread takes would not wake this one
    while (status := ending.wait(0.5 if said else 0.1)) is None:
        if not said and (now := engine.health())["status"] == "ok":
            said = True
            ready()
            for line in lines(now):
                logger.info(line)
        for line in engine.slow_prefills():
            logger.info(line)
    return status


def load(settings: Settings, service: Service, watched: WatchedEngine, progress: Callable[[str], None]) -> Loaded:
    """Get the model, its tokenizer first: from then on requests are counted and queued. Runs on the engine's thread."""

    def report(line: str) -> None:
        logger.info(line)
        progress(line)

    cache = Path(settings.cache_dir).expanduser() if settings.cache_dir else cache_dir(os.environ)
    device.keep_kernels(cache / "kernels")
    with watched.awake.held():
        folder = resolve(settings.model, report)
        tokenizer = load_tokenizer(folder)
        service.use(tokenizer)
        watched.metrics.dialect = tokenizer.traits.dialect
        report(f"loading the weights of {folder.name}")
        model = load_weights(folder)
    watched.facts |= {"weights_gb": memory.gb(kv.weights_bytes(model)), "memory_limit_gb": memory.gb(device.limit_bytes())}
    states = states_folder(cache, folder, settings) if settings.disk_cache_gb else None
    return Loaded(model, tokenizer.detokenizer, tokenizer.stop_ids, tokenizer.vocab_size, states)


# ── what is said at the start ────────────────────────────────────────────────────────────────────


def url(server: Server) -> str:
    """The address that clients use."""
    host = f"[{server.server_name}]" if ":" in server.server_name else server.server_name
    return f"http://{host}:{server.server_port}"


def summary(settings: Settings, base_url: str, context_tokens: int | None, health: Mapping[str, Any]) -> list[str]:
    """The lines that are logged once the model is there."""
    kv_bits = health.get("kv_bits", settings.kv_bits)
    cap = f"{settings.cache_limit_gb:g} GB" if settings.cache_limit_gb else "none"
    kept = {None: "as memory allows", 0.0: "off"}.get(settings.prompt_cache_gb, f"{settings.prompt_cache_gb} GB")
    token = "your MLX_API_KEY" if settings.api_key else "local"
    lines = [
        f"ready: {base_url} serves {settings.model}",
        f"context window: {context_tokens} tokens; KV cache: {f'{kv_bits} bits from token {settings.kv_quant_start}' if kv_bits else 'full precision'}",
        f"prefill chunk: {settings.prefill_size} tokens; free-buffer cap: {cap}; prompt cache: {kept}; tool retries: {settings.tool_retries}",
        f"memory: {health['rss_gb']} GB resident, MLX {health['mx_active_gb']} GB in use and {health['mx_cache_gb']} GB free buffers",
        f"for Claude Code: ANTHROPIC_BASE_URL={base_url} ANTHROPIC_AUTH_TOKEN={token} CLAUDE_CODE_MAX_CONTEXT_TOKENS={context_tokens} claude --model local",
    ]
    if settings.model == "tiny":
        lines.append("tiny shows that everything works; it is far too small to be an agent, so choose a model with --model")
    return lines


def start_logging(settings: Settings, background: Places | None) -> None:
    """To standard error, or in the background to the log file. Raises OSError."""
    if background:
        logfiles.start(str(__package__), settings.log_format, background.server_log, background.crash_log)
    else:
        logfiles.start(str(__package__), settings.log_format)


def allow_open_files() -> None:
    """Each connection is an open file, and a Mac starts with 256."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def leave(status: int) -> None:
    """End the process now: the engine's thread may be inside a long chunk, which nobody is going to wait for."""
    logging.shutdown()
    sys.stdout.flush()
    os._exit(status)
