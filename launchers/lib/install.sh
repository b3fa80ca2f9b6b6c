# shellcheck shell=bash
# Sourced by setup.sh: install, update and uninstall. What needs no shell is in mlx_native_server/operate/install.py.
# shellcheck disable=SC2154  # $here, $script, $venv, $build and $python are set by setup.sh and its other parts

# Reads the options that a command takes ($1: a list of them in blanks) into $dry and $options.
read_options() {
  local known=" $1 "
  shift
  dry='' options=()
  while [ $# -gt 0 ]; do
    case $1 in --model=*) set -- --model "${1#*=}" "${@:2}" ;; esac
    case $known in *" $1 "*) ;; *) wrong_usage "'$1'" ;; esac
    case $1 in
      --model)
        [ -n "${2:-}" ] || wrong_usage "--model without a model"
        options+=(--model "$2")
        shift
        ;;
      --dry-run) dry=1 && options+=("$1") ;;
      *) options+=("$1") ;;
    esac
    shift
  done
}

# Runs the Python half with the environment's Python or, where that is missing or broken, with any that fits.
run_installer() {
  local runner=$venv/bin/python
  if ! venv_works; then
    find_python
    runner=$python
    [ -n "$runner" ] || die "no Python 3.11 or newer was found to do this with."
  fi
  PYTHONPATH=$here PYTHONDONTWRITEBYTECODE=1 "$runner" -m mlx_native_server.operate.install "$@"
}

check_disk() {
  local free_mb need_mb=3000
  [ "$build" != cuda13 ] || need_mb=8000
  free_mb=$(df -Pk "$HOME" 2>/dev/null | awk 'NR == 2 { print int($4 / 1024) }')
  [ "${free_mb:-$need_mb}" -ge "$need_mb" ] ||
    die "the disk that holds $HOME has $free_mb MB free, and the environment needs $need_mb MB (a model comes on top): make room first."
}

# Makes the prefix and remembers which folders were not there before, for uninstall.
make_prefix() {
  local folder new=
  for folder in "$HOME/.local" "$prefix"; do
    [ -d "$folder" ] || new="$new$folder
"
  done
  mkdir -p "$prefix" || die "$prefix cannot be made."
  [ -z "$new" ] || printf '%s' "$new" >>"$prefix/new-folders"
}

# set_up with all that pip or uv would leave elsewhere in the prefix: what they have downloaded stays there until the
# environment is complete, so that a second try need not fetch it again.
set_up_prefix() {
  (
    export PIP_CACHE_DIR="${PIP_CACHE_DIR:-$prefix/cache}" UV_CACHE_DIR="${UV_CACHE_DIR:-$prefix/cache}"
    export UV_PYTHON_INSTALL_DIR="${UV_PYTHON_INSTALL_DIR:-$prefix/python}"
    set_up
  ) || exit $?
  rm -rf "$prefix/cache"
}

cmd_install() {
  read_options "--model --service --dry-run" "$@"
  check_machine
  choose_build
  if [ -n "$dry" ]; then
    say "would make the environment $venv with MLX for $build, from $here"
  else
    is_set_up || check_disk
    make_prefix
    set_up_prefix
    hint_openblas
  fi
  run_installer install --checkout "$here" ${options[@]+"${options[@]}"}
}

cmd_update() {
  read_options "" "$@"
  must_be_installed
  if [ ! -e "$here/.git" ]; then
    say "$here is no git checkout: replace its files with newer ones yourself; their requirements are seen to now."
  elif [ "$system" = Darwin ] && ! has_apple_tools; then
    say "git needs Apple's Command Line Tools (xcode-select --install); the files stay as they are."
  else
    git -C "$here" pull --ff-only || die "git could not update $here, see above; nothing was changed."
  fi
  set_up_prefix
  run_installer install --checkout "$here"
  "$venv/bin/python" -m mlx_native_server status >/dev/null 2>&1 || return 0
  "$venv/bin/python" -m mlx_native_server restart
}

cmd_uninstall() {
  read_options "--keep-models --dry-run" "$@"
  check_machine
  [ -d "$prefix" ] || { say "nothing is installed in $prefix"; return; }
  run_installer remove --checkout "$here" ${options[@]+"${options[@]}"} || exit $?
  [ -n "$dry" ] || rm -rf "$here/mlx_native_server.egg-info"
}

must_be_installed() {
  check_machine
  choose_build
  venv_works || die "nothing is installed, or it is broken: run  $script install  first."
}

# status, start, stop, restart and logs are the program's own commands.
cmd_program() {
  must_be_installed
  exec "$venv/bin/python" -m mlx_native_server "$@"
}
