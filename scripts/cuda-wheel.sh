#!/usr/bin/env bash
# Prints the torch folder of a pip wheel with CUDA, for STEPTWIN_TORCH_DIR: of the one python3 imports, else of a copy in the cache
# (${XDG_CACHE_HOME:-~/.cache}/steptwin), which is downloaded once: of torch alone, 0.5 GB to fetch, 1.4 GB on disk. Enough to
# compile and link; to run, pip install torch on the GPU machine. Exit 1 with the reason when neither can be had.
set -euo pipefail
version=2.11.0
own=$(python3 -c 'import torch, os; print(os.path.dirname(torch.__file__))' 2>/dev/null || true)
if [[ -n "$own" && -e "$own/lib/libtorch_cuda.so" ]]; then
  echo "$own"
  exit 0
fi
cache=${STEPTWIN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/steptwin}
folder=$cache/torch-$version
if [[ ! -e $folder/torch/lib/libtorch_cuda.so ]]; then
  mkdir -p "$cache" 2>/dev/null || { echo "the cache folder $cache cannot be made" >&2; exit 1; }
  free=$(df --output=avail -BM "$cache" | tail -1 | tr -dc 0-9)
  [[ $free -ge 6000 ]] || { echo "the torch wheel needs 6 GB free in $cache, there are $((free / 1000))" >&2; exit 1; }
  python3 -m pip --version >/dev/null 2>&1 || { echo "pip is missing, which fetches the torch wheel" >&2; exit 1; }
  work=$(mktemp -d "$cache/fetch.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  python3 -m pip download -q --no-deps --only-binary=:all: -d "$work" "torch==$version" >&2 || { echo "pip could not download torch $version" >&2; exit 1; }
  python3 -m zipfile -e "$work"/torch-*.whl "$work/unpacked"
  [[ -e $work/unpacked/torch/lib/libtorch_cuda.so ]] || { echo "the torch wheel for this platform has no CUDA" >&2; exit 1; }
  rm -rf "$folder"
  mv "$work/unpacked" "$folder"
fi
echo "$folder/torch"
