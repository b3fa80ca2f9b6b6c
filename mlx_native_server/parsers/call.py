"""What every dialect's calls have in common: from names, keys and values to one tool_use block.

A parser reports what it reads to a `CallBuilder`; here alone is decided when the call is committed (a declared
tool, and a declared key has begun or the arguments are complete with all required keys), what goes out while it
is written, and what happens to undeclared and repeated keys. The block goes to a `Sink`. A call that turns out
not to be one is still read to its end, silently, so that nothing inside it is taken for another call; its text
is then given back as text.
"""
from __future__ import annotations

import json
import logging
from typing import Any

from .json_text import Scalar
from .place import Place
from .reader import NotACall, Reader
from .salvage import salvage
from .schema import NULLS, Node, Tools, ToolSchema
from .sink import Recording, Sink

logger = logging.getLogger(__name__)


class Calls:
    """The calls of one region. `opener` is the literal that began it; `start` its offset.

    `after_prose`: visible text precedes, so that bare JSON may be an example; `place` knows more about it.
    `salvages`: what does not parse may be guessed at, since it stands between marks that mean a call.
    """

    def __init__(
        self, reader: Reader, tools: Tools, sink: Sink, opener: str, start: int, after_prose: bool = False, place: Place | None = None,
        salvages: bool = False,
    ):
        self.reader, self.tools, self.sink = reader, tools, sink
        self.opener, self.after_prose, self.place, self.salvages = opener, after_prose, place or Place(), salvages
        self.settled = start  # the offset up to which the region's text is accounted for
        self.current: CallBuilder | None = None

    def open(self) -> "CallBuilder":
        """A new call begins. The one before must be done."""
        self.region_ended()
        self.current = CallBuilder(self)
        return self.current

    @property
    def committed(self) -> bool:
        """Whether a block is open that the client has seen."""
        return self.current is not None and self.current.started and not self.current.finished

    def committing(self) -> None:
        """A block opens: what was read so far cannot become text any more."""
        if not isinstance(self.sink, Recording):
            self.reader.release()

    def settle(self) -> None:
        """A call is complete, or was given back: the text up to here is accounted for."""
        self.settled = self.reader.offset
        if not isinstance(self.sink, Recording):
            self.reader.hold(self.settled)

    def give_back(self, example: bool = False) -> None:
        """What was read since the last complete call is text, unless it can be salvaged. `example`: it shows a call."""
        raw = self.reader.since(self.settled)
        found = salvage(raw, self.tools) if self.salvages and self.current is not None and not self._cut() else []
        for call in found:
            self.sink.call_salvaged(call)
        if found:
            self.current.started = True
        elif example:
            self.sink.example_text(raw)
        else:
            self.sink.raw_text(raw)
        self.settle()

    def _cut(self) -> bool:
        """Whether the limit cut the text here; else a closer of the region may stand here."""
        return self.reader.cut and self.reader.pos >= len(self.reader.text)

    def text_ended(self, inside_value: bool) -> None:
        """The text ended within the region. Missing closers are added, unless the limit cut the text."""
        if inside_value:
            self.reader.take(len(self.reader.text) - self.reader.pos)  # half an escape belongs to its string
        call = self.current
        if call is not None and not call.finished:
            if not inside_value and not call.value_open and not self._cut():
                call.done()
            elif call.started:
                call.abandon()
        if call is None:
            self.give_back()
        self.region_ended()

    def region_ended(self) -> None:
        """The parser is through with the current call. The end of what is no call is text like its beginning."""
        if self.current is not None and not self.current.started:
            self.give_back()


