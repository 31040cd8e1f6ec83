"""The table of numbers: peftd against its peers and against itself, with four floors.

    bench/run.sh [--quick] [--only encoder|decoder|tasks] [--minilm DIR] [--smollm2 FILE]

Every figure is the median of several rounds. In a round each case runs once, peers between
peftd's own (A B A B), and a ratio is the median of the rounds' ratios: what disturbs the
machine disturbs both sides. Standard library only; peers are child processes. The method,
how to install the peers and the last figures stand in bench/README.md. Exit status 1 if a
floor that could be measured does not hold.
"""
import argparse
import contextlib
import csv
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench import adapters, texts  # noqa: E402
from bench.servers import Client, Llama, Peftd, closed_loop, post  # noqa: E402

N_TASKS = 16
# The fifth method of the mix is a vector or a sparse change of every linear, in turn.
MIX = ("lora", "houlsby", "prefix", "ia3", "bitfit", "lora", "houlsby", "prefix", "ia3", "diff",
       "lora", "houlsby", "prefix", "ia3", "bitfit", "lora")


class Report:
    """Rows and floors as they are known, printed at once and kept for the CSV files."""

    def __init__(self):
        self.rows, self.floors = [], []

    def heading(self, title, unit):
        print(f"\n{title:<58}{unit:>12}   least .. most", flush=True)

    def row(self, section, who, what, unit, values):
        if not values:
            print(f"  {who:<7}{what:<49}   peer not installed", flush=True)
            return
        form = {"ms": ".2f", "ratio": ".3f", "absolute": ".1e"}.get(unit, ".1f")
        low, middle, high = (format(f(values), form) for f in (min, statistics.median, max))
        print(f"  {who:<7}{what:<49}{middle:>12}   {low} .. {high}", flush=True)
        self.rows.append([section, who, what, unit, middle, low, high, len(values)])

    def floor(self, number, what, value, limit, at_least=True):
        holds = None if value is None else value >= limit if at_least else value <= limit
        self.floors.append([number, what, value, (">=" if at_least else "<=") + f" {limit:g}",
                            {None: "not measured", True: "PASS", False: "FAIL"}[holds]])

    def print_floors(self):
        print(f"\n{'Floors':<58}{'measured':>12}   floor")
        for number, what, value, limit, verdict in self.floors:
            shown = "-" if value is None else f"{value:.3f}"
            print(f"  {number}  {what:<53}{shown:>12}   {limit:<8} {verdict}")

    def write(self, folder, facts):
        tables = {"rates": ["section", "who", "what", "unit", "median", "least", "most", "rounds"],
                  "floors": ["number", "what", "measured", "floor", "verdict"], "machine": ["fact", "value"]}
        for name, rows in (("rates", self.rows), ("floors", self.floors), ("machine", facts.items())):
            with open(folder / f"{name}.csv", "w", newline="") as f:
                csv.writer(f).writerows([tables[name], *rows])


def in_turn(cases, n_rounds, seconds):
    """cases: {name: function that returns a rate}. One round to warm up, then n_rounds, of
    which a slow machine may leave out all but two after `seconds`; returns {name: [rates]}."""
    rates, end = {name: [] for name in cases}, time.monotonic() + seconds
    for k in range(n_rounds + 1):
        if k > 2 and time.monotonic() > end:
            break
        for name, run in cases.items():
            if sys.stderr.isatty():
                print(f"\r\033[K  round {k} of {n_rounds}: {name}", end="\r", file=sys.stderr, flush=True)
            rate = run()
            if k:
                rates[name].append(rate)
    if sys.stderr.isatty():
        print("\033[K", end="", file=sys.stderr, flush=True)
    return rates


def ratio(above, below):
    """Median of the rounds' ratios."""
    return statistics.median(a / b for a, b in zip(above, below)) if above and below else None


def folders(base, work, methods, prefix):
    """An adapter folder for each entry of methods, each unlike the others."""
    return [adapters.make(base, m, work / f"{prefix}{i:02d}-{m}", i) for i, m in enumerate(methods)]


# ---- encoder --------------------------------------------------------------------


