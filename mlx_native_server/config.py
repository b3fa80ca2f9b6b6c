"""The settings: one table, read once from a mapping.

Each field of `Settings` carries its environment variable, its default, what it accepts and one line of help; the
command line, `--help` and the README's table follow from that. An empty or blank value always means the default.
The environment is passed in (`load(os.environ)`) and so is the settings file, one more mapping underneath it: nothing
here reads either.
"""
from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Callable, Mapping


EXIT_CONFIG = 78
"""The exit status for what a restart cannot mend (sysexits.h, EX_CONFIG); service managers heed it."""


class SettingError(ValueError):
    """A value that a setting does not take. The message names the setting, the value and what is allowed."""


@dataclass(frozen=True)
class Kind:
    """What a value may be. `parse` raises ValueError for anything that `allowed` does not describe."""

    allowed: str
    parse: Callable[[str], Any]


def whole(low: int, high: int | None = None) -> Kind:
    """A whole number in [low, high]."""

    def parse(text: str) -> int:
        value = int(text)
        if value < low or (high is not None and value > high):
            raise ValueError(text)
        return value

    return Kind(f"a whole number of at least {low}" if high is None else f"a whole number from {low} to {high}", parse)


def one_of(*values: int) -> Kind:
    """One of a few whole numbers."""

    def parse(text: str) -> int:
        if (value := int(text)) not in values:
            raise ValueError(text)
        return value

    return Kind("one of " + ", ".join(map(str, values)), parse)


def _gigabytes(text: str) -> float:
    value = float(text)
    if not math.isfinite(value) or value < 0:
        raise ValueError(text)
    return value


def _gigabytes_or_auto(text: str) -> float | None:
    return None if text.lower() == "auto" else _gigabytes(text)


_SWITCH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def _switch(text: str) -> bool:
    if text.lower() not in _SWITCH:
        raise ValueError(text)
    return _SWITCH[text.lower()]


def word(*values: str) -> Kind:
    """One of a few words, in any case."""

    def parse(text: str) -> str:
        if text.lower() not in values:
            raise ValueError(text)
        return text.lower()

    return Kind("one of " + ", ".join(values), parse)


TEXT = Kind("any text", str)
GIGABYTES = Kind("a number of gigabytes, 0 or more", _gigabytes)
GIGABYTES_OR_AUTO = Kind("auto, or a number of gigabytes, 0 or more", _gigabytes_or_auto)
SWITCH = Kind("one of " + ", ".join(_SWITCH), _switch)


def _setting(env: str, default: Any, kind: Kind, help: str, secret: bool = False) -> Any:
    return field(default=default, repr=not secret, metadata={"env": env, "kind": kind, "help": help})


@dataclass(frozen=True)
class Settings:
    """Every setting of the server. Gigabytes are 1024³ bytes."""

    model: str = _setting("MLX_MODEL", "tiny", TEXT, "folder, Hugging Face id, or tiny, quick, wise, beast")
    host: str = _setting("MLX_HOST", "127.0.0.1", TEXT, "address to listen on")
    port: int = _setting("MLX_PORT", 4000, whole(0, 65535), "port to listen on; 0 takes a free one")
    api_key: str = _setting("MLX_API_KEY", "", TEXT, "key that clients must send; unset accepts any", secret=True)
    allowed_hosts: str = _setting("MLX_ALLOWED_HOSTS", "", TEXT, "names in Host to answer to, commas between; loopback names and addresses always")
    context_tokens: int = _setting("MLX_CONTEXT_TOKENS", 0, whole(0), "context window in tokens; 0 is what the model's config says")
    max_tokens: int = _setting("MLX_MAX_TOKENS", 8192, whole(1), "answer length for requests without max_tokens")
    max_running: int = _setting("MLX_MAX_RUNNING", 16, whole(1), "requests that generate at once")
    max_waiting: int = _setting("MLX_MAX_WAITING", 64, whole(0), "requests that may wait; one more gets a 529")
    prefill_size: int = _setting("MLX_PREFILL_SIZE", 768, whole(1), "most prompt tokens per prefill chunk")
    cache_limit_gb: float = _setting("MLX_CACHE_LIMIT_GB", 3.0, GIGABYTES, "cap of MLX's free-buffer cache; 0 is no cap")
    prompt_cache_gb: float | None = _setting("MLX_PROMPT_CACHE_GB", None, GIGABYTES_OR_AUTO, "memory for kept prompts; 0 keeps none")
    cache_dir: str = _setting("MLX_CACHE_DIR", "", TEXT, "folder for prompts kept on disk; unset is the user's cache directory")
    disk_cache_gb: float = _setting("MLX_DISK_CACHE_GB", 20.0, GIGABYTES, "disk space for kept prompts; 0 keeps none there")
    wired_limit_gb: float | None = _setting("MLX_WIRED_LIMIT_GB", None, GIGABYTES_OR_AUTO, "memory that a Mac keeps wired; 0 wires none")
    kv_bits: int = _setting("MLX_KV_BITS", 0, one_of(0, 2, 3, 4, 5, 6, 8), "bits of a quantized KV cache; 0 is full precision")
    kv_quant_start: int = _setting("MLX_KV_QUANT_START", 256, whole(0), "tokens kept at full precision before quantizing")
    suppress_thinking: bool = _setting("MLX_SUPPRESS_THINKING", True, SWITCH, "no thinking unless the request asks for it")
    tool_retries: int = _setting("MLX_TOOL_RETRIES", 2, whole(0), "new attempts after a tool call that cannot be read")
    code_mode: bool = _setting("MLX_CODE_MODE", True, SWITCH, "shorter prompt and tools for Claude Code")
    code_tools: str = _setting("MLX_CODE_TOOLS", "core", TEXT, "tools that code mode shows: core, all, or names with commas between")
    browser_mode: bool = _setting("MLX_BROWSER_MODE", False, SWITCH, "prompt and tools for steering a browser")
    append_system_prompt_file: str = _setting("MLX_APPEND_SYSTEM_PROMPT_FILE", "", TEXT, "file appended to every system prompt")
    live_stream: bool = _setting("MLX_LIVE_STREAM", True, SWITCH, "stream text as it is generated; off sends it at the end")
    debug_request: bool = _setting("MLX_DEBUG_REQUEST", False, SWITCH, "log the shape of each request's last messages, and where its prompt is new")
    debug_response: bool = _setting("MLX_DEBUG_RESPONSE", False, SWITCH, "log tool schemas and the start of each response")
    transcript_dir: str = _setting("MLX_TRANSCRIPT_DIR", "", TEXT, "folder for one file per request, with prompt and answer; unset writes none")
    log_format: str = _setting("MLX_LOG_FORMAT", "text", word("text", "json"), "text for people, json for one object a line")


