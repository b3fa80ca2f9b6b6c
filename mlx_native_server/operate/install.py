"""The second half of set-up, once there is a Python: commands, model, settings, service; and taking it all away again.

`setup.sh` calls this; a person need not. Every step finds out first whether it is done. Nothing here needs MLX but the
step that gets the model, which is left out of a dry run.
"""
from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from . import lineup, mac, machine, manage
from ..config import EXIT_CONFIG, SettingError, cache_dir, load, with_variable
from ..models.folder import ModelError
from .download import INTERRUPTED, Models
from .launchd import ServiceError
from .made import Maker
from .places import NAME, Places, places

LAUNCHERS = ("claude-local", "claude-local-chat", "claude-local-browser", "claude-local-narrate")


class Installer:
    """One run. `checkout` is where the launchers are, `python` the environment's own."""

    def __init__(self, here: Places, env: Mapping[str, str], checkout: Path, dry_run: bool, platform: str = sys.platform,
                 run: machine.Run = machine.run, say: Callable[[str], None] | None = None):
        self.here, self.env, self.checkout, self.dry_run, self.platform, self._run = here, env, checkout, dry_run, platform, run
        self.say = say or (lambda line: print(line, file=sys.stderr, flush=True))
        self.made = Maker(here.prefix, lambda line: self.say(f"would {line}" if dry_run else line), dry_run)
        self.python = here.prefix / "venv" / "bin" / "python"

    # ── install ──────────────────────────────────────────────────────────────────────────────────

    def install(self, asked: str | None, service: bool) -> None:
        """All steps. Raises `ModelError`, `SettingError`, `ServiceError`, OSError."""
        self._folders()
        computer = machine.look(self._run, self.platform)
        self.say(f"{computer.system} {computer.version}, {computer.chip}, {computer.memory_gb:.0f} GB of memory{f', {computer.gpu}' if computer.gpu else ''}")
        self._commands()
        self._model(asked, computer)
        if self.platform == "darwin":
            self._double_click()
        if service or manage.manager(self.here, self.platform).is_installed:
            self._service()
        self._hints()

    def _folders(self) -> None:
        """The folders of a running server too, so that it is known which of them were not there before."""
        new = self.here.prefix / "new-folders"
        for line in new.read_text(encoding="utf-8").splitlines() if new.exists() else ():
            self.made.note("folders", line)
        for folder in (self.here.logs, self.here.state, cache_dir(self.env, self.platform)):
            self.made.folder(folder)

    def _commands(self) -> None:
        self.made.link(self.here.prefix / "checkout", self.checkout)
        targets = {NAME: self.here.prefix / "venv" / "bin" / NAME}
        targets |= {name: self.here.prefix / "checkout" / "launchers" / name for name in LAUNCHERS}
        for name, target in targets.items():
            if not self.made.link(self.here.bin / name, target):
                self.say(f"{self.here.bin / name} is there and is not this program's: it is left alone; run {target}")

    def _model(self, asked: str | None, computer: machine.Machine) -> None:
        file = manage.read_settings_file(self.here)
        models = Models(self.made, self.env, file, self.say)
        chosen = asked or file.get("MLX_MODEL", "").strip() or self.env.get("MLX_MODEL", "").strip()
        if not chosen:
            choice = lineup.choose(computer.model_memory_gb, computer.has_gpu)
            chosen = choice.repo if choice else "tiny"
            self.say(_why(choice, computer))
        if choice := lineup.about(chosen):
            self.say(f"model: {chosen}, about {choice.size_gb:.0f} GB in {models.cache} ({machine.disk_free_gb(models.cache):.0f} GB free), licence {choice.licence}")
        else:
            self.say(f"model: {chosen}")
        if self.dry_run:
            self.say(f"would get {chosen} where it is not there yet")
        else:
            self.say(f"the model is in {models.get(chosen)}")
        text = self.here.settings.read_text(encoding="utf-8") if self.here.settings.exists() else FIRST_LINES
        # a service does not have the shell's variables: it would look for the model in another cache
        kept = {name: self.env[name] for name in ("HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT") if self.env.get(name) and name not in file}
        for name, value in ({"MLX_MODEL": chosen} | kept).items():
            text = with_variable(text, name, value)
        self.made.file(self.here.settings, text, mode=0o600)

    def _double_click(self) -> None:
        """Files for the Finder. Made here, they are not quarantined as downloaded ones would be."""
        for name in LAUNCHERS:
            folder = Path(self.env["HOME"]) / "Applications" / NAME
            launcher = shlex.quote(str(self.here.prefix / "checkout" / "launchers" / name))
            self.made.file(folder / f"{name}.command", f'#!/bin/bash\ncd "$HOME" && exec {launcher} "$@"\n', mode=0o755)

    def _service(self) -> None:
        manager = manage.manager(self.here, self.platform)
        name = "com.mlx-native-server.plist" if self.platform == "darwin" else "mlx-native-server.service"
        self.say(f"service: {self.here.unit}")
        if self.platform == "darwin":
            if place := mac.kept_from_services(self.checkout, Path(self.env["HOME"])):
                self.say(f"{self.checkout} is a folder that the service may not read: macOS keeps services out of {place}. Move it, for instance to {self.env['HOME']}, and run this again there.")
            self.say("macOS will now say that a background item was added; it is called python, and is this service")
        if self.dry_run:
            return
        self.made.folder(self.here.unit.parent)
        self.made.note("files", str(self.here.unit))
        template = (self.checkout / "launchers" / name).read_text(encoding="utf-8")
        changed = manager.install(template, self.python, os.pathsep.join([str(self.python.parent), "/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"]))
        settings = load({}, {}, manage.read_settings_file(self.here))
        background = manage.Background(settings, self.here, self.env, service=manager)
        if changed:
            background.stop()
            manager.start(changed=True)
        background.start()

    def _hints(self) -> None:
        if str(self.here.bin) not in self.env.get("PATH", "").split(os.pathsep):
            self.say(f"{self.here.bin} is not on your PATH; add it:  echo 'export PATH=\"$HOME/.local/bin:$PATH\"' >> ~/.{'zshrc' if self.platform == 'darwin' else 'profile'}")
        if not self.dry_run:
            self.say("done. Start Claude Code with  claude-local ; check everything with  mlx-native-server doctor")

    # ── removal ──────────────────────────────────────────────────────────────────────────────────

    def remove(self, keep_models: bool) -> None:
        """Stop what runs and take away what install made, at last the environment that this may be running in."""
        manager = manage.manager(self.here, self.platform)
        self.say(f"{'would stop' if self.dry_run else 'stopping'} the server")
        if not self.dry_run:
            manage.Background(load({}), self.here, self.env, service=manager).stop()
            if manager.is_installed:
                manager.uninstall()
        if not keep_models:
            Models(self.made, self.env, manage.read_settings_file(self.here), self.say).remove()
            if str(cache := cache_dir(self.env, self.platform)) in self.made.made.folders:
                self.made.tree(cache)
        self.made.tree(self.here.logs)
        self.made.tree(self.here.state)
        self.made.remove()
        self.made.tree(self.here.prefix)
        self.made.remove_folders()


