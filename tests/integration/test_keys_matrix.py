"""Key x verb x route x task: every cell as declared. Random keys, routes and tasks: none answered wrongly.

What is declared is written down here once more, from docs/operations.md: nothing of the server's is asked but its table of routes.
`make check` does a part; `make keys` does it all, and KEYS_REQUESTS random requests (100,000).
"""

import fnmatch
import http.client
import itertools
import json
import os
import random
import re
import threading
import unittest

from tests.integration.server import Server
from tests.integration.test_auth import CELL, VERBS, Keys, routes

N_REQUESTS = int(os.environ.get("KEYS_REQUESTS", "0"))
N_CLIENTS = 4
TASKS = ("acme-1", "other", "absent", "base", "bert")  # `bert` is the base's served name
PATTERNS = ("*", "acme-*", "acme-?,base", "o*r")
JSON = {"Content-Type": "application/json"}


def gone(task):
    """Of routes that delete: nothing is there, so that the store stays as it is."""
    return task + "-gone"


# What names the task in the body: path -> body of a task.
BODIES = {
    "/v1/infer": lambda t: {"task": t, "input": {"tokens": [2, 5, 3]}},
    "/v1/completions": lambda t: {"model": t, "prompt": "a"},
    "/v1/chat/completions": lambda t: {"model": t, "messages": [{"role": "user", "content": "a"}]},
    "/v1/embeddings": lambda t: {"model": t, "input": "a"},
    "/classify": lambda t: {"model": t, "input": "a"},
    "/pooling": lambda t: {"model": t, "input": "a"},
    "/score": lambda t: {"model": t, "text_1": "a", "text_2": "b"},
    "/v1/score": lambda t: {"model": t, "text_1": "a", "text_2": "b"},
    "/rerank": lambda t: {"model": t, "query": "a", "documents": ["b"]},
    "/v1/rerank": lambda t: {"model": t, "query": "a", "documents": ["b"]},
    "/tokenize": lambda t: {"model": t, "prompt": "a"},
    "/detokenize": lambda t: {"model": t, "tokens": [5]},
    "/embed": lambda t: {"model": t, "inputs": "a"},
    "/predict": lambda t: {"model": t, "inputs": "a"},
    "/v1/load_lora_adapter": lambda t: {"lora_name": gone(t), "lora_path": "nowhere"},
    "/v1/unload_lora_adapter": lambda t: {"lora_name": gone(t)},
}


class Cell:
    """One request: to a route, about a task. `task` is the name that is asked for, None if the route names none."""

    def __init__(self, verb, method, path, task):
        self.verb, self.method, self.body = verb.lower(), method, None
        names = "{task}" in path or "{model}" in path
        self.task = task if names else None
        self.url = re.sub(r"\{version\}", "0" * 64, re.sub(r"\{(task|model)\}", task, path))
        if path in BODIES:
            body = BODIES[path](task)
            self.body, self.task = json.dumps(body), body.get("task") or body.get("model") or body.get("lora_name")
        elif method == "DELETE":
            self.url += "?version=" + "0" * 64
        elif method in ("PUT", "POST"):
            self.body = "{}"
        if self.task == "bert" and path != "/v1/infer":  # there `base` is its only name
            self.task = "base"

    def wanted(self, key):
        """401, 403, or None: the key does not stand in the way. `key`: (verbs, patterns), or None."""
        if self.verb in ("open", "metrics"):
            return None
        if key is None:
            return 401
        verbs, patterns = key
        if self.verb not in verbs and "admin" not in verbs:
            return 403
        if self.task is not None and not any(fnmatch.fnmatchcase(self.task, p) for p in patterns.split(",")):
            return 403
        return None


def cells():
    return [Cell(*route, task) for route in routes() for task in TASKS]


