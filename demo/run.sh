#!/bin/sh
# `make demo`: from a fresh machine to real answers. Installs what is missing, builds,
# fetches two real models, starts two servers, uploads the trained tasks of
# demo/adapters over HTTP and shows what they answer. The servers stay up for you to try;
# `demo/run.sh stop` ends them. A second run finds everything and takes seconds.
set -eu
cd "$(dirname "$0")/.."
run=demo/run
models=${MODELS:-build/models}

stop() {
    for pid in "$run"/*.pid; do
        [ -e "$pid" ] || continue
        kill "$(cat "$pid")" 2>/dev/null || true
        rm -f "$pid"
    done
}

# start NAME MODEL: one server with its own store; its address goes to $run/NAME.url.
start() {
    if [ -e "$run/$1.pid" ] && kill -0 "$(cat "$run/$1.pid")" 2>/dev/null; then
        return 0
    fi
    : >"$run/$1.log" # read below, maybe before the server's shell has opened it
    setsid build/peftd serve --model "$2" --store "$run/$1.store" --listen 127.0.0.1:0 \
        </dev/null >/dev/null 2>"$run/$1.log" &
    echo $! >"$run/$1.pid"
    for _ in $(seq 300); do
        url=$(sed -n 's/^listening on //p' "$run/$1.log")
        if [ -n "$url" ] && curl -fs -o /dev/null "$url/readyz"; then
            echo "$url" >"$run/$1.url"
            return 0
        fi
        kill -0 "$(cat "$run/$1.pid")" 2>/dev/null || break
        sleep 0.1
    done
    echo "the server for $1 did not start:"
    tail -5 "$run/$1.log"
    exit 1
}

mkdir -p "$run"
if [ "${1:-}" = stop ]; then
    stop
    exit 0
fi
tools/deps.sh demo build
tools/models.sh & # the network's work, beside the compiler's
models_pid=$!
make --no-print-directory -s -j"$(nproc)" build/peftd
wait "$models_pid"
# a rebuilt server takes the place of the running one
if [ -e "$run/peftd" ] && ! cmp -s build/peftd "$run/peftd"; then
    stop
fi
cp -f build/peftd "$run/peftd"
start minilm "$models/minilm"
start smollm2 "$(ls "$models"/smollm2/*.gguf)"
python3 demo/demo.py --minilm "$(cat "$run/minilm.url")" --smollm2 "$(cat "$run/smollm2.url")"
