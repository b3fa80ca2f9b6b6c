#!/usr/bin/env bash
# Usage: ./setup.sh COMMAND [ARGUMENTS]
#
#   serve [ARGUMENTS]   set up what is missing, then run the server; arguments go to it (serve --help lists them)
#   test [ARGUMENTS]    set up what is missing, fetch the test model, then run pytest with the arguments
#
# Set-up needs an Apple Silicon Mac with macOS 14 or newer, or Linux, and Python 3.11 or newer. It makes a virtual
# environment in this folder and installs the package there with the MLX build that fits: Metal on a Mac, CUDA where
# nvidia-smi finds a GPU, else CPU. A second run finds everything in place and takes a second; one that was cut off is
# repaired. It changes nothing else and asks nothing.
#
# Variables:
#   PYTHON             the Python to use, in place of the first one found that fits
#   MLX_NATIVE_VENV    where the virtual environment goes, in place of .venv beside this script
#   MLX_NATIVE_BUILD   cpu or cuda13, in place of the MLX build chosen on Linux

# bash 3.2 syntax throughout: that is what macOS ships.
set -u

say() { printf '%s\n' "$*" >&2; }
die() { say "setup: $*"; exit 1; }
usage() { awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' "$script"; }

# ── the machine ──────────────────────────────────────────────────────────────────────────────────

check_machine() {
  system=$(uname -s)
  machine=$(uname -m)
  case $system in
    Darwin) check_mac ;;
    Linux) ;;
    *) die "this runs on macOS and Linux, not on $system." ;;
  esac
}

check_mac() {
  local version
  if [ "$machine" != arm64 ]; then
    [ "$(sysctl -n hw.optional.arm64 2>/dev/null)" = 1 ] &&
      die "this shell runs under Rosetta, where MLX does not work: run  arch -arm64 /bin/bash $script  or open a native Terminal."
    die "this is an Intel Mac, and MLX needs Apple Silicon (M1 or newer)."
  fi
  version=$(sw_vers -productVersion)
  [ "${version%%.*}" -ge 14 ] 2>/dev/null || die "this is macOS $version, and MLX needs macOS 14 or newer."
}

choose_build() {
  if [ "$system" = Darwin ]; then
    build=metal
  elif [ -n "${MLX_NATIVE_BUILD:-}" ]; then
    build=$MLX_NATIVE_BUILD
  elif nvidia-smi -L 2>/dev/null | grep -q '^GPU '; then
    build=cuda13
  else
    build=cpu
  fi
  case $system:$build in
    Darwin:metal | Linux:cpu | Linux:cuda13) ;;
    *) die "MLX_NATIVE_BUILD is '$build', it takes cpu or cuda13." ;;
  esac
}

# ── Python ───────────────────────────────────────────────────────────────────────────────────────

# Without Apple's Command Line Tools, /usr/bin/python3 and its neighbours are shims that open an install dialog
# when they are run, so ask the one real program there first.
has_apple_tools() { xcode-select -p >/dev/null 2>&1; }

python_candidates() {
  local minor name place
  for minor in 13 12 14 11; do
    name=python3.$minor
    if [ "$system" = Darwin ]; then
      printf '%s\n' "/opt/homebrew/bin/$name" "/Library/Frameworks/Python.framework/Versions/3.$minor/bin/$name"
    fi
    command -v "$name"
    printf '%s\n' "$HOME/.local/bin/$name"
    for place in "$HOME/.pyenv/versions/3.$minor".*/bin "$HOME/.local/share/uv/python/cpython-3.$minor".*/bin; do
      printf '%s\n' "$place/$name"
    done
  done
  printf '%s\n' "$HOME/miniforge3/bin/python3" "$HOME/miniconda3/bin/python3" "$HOME/anaconda3/bin/python3"
  command -v python3
}

# Prints "VERSION MACHINE ENSUREPIP" of a Python, or fails where it does not run or lacks a module that is needed.
probe_python() {
  "$1" -c 'import sys, platform, ssl, ctypes, venv, importlib.util as u
print("%d.%d" % sys.version_info[:2], platform.machine(), "yes" if u.find_spec("ensurepip") else "no")' 2>/dev/null </dev/null
}

