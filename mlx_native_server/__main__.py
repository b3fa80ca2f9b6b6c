"""The command line: `mlx-native-server [serve|start|stop|…] …`.

Reads arguments, the settings file and the environment, then hands over to the one module that does the command. It is
imported only then, so `--help`, `replay` and `render` without a model start at once and need no MLX.

Exit status: 0 done, 1 failed, 2 a wrong argument, 78 something that a restart cannot mend (a setting, a model).
"""
from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Callable, Sequence

from mlx_native_server import __version__

from mlx_native_server.operate import guard, logfiles, manage
from mlx_native_server.models.blas import preload_blas
from mlx_native_server.config import EXIT_CONFIG, SETTINGS, Setting, SettingError, Settings, load
from mlx_native_server.models.folder import ModelError
from mlx_native_server.operate.places import Places, places

PROGRAM = "mlx-native-server"


@dataclass(frozen=True)
class Command:
    """`run` gets the settings and the arguments, and returns the exit status. `flags`: each setting is a flag of it."""

    help: str
    run: Callable[[Settings, argparse.Namespace], int]
    flags: bool = False


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"mlx_native_server.{name}")


def _serve(settings: Settings, arguments: argparse.Namespace) -> int:
    warning = preload_blas()
    return _module("serve").main(settings, warning, places(os.environ) if arguments.service else None)


def _background(settings: Settings) -> manage.Background:
    return manage.Background(settings, places(os.environ), os.environ)


def _start(settings: Settings, arguments: argparse.Namespace) -> int:
    background = _background(settings)
    health = background.restart() if arguments.command == "restart" else background.start()
    print(f"{background.url} serves {health['model']}, context window {health['context_tokens']} tokens")
    return 0


def _stop(settings: Settings, arguments: argparse.Namespace) -> int:
    print("stopped" if _background(settings).stop() else "no server runs in the background")
    return 0


def _status(settings: Settings, arguments: argparse.Namespace) -> int:
    is_well, lines = _background(settings).status()
    print("\n".join(lines))
    return 0 if is_well else 1


def _logs(settings: Settings, arguments: argparse.Namespace) -> int:
    here = places(os.environ)
    if arguments.follow:
        manage.follow(here.server_log)
    lines = [*manage.last_lines(here.server_log, 100), *[f"crash: {line}" for line in manage.last_lines(here.crash_log, 20)]]
    print("\n".join(lines) or f"there is no log yet: {here.server_log}")
    return 0


def _doctor(settings: Settings, arguments: argparse.Namespace) -> int:
    preload_blas()
    return _module("operate.doctor").main(settings, places(os.environ), os.environ, arguments.json, arguments.bench)


def _render(settings: Settings, arguments: argparse.Namespace) -> int:
    tokenizer = None
    if (arguments.model or "").strip():
        preload_blas()
        folder = _module("models.loading").resolve(settings.model, lambda line: print(line, file=sys.stderr))
        tokenizer = _module("models.tokens").load_tokenizer(folder)
    _module("render").main(sys.stdin.buffer, sys.stdout, settings, arguments.profile, tokenizer)
    return 0


def _replay(settings: Settings, arguments: argparse.Namespace) -> int:
    return _module("replay").main(sys.stdin.buffer, sys.stdout)


COMMANDS = {
    "serve": Command("run the server here (what happens without a command)", _serve, flags=True),
    "start": Command("run the server in the background, and wait until it answers", _start),
    "stop": Command("end the server in the background", _stop),
    "restart": Command("end it, start it", _start),
    "status": Command("say what runs, and where its files are", _status),
    "logs": Command("show the end of the background server's log", _logs),
    "doctor": Command("check everything that a session needs, with advice", _doctor),
    "render": Command("show what the model would be given for each request body on standard input", _render, flags=True),
    "replay": Command("show the response to each raw model output on standard input", _replay),
}
EXTRAS: dict[str, tuple[tuple[str, dict[str, Any]], ...]] = {
    "serve": (("--service", {"action": "store_true", "help": "as a service manager runs it: log to a file, end with 0 where a restart cannot help"}),),
    "logs": (("--follow", {"action": "store_true", "help": "go on showing what comes"}),),
    "doctor": (
        ("--json", {"action": "store_true", "help": "print a JSON object"}),
        ("--bench", {"action": "store_true", "help": "also measure a prefill of 512 tokens and 32 decoded ones"}),
    ),
    "render": (("--profile", {"choices": ("none", "code", "browser"), "default": "none", "help": "mode to render with"}),),
}
"""Arguments that only one command has."""


def settings_table(rows: Sequence[Setting] = SETTINGS) -> str:
    """Every setting with its flag, variable, default and meaning, as text columns."""
    flags, envs = max(len(row.flag) for row in rows), max(len(row.env) for row in rows)
    defaults = max(len(row.default_text) for row in rows)
    return "\n".join(
        f"  {row.flag:<{flags}}  {row.env:<{envs}}  {row.default_text:<{defaults}}  {row.help}" for row in rows
    )


def parser() -> argparse.ArgumentParser:
    """The whole command line, with one flag for each setting."""
    top = argparse.ArgumentParser(
        prog=PROGRAM,
        description="A Messages API server for local MLX models.",
        epilog="settings: flag, environment variable, default (flags win; a blank value is the default)\n\n" + settings_table(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        sub = commands.add_parser(name, help=command.help, description=command.help, allow_abbrev=False)
        for row in SETTINGS if command.flags else ():
            sub.add_argument(row.flag, dest=row.field, metavar="VALUE", help=f"{row.help} ({row.env}, {row.default_text})".replace("%", "%%"))
        for flag, options in EXTRAS.get(name, ()):
            sub.add_argument(flag, **options)
    return top


def environment(here: Places) -> dict[str, str]:
    """The settings file's variables. Those that are no settings (`HF_HOME`) are put into the process's environment."""
    file = manage.read_settings_file(here)
    own = {row.env for row in SETTINGS}
    for name, value in file.items():
        if name not in own:
            os.environ.setdefault(name, value)
    return file


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    given = list(sys.argv[1:] if argv is None else argv)
    if not given or (given[0].startswith("-") and given[0] not in ("-h", "--help", "--version")):
        given.insert(0, "serve")
    arguments = parser().parse_args(given)
    command = COMMANDS[arguments.command]
    try:
        file = environment(places(os.environ))
        settings = load(os.environ, {row.field: getattr(arguments, row.field, None) for row in SETTINGS}, file)
        return command.run(settings, arguments)
    except (SettingError, ModelError) as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return _told_to_service(error) if getattr(arguments, "service", False) else EXIT_CONFIG
    except manage.ManageError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 1


def _told_to_service(error: Exception) -> int:
    """The exit status of a service that cannot start; why is in its log, where people look."""
    here = places(os.environ)
    logfiles.start(__package__ or PROGRAM, file=here.server_log)
    logging.getLogger("mlx_native_server").error("%s", error)
    return guard.exit_status(EXIT_CONFIG, os.environ)


if __name__ == "__main__":
    sys.exit(main())
