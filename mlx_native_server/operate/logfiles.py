"""Logging: lines for people or for programs, on standard error or in files that this process rotates itself.

In the background the log goes to `server.log`, at most `KEPT` files of `MOST_BYTES`. What a crash writes past it goes
to a file that the service manager opened; that one is emptied in place when it has grown, since a rename would leave
the writer on the old file.
"""
from __future__ import annotations

import json
import logging
import logging.handlers
import os
import sys
import time
from io import TextIOWrapper
from pathlib import Path

from ..models.folder import ModelError

MOST_BYTES = 5_000_000
KEPT = 5


class PrivateFile(logging.handlers.RotatingFileHandler):
    """A log that this user alone can read, however the files were before."""

    def _open(self) -> TextIOWrapper:
        file = open(self.baseFilename, self.mode, encoding=self.encoding, opener=lambda path, flags: os.open(path, flags, 0o600))
        os.fchmod(file.fileno(), 0o600)
        return file


class LogFormat(logging.Formatter):
    """`[HH:MM:SS] message`, with the level in front of what is not plain information."""

    def format(self, record: logging.LogRecord) -> str:
        record.mark = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        return super().format(_without_trace(record))


class JsonFormat(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the trace where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        record = _without_trace(record)
        entry = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(), "logger": record.name, "message": record.getMessage(),
        }  # fmt: skip
        if record.exc_info:
            entry["trace"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def _without_trace(record: logging.LogRecord) -> logging.LogRecord:
    """A wrong model's message is written for the user: a trace would only hide it."""
    if record.exc_info and isinstance(error := record.exc_info[1], ModelError):
        record.msg, record.args, record.exc_info = f"{record.getMessage()}: {error}", None, None
    return record


def formatter(kind: str, day: bool) -> logging.Formatter:
    """`kind` is the setting (`text` or `json`); `day`: lines carry the date too."""
    return JsonFormat() if kind == "json" else LogFormat("[%(asctime)s] %(mark)s%(message)s", "%Y-%m-%d %H:%M:%S" if day else "%H:%M:%S")


def start(package: str, kind: str = "text", file: Path | None = None, crash_file: Path | None = None) -> None:
    """This package's log goes to `file`, or to standard error; of other packages only warnings do. Raises OSError."""
    if file:
        file.parent.mkdir(parents=True, exist_ok=True)
        handler: logging.Handler = PrivateFile(file, maxBytes=MOST_BYTES, backupCount=KEPT - 1, encoding="utf-8")
    else:
        handler = logging.StreamHandler(sys.stderr)
    if crash_file and crash_file.exists():
        crash_file.chmod(0o600)
        if crash_file.stat().st_size > MOST_BYTES:
            os.truncate(crash_file, 0)
    handler.setFormatter(formatter(kind, day=file is not None))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger(package).setLevel(logging.INFO)
