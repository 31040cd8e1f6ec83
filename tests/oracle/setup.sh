#!/bin/sh
# Makes the two Python environments of the oracles in DIR: setup.sh DIR. They cannot share one, because peft and
# adapters want different transformers. TORCH_PIP_OPTIONS goes to the installation of torch, for example to choose a
# CPU build.
set -eu
folder=${1:?usage: setup.sh DIR}
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

for name in peft adapters; do
    requirements=$here/requirements-$name.txt
    python3 -m venv "$folder/$name"
    # shellcheck disable=SC2046,SC2086  # both are lists of words
    "$folder/$name/bin/pip" install -q ${TORCH_PIP_OPTIONS:-} $(grep '^torch==' "$requirements")
    "$folder/$name/bin/pip" install -q -r "$requirements"
done
echo "export ORACLE_PEFT=$folder/peft/bin/python ORACLE_ADAPTERS=$folder/adapters/bin/python"