# Sets $refusal to why a Python cannot be used, or to nothing. $1 is the path, $2 what probe_python printed.
judge_python() {
  local version minor pip
  version=${2%% *}
  minor=${version#3.}
  pip=${2##* }
  refusal=
  if [ -z "$2" ]; then
    refusal="$1 does not run, or lacks ssl, ctypes or venv"
  elif [ "$minor" = "$version" ] || [ "$minor" -lt 11 ]; then
    refusal="$1 is Python $version"
  elif [ "$system" = Darwin ] && [ "$(printf '%s' "$2" | cut -d' ' -f2)" != arm64 ]; then
    refusal="$1 is an Intel build"
  elif [ "$pip" != yes ] && ! have_uv; then
    refusal="$1 cannot make virtual environments (on Debian and Ubuntu: sudo apt-get install python3-venv)"
  fi
}

find_python() {
  local candidate found why
  python=
  why=
  if [ -n "${PYTHON:-}" ]; then
    judge_python "$PYTHON" "$(probe_python "$PYTHON")"
    [ -z "$refusal" ] || die "PYTHON does not fit, Python 3.11 or newer is needed: $refusal."
    python=$PYTHON
    return
  fi
  while IFS= read -r candidate; do
    [ -x "$candidate" ] || continue
    case $system:$candidate in Darwin:/usr/bin/*) has_apple_tools || continue ;; esac
    found=$(probe_python "$candidate")
    judge_python "$candidate" "$found"
    if [ -z "$refusal" ]; then
      python=$candidate
      return
    fi
    # A missing python3-venv is the one reason that a single command mends: it is worth more than the others.
    case $refusal in *venv\)) why=$refusal ;; *) [ -n "$found" ] && why=${why:-$refusal} ;; esac
  done <<END
$(python_candidates)
END
  have_uv || no_python "$why"
}

no_python() {
  local how="on Debian and Ubuntu: sudo apt-get install python3 python3-venv"
  case $1 in *venv\)) die "Python 3.11 or newer is there, but $1." ;; esac
  [ "$system" != Darwin ] || how="install it from python.org, or with  brew install python@3.13"
  die "no Python 3.11 or newer was found${1:+ ($1)}; $how."
}

# ── the environment ──────────────────────────────────────────────────────────────────────────────

have_uv() { command -v uv >/dev/null 2>&1; }

# uv looks through PATH and would run Apple's shims (see has_apple_tools), so there it gets a PATH without them.
run_uv() {
  if [ "$system" = Darwin ] && ! has_apple_tools; then
    PATH="$(dirname "$(command -v uv)"):/bin:/usr/sbin:/sbin" uv "$@" </dev/null
  else
    uv "$@" </dev/null
  fi
}

venv_works() {
  "$venv/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 </dev/null || return 1
  have_uv || "$venv/bin/python" -m pip --version >/dev/null 2>&1 </dev/null
}

make_venv() {
  venv_works && return
  if [ -n "$(ls -A "$venv" 2>/dev/null)" ] && [ ! -e "$venv/pyvenv.cfg" ] && [ "$venv" != "$here/.venv" ]; then
    die "$venv is there and is no virtual environment; move it away or set MLX_NATIVE_VENV."
  fi
  find_python
  say "Making a virtual environment in $venv"
  rm -rf "$venv"
  mkdir -p "$(dirname "$venv")" || die "$(dirname "$venv") cannot be made."
  have_uv || "$python" -m venv "$venv" >"$log" 2>&1 </dev/null
  ! have_uv || run_uv venv --quiet --python "${python:->=3.11}" "$venv" >"$log" 2>&1
  venv_works || install_failed "making the virtual environment"
}

# The package's requirements from pyproject.toml, one a line. CUDA takes the place of the CPU build: both own the
# same library file. $1 is the build, $2 an extra or nothing.
requirements() {
  "$venv/bin/python" - "$here/pyproject.toml" "$1" "$2" <<'END'
import sys, tomllib
path, build, extra = sys.argv[1:]
with open(path, "rb") as file:
    project = tomllib.load(file)["project"]
needed, extras = project["dependencies"], project["optional-dependencies"]
if build == "cuda13":
    needed = [line for line in needed if "[cpu]" not in line] + extras["cuda"]
print("\n".join(needed + (extras[extra] if extra else [])))
END
}

# pip's or uv's output goes to the log; what is being downloaded is shown.
install() {
  local status
  if have_uv; then
    run_uv pip install --python "$venv/bin/python" "$@" 2>&1
  else
    "$venv/bin/python" -m pip install --disable-pip-version-check --no-input --progress-bar off "$@" 2>&1 </dev/null
  fi | tee -a "$log" | sed -n '/kB)/d; /KiB)/d; s/^ *Downloading /  downloading /p' >&2
  status=${PIPESTATUS[0]}
  [ "$status" = 0 ] || install_failed "installing the Python packages"
}

no_network='name resolution|new connection|name or service not known|nodename nor servname|network is unreachable'
no_network="$no_network|failed to fetch|dns error|connection refused|timed out|could not connect|connect error|proxyerror"

install_failed() {
  if grep -qiE "$no_network" "$log"; then
    die "there is no network, or the Python package index cannot be reached; connect and run this again (details: $log)."
  fi
  die "$1 failed: $(grep -v '^ *$' "$log" | tail -1) (details: $log)."
}

# Exit codes of installers are no proof: ask the installed packages themselves.
assert_installed() {
  local wrong
  requirements "$build" "$1" | "$venv/bin/python" -c '
import sys
from importlib.metadata import version
from packaging.requirements import Requirement
import mlx.core
for need in map(Requirement, filter(None, map(str.strip, sys.stdin))):
    if need.marker is None or need.marker.evaluate():
        found = version(need.name)
        if not need.specifier.contains(found, prereleases=True):
            sys.exit(f"{need.name} is {found}, needed is {need.specifier}")
' >>"$log" 2>&1 && return
  wrong="the installed packages do not work: $(tail -1 "$log") (details: $log)"
  [ "$build" != cuda13 ] || wrong="$wrong; MLX_NATIVE_BUILD=cpu $script ... goes without the GPU"
  die "$wrong."
}

# What an environment was made from: while this text stays the same, there is nothing to install.
stamp_text() {
  printf '%s\n' "$build" "$here" "$("$venv/bin/python" -V 2>&1)" "$(cksum <"$here/pyproject.toml")"
}

download_size() { [ "$build" = cuda13 ] && echo "some 2 GB" || echo "about 100 MB"; }

# Installs the package and, with an argument, one of its extras, unless the stamp says that it is done.
set_up() {
  local extra stamp requirement
  extra=${1:-}
  stamp=$venv/.set-up${extra:+-$extra}
  log=$venv.log
  check_machine
  choose_build
  if venv_works && [ "$(cat "$stamp" 2>/dev/null)" = "$(stamp_text)" ]; then return; fi
  make_venv
  rm -f "$venv"/.set-up*
  : >"$log" || die "$log cannot be written."
  say "Installing the package with MLX for $build (the first time $(download_size); log: $log)"
  set --
  while IFS= read -r requirement; do set -- "$@" "$requirement"; done <<END
$(requirements "$build" "$extra")
END
  install "$@"
  install --no-deps --editable "$here"
  assert_installed "$extra"
  stamp_text >"$venv/.set-up" && cp "$venv/.set-up" "$stamp.new" && mv "$stamp.new" "$stamp"
}

hint_openblas() {
  [ "$build" = cpu ] || return 0
  "$venv/bin/python" -c 'import ctypes; ctypes.CDLL("libopenblas.so.0")' 2>/dev/null </dev/null ||
    say "OpenBLAS is missing, so MLX on this CPU is about 10 times slower (on Debian and Ubuntu: apt-get install libopenblas0-pthread)"
}

# ── commands ─────────────────────────────────────────────────────────────────────────────────────

cmd_serve() {
  set_up
  exec "$venv/bin/python" -m mlx_native_server serve "$@"
}

cmd_test() {
  set_up test
  hint_openblas
  "$venv/bin/python" -m mlx_native_server.tiny || exit $?
  cd "$here" || exit 1
  exec "$venv/bin/python" -m pytest "$@"
}

main() {
  here=$(cd "$(dirname "$0")" && pwd) || exit 1
  script=$here/$(basename "$0")
  venv=${MLX_NATIVE_VENV:-$here/.venv}
  case $venv in /*) ;; *) venv=$PWD/$venv ;; esac
  unset PYTHONHOME
  case ${1:-} in
    serve | test) "cmd_$1" "${@:2}" ;;
    -h | --help | help) usage ;;
    *)
      [ -z "${1:-}" ] || say "setup: unknown command '$1'"
      usage >&2
      exit 2
      ;;
  esac
}

main "$@"
