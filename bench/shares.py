"""Where the time goes: for each load, what the cores do, by samples of the server's stacks.

    python3 -m bench.shares [--only "LOAD;..."] [--seconds N] [--peftd BINARY] [--cores N]

Needs Linux' perf, a build with symbols (make all has them), and for f16, q8_0 and q4_0 what bench/README.md says of
llama-quantize. A load runs in a loop, perf samples all threads of the server by CPU time, and each sample goes to the first
frame, from the innermost outwards, that PLACES names. Prints a table of percent of the time that the server's threads ran, spinning at
meetings included, and of how many cores that time is: what is missing to all cores is sleep, or the clients' and others' time.
"""
import argparse
import collections
import contextlib
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench import models, texts  # noqa: E402
from bench.servers import Peftd, closed_loop, texts_loop  # noqa: E402

FREQUENCY, STACK_BYTES = 299, 61440  # products have 48 KiB of weights, scales and sums on the stack
# Name of a column, and the functions one of which a sample's stack must hold: who calls for a kernel (core/kern), which attention, deltas
# and the base's products have in common, and not the kernel; or a function with the one that called it ("outer<fwd_linears":
# what the compiler has put into fwd_linears leaves no frame of its own).
PLACES = (
    ("meetings", r"wait_change|pool_barrier\w*|pool_claim|pool_run\w*|worker_main"),
    ("base products", r"gemm_run|run_panel|gemm_make_\w+|gemm_ask|gemm__\w+|type_inputs|fwd__make_inputs|run_tiles"),
    ("attention", r"fwd_attention|fwd__attend|fwd__attn_\w+|fwd__keep\w*|fwd__keys\w*|keep_own|rotate"),
    ("deltas", r"fwd__down_product|up_products|gemm_down|gemm_up\w*|gemm_narrow_t|down_bf16|down_int8|up_bf16|sparse|replace_rows|"
               r"fwd__change_inputs|turn_blocks|turn_pairs|down_blocks|up_blocks|bottleneck|fwd__gate\w*|fwd__couple\w*|fwd__uncouple|outer<fwd_linears|outer<run_tiles|dots<fwd_linears|"
               r"dots<run_tiles"),
    ("norms, activations", r"fwd_norm|fwd__norm_\w+|norm_mine|fwd_glu|fwd_add|fwd_join|close_join|act_all|fwd_embed|fwd__embed_row"),
    ("steps, sampling", r"engine_\w+|engine__\w+|fwd_\w+|fwd__\w+|family__\w+|run_worker"),
    ("tokenising", r"tok_\w+|tok__\w+"),
    ("HTTP, JSON", r".*"),
)
COLUMNS = [re.compile(pattern) for _, pattern in PLACES]


def generate(server, tasks, n_in, n_out):
    bodies = [server.body(p, n_out, task) for p, task in zip(texts.prompts(len(tasks), n_in), tasks)]
    return lambda: closed_loop(server.port, server.path, bodies, 1)


def prompt(server, n):
    rng = random.Random(n)
    return lambda: server.infer({"task": "base", "input": {"tokens": [rng.randrange(1000, 20000) for _ in range(n)]},
                                 "parameters": {"max_tokens": 1, "ignore_eos": True}})


def one_call(server):
    body = {"requests": [{"task": f"lora{i % 16}", "input": t} for i, t in enumerate(texts.encoder_texts())]}
    return lambda: server.infer(body)


def clients(server):
    return lambda: texts_loop(server, LORAS, texts.encoder_texts(), 20)


LORAS = [f"lora{i}" for i in range(16)]
# Name: (model, precision, adapters are loaded, what makes the load).
LOADS = {
    "one stream, f16 exact": ("f16", "exact", False, lambda s: generate(s, ["base"], 8, 256)),
    "one stream, f16 bf16": ("f16", "bf16", False, lambda s: generate(s, ["base"], 8, 256)),
    "one stream, q8_0 int8": ("q8_0", "int8", False, lambda s: generate(s, ["base"], 8, 256)),
    "one stream, q4_0 int8": ("q4_0", "int8", False, lambda s: generate(s, ["base"], 8, 256)),
    "16 streams, f16 exact": ("f16", "exact", False, lambda s: generate(s, ["base"] * 16, 110, 64)),
    "16 streams, f16 bf16": ("f16", "bf16", False, lambda s: generate(s, ["base"] * 16, 110, 64)),
    "16 streams, q8_0 int8": ("q8_0", "int8", False, lambda s: generate(s, ["base"] * 16, 110, 64)),
    "16 LoRAs, f16 exact": ("f16", "exact", True, lambda s: generate(s, LORAS, 110, 64)),
    "16 LoRAs, f16 bf16": ("f16", "bf16", True, lambda s: generate(s, LORAS, 110, 64)),
    "prompt 4,096, f16 exact": ("f16", "exact", False, lambda s: prompt(s, 4096)),
    "prompt 4,096, q8_0 int8": ("q8_0", "int8", False, lambda s: prompt(s, 4096)),
    "encoder, one call, exact": ("minilm", "exact", True, one_call),
    "encoder, one call, bf16": ("minilm", "bf16", True, one_call),
    "encoder, one text a call, exact": ("minilm", "exact", True, clients),
    "encoder, one text a call, bf16": ("minilm", "bf16", True, clients),
}


