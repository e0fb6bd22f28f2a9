#!/usr/bin/env bash
# On a GPU node without internet, in a folder that scripts/pack.sh packed: builds steptwin with its CUDA backend (and, from the same torch wheel, its CPU
# backend) against the node's own CUDA toolkit, NCCL and torch. usage: scripts/build-packed.sh [cmake arguments]
set -euo pipefail
cd "$(dirname "$0")/.."
[[ -d .packed/usr ]] || { echo "no .packed folder here: make the archive with scripts/pack.sh on a connected machine" >&2; exit 2; }
packed=$PWD/.packed/usr
torch=$(python3 -c 'import torch, os; print(os.path.dirname(torch.__file__))') || { echo "python3 imports no torch: pip install torch==2.11.0" >&2; exit 7; }
cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DSTEPTWIN_TORCH=OFF -DSTEPTWIN_CUDA=ON -DSTEPTWIN_TORCH_DIR="$torch" -DSTEPTWIN_BENCH=OFF \
  -DCMAKE_PREFIX_PATH="$packed" -DCMAKE_LIBRARY_PATH="$packed/lib/x86_64-linux-gnu" -DCMAKE_INCLUDE_PATH="$packed/include" \
  -DCMAKE_BUILD_RPATH="$packed/lib/x86_64-linux-gnu" "$@"
cmake --build build
echo "built: LD_LIBRARY_PATH=$packed/lib/x86_64-linux-gnu build/steptwin doctor"
