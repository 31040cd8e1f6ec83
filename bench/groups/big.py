"""Random Llamas in the shapes of 1 and 7 billion weights: one stream, and eight with eight LoRAs, beside llama-server;
memory beside the file. On request only: the largest file has 7 GB, both servers hold it, and a table takes half an hour."""
import contextlib
import subprocess
import sys

from bench import adapters, gguf, llama_shape, models, texts
from bench.measure import Case, Results
from bench.peers import llama
from bench.servers import Peftd, generate

TITLE = "Llama shapes, random weights, int8: {n_in} tokens in, {n_out} out; LoRA of rank 8 on all linears"
STREAMS, N_IN, N_OUT, ROUNDS = 8, 32, 32, 2
KINDS = ("q8_0", "q4_k_m")


def cases_of(server, who, label, loras_of, prompts):
    return [Case(f"one/{label}/{who}", who, f"{label}, 1 stream", "tokens/s",
                 generate(server, [server.body(prompts[0], N_OUT)], N_OUT)),
            Case(f"loras/{label}/{who}", who, f"{label}, {STREAMS} streams, {STREAMS} LoRAs", "tokens/s",
                 generate(server, [server.body(p, N_OUT, loras_of(i)) for i, p in enumerate(prompts)], N_OUT))]


def model_group(bench, work, results, shape, kind):
    label, path = f"{shape}-{kind}", bench.out / f"{shape}-{kind}.gguf"
    prompts, loras = texts.prompts(STREAMS, N_IN), models.folders(shape, work, ["lora"] * STREAMS, f"{shape}-")
    if not path.exists():
        command = [sys.executable, llama_shape.__file__, shape.removeprefix("llama-"), kind, path, "--tokenizer", bench.smollm2]
        subprocess.run(command, check=True)
    facts = gguf.facts(path)
    try:
        with contextlib.ExitStack() as children:
            ours = children.enter_context(Peftd(bench.peftd, path, work, *bench.settings, "--precision", "int8",
                                                "--max-upload-bytes", "1GiB", "--resident-bytes", "2GiB"))
            ours.infer(ours.body(prompts[0], 2))
            results.add([Case(f"memory/{label}", "peftd", f"{label}: resident memory after an answer", "GB", None, [ours.rss() / 1e9]),
                         Case(f"file/{label}", "both", f"{label}: the file", "GB", None, [path.stat().st_size / 1e9])])
            for i, folder in enumerate(loras):
                ours.load(f"lora{i}", folder)
            cases = bench.limit_cases(f"limit/{label}") + cases_of(ours, "peftd", label, lambda i: f"lora{i}", prompts)
            if bench.llama:
                theirs = children.enter_context(llama.Server(bench, path, work, STREAMS, loras, 4096))
                cases += cases_of(theirs, "llama", label, lambda i: i, prompts)
            results.add(bench.in_turn(cases, ROUNDS, 1500))
    finally:
        path.unlink()
    for name, n, n_factors in (("one", 1, 0), ("loras", STREAMS, adapters.n_factors(shape))):
        results.derive(f"{name}/{label}/bound", "machine", f"{label}, {n} streams: what it could do", "tokens/s",
                       facts.most(n, N_IN, N_OUT, n_factors), f"limit/{label}/int8", f"limit/{label}/read")


def run(bench, work):
    results = Results("big", TITLE.format(n_in=N_IN, n_out=N_OUT))
    if not bench.llama:
        results.lacks(llama.NAME)
    for shape in bench.shapes:
        for kind in KINDS:
            if kind in bench.files:
                model_group(bench, work, results, shape, kind)
    return results
