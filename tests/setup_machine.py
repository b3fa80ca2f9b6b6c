"""A machine for setup.sh, played by stubs on PATH: nothing is downloaded and no Mac is needed.

The stub Python answers as a chosen version and architecture and writes down what it was asked to do; a virtual
environment that it "makes" holds the same stub.
"""
from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = "bash sh env awk sed grep cat ls rm mv cp mkdir dirname basename cksum cut tail tee chmod readlink".split()

PYTHON_STUB = """#!/bin/bash
# $STUB_PYTHON: "version machine ensurepip". $STUB_PIP: what pip does. Calls go to $STUB_CALLS.
case "$1 $2" in
  "-c import sys, platform"*) echo "$STUB_PYTHON" ;;
  "-c import sys; sys.exit"*) ;;
  "-c import ctypes"*) exit 1 ;;
  "-c "*) cat >/dev/null; [ "${STUB_ASSERT:-}" = "" ] || { echo "$STUB_ASSERT"; exit 1; } ;;
  "- "*) exec REAL_PYTHON "$@" ;;
  "-V "*) echo "Python ${STUB_PYTHON%% *}.1" ;;
  "-m venv") mkdir -p "$3/bin"; echo home = / >"$3/pyvenv.cfg"; cp "$0" "$3/bin/python" ;;
  "-m pip")
    [ "$3" = --version ] && exit
    echo "pip ${*:3}" >>"$STUB_CALLS"
    case "${STUB_PIP:-}" in
      no-network) echo "WARNING: Retrying: Failed to establish a new connection: [Errno -3]"; echo "ERROR: No matching distribution"; exit 1 ;;
      no-space) echo "ERROR: Could not install packages: No space left on device"; exit 1 ;;
    esac
    echo "  Downloading mlx-1.whl (3.4 MB)" ;;
  *)
    echo "python $*" >>"$STUB_CALLS"
    exit "${STUB_STATUS:-0}" ;;
esac
"""
UV_STUB = """#!/bin/bash
echo "uv $*" >>"$STUB_CALLS"
if [ "$1" = venv ]; then
  target=${*: -1}
  mkdir -p "$target/bin"; echo home = / >"$target/pyvenv.cfg"; cp "$STUB_DIR/any-python" "$target/bin/python"
fi
"""


@dataclass
class Machine:
    """A checkout, a PATH that has only `TOOLS` and stubs, and an empty home."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("bin", "home", "checkout"):
            (self.folder / name).mkdir()
        for tool in TOOLS:
            (self.folder / "bin" / tool).symlink_to(shutil.which(tool))
        for name in ("setup.sh", "pyproject.toml"):
            shutil.copy(ROOT / name, self.folder / "checkout")
        shutil.copytree(ROOT / "launchers", self.folder / "checkout" / "launchers")
        self.disk(free_mb=50_000)
        self.stub("any-python", PYTHON_STUB.replace("REAL_PYTHON", sys.executable))
        self.system("Linux", "x86_64")
        self.env = {
            "PATH": str(self.folder / "bin"), "HOME": str(self.folder / "home"), "STUB_DIR": str(self.folder / "bin"),
            "STUB_CALLS": str(self.folder / "calls"), "STUB_PYTHON": "3.12 x86_64 yes",
        }  # fmt: skip

    def stub(self, name: str, text: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(text if text.startswith("#!") else f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)

    def system(self, name: str, machine: str) -> None:
        self.stub("uname", f'case $1 in -s) echo {name} ;; -m) echo {machine} ;; esac')

    def mac(self, version: str = "15.1", machine: str = "arm64", silicon: bool = True) -> None:
        self.system("Darwin", machine)
        self.stub("sw_vers", f"echo {version}")
        self.stub("sysctl", "echo 1" if silicon else "exit 1")
        self.stub("xcode-select", "exit 2")
        self.env["STUB_PYTHON"] = "3.12 arm64 yes"

    def disk(self, free_mb: int) -> None:
        self.stub("df", f"echo Filesystem 1024-blocks Used Available Capacity Mounted; echo /dev/x 99999999 1 {free_mb * 1024} 1% /")

    def python(self, name: str = "python3.12") -> None:
        shutil.copy(self.folder / "bin" / "any-python", self.folder / "bin" / name)

    def run(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        script = self.folder / "checkout" / "setup.sh"
        return subprocess.run(["bash", script, *arguments], env=self.env | env, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)

    def calls(self) -> list[str]:
        """What was run since the last look."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines

    @property
    def prefix(self) -> Path:
        return self.folder / "home" / ".local" / "mlx-native-server"

    @property
    def venv(self) -> Path:
        return self.folder / "checkout" / ".venv"
