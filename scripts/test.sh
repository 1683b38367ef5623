#!/usr/bin/env bash
# Installs what is needed, builds everything, and runs all tests of C++ and Python.
set -euo pipefail
source "$(dirname "$0")/setup.sh"

set_up_packages
build dev
say "every public header compiles on its own"
quietly build_headers cmake --build --preset headers -j "$jobs"
say "C++ tests, style and installation included"
quietly ctest_dev ctest --preset dev
grep -E "tests passed|tests failed|Total Test time" build/logs/ctest_dev.log

set_up_python
say "the Python package"
quietly pip_install "$python" -m pip install --no-build-isolation --no-deps --force-reinstall .
say "Python tests"
quietly pytest "$python" -m pytest python/tests
tail -n 1 build/logs/pytest.log
say "test.sh: all passed in $SECONDS s"
