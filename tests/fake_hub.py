"""A stand-in for the Hugging Face hub on this machine: its paths as far as a download asks for them."""
from __future__ import annotations

import contextlib
import functools
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

SHA = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class FakeHub:
    """`repos`: id to files. `status`: id to an error status. `asked`: method and path of all requests.

    A file named in `stalls` stops in the middle: `halfway` is set then, and the rest comes once `goes_on` is set.
    """

    url: str = ""
    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    status: dict[str, tuple[int, str]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    stalls: str = ""
    halfway: threading.Event = field(default_factory=threading.Event)
    goes_on: threading.Event = field(default_factory=threading.Event)

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body for a path."""
        repo = "/".join(path.removeprefix("/api/models").split("?")[0].split("/")[1:3])
        if repo in self.status:
            status, code = self.status[repo]
            return status, {"X-Error-Code": code, "X-Error-Message": code}, b"{}"
        if repo not in self.repos:
            return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"
        files = self.repos[repo]
        if "/tree/" in path:
            return 200, {}, json.dumps([{"type": "file", "path": name, "size": len(data), "oid": f"{i:040x}"} for i, (name, data) in enumerate(files.items())]).encode()
        if path.startswith("/api/models"):
            return 200, {}, json.dumps({"id": repo, "modelId": repo, "sha": SHA, "siblings": [{"rfilename": name} for name in files]}).encode()
        name = path.split(f"/resolve/{SHA}/")[1]
        return 200, {"ETag": f'"{list(files).index(name):040x}"', "X-Repo-Commit": SHA}, files[name]


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, fake: FakeHub, *args: Any):
        self.fake = fake
        super().__init__(*args)

    def do_GET(self) -> None:
        self.fake.asked.append(f"{self.command} {self.path}")
        status, headers, body = self.fake.answer(self.path)
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if self.fake.stalls and self.path.endswith(self.fake.stalls):
            self.wfile.write(body[:len(body) // 2])
            body = body[len(body) // 2:]
            self.fake.halfway.set()
            self.fake.goes_on.wait()
        with contextlib.suppress(ConnectionError):  # the client may be gone by now
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, *args: Any) -> None:
        """No access log."""


@pytest.fixture
def hub_server() -> Iterator[FakeHub]:
    """A hub for other processes, which find it by HF_ENDPOINT."""
    fake = FakeHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Handler, fake))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    fake.url = f"http://127.0.0.1:{server.server_port}"
    yield fake
    fake.goes_on.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def fake_hub(hub_server: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    """A hub for this process, whose library has read its variables already."""
    fake = hub_server
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", fake.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", fake.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    return fake


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
