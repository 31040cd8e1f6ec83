"""A lone short request beside a flood of another tenant: python3 -m bench.fairness [--peftd P] [--encoder M] [--decoder M]
                                                                               [--adapter FOLDER] [--only uploads,...]

Tenant A: 16 clients in a loop, 64 inputs of 128 tokens each. Tenant B: one short request after the other. Two cores serve (--cores)
and do nothing else, where the machine has two more: B's client has one of them, for its time is measured, A's clients the rest. Each
tenant has an address of its own (127.0.0.2, 127.0.0.3), as --auth would give each a key. Printed: B's time alone, beside the
flood, the mean step of the flood alone, and what the flood keeps of its rows a second while B asks. Of a decoder the time to the
first token counts: B asks for one, A for 64 of each input.

With --adapter (an adapter of the encoder), A also uploads in four loops instead, new versions all of them; then "one step" is none, and what
the flood keeps are its uploads a second.

The floors hold B's p99 against its p99 alone, like against like: at most 3 times that + one step, beside uploads 2 times. A median says
nothing of the one request in a hundred that the machine itself makes late. "Strict" is the same against the median alone: it
holds only on a machine whose own p99 is near its median. The last line says how much of the machine others use: B's times
mean little where that is much. `--check` makes the exit status say whether the floors hold.
"""
import argparse
import contextlib
import http.client
import json
import multiprocessing
import os
import random
import sys
import tempfile
import time

from bench import machine
from bench.servers import Peftd
from tests.support.peftd import Client, files_of

CLIENTS, INPUTS, TOKENS, SHORT, UPLOADERS = 16, 64, 128, 8, 4
JSON = {"Content-Type": "application/json"}


class Places:
    """The server's CPUs, B's and A's: apart if there are enough, else all for everybody."""

    def __init__(self, n_cores):
        self.all = sorted(os.sched_getaffinity(0))
        is_apart = len(self.all) >= n_cores + 2
        self.server = self.all[:n_cores] if is_apart else self.all
        self.b = self.all[n_cores:n_cores + 1] if is_apart else self.all
        self.a = self.all[n_cores + 1:] if is_apart else self.all

    @contextlib.contextmanager
    def at(self, cpus):
        """What is started here stays there."""
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cpus)
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)

    @contextlib.contextmanager
    def serve(self, *args):
        with contextlib.ExitStack() as stack:
            with self.at(self.server):
                server = stack.enter_context(Peftd(*args))
            stack.enter_context(self.at(self.b))
            yield server


class Tenant:
    """A connection from an address of its own."""

    def __init__(self, port, address):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600, source_address=(address, 0))

    def infer(self, body):
        """Seconds until the answer was there."""
        begin = time.perf_counter()
        self.connection.request("POST", "/v1/infer", body, JSON)
        answer = self.connection.getresponse()
        content = answer.read()
        if answer.status not in (200, 429):
            raise RuntimeError(f"{answer.status} {content[:300]}")
        if answer.status == 429:
            time.sleep(0.05)
        return time.perf_counter() - begin


def percentile(times, p):
    times = sorted(times)
    return times[min(len(times) - 1, int(len(times) * p / 100))]


def body(rng, n_inputs, n_tokens, params):
    inputs = [{"tokens": [rng.randrange(1000, 2000) for _ in range(n_tokens)]} for _ in range(n_inputs)]
    return json.dumps({"task": "base", "inputs": inputs, "parameters": params})


def measure(tenant, rng, params, seconds):
    times, end = [], time.monotonic() + seconds
    while time.monotonic() < end or len(times) < 5:
        times.append(tenant.infer(body(rng, 1, SHORT, params)))
        time.sleep(rng.random() * 0.02)  # else B would always come right behind a step
    return times


def flood(port, params, seed):
    """A client of A, in a process of its own: B's times are not to wait for A's Python."""
    rng = random.Random(seed)
    tenant = Tenant(port, "127.0.0.2")
    bodies = [body(rng, INPUTS, TOKENS, params) for _ in range(4)]
    while True:
        tenant.infer(bodies[rng.randrange(4)])


def upload(port, folder, seed, count):
    """A loop of A's uploads: a version that was never there before, each time. The client stands for one on another machine, and
    its Python needs a third of what the server does for it: it yields."""
    os.nice(19)
    files, client = files_of(folder), Client(port)
    config = json.loads(files["adapter_config.json"])
    while True:
        config["base_model_name_or_path"] = f"{seed} {count[seed]}"  # read by nobody, and hashed
        status, answer = client.put(f"up{seed}", {**files, "adapter_config.json": json.dumps(config).encode()})
        if status != 201:
            raise RuntimeError(f"{status} {answer}")
        count[seed] += 1


