"""Calls out of what looks like one but did not parse. This is the only place that guesses, and it runs last.

Given is the text between a dialect's own marks, before anything of it was sent. A call comes out only for a declared
tool that is named, with all required keys, each written beside its value and of a declared type, and only if every
character of the region is accounted for. What is read so:

    | written                                                      | read as                                      |
    |--------------------------------------------------------------|----------------------------------------------|
    | `{"name": "N", "key": …}`                                    | arguments beside the name                    |
    | `{"N": {"key": …}}`, `N {"key": …}`, `N({"key": …})`         | the name as a key, or in front               |
    | `{"key": …}` alone                                           | the only tool that takes exactly these       |
    | `{name: "N", arguments: {key: value}}`                       | quotes forgotten; a bare value is one line   |
    | `"name": "N", "arguments": "key": "value"`                   | brackets forgotten                           |
    | `"name": "N" … parameter=key>value`, `<parameter_key>value`  | JSON and XML mixed                           |
    | `<name>N</name> <key>value</key>`, `N(key="value")`          | other markup                                 |

Left out: a value without its key, a string that is open at the end, an undeclared name or key, text around.
"""
from __future__ import annotations

import re
from typing import Any, Iterator, Mapping

from . import json_text
from .reader import EndOfText, NotACall, Reader, Reading, run_to_end
from .schema import Tools, ToolSchema

SIZE = 200_000
"""Characters; a longer region is not looked at."""
NAMED_WITHIN = 160
"""Characters of a region within which a declared tool must be named, or a longer one is not waited for."""

Found = tuple[str, dict[str, Any]]

NAME_KEYS = ("name", "tool", "tool_name", "function_name", "function")
ARGUMENT_KEYS = ("arguments", "parameters", "args", "input", "params", "tool_input")
WRAPPERS = ("function", "function_call", "tool_call")
ABOUT_THE_CALL = ("type", "id", "call_id", "index")

MARK = r"<\|?/?(?:tool_calls?|tools|function_calls?|TOOLCALL)\|?>"
OPENING = re.compile(rf"\s*(?:{MARK}\s*)*(?:```\w*\s*)?")
CLOSING = re.compile(rf"(?:```\s*)?(?:\s*{MARK})+\s*\Z")
PUNCTUATION = re.compile(r"[\s{}\[\](),;:\"'`]*\Z")
JUNK = re.compile(r"(?:[\s{}\[\](),;]|</[\w.\-=]+>|<(?:arguments|parameters|args|input|params|invoke|function|tool|call)>)*")
LEADING_NAME = re.compile(r"\s*[\"'`]?([\w.:/\-]+?)[\"'`]?\s*(?:[(\[{:,<]|\n|\Z)")
NAME = re.compile(
    r"<?[\"']?(?:(?:invoke|function|tool)\s+name\s*=|(name|tool|tool_name|function_name|function|invoke|call)[\"']?\s*(?::|=>|=|>))"
    r"\s*[\"']?([\w.:/\-]+)[\"']?\s*>?"
)
KEY = re.compile(r"<?[\"']?(?:(?:parameter|param|arg)\s+name\s*=\s*[\"']?|parameter[=_ ]\s*|param=|arg=)?([\w.\-]+)[\"']?\s*(>|:|=>|=)\s*")
QUOTED_KEY = re.compile(r"([\"'])[\w.\-]+\1\s*:")
SCALAR = re.compile(r"[\"']?[\w.\-]*[\"']?")
TAG_ENDS = re.compile(r"</?(?:parameter|param|arg)\b|[\"']?parameter=[\w.\-]+>")
AFTER_COMMA = re.compile(r"[\"'}\w<{]")
STRING_ENDS = (")", ">", "</", ";")
BRACKETS = {"}": "{", "]": "[", ")": "("}


def salvage(text: str, tools: Tools) -> list[Found]:
    """The calls (declared name, input) that a region's text was meant to be; none where any of it is in doubt."""
    if len(text) > SIZE:
        return []
    closing = CLOSING.search(text)
    body = text[OPENING.match(text).end():closing.start() if closing else len(text)].strip()
    for read in (_objects, _pieces):
        try:
            found = [_checked(tools, name, given) for name, given in read(body, tools, closing is not None)]
        except (NotACall, EndOfText, ValueError):
            continue
        if found:
            return found
    return []


