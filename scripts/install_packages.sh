#!/usr/bin/env bash
# Installs the Debian 12 packages that Foresail is built with. Does nothing, and needs no network,
# when all of them are there.
set -euo pipefail

packages=(
  # compiler and build
  g++ cmake ninja-build ccache git ca-certificates
  # libraries of the simulator and the command
  libboost-dev libboost-graph-dev libcli11-dev libeigen3-dev libfmt-dev libspdlog-dev libssl-dev
  libtoml11-dev libyaml-cpp-dev nlohmann-json3-dev
  # the runtime
  libgloo-dev libhiredis-dev libopenblas0-pthread libtorch-dev
  # tests, benchmarks and style
  # (python3-torch brings torchrun; the others are tested against too, and skipped where missing)
  munge python3-torch redis-server slurm-client slurmctld slurmd
  clang-format clang-tidy libbenchmark-dev libgmock-dev libgtest-dev librapidcheck-dev
  # the Python package
  pybind11-dev python3 python3-dev python3-venv
)

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null || true)
  [[ $status == "install ok installed" ]] || missing+=("$package")
done
if ((${#missing[@]} == 0)); then
  echo "all ${#packages[@]} packages are installed"
  exit 0
fi

echo "installing: ${missing[*]}"
as_root=()
if ((EUID != 0)); then
  as_root=(sudo)
fi
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update
"${as_root[@]}" apt-get install --yes --no-install-recommends "${missing[@]}"