def show(kind, alone, beside, step, kept, factor):
    p99, (floor, strict) = percentile(beside, 99), (factor * percentile(alone, p) + step for p in (99, 50))
    print(f"| {kind} | {percentile(alone, 50) * 1e3:.1f} | {percentile(alone, 99) * 1e3:.1f} | {percentile(beside, 50) * 1e3:.1f} | {p99 * 1e3:.1f} | "
          f"{step * 1e3:.0f} | {kept:.2f} | {floor * 1e3:.1f} | {'yes' if p99 <= floor else 'NO'} | {strict * 1e3:.1f} | "
          f"{'yes' if p99 <= strict else 'no'} |", flush=True)
    return p99 <= floor


def run_uploads(binary, model, folder, seconds, cores):
    rng, places = random.Random(1), Places(cores)
    with tempfile.TemporaryDirectory() as work, places.serve(binary, model, work, "--threads", str(cores)) as server:
        b = Tenant(server.port, "127.0.0.3")
        alone = measure(b, rng, {}, seconds)
        count = multiprocessing.Array("l", UPLOADERS, lock=False)
        clients = [multiprocessing.Process(target=upload, args=(server.port, folder, i, count), daemon=True) for i in range(UPLOADERS)]
        with places.at(places.a):
            for client in clients:
                client.start()
        time.sleep(2)
        begin = sum(count), time.monotonic()
        beside = measure(b, rng, {}, 2 * seconds)
        rate = (sum(count) - begin[0]) / (time.monotonic() - begin[1])
        if not all(client.is_alive() for client in clients) or not rate:
            raise RuntimeError("a loop of uploads has ended")
        for client in clients:
            client.terminate()
            client.join()
        server.process.kill()
    return show("uploads", alone, beside, 0, rate, 2)


def steps(port):
    """How many steps there were, their rows, the seconds that they took, and when that was."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    found = {"now": time.monotonic()}
    for line in lines:
        if line.startswith(("peftd_step_seconds_sum", "peftd_step_seconds_count", "peftd_step_rows_sum")):
            found[line.split(" ")[0]] = float(line.rsplit(" ", 1)[1])
    return found


def full_step(before, after):
    """The mean step of a flood alone, seconds."""
    return ((after["peftd_step_seconds_sum"] - before["peftd_step_seconds_sum"]) /
            (after["peftd_step_seconds_count"] - before["peftd_step_seconds_count"]))


def rows_a_second(before, after, n_others=0):
    return (after["peftd_step_rows_sum"] - before["peftd_step_rows_sum"] - n_others) / (after["now"] - before["now"])


def run(binary, model, kind, seconds, cores):
    rng, places = random.Random(1), Places(cores)
    few = {"max_tokens": 1} if kind == "decoder" else {}
    many = {"max_tokens": 64, "ignore_eos": True} if kind == "decoder" else {}
    with tempfile.TemporaryDirectory() as work:
        with places.serve(binary, model, work, "--threads", str(cores), "--max-queue", "16384", "--kv-bytes", "2GiB") as server:
            b = Tenant(server.port, "127.0.0.3")
            alone = measure(b, rng, few, seconds)
            clients = [multiprocessing.Process(target=flood, args=(server.port, many, i), daemon=True) for i in range(CLIENTS)]
            with places.at(places.a):
                for client in clients:
                    client.start()
            time.sleep(3)
            before = steps(server.port)
            time.sleep(seconds)
            middle = steps(server.port)
            beside = measure(b, rng, few, 2 * seconds)
            after = steps(server.port)
            if not all(client.is_alive() for client in clients):
                raise RuntimeError("a client of the flood has ended")
            for client in clients:
                client.terminate()
            server.process.kill()
    step = full_step(before, middle)
    kept = rows_a_second(middle, after, SHORT * len(beside)) / rows_a_second(before, middle)
    return show(kind, alone, beside, step, kept, 3)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--peftd", default="build/release/peftd")
    p.add_argument("--encoder", default="build/models/minilm")
    p.add_argument("--decoder")
    p.add_argument("--adapter", default="demo/adapters/section")
    p.add_argument("--only", default="encoder,decoder,uploads")
    p.add_argument("--seconds", type=float, default=10)
    p.add_argument("--cores", type=int, default=2)
    p.add_argument("--check", action="store_true")
    args = p.parse_args()
    print("| model | alone p50 ms | alone p99 | beside the flood p50 | p99 | one step | flood keeps | floor | held | strict | held |\n" +
          "|---" * 11 + "|", flush=True)
    only = args.only.split(",")
    held = [run(args.peftd, model, kind, args.seconds, args.cores)
            for kind, model in (("encoder", args.encoder), ("decoder", args.decoder)) if kind in only and model and os.path.exists(model)]
    if "uploads" in only and os.path.exists(args.encoder) and os.path.exists(args.adapter):
        held.append(run_uploads(args.peftd, args.encoder, args.adapter, args.seconds, args.cores))
    print(f"{100 * machine.busy(1):.0f} % of the machine is used by others")
    return 0 if all(held) or not args.check else 1


if __name__ == "__main__":
    sys.exit(main())
