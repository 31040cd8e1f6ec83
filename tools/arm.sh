#!/bin/sh
# tools/arm.sh - core compiled for aarch64, and its kernel, product, pool and attention tests
# run there, under qemu-user. Everything stays below build/arm. The libraries of that machine
# are fetched as Debian packages and unpacked there, so that no foreign architecture is added.
#
#   tools/arm.sh [SUITE]     of those of tests/core/{kern,gemm,pool,fwd}; default: all of them
#
# They run on a CPU with every extension, but with registers of SVE that no level is for; those of
# kernels also where they are of 256 bits (a quarter of an hour for the products, whose emulation is
# slow), and two of them on two CPUs with fewer extensions, where an instruction of a level above
# would be an illegal one.
set -eu
cd "$(dirname "$0")/.."
arm=$PWD/build/arm
root=$arm/root
obj=$arm/release
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

if [ "${1:-}" = --run ]; then # CPU:SUITE; emulation takes its time
    log=$arm/$2.log
    CK_RUN_SUITE=${2#*:} CK_TIMEOUT_MULTIPLIER=20 qemu-aarch64-static -cpu "${2%%:*}" "$arm/unit" >"$log" 2>&1 ||
        { echo "== $2: FAILED"; cat "$log"; exit 1; }
    grep -q 'Checks: [1-9]' "$log" || { echo "== $2: no such suite"; exit 1; }
    echo "$2: $(grep Checks: "$log")"
    exit
fi
[ -e "$root/.done" ] || { fetch && touch "$root/.done"; }
lib=$root/usr/lib/aarch64-linux-gnu
# Headers that are the same on every machine are this one's, behind those of the target.
flags="-O2 -g -DNDEBUG -isystem $root/usr/include -isystem $root/usr/include/aarch64-linux-gnu
    -isystem $lib/openblas-pthread -isystem $root/usr/include/aarch64-linux-gnu/openblas-pthread -idirafter /usr/include"
tests=$(ls tests/core/kern/test_*.c tests/core/gemm/test_*.c tests/core/pool/test_*.c tests/core/fwd/test_*.c)
core=$(ls core/*/*.c | grep -v /kern_avx)
support="adapters_store/ads_pick.c tests/support/golden.c tests/support/levels.c tests/support/pass.c tests/support/temp_dir.c"

# Objects by the Makefile's rules, which know each kernel's flags.
objects() {
    for source in "$@"; do
        echo "$obj/${source%.c}.o"
    done
}
# shellcheck disable=SC2046,SC2086
env -u MAKEFLAGS make -s -j"$jobs" CC=aarch64-linux-gnu-gcc VARIANT=release B="$obj" \
    FLAGS_release="$(echo $flags)" $(objects $core $tests $support)

suites=$(for t in $tests; do basename "$t" .c | sed 's/^test_\(.*\)/\1_suite/'; done)
main=$arm/main.c
{
    echo '#include <check.h>'
    for s in $suites; do echo "Suite *$s(void);"; done
    echo 'int main(void){SRunner *r = srunner_create(NULL); int bad;'
    for s in $suites; do echo "srunner_add_suite(r, $s());"; done
    echo 'srunner_run_all(r, CK_ENV); bad = srunner_ntests_failed(r); srunner_free(r); return bad != 0;}'
} >"$main"
rm -f "$arm/libcore.a"
# shellcheck disable=SC2046,SC2086
aarch64-linux-gnu-ar rcs "$arm/libcore.a" $(objects $core $support)
# shellcheck disable=SC2046,SC2086
aarch64-linux-gnu-gcc $flags -static -pthread -Wl,--wrap=kern_table_init "$main" $(objects $tests) "$arm/libcore.a" \
    -L"$lib" -L"$lib/openblas-pthread" -L"$root/usr/lib/gcc/aarch64-linux-gnu/12" \
    -lcheck -lsubunit -lopenblas -lgfortran -ljansson -lz -lpcre2-8 -lutf8proc -lcrypto -lrt -lm -o "$arm/unit" \
    2>"$arm/link.log" || { cat "$arm/link.log"; exit 1; } # the static C library warns about dlopen

sve=max,sve-default-vector-length=32 # bytes: what the level sve is for; without it they are 64
names=
for s in $suites; do
    case $s in kern_*) names="$names $sve:${s%_suite}" ;; esac # first, for they take longest
done
for s in $suites; do
    names="$names max:${s%_suite}"
done
# neon alone, and with dot products
for cpu in cortex-a72 neoverse-n1; do
    names="$names $cpu:kern_rows $cpu:kern_typed"
done
[ $# = 0 ] || names="$sve:$1 max:$1"
# shellcheck disable=SC2086
printf '%s\n' $names | xargs -P "$jobs" -n 1 sh "$0" --run
