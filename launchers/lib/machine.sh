# shellcheck shell=bash
# Sourced by setup.sh: what this machine is, and which MLX build fits. Sets $system, $machine and $build.
# shellcheck disable=SC2154  # $script is set by setup.sh

say() { printf '%s\n' "$*" >&2; }
die() { say "setup: $*"; exit 1; }

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
