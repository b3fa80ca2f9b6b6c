# shellcheck shell=bash
# Sourced by the launchers: runs Claude Code with a profile ($1) and the user's arguments (the rest). What happens then
# is in mlx_native_server/operate/launch.py; here only its Python is found.

launch() {
  local root candidate
  root=$(cd "$(dirname "$1")/.." && pwd) || exit 1
  # the installed environment, else the one that ./setup.sh serve has made, else the caller's choice
  for candidate in "${MLX_PYTHON:-}" "$HOME/.local/mlx-native-server/venv/bin/python" "$root/.venv/bin/python"; do
    if [ -n "$candidate" ] && PYTHONPATH=$root "$candidate" -c 'import mlx_native_server' 2>/dev/null; then
      PYTHONPATH=$root exec "$candidate" -m mlx_native_server.operate.launch "${@:2}"
    fi
  done
  printf '%s: nothing is installed yet, or it is broken: run  %s/setup.sh install\n' "$(basename "$0")" "$root" >&2
  exit 1
}
