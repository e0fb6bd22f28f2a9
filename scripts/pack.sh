#!/usr/bin/env bash
# For a GPU node without internet. On a connected Debian machine: packs the sources and the -dev packages that a GPU image lacks (headers and libraries,
# unpacked, nothing installed) into one archive. There: tar xf, then scripts/build-packed.sh.
# usage: scripts/pack.sh [ARCHIVE.tar.gz]      (default steptwin-pack.tar.gz)
set -euo pipefail
cd "$(dirname "$0")/.."
archive=$(realpath -m "${1:-steptwin-pack.tar.gz}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git archive --prefix=steptwin/ HEAD | tar x -C "$work"
packages=(libfmt-dev libfmt9 nlohmann-json3-dev libsqlite3-dev libsqlite3-0 libgtest-dev libgmock-dev googletest libboost1.74-dev
          libboost-program-options1.74-dev libboost-program-options1.74.0)
mkdir "$work/deb" "$work/steptwin/.packed"
(cd "$work/deb" && apt-get download -qq "${packages[@]}")
for package in "$work"/deb/*.deb; do dpkg -x "$package" "$work/steptwin/.packed"; done
rm -rf "$work/steptwin/.packed/usr/share/doc"
find "$work/steptwin/.packed/usr/include/boost" -mindepth 1 -maxdepth 1 -type d \( -name spirit -o -name asio -o -name beast -o -name geometry -o -name phoenix \
  -o -name hana -o -name compute -o -name log -o -name math -o -name metaparse -o -name gil -o -name polygon \) -exec rm -rf {} +
git rev-parse --short HEAD >"$work/steptwin/.packed/revision"
tar czf "$archive" -C "$work" steptwin
echo "$archive ($(du -h "$archive" | cut -f1)): tar xf it on the GPU node, then steptwin/scripts/build-packed.sh"
