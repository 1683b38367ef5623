# Shared by the other scripts, which source it. Changes into the project's root, and defines:
#   say TEXT...            a line of progress
#   quietly NAME COMMAND   runs COMMAND with its output in build/logs/NAME.log; if it fails, shows
#                          the last lines of the log and ends the script
#   set_up_packages, set_up_python, build PRESET [TARGET...]

cd "$(dirname "${BASH_SOURCE[0]}")/.."
mkdir -p build/logs

# One compiler cache for all build folders and clones: paths are hashed relative to the root.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1 CCACHE_COMPILERCHECK=content
# One name for the compiler, since the cache tells names apart and pip would use another.
export CXX=${CXX:-c++}
export CTEST_PARALLEL_LEVEL=${CTEST_PARALLEL_LEVEL:-2}
jobs=${FORESAIL_JOBS:-2}
# Python of the venv; nothing is written beside the sources.
python=.venv/bin/python
export PYTHONDONTWRITEBYTECODE=1

say() { printf '%s\n' "== $*"; }

quietly() {
  local log=build/logs/$1.log
  shift
  local started=$SECONDS
  if ! "$@" >"$log" 2>&1 </dev/null; then
    say "failed after $((SECONDS - started)) s: $*" >&2
    tail -n 60 "$log" >&2
    say "the whole output is in $log" >&2
    exit 1
  fi
  say "  $((SECONDS - started)) s; log in $log"
}

set_up_packages() {
  say "Debian packages (installs what is missing)"
  quietly packages scripts/install_packages.sh
}

set_up_python() {
  say "Python environment .venv (makes it if it is not complete)"
  quietly python_env scripts/python_env.sh
}

build() {
  local preset=$1
  shift
  say "build '$preset'${*:+: $*} in build/$preset"
  quietly "configure_$preset" cmake --preset "$preset"
  quietly "build_$preset" ninja -C "build/$preset" -j "$jobs" "$@"
}
