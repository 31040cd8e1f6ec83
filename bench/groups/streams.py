"""Streams that run while long prompts come in: time between tokens, beside the same without prompts."""
import contextlib
import json
import random
import statistics
import threading
import time

from bench import models, texts
from bench.measure import Case, Results
from bench.servers import CALL_SECONDS, Client, Peftd

TITLE = "Time between tokens: SmolLM2-135M {file}, 8 streams, without and while prompts of 4,000 tokens come in"
N_STREAMS, N_OUT, N_PROMPT = 8, 32, 4000  # few tokens: one may take a second


def gaps_of_stream(port, prompt, n_out):
    """Seconds between the tokens of one streamed answer."""
    client = Client(port, CALL_SECONDS)
    body = {"task": "base", "input": prompt, "stream": True, "parameters": {"max_tokens": n_out, "ignore_eos": True}}
    answer = client.send("POST", "/v1/infer", json.dumps(body), {"Content-Type": "application/json"})
    times = []
    for line in answer:
        if line.startswith(b"data:"):
            times.append(time.perf_counter())
    if answer.status != 200 or len(times) < n_out // 2:
        raise RuntimeError(f"a stream of {len(times)} events, status {answer.status}")
    return [b - a for a, b in zip(times, times[1:])]


class Prompts(threading.Thread):
    """Sends one long prompt after the other while the context lasts."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.port, self.is_over, self.n_done = port, False, 0

    def run(self):
        rng, client = random.Random(7), Client(self.port, CALL_SECONDS)
        while not self.is_over:
            tokens = [rng.randrange(1000, 20000) for _ in range(N_PROMPT)]
            client.infer({"task": "base", "input": {"tokens": tokens}, "parameters": {"max_tokens": 1, "ignore_eos": True}})
            self.n_done += 1

    def __enter__(self):
        self.start()
        time.sleep(0.2)
        return self

    def __exit__(self, *_):
        self.is_over = True
        self.join()


def p99(server, prompts, beside):
    """Milliseconds; all streams together."""
    def run():
        gaps, errors = [], []

        def stream(prompt):
            try:
                gaps.extend(gaps_of_stream(server.port, prompt, N_OUT))
            except Exception as e:  # told by the main thread
                errors.append(e)
        with Prompts(server.port) if beside else contextlib.nullcontext():
            threads = [threading.Thread(target=stream, args=(p,)) for p in prompts]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
        if errors:
            raise errors[0]
        return 1e3 * statistics.quantiles(gaps, n=100)[98]
    return run


def run(bench, work):
    path = models.quantised(bench, "f16")
    file, path = ("f16", path) if path else ("q4_1", bench.smollm2)
    results, cases, prompts = Results("streams", TITLE.format(file=file)), [], texts.prompts(N_STREAMS, 20)
    with contextlib.ExitStack() as children:
        for precision in ("exact", "int8"):
            server = children.enter_context(Peftd(bench.peftd, path, work, *bench.settings, "--precision", precision))
            cases += [Case(f"{name}/{precision}", "peftd", f"{file} {precision}, p99 between tokens{what}", "ms",
                           p99(server, prompts, name == "beside"))
                      for name, what in (("alone", ""), ("beside", ", prompts of 4,000 tokens beside"))]
        results.add(bench.in_turn(cases, 2))
    return results
