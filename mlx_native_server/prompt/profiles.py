"""What the server's settings change in a request before it becomes a prompt.

A profile takes a `Request` and gives a new one; the caller's is never changed. At most one mode acts, browser mode
before code mode; then the text of a file is appended to the system prompt. The file is read for every request, so that
editing it needs no restart.
"""
from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Callable

from .browser_mode import browser_mode
from .code_mode import code_mode, is_claude_code
from ..config import Settings
from ..protocol import Request

logger = logging.getLogger(__name__)

SEPARATOR = "\n\n---\n\n"

MODES = ("none", "code", "browser")
"""What can be demanded of `apply_profiles`, whoever the client is."""


def read_file(path: str) -> str:
    """The text of a file, `~` being the home directory. Raises `OSError` or `ValueError`."""
    return Path(path).expanduser().read_text(encoding="utf-8")


def apply_profiles(
    request: Request, settings: Settings, read_text: Callable[[str], str] = read_file, mode: str | None = None
) -> Request:
    """The request as the model shall see it. A file that cannot be read is logged and left out.

    `mode` is one of `MODES`; None leaves it to the settings, and code mode then is for Claude Code alone.
    """
    return _append_system_prompt(_in_mode(request, settings, mode), settings.append_system_prompt_file.strip(), read_text)


def _in_mode(request: Request, settings: Settings, mode: str | None) -> Request:
    if mode == "browser" or (mode is None and settings.browser_mode):
        if changed := browser_mode(request):
            return changed
        logger.info("browser mode: no tool of this request steers a browser, it stays as it is")
        if mode or not settings.code_mode:
            return request
    if mode == "code" or (mode is None and settings.code_mode and is_claude_code(request)):
        return code_mode(request, settings.code_tools)
    return request


def _append_system_prompt(request: Request, path: str, read_text: Callable[[str], str]) -> Request:
    if not path:
        return request
    try:
        text = read_text(path).strip()
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: `~` of a user that does not exist
        logger.warning("the appended system prompt %s is left out: %s", path, error)
        return request
    if not text:
        return request
    logger.debug("%d characters of %s appended to the system prompt", len(text), path)
    return dataclasses.replace(request, system=SEPARATOR.join(filter(None, (request.system, text))))
