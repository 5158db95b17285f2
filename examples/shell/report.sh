#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# report.sh - add up the numbers of a report.
#
#   stint enqueue report '{"name": "June", "numbers": [3, 4, 5]}'
#
# The payload comes on stdin.  What goes to stdout is the job's result, kept as JSON when it is
# JSON; what goes to stderr can be read with `stint job logs`.
set -eu

payload=$(cat)
name=$(printf '%s' "$payload" | sed -n 's/.*"name" *: *"\([^"]*\)".*/\1/p')
numbers=$(printf '%s' "$payload" | sed -n 's/.*"numbers" *: *\[\([^]]*\)\].*/\1/p')

echo "adding up $name" >&2
sum=$(printf '%s' "$numbers" | tr ',' '\n' | awk '{ sum += $1 } END { print sum + 0 }')
printf '{"name": "%s", "sum": %s}\n' "$name" "$sum"
