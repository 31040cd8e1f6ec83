"""Time between two tokens of running streams, alone and while long prompts come in.

    python3 -m bench.itl [--streams 4] [--words 4000] [--prompts 1] [--seconds 4] [--cycles 3]
                         [--rounds 1] [--threads 4] [--smollm2 FILE] NAME="BINARY SETTING..."...

Streams of SmolLM2 run all the time: for some seconds alone, then for as many beside `prompts` clients, each of
which sends prompts of so many words, one after the other, and wants one token; so in each cycle. In a round
each build has its turn. The table has the median and the 99th percentile between two tokens in milliseconds,
alone and beside prompts, their ratios, and the prompts' tokens a second; of rounds the median. Standard
library only.
"""
import argparse
import contextlib
import http.client
import json
import random
import re
import shlex
import socket
import statistics
import tempfile
import threading
import time
from pathlib import Path

from bench import texts
from bench.servers import JSON, Peftd, post
from tests.support.peftd import Client

CALL_SECONDS = 600
SETTLE_SECONDS = 0.5  # streams' own prompts, and what was under way when a phase began


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


class Streams:
    """Streams that run until the end of the context; a stream that ends begins again."""

    def __init__(self, port, n):
        self.port, self.is_over, self.n_tokens = port, False, [0] * n
        self.gaps = []  # (when it ended, seconds)
        self.threads = [threading.Thread(target=self.run, args=(i,), daemon=True) for i in range(n)]
        for t in self.threads:
            t.start()
        while min(self.n_tokens) < 2:
            time.sleep(0.01)

    def run(self, i):
        body = json.dumps({"task": "base", "input": texts.prompts(16)[i % 16], "stream": True,
                           "parameters": {"max_tokens": 3000, "ignore_eos": True}})
        while not self.is_over:
            with Client(self.port, CALL_SECONDS) as client:
                last = None
                for line in client.send("POST", "/v1/infer", body, JSON):
                    if self.is_over:
                        return
                    if line.startswith(b'data: {"delta"'):
                        now = time.perf_counter()
                        if last:
                            self.gaps.append((now, now - last))
                        last = now
                        self.n_tokens[i] += 1

    def between(self, begin, end):
        return [1e3 * gap for at, gap in list(self.gaps) if begin <= at <= end]

    def stop(self):
        self.is_over = True
        for t in self.threads:
            t.join()


def send_prompts(port, n_words, seed, clients):
    """Prompts one after the other, until the connection is cut."""
    rng = random.Random(seed)
    with Client(port, CALL_SECONDS) as client, contextlib.suppress(OSError, http.client.HTTPException):
        clients.append(client)
        while True:
            post(client, "/v1/infer", {"task": "base", "input": texts.text(rng, n_words),
                                       "parameters": {"max_tokens": 1}})


def rows(client):
    """Token rows that the engine has computed."""
    return float(re.search(rb"^peftd_step_rows_sum (\S+)", client.call("GET", "/metrics")[1], re.M)[1])


def prompts_for(server, streams, a, seed):
    """Sends prompts for a while; returns when they began, when they were cut off, and tokens a second."""
    clients = []
    threads = [threading.Thread(target=send_prompts, args=(server.port, a.words, seed + i, clients))
               for i in range(a.prompts)]
    n_rows, n_tokens, begin = rows(server.client), sum(streams.n_tokens), time.perf_counter()
    for t in threads:
        t.start()
    time.sleep(a.seconds)
    end, n_rows, n_tokens = time.perf_counter(), rows(server.client) - n_rows, sum(streams.n_tokens) - n_tokens
    for client in clients:
        client.connection.sock.shutdown(socket.SHUT_RDWR)
    for t in threads:
        t.join()
    time.sleep(SETTLE_SECONDS)
    return begin, end, (n_rows - n_tokens) / (end - begin)


def measure(server, a, seed):
    """One round: {name: value}."""
    streams = Streams(server.port, a.streams)
    time.sleep(SETTLE_SECONDS)
    alone, beside, rates = [], [], []
    for cycle in range(a.cycles):
        begin = time.perf_counter()
        time.sleep(a.seconds)
        alone += streams.between(begin, time.perf_counter())
        begin, end, rate = prompts_for(server, streams, a, seed + 10 * cycle)
        beside += streams.between(begin, end)
        rates.append(rate)
    streams.stop()
    out = {"alone_p50": percentile(alone, 0.5), "alone_p99": percentile(alone, 0.99),
           "p50": percentile(beside, 0.5), "p99": percentile(beside, 0.99), "max": max(beside),
           "prompt_rate": statistics.mean(rates)}
    out["ratio_p50"] = out["p50"] / out["alone_p50"]
    out["ratio_p99"] = out["p99"] / out["alone_p99"]
    return out


def show(name, rounds):
    m = {key: statistics.median(r[key] for r in rounds) for key in rounds[0]}
    print(f"{name:<10} alone p50 {m['alone_p50']:6.1f} p99 {m['alone_p99']:6.1f} ms   beside prompts p50 {m['p50']:6.1f} "
          f"p99 {m['p99']:6.1f} max {m['max']:6.1f} ms   x{m['ratio_p50']:.2f} x{m['ratio_p99']:.2f}   "
          f"prompts {m['prompt_rate']:.0f} tokens/s", flush=True)


def main():
    root = Path(__file__).resolve().parent.parent
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("builds", nargs="+", metavar="NAME=COMMAND")
    p.add_argument("--streams", type=int, default=4)
    p.add_argument("--words", type=int, default=4000)
    p.add_argument("--prompts", type=int, default=1)
    p.add_argument("--seconds", type=float, default=4)
    p.add_argument("--cycles", type=int, default=3)
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--threads", default="4")
    p.add_argument("--smollm2", default=next(iter(root.glob("build/models/smollm2/*.gguf")), None))
    a = p.parse_args()
    builds = {name: shlex.split(command) for name, command in (b.split("=", 1) for b in a.builds)}
    rounds = {}
    with tempfile.TemporaryDirectory() as tmp:
        work = Path(tmp)
        for k in range(a.rounds):
            for name, (binary, *settings) in builds.items():
                with Peftd(binary, a.smollm2, work, "--threads", a.threads, *settings) as server:
                    rounds.setdefault(name, []).append(measure(server, a, 1000 * k))
    for name in rounds:
        show(name, rounds[name])


if __name__ == "__main__":
    main()