@dataclass(frozen=True)
class Setting:
    """One row of the table."""

    field: str
    env: str
    default: Any
    kind: Kind
    help: str

    @property
    def flag(self) -> str:
        """The setting on the command line: `--prefill-size`."""
        return "--" + self.field.replace("_", "-")

    @property
    def default_text(self) -> str:
        """The default as a person would write it."""
        words = {True: "on", False: "off"} if isinstance(self.default, bool) else {None: "auto", "": "unset"}
        return words.get(self.default, str(self.default))


SETTINGS = tuple(Setting(f.name, default=f.default, **f.metadata) for f in fields(Settings))


def load(env: Mapping[str, str], flags: Mapping[str, str | None] | None = None, file: Mapping[str, str] | None = None) -> Settings:
    """The settings from command-line flags (by field name; None is not given), else environment variables, else the file.

    Raises `SettingError` for the first value that is not allowed.
    """
    flags, file = flags or {}, file or {}
    values: dict[str, Any] = {}
    for row in SETTINGS:
        places = [(row.flag, flags.get(row.field)), (row.env, env.get(row.env) or None), (f"{row.env} in the settings file", file.get(row.env))]
        # a blank flag is a wish for the default, a blank variable is one that somebody has cleared
        name, text = next(((name, text) for name, text in places if text is not None and (text.strip() or name == row.flag)), ("", ""))
        if text.strip():
            values[row.field] = _parse(row, name, text.strip())
    return Settings(**values)


def _parse(row: Setting, name: str, text: str) -> Any:
    try:
        return row.kind.parse(text)
    except ValueError:
        raise SettingError(f"{name}: {text!r} is not allowed, it takes {row.kind.allowed}") from None


# ── the settings file ────────────────────────────────────────────────────────────────────────────

_LINE = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)\s*=\s*(.*)")


def parse_file(text: str, path: object = "the settings file") -> dict[str, str]:
    """The variables of a settings file: `NAME=value` lines, `#` comments; quotes around a value are taken off.

    Raises `SettingError` naming the line that is neither.
    """
    values = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        if not (match := _LINE.fullmatch(line)):
            raise SettingError(f"{path}, line {number}: {line!r} is not allowed, it takes NAME=value")
        name, value = match.groups()
        values[name] = value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value
    return values


def with_variable(text: str, name: str, value: str) -> str:
    """The settings file's text with one variable set: in place where it is, else as the last line."""
    lines = text.splitlines()
    found = [i for i, line in enumerate(lines) if (match := _LINE.fullmatch(line.strip())) and match[1] == name]
    for i in found:
        lines[i] = f"{name}={value}"
    return "\n".join([*lines, *([] if found else [f"{name}={value}"])]) + "\n"


def cache_dir(env: Mapping[str, str], platform: str = sys.platform) -> Path:
    """This server's folder in the user's cache directory: what it may fetch or compute again."""
    home = Path(env.get("HOME") or Path.home())
    if platform == "darwin":
        return home / "Library" / "Caches" / "mlx-native-server"
    return Path(env.get("XDG_CACHE_HOME") or home / ".cache") / "mlx-native-server"


_NOT_COMPARED = {"host", "port", "api_key", "allowed_hosts", "max_running", "max_waiting", "live_stream", "debug_request", "debug_response", "transcript_dir", "log_format"}


def fingerprint(settings: Settings) -> str:
    """Twelve characters that are equal for settings which give the same answers in the same memory."""
    compared = {name: value for name, value in dataclasses.asdict(settings).items() if name not in _NOT_COMPARED}
    return hashlib.sha256(json.dumps(compared, sort_keys=True).encode()).hexdigest()[:12]
