"""Long prompts of SmolLM2 beside llama-bench: tokens read a second, and the share of the machine's peak."""
import contextlib
import random
import time

from bench import gguf, models
from bench.measure import Case, Results
from bench.peers import llama
from bench.servers import Peftd

TITLE = "Prompts: SmolLM2-135M, one prompt of 512 or 4,096 tokens, one token out"
LENGTHS = {512: 6, 4096: 1}  # tokens, and how many such prompts in turn are a figure: a second of work or more


def ours(server, n):
    """Tokens a second of prompts unlike those before, one after the other, HTTP and the first token included."""
    rng = random.Random(n)

    def run():
        took = 0
        for _ in range(LENGTHS[n]):
            tokens = [rng.randrange(1000, 20000) for _ in range(n)]
            begin = time.perf_counter()
            server.infer({"task": "base", "input": {"tokens": tokens}, "parameters": {"max_tokens": 1, "ignore_eos": True}})
            took += time.perf_counter() - begin
        return LENGTHS[n] * n / took
    return run


def file_group(bench, work, results, file, path):
    precisions, facts = models.TYPES.get(file, ("exact", "int8")), gguf.facts(path)
    with contextlib.ExitStack() as children:
        cases = bench.limit_cases(f"limit/{file}")
        for precision in precisions:
            server = children.enter_context(Peftd(bench.peftd, path, work, *bench.settings, "--precision", precision))
            level = server.client.call("GET", "/v1/info")[1]["cpu_level"]
            cases += [Case(f"{n}/{file}/{precision}", "peftd", f"{file} {precision}, {n} tokens", "tokens/s", ours(server, n))
                      for n in LENGTHS]
        if bench.llama:
            cases += [Case(f"{n}/{file}/llama", "llama", f"{file}, {n} tokens (llama-bench)", "tokens/s",
                           lambda n=n: llama.prompt_rate(bench, path, n, LENGTHS[n])) for n in LENGTHS]
        results.add(bench.in_turn(cases, seconds=bench.seconds / 2))
    for precision in precisions:
        for n in LENGTHS:
            for name, limit, what in (("bound", models.PEAK_OF, "at the peak"), ("form", models.form_of(file, level), "in its form")):
                results.derive(f"{n}/{file}/{precision}/{name}", "machine", f"{file} {precision}, {n} tokens: what it could do {what}",
                               "tokens/s", lambda peak, n=n: n / (facts.flop_of_prompt(n) / peak * 1e-9),
                               f"limit/{file}/{limit[precision]}")


def run(bench, work):
    results = Results("prompts", TITLE)
    if not bench.llama:
        results.lacks(llama.NAME)
    for file in bench.files:
        path = models.quantised(bench, file)
        if path:
            file_group(bench, work, results, file, path)
    if not results.cases:
        file_group(bench, work, results, "q4_1", bench.smollm2)
    return results
