"""Counters and histograms, and their text for Prometheus (exposition format 0.0.4).

Values are counted here and shown here; what they are counted from is told by `watch.py` and `server.py`. Figures that
somebody else keeps (queue, memory, prompt cache) are read from the server's health when the text is made.
"""
from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from ..protocol import Event

PREFIX = "mlx_server_"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
TTFT_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320)
INTER_TOKEN_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5)

Labels = tuple[tuple[str, str], ...]

COUNTERS = {
    "http_responses_total": "Responses by route and status.",
    "requests_total": "Requests that the engine has ended, by how.",
    "prompt_tokens_prefilled_total": "Prompt tokens that were computed.",
    "prompt_tokens_reused_total": "Prompt tokens that came from the prompt cache.",
    "tokens_generated_total": "Tokens generated.",
    "tool_calls_total": "Tool calls in answers, by the model's dialect.",
    "salvaged_calls_total": "Tool calls among them that the model had garbled, and that were put right.",
    "second_attempts_total": "New attempts after an answer's tool call or JSON that could not be read.",
    "thoughts_ended_total": "Thoughts that were ended after their budget.",
}
LABELLED = ("http_responses_total", "requests_total", "tool_calls_total")
"""These are shown once there is something to show."""
HISTOGRAMS = {
    "time_to_first_token_seconds": ("From a request's arrival in the queue to its first token.", TTFT_S),
    "inter_token_seconds": ("Between two tokens of one answer.", INTER_TOKEN_S),
}
GAUGES = {
    # name: (key in the health, scale, help)
    "requests_running": ("requests_running", 1, "Requests that are prefilled or decoded now."),
    "requests_waiting": ("requests_waiting", 1, "Requests in the queue."),
    "memory_active_bytes": ("mx_active_gb", 1024**3, "Memory that MLX uses."),
    "memory_cache_bytes": ("mx_cache_gb", 1024**3, "Free buffers that MLX keeps."),
    "memory_peak_bytes": ("mx_peak_gb", 1024**3, "The most memory that MLX has used."),
    "memory_limit_bytes": ("memory_limit_gb", 1024**3, "The memory that MLX may use."),
    "weights_bytes": ("weights_gb", 1024**3, "The model's weights."),
    "process_resident_bytes": ("rss_gb", 1024**3, "The process's resident memory."),
    "context_tokens": ("context_tokens", 1, "The context window."),
    "uptime_seconds": ("uptime_s", 1, "Seconds since the start."),
}


class Histogram:
    """Counts by bucket, with their sum."""

    def __init__(self, bounds: Sequence[float]):
        self.bounds, self.sum = bounds, 0.0
        self.counts = [0] * (len(bounds) + 1)

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Metrics:
    """Everything that is counted. Any thread may call anything."""

    def __init__(self) -> None:
        self.dialect = ""  # of the model that is served, once it is known
        self._lock = threading.Lock()
        self._counters: dict[str, Counter[Labels]] = {name: Counter() for name in COUNTERS}
        self._histograms = {name: Histogram(bounds) for name, (_, bounds) in HISTOGRAMS.items()}

    def add(self, name: str, amount: int = 1, **labels: str) -> None:
        """Count up."""
        with self._lock:
            self._counters[name][tuple(sorted(labels.items()))] += amount

    def observe(self, name: str, value: float) -> None:
        """Count one value in a histogram."""
        with self._lock:
            self._histograms[name].observe(value)

    def text(self, health: Mapping[str, Any]) -> str:
        """All of it for Prometheus; `health` is what `/health` shows."""
        with self._lock:
            own = [*self._counter_lines(), *self._histogram_lines()]
        return "\n".join([*own, *_gauge_lines(health), *_cache_lines(health.get("prompt_cache") or {})]) + "\n"

    def _counter_lines(self) -> Iterator[str]:
        for name, help in COUNTERS.items():
            yield from _head(name, "counter", help)
            for labels, value in sorted(self._counters[name].items()) or [((), 0)] * (name not in LABELLED):
                yield _sample(name, labels, value)

    def _histogram_lines(self) -> Iterator[str]:
        for name, histogram in self._histograms.items():
            yield from _head(name, "histogram", HISTOGRAMS[name][0])
            for bound, total in zip([*histogram.bounds, float("inf")], accumulate(histogram.counts)):
                yield _sample(f"{name}_bucket", (("le", "+Inf" if bound == float("inf") else f"{bound:g}"),), total)
            yield _sample(f"{name}_sum", (), round(histogram.sum, 6))
            yield _sample(f"{name}_count", (), sum(histogram.counts))


class CountedEvents:
    """An answer's events, with its tool calls counted as they pass. Closing it closes them, whether they have begun or not."""

    def __init__(self, events: Generator[Event | None, None, None], metrics: Metrics):
        self._events, self._metrics = events, metrics

    def __iter__(self) -> Iterator[Event | None]:
        return self

    def __next__(self) -> Event | None:
        event = next(self._events)
        if event is not None and event.get("content_block", {}).get("type") == "tool_use":
            self._metrics.add("tool_calls_total", dialect=self._metrics.dialect)
        return event

    def close(self) -> None:
        """Cancel the answer."""
        self._events.close()


def _gauge_lines(health: Mapping[str, Any]) -> Iterator[str]:
    yield from _head("up", "gauge", "1 when the model is loaded and works.")
    yield _sample("up", (), int(health.get("status") == "ok"))
    for name, (key, scale, help) in GAUGES.items():
        if isinstance(value := health.get(key), (int, float)):
            yield from _head(name, "gauge", help)
            yield _sample(name, (), value * scale)


def _cache_lines(cache: Mapping[str, Any]) -> Iterator[str]:
    for key, name in (("bytes", "prompt_cache_bytes"), ("budget_bytes", "prompt_cache_budget_bytes"), ("entries", "prompt_cache_entries")):
        if key in cache:
            yield from _head(name, "gauge", "The prompt cache.")
            yield _sample(name, (), cache[key])
    if "evictions" in cache:
        yield from _head("prompt_cache_evictions_total", "counter", "States that were dropped for room.")
        yield _sample("prompt_cache_evictions_total", (), cache["evictions"])
    if reasons := cache.get("reasons"):
        yield from _head("prompt_cache_lookups_total", "counter", "Prompts by what the cache had for them.")
        for reason, count in sorted(reasons.items()):
            yield _sample("prompt_cache_lookups_total", (("reason", str(reason)),), count)


def _head(name: str, kind: str, help: str) -> tuple[str, str]:
    return f"# HELP {PREFIX}{name} {help}", f"# TYPE {PREFIX}{name} {kind}"


def _sample(name: str, labels: Labels, value: float) -> str:
    shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
    return f"{PREFIX}{name}{{{shown}}} {value:.10g}" if shown else f"{PREFIX}{name} {value:.10g}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
