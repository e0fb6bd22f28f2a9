#!/usr/bin/env bash
# Compiles and links the CUDA backend where nvcc and a torch wheel with CUDA can be had, so that it cannot rot where no GPU is. Prints
# "CUDA build skipped: <reason>" where not. In a BUILD_DIR that has the CPU build, what both share is compiled already.
# usage: scripts/cuda-build.sh [BUILD_DIR]
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build-cuda}
skip() { echo "CUDA build skipped: $*"; exit 0; }
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null || true)
[[ -n $nvcc ]] || skip "no nvcc (CUDA toolkit 13)"
release=$("$nvcc" --version | grep -oP 'release \K[0-9]+' || echo 0)
[[ $release -ge 13 ]] || skip "nvcc is of CUDA $release; the wheel needs 13"
torch=$(scripts/cuda-wheel.sh 2>/tmp/steptwin-wheel.$$) || skip "$(tail -1 /tmp/steptwin-wheel.$$; rm -f /tmp/steptwin-wheel.$$)"
rm -f /tmp/steptwin-wheel.$$
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DSTEPTWIN_CUDA=ON \
  -DSTEPTWIN_TORCH_DIR="$torch" -DCMAKE_CUDA_COMPILER="$nvcc" >"$build.log" 2>&1 || { cat "$build.log"; exit 1; }
rm -f "$build.log"
cmake --build "$build" --target steptwin_cuda conformance_cuda cuda_overhead cuda_speed_server
echo "CUDA build: $build/libsteptwin_cuda.so ($(du -h "$build/libsteptwin_cuda.so" | cut -f1)), torch in $torch"
# Without a GPU every test skips and says why; the binary must at least load and run.
ctest --test-dir "$build" -L gpu --output-on-failure
"$build"/tests/conformance_cuda 2>/dev/null | grep -m1 -A1 'Skipped' || true
