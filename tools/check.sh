#!/bin/sh
# `make check`: dependencies, build, style, every test, sanitizers included. Prints a
# heading per stage with the seconds it took, and a last line that says how many passed.
set -eu
cd "$(dirname "$0")/.."

n=0
stage() {
    name=$1
    shift
    t0=$(date +%s)
    echo "== $name"
    "$@" || { echo "== $name: FAILED"; echo "$n passed, 1 failed"; exit 1; }
    n=$((n + 1))
    echo "== $name: ok, $(($(date +%s) - t0)) s"
}

make="make --no-print-directory -j$(nproc)"

stage "dependencies" $make deps
stage "build" $make -s all
stage "style" $make lint
stage "unit tests" $make -s unit
stage "unit tests, address and undefined sanitizers" $make -s unit VARIANT=asan
stage "unit tests, thread sanitizer" $make -s unit VARIANT=tsan
stage "goldens over HTTP, all tasks mixed" $make -s golden
stage "the golden comparison can fail" python3 tests/parity/test_parity.py
stage "real models" $make -s real
stage "goldens over HTTP, address sanitizer" $make -s golden VARIANT=asan
stage "HTTP tests" $make -s integration
stage "HTTP tests, address sanitizer" $make -s integration VARIANT=asan
stage "HTTP tests, thread sanitizer" $make -s integration VARIANT=tsan
stage "kept fuzz inputs" $make -s fuzz-replay
echo "$n passed, 0 failed"
