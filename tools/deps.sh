#!/bin/sh
# Installs the Debian packages that are missing, and says nothing when none is.
# Usage: tools/deps.sh [PACKAGE...]   (without one: all that the build and the tests need)
set -eu
cd "$(dirname "$0")"

# One at a time: `make -j` may ask for the packages in two places at once. The lock is on
# this file and ends with the shell; what a package starts does not inherit it.
exec 9<deps.sh
flock 9

[ $# -gt 0 ] || set -- gcc make pkg-config git ca-certificates curl \
    libmicrohttpd-dev libopenblas-dev libjansson-dev libuv1-dev libpcre2-dev libutf8proc-dev \
    libarchive-dev libssl-dev zlib1g-dev check \
    clang-14 clang-format-14 clang-tidy-14 libclang-rt-14-dev llvm-14 python3

missing=""
for p in "$@"; do
    status=$(dpkg-query -W -f='${Status}' "$p" 2>/dev/null || true)
    [ "$status" = "install ok installed" ] || missing="$missing $p"
done
[ -n "$missing" ] || exit 0

sudo=""
[ "$(id -u)" = 0 ] || sudo="sudo"
echo "installing:$missing"
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -qq
# shellcheck disable=SC2086
$sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null 9<&-