@contextlib.contextmanager
def running(load):
    """Runs it in a loop while the context lasts."""
    is_over = threading.Event()

    def loop():
        while not is_over.is_set():
            load()
    thread = threading.Thread(target=loop)
    load()
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def place_of(frames):
    """The column of a stack, innermost frame first."""
    names = [frame.split(".")[0] for frame in frames]  # without what the compiler adds: .isra.0
    for name, caller in zip(names, [*names[1:], ""]):
        for i, column in enumerate(COLUMNS[:-1]):
            if column.fullmatch(name) or column.fullmatch(f"{name}<{caller}"):
                return i
    return len(COLUMNS) - 1


def stacks(text):
    """The frames of each sample in what perf script prints."""
    frames = []
    for line in text.splitlines():
        if line.startswith((" ", "\t")) and line.strip():
            parts = line.split()
            frames.append(parts[1].split("+")[0] if len(parts) > 1 else parts[0])
        elif frames:
            yield frames
            frames = []
    if frames:
        yield frames


def record(pid, seconds, data):
    command = ["perf", "record", "-q", "-e", "cpu-clock", "-F", str(FREQUENCY), "--call-graph", f"dwarf,{STACK_BYTES}",
               "-p", str(pid), "-o", data, "--", "sleep", str(seconds)]
    subprocess.run(command, check=True, capture_output=True)


def count(data):
    """How many samples fell into each column."""
    command = ["perf", "script", "-i", data, "-F", "comm,tid,ip,sym", "--no-inline"]
    return collections.Counter(map(place_of, stacks(subprocess.run(command, check=True, capture_output=True, text=True).stdout)))


def server_for(a, model, precision, work):
    paths = {"minilm": a.minilm}
    path = paths.get(model) or models.quantised(a, model)
    if not path:
        raise SystemExit(f"{model} needs llama-quantize (LLAMA_BIN)")
    return Peftd(a.peftd, path, work, "--precision", precision)


def measure(a, name, work):
    model, precision, has_adapters, load_of = LOADS[name]
    with server_for(a, model, precision, work) as server:
        if has_adapters:
            base = "minilm" if model == "minilm" else "smollm2"
            for i, folder in enumerate(models.folders(base, work, ["lora"] * 16, base)):
                server.load(f"lora{i}", folder)
        with running(load_of(server)):
            record(server.process.pid, a.seconds, work / "perf.data")
    found = count(work / "perf.data")
    whole = max(1, sum(found.values()))
    return [100 * found[i] / whole for i in range(len(PLACES))], whole / (a.seconds * FREQUENCY)


def main():
    env, built = os.environ.get, ROOT / "build/models"
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--only", default="", help="loads whose names begin with one of these words, separated by ;")
    p.add_argument("--seconds", type=int, default=5)
    p.add_argument("--cores", type=int, default=0)
    p.add_argument("--peftd", type=Path, default=ROOT / "build/peftd")
    p.add_argument("--minilm", type=Path, default=Path(env("MINILM") or built / "minilm"))
    p.add_argument("--smollm2", type=Path, default=Path(env("SMOLLM2") or built / "smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"))
    p.add_argument("--llama", type=Path, default=env("LLAMA_BIN"))
    p.add_argument("--out", type=Path, default=ROOT / "build/bench")
    a = p.parse_args()
    if a.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:a.cores])
    a.out.mkdir(parents=True, exist_ok=True)
    names = [name for name, _ in PLACES] + ["cores used"]
    print("| load | " + " | ".join(names) + " |\n" + "|---" * (len(names) + 1) + "|")
    for name in LOADS:
        if any(name.startswith(word) for word in a.only.split(";")):
            with tempfile.TemporaryDirectory(dir=a.out) as work:
                shares, n_cores = measure(a, name, Path(work))
                print(f"| {name} | " + " | ".join(f"{share:.1f}" for share in shares) + f" | {n_cores:.1f} |", flush=True)


if __name__ == "__main__":
    main()