def _checked(tools: Tools, name: str, given: Mapping[str, Any]) -> Found:
    """The call with its values typed. Raises NotACall unless the tool takes them."""
    schema = tools.find(name)
    if schema is None or not given:
        raise NotACall("no declared tool, or no arguments")
    if any(schema.field(key).is_string and isinstance(value, (dict, list)) for key, value in given.items()):
        raise NotACall("an object where there should be text")
    typed = {key: schema.field(key).typed(json_text.plain(value)) for key, value in given.items()}
    fits = all((schema.declares(key) or schema.keeps_undeclared) and schema.field(key).allows(value) for key, value in typed.items())
    is_schema = {"type", "properties"} <= typed.keys() and not schema.declares("properties")
    if not fits or is_schema or not set(schema.required) <= typed.keys():
        raise NotACall("not what the tool takes")
    return schema.name, typed


def region(r: Reader, opener: str, closer: str, tools: Tools) -> Reading[str]:
    """The text from an opener, which comes next, to behind its closer, before the next opener, or to the end.

    "" where it names no tool soon, is too long, or the limit cut it: then the position is anywhere.
    """
    runs = [r.take(len(opener))]
    size, named = 0, False

    def put(run: str) -> None:
        nonlocal size, named
        runs.append(run)
        size += len(run)
        if size > SIZE:
            raise NotACall("too long")
        if size > NAMED_WITHIN and not named:
            named = tools.any_named("".join(runs)[:NAMED_WITHIN + len(opener)])
            if not named:
                raise NotACall("names no tool")

    try:
        if (yield from r.until((closer, opener), put)) == closer:
            runs.append(r.take(len(closer)))
    except NotACall:
        return ""
    return "" if r.cut and r.pos >= len(r.text) else "".join(runs)


# ── whole objects ────────────────────────────────────────────────────────────────────────────────


def _objects(body: str, tools: Tools, closed: bool) -> Iterator[Found]:
    """Text that is one JSON value, perhaps with the tool's name in front."""
    start = min((at for at in map(body.find, "{[") if at >= 0), default=-1)
    end = max(map(body.rfind, "}]")) + 1
    if start < 0 or not PUNCTUATION.match(body, end):
        raise NotACall("no object")
    written = json_text.parse(body[start:end])
    head = body[:start].strip(" \t\n:(,`\"'")
    if not head:
        yield from _meant(written, tools)
    elif isinstance(written, dict):
        yield head, written


def _meant(written: Any, tools: Tools) -> Iterator[Found]:
    """What an object that names a tool somewhere, or fits only one, calls."""
    if isinstance(written, list):
        for item in written:
            yield from _meant(item, tools)
        return
    if not isinstance(written, dict):
        raise NotACall("no object")
    wrapper = next((key for key in WRAPPERS if isinstance(written.get(key), dict)), None)
    name_key = next((key for key in NAME_KEYS if isinstance(written.get(key), str)), None)
    if name_key is None and wrapper is not None:
        yield from _meant(written[wrapper], tools)
    elif name_key is not None:
        yield written[name_key], _arguments(written, name_key, tools)
    elif len(written) == 1 and isinstance(inner := next(iter(written.values())), dict) and tools.find(next(iter(written))):
        yield next(iter(written)), inner
    else:
        given = {} if any(key in written for key in NAME_KEYS) else _arguments(written, None, tools)
        name = tools.only_fit(given) if given else None
        if name is None:
            raise NotACall("no name")
        yield name, given


def _arguments(written: Mapping[str, Any], name_key: str | None, tools: Tools) -> dict[str, Any]:
    """The arguments of a call object: under one of the usual keys, as JSON in a string, or beside the name."""
    schema = tools.find(written[name_key]) if name_key else None
    for key in ARGUMENT_KEYS:
        if key in written and not (schema and schema.declares(key)):
            given = json_text.parse(written[key]) if isinstance(written[key], str) else written[key]
            if not isinstance(given, dict):
                raise NotACall("arguments are no object")
            return given
    beside = {key: value for key, value in written.items() if key != name_key}
    return {key: value for key, value in beside.items() if key not in ABOUT_THE_CALL or (schema and schema.declares(key))}


# ── pieces ───────────────────────────────────────────────────────────────────────────────────────


