"""SmolLM2 with sixteen LoRAs: beside llama-server, vLLM on CPU, and itself without any; five methods."""
import contextlib

from bench import adapters, gguf, models, texts
from bench.measure import Case, Results
from bench.peers import llama, vllm
from bench.servers import Peftd, generate

TITLE = "Decoder with tasks: SmolLM2-135M {file}, LoRA of rank 8 on all linears, 16 streams, about 110 tokens in, 64 out"
STREAMS, N_IN, N_OUT, PRECISIONS = 16, 110, 64, ("exact", "bf16", "int8")


def our_cases(server, precision, file, prompts):
    ways = {"none": ("no adapter", lambda i: "base"), "same": ("the same LoRA", lambda i: "lora0"),
            "each": ("16 LoRA tasks", lambda i: f"lora{i}"), "mix": ("16 tasks of five methods", lambda i: f"mix{i}")}
    return [Case(f"{name}/{precision}", "peftd", f"{file} {precision}, {what}", "tokens/s",
                 generate(server, [server.body(p, N_OUT, task_of(i)) for i, p in enumerate(prompts)], N_OUT))
            for name, (what, task_of) in ways.items()]


def peer_cases(server, who, prompts):
    ways = {"none": ("no adapter", lambda i: None), "same": ("the same LoRA", lambda i: 0), "each": ("16 LoRA tasks", lambda i: i)}
    return [Case(f"{name}/{who}", who, what, "tokens/s",
                 generate(server, [server.body(p, N_OUT, lora_of(i)) for i, p in enumerate(prompts)], N_OUT))
            for name, (what, lora_of) in ways.items()]


def our_server(bench, path, work, precision, loras, mix):
    server = Peftd(bench.peftd, path, work, *bench.settings, "--precision", precision)
    for name, folders in (("lora", loras), ("mix", mix)):
        for i, folder in enumerate(folders):
            server.load(f"{name}{i}", folder)
    return server


def compare_tokens(ours, theirs):
    """For each stream, how many of the first tokens agree. Ties of f16 sums end it, no more."""
    n_same = []
    for a, b in zip(ours, theirs):
        if a["usage"]["prompt_tokens"] != b["tokens_evaluated"]:
            raise RuntimeError("the peers read a different number of prompt tokens")
        pairs = zip(a["output"]["tokens"], b["tokens"])
        n_same.append(next((i for i, (x, y) in enumerate(pairs) if x != y), N_OUT))
    return n_same


def run(bench, work):
    path = models.quantised(bench, "f16")
    file, path = ("f16", path) if path else ("q4_1", bench.smollm2)
    results, prompts, cases = Results("loras", TITLE.format(file=file)), texts.prompts(STREAMS, N_IN), bench.limit_cases("limit")
    loras, mix = models.folders("smollm2", work, ["lora"] * STREAMS, "l"), models.folders("smollm2", work, models.MIX, "m")
    with contextlib.ExitStack() as children:
        for precision in PRECISIONS:
            server = children.enter_context(our_server(bench, path, work, precision, loras, mix))
            cases += our_cases(server, precision, file, prompts)
        own = list(cases)
        if bench.llama:
            cases += peer_cases(children.enter_context(llama.Server(bench, path, work, STREAMS, loras)), "llama", prompts)
        else:
            results.lacks(llama.NAME)
        folder = vllm.folder(bench, path) if bench.vllm else None
        if folder:
            cases += peer_cases(children.enter_context(vllm.Server(bench, folder, work, STREAMS, loras)), "vLLM", prompts)
        else:
            results.lacks(vllm.NAME)
        results.add(bench.in_turn(cases))
        # Peers take most of a round: of their rounds few are left, of peftd's own all.
        n_left = bench.rounds - len(own[0].values)
        if n_left > 0:
            bench.in_turn(own, n_left)
    for precision in PRECISIONS:
        results.derive(f"bound/{precision}", "machine", f"{file} {precision}, 16 streams, LoRA: what it could do", "tokens/s",
                       gguf.facts(path).most(STREAMS, N_IN, N_OUT, adapters.n_factors("smollm2")), f"limit/{models.PEAK_OF[precision]}", "limit/read")
    if bench.llama:
        same = compare_tokens(results.cases["each/exact"].run.answers, results.cases["each/llama"].run.answers)
        results.add([Case("agree", "both", "exact and llama: first tokens of 64 that agree", "tokens", None, same)])
    return results
