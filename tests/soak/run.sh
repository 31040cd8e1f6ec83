#!/bin/sh
# All soak scripts, one after the other, on the builds they are meant for. Exit status 1 if one fails; the last line
# counts scripts. `run.sh --short`: about a tenth of everything, on the address sanitizer's build, in about a minute.
set -eu
cd "$(dirname "$0")/../.."

passed=0
failed=0
soak() { # the build, the script, its options
    build=$1
    script=$2
    shift 2
    echo "== $script on build/$build"
    if PEFTD=build/$build/peftd python3 -m "tests.soak.$script" "$@"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
    fi
}

make -s all VARIANT=asan
if [ "${1-}" = --short ]; then
    soak asan replace --uploads 10
    soak asan crash --kills 10
    soak asan hostile --short
    soak asan mixed --requests 1000
else
    make -s all
    make -s all VARIANT=tsan
    soak release replace
    soak release crash
    soak release hostile
    soak asan mixed --requests 10000
    soak tsan mixed --requests 10000
fi
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
