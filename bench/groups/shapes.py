"""RoBERTa-base, BART-large and GPT-2-medium in their real shapes with random weights, f32, beside PyTorch."""
import contextlib
import random
import shutil
import statistics
import time

from bench import models, texts
from bench.measure import Case, Results
from bench.peers import torch
from bench.servers import Peftd, Wire, generate

TITLE = "Real shapes, random weights, f32, no adapter: exact"
# Tokens out (0: an embedding), the lengths of the inputs.
LOADS = {"roberta-base": (0, [t.count(" ") + 1 + texts.SPECIAL for t in texts.encoder_texts()]), "bart-large": (32, [60] * 16),
         "gpt2-medium": (32, [110] * 16)}


def ours(server, inputs, n_out):
    """Texts or tokens a second."""
    inputs = [{"tokens": tokens} for tokens in inputs]
    if n_out:
        return generate(server, [server.body(i, n_out) for i in inputs], n_out)
    wire = Wire(server.port, server.path, [{"task": "base", "inputs": inputs}])

    def embed():
        begin = time.perf_counter()
        wire.ask(0)
        return len(inputs) / (time.perf_counter() - begin)
    return embed


def shape_group(bench, work, results, shape):
    (n_out, lengths), rng, folder = LOADS[shape], random.Random(1), work / shape
    inputs = [[rng.randrange(1000, 20000) for _ in range(n)] for n in lengths]
    unit, what = ("tokens/s", f"16 streams, {lengths[0]} tokens in, {n_out} out") if n_out else ("texts/s", "64 texts, embeddings")
    with contextlib.ExitStack() as children:
        child = children.enter_context(torch.Torch(bench, shape, folder, work))
        server = children.enter_context(Peftd(bench.peftd, folder, work, *bench.settings))
        results.add(bench.in_turn([
            *(() if n_out else bench.limit_cases(f"limit/{shape}")),
            Case(f"{shape}/peftd", "peftd", f"{shape}, {what}", unit, ours(server, inputs, n_out)),
            Case(f"{shape}/torch", "PyTorch", f"{shape}, {what}", unit,
                 lambda: len(inputs) * max(1, n_out) / child.ask(inputs=inputs, n_out=n_out)["seconds"])], 2))
    if not n_out:
        per_text = statistics.mean(models.flop_of_encoder(folder, n) for n in lengths) * 1e-9
        results.derive(f"{shape}/bound", "machine", f"{shape}, {what}: what it could do at the peak", unit,
                       lambda peak: peak / per_text, f"limit/{shape}/f32")
    shutil.rmtree(folder)


def run(bench, work):
    results = Results("shapes", TITLE)
    if bench.peft:
        for shape in LOADS:
            shape_group(bench, work, results, shape)
    else:
        results.lacks(torch.NAME)
    return results