def _pieces(body: str, tools: Tools, closed: bool) -> Iterator[Found]:
    """Text that is a name and keys with values, in whatever punctuation. `closed`: the region's closing mark was there."""
    schema: ToolSchema | None = None
    given: dict[str, Any] = {}
    at = 0
    lead = LEADING_NAME.match(body)
    if lead and tools.find(lead[1]):
        schema, at = tools.find(lead[1]), lead.end(1) + 1
    while True:
        at = JUNK.match(body, at).end()
        if PUNCTUATION.match(body, at):
            break
        name = NAME.match(body, at)
        if name and not (schema and name[1] and schema.declares(name[1])):
            if schema and given:
                yield schema.name, given
            schema, given, at = tools.find(name[2]), {}, name.end()
            if schema is None:
                raise NotACall("not a declared tool")
            continue
        key = KEY.match(body, at)
        if key is None or schema is None:
            raise NotACall("no key, or no name before it")
        at = key.end()
        if schema.declares(key[1]) and key[1] not in given:
            given[key[1]], at = _value(body, key, schema, closed)
        elif key[1] in ARGUMENT_KEYS or key[1] in WRAPPERS:
            at = _inner(body, at, given)
        elif key[1] in ABOUT_THE_CALL:
            at = SCALAR.match(body, at).end()
        else:
            raise NotACall("not a declared key, or one twice")
    if schema is None:
        raise NotACall("no name")
    yield schema.name, given


def _inner(body: str, at: int, given: dict[str, Any]) -> int:
    """What follows the key of the arguments: JSON in a string is taken, else the keys come next. Where they begin."""
    if body[at:at + 1] not in ("\"", "'") or QUOTED_KEY.match(body, at):
        return at
    r = Reader(body, eof=True)
    r.pos = at
    written = run_to_end(json_text.text(r, json_text.IN_OBJECT))
    inner = json_text.parse(written)
    if not isinstance(inner, dict):
        raise NotACall("arguments are no object")
    given.update(inner)
    return r.pos


def _value(body: str, key: re.Match[str], schema: ToolSchema, closed: bool) -> tuple[Any, int]:
    """One value and where it ends."""
    at, field = key.end(), schema.field(key[1])
    if key[2] == ">":
        text, at = _between_tags(body, key, closed)
        return field.from_text(text), at
    if body[at:at + 1] in ("\"", "'", "{", "["):
        r = Reader(body, eof=True)
        r.pos = at
        value = run_to_end(json_text.value(r, AFTER_COMMA, STRING_ENDS))
        return value, r.pos
    end = body.find("\n", at)
    end = len(body) if end < 0 else end
    next_key = re.compile(r",\s*[\"']?(?:%s)[\"']?\s*[:=]" % "|".join(map(re.escape, (*schema.keys, *ABOUT_THE_CALL)))).search(body, at, end)
    line = body[at:next_key.start() if next_key else end]
    text = _unbracketed(line)
    at_the_end = not body[at + len(line):].strip()
    if not text or (at_the_end and not closed and text == line.rstrip()):
        raise NotACall("a value that may go on")
    return field.from_text(text), at + len(line)


def _between_tags(body: str, key: re.Match[str], closed: bool) -> tuple[str, int]:
    """The text of a value behind a tag, up to its closing tag or the next one. One newline on each side is padding."""
    name, start = key[1], key.end(2)
    end = re.compile(rf"</(?:parameter|param|arg|{re.escape(name)})\b[\w=]*>|</parameter_{re.escape(name)}>").search(body, start)
    following = TAG_ENDS.search(body, start)
    stop = end or following
    if following and end and following.start() < end.start():
        stop = following
    if stop is None and not closed:
        raise NotACall("a value that may go on")
    text = body[start:stop.start() if stop else len(body)]
    after = (stop.end() if stop is end else stop.start()) if stop else len(body)
    if stop is not end:
        text = re.sub(r"(?:\s*</\w+>)+\s*\Z", "", text)  # what closes the tags around it
    return text.removeprefix("\n").removesuffix("\n"), after


def _unbracketed(line: str) -> str:
    """A bare value without the brackets and the quote that belong to what is around it."""
    text, before = line.strip(), ""
    while text != before:
        before = text
        text = text.rstrip().rstrip(",;").rstrip()
        if text[-1:] in BRACKETS and text.count(text[-1]) > text.count(BRACKETS[text[-1]]):
            text = text[:-1]
        elif text[-1:] in ("\"", "'") and text.count(text[-1]) % 2:
            text = text[:-1]
    return text
