"""Types of arguments, by the tool's JSON schema: what is declared, and what a written value means.

The rule: the schema decides. A value of a string-only type is kept to the character; any other is read as JSON
first, then as Python would spell it, and stays text last. What is there is never changed to please a schema it
cannot fit: the client validates. Keywords beyond types, `enum`, `$ref` and unions are not looked at.
"""
from __future__ import annotations

import json
import re
from functools import cached_property
from typing import Any, Mapping, Sequence

from ..protocol import Tool
from .json_text import parse

SCALARS = {"string": str, "boolean": bool, "array": list, "object": dict, "null": type(None)}
NULLS = ("null", "None")
"""How a bare value says that there is none."""


def type_of(value: Any) -> str:
    """The JSON type of a Python value; an integral float is an `integer`."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "integer" if isinstance(value, int) or value.is_integer() else "number"
    return next((name for name, kind in SCALARS.items() if isinstance(value, kind)), "string")


class Node:
    """One place in a schema: the types it allows, and its children. No types: anything goes."""

    def __init__(self, schema: Any, root: Mapping[str, Any], depth: int = 0):
        self._root = root
        self._parts = list(_alternatives(schema, root, depth))
        self.types = frozenset().union(*(_types(part) for part in self._parts))
        if any(not _types(part) for part in self._parts):
            self.types = frozenset()
        self.nullable = "null" in self.types
        self.is_string = self.types - {"null"} == {"string"}  # then the text is the value: it can go out as it comes

    def child(self, key: str | int) -> "Node":
        """The schema of a property, or of an array's items."""
        if key not in self._children:
            found = {}
            for part in self._parts:
                inner = part.get("items") if isinstance(key, int) else (part.get("properties") or {}).get(key)
                if isinstance(inner, Mapping):
                    found = inner
                    break
            self._children[key] = Node(found, self._root)
        return self._children[key]

    @cached_property
    def _children(self) -> dict[str | int, "Node"]:
        return {}

    def allows(self, value: Any) -> bool:
        """Whether the value's type is one of the declared ones."""
        kind = type_of(value)
        return not self.types or kind in self.types or (kind == "integer" and "number" in self.types)

    def typed(self, value: Any) -> Any:
        """A value that was written with a type, as the schema wants it where that loses nothing."""
        if isinstance(value, str):
            return value if self.allows(value) else self.from_text(value)
        if self.allows(value):
            if isinstance(value, dict):
                return {key: self.child(key).typed(inner) for key, inner in value.items()}
            if isinstance(value, list):
                return [self.child(0).typed(inner) for inner in value]
            return int(value) if isinstance(value, float) and "number" not in self.types and self._whole(value) else value
        if value is not None and "string" in self.types:
            return json.dumps(value, ensure_ascii=False)
        return value

    def _whole(self, value: float) -> bool:
        return "integer" in self.types and value.is_integer()

    def from_text(self, text: str) -> Any:
        """A value that was written as bare text (or in quotes although it cannot be a string)."""
        if self.is_string:
            return None if self.nullable and text in NULLS else text
        if "boolean" in self.types and text.strip().lower() in ("true", "false"):
            return text.strip().lower() == "true"
        try:
            value = parse(text)
        except ValueError:
            return text
        if self.allows(value):
            return value if isinstance(value, str) else self.typed(value)
        return None if value is None and "string" not in self.types else text


def _alternatives(schema: Any, root: Mapping[str, Any], depth: int) -> list[Mapping[str, Any]]:
    """The schema's branches: itself, or what its `$ref`, `anyOf`, `oneOf` and `allOf` lead to."""
    if not isinstance(schema, Mapping) or depth > 16:
        return [{}]
    if isinstance(schema.get("$ref"), str):
        return _alternatives(resolve(schema["$ref"], root), root, depth + 1)
    for keyword in ("anyOf", "oneOf"):
        if isinstance(schema.get(keyword), Sequence) and schema[keyword]:
            return [part for inner in schema[keyword] for part in _alternatives(inner, root, depth + 1)]
    if isinstance(schema.get("allOf"), Sequence) and schema["allOf"] and "type" not in schema:
        parts = [part for inner in schema["allOf"] for part in _alternatives(inner, root, depth + 1)]
        return [part for part in parts if _types(part)] or parts
    return [schema]


