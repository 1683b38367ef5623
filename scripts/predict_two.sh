#!/usr/bin/env bash
# Predicts and measures one step of a small GPT on two processes of this host, for data, tensor and
# pipeline parallelism, and prints the errors. Run it on an idle host, after scripts/demo.sh or
# scripts/test.sh has built Foresail.
set -euo pipefail
source "$(dirname "$0")/setup.sh"
foresail=build/dev/bin/foresail
mkdir -p build/predict_two
for name in dp2 tp2 pp2; do
  folder=build/predict_two/$name
  mkdir -p "$folder"
  "$foresail" plan scenarios/cpu_gpt/$name.yaml -o "$folder/plan.yaml" >/dev/null
  "$foresail" calibrate --plan "$folder/plan.yaml" -o "$folder/profile.yaml" >/dev/null 2>&1
  "$foresail" simulate "$folder/plan.yaml" --profile "$folder/profile.yaml" \
    --trace "$folder/predicted.json" >/dev/null
  "$foresail" run "$folder/plan.yaml" --launch 2 -o "$folder/run" >/dev/null 2>&1
  "$foresail" compare "$folder/predicted.json" "$folder/run/trace.json" >"$folder/compare.txt"
  printf '%s  ' "$name"
  grep -E '^step ' "$folder/compare.txt"
done
