#!/usr/bin/env bash
# Foresail's main job from nothing: predicts a published training step on 12,288 GPUs, then plans a
# small GPT on this host, predicts its step, trains it, and compares.
set -euo pipefail
source "$(dirname "$0")/setup.sh"

show() {
  printf '\n$ foresail %s\n' "$*"
  build/dev/bin/foresail "$@"
}

set_up_packages
build dev foresail foresail-worker
mkdir -p build/demo

say "a published job: 175B parameters on 12,288 GPUs, and the system it was compared with"
show simulate scenarios/megascale_175b_12288/scenario.yaml
show simulate scenarios/megatron_lm_175b_12288/scenario.yaml

say "a job for this host: a small GPT on 4 processes"
show plan scenarios/cpu_gpt/scenario.yaml -o build/demo/plan.yaml
show calibrate --plan build/demo/plan.yaml -o build/demo/profile.yaml
show simulate build/demo/plan.yaml --profile build/demo/profile.yaml \
  --trace build/demo/predicted.json
show run build/demo/plan.yaml --launch 4 --steps 60 -o build/demo/run
show compare build/demo/predicted.json build/demo/run/trace.json
say "demo.sh: done in $SECONDS s; plan, profile and traces are in build/demo"
