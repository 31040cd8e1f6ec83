#!/bin/sh
# Makes demo/adapters, demo/examples.json, metrics.json and the table of demo/README.md from nothing but apt and two models.
#
#   all.sh WORK MINILM GGUF PEFT_PYTHON ADAPTERS_PYTHON [TASK...]
#
# WORK keeps the data and an exported model; MINILM is a Hugging Face folder, GGUF a file; the two interpreters have
# requirements-peft.txt and requirements-adapters.txt installed. With tasks named, only those are trained again.
set -eu
work=$1 minilm=$2 gguf=$3 peft_python=$4 adapters_python=$5
shift 5
here=$(cd "$(dirname "$0")" && pwd)
demo=$(dirname "$here")
metrics=$here/metrics.json
export HF_HUB_OFFLINE=1

[ $# -gt 0 ] || set -- section role interface language purpose synopsis french german
[ -e "$work/manifest.json" ] || python3 "$here/data.py" --out "$work"
[ -e "$work/smollm2/config.json" ] || "$peft_python" "$here/export_base.py" --gguf "$gguf" --out "$work/smollm2"

for task in "$@"; do
    case $task in
        synopsis | french | german) base=$work/smollm2 ;;
        *) base=$minilm ;;
    esac
    case $task in
        role | french) python=$adapters_python ;;
        *) python=$peft_python ;;
    esac
    adapter=$demo/adapters/$task
    "$python" "$here/train.py" --task "$task" --base "$base" --data "$work" --out "$adapter" --metrics "$metrics"
    "$python" "$here/score.py" --task "$task" --base "$base" --data "$work" --adapter "$adapter" --metrics "$metrics"
    "$peft_python" "$here/baselines.py" --task "$task" --base "$base" --data "$work" --metrics "$metrics"
done
"$peft_python" "$here/examples.py" --data "$work" --out "$demo/examples.json"
"$demo/run.sh"
for url in "$demo"/run/*.url; do
    "$peft_python" "$here/served.py" --server "$(cat "$url")" --data "$work" --metrics "$metrics"
done
python3 "$here/report.py" --metrics "$metrics" --readme "$demo/README.md"