def resolve(ref: str, root: Mapping[str, Any]) -> Any:
    """The target of a local reference (`#/$defs/name`), None when there is none."""
    target: Any = root
    for step in ref.lstrip("#").strip("/").split("/"):
        if not isinstance(target, Mapping):
            return None
        target = target.get(step.replace("~1", "/").replace("~0", "~")) if step else target
    return target


def _types(schema: Mapping[str, Any]) -> frozenset[str]:
    """The types one branch allows, from `type`, or from `enum`/`const`; empty for any."""
    kinds = schema.get("type")
    if isinstance(kinds, str):
        return frozenset([kinds.lower()])
    if isinstance(kinds, Sequence) and kinds:
        return frozenset(kind.lower() for kind in kinds if isinstance(kind, str))
    values = schema.get("enum") if isinstance(schema.get("enum"), list) else [schema["const"]] if "const" in schema else []
    if values:
        return frozenset(type_of(value) for value in values)
    return frozenset(["object"]) if "properties" in schema else frozenset(["array"]) if "items" in schema else frozenset()


class ToolSchema:
    """One declared tool: its keys and their types."""

    def __init__(self, tool: Tool):
        schema = tool.input_schema if isinstance(tool.input_schema, Mapping) else {}
        self.name = tool.name
        self._root = Node(schema, schema)
        declared, required = schema.get("properties"), schema.get("required")
        properties = tuple(declared) if isinstance(declared, Mapping) else ()
        self.required = tuple(key for key in required if isinstance(key, str)) if isinstance(required, (list, tuple)) else ()
        self.keys = frozenset(properties + self.required)
        extra = schema.get("additionalProperties")
        self.keeps_undeclared = extra is not False and (extra is not None or not properties)

    def declares(self, key: str) -> bool:
        """Whether the schema names this key."""
        return key in self.keys

    def takes(self, given: Mapping[str, Any]) -> bool:
        """Whether these arguments are declared ones of the right types, with all that are required."""
        return set(self.required) <= given.keys() <= self.keys and all(
            self.field(key).allows(self.field(key).typed(value)) for key, value in given.items())

    def field(self, key: str) -> Node:
        """The type of a key; anything goes for undeclared ones."""
        return self._root.child(key)


class Tools:
    """The tools of one request, found by the name a model wrote."""

    def __init__(self, tools: Sequence[Tool]):
        self._tools = {tool.name: tool for tool in tools if not tool.server_type}
        self._schemas: dict[str, ToolSchema] = {}

    def __bool__(self) -> bool:
        return bool(self._tools)

    def find(self, written: str) -> ToolSchema | None:
        """The declared tool that is meant: the name itself, else the only one that fits but for case, dashes, underscores, a namespace."""
        name = written.strip().strip("\"'`").strip()
        if name not in self._tools:
            spellings = _spellings(name)
            fits = [known for known in self._tools if _folded(known) in spellings]
            if len(fits) != 1:
                return None
            name = fits[0]
        if name not in self._schemas:
            self._schemas[name] = ToolSchema(self._tools[name])
        return self._schemas[name]

    def any_named(self, text: str) -> bool:
        """Whether a tool's name occurs in the text."""
        folded = text.casefold()
        return any(name.casefold() in folded for name in self._tools)

    def any_declares(self, key: str) -> bool:
        """Whether any tool has this key."""
        return any(schema.declares(key) or schema.keeps_undeclared for name in self._tools if (schema := self.find(name)))

    def only_fit(self, given: Mapping[str, Any]) -> str | None:
        """The name of the only tool that takes exactly these arguments, by its keys and types."""
        fits = [name for name in self._tools if (schema := self.find(name)) and schema.takes(given)]
        return fits[0] if len(fits) == 1 else None


def _folded(name: str) -> str:
    return re.sub(r"[-_]", "", name.casefold())


def _spellings(written: str) -> set[str]:
    """The name as it may have been meant: whole, and without what looks like a namespace before it."""
    return {_folded(written[at:]) for at in (0, *(separator.end() for separator in re.finditer(r"[:./]|__", written)))}
