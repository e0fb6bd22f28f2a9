#!/usr/bin/env bash
# The conformance suite on the executors under ThreadSanitizer: every op kind, failures, stops and random schedules in `threads` mode,
# compute ops of tests/fake_ops. A report of a race fails. No suppressions.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build-tsan
cmake --preset tsan >build-tsan/build.log 2>&1 || { cat build-tsan/build.log; exit 1; }
cmake --build --preset tsan -j "$(nproc)" --target conformance_threads >>build-tsan/build.log 2>&1 ||
  { tail -40 build-tsan/build.log; exit 1; }
# Kernels with many random address bits place memory where ThreadSanitizer does not expect it; without randomisation they do not.
fixed=()
setarch -R true 2>/dev/null && fixed=(setarch -R)
# Some buffers are larger than any computer: the allocator must say no, not end the program.
export TSAN_OPTIONS="halt_on_error=1 allocator_may_return_null=1"
"${fixed[@]}" build-tsan/tests/conformance_threads --gtest_brief=1 >build-tsan/tests.log 2>&1 ||
  { tail -80 build-tsan/tests.log; exit 1; }
echo "tsan: $(grep -E 'tests from .* ran' build-tsan/tests.log | sed 's/^\[=*\] //') no data race"
