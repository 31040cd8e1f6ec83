#!/bin/sh
# `make bench`: builds, fetches the models if they are absent, then prints the table of numbers.
# Arguments go to bench/bench.py (--help tells them).
set -eu
cd "$(dirname "$0")/.."
make -s -j"$(nproc)" bench-programs
[ -n "${MINILM:-}" ] && [ -n "${SMOLLM2:-}" ] || tools/models.sh
exec python3 bench/bench.py "$@"
