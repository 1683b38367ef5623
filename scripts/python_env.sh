#!/usr/bin/env bash
# Makes .venv on Debian's Python with what python/requirements.txt lists. Does nothing, and needs no
# network, when the environment is complete.
set -euo pipefail
cd "$(dirname "$0")/.."

complete=.venv/requirements.installed
if cmp --silent python/requirements.txt "$complete" && .venv/bin/python -c 'import pandas'; then
  echo ".venv is complete"
  exit 0
fi
/usr/bin/python3 -m venv --clear --system-site-packages .venv
.venv/bin/python -m pip install --requirement python/requirements.txt
cp python/requirements.txt "$complete"