class CallBuilder:
    """One call, as its parser reports it: `name`, then per argument `value` or `begin`…`text`…`end`, then `done`."""

    def __init__(self, calls: Calls):
        self._calls = calls
        self._schema: ToolSchema | None = None
        self.started = self.finished = self.value_open = False
        self._seen: set[str] = set()
        self._unknown: dict[str, tuple[Any, bool]] = {}  # key -> value, whether it is bare text
        self._node: Node | None = None
        self._key, self._quoted = "", False
        self._streaming = False
        self._runs: list[str] = []

    # ── what parsers call ────────────────────────────────────────────────────────────────────────

    def name(self, written: str) -> None:
        """The tool's name. An undeclared one leaves the whole call text."""
        if not written.strip() or len(written) > 256:
            raise NotACall("no tool name")
        self._schema = self._calls.tools.find(written)
        if self._schema is None:
            logger.info("not a declared tool: %.80s", written.strip())

    def declares(self, key: str) -> bool:
        """Whether the tool declares the key (always, for a tool that is not declared itself)."""
        return self._schema is None or self._schema.declares(key)

    def field(self, key: str) -> Node | None:
        """The type of a declared key's value."""
        return self._schema.field(key) if self._schema and self._schema.declares(key) else None

    def begin(self, key: str, quoted: bool) -> None:
        """The text of a value starts. `quoted`: the dialect marks it as a string; else the schema types it."""
        self._key, self._quoted, self.value_open = key, quoted, True
        self._node = self.field(key)
        self._streaming = False
        if self._node is None or key in self._seen:
            return
        self._commit()
        if self._node.is_string and (quoted or not self._node.nullable):
            self._stream()

    def text(self, run: str) -> None:
        """The next run of the value's text."""
        if self._streaming:
            self._put(_escaped(run))
            return
        self._runs.append(run)
        if self._node is not None and self._node.is_string and self._key not in self._seen:
            so_far = "".join(self._runs)
            if not any(null.startswith(so_far) for null in NULLS):  # a nullable string that is none
                self._stream()

    def end(self) -> None:
        """The value's text is complete."""
        self.value_open = False
        if self._streaming:
            self._put('"')
            self._streaming = False
            return
        text = "".join(self._runs)
        self._runs.clear()
        self._add(self._key, text, bare=not self._quoted)

    def value(self, key: str, value: Any) -> None:
        """A complete value that the dialect gave a type."""
        self._add(key, value, bare=False)

    def done(self) -> None:
        """The arguments are complete."""
        if self.finished:
            return
        if self._schema is not None and (self.started or not self._shows_a_schema()):
            self._place_unknown([key for key in self._schema.required if key not in self._seen])
            if not self.started and self._has_required():
                self._commit()
        if self.started:
            self._put("}")
            self._stop(complete=True)
        else:
            logger.info("a call of %s is left as text", self._schema.name if self._schema else "no declared tool")
            self.finished = True
            self._calls.give_back()

    def abandon(self) -> None:
        """The call will not be completed: its JSON stays unfinished, so that no client runs it."""
        logger.info("a call of %s was left unfinished", self._schema.name if self._schema else "?")
        self._stop(complete=False)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────

    def _commit(self) -> None:
        if not self.started:
            self.started = True
            self._calls.committing()
            self._calls.sink.call_started(self._schema.name)
            self._put("{")

    def _stop(self, complete: bool) -> None:
        self.finished = True
        self._calls.sink.call_stopped(complete)
        self._calls.settle()

    def _put(self, partial: str) -> None:
        self._calls.sink.call_json(partial)

    def _stream(self) -> None:
        """Let the open value's text go out from now on, what was kept of it first."""
        self._put_key(self._key)
        self._put('"' + _escaped("".join(self._runs)))
        self._runs.clear()
        self._streaming = True

    def _put_key(self, key: str) -> None:
        self._put((", " if self._seen else "") + json.dumps(key, ensure_ascii=False) + ": ")
        self._seen.add(key)

    def _add(self, key: str, value: Any, bare: bool) -> None:
        node = self.field(key)
        if node is None:
            if self._schema is not None:
                self._unknown.setdefault(key, (value, bare))
        elif key in self._seen:
            logger.info("a repeated key was held back: %s", key)
        else:
            self._write(key, node, value, bare)

    def _write(self, key: str, node: Node, value: Any, bare: bool) -> None:
        if isinstance(value, Scalar):
            value = value.written if node.is_string and value.value is not None else node.typed(value.value)
        else:
            value = node.from_text(value) if bare else node.typed(value)
        if value is None and not node.allows(None) and key not in self._schema.required:
            return  # an optional key that is null is one left out
        self._commit()
        self._put_key(key)
        self._put(json.dumps(value, ensure_ascii=False))

    def _place_unknown(self, missing: list[str]) -> None:
        """An undeclared key stands for a missing required one if it is one of each, else it is kept or dropped."""
        if len(missing) == 1 and len(self._unknown) == 1:
            (written, (value, bare)), = self._unknown.items()
            logger.info("key %s taken for %s", written, missing[0])
            self._write(missing[0], self._schema.field(missing[0]), value, bare)
            return
        if self._unknown and not self._schema.keeps_undeclared:
            logger.info("undeclared keys dropped: %s", ", ".join(self._unknown))
            return
        for key, (value, bare) in self._unknown.items() if self._has_required() else ():
            self._write(key, self._schema.field(key), value, bare)

    def _has_required(self) -> bool:
        return all(key in self._seen for key in self._schema.required)

    def _shows_a_schema(self) -> bool:
        """Whether the arguments are a JSON schema: then it is a tool's definition, not a call."""
        return {"type", "properties"} <= self._unknown.keys()


def _escaped(run: str) -> str:
    return json.dumps(run, ensure_ascii=False)[1:-1]
