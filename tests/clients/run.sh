#!/bin/sh
# Installs the pinned clients into build/clients (once) and runs tests/clients with them.
# Usage: tests/clients/run.sh PEFTD
set -eu
cd "$(dirname "$0")/../.."

tools/deps.sh clients
venv=build/clients
if ! cmp -s tests/clients/requirements.txt "$venv/installed.txt"; then
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/pip" install -q --disable-pip-version-check -r tests/clients/requirements.txt
    cp tests/clients/requirements.txt "$venv/installed.txt"
fi
PEFTD=$1 "$venv/bin/python" -m unittest discover -s tests/clients -t . -v