class Matrix(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        whole = [subset for n in range(len(VERBS) + 1) for subset in itertools.combinations(VERBS, n)][1:]
        cls.keys = Keys()
        cls.keys.add("root", "admin")
        cls.of = {"root": (("admin",), "*")}
        for verbs in whole if N_REQUESTS else [*((v,) for v in VERBS), ("infer", "write")]:
            for patterns in PATTERNS if N_REQUESTS else PATTERNS[1:3]:
                name = f"k{len(cls.of)}"
                cls.keys.add(name, ",".join(verbs), patterns)
                cls.of[name] = (verbs, patterns)
        cls.keys.write()
        cls.s = Server("bert", "--auth", cls.keys.path, "--import-root", cls.keys.dir.name, "--log-level", "error")
        for task in ("acme-1", "other"):
            cls.s.put_cell(task, CELL, headers=cls.keys.header["root"])

    @classmethod
    def tearDownClass(cls):
        cls.s.__exit__(None, None, None)

    def ask(self, connection, cell, headers):
        connection.request(cell.method, cell.url, cell.body, {**(JSON if cell.body else {}), **headers})
        a = connection.getresponse()
        return a.status, a.read()

    def check(self, connection, cell, key, headers):
        """What is wrong with the answer, or None."""
        status, body = self.ask(connection, cell, headers)
        wanted = cell.wanted(key)
        is_right = status == wanted if wanted else status not in (401, 403, 429) and status < 500
        return None if is_right else (cell.method, cell.url, cell.body, key, headers, wanted, status, body[:200])

    def each(self, jobs):
        """Checks (cell, key, headers) of all jobs over several connections; each client has its own share."""
        wrong, n = [], [0] * N_CLIENTS

        def work(i):
            connection = http.client.HTTPConnection("127.0.0.1", self.s.port, timeout=60)
            for job in jobs(i):
                fault = self.check(connection, *job)
                n[i] += 1
                if fault:
                    wrong.append(fault)
            connection.close()

        threads = [threading.Thread(target=work, args=(i,)) for i in range(N_CLIENTS)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(wrong[:3], [], len(wrong))
        return sum(n)

    def test_every_cell_is_as_declared(self):
        for path in (path for verb, method, path in routes() if method in ("PUT", "POST") and "{" not in path):
            self.assertIn(path, BODIES)  # a new route says here what it names
        keys = [(None, {}), *((self.of[name], self.keys.header[name]) for name in self.of)]
        everything = [(cell, *key) for cell in cells() for key in keys]
        n = self.each(lambda i: everything[i::N_CLIENTS])
        self.assertEqual(n, len(routes()) * len(TASKS) * (len(self.of) + 1))
        for wanted in (401, 403, None):
            self.assertGreater(sum(cell.wanted(key) == wanted for cell, key, _ in everything), 50)

    def damaged(self, rng):
        """A header that is no key's, though it looks like one."""
        good, other = (self.keys.header[rng.choice(list(self.of))]["Authorization"][7:] for _ in range(2))
        at = rng.randrange(len(good))
        changed = rng.choice([c for c in "0123456789abcdef" if c != good[at]])
        text = rng.choice((
            good[:at] + changed + good[at + 1:], good[:at], good + changed, good.upper(), good[:20] + rng.randbytes(32).hex(),
            "pk_" + rng.randbytes(8).hex() + "_" + rng.randbytes(32).hex(), good[:20] + other[20:] if good != other else "x",
            good[:19] + other[19:20] + good[3:19] + good[35:], "", rng.randbytes(20).hex()))
        return {"Authorization": rng.choice(("Bearer ", "bearer ", "Bearer  ", "BEARER ")) + text}

    def random_job(self, rng, of_cells):
        cell = rng.choice(of_cells)
        if rng.random() < 0.4:
            header = self.damaged(rng)
            self.assertNotIn(header["Authorization"].split(" ")[-1],
                             [h["Authorization"].split(" ")[-1] for h in self.keys.header.values()])
            return cell, None, header
        if rng.random() < 0.1:
            return cell, None, {}
        name = rng.choice(list(self.of))
        return cell, self.of[name], self.keys.header[name]

    def test_random_keys_routes_and_tasks_are_answered_as_declared(self):
        n_all, of_cells = N_REQUESTS or 2000, cells()

        def jobs(i):
            rng = random.Random(i)
            return (self.random_job(rng, of_cells) for _ in range(n_all // N_CLIENTS))

        self.assertEqual(self.each(jobs), n_all // N_CLIENTS * N_CLIENTS)


if __name__ == "__main__":
    unittest.main()
