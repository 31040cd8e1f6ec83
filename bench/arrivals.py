"""Requests that come when they come: time to the first token, between tokens and to the last, by how many come a second.

    python3 -m bench.arrivals [--rates 1,2,4] [--seconds 30] [--tokens 110] [--out 64] [--long 0] [--threads 2]
                              [--adapters FOLDER...] [--smollm2 FILE] [--llama] [NAME="BINARY SETTING..."...]

Requests arrive at random, independent of each other (a Poisson process) and of how busy the server is, as those of many users
do; a closed loop of clients would ask less of a slow server. Each is a prompt of about so many tokens and streams `--out`
of its answer, greedy; every `--long`th prompt is ten times as long. With adapters each takes one of them at random. All servers
see the same requests at the same times. `--llama`: llama-server, too, 16 slots, from LLAMA_BIN; with adapters it has them as GGUF.

The table has for each rate, in milliseconds, the median and the 99th percentile of the time to the first token, between two tokens
and of a whole answer, tokens a second while requests came, and how many had no token yet when the last one came. Standard library only.
"""
import argparse
import asyncio
import contextlib
import json
import os
import random
import shlex
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from bench import texts
from bench.itl import percentile
from bench.peers import llama
from bench.servers import Peftd

SLOTS, LONGER, DRAIN_SECONDS = 16, 10, 120


@dataclass
class Request:
    """One that is to be sent, and when its tokens came."""
    at: float  # seconds from the begin
    body: bytes
    begin: float = 0.0
    tokens: list = field(default_factory=list)

    @property
    def gaps(self):
        return [b - a for a, b in zip(self.tokens, self.tokens[1:])]


def requests(a, rate, make_body, n_adapters):
    """Those of one rate; the same for each server. Of a Poisson process whose number is known each time is as likely as any other."""
    rng, out = random.Random(7), []
    for at in sorted(rng.uniform(0, a.seconds) for _ in range(round(rate * a.seconds))):
        n = a.tokens * (LONGER if a.long and len(out) % a.long == a.long - 1 else 1)
        prompt = texts.text(rng, max(1, round(n * rng.uniform(0.8, 1.2))))
        body = make_body(prompt, rng.randrange(n_adapters) if n_adapters else None)
        out.append(Request(at, json.dumps({**body, "stream": True}).encode()))
    return out


async def send(request, port, path, begin):
    await asyncio.sleep(begin + request.at - time.perf_counter())
    request.begin = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(request.body) + request.body)
    status = await reader.readline()
    if b" 200 " not in status:
        raise RuntimeError(f"{path}: {(status + await reader.read(500))!r}")
    async for line in reader:
        if line.startswith((b'data: {"delta"', b'data: {"index"')):  # a token's: peftd's, llama-server's, whose last event is one more
            request.tokens.append(time.perf_counter())
    writer.close()


async def run(port, path, todo, a):
    """Sends all, each at its time."""
    begin = time.perf_counter() + 0.2
    await asyncio.wait_for(asyncio.gather(*(send(r, port, path, begin) for r in todo)), a.seconds + DRAIN_SECONDS)
    for r in todo:
        if not a.out * 0.8 <= len(r.tokens) <= a.out + 1:  # a character of two tokens is one event
            raise RuntimeError(f"{len(r.tokens)} tokens of {a.out}")
    return begin


def show(name, rate, todo, begin, seconds):
    last = begin + todo[-1].at
    first = [1e3 * (r.tokens[0] - r.begin) for r in todo]
    gaps = [1e3 * gap for r in todo for gap in r.gaps]
    whole = [1e3 * (r.tokens[-1] - r.begin) for r in todo]
    n = sum(t <= begin + seconds for r in todo for t in r.tokens)
    late = sum(r.tokens[0] > last for r in todo[:-1])
    print(f"{name:<14}{rate:6.1f} a second  " + "  ".join(
        f"{what} {percentile(v, 0.5):7.1f} {percentile(v, 0.99):7.1f} ms" for what, v in (("first", first), ("between", gaps), ("all", whole))) +
        f"  {n / seconds:6.1f} tokens/s  {late:3} without one at the end", flush=True)


@contextlib.contextmanager
def peftd(a, work, command):
    binary, *settings = shlex.split(command)
    with Peftd(binary, a.smollm2, work, "--threads", str(a.threads), *settings) as server:
        for i, folder in enumerate(a.adapters):
            server.load(f"t{i}", folder)
        yield server, lambda prompt, adapter: server.body(prompt, a.out, "base" if adapter is None else f"t{adapter}")


@contextlib.contextmanager
def llama_server(a, work):
    a.llama = Path(os.environ["LLAMA_BIN"])
    with llama.Server(a, a.smollm2, work, SLOTS, a.adapters, SLOTS * 2048) as server:
        yield server, lambda prompt, adapter: server.body(prompt, a.out, adapter)


def main():
    root = Path(__file__).resolve().parent.parent
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("builds", nargs="*", metavar="NAME=COMMAND")
    p.add_argument("--rates", default="1,2,4")
    p.add_argument("--seconds", type=float, default=30)
    p.add_argument("--tokens", type=int, default=110)
    p.add_argument("--out", type=int, default=64)
    p.add_argument("--long", type=int, default=0)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--adapters", type=Path, nargs="*", default=[])
    p.add_argument("--smollm2", type=Path, default=next(iter(root.glob("build/models/smollm2/*.gguf")), None))
    p.add_argument("--llama", action="store_true")
    a = p.parse_args()
    if a.llama and "LLAMA_BIN" not in os.environ:
        p.error("--llama wants LLAMA_BIN, the folder of llama-server")
    with tempfile.TemporaryDirectory() as tmp:
        work = Path(tmp)
        servers = [(name, peftd(a, work, command)) for name, command in (b.split("=", 1) for b in a.builds)]
        servers += [("llama-server", llama_server(a, work))] if a.llama else []
        for name, server in servers:
            with server as (process, make_body):
                for rate in map(float, a.rates.split(",")):
                    todo = requests(a, rate, make_body, len(a.adapters))
                    begin = asyncio.run(run(process.port, process.path, todo, a))
                    show(name, rate, todo, begin, a.seconds)


if __name__ == "__main__":
    main()
