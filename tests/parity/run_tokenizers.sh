#!/bin/sh
# Compares the dump program TOKDUMP with the tokenizers library on 20,000 real and 20,000 random texts, for each MODEL:
# run_tokenizers.sh MODEL... (a tokenizer.json, a folder with one, or a GGUF file). SEED chooses the texts.
set -eu
: "${TOKDUMP:?the program that prints ids and offsets}" "${SEED:=1}" "${ORACLE_PEFT:?see tests/oracle/README.md}"
oracle=$(cd "$(dirname "$0")/../oracle" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

failed=0
for kind in debian random; do
    python3 "$oracle/texts.py" "$kind" --seed "$SEED" > "$folder/texts"
    for model in "$@"; do
        echo "$kind texts, $(basename "$model")"
        "$ORACLE_PEFT" -W ignore "$oracle/tokenizers_oracle.py" encode "$model" \
            < "$folder/texts" > "$folder/expected"
        "$TOKDUMP" "$model" < "$folder/texts" > "$folder/got"
        python3 "$oracle/tokenizers_oracle.py" compare "$folder/texts" "$folder/expected" "$folder/got" || failed=1
    done
done
exit $failed
