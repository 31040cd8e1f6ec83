"""Replacement under load: clients ask one task without a pause while its versions are replaced.

Every answer names its version and must be that version's answer; the version must be one that the task had at some
moment between question and answer; no generation is ever seen to go back. At the end each version is asked alone.
"""

import argparse
import random
import sys
import threading
import time

from tests.soak.common import MIB, Checks, Peftd, Versions, adapter_files, golden, input_of, row_fits, run_threads

CELL = "bert-peft-lora"
OTHER_CELL = "bert-ah-pfeiffer"
TASK, OTHER = "replaced", "other"
N_CLIENTS = 8
RESIDENT = "256KiB"  # room for a fraction of the versions: others are dropped and loaded again
ANSWERS_BETWEEN = 2 * N_CLIENTS  # uploads wait until this many answers of the version came, so each one is seen
WAIT_SECONDS = 20


class History:
    """The versions of the task in the order of their uploads; generation g is entry g - 1."""

    def __init__(self):
        self.lock = threading.Lock()
        self.entries = []
        self.n_sent = 0  # uploads begun
        self.n_seen = 0  # the largest generation that an answer, of an upload or of a question, has named
        self.n_answers = 0
        self.is_first_there = threading.Event()
        self.is_over = False

    def begin(self, version):
        with self.lock:
            self.entries.append(version)
            self.n_sent += 1

    def see(self, generation: int):
        with self.lock:
            self.n_seen = max(self.n_seen, generation)


def upload(server, versions, history, checks, n_uploads):
    with server.client() as client:
        for generation in range(1, n_uploads + 1):
            version = versions.make()
            history.begin(version)
            status, answer = client.put(TASK, version.files)
            checks.expect(status == 201 and answer["version"] == version.name and answer["generation"] == generation,
                          f"upload {generation}: {status} {answer}")
            history.see(generation)
            wanted, deadline = history.n_answers + ANSWERS_BETWEEN, time.monotonic() + WAIT_SECONDS
            while generation > 1 and history.n_answers < wanted and time.monotonic() < deadline:
                time.sleep(0.002)
            if generation == 1:
                history.is_first_there.set()
    history.is_over = True


def check_answer(checks, history, response, cases, floor):
    """One response object of the task; `floor`: it cannot be older, 0 if a version was asked for."""
    generation = response.get("generation", 0)
    if not checks.expect(max(1, floor) <= generation <= history.n_sent,
                         f"generation {generation} when {floor} was seen: {str(response)[:300]}"):
        return
    version = history.entries[generation - 1]
    checks.expect(response["version"] == version.name, f"generation {generation} is not {response['version']}")
    outputs = response["outputs"] if "outputs" in response else [response["output"]]
    for case, output in zip(cases, outputs, strict=True):
        checks.expect(row_fits(version.logits(case), output["logits"]),
                      f"generation {generation}: {output['logits']}, not {version.logits(case)}")
    if floor:
        history.see(generation)


def ask(server, versions, history, checks, other_cases, seed):
    chooser = random.Random(seed)
    parameters = {"logits": True}
    history.is_first_there.wait(60)
    with server.client() as client:
        while not history.is_over:
            floor = history.n_seen
            case = chooser.choice(versions.cases)
            old = chooser.choice(history.entries[:floor])
            form = chooser.randrange(3)
            if form == 0:
                request = {"task": TASK, "input": input_of(case), "parameters": parameters}
            elif form == 1:
                request = {"task": TASK, "inputs": [input_of(c) for c in versions.cases], "parameters": parameters}
            else:
                other = chooser.choice(other_cases)
                request = {"requests": [
                    {"task": OTHER, "input": input_of(other), "parameters": parameters},
                    {"task": TASK, "input": input_of(case), "parameters": parameters},
                    {"task": f"{TASK}@{old.name[:12]}", "input": input_of(case), "parameters": parameters}]}
            status, answer = client.infer(request)
            errors = [r["error"] for r in answer.get("responses", [answer]) if "error" in r]
            if not checks.expect(status == 200 and not errors, f"{status} {errors}"):
                continue
            if form == 2:
                beside, answer, pinned = answer["responses"]
                checks.expect(row_fits(other["logits"], beside["output"]["logits"]), f"the other task: {beside}")
                check_answer(checks, history, pinned, [case], 0)
                checks.expect(pinned["version"] == old.name, f"{old.name} was asked, {pinned['version']} answered")
            check_answer(checks, history, answer, versions.cases if form == 1 else [case], floor)
            with history.lock:
                history.n_answers += 1


def ask_alone(server, versions, history, checks):
    with server.client() as client:
        for number, version in enumerate(history.entries, 1):
            case = versions.cases[number % len(versions.cases)]
            status, answer = client.infer({"task": f"{TASK}@{version.name}", "input": input_of(case),
                                           "parameters": {"logits": True}})
            if checks.expect(status == 200, f"version {number}: {status} {answer}"):
                check_answer(checks, history, answer, [case], 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--uploads", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    checks, history = Checks(), History()
    versions = Versions(CELL, arguments.seed)
    with Peftd(checks, "bert", "--resident-bytes", RESIDENT) as server:
        with server.client() as client:
            status, answer = client.put(OTHER, adapter_files(OTHER_CELL))
            checks.expect(status == 201, f"upload of the other task: {status} {answer}")
        rss = server.rss()
        run_threads(checks, [lambda: upload(server, versions, history, checks, arguments.uploads)] + [
            lambda seed=seed: ask(server, versions, history, checks, golden(OTHER_CELL)["cases"], seed)
            for seed in range(N_CLIENTS)])
        ask_alone(server, versions, history, checks)
        checks.expect(len(history.entries) == arguments.uploads == history.n_seen,
                      f"{len(history.entries)} uploads, generation {history.n_seen}")
        dropped = server.metrics()['peftd_adapter_evictions_total{reason="memory"}']
        facts = (f"replace: {arguments.uploads} uploads, {history.n_answers} calls of {N_CLIENTS} clients, "
                 f"{dropped:.0f} versions dropped from memory, RSS {rss // MIB} to {server.rss() // MIB} MiB")
    return checks.done(facts)


if __name__ == "__main__":
    sys.exit(main())
