"""Everything at once: all golden cells of a base in calls of every form, streams, clients that leave, and other tasks
that come and go.

Every answer of a golden task must be its golden's, every answer of a task that is being replaced that of the version it
names. Run it on the sanitizers' builds: what they say on stderr is a failure, as is any exit status but 0.
"""

import argparse
import json
import os
import random
import socket
import sys
import threading
import time

from tests.integration.server import GOLDEN
from tests.soak.common import MIB, Checks, Peftd, Versions, adapter_files, golden, input_of, row_fits, run_threads

BASES = {"bert": "bert-peft-lora", "llama": "llama-peft-lora-seq-cls"}  # with a cell that has many versions
N_CLIENTS = 8
N_CHURNERS = 2
N_CHURNED = 6  # tasks that come and go
BATCH_MAX = 16
CHURN_PAUSE = 0.01
REST_SECONDS = 5
FORMS = {"one": 50, "inputs": 10, "requests": 14, "tasks": 6, "stream": 8, "churned": 6, "leave": 6}  # percent


class Cell:
    """A golden cell as a task of its own."""

    def __init__(self, name: str):
        content = golden(name)
        self.task, self.kind, self.cases = name, content["kind"], content["cases"]
        if name.endswith("-base"):
            self.task = "base"

    def parameters(self, case: dict) -> dict:
        if self.kind == "generation":
            return {"logits": True, "return_tokens": True, "max_tokens": case["max_tokens"],
                    "ignore_eos": case["ignore_eos"]}
        return {} if self.kind == "embedding" else {"logits": True}

    def request(self, case: dict) -> dict:
        return {"task": self.task, "input": input_of(case), "parameters": self.parameters(case)}

    def is_right(self, case: dict, output: dict) -> bool:
        """The output's numbers are the golden's."""
        if self.kind == "embedding":
            return row_fits(case["embedding"], output.get("embedding"))
        if self.kind == "generation" and output.get("tokens") != case["generated"]:
            return False
        rows, got = case["logits"], output.get("logits")
        if not isinstance(rows[0], list):
            return row_fits(rows, got)
        return isinstance(got, list) and len(got) == len(rows) and all(map(row_fits, rows, got))


def read_cells(base: str) -> list:
    """Those whose golden names this base."""
    names = sorted(os.listdir(os.path.join(GOLDEN, "cells")))
    return [Cell(name) for name in names if golden(name)["base"] == base]


class Churn:
    """Tasks that are uploaded, asked and deleted meanwhile."""

    def __init__(self, versions):
        self.versions = versions
        self.lock = threading.Lock()
        self.made = {}  # name of a version -> Version
        self.n_uploads = self.n_deletes = 0
        self.is_over = False

    def run(self, server, checks, seed):
        """Each of these threads has tasks of its own, so it knows what there is."""
        chooser, there = random.Random(f"churn {seed}"), set()
        with server.client() as client:
            while not self.is_over:
                task = f"churned-{chooser.randrange(N_CHURNED // N_CHURNERS) * N_CHURNERS + seed}"
                if task in there and chooser.random() < 0.4:
                    status, answer = client.call("DELETE", f"/v1/adapters/{task}")
                    checks.expect(status == 204, f"delete of {task}: {status} {answer}")
                    there.discard(task)
                    with self.lock:
                        self.n_deletes += 1
                else:
                    version = self.versions.make()
                    with self.lock:
                        self.made[version.name] = version
                    status, answer = client.put(task, version.files)
                    checks.expect(status == 201 and answer["version"] == version.name,
                                  f"upload of {task}: {status} {answer}")
                    there.add(task)
                    with self.lock:
                        self.n_uploads += 1
                time.sleep(CHURN_PAUSE)


