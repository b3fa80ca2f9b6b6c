"""gpt-oss (harmony): messages with headers.

    <|channel|>analysis<|message|>Need an edit.<|end|><|start|>assistant<|channel|>commentary to=functions.Edit
    <|constrain|>json<|message|>{"path": "a b.py"}<|call|>

`analysis` is thinking, `commentary` to a recipient is a call, all else is visible text. The prompt may have ended
within the first header. Headers are never text; words that do not belong there, doubled parts and missing marks
are passed over. A recipient whose message is no JSON object makes no call.
"""
from __future__ import annotations

import re
from dataclasses import dataclass

from . import json_calls
from .call import Calls
from .reader import EndOfText, NotACall, Reader, Reading
from .thinking import Prose, Thought

OPENERS = ("<|channel|>", "<|start|>", "assistant<|channel|>")
LINE_OPENERS = (" to=", "to=")
MESSAGE = "<|message|>"
CLOSERS = ("<|end|>", "<|call|>", "<|return|>")
MARKS = (MESSAGE, "<|constrain|>", *OPENERS, *CLOSERS)

HEADER_LENGTH = 300
CHANNELS = ("analysis", "commentary", "final", "to=")
HEADS = {"<|start|>": ("assistant", "to="), "<|channel|>": CHANNELS, "assistant<|channel|>": CHANNELS}
HEADER_WORDS = ("assistant", *CHANNELS, "json", "code")
HEADER_WORD = re.compile(r"[–?\-]*(?:assistant|analysis|commentary|final|json|code|to=[\w.:/\-]*)[–?\-]*")
WORD = re.compile(r"[A-Za-z]+=?")
RECIPIENT = re.compile(r"to=([\w.:/\-]+)")
CHANNEL = re.compile(r"(?<![.\w])(analysis|commentary|final)")
STRAY = re.compile(r"[\s}\])]*")


@dataclass(frozen=True)
class Header:
    """What the words before a message say. "" for what they leave out."""

    channel: str
    recipient: str


def parse(r: Reader, calls: Calls) -> Reading[Thought | Prose | None]:
    """A header and, if it is a call's, its arguments."""
    if calls.opener in LINE_OPENERS and calls.after_prose:
        raise NotACall("a word of the text")
    header = yield from _header(r, calls.opener)
    if header is None:
        return None
    if header.recipient and (yield from _is_call(r, calls, header)) and (yield from _call(r, calls, header.recipient)):
        return None
    if header.channel == "analysis":
        return Thought(CLOSERS, OPENERS)
    return Prose(CLOSERS)


def _header(r: Reader, opener: str) -> Reading[Header | None]:
    """The header up to and with the mark before its message. None where the text ends within it."""
    channel = recipient = words = ""
    mark, first = opener, True
    while mark != MESSAGE:
        part = yield from _part(r, mark, first)
        recipient = next(iter(RECIPIENT.findall(mark + part if mark in LINE_OPENERS else part)), "") or recipient
        if mark.endswith("<|channel|>"):
            channel = next(iter(CHANNEL.findall(part)), "") or channel
        words += f" {part}"
        if r.pos >= len(r.text):
            if opener in LINE_OPENERS or not _is_cut_header(words.split()):
                raise EndOfText(open=True)
            return None
        mark, first = (yield from r.accept(*MARKS)), False
        if mark in CLOSERS:
            raise NotACall("no message")
    return Header(channel, recipient)


def _part(r: Reader, mark: str, first: bool) -> Reading[str]:
    """The words behind one mark of the header. Those behind the first one tell whether it is a header."""
    read = ""

    def put(run: str) -> None:
        nonlocal read
        read += run
        if len(read) > HEADER_LENGTH or "\n" in read.strip() or not _has_own_marks(read) or first and not _is_head(mark, read):
            raise NotACall("no header")

    yield from r.until(MARKS, put)
    if not read:
        put("")
    return read


def _has_own_marks(words: str) -> bool:
    """Whether there is no mark of another kind among the words; the end of the text may have cut off one of its own."""
    bracket = words.find("<")
    return bracket < 0 or any(known.startswith(words[bracket:]) for known in MARKS)


def _is_head(mark: str, words: str) -> bool:
    """Whether a header can begin with these words, the last of which may go on."""
    if mark in LINE_OPENERS:
        return len(words.split()) <= 2 and words[:1].isalpha()
    word = WORD.search(words)
    if word is None:
        return len(words) < 8
    at_end = word.end() == len(words)
    return any(word[0].startswith(head) or at_end and head.startswith(word[0]) for head in HEADS[mark])


def _is_cut_header(words: list[str]) -> bool:
    """Whether these words belong to a header, the last of them, and a mark behind it, perhaps in part."""
    word, bracket, mark = words[-1].partition("<") if words else ("", "", "")
    cut = not word or any(known.startswith(word) for known in HEADER_WORDS) or bool(HEADER_WORD.fullmatch(word))
    return cut and any(known.startswith(bracket + mark) for known in MARKS) and all(map(HEADER_WORD.fullmatch, words[:-1]))


def _is_call(r: Reader, calls: Calls, header: Header) -> Reading[bool]:
    """Whether the message to a recipient is a call's: JSON, or nothing where a tool takes no arguments."""
    known = calls.tools.find(header.recipient) is not None
    if not known and header.channel == "analysis":
        return False
    yield from r.skip_space()
    ahead = yield from r.peek()
    if not ahead:
        return known and not r.cut
    return ahead == "{" or known and (ahead == '"' or bool((yield from _at_closer(r))))


def _at_closer(r: Reader) -> Reading[str]:
    for closer in CLOSERS:
        if (yield from r.at(closer)):
            return closer
    return ""


def _call(r: Reader, calls: Calls, name: str) -> Reading[bool]:
    """The arguments up to and with the call's closing mark. False, back where it was: they are no JSON."""
    start = r.offset
    call = calls.open()
    call.name(name)
    try:
        if not (yield from _at_closer(r)):
            yield from json_calls.body(r, call, CLOSERS + OPENERS)
    except NotACall:
        if call.started:
            raise
        calls.current = None
        r.rewind(start)
        return False
    except EndOfText as end:
        if end.open or r.pos >= len(r.text):
            raise  # else only brackets are missing before a closing mark
    call.done()
    after = r.offset
    yield from r.run(STRAY)
    if not (yield from r.accept_closer(*CLOSERS)):
        r.rewind(after)
    return True
