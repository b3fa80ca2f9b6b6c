"""What install made, so that removing takes away exactly that: one JSON file in the prefix.

A thing is written down before it is made; one that was there already, or is somebody else's, is neither touched nor
written down. In a dry run everything is said and nothing is done.
"""
from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

FILE = "made.json"
Say = Callable[[str], None]


@dataclass
class Made:
    """Paths as text, in the order in which they were made; `models` are Hugging Face ids."""

    links: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    models: list[str] = field(default_factory=list)


def read(prefix: Path) -> Made:
    """The record of an earlier install; an empty one where there is none or it is damaged."""
    try:
        return Made(**json.loads((prefix / FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return Made()


class Maker:
    """Makes things and writes them down."""

    def __init__(self, prefix: Path, say: Say, dry_run: bool = False):
        self.made, self.dry_run = read(prefix), dry_run
        self._file, self._say = prefix / FILE, say

    def note(self, kind: str, value: str) -> None:
        """Write down that a thing is ours."""
        entries: list[str] = getattr(self.made, kind)
        if value in entries or self.dry_run:
            return
        entries.append(value)
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps(asdict(self.made), indent=1) + "\n", encoding="utf-8")
        new.replace(self._file)

    def folder(self, path: Path) -> None:
        """Have a folder and those above it."""
        for missing in reversed([place for place in (path, *path.parents) if not place.exists()]):
            self.note("folders", str(missing))
        if not self.dry_run:
            path.mkdir(parents=True, exist_ok=True)

    def link(self, path: Path, target: Path) -> bool:
        """Have a link; False where something else has that name."""
        if path.is_symlink() and (path.readlink() == target or str(path) in self.made.links):
            if path.readlink() == target:
                self.note("links", str(path))
                return True
            if not self.dry_run:
                path.unlink()
        elif path.exists() or path.is_symlink():
            return False
        self._say(f"link {path} to {target}")
        self.folder(path.parent)
        self.note("links", str(path))
        if not self.dry_run:
            path.symlink_to(target)
        return True

    def file(self, path: Path, text: str, mode: int = 0o644) -> None:
        """Have a file with this text. One that was there before stays the user's, changed."""
        if path.exists() and path.read_text(encoding="utf-8") == text:
            return
        self._say(f"write {path}")
        self.folder(path.parent)
        if not path.exists():
            self.note("files", str(path))
        if not self.dry_run:
            new = path.with_name(path.name + ".new")
            new.write_text(text, encoding="utf-8")
            new.chmod(mode)
            new.replace(path)

    def remove(self) -> None:
        """Take away links and files."""
        for text in self.made.links:
            if (path := Path(text)).is_symlink():
                self._away(path)
        for text in self.made.files:
            if (path := Path(text)).exists():
                self._away(path)

    def remove_folders(self) -> None:
        """Take away folders that are empty now."""
        # deepest first, and only where nothing else has moved in
        for path in sorted(map(Path, self.made.folders), key=lambda path: -len(path.parts)):
            if path.is_dir() and not any(path.iterdir()) and not self.dry_run:
                path.rmdir()

    def tree(self, path: Path) -> None:
        """Take away a folder that is all ours, with what is in it."""
        if path.exists():
            self._say(f"remove {path}")
            if not self.dry_run:
                shutil.rmtree(path)

    def _away(self, path: Path) -> None:
        self._say(f"remove {path}")
        if not self.dry_run:
            path.unlink()
