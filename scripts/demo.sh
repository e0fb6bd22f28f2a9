#!/usr/bin/env bash
# The first run of the README, verbatim.
set -euo pipefail
cd "$(dirname "$0")/.."
steptwin=$1
run() { echo "\$ ${*/#$steptwin/steptwin}"; "$@"; echo; }
run "$steptwin" simulate scenarios/gpt2_pp4.json
run "$steptwin" query --name bubble @last
run "$steptwin" query "select rank, space, curve, bytes, op from memory_peak where run_id = (select max(id) from runs) and space = 'device' and curve = 'allocated'"
