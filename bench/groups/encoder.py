"""MiniLM with sixteen tasks beside PEFT, OpenVINO and ONNX Runtime, and beside itself."""
import contextlib
import statistics
import time

from bench import adapters, models, texts
from bench.measure import Case, Results
from bench.peers import onnx, peft
from bench.servers import Peftd, Wire, texts_loop

TITLE = "Encoder: MiniLM, 64 texts of 10 to 60 tokens, mean 33, 4 labels; one call over HTTP"
N_TASKS, PRECISIONS, LONE_TOKENS, N_LONE = models.N_TASKS, ("exact", "bf16", "int8"), 34, 40


def one_call(bench, server, batch, task_of):
    wire = Wire(server.port, server.path, [{"requests": [{"task": task_of(i), "input": t} for i, t in enumerate(batch)]}])

    def run():
        begin = time.perf_counter()
        for k in range(bench.calls):
            wire.ask(k)
        return bench.calls * len(batch) / (time.perf_counter() - begin)
    return run


def clients(bench, server, batch):
    """One text a call, from as many clients as there are tasks: together the texts of as many calls as one_call()'s."""
    return lambda: texts_loop(server, [f"lora{i}" for i in range(N_TASKS)], batch, bench.calls * len(batch) // N_TASKS)


def lone(server):
    """The median time of a request that has the server for itself, milliseconds."""
    body = {"task": "lora0", "input": next(t for t in texts.encoder_texts() if t.count(" ") + 1 + texts.SPECIAL == LONE_TOKENS)}
    wire = Wire(server.port, server.path, [body])

    def run():
        took = []
        for k in range(N_LONE):
            begin = time.perf_counter()
            wire.ask(k)
            took.append(1e3 * (time.perf_counter() - begin))
        return statistics.median(took)
    return run


def our_cases(bench, server, precision, batch):
    calls = {"each": ("16 LoRA tasks mixed", lambda i: f"lora{i % N_TASKS}"), "same": ("one LoRA task", lambda i: "lora0"),
             "mix": ("16 tasks of five methods mixed", lambda i: f"mix{i % N_TASKS}"),
             "base": ("no adapter (embeddings)", lambda i: "base")}
    cases = [Case(f"{name}/{precision}", "peftd", f"{precision}, {what}", "texts/s", one_call(bench, server, batch, task_of))
             for name, (what, task_of) in calls.items()]
    return [*cases, Case(f"clients/{precision}", "peftd", f"{precision}, 16 LoRA tasks, 16 clients, one text a call", "texts/s",
                         clients(bench, server, batch)),
            Case(f"lone/{precision}", "peftd", f"{precision}, p50 of a lone request of {LONE_TOKENS} tokens", "ms", lone(server))]


def peer_cases(bench, children, results, batch, loras, work):
    """Cases of the peers that are there, and PEFT's child."""
    cases, child, path = [], None, onnx.model(bench) if bench.onnx else None
    if bench.peft:
        child, tasks = children.enter_context(peft.Peft(bench, loras, work)), [i % N_TASKS for i in range(len(batch))]
        cases += [Case(f"each/{how}", "PEFT", what, "texts/s", child.rate(batch, tasks, how)) for how, what in peft.WAYS.items()]
    else:
        results.lacks(peft.NAME)
    if path:
        other = children.enter_context(onnx.Onnx(bench, path, work))
        cases += [Case(how, who, f"{onnx.PRECISION[how]}, no adapter, sorted, 16 at a time", "texts/s", other.rate(batch, how))
                  for how, who in onnx.WAYS.items()]
    else:
        results.lacks(onnx.NAME)
    return cases, child


def compare_logits(server, child, batch):
    """Both compute the same: the largest difference of a logit."""
    tasks = [i % N_TASKS for i in range(len(batch))]
    body = {"requests": [{"task": f"lora{k}", "input": t, "parameters": {"logits": True}} for t, k in zip(batch, tasks)]}
    ours = [r["output"]["logits"] for r in server.infer(body)["responses"]]
    theirs = child.ask(texts=batch, tasks=tasks, how="padded")["logits"]
    return max(abs(x - y) for a, b in zip(ours, theirs) for x, y in zip(a, b))


def add_bounds(bench, results, batch):
    lengths = [t.count(" ") + 1 + texts.SPECIAL for t in batch]
    for name, what, is_class, rank in (("each", "a class, LoRA", True, adapters.RANK), ("base", "an embedding", False, 0)):
        per_text = statistics.mean(models.flop_of_encoder(bench.minilm, n, is_class, rank) for n in lengths) * 1e-9
        for precision in PRECISIONS:
            for kind, limit, how in (("bound", models.PEAK_OF, "at the peak"), ("form", models.FORM_OF_FLOATS, "in its form")):
                results.derive(f"{name}/{precision}/{kind}", "machine", f"{precision}, {what}: what it could do {how}", "texts/s",
                               lambda peak, per_text=per_text: peak / per_text, f"limit/{limit[precision]}")
    results.derive("lone/exact/bound", "machine", "exact, a lone request: its arithmetic at the peak", "ms",
                   lambda peak: models.flop_of_encoder(bench.minilm, LONE_TOKENS, True) / peak * 1e-6, "limit/f32")


def run(bench, work):
    results, batch, servers = Results("encoder", TITLE), texts.encoder_texts(), []
    folders = {"lora": models.folders("minilm", work, ["lora"] * N_TASKS, "l"), "mix": models.folders("minilm", work, models.MIX, "m")}
    with contextlib.ExitStack() as children:
        cases = bench.limit_cases("limit")
        for precision in PRECISIONS:
            servers.append(children.enter_context(Peftd(bench.peftd, bench.minilm, work, *bench.settings, "--precision", precision)))
            for name, some in folders.items():
                for i, folder in enumerate(some):
                    servers[-1].load(f"{name}{i}", folder)
            cases += our_cases(bench, servers[-1], precision, batch)
        theirs, child = peer_cases(bench, children, results, batch, folders["lora"], work)
        results.add(bench.in_turn(cases + theirs, 2 * bench.rounds))
        if child:
            results.add([Case("agree", "both", "exact and PEFT: largest difference of a logit", "absolute", None,
                              [compare_logits(servers[0], child, batch)])])
    add_bounds(bench, results, batch)
    return results
