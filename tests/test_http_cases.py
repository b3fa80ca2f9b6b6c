"""The public cases of the HTTP surface: `cases/http.jsonl`, sent to a server on a scripted engine."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fakes import Serve, port, serve  # noqa: F401  (fixtures)
from raw_client import RawClient, Reply, call

CASES = [json.loads(line) for line in (Path(__file__).parent / "cases" / "http.jsonl").read_text("utf-8").splitlines() if line.strip()]
SPECIAL = {"server_key", "context", "fault", "during"}
"""Inputs that need a server of their own: further down."""


def sent(case: dict[str, Any]) -> list[tuple[bytes, dict[str, str]]]:
    """The bodies and headers of a case, each to be sent in turn."""
    given = case["input"]
    if "raw_body_repeat" in given:
        bodies = [(given["raw_body_repeat"]["char"] * given["raw_body_repeat"]["count"]).encode()]
    elif "raw_body_hex" in given:
        bodies = [bytes.fromhex(given["raw_body_hex"])]
    elif "raw_body" in given:
        bodies = [given["raw_body"].encode()]
    else:
        bodies = [json.dumps(each).encode() for each in given.get("bodies", [given.get("body", {})])]
    return [(each, headers) for each in bodies for headers in given.get("headers_list", [given.get("headers", {})])]


def check_case(case: dict[str, Any], reply: Reply, status: int) -> None:
    """The reply is one of those that the case accepts, and an error has Anthropic's shape."""
    expect = case["expect"]
    accepted = [{"status": status, "error_type": expect.get("error_type")}, *expect.get("also_accept", [])]
    kind = reply.error if reply.status >= 400 else None
    assert any(each["status"] == reply.status and each.get("error_type") in (None, kind) for each in accepted), reply
    assert reply.headers["request-id"].startswith("req_")
    assert b"Traceback" not in reply.body


@pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in CASES if not SPECIAL & case["input"].keys()])
def test_public_case(port: int, case: dict[str, Any]) -> None:
    for data, headers in sent(case):
        method, path = case["input"]["method"], case["input"]["path"]
        with RawClient(port) as client:
            client.ask(method, path, data if method == "POST" else None, headers)
            check_case(case, client.reply(no_body=method == "HEAD"), case["expect"]["status"])


@pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in CASES if "server_key" in case["input"]])
def test_public_case_with_a_key(serve: Serve, case: dict[str, Any]) -> None:
    port = serve(api_key=case["input"]["server_key"])
    for (data, headers), status in zip(sent(case), case["expect"]["status"], strict=True):
        check_case(case, call(port, case["input"]["method"], case["input"]["path"], data, headers), status)