class Peft:
    """bench/peer_peft.py in the interpreter that has PEFT; None of it in ours."""

    def __init__(self, python, model, adapter_folders, log):
        self.process = subprocess.Popen(
            [python, ROOT / "bench/peer_peft.py", model, str(os.cpu_count()), *adapter_folders],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=open(log, "wb"), text=True)
        if not self.process.stdout.readline():
            raise RuntimeError(f"the PEFT peer did not start:\n{Path(log).read_text()[-2000:]}")

    def ask(self, batch, tasks, how):
        self.process.stdin.write(json.dumps({"texts": batch, "tasks": tasks, "how": how}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.process.stdin.close()
        self.process.wait(30)


PEFT_WAYS = {"by_length": "16 LoRA tasks mixed, sorted, 16 at a time", "padded": "16 LoRA tasks mixed, padded batch of 64",
             "by_task": "16 LoRA tasks, set_adapter for each"}


def encoder(a, work, report):
    batch = texts.encoder_texts()
    loras = folders("minilm", work, ["lora"] * N_TASKS, "l")
    with contextlib.ExitStack() as children:
        peft = children.enter_context(Peft(a.peft, a.minilm, loras, work / "peft.log")) if a.peft else None
        peftd = children.enter_context(Peftd(a.peftd, a.minilm, work))
        for name, some in (("lora", loras), ("mix", folders("minilm", work, MIX, "m"))):
            for i, folder in enumerate(some):
                peftd.load(f"{name}{i}", folder)

        def one_call(task_of):
            body = {"requests": [{"task": task_of(i), "input": t} for i, t in enumerate(batch)]}

            def run():
                begin = time.perf_counter()
                for _ in range(a.calls):
                    peftd.infer(body)
                return a.calls * len(batch) / (time.perf_counter() - begin)
            return run

        def clients():
            bodies = [{"task": f"lora{i}", "input": batch[i]} for i in range(N_TASKS)]
            n_each = a.calls * len(batch) // N_TASKS
            return N_TASKS * n_each / closed_loop(peftd.port, "/v1/infer", bodies, n_each)[0]

        cases = {"16 tasks": one_call(lambda i: f"lora{i % N_TASKS}"), "one task": one_call(lambda i: "lora0"),
                 "mix": one_call(lambda i: f"mix{i % N_TASKS}"), "base": one_call(lambda i: "base"), "clients": clients}
        tasks = [i % N_TASKS for i in range(len(batch))]
        for how in PEFT_WAYS if peft else ():
            cases[how] = lambda how=how: len(batch) / peft.ask(batch, tasks, how)["seconds"]
        rates = in_turn(cases, a.rounds_encoder, a.seconds)

        report.heading("Encoder: MiniLM f32, 64 texts of 10 to 60 tokens, 4 labels", "texts/s")
        for name, what in (("16 tasks", "16 LoRA tasks mixed, one call of 64"), ("one task", "one LoRA task, one call of 64"),
                           ("mix", "16 tasks of five methods mixed, one call of 64"),
                           ("base", "no adapter (embeddings), one call of 64"),
                           ("clients", "16 LoRA tasks, 16 clients, one text a call")):
            report.row("encoder", "peftd", what, "texts/s", rates[name])
        for how, what in PEFT_WAYS.items():
            report.row("encoder", "PEFT", what, "texts/s", rates.get(how))
        if peft:
            difference = compare_logits(peftd, peft, batch, tasks)
            report.row("encoder", "both", "largest difference of a logit", "absolute", [difference])
    if peft:
        best = max((rates[h] for h in PEFT_WAYS), key=statistics.median)
        report.row("encoder", "both", "peftd / PEFT at its best of three", "ratio",
                   [a / b for a, b in zip(rates["16 tasks"], best)])
    report.floor(1, "encoder, 16 LoRA tasks: peftd / PEFT, one batch", ratio(rates["16 tasks"], rates.get("padded")), 3)
    report.floor(3, "encoder, 16 tasks / one task", ratio(rates["16 tasks"], rates["one task"]), 0.9)
    report.floor(3, "encoder, five methods mixed / LoRA only", ratio(rates["mix"], rates["16 tasks"]), 0.8)


def compare_logits(peftd, peft, batch, tasks):
    """Both compute the same: the largest difference of a logit."""
    body = {"requests": [{"task": f"lora{k}", "input": t, "parameters": {"logits": True}} for t, k in zip(batch, tasks)]}
    ours = [r["output"]["logits"] for r in peftd.infer(body)["responses"]]
    theirs = peft.ask(batch, tasks, "padded")["logits"]
    return max(abs(x - y) for a, b in zip(ours, theirs) for x, y in zip(a, b))


# ---- decoder --------------------------------------------------------------------

STREAMS, N_OUT = 16, 64


def f16_model(a):
    """The GGUF file with f16 weights that both servers read, or None without llama.cpp."""
    if not a.llama:
        return None
    path = a.out / "smollm2-f16.gguf"
    if not path.exists():
        new = path.with_suffix(".new")
        subprocess.run([a.llama / "llama-quantize", "--allow-requantize", a.smollm2, new, "F16"], check=True,
                       capture_output=True)
        new.rename(path)
    return path


DECODER_CASES = (("one", "1 stream, no adapter"), ("none", "16 streams, no adapter"), ("same", "16 streams, the same LoRA"),
                 ("each", "16 streams, 16 LoRA tasks"))


def decoder(a, work, report):
    f16 = f16_model(a)
    prompts = texts.prompts(STREAMS)
    loras = folders("smollm2", work, ["lora"] * N_TASKS, "s")
    with contextlib.ExitStack() as children:
        llama = children.enter_context(
            Llama(a.llama / "llama-server", f16, loras, work, STREAMS, os.cpu_count())) if f16 else None
        peftd = children.enter_context(Peftd(a.peftd, f16 or a.smollm2, work))
        for name, some in (("lora", loras), ("mix", folders("smollm2", work, MIX, "d"))):
            for i, folder in enumerate(some):
                peftd.load(f"{name}{i}", folder)

        def ours(task_of, n=STREAMS):
            bodies = [{"task": task_of(i), "input": p, "parameters": {"max_tokens": N_OUT, "ignore_eos": True,
                                                                     "return_tokens": True}}
                      for i, p in enumerate(prompts[:n])]
            return rate(peftd.port, "/v1/infer", bodies, lambda r: r["usage"]["completion_tokens"])

        def theirs(lora_of, n=STREAMS):
            bodies = [{"prompt": p, "n_predict": N_OUT, "temperature": 0, "samplers": ["temperature"], "ignore_eos": True,
                       "cache_prompt": False, "return_tokens": True, "lora": lora_of(i)}
                      for i, p in enumerate(prompts[:n])]
            return rate(llama.port, "/completion", bodies, lambda r: r["tokens_predicted"])

        def rate(port, path, bodies, count):
            def run():
                seconds, answers = closed_loop(port, path, bodies, a.requests)
                if any(count(r) != N_OUT for r in answers):
                    raise RuntimeError(f"{path}: not {N_OUT} tokens: {str(answers[0])[:300]}")
                run.answers = answers
                return len(bodies) * a.requests * N_OUT / seconds
            return run

        cases = {"one": ours(lambda i: "base", 1), "none": ours(lambda i: "base"), "same": ours(lambda i: "lora0"),
                 "each": ours(lambda i: f"lora{i}"), "mix": ours(lambda i: f"mix{i}")}
        if llama:
            # An empty list would mean the server's own scales, which are 1 for all adapters at once.
            off = [{"id": 0, "scale": 0.0}]
            cases |= {"llama each": theirs(lambda i: [{"id": i, "scale": 1.0}]),
                      "llama same": theirs(lambda i: [{"id": 0, "scale": 1.0}]),
                      "llama none": theirs(lambda i: off), "llama one": theirs(lambda i: off, 1)}
        rates = in_turn(cases, a.rounds_decoder, a.seconds)

        weights = "f16" if f16 else "Q4_1 (f16 needs llama-quantize)"
        report.heading(f"Decoder: SmolLM2-135M {weights}, about 110 tokens in, {N_OUT} out", "tokens/s")
        for name, what in (*DECODER_CASES, ("mix", "16 streams, 16 tasks of five methods")):
            report.row("decoder", "peftd", what, "tokens/s", rates[name])
        for name, what in DECODER_CASES:
            report.row("decoder", "llama", what, "tokens/s", rates.get(f"llama {name}"))
        if llama:
            same = compare_tokens(cases["each"].answers, cases["llama each"].answers)
            report.row("decoder", "both", "first tokens of 64 that are the same, 16 LoRA tasks", "tokens", same)
    report.floor(2, "decoder, 16 LoRA tasks: peftd / llama-server", ratio(rates["each"], rates.get("llama each")), 3)
    report.floor(3, "decoder, 16 tasks / one task", ratio(rates["each"], rates["same"]), 0.9)
    report.floor(3, "decoder, five methods mixed / LoRA only", ratio(rates["mix"], rates["each"]), 0.8)


def compare_tokens(ours, theirs):
    """For each stream, how many of the first tokens agree. Ties of f16 sums end it, no more."""
    n_same = []
    for a, b in zip(ours, theirs):
        if a["usage"]["prompt_tokens"] != b["tokens_evaluated"]:
            raise RuntimeError("the peers read a different number of prompt tokens")
        pairs = zip(a["output"]["tokens"], b["tokens"])
        n_same.append(next((i for i, (x, y) in enumerate(pairs) if x != y), N_OUT))
    return n_same


# ---- many tasks -------------------------------------------------------------------


def load_many(peftd, work, n):
    """Tasks t0 .. tn-1, each its own LoRA; returns the milliseconds of each upload and load."""
    took = []
    for i in range(n):
        folder = adapters.make("minilm", "lora", work / "one", 1000 + i)
        begin = time.perf_counter()
        peftd.load(f"t{i}", folder)
        took.append(1e3 * (time.perf_counter() - begin))
    return took


def latencies(port, n_tasks, n, rng, batch):
    """Milliseconds of n requests, one after the other, each to a random task."""
    client, out = Client(port), []
    for _ in range(n):
        body = {"task": f"t{rng.randrange(n_tasks)}", "input": rng.choice(batch)}
        begin = time.perf_counter()
        post(client, "/v1/infer", body)
        out.append(1e3 * (time.perf_counter() - begin))
    return out


def many_tasks(a, work, report):
    n_few, n_many, rng = 10, a.tasks, random.Random(4)
    batch = [t for t in texts.encoder_texts() if 28 <= t.count(" ") <= 36]
    with Peftd(a.peftd, a.minilm, work) as few, \
            Peftd(a.peftd, a.minilm, work, "--resident-bytes", "8GiB", "--metrics-tasks", "100") as many:
        load_many(few, work, n_few)
        many.infer({"inputs": texts.encoder_texts(), "task": "base"})  # buffers of a full step are touched
        rss = many.rss()
        took = load_many(many, work, n_many)
        growth = (many.rss() - rss) / n_many
        listed = many.adapters()
        if len(listed) != n_many or any(t["state"] != "resident" for t in listed):
            raise RuntimeError(f"{len(listed)} tasks are listed, not all resident")
        stored = statistics.mean(t["bytes_stored"] for t in listed)
        resident = statistics.mean(t["bytes_resident"] for t in listed)

        p50, p99 = {"few": [], "many": []}, {"few": [], "many": []}
        for k in range(a.rounds_tasks + 1):
            ms = {"few": [], "many": []}
            for _ in range(8):  # short turns: what disturbs one disturbs the other
                ms["few"] += latencies(few.port, n_few, 25, rng, batch)
                ms["many"] += latencies(many.port, n_many, 25, rng, batch)
            for name in ms if k else ():
                p50[name].append(statistics.median(ms[name]))
                p99[name].append(statistics.quantiles(ms[name], n=100)[98])
        after = (many.rss() - rss) / n_many

    report.heading(f"Many tasks: MiniLM, {n_many} LoRA tasks of {stored / 1e6:.2f} MB, all loaded", "")
    report.row("tasks", "peftd", "resident bytes / stored bytes of a task", "ratio", [resident / stored])
    report.row("tasks", "peftd", "growth of the process / stored bytes, loaded", "ratio", [growth / stored])
    report.row("tasks", "peftd", "growth of the process / stored bytes, after use", "ratio", [after / stored])
    report.row("tasks", "peftd", "upload and load, first 50 tasks, ms", "ms", took[:50])
    report.row("tasks", "peftd", "upload and load, last 50 tasks, ms", "ms", took[-50:])
    for name, n in (("few", n_few), ("many", n_many)):
        report.row("tasks", "peftd", f"p50 of a request, {n} tasks loaded, ms", "ms", p50[name])
        report.row("tasks", "peftd", f"p99 of a request, {n} tasks loaded, ms", "ms", p99[name])
    report.floor(4, f"{n_many} tasks: resident / stored bytes of a task", max(resident, growth, after) / stored, 1.2, False)
    report.floor(4, f"p50 of a request, {n_many} tasks loaded / {n_few}", ratio(p50["many"], p50["few"]), 1.1, False)


# ---- the machine, the command line ----------------------------------------------------


def machine(peftd):
    cpu = Path("/proc/cpuinfo").read_text()
    flags = set(re.search(r"^flags\s*:(.*)$", cpu, re.M).group(1).split()) if "flags" in cpu else set()
    model = re.search(r"^model name\s*:\s*(.*)$", cpu, re.M)
    memory = re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())
    version = subprocess.run([peftd, "version"], capture_output=True, text=True, check=True).stdout
    version = dict(re.findall(r"^(commit|cpu level|blas) (.*)$", version, re.M))
    wide = [f for f in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16") if f in flags]
    return {"cpu": model.group(1) if model else os.uname().machine, "cores": os.cpu_count(), "levels": " ".join(wide),
            "cpu_level": version.get("cpu level", ""), "blas": version.get("blas", ""), "commit": version.get("commit", ""),
            "memory_gib": round(int(memory.group(1)) / 2**20, 1), "kernel": os.uname().release,
            "date": time.strftime("%Y-%m-%d %H:%M", time.gmtime()), "busy_at_start": round(busy(), 2)}


def busy(seconds=3):
    """The share of the processors' time that others use now."""
    def times():
        return [int(n) for n in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    before = times()
    time.sleep(seconds)
    spent = [b - a for a, b in zip(before, times())]
    return 1 - (spent[3] + spent[4]) / max(1, sum(spent))


def arguments():
    models = ROOT / "build/models"
    env = os.environ.get
    p = argparse.ArgumentParser(prog="bench/run.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--quick", action="store_true", help="fewer rounds, 200 tasks; under three minutes")
    p.add_argument("--only", choices=("encoder", "decoder", "tasks"), action="append")
    p.add_argument("--peftd", type=Path, default=ROOT / "build/peftd")
    p.add_argument("--minilm", type=Path, default=Path(env("MINILM") or models / "minilm"))
    p.add_argument("--smollm2", type=Path,
                   default=Path(env("SMOLLM2") or models / "smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"))
    p.add_argument("--peft", default=env("ORACLE_PEFT"), help="Python of the environment with torch and peft")
    p.add_argument("--llama", type=Path, default=env("LLAMA_BIN"), help="folder of llama-server and llama-quantize")
    p.add_argument("--out", type=Path, default=ROOT / "build/bench", help="where the CSV files go")
    a = p.parse_args()
    a.rounds_encoder, a.rounds_decoder, a.rounds_tasks = (4, 2, 4) if a.quick else (10, 3, 8)
    a.calls, a.requests, a.tasks, a.seconds = (3, 1, 200, 40) if a.quick else (5, 2, 1000, 200)
    for path in (a.peftd, a.minilm, a.smollm2):
        if not path.exists():
            p.error(f"{path} is not there")
    return a


def main():
    a = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the children end too
    a.out.mkdir(parents=True, exist_ok=True)
    facts, report, begin = machine(a.peftd), Report(), time.monotonic()
    print("peftd {commit}, {cores} cores, {cpu} ({levels}), {memory_gib} GiB, {busy_at_start:.0%} busy".format(**facts))
    if facts["busy_at_start"] > 0.1:
        print("The machine is busy: only the ratios say something, and less than on an idle one.")
        # Peers whose threads spin at barriers stand still on a busy machine; let them sleep.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    for name, section in (("encoder", encoder), ("decoder", decoder), ("tasks", many_tasks)):
        if not a.only or name in a.only:
            work = Path(tempfile.mkdtemp(prefix="run-", dir=a.out))
            try:
                section(a, work, report)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    facts["seconds"] = round(time.monotonic() - begin)
    report.print_floors()
    report.write(a.out, facts)
    print(f"\n{facts['seconds']} s; CSV in {os.path.relpath(a.out)}")
    return any(f[-1] == "FAIL" for f in report.floors)


if __name__ == "__main__":
    sys.exit(main())
