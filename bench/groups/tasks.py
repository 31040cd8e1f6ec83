"""MiniLM with many tasks: hundreds in a call, thousands loaded, unlike ranks, tasks that must be loaded first."""
import contextlib
import random
import statistics
import time

from bench import adapters, texts
from bench.measure import Case, Results
from bench.servers import Client, Peftd, Wire, post

TITLE = "Many tasks: MiniLM exact, LoRA of rank 8 on all linears, {n_many} loaded"
N_FEW, N_CALL, N_ONE_BY_ONE = 5, 200, 25
# Mean 15.75, so that there is as much to multiply as with rank 16 everywhere.
RANKS = (4, 16, 8, 64, 4, 16, 32, 4, 8, 16, 4, 16, 32, 8, 4, 16)


def load(server, work, names, rank=lambda i: 8):
    """Tasks of these names, each its own LoRA; the milliseconds of each upload and load."""
    took = []
    for i, name in enumerate(names):
        folder = adapters.make("minilm", "lora", work / "one", 1000 + i, rank(i))
        begin = time.perf_counter()
        server.load(name, folder)
        took.append(1e3 * (time.perf_counter() - begin))
    return took


def call_rate(server, batch, next_task, n_calls):
    """Texts a second of calls with all of a batch; next_task() names each text's task."""
    def run():
        wire = Wire(server.port, server.path,
                    [{"requests": [{"task": next_task(), "input": t} for t in batch]} for _ in range(n_calls)])
        begin = time.perf_counter()
        for k in range(n_calls):
            wire.ask(k)
        return n_calls * len(batch) / (time.perf_counter() - begin)
    return run


def in_order(names):
    """A function that gives the names one after the other, for ever: of thousands none comes twice soon."""
    at = [0]

    def take():
        at[0] += 1
        return names[(at[0] - 1) % len(names)]
    return take


def p50(server, next_task, batch, rng):
    client = Client(server.port)

    def run():
        took = []
        for _ in range(N_ONE_BY_ONE):
            body = {"task": next_task(), "input": rng.choice(batch)}
            begin = time.perf_counter()
            post(client, server.path, body)
            took.append(1e3 * (time.perf_counter() - begin))
        return statistics.median(took)
    return run


class Cold:
    """A server whose memory holds fewer tasks than its store: each in turn is asked twice."""

    def __init__(self, server, work, batch):
        self.server, self.client, self.input = server, Client(server.port), batch[0]
        self.task = in_order([f"c{i}" for i in range(60)])
        load(server, work, [f"c{i}" for i in range(60)])
        self.next = 0.0

    def ask(self, task):
        begin = time.perf_counter()
        post(self.client, self.server.path, {"task": task, "input": self.input})
        return 1e3 * (time.perf_counter() - begin)

    def run(self):
        pairs = []
        for _ in range(N_ONE_BY_ONE):
            task = self.task()
            pairs.append((self.ask(task), self.ask(task)))
        self.next = statistics.median(second for _, second in pairs)
        return statistics.median(first for first, _ in pairs)


def rate_cases(bench, few, many, ranks, batch, names):
    def case(name, what, server, batch, next_task, n_calls=bench.calls):
        return Case(name, "peftd", f"{len(batch)} texts in a call, {what}", "texts/s", call_rate(server, batch, next_task, n_calls))

    def sixteen(letter):
        return in_order([f"{letter}{i}" for i in range(16)])
    wide = (batch * 4)[:N_CALL]
    return [case("call/200", f"{N_CALL} tasks", many, wide, in_order(names[:N_CALL])), case("call/1", "one task", many, wide, lambda: "t0"),
            case("loaded/many", f"tasks of {len(names)} in turn", many, batch, in_order(names), 3 * bench.calls),
            case("loaded/few", f"tasks of {N_FEW} in turn", few, batch, in_order(names[:N_FEW]), 3 * bench.calls),
            case("rank/mixed", "16 tasks of ranks 4 to 64", ranks, batch, sixteen("m")),
            case("rank/16", "16 tasks of rank 16", ranks, batch, sixteen("r"))]


def memory(results, server, rss_before, n, took):
    listed = server.adapters()
    stored, resident = (statistics.mean(t[key] for t in listed) for key in ("bytes_stored", "bytes_resident"))
    growth = (server.rss() - rss_before) / n
    results.add([Case("stored", "peftd", "stored bytes of a task, MB", "MB", None, [stored / 1e6]),
                 Case("resident", "peftd", "resident bytes / stored bytes of a task", "ratio", None, [resident / stored]),
                 Case("growth", "peftd", "growth of the process / stored bytes, after use", "ratio", None, [growth / stored]),
                 Case("upload/first", "peftd", "upload and load, first 50 tasks", "ms", None, took[:50]),
                 Case("upload/last", "peftd", f"upload and load, last 50 of {n} tasks", "ms", None, took[-50:])])


def run(bench, work):
    n_many = bench.n_tasks
    results, batch, rng = Results("tasks", TITLE.format(n_many=n_many)), texts.encoder_texts(), random.Random(4)
    middle = [t for t in batch if 28 <= t.count(" ") <= 36]
    with contextlib.ExitStack() as children:
        few, many, ranks, cold = (
            children.enter_context(Peftd(bench.peftd, bench.minilm, work, *bench.settings, *settings))
            for settings in ((), ("--resident-bytes", "8GiB"), (), ("--resident-bytes", "30MiB")))
        load(few, work, [f"t{i}" for i in range(N_FEW)])
        many.infer({"inputs": batch, "task": "base"})  # buffers of a full step are touched
        before, names = many.rss(), [f"t{i}" for i in range(n_many)]
        took = load(many, work, names)
        load(ranks, work, [f"m{i}" for i in range(16)], lambda i: RANKS[i])
        load(ranks, work, [f"r{i}" for i in range(16)], lambda i: 16)
        asked = Cold(cold, work, batch)
        cases = rate_cases(bench, few, many, ranks, batch, names) + [
            Case("p50/many", "peftd", f"p50 of a request, {n_many} tasks loaded", "ms", p50(many, lambda: rng.choice(names), middle, rng)),
            Case("p50/few", "peftd", f"p50 of a request, {N_FEW} tasks loaded", "ms",
                 p50(few, lambda: f"t{rng.randrange(N_FEW)}", middle, rng)),
            Case("first", "peftd", "p50 of a task's first answer, not in memory before", "ms", asked.run),
            Case("next", "peftd", "p50 of the answer after it", "ms", lambda: asked.next)]
        results.add(bench.in_turn(cases, 2 * bench.rounds))
        memory(results, many, before, n_many, took)
    return results
