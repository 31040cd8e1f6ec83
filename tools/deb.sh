#!/bin/sh
# Builds the Debian package from what `make` has built: build/deb/peftd_VERSION_ARCH.deb.
# DEB_VERSION is another version than the program's, to try upgrades.
set -eu
cd "$(dirname "$0")/.."

tools/deps.sh deb
tree=$PWD
out=$tree/build/deb
version=${DEB_VERSION:-$(build/peftd version | sed -n 's/^peftd //p')}
rm -rf "$out/src"
mkdir -p "$out/src"
cp -r deploy/debian "$out/src/debian"
date=$(git log -1 --format=%cD 2>/dev/null) || date=$(date -R)
sed -n 's/^Maintainer: //p' deploy/debian/control | while read -r maintainer; do
    printf 'peftd (%s) unstable; urgency=medium\n\n  * See the history of the source.\n\n -- %s  %s\n' \
        "$version" "$maintainer" "$date" >"$out/src/debian/changelog"
done
cd "$out/src"
PEFTD_TREE=$tree DEB_BUILD_OPTIONS=noautodbgsym dpkg-buildpackage -b -us -uc -d >"$out/build.log" 2>&1 || {
    tail -30 "$out/build.log"
    exit 1
}
rm -rf "$out/src"
ls "$out/peftd_${version}_"*.deb
