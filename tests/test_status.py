"""The status page and the metrics: what is answered to whom, and the page in a real browser where there is one."""
from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from fakes import FakeEngine, Serve, body, port, serve  # noqa: F401  (fixtures)
from raw_client import call

from mlx_native_server.web import server
from mlx_native_server.web.feed import Feed

PAGE = server.PAGE.read_text(encoding="utf-8")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.mark.parametrize("accept, kind", [
    ("text/html,application/xhtml+xml,*/*;q=0.8", "text/html; charset=utf-8"), ("*/*", "application/json"), ("application/json", "application/json"), (None, "application/json"),
])  # fmt: skip
def test_a_browser_gets_the_page_and_everybody_else_json(port: int, accept: str | None, kind: str) -> None:
    reply = call(port, "GET", "/", headers={"Accept": accept} if accept else {})
    assert (reply.status, reply.headers["content-type"]) == (200, kind)
    if kind.startswith("text/html"):
        assert reply.body.decode() == PAGE and "default-src 'none'" in reply.headers["content-security-policy"]


def test_the_page_needs_nothing_from_elsewhere_and_writes_no_markup_from_data() -> None:
    assert not re.search(r"https?://|@import|url\(|<link|src=", PAGE)
    assert "innerHTML" not in PAGE and "prefers-color-scheme: dark" in PAGE and 'name="viewport"' in PAGE


def test_metrics_count_the_answers_by_route_and_need_the_key(serve: Serve) -> None:
    open_port = serve(FakeEngine(["hi"]))
    call(open_port, "POST", "/v1/messages", body())
    for path in ("/nope", "/models/qwen%2Fx", "/health"):
        call(open_port, "GET", path)
    reply = call(open_port, "GET", "/metrics")
    assert reply.status == 200 and reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    for line in ('route="/v1/messages",status="200"} 1', 'route="other",status="404"} 1', 'route="/v1/models/{id}",status="200"} 1', 'route="/health",status="200"} 1'):
        assert f"mlx_server_http_responses_total{{{line}\n" in reply.body.decode()
    locked = serve(api_key="k")
    assert call(locked, "GET", "/metrics").status == 401
    assert call(locked, "GET", "/metrics", headers={"Authorization": "Bearer k"}).status == 200


# ── in a browser ─────────────────────────────────────────────────────────────────────────────────

HEALTH = {
    "status": "ok", "model": "mlx-community/Qwen3.6-35B-A3B-4bit", "context_tokens": 262144, "uptime_s": 5025, "progress": "", "kv_bits": 0,
    "requests_running": 2, "requests_waiting": 1, "rss_gb": 2.1, "mx_active_gb": 27.4, "mx_cache_gb": 2.2, "mx_peak_gb": 31.0,
    "weights_gb": 19.1, "memory_limit_gb": 36.0, "requests": {"finished": 214, "failed": 1, "cancelled": 6, "refused": 0,
    "reused_tokens": 4_812_000, "prefilled_tokens": 322_400, "generated_tokens": 61_250},
    "prompt_cache": {"entries": 37, "bytes": 5_400_000_000, "budget_bytes": 6_000_000_000, "evictions": 3, "reasons": {"cold": 4}},
    "open": [
        {"id": "req_5f0c", "agent_id": "", "state": "decode", "seconds": 12.4, "prompt_tokens": 41_200, "reused_tokens": 40_100, "prompt_tokens_done": 41_200, "generated_tokens": 318, "tokens_per_s": 52.3},
        {"id": "req_9a1b", "agent_id": "explore-2", "state": "prefill", "seconds": 4.0, "prompt_tokens": 18_700, "reused_tokens": 6_200, "prompt_tokens_done": 11_300, "generated_tokens": 0, "tokens_per_s": 1275.0},
        {"id": "req_c3d2", "agent_id": "explore-3", "state": "waiting", "seconds": 1.1, "prompt_tokens": 9_400, "reused_tokens": 0, "prompt_tokens_done": 0, "generated_tokens": 0, "tokens_per_s": 0},
    ],
    "last_errors": [{"time": "14:02:11", "id": "req_77aa", "message": "<b>generation failed</b>: ValueError"}],
}  # fmt: skip


class ShownEngine(FakeEngine):
    """An engine in the middle of its work."""

    def health(self):
        return {key: value for key, value in HEALTH.items() if key not in ("model", "context_tokens", "uptime_s")}


@pytest.fixture
def shown(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> int:
    """The port of a server whose streams end at once: a browser's own clock stands still while an answer is under way."""
    monkeypatch.setattr(server, "Feed", lambda: Feed(longest_s=0))
    return serve(ShownEngine(), model=HEALTH["model"], context_tokens=HEALTH["context_tokens"])


def browse(*options: str) -> str:
    """Run the browser without a window; returns what it printed."""
    done = subprocess.run(
        [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=2500", *options],
        capture_output=True, text=True, timeout=120)  # fmt: skip
    return done.stdout


@pytest.mark.skipif(not BROWSER, reason="there is no Chromium")
def test_the_page_shows_what_the_server_does(shown: int, tmp_path: Path) -> None:
    dom = browse(f"--user-data-dir={tmp_path}", "--dump-dom", f"http://127.0.0.1:{shown}/")
    text = re.sub(r"<script.*?</script>", "", dom, flags=re.S)
    for words in ("Qwen3.6-35B-A3B-4bit", ">ok<", "weights 19.1 GB", "free buffers 2.2 GB", "94 % reused", "29.6 GB of 36.0 GB", "computed anew: cold 4", "6 s left", "explore-2", "11,300 of 18,700", "52.3", "214 finished", f"ANTHROPIC_BASE_URL=http://127.0.0.1:{shown}"):
        assert words in text, words
    assert "&lt;b&gt;generation failed" in text


@pytest.mark.skipif(not BROWSER, reason="there is no Chromium")
@pytest.mark.parametrize("size, scheme", [("1100,860", "light"), ("1100,860", "dark"), ("390,1180", "light"), ("390,1180", "dark")])
def test_the_page_has_a_picture_in_every_form(shown: int, tmp_path: Path, size: str, scheme: str) -> None:
    """With STATUS_PICTURES set to a folder the pictures stay there: one of them is the README's."""
    picture = tmp_path / "picture.png"
    preferred = {"light": 1, "dark": 0}[scheme]
    browse(f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={size}", f"--blink-settings=preferredColorScheme={preferred}",
           f"--screenshot={picture}", f"http://127.0.0.1:{shown}/")  # fmt: skip
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 20_000
    if folder := os.environ.get("STATUS_PICTURES"):
        shutil.copy(picture, Path(folder) / f"status-{size.partition(',')[0]}-{scheme}.png")
