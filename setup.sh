#!/usr/bin/env bash
# Usage: ./setup.sh [COMMAND] [ARGUMENTS]
#
#   install [--model NAME] [--service] [--dry-run]
#                       for good: an environment in ~/.local/mlx-native-server, commands in ~/.local/bin, the model
#                       that fits this machine's memory (or NAME), with --service a background service.
#                       What happens without a command. Run it again to repair, or to change the model.
#   status              say what runs and where its files are
#   start, stop, restart
#                       the server in the background; each waits until it is so
#   logs [--follow]     the end of its log
#   update              newer files from git, newer packages where those ask for them, then a restart
#   uninstall [--keep-models] [--dry-run]
#                       take away exactly what install made
#
#   serve [ARGUMENTS]   run the server here, without installing; arguments go to it (serve --help lists them)
#   test [ARGUMENTS]    fetch the test model, then run pytest with the arguments
#
# It takes an Apple Silicon Mac with macOS 14 or newer, or Linux, and Python 3.11 or newer, and installs the MLX build
# that fits: Metal on a Mac, CUDA where nvidia-smi finds a GPU, else CPU. serve and test use an environment in this
# folder (or the installed one) and change nothing else. --dry-run says what would be done.
#
# Variables:
#   PYTHON             the Python to use, in place of the first one found that fits
#   MLX_NATIVE_VENV    where serve and test have their environment, in place of .venv beside this script
#   MLX_NATIVE_BUILD   cpu or cuda13, in place of the MLX build chosen on Linux

# bash 3.2 syntax throughout: that is what macOS ships.
set -u

usage() { awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' "$script"; }

wrong_usage() {
  [ -z "${1:-}" ] || say "setup: unknown: $1"
  usage >&2
  exit 2
}

cmd_serve() {
  # an installation from this folder will do; a second environment would only cost room
  if [ -z "${MLX_NATIVE_VENV:-}" ] && [ ! -d "$venv" ] && [ "$(readlink "$prefix/checkout")" = "$here" ]; then venv=$prefix/venv; fi
  set_up
  exec "$venv/bin/python" -m mlx_native_server serve "$@"
}

cmd_test() {
  set_up test
  hint_openblas
  "$venv/bin/python" -m mlx_native_server.models.tiny || exit $?
  cd "$here" || exit 1
  exec "$venv/bin/python" -m pytest "$@"
}

main() {
  here=$(cd "$(dirname "$0")" && pwd) || exit 1
  script=$here/$(basename "$0")
  local part command=${1:-install}
  [ $# = 0 ] || shift
  for part in machine python environment install; do
    # shellcheck source=/dev/null
    . "$here/launchers/lib/$part.sh" || exit 1
  done
  prefix=${HOME:?}/.local/mlx-native-server
  venv=$prefix/venv
  unset PYTHONHOME
  case $command in
    install | update | uninstall) "cmd_$command" "$@" ;;
    status | start | stop | restart | logs) cmd_program "$command" "$@" ;;
    serve | test)
      venv=${MLX_NATIVE_VENV:-$here/.venv}
      case $venv in /*) ;; *) venv=$PWD/$venv ;; esac
      "cmd_$command" "$@"
      ;;
    -h | --help | help) usage ;;
    *) wrong_usage "'$command'" ;;
  esac
}

main "$@"
