"""SmolLM2 without adapters: one stream and 16, four types of weights, beside llama-server."""
import contextlib

from bench import gguf, models, texts
from bench.measure import Case, Results
from bench.peers import llama
from bench.servers import Peftd, generate

TITLE = "Decoder: SmolLM2-135M, no adapter, about 110 tokens in, 64 out; `read` cases: 8 in, 128 out"
STREAMS, N_IN, N_OUT, SHORT_IN, LONG_OUT = 16, 110, 64, 8, 128
SAMPLING = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "seed": 1}  # llama-server's own defaults


def add_bounds(results, file, precision, f):
    peak = f"limit/{file}/{models.PEAK_OF[precision]}"
    for name, what, shape in (("one", "1 stream", (1, N_IN, N_OUT)), ("many", f"{STREAMS} streams", (STREAMS, N_IN, N_OUT)),
                              ("read", "1 stream, short prompt", (1, SHORT_IN, LONG_OUT))):
        results.derive(f"{name}/{file}/{precision}/bound", "machine", f"{file} {precision}, {what}: what it could do", "tokens/s",
                       f.most(*shape), peak, f"limit/{file}/read")


def cases_of(server, file, label, who, prompts, n_each):
    """One stream, 16 streams, of f16 those sampled, too, and one stream with a short prompt."""
    def case(name, what, n, prompts, n_out, sampling=None):
        bodies = [server.body(p, n_out, sampling=sampling) for p in prompts]
        return Case(f"{name}/{file}/{label}", who, f"{file} {label if who == 'peftd' else ''}, {what}".replace(" ,", ","), "tokens/s",
                    generate(server, bodies, n_out, n))
    out = [case("one", "1 stream", n_each, prompts[:1], N_OUT), case("many", f"{STREAMS} streams", 1, prompts, N_OUT)]
    if file == "f16":
        out.append(case("sampled", f"{STREAMS} streams, sampled", 1, prompts, N_OUT, SAMPLING))
    short = " ".join(prompts[0].split()[:SHORT_IN])
    return out + ([case("read", "1 stream, short prompt", n_each, [short], LONG_OUT)] if who == "peftd" else [])


def file_group(bench, work, results, file, path):
    prompts = texts.prompts(STREAMS, N_IN)
    with contextlib.ExitStack() as children:
        cases = bench.limit_cases(f"limit/{file}")
        for precision in models.TYPES.get(file, ("exact", "int8")):
            server = children.enter_context(Peftd(bench.peftd, path, work, *bench.settings, "--precision", precision))
            cases += cases_of(server, file, precision, "peftd", prompts, bench.n_each)
        if bench.llama:
            server = children.enter_context(llama.Server(bench, path, work, STREAMS))
            cases += cases_of(server, file, "llama", "llama", prompts, bench.n_each)
        results.add(bench.in_turn(cases))
    for precision in models.TYPES.get(file, ("exact", "int8")):
        add_bounds(results, file, precision, gguf.facts(path))


def run(bench, work):
    results = Results("decoder", TITLE)
    if not bench.llama:
        results.lacks(llama.NAME)
    for file in bench.files:
        path = models.quantised(bench, file)
        if path:
            file_group(bench, work, results, file, path)
    if not results.cases:  # without llama-quantize: the demo's file alone
        file_group(bench, work, results, "q4_1", bench.smollm2)
    return results
