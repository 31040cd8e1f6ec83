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

# Suites in which several threads meet; the others have nothing for the thread sanitizer.
threaded="pool engine goldens adapters_store/cache adapters_store/threads request tok_limits"
unit_tsan() {
    $make -s build/tsan/unit VARIANT=tsan || return 1
    python3 tools/unit.py build/tsan/unit $threaded
}

make="make --no-print-directory -j$(nproc)"

stage "dependencies" $make deps
stage "build" $make -s all
stage "style" $make lint
stage "the style check can fail" python3 tests/tools/test_lint.py
stage "a table is what its script prints" python3 tests/tools/test_gelu_table.py
stage "what benchmarks reckon" python3 tests/tools/test_bench.py
stage "unit tests" $make -s unit
stage "unit tests, address and undefined sanitizers" $make -s unit VARIANT=asan
stage "unit tests that thread, thread sanitizer" unit_tsan
stage "goldens over HTTP, all tasks mixed" $make -s golden
stage "goldens alone and mixed, the same bits" $make -s alone
stage "the golden comparison can fail" python3 tests/parity/test_parity.py
stage "real models" $make -s real
stage "goldens over HTTP, address sanitizer" $make -s golden VARIANT=asan
stage "HTTP tests" $make -s integration
stage "installation, unit and package" $make -s deploy-test
stage "HTTP tests, address sanitizer" $make -s integration VARIANT=asan
stage "HTTP tests, thread sanitizer" $make -s integration VARIANT=tsan
stage "replacement, kill -9, hostile input and mixed requests, a tenth" tests/soak/run.sh --short
stage "kept fuzz inputs" $make -s fuzz-replay
echo "$n passed, 0 failed"
