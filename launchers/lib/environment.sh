# shellcheck shell=bash
# Sourced by setup.sh: the virtual environment $venv with the package of $here in it, made, repaired or found in place.
# shellcheck disable=SC2154  # $system, $build, $python, $here, $script and $venv are set by setup.sh and its other parts

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
  if [ -n "$(ls -A "$venv" 2>/dev/null)" ] && [ ! -e "$venv/pyvenv.cfg" ] && [ "$venv" != "$here/.venv" ] && [ "$venv" != "$prefix/venv" ]; then
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

# Whether the environment is as it should be; $1 is an extra or nothing.
is_set_up() { venv_works && [ "$(cat "$venv/.set-up${1:+-$1}" 2>/dev/null)" = "$(stamp_text)" ]; }

# Installs the package and, with an argument, one of its extras, unless the stamp says that it is done.
set_up() {
  local extra stamp requirement
  extra=${1:-}
  stamp=$venv/.set-up${extra:+-$extra}
  log=$venv.log
  check_machine
  choose_build
  if is_set_up "$extra"; then return; fi
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
