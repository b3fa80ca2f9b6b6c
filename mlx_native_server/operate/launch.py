"""Claude Code on the local server: one launcher for every profile (`launchers/` has a script for each).

It finds the client, has the right server run, and hands over what makes the client work well without the cloud. All of
that goes through `--settings`: an `env` block in the user's own settings beats the shell's variables, but not these. No
file of the user's is changed, except one that the user is asked about.
"""
from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import manage
from ..config import EXIT_CONFIG, SETTINGS, SettingError, Settings, fingerprint, load
from .places import Places, places
from .running import url

SMALLEST_WINDOW_TOKENS = 48_000
MOST_ANSWER_TOKENS = 8192
NARRATION = Path(__file__).parent / "narrate.txt"
DEVTOOLS = {"mcpServers": {"chrome-devtools": {"command": "npx", "args": ["-y", "chrome-devtools-mcp@latest"]}}}
PERMISSION_FLAGS = ("--permission-mode", "--dangerously-skip-permissions", "--allow-dangerously-skip-permissions")
CLOUDS = ("BEDROCK", "VERTEX", "FOUNDRY", "MANTLE", "ANTHROPIC_AWS", "ANTHROPIC_GOOGLE_CLOUD", "GATEWAY")
MODEL_VARIABLES = (
    "ANTHROPIC_MODEL", "ANTHROPIC_SMALL_FAST_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL",
    "ANTHROPIC_DEFAULT_OPUS_MODEL", "ANTHROPIC_DEFAULT_SONNET_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL",
)  # fmt: skip


@dataclass(frozen=True)
class Profile:
    """`server`: settings that the server must have. `client`, `env`: arguments and variables that the client gets."""

    server: Mapping[str, str] = field(default_factory=dict)
    client: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


PROFILES = {
    "code": Profile(),
    "chat": Profile(client=("--tools", "")),
    # without the search the browser's tools are there from the start, and the model need not ask for each first
    "browser": Profile({"MLX_BROWSER_MODE": "1"}, ("--mcp-config", json.dumps(DEVTOOLS)), {"ENABLE_TOOL_SEARCH": "false"}),
    "narrate": Profile({"MLX_APPEND_SYSTEM_PROMPT_FILE": str(NARRATION)}),
}


class LaunchError(Exception):
    """The client cannot be started. The message is for the user."""


# ── the client ───────────────────────────────────────────────────────────────────────────────────


def find_client(env: Mapping[str, str]) -> str:
    """The program to run: CLAUDE_BIN, else the first of the usual places. Raises `LaunchError`."""
    if given := env.get("CLAUDE_BIN", "").strip():
        if found := shutil.which(given, path=env.get("PATH")):
            return found
        raise LaunchError(f"CLAUDE_BIN is {given}, and there is no such program.")
    home = Path(env.get("HOME") or Path.home())
    newest_first = sorted(home.glob(".nvm/versions/node/*/bin/claude"), reverse=True)
    usual = [home / ".local/bin/claude", home / ".claude/local/claude", Path("/opt/homebrew/bin/claude"), Path("/usr/local/bin/claude"), home / ".npm-global/bin/claude", home / ".bun/bin/claude", *newest_first]
    for place in (shutil.which("claude", path=env.get("PATH")), *map(str, usual)):
        if place and os.access(place, os.X_OK) and Path(place).is_file():
            return place
    raise LaunchError("Claude Code was not found, neither on PATH nor in its usual places: install it (npm install -g @anthropic-ai/claude-code), or name it with CLAUDE_BIN.")


def model_id(model: str) -> str:
    """What the client calls the model: for names that begin with `claude` it would ignore the window that it is given."""
    name = re.sub(r"[^\w.-]", "-", model.rstrip("/").rpartition("/")[2])
    return "local" if not name or name.lower().startswith("claude") else name


