"""kill -9 during uploads, many times on one store.

Threads upload versions of a few tasks, one of them uploads and deletes a task of its own, and the server is killed at a
random moment, at times while it starts. What was acknowledged must be there after the next start and answer right; what
was not is there as a whole or not at all; the store holds nothing else.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import threading
import time

from tests.integration.server import GOLDEN, PEFTD
from tests.soak.common import Checks, Peftd, Versions, content_hash, input_of, row_fits, run_threads

CELL = "bert-peft-lora"
TASKS = ("first", "second", "third")
VOLATILE = "volatile"
N_THREADS = 4
KILL_SECONDS = 0.3  # uploads run for at most this long
START_SECONDS = 0.1
OLDER_ASKED = 20  # versions of earlier rounds that each round asks; the last one asks all
ASKED_AT_ONCE = 50


class Task:
    """What the clients know of one task."""

    def __init__(self):
        self.lock = threading.Lock()
        self.by_generation = {}  # acknowledged or seen since: must stay
        self.versions = {}  # name -> Version, the same
        self.in_flight = {}  # name -> Version: sent and not answered when the server died
        self.n_checked = 0  # of `versions`, by earlier rounds
        self.is_deleting = False
        self.floor = 0  # generation before the last delete

    @property
    def generation(self) -> int:
        return max(self.by_generation, default=self.floor)

    def begin(self, version):
        with self.lock:
            self.in_flight[version.name] = version

    def keep(self, generation: int, version):
        """True if it contradicts nothing."""
        with self.lock:
            self.in_flight.pop(version.name, None)
            self.versions[version.name] = version
            return self.by_generation.setdefault(generation, version.name) == version.name

    def forget(self):
        """The task has been deleted: its generations go on, all else is gone."""
        self.floor = self.generation
        self.by_generation, self.versions, self.in_flight = {}, {}, {}
        self.n_checked = 0
        self.is_deleting = False


class Round:
    """The clients of one life of the server."""

    def __init__(self, server, tasks, versions, checks, seed):
        self.server, self.tasks, self.versions, self.checks = server, tasks, versions, checks
        self.seed = seed
        self.is_killed = False
        self.n_acknowledged = 0

    def until_killed(self, step, seed):
        chooser = random.Random(seed)
        with self.server.client() as client:
            while not self.is_killed:
                try:
                    step(client, chooser)
                except (OSError, ValueError) as error:  # the connection, or half an answer
                    self.checks.expect(self.is_killed, f"{error!r} before the kill")

    def put(self, client, name: str, version):
        task = self.tasks[name]
        task.begin(version)
        status, answer = client.put(name, version.files)
        if not self.checks.expect(status in (200, 201) and answer["version"] == version.name,
                                  f"upload: {status} {answer}"):
            return
        self.checks.expect(task.keep(answer["generation"], version),
                           f"{name}: two versions of generation {answer['generation']}")
        self.n_acknowledged += 1

    def upload(self, client, chooser):
        name = chooser.choice(TASKS)
        known = list(self.tasks[name].versions.values())
        is_again = known and chooser.random() < 0.2
        self.put(client, name, chooser.choice(known) if is_again else self.versions.make())

    def upload_and_delete(self, client, _):
        task = self.tasks[VOLATILE]
        self.put(client, VOLATILE, self.versions.make())
        task.is_deleting = True
        status, answer = client.call("DELETE", f"/v1/adapters/{VOLATILE}")
        self.checks.expect(status == 204, f"delete: {status} {answer}")
        task.forget()

    def run(self, seconds: float):
        def kill():
            time.sleep(seconds)
            self.is_killed = True
            self.server.kill()

        uploads = [lambda n=n: self.until_killed(self.upload, f"{self.seed} {n}") for n in range(N_THREADS)]
        run_threads(self.checks, [kill, lambda: self.until_killed(self.upload_and_delete, 0), *uploads])


def kill_at_start(store: str, seconds: float):
    command = [PEFTD, "serve", "--model", os.path.join(GOLDEN, "bases", "bert"), "--listen", "127.0.0.1:0",
               "--store", store]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        time.sleep(seconds)
        process.kill()


def check_files(checks, store: str, sent: set):
    """Right after a kill: every version that can be seen is complete, and one that was sent."""
    for name in os.listdir(os.path.join(store, "versions")):
        folder = os.path.join(store, "versions", name)
        files = {}
        for file in os.listdir(folder):
            if file != "version.json":
                with open(os.path.join(folder, file), "rb") as f:
                    files[file] = f.read()
        checks.expect(content_hash(files) == name and os.path.exists(os.path.join(folder, "version.json")),
                      f"version {name} is not whole: {sorted(files)}")
        checks.expect(name in sent, f"nobody sent version {name}")


def check_pointer(checks, client, name: str, task: Task):
    """The pointer is where the last acknowledged move left it, or where one in flight has put it."""
    status, answer = client.call("GET", f"/v1/adapters/{name}")
    if status == 404 and (not task.by_generation or task.is_deleting):
        task.forget()
        return
    if not checks.expect(status == 200, f"{name}: {status} {answer}"):
        return
    generation, version = answer["generation"], answer["version"]
    if task.by_generation.get(generation) == version and generation == task.generation:
        return
    is_moved = task.generation < generation <= task.generation + len(task.in_flight)
    if checks.expect(is_moved and version in task.in_flight,
                     f"{name}: generation {generation} is {version}, acknowledged was {task.generation}, "
                     f"{task.by_generation.get(task.generation)}"):
        task.keep(generation, task.in_flight[version])


def ask(client, name: str, asked: list, cases: list) -> list:
    case = cases[0]
    requests = [{"task": f"{name}@{v.name}", "input": input_of(case), "parameters": {"logits": True}} for v in asked]
    responses = []
    for start in range(0, len(requests), ASKED_AT_ONCE):
        responses += client.infer({"requests": requests[start:start + ASKED_AT_ONCE]})[1]["responses"]
    return [(v, r, "error" not in r and r["version"] == v.name and row_fits(v.logits(case), r["output"]["logits"]))
            for v, r in zip(asked, responses, strict=True)]


def check_answers(checks, client, name: str, task: Task, kept: list, cases: list):
    for version, response, is_right in ask(client, name, kept, cases):
        checks.expect(is_right, f"{name}@{version.name}: {str(response)[:500]}")
    # What was in flight may have come as far as the store, or not; there is nothing between.
    flying = list(task.in_flight.values())
    for version, response, is_right in ask(client, name, flying, cases):
        code = response.get("error", {}).get("code")
        checks.expect(is_right or code in ("unknown_version", "unknown_task"),
                      f"in flight, {name}@{version.name}: {str(response)[:500]}")
        if is_right:
            task.versions[version.name] = version
    task.in_flight = {}


def check_state(checks, server, store: str, tasks: dict, cases: list, chooser, n_older: int):
    """The server, right after its start, knows what it must and nothing else."""
    checks.expect(not os.listdir(os.path.join(store, "tmp")), "tmp/ is not empty after the start")
    checks.expect(not os.listdir(os.path.join(store, "damaged")), "a version was set aside as damaged")
    with server.client() as client:
        for name, task in tasks.items():
            check_pointer(checks, client, name, task)
            kept = list(task.versions.values())
            older, recent = kept[:task.n_checked], kept[task.n_checked:]
            check_answers(checks, client, name, task, chooser.sample(older, min(n_older, len(older))) + recent, cases)
            task.n_checked = len(task.versions)
            task.is_deleting = False


def check_leftovers(checks, store: str, tasks: dict):
    """`peftd store` finds nothing damaged, and what its gc leaves is what some task has."""
    for command in ("verify", "gc"):
        done = subprocess.run([PEFTD, "store", command, "--store", store], capture_output=True, text=True, timeout=600,
                              check=False)
        checks.expect(done.returncode == 0, f"peftd store {command}: {done.stdout}{done.stderr}")
    left = set(os.listdir(os.path.join(store, "versions")))
    kept = {name for task in tasks.values() for name in task.versions}
    checks.expect(left == kept, f"{len(left - kept)} versions of no task are left, {len(kept - left)} are lost")
    checks.expect(not os.listdir(os.path.join(store, "tmp")), "tmp/ is not empty at the end")
    return len(left)


def soak(checks, store: str, n_kills: int, seed: int) -> str:
    versions = Versions(CELL, seed)
    chooser = random.Random(seed)
    tasks = {name: Task() for name in (*TASKS, VOLATILE)}
    n_acknowledged = n_unanswered = 0
    for number in range(n_kills):
        if number % 10 == 9:
            kill_at_start(store, chooser.uniform(0, START_SECONDS))
        server = Peftd(checks, "bert", "--store", store)
        check_state(checks, server, store, tasks, versions.cases, chooser, OLDER_ASKED)
        life = Round(server, tasks, versions, checks, f"{seed} {number}")
        life.run(chooser.uniform(0, KILL_SECONDS))
        n_acknowledged += life.n_acknowledged
        n_unanswered += sum(len(task.in_flight) for task in tasks.values())
        check_files(checks, store, versions.names)
    with Peftd(checks, "bert", "--store", store) as server:
        check_state(checks, server, store, tasks, versions.cases, chooser, sys.maxsize)
    n_left = check_leftovers(checks, store, tasks)
    return (f"crash: {n_kills} kills, {n_acknowledged} uploads acknowledged, {n_unanswered} cut off, "
            f"{n_left} versions in the store")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    checks = Checks()
    with tempfile.TemporaryDirectory(prefix="peftd-soak-") as folder:
        facts = soak(checks, os.path.join(folder, "store"), arguments.kills, arguments.seed)
    return checks.done(facts)


if __name__ == "__main__":
    sys.exit(main())
