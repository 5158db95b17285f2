#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# run.sh TARGET CORPUS RUNS - run a fuzz target from the seeds in CORPUS, which stays as it is:
# what the run finds goes to a directory of its own, and is left there only after a failure.
set -eu

target=$1 corpus=$2 runs=$3
found=$(mktemp -d "${TMPDIR:-/tmp}/stint-fuzz.XXXXXX")
if "$target" -runs="$runs" -max_len=4096 -timeout=10 -print_final_stats=1 \
    -artifact_prefix="$found/" "$found" "$corpus"; then
    rm -r "$found"
else
    echo "the input is in $found" >&2
    exit 1
fi