def client_env(health: Mapping[str, Any], base_url: str, api_key: str) -> dict[str, str]:
    """The client's variables for a server with this health."""
    window_tokens = int(health.get("context_tokens") or 0)
    answer_tokens = max(1024, min(MOST_ANSWER_TOKENS, window_tokens // 8))
    return {
        "ANTHROPIC_BASE_URL": base_url, "ANTHROPIC_AUTH_TOKEN": api_key or "local", "ANTHROPIC_API_KEY": "",
        **dict.fromkeys(MODEL_VARIABLES, model_id(str(health.get("model", "")))),
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(window_tokens), "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(answer_tokens),
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0", "CLAUDE_CODE_TOTAL_TOKENS_REMINDER": "off",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1",
        "API_TIMEOUT_MS": "3600000",
        **{f"CLAUDE_CODE_USE_{name}": "" for name in CLOUDS},
    }  # fmt: skip


def command(client: str, profile: Profile, env: Mapping[str, str], arguments: Sequence[str]) -> list[str]:
    """The client's whole command line; the user's arguments come last."""
    asks = any(argument.partition("=")[0] in PERMISSION_FLAGS for argument in arguments)
    mode = () if asks else ("--permission-mode", "acceptEdits")
    return [client, *profile.client, "--settings", json.dumps({"env": dict(env)}), "--model", env["ANTHROPIC_MODEL"], *mode, *arguments]


# ── the client's first run ───────────────────────────────────────────────────────────────────────


def is_interactive(arguments: Sequence[str]) -> bool:
    """Whether the client will show its screen."""
    return not {"-p", "--print", "-v", "--version", "-h", "--help"} & set(arguments) and sys.stdin.isatty() and sys.stdout.isatty()


def offer_first_run(env: Mapping[str, str], ask: Callable[[str], str]) -> None:
    """A client that was never used asks for a login, which no local model needs: offer to mark that step as done."""
    file = Path(env.get("CLAUDE_CONFIG_DIR") or env["HOME"]) / ".claude.json"
    try:
        state = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    except (OSError, ValueError):
        return
    if not isinstance(state, dict) or "hasCompletedOnboarding" in state:
        return
    answer = ask(f"Claude Code was not used here yet and will ask for a login, which a local model does not need.\nMark that step as done in {file} ? [y/N] ")
    if answer.strip().lower() in ("y", "yes"):
        new = file.with_name(file.name + ".new")
        new.write_text(json.dumps(state | {"hasCompletedOnboarding": True}, indent=2) + "\n", encoding="utf-8")
        if file.exists():
            new.chmod(file.stat().st_mode & 0o777)
        new.replace(file)


# ── together ─────────────────────────────────────────────────────────────────────────────────────


def has_wishes(profile: Profile, env: Mapping[str, str]) -> bool:
    """Whether the server must have certain settings; without wishes any that runs will do, but for another profile's."""
    return bool(profile.server) or any(env.get(row.env, "").strip() for row in SETTINGS if row.field not in ("port", "host", "api_key"))


def served(profile: Profile, env: Mapping[str, str]) -> dict[str, str]:
    """The variables for this profile's server; the user's own win."""
    return {**env, **{name: value for name, value in profile.server.items() if not env.get(name, "").strip()}}


def prepare(profile: Profile, env: Mapping[str, str], here: Places, arguments: Sequence[str], say: Callable[[str], None]) -> list[str]:
    """Have the server ready; returns the command to become. Raises `LaunchError`, `ManageError`, `SettingError`."""
    client = find_client(env)
    file = manage.read_settings_file(here)
    wanted = served(profile, env)
    settings: Settings = load(wanted, {}, file)
    others = {fingerprint(load(served(other, env), {}, file)) for other in PROFILES.values() if other.server}
    health = manage.Background(settings, here, wanted).start(any_settings=not has_wishes(profile, env), but_not=others)
    window_tokens = int(health.get("context_tokens") or 0)
    if window_tokens < SMALLEST_WINDOW_TOKENS:
        say(f"the window of {window_tokens} tokens is short for Claude Code, which needs {SMALLEST_WINDOW_TOKENS:,} or more")
    return command(client, profile, {**client_env(health, url(settings), settings.api_key), **profile.env}, arguments)


def main(argv: Sequence[str] | None = None) -> int:
    """`PROFILE ARGUMENTS…`: become the client. Returns only where that fails."""
    profile, *arguments = sys.argv[1:] if argv is None else argv
    name = "claude-local" + ("" if profile == "code" else f"-{profile}")

    def say(line: str) -> None:
        print(f"{name}: {line}", file=sys.stderr, flush=True)

    try:
        words = prepare(PROFILES[profile], os.environ, places(os.environ), arguments, say)
        if is_interactive(arguments):
            offer_first_run(os.environ, input)
        settings = json.loads(words[words.index("--settings") + 1])
        os.execve(words[0], words, {**os.environ, **settings["env"]})
    except (LaunchError, manage.ManageError, OSError) as error:
        say(str(error))
        return 1
    except SettingError as error:
        say(str(error))
        return EXIT_CONFIG
    except (KeyboardInterrupt, EOFError):
        return 130


if __name__ == "__main__":
    sys.exit(main())