class Mixer:
    """The clients."""

    def __init__(self, checks, server, cells, churn, n_requests):
        self.checks, self.server, self.cells, self.churn = checks, server, cells, churn
        self.lock = threading.Lock()
        self.n_left = n_requests
        self.count = dict.fromkeys(FORMS, 0)
        streamed = [cell for cell in cells if cell.kind == "generation"]
        self.streamed = streamed or None

    def take(self) -> bool:
        """One of the requests that are left to send."""
        with self.lock:
            self.n_left -= 1
            return self.n_left >= 0

    def run(self, seed):
        chooser = random.Random(f"client {seed}")
        forms, weights = list(FORMS), list(FORMS.values())
        with self.server.client() as client:
            while self.take():
                form = chooser.choices(forms, weights)[0]
                if form == "stream" and not self.streamed:
                    form = "one"
                getattr(self, "ask_" + form)(client, chooser)
                with self.lock:
                    self.count[form] += 1

    def pick(self, chooser) -> tuple:
        cell = chooser.choice(self.cells)
        return cell, chooser.choice(cell.cases)

    def check(self, cell, case, response):
        output = response.get("output", {})
        self.checks.expect(response.get("kind") == cell.kind and cell.is_right(case, output),
                           f"{cell.task}: {json.dumps(response)[:400]}")

    def infer(self, client, request):
        status, answer = client.infer(request)
        return answer if self.checks.expect(status == 200, f"{status} {answer}") else None

    def ask_one(self, client, chooser):
        cell, case = self.pick(chooser)
        answer = self.infer(client, cell.request(case))
        if answer:
            self.check(cell, case, answer)

    def ask_inputs(self, client, chooser):
        cell, case = self.pick(chooser)
        cases = [c for c in cell.cases if cell.parameters(c) == cell.parameters(case)]
        answer = self.infer(client, {"task": cell.task, "inputs": [input_of(c) for c in cases],
                                     "parameters": cell.parameters(case)})
        for c, output in zip(cases, answer["outputs"] if answer else [], strict=bool(answer)):
            self.check(cell, c, {**answer, "output": output})

    def ask_requests(self, client, chooser):
        picked = [self.pick(chooser) for _ in range(chooser.randint(2, BATCH_MAX))]
        answer = self.infer(client, {"requests": [cell.request(case) for cell, case in picked]})
        for (cell, case), response in zip(picked, answer["responses"] if answer else [], strict=bool(answer)):
            self.check(cell, case, response)

    def ask_tasks(self, client, chooser):
        """One input through every task that has a golden for it."""
        cell, case = self.pick(chooser)
        same = [(c, k) for c in self.cells for k in c.cases
                if input_of(k) == input_of(case) and c.parameters(k) == cell.parameters(case)]
        same = chooser.sample(same, min(BATCH_MAX, len(same)))
        answer = self.infer(client, {"tasks": [c.task for c, _ in same], "input": input_of(case),
                                     "parameters": cell.parameters(case)})
        for (c, k), response in zip(same, answer["results"] if answer else [], strict=bool(answer)):
            self.check(c, k, response)

    def ask_churned(self, client, chooser):
        """A task that may be gone, or another version by now; the answer must be of the version that it names."""
        case = chooser.choice(self.churn.versions.cases)
        task = f"churned-{chooser.randrange(N_CHURNED)}"
        status, answer = client.infer({"task": task, "input": input_of(case), "parameters": {"logits": True}})
        if status == 404:
            self.checks.expect(answer["error"]["code"] == "unknown_task", str(answer))
        elif self.checks.expect(status == 200, f"{task}: {status} {answer}"):
            version = self.churn.made[answer["version"]]
            self.checks.expect(row_fits(version.logits(case), answer["output"]["logits"]),
                               f"{task}@{version.name}: {answer}")

    def ask_stream(self, client, chooser):
        cell = chooser.choice(self.streamed)
        case = chooser.choice(cell.cases)
        status, events = client.stream({**cell.request(case), "stream": True})
        if not self.checks.expect(status == 200 and len(events) >= 2 and events[-1] == "[DONE]",
                                  f"{cell.task}, stream: {status} {events}"):
            return
        *deltas, last = (json.loads(event) for event in events[:-1])
        self.check(cell, case, last)
        text = "".join(delta["delta"] for delta in deltas)
        self.checks.expect(text == last["output"]["text"], f"{cell.task}, stream: {events}")

    def ask_leave(self, _, chooser):
        """A client that goes away: in the middle of its request, before the answer, or in the middle of a stream."""
        picked = [self.pick(chooser) for _ in range(chooser.randint(1, 4))]
        request = {"requests": [cell.request(case) for cell, case in picked]}
        if self.streamed and chooser.random() < 0.5:
            cell = chooser.choice(self.streamed)
            request = {**cell.request(chooser.choice(cell.cases)), "stream": True}
            request["parameters"] = {"max_tokens": 100, "ignore_eos": True}
        body = json.dumps(request).encode()
        sent = (b"POST /v1/infer HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        if chooser.random() < 0.2:
            sent = sent[:chooser.randrange(1, len(sent))]
        with socket.create_connection(("127.0.0.1", self.server.port), 60) as connection:
            connection.sendall(sent)
            if not sent.endswith(body) or chooser.random() < 0.5:
                time.sleep(chooser.choice((0, 0.001, 0.02)))
            else:
                connection.recv(chooser.randint(1, 400))


def check_rest(checks, server, n_files: float):
    """Soon after the last client nothing runs, waits, or is open any more."""
    names, deadline = ("vllm:num_requests_running", "vllm:num_requests_waiting"), time.monotonic() + REST_SECONDS
    while time.monotonic() < deadline:
        metrics = server.metrics()
        left = {name: metrics[name] for name in names} | {"more files": metrics["process_open_fds"] - n_files}
        if not any(value > 0 for value in left.values()):
            break
        time.sleep(0.05)
    checks.expect(not any(value > 0 for value in left.values()), f"{REST_SECONDS} s after the last client: {left}")


def soak(checks, base: str, n_requests: int, seed: int) -> str:
    cells = read_cells(base)
    churn = Churn(Versions(BASES[base], seed))
    begin = time.monotonic()
    with Peftd(checks, base) as server:
        with server.client() as client:
            for cell in cells:
                if cell.task != "base":
                    status, answer = client.put(cell.task, adapter_files(cell.task))
                    checks.expect(status == 201, f"upload of {cell.task}: {status} {answer}")
        mixer = Mixer(checks, server, cells, churn, n_requests)
        rss, n_files = server.rss(), server.metrics()["process_open_fds"]

        def clients():
            run_threads(checks, [lambda k=k: mixer.run(f"{seed} {k}") for k in range(N_CLIENTS)])
            churn.is_over = True

        run_threads(checks, [clients] + [lambda k=k: churn.run(server, checks, k) for k in range(N_CHURNERS)])
        check_rest(checks, server, n_files)
        with server.client() as client:  # once more, alone
            for cell in cells:
                mixer.check(cell, cell.cases[0], client.infer(cell.request(cell.cases[0]))[1])
        return (f"mixed, {base}: {n_requests} requests ({', '.join(f'{n} {f}' for f, n in mixer.count.items())}) of "
                f"{len(cells)} tasks, {churn.n_uploads} uploads, {churn.n_deletes} deletes, "
                f"{time.monotonic() - begin:.0f} s, RSS {rss // MIB} to {server.rss() // MIB} MiB")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--requests", type=int, default=10000, help="of all bases together")
    parser.add_argument("--base", choices=BASES, help="only this base")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    checks = Checks()
    bases = [arguments.base] if arguments.base else list(BASES)
    for base in bases:
        print(soak(checks, base, arguments.requests // len(bases), arguments.seed), flush=True)
    return checks.done("mixed")


if __name__ == "__main__":
    sys.exit(main())
