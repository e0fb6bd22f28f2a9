#!/usr/bin/env bash
# Fuzzes the scenario, schedule-text and CSV readers under ASan + UBSan, FUZZ_SECONDS (default 60) in all, all at once, fixed seed.
# A crash leaves its input in build-fuzz/crash-* and fails.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${FUZZ_SECONDS:-60}
targets=(scenario schedule_text csv)
declare -A running
mkdir -p build-fuzz
cmake --preset fuzz >build-fuzz/build.log 2>&1 || { cat build-fuzz/build.log; exit 1; }
cmake --build --preset fuzz -j "$(nproc)" --target "${targets[@]/#/fuzz_}" >>build-fuzz/build.log 2>&1 || { tail -40 build-fuzz/build.log; exit 1; }
each=$(( (seconds + ${#targets[@]} - 1) / ${#targets[@]} ))
for target in "${targets[@]}"; do
  corpus=build-fuzz/corpus-$target
  mkdir -p "$corpus"
  seeds=()
  case $target in
    scenario) seeds=(scenarios/*.json tests/golden/broken/*.json) ;;
    schedule_text) seeds=(scenarios/*.sched) ;;
    csv) seeds=(tests/data/*.csv) ;;
  esac
  for seed in "${seeds[@]}"; do [[ -e $seed ]] && cp "$seed" "$corpus/"; done
  echo "fuzz $target: $each s"
  build-fuzz/fuzz_"$target" -seed=1 -max_total_time="$each" -timeout=10 -rss_limit_mb=4096 -max_len=8192 -artifact_prefix=build-fuzz/crash-"$target"- \
    -print_final_stats=1 "$corpus" >build-fuzz/log-"$target" 2>&1 &
  running[$target]=$!
done
failed=0
for target in "${targets[@]}"; do
  wait "${running[$target]}" || { tail -60 build-fuzz/log-"$target"; failed=1; }
  grep -E 'stat::number_of_executed_units' build-fuzz/log-"$target" || true
done
exit $failed
