#!/bin/sh
# Installs the Debian packages that are missing, and says nothing when none is.
# Usage: tools/deps.sh WHAT...   where WHAT is one of the lists below or a package
#   build   the server: a C compiler and the libraries
#   test    the unit tests and the tests over HTTP
#   lint    the style check
#   fuzz    the fuzzers
#   arm     the tests for aarch64
#   demo    the demo
#   clients the clients of other APIs
#   deb     the Debian package
#   deb-test its test in a fresh root
set -eu
cd "$(dirname "$0")"

# One at a time: `make -j` may ask for the packages in two places at once. The lock is on
# this file and ends with the shell; what a package starts does not inherit it.
exec 9<deps.sh
flock 9

packages() {
    case $1 in
    build) echo gcc make python3 libmicrohttpd-dev libgnutls28-dev libopenblas-dev libjansson-dev libuv1-dev \
        libpcre2-dev libutf8proc-dev libarchive-dev libssl-dev zlib1g-dev ;;
    test) echo check python3 curl openssl ;;
    lint) # clang-tidy reads the kernels of both machines
        other=arm64
        [ "$(uname -m)" != aarch64 ] || other=amd64
        echo clang-14 clang-format-14 clang-tidy-14 git python3 libc6-dev-$other-cross ;;
    fuzz) echo clang-14 libclang-rt-14-dev llvm-14 ;;
    arm) echo gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static ;;
    demo) echo python3 python3-pip curl ;;
    clients) echo python3-venv prometheus ;;
    deb) echo debhelper dpkg-dev fakeroot ;;
    deb-test) echo debootstrap lintian systemd python3 ;;
    *) echo "$1" ;;
    esac
}

missing=""
for what in "$@"; do
    for p in $(packages "$what"); do
        status=$(dpkg-query -W -f='${Status}' "$p" 2>/dev/null || true)
        [ "$status" = "install ok installed" ] || missing="$missing $p"
    done
done
[ -n "$missing" ] || exit 0

sudo=""
[ "$(id -u)" = 0 ] || sudo="sudo"
echo "installing:$missing"
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -qq
# shellcheck disable=SC2086
$sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null 9<&-
