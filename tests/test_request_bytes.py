"""Bytes that are no JSON, or JSON of any shape: read, or refused with the path to what is wrong."""
from __future__ import annotations

import random
from typing import Any

import pytest

from conversations import BASH, assistant, call, late, request, result, text, thought, user
from mlx_native_server.prompt.fields import MAX_DEPTH
from mlx_native_server.prompt.request import parse_json, parse_request
from mlx_native_server.protocol import ApiError

NOT_JSON = {
    "empty": b"",
    "cut": b'{"model": "m", ',
    "not UTF-8": b'{"\xff":1}',
    "UTF-16": '{"a":1}'.encode("utf-16"),
    "NaN": b'{"temperature": NaN}',
    "a number with 10,000 digits": b"[" + b"9" * 10_000 + b"]",
    "100,000 brackets": b"[" * 100_000,
    "one level too many": b"[" * (MAX_DEPTH + 2) + b"]" * (MAX_DEPTH + 2),
}


@pytest.mark.parametrize("raw", NOT_JSON.values(), ids=NOT_JSON)
def test_what_is_not_json_is_refused(raw: bytes) -> None:
    with pytest.raises(ApiError, match="^body: ") as caught:
        parse_json(raw)
    assert caught.value.status == 400


def test_lone_surrogates_are_replaced_and_pairs_are_kept() -> None:
    assert parse_json(rb'{"a\udc00": ["x\ud83d y", "\ud83d\ude00"]}') == {"a\ufffd": ["x\ufffd y", "\U0001f600"]}
    called = request(assistant(call("a") | {"input": '{"k": "\\ud83d"}'}))
    assert called.messages[0].content[0].input == {"k": "\ufffd"}


def test_a_byte_order_mark_is_skipped() -> None:
    assert parse_json(b"\xef\xbb\xbf{}") == {}


WHOLE = {
    "model": "m", "max_tokens": 5, "system": [text("s")], "temperature": 0.5, "tools": [BASH], "tool_choice": {"type": "auto"},
    "thinking": {"type": "enabled", "budget_tokens": 5}, "stop_sequences": ["x"], "output_config": {"format": {"type": "json_schema", "schema": {}}},
    "messages": [
        user("a", {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBOR"}},
             {"type": "document", "source": {"type": "text", "data": "d"}}),
        assistant(thought("t"), call("a", command="ls")), user(result("a", [text("r")])), late("late"),
    ],
}  # fmt: skip
ODD = [None, True, False, 0, -1, 1.5, "", " ", "text", [], ["x"], [[]], {}, {"type": "text"}, {"type": []}, 10**400]


def mutated(value: Any, rng: random.Random) -> Any:
    """A copy with one value somewhere replaced, or one key removed."""
    if not isinstance(value, (dict, list)) or not value or rng.random() < 0.1:
        return rng.choice(ODD)
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key, copy = rng.choice(keys), value.copy()
    if rng.random() < 0.1:
        del copy[key]
    else:
        copy[key] = mutated(value[key], rng)
    return copy


def test_mutated_bodies_are_read_or_refused_with_a_path() -> None:
    rng = random.Random(7)
    refused = 0
    for _ in range(3000):
        try:
            parse_request(mutated(WHOLE, rng), {}, 1)
        except ApiError as error:
            refused += 1
            assert error.status == 400 and ": " in error.message and " " not in error.message.split(": ")[0]
    assert 500 < refused < 3000
