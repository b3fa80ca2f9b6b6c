# shellcheck shell=bash
# Sourced by setup.sh: finding a Python that fits. Sets $python, or leaves it empty where uv can bring one.
# shellcheck disable=SC2154,SC2034  # $system comes from machine.sh, $python is used by environment.sh

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
