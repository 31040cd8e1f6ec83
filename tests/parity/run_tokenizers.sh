#!/bin/sh
# Compares the dump program TOKDUMP with the tokenizers library on 20,000 real and 20,000 random texts: ids, offsets, types
# and decoded texts, for each MODEL (a tokenizer.json, a folder with one, or a GGUF file), and for every tokenizer class that
# needs no tokenizer.json: vocabularies trained on some of the real texts (tests/oracle/tok_families.py), opened as a folder, as the
# tokenizer.json that transformers 4 makes of it, and from GGUF metadata. SEED chooses the texts.
#
#     run_tokenizers.sh MODEL...
set -eu
: "${TOKDUMP:?the program that prints ids and offsets}" "${SEED:=1}" "${SIZE:=2000}"
: "${ORACLE_PEFT:?see tests/oracle/README.md}" "${ORACLE_ADAPTERS:?see tests/oracle/README.md}"
oracle=$(cd "$(dirname "$0")/../oracle" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=0

for kind in debian random; do
    python3 "$oracle/texts.py" "$kind" --seed "$SEED" > "$folder/$kind"
done

# compare EXPECTED TOKENIZER...: what the library makes of the first, with what we make of each
compare() {
    expected=$1
    shift
    for kind in debian random; do
        "$ORACLE_PEFT" -W ignore "$oracle/tokenizers_oracle.py" encode "$expected" < "$folder/$kind" > "$folder/expected"
        for tokenizer in "$@"; do
            echo "$kind texts, $(basename "$(dirname "$tokenizer")")/$(basename "$tokenizer")"
            "$TOKDUMP" --decode $family "$tokenizer" < "$folder/$kind" > "$folder/got"
            python3 "$oracle/tokenizers_oracle.py" compare "$folder/$kind" "$folder/expected" "$folder/got" || failed=1
        done
    done
}

family=""
for model in "$@"; do
    compare "$model" "$model"
done
python3 -c 'import itertools, json, sys
for line in itertools.islice(sys.stdin, 2500): print(" ".join(json.loads(line).split()))' < "$folder/debian" > "$folder/corpus"
"$ORACLE_PEFT" "$oracle/tok_families.py" make "$folder/f" --corpus "$folder/corpus" --size "$SIZE"
for json in "$folder"/f/json/*.json; do
    name=$(basename "$json" .json)
    family="" # of the model: GGUF does not say what its control tokens do with white space
    [ "$name" != phi3 ] || family="--family phi3"
    set -- "$folder/f/$name" "$json"
    if [ -e "$folder/f/gguf/$name.gguf" ]; then
        set -- "$@" "$folder/f/gguf/$name.gguf"
    fi
    compare "$json" "$@"
done
exit $failed
