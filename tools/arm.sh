#!/bin/sh
# tools/arm.sh - core compiled for aarch64, and its kernel, product, pool and attention tests
# run there, under qemu-user. Everything stays below build/arm. The libraries of that machine
# are fetched as Debian packages and unpacked there, so that no foreign architecture is added.
#
#   tools/arm.sh [SUITE]     of those of tests/core/{kern,gemm,pool,fwd}; default: all of them
set -eu
cd "$(dirname "$0")/.."
arm=$PWD/build/arm
root=$arm/root
jobs=$(nproc)
packages="check libsubunit-dev libopenblas-pthread-dev libgfortran-12-dev libssl-dev libjansson-dev zlib1g-dev
    libpcre2-dev libutf8proc-dev"

fetch() {
    apt="-oAPT::Architecture=arm64 -oAPT::Architectures=arm64 -oDir::State::Lists=$arm/lists -oDir::Cache=$arm/cache"
    mkdir -p "$arm/lists/partial" "$arm/cache/archives/partial" "$arm/debs"
    # shellcheck disable=SC2086 # words on purpose
    (cd "$arm/debs" && apt-get -q $apt update >/dev/null && apt-get -q $apt download $packages)
    for deb in "$arm"/debs/*.deb; do
        dpkg -x "$deb" "$root"
    done
}

[ -e "$root/.done" ] || { fetch && touch "$root/.done"; }
lib=$root/usr/lib/aarch64-linux-gnu
# Headers that are the same on every machine are this one's, behind those of the target.
cflags="-std=gnu11 -D_GNU_SOURCE= -I. -pthread -Wall -Wextra -Werror -Wno-format-truncation
    -Wno-missing-field-initializers -O2 -g -DNDEBUG -ffp-contract=off -isystem $root/usr/include
    -isystem $root/usr/include/aarch64-linux-gnu -isystem $lib/openblas-pthread
    -isystem $root/usr/include/aarch64-linux-gnu/openblas-pthread -idirafter /usr/include"
tests=$(ls tests/core/kern/test_*.c tests/core/gemm/test_*.c tests/core/pool/test_*.c tests/core/fwd/test_*.c)

compile() { # FILE: one object below build/arm, if it is older than its source
    o=$arm/obj/${1%.c}.o
    mkdir -p "$(dirname "$o")"
    # shellcheck disable=SC2086
    aarch64-linux-gnu-gcc $cflags -c "$1" -o "$o"
}

if [ "${1:-}" = --compile ]; then
    compile "$2"
    exit
fi
suites=$(for t in $tests; do basename "$t" .c | sed 's/^test_\(.*\)/\1_suite/'; done)
main=$arm/main.c
{
    echo '#include <check.h>'
    for s in $suites; do echo "Suite *$s(void);"; done
    echo 'int main(void){SRunner *r = srunner_create(NULL); int bad;'
    for s in $suites; do echo "srunner_add_suite(r, $s());"; done
    echo 'srunner_run_all(r, CK_ENV); bad = srunner_ntests_failed(r); srunner_free(r); return bad != 0;}'
} >"$main"
rm -rf "$arm/obj"
# shellcheck disable=SC2086
printf '%s\n' core/*/*.c $tests tests/support/levels.c | xargs -P "$jobs" -n 1 sh "$0" --compile
# shellcheck disable=SC2086
aarch64-linux-gnu-gcc $cflags -c "$main" -o "$arm/obj/main.o"
aarch64-linux-gnu-ar rcs "$arm/obj/libcore.a" "$arm"/obj/core/*/*.o "$arm"/obj/tests/support/*.o
aarch64-linux-gnu-gcc -static -pthread "$arm/obj/main.o" "$arm"/obj/tests/core/*/*.o "$arm/obj/libcore.a" \
    -L"$lib" -L"$lib/openblas-pthread" -L"$root/usr/lib/gcc/aarch64-linux-gnu/12" \
    -lcheck -lsubunit -lopenblas -lgfortran -ljansson -lz -lpcre2-8 -lutf8proc -lcrypto -lrt -lm -o "$arm/unit"
[ $# = 0 ] || export CK_RUN_SUITE="$1"
qemu-aarch64-static "$arm/unit"
