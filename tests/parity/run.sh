#!/bin/sh
# Makes fresh goldens with SEED from the Python libraries and compares the server PEFTD with them over HTTP, then each
# of their cases alone with the same case in 200 random mixed calls. Needs what tests/oracle/setup.sh makes.
set -eu
: "${PEFTD:?the server program}" "${SEED:=1}"
: "${ORACLE_PEFT:?see tests/oracle/README.md}" "${ORACLE_ADAPTERS:?see tests/oracle/README.md}"
here=$(cd "$(dirname "$0")" && pwd)
golden=$(mktemp -d)
trap 'rm -rf "$golden"' EXIT

python3 "$here/../oracle/make.py" --all --seed "$SEED" --out "$golden"
(cd "$here/../oracle" && "$ORACLE_PEFT" decoders.py --seed "$SEED" --out "$golden")
"$ORACLE_PEFT" "$here/../oracle/papers.py" --seed "$SEED" --out "$golden"
python3 "$here/parity.py" --peftd "$PEFTD" --golden "$golden" --seed "$SEED" --refusals --table "$here/../../docs/methods.md"
python3 "$here/parity.py" --peftd "$PEFTD" --golden "$golden" --seed "$SEED" --refusals --alone 200
