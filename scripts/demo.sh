#!/usr/bin/env bash
# The first run of the README, verbatim. The database is ./steptwin.db, as for any user.
set -euo pipefail
cd "$(dirname "$0")/.."
steptwin=$1
run() {
  local words=() word
  for word in "$@"; do [[ $word == *[!A-Za-z0-9_./@=-]* ]] && words+=("\"$word\"") || words+=("$word"); done
  echo "\$ ${words[*]/#$steptwin/steptwin}"
  "$@"
  echo
}
run "$steptwin" simulate scenarios/gpt2_pp4.json
run "$steptwin" query --name bubble_by_rank @last
run "$steptwin" query "select rank, curve, bytes, op_name from memory_peak where run_id = (select max(id) from runs) and space = 'device' and curve = 'allocated'"
# The same kind of schedule for real: tensors and gradients on the CPU, checked against the plain model and against the prediction.
run "$steptwin" execute scenarios/gpt2_pp4_small.json --warmup 3 --steps 10 --check
run "$steptwin" compare @last-exec
