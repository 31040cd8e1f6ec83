"""Two or more builds of peftd in turn on the same machine, on an idle and on a busy one.

    python3 -m bench.ab [--threads 1,2,4] [--busy 0,2] [--rounds 5] [--cases one,many,http]
                        [--quiet] [--minilm DIR] [--smollm2 FILE] NAME="BINARY SETTING..."...

Cases: `one` stream and `many` (16) streams of SmolLM2, `http`: 16 clients with one text a call to
MiniLM. `busy` is the number of endless loops that run beside. In each round every build runs once,
in turn, after a round to warm up; the table shows the median of each build and the median of the
rounds' ratios to the first build. Standard library only. docs/performance-workers.md has figures.
With --quiet a turn waits until other programs leave the machine alone.
"""
import argparse
import contextlib
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench import texts
from bench.servers import Peftd, closed_loop, texts_loop

N_OUT = 64


@contextlib.contextmanager
def busy_loops(n):
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n)]
    try:
        yield
    finally:
        for p in loops:
            p.kill()
            p.wait()


def busy_share():
    """Part of all CPU time that was used in the last fifth of a second."""
    def read():
        times = [int(t) for t in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
        return sum(times), times[3] + times[4]
    (all0, idle0), _, (all1, idle1) = read(), time.sleep(0.2), read()
    return 1 - (idle1 - idle0) / max(1, all1 - all0)


def wait_for_quiet(n_loops, seconds=120):
    end = time.monotonic() + seconds
    while busy_share() > 0.12 + n_loops / os.cpu_count() and time.monotonic() < end:
        pass


def generate(server, n_streams, n_each):
    """Tokens a second of a closed loop."""
    bodies = [{"task": "base", "input": p, "parameters": {"max_tokens": N_OUT, "ignore_eos": True}}
              for p in texts.prompts(16)[:n_streams]]
    return n_streams * n_each * N_OUT / closed_loop(server.port, server.path, bodies, n_each)[0]


def embed(server, n_each):
    """Texts a second."""
    return texts_loop(server, ["base"] * 16, texts.encoder_texts(), n_each)


CASES = {"one": ("smollm2", "tokens/s", lambda server: generate(server, 1, 1)),
         "many": ("smollm2", "tokens/s", lambda server: generate(server, 16, 1)),
         "http": ("minilm", "texts/s", lambda server: embed(server, 12))}


def measure(builds, model, cases, threads, a):
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = {name: stack.enter_context(Peftd(*path[:1], model, work, "--threads", threads, *path[1:]))
                  for name, path in builds.items()}
        for busy in a.busy.split(","):
            with busy_loops(int(busy)):
                for case in cases:
                    rates = {name: [] for name in builds}
                    for k in range(a.rounds + 1):
                        for name in builds:
                            if a.quiet:
                                wait_for_quiet(int(busy))
                            rate = CASES[case][2](server[name])
                            if k:
                                rates[name].append(rate)
                    show(case, threads, busy, rates)


def show(case, threads, busy, rates):
    first = next(iter(rates.values()))
    columns = []
    for name, some in rates.items():
        ratio = statistics.median(x / y for x, y in zip(some, first))
        columns.append(f"{name} {statistics.median(some):7.1f} ({min(some):.0f} .. {max(some):.0f}) x{ratio:.2f}")
    print(f"{case:<5} threads {threads} busy {busy}  {CASES[case][1]:<9}" + "   ".join(columns), flush=True)


def main():
    root = Path(__file__).resolve().parent.parent
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("builds", nargs="+", metavar="NAME=COMMAND")
    p.add_argument("--threads", default="1,2,4")
    p.add_argument("--busy", default="0,2")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--quiet", action="store_true")
    p.add_argument("--cases", default="one,many,http")
    p.add_argument("--minilm", default=root / "build/models/minilm")
    p.add_argument("--smollm2", default=next(iter(root.glob("build/models/smollm2/*.gguf")), None))
    a = p.parse_args()
    builds = {name: shlex.split(command) for name, command in (b.split("=", 1) for b in a.builds)}
    for model in ("smollm2", "minilm"):
        cases = [c for c in a.cases.split(",") if CASES[c][0] == model]
        for threads in a.threads.split(",") if cases else ():
            measure(builds, getattr(a, model), cases, threads, a)


if __name__ == "__main__":
    main()
