"""Does an answer fit a JSON schema, and what of its text is the answer.

A structural check, for telling a model what is wrong: `type`, `enum`, `const`, `required`, `properties`, `items`,
`additionalProperties`, unions and local `$ref`. Other keywords are taken to hold. Mending is finding the JSON in the
text (a fence or words around it) or reading it leniently; no value is made up.
"""
from __future__ import annotations

import json
from typing import Any, Iterator, Mapping, Sequence

from ..parsers import json_text
from ..parsers.schema import resolve, type_of

MAX_DEPTH = 32
"""References that lead in a circle end here."""
MAX_STARTS = 64
"""How many brackets are tried as the beginning of JSON within other text."""


def best_answer(texts: Sequence[str], schema: Mapping[str, Any]) -> tuple[str, str]:
    """The best of these answers, a later one before an earlier, and what is wrong with it ("" where it fits).

    Where none fits it is the last that has any JSON in it, unchanged, else the first.
    """
    best = (texts[0], "it is not JSON")
    for text in texts:
        faults = [(fault(value, schema), written) for value, written in _readings(text)]
        for wrong, written in faults:
            if not wrong:
                best = (written, "")
                break
        else:
            if faults and best[1]:
                best = (text, faults[0][0])
    return best


def fault(value: Any, schema: Any, root: Any = None, where: str = "the answer", depth: int = 0) -> str:
    """The first thing that is wrong with a value, "" where it fits. `root` holds the schema's definitions."""
    root = schema if root is None else root
    if depth > MAX_DEPTH or not isinstance(schema, Mapping):
        return f"{where} is not allowed" if schema is False else ""
    if isinstance(schema.get("$ref"), str):
        return fault(value, resolve(schema["$ref"], root), root, where, depth + 1)
    return next((wrong for check in _CHECKS for wrong in check(value, schema, root, where, depth) if wrong), "")


def _readings(text: str) -> list[tuple[Any, str]]:
    """The JSON values that the text may be, as values and as written: all of it, else what stands in it, the largest first."""
    text = text.strip()
    try:
        return [(_DECODER.decode(text), text)]
    except (ValueError, RecursionError):
        pass
    found = sorted(_inside(text), key=lambda reading: -len(reading[1]))
    start = min((at for at in map(text.find, "{[") if at >= 0), default=-1)
    if found or start < 0:
        return found
    try:
        value = json_text.parse(text[start:].removesuffix("```").rstrip())
    except ValueError:
        return []
    return [(value, json.dumps(value, ensure_ascii=False))]


def _inside(text: str) -> Iterator[tuple[Any, str]]:
    """The objects and lists in a text, one after another."""
    at = 0
    for _ in range(MAX_STARTS):
        at = min((found for found in (text.find("{", at), text.find("[", at)) if found >= 0), default=-1)
        if at < 0:
            return
        try:
            value, end = _DECODER.raw_decode(text, at)
            yield value, text[at:end]
            at = end
        except (ValueError, RecursionError):
            at += 1


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)


# ── the keywords ─────────────────────────────────────────────────────────────────────────────────


def _type(value: Any, schema: Mapping[str, Any], root: Any, where: str, depth: int) -> Iterator[str]:
    wanted = schema.get("type")
    kinds = [wanted] if isinstance(wanted, str) else wanted if isinstance(wanted, list) else []
    kind = type_of(value)
    if kinds and kind not in kinds and not (kind == "integer" and "number" in kinds):
        yield f"{where} must be of type {' or '.join(map(str, kinds))}, not {kind}"


def _values(value: Any, schema: Mapping[str, Any], root: Any, where: str, depth: int) -> Iterator[str]:
    allowed = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(allowed, list) and not any(value == one and type_of(value) == type_of(one) for one in allowed):
        yield f"{where} must be one of {json.dumps(allowed, ensure_ascii=False)}"


def _members(value: Any, schema: Mapping[str, Any], root: Any, where: str, depth: int) -> Iterator[str]:
    if not isinstance(value, dict):
        return
    required, declared = schema.get("required"), schema.get("properties")
    for key in required if isinstance(required, list) else ():
        if key not in value:
            yield f"{where} has no {json.dumps(key)}"
    declared = declared if isinstance(declared, Mapping) else {}
    rest = True if "patternProperties" in schema else schema.get("additionalProperties", True)
    for key, member in value.items():
        if key not in declared and rest is False:
            yield f"{where} must not have {json.dumps(key)}"
        yield fault(member, declared.get(key, rest), root, f"{where}.{key}", depth + 1)


def _items(value: Any, schema: Mapping[str, Any], root: Any, where: str, depth: int) -> Iterator[str]:
    if isinstance(value, list) and isinstance(schema.get("items"), (Mapping, bool)) and "prefixItems" not in schema:
        for n, item in enumerate(value):
            yield fault(item, schema["items"], root, f"{where}[{n}]", depth + 1)


def _unions(value: Any, schema: Mapping[str, Any], root: Any, where: str, depth: int) -> Iterator[str]:
    for keyword in ("anyOf", "oneOf"):
        if isinstance(branches := schema.get(keyword), list) and branches:
            faults = [fault(value, branch, root, where, depth + 1) for branch in branches]
            if all(faults):
                yield faults[0]
    for branch in schema["allOf"] if isinstance(schema.get("allOf"), list) else ():
        yield fault(value, branch, root, where, depth + 1)


_CHECKS = (_type, _values, _members, _items, _unions)
