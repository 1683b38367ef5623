#!/usr/bin/env bash
# Builds foresail-worker against the Python registry's torch, which has CUDA, from nothing:
#   scripts/cuda_build.sh [FOLDER]     FOLDER (default build/torch_wheel) receives some 6 GB
# TORCH_VERSION chooses the wheel (default 2.15.0: CUDA 13.2). No GPU is needed to build; what runs
# on one then stands in docs/guides/gpu.md.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

folder=$(realpath -m "${1:-build/torch_wheel}")
version=${TORCH_VERSION:-2.15.0}

set_up_packages
set_up_python
if [[ ! -e $folder/torch/lib/libc10_cuda.so ]]; then
  say "torch $version with CUDA into $folder"
  # CRT and CCCL: headers that CUDA's runtime headers include.
  quietly torch_wheel "$python" -m pip install --no-compile --target "$folder" \
    "torch==$version" nvidia-cuda-crt nvidia-cuda-cccl
fi
say "build 'cuda' in build/cuda"
quietly configure_cuda cmake --preset cuda -DFORESAIL_TORCH_WHEEL="$folder"
quietly build_cuda ninja -C build/cuda -j "$jobs" foresail foresail-worker runtime_gpu_test \
  runtime_communicator_test
say "what this host has"
build/cuda/bin/foresail-worker devices
say "this libtorch on the CPUs: collectives, and two processes that train"
quietly cuda_communicators build/cuda/bin/runtime_communicator_test
quietly cuda_plan build/cuda/bin/foresail plan scenarios/cpu_gpt/tp2.yaml -o build/cuda/tp2.yaml
build/cuda/bin/foresail run build/cuda/tp2.yaml --launch 2 -o build/cuda/run_tp2
say "tests that need a GPU"
ctest --test-dir build/cuda -L gpu --output-on-failure
