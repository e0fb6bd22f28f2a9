#!/usr/bin/env bash
# Installs the Debian packages that steptwin's build and tests need and that are missing. Says what it installs; does nothing
# where all is there (then no root is needed).
set -euo pipefail
cd "$(dirname "$0")/.."
missing=()
while read -r package _; do
  [[ -z "$package" || "$package" == \#* ]] && continue
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done < scripts/apt-deps.txt
[[ ${#missing[@]} -eq 0 ]] && exit 0
echo "steptwin: installing ${missing[*]}" >&2
run=()
if [[ $(id -u) -ne 0 ]]; then
  command -v sudo >/dev/null || { echo "steptwin: missing packages and neither root nor sudo: ask your administrator for: ${missing[*]}" >&2; exit 1; }
  run=(sudo)
fi
log=$(mktemp)
if ! { "${run[@]}" apt-get update -qq && "${run[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
  cat "$log" >&2
  exit 1
fi
rm -f "$log"
