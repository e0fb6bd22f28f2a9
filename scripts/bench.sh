#!/usr/bin/env bash
# Runs every benchmark; each compares inside one run and prints minima.
set -euo pipefail
build=$1
for bench in "$build"/*_bench; do
  echo "== $(basename "$bench")"
  "$bench"
done
