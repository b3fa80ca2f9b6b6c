"""Reading JSON values: each reader gives a typed value or an `ApiError` 400 that starts with the field's path.

A reader takes a value and its path (`messages.3.content.0.type`). `read_fields` reads an object by a table of readers,
so that what an object may hold is data. Nothing here knows the Messages API.
"""
from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Callable, Mapping

from ..protocol import bad_request

MAX_DEPTH = 64
"""Levels of JSON nesting that are accepted: chat templates walk schemas and arguments recursively."""

Reader = Callable[[Any, str], Any]
"""Takes a JSON value and its path, gives the typed value or raises `ApiError`."""

_SURROGATE = re.compile("[\ud800-\udfff]")


# ── JSON ─────────────────────────────────────────────────────────────────────────────────────────


def parse_json(raw: bytes) -> object:
    """The JSON value in `raw`, lone surrogates replaced by U+FFFD.

    Raises `ApiError` 400 for bytes that are not UTF-8, text that is not JSON, and nesting beyond `MAX_DEPTH`.
    """
    try:
        value = json.loads(raw.decode("utf-8-sig"), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise bad_request(f"body: The request body is not UTF-8 (byte {error.start})") from None
    except RecursionError:
        raise bad_request(f"body: The JSON is nested more than {MAX_DEPTH} levels deep") from None
    except ValueError as error:
        raise bad_request(f"body: The request body is not valid JSON: {error}") from None
    return clean(value)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def clean(value: Any, depth: int = 0) -> Any:
    """The same value without lone surrogates. Raises `ApiError` 400 beyond `MAX_DEPTH`; `depth` counts from the top."""
    if depth > MAX_DEPTH:
        raise bad_request(f"body: The JSON is nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, str) and _SURROGATE.search(value):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [clean(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {clean(key, depth): clean(item, depth + 1) for key, item in value.items()}
    return value


# ── readers of single values ─────────────────────────────────────────────────────────────────────


def text(value: Any, path: str) -> str:
    """A string, which may be empty."""
    if not isinstance(value, str):
        raise bad_request(f"{path}: Input should be a valid string")
    return value


def named(value: Any, path: str) -> str:
    """A string of at least one character."""
    if not text(value, path):
        raise bad_request(f"{path}: String should have at least 1 character")
    return value


def boolean(value: Any, path: str) -> bool:
    """`true` or `false`; no number and no word."""
    if not isinstance(value, bool):
        raise bad_request(f"{path}: Input should be a valid boolean")
    return value


def mapping(value: Any, path: str) -> dict[str, Any]:
    """A JSON object."""
    if not isinstance(value, dict):
        raise bad_request(f"{path}: Input should be a valid dictionary")
    return value


def integer(value: Any, path: str) -> int:
    """An integer from 0 up; a boolean is none."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise bad_request(f"{path}: Input should be a valid integer")
    if value < 0:
        raise bad_request(f"{path}: Input should be greater than or equal to 0")
    return value


def number(high: float) -> Reader:
    """A reader of numbers from 0 to `high`."""

    def read(value: Any, path: str) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
            raise bad_request(f"{path}: Input should be a valid number")
        if not 0 <= value <= high:
            raise bad_request(f"{path}: Input should be from 0 to {high:g}")
        return float(value)

    return read


def one_of(*allowed: str) -> Reader:
    """A reader of one of a few strings."""

    def read(value: Any, path: str) -> str:
        if value not in allowed or not isinstance(value, str):
            raise bad_request(f"{path}: Input should be {' or '.join(map(repr, allowed))}")
        return value

    return read


def tuple_of(reader: Reader) -> Reader:
    """A reader of lists whose items `reader` reads; their paths end in the index."""

    def read(value: Any, path: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise bad_request(f"{path}: Input should be a valid list")
        return tuple(reader(item, f"{path}.{n}") for n, item in enumerate(value))

    return read


@dataclass(frozen=True)
class Field:
    """How one key of an object is read. An optional key that is missing or null is left out of the result."""

    read: Reader
    required: bool = False
    nullable: bool = True


def read_fields(value: Any, path: str, table: Mapping[str, Field]) -> dict[str, Any]:
    """The keys of `table` that the object has, each read by its reader."""
    source, prefix, found = mapping(value, path), f"{path}." if path else "", {}
    for name, field in table.items():
        if name not in source:
            if field.required:
                raise bad_request(f"{prefix}{name}: Field required")
        elif source[name] is not None or field.required or not field.nullable:
            found[name] = field.read(source[name], prefix + name)
    return found
