#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# run_tests.sh [pytest arguments] - build the wheel, install it into a fresh venv, test it there.
#
#   PYTHON      which Python [python3]
#   BUILD       where stint was built [../../build]; or STINT_BIN and STINT_LIB name the files
#   STINT_ALLOW_SKIP=1   go on without the program and the library: the client is not tested
#
# Needs no network where the Python has setuptools, wheel and pytest; what is missing is
# fetched with pip. Nothing is written into the source tree.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}
build=${BUILD:-$here/../../build}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

say() { printf 'sdk/python: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

# The first of the files that is there.
first() { for f in "$@"; do [ -e "$f" ] && { realpath "$f"; return; }; done; true; }

STINT_BIN=${STINT_BIN:-$(first "$build/stint" "$build/src/cli/stint")}
STINT_LIB=${STINT_LIB:-$(first "$build/libstint.so")}
if [ -z "$STINT_BIN" ] || [ -z "$STINT_LIB" ]; then
    [ "${STINT_ALLOW_SKIP:-}" = 1 ] || fail "no stint in $build: build it, or set STINT_BIN and STINT_LIB"
    say "SKIPPED: the client is not tested, there is no stint in $build"
fi
export STINT_BIN STINT_LIB STINT_INCLUDE="${STINT_INCLUDE:-$here/../../include}"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PYTHONDONTWRITEBYTECODE=1
unset PYTHONPATH STINT_STORE STINT_CONFIG STINT_MAX_IN_FLIGHT

# What the venv sees of the system is pytest and the build tools; the package comes from the wheel.
"$python" -m venv --system-site-packages "$work/venv" || fail "cannot make a venv with $python"
py=$work/venv/bin/python

mkdir "$work/source"
cp -R "$here"/{pyproject.toml,README.md,src} "$work/source"
find "$work/source" -name __pycache__ -prune -exec rm -rf {} +
wheel() { "$py" -m pip wheel --quiet --no-deps --wheel-dir "$work/dist" "$@" "$work/source"; }
wheel --no-build-isolation 2>"$work/log" || wheel 2>>"$work/log" || { cat "$work/log" >&2; fail "no wheel"; }
"$py" -m pip install --quiet --no-deps --no-index --force-reinstall "$work"/dist/stint-*.whl
"$py" -c 'import pytest' 2>/dev/null || "$py" -m pip install --quiet pytest

cp -R "$here/tests" "$here/README.md" "$work"
cd "$work"
at=$("$py" -c 'import stint; print(stint.__file__)')
case $at in "$work"/*) ;; *) fail "the tests would use $at" ;; esac
say "$("$py" --version), $(basename "$work"/dist/stint-*.whl)"
"$py" -m pytest -q -p no:cacheprovider "$@" tests