FIRST_LINES = """# Settings of mlx-native-server, one NAME=value a line; mlx-native-server --help lists them.
# Variables of the shell win over these. After a change: mlx-native-server restart
"""


def _why(choice: lineup.Choice | None, computer: machine.Machine) -> str:
    if choice:
        return f"chosen for {computer.model_memory_gb:.0f} GB: {choice.note}; --model takes another one"
    if not computer.has_gpu:
        return "this machine has no GPU that MLX uses, so tiny is chosen, which only shows that everything works; --model takes another one"
    return f"{computer.model_memory_gb:.0f} GB of memory are too little for a model that is of use, so tiny is chosen, which only shows that everything works"


def main(argv: list[str] | None = None) -> int:
    """Run one of the two and return the exit status."""
    parser = argparse.ArgumentParser(prog="setup", allow_abbrev=False)
    parser.add_argument("what", choices=("install", "remove"))
    parser.add_argument("--checkout", type=Path, required=True)
    parser.add_argument("--model")
    parser.add_argument("--service", action="store_true")
    parser.add_argument("--keep-models", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    given = parser.parse_args(argv)
    installer = Installer(places(os.environ), os.environ, given.checkout, given.dry_run)
    try:
        if given.what == "install":
            installer.install(given.model, given.service)
        else:
            installer.remove(given.keep_models)
    except (ModelError, SettingError) as error:
        print(f"setup: {error}", file=sys.stderr)
        return EXIT_CONFIG
    except (ServiceError, manage.ManageError, OSError) as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(INTERRUPTED, file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
