"""Where the parts of calls go, in order: to the answer, or for a while to a recording of what it would be told."""
from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Protocol


class Sink(Protocol):
    """Where the parts of calls go, in order."""

    def call_started(self, name: str) -> None:
        """A tool_use block opens."""

    def call_json(self, partial: str) -> None:
        """The next part of its input as JSON text."""

    def call_stopped(self, complete: bool) -> None:
        """The block closes; `complete` is False when its JSON was left unfinished."""

    def call_salvaged(self, call: tuple[str, dict[str, Any]]) -> None:
        """A whole call (name, input) that was guessed."""

    def raw_text(self, text: str) -> None:
        """Text of the region that is no call."""

    def example_text(self, text: str) -> None:
        """Text of the region that shows a call."""


@dataclass
class Recording:
    """A sink that keeps what it is told, until it is known whether it counts."""

    told: list[tuple[str, Any]] = field(default_factory=list)

    def call_started(self, name: str) -> None:
        self.told.append(("call_started", name))

    def call_json(self, partial: str) -> None:
        self.told.append(("call_json", partial))

    def call_stopped(self, complete: bool) -> None:
        self.told.append(("call_stopped", complete))

    def call_salvaged(self, call: tuple[str, dict[str, Any]]) -> None:
        self.told.append(("call_salvaged", call))

    def raw_text(self, text: str) -> None:
        self.told.append(("raw_text", text))

    example_text = raw_text

    def replay(self, sink: Sink) -> None:
        """Tell another sink the same."""
        for method, argument in self.told:
            getattr(sink, method)(argument)

    def calls(self) -> list[tuple[str, Any]]:
        """Name and input of each call. All must be complete."""
        written: list[tuple[str, list[str]]] = []
        for method, argument in self.told:
            if method == "call_started":
                written.append((argument, []))
            elif method == "call_json":
                written[-1][1].append(argument)
        return [(name, json.loads("".join(partials))) for name, partials in written]

    def holds_calls_only(self) -> bool:
        """At least one call, all complete, and nothing else."""
        stops = [argument for method, argument in self.told if method == "call_stopped"]
        return bool(stops) and all(stops) and all(method != "raw_text" for method, _ in self.told)
