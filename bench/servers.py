"""peftd as a child process on 127.0.0.1, and a closed loop of clients against it or a peer.
Standard library only.
"""
import json
import tempfile
import threading
import time
from pathlib import Path

from tests.support.peftd import Client, Process, files_of

CALL_SECONDS, START_SECONDS = 600, 120
JSON = {"Content-Type": "application/json"}


def post(client, path, body):
    """The answer to a body, JSON as bytes or what makes it."""
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    status, answer = client.call("POST", path, body, JSON)
    if status != 200:
        raise RuntimeError(f"POST {path}: {status} {str(answer)[:500]}")
    return answer


def closed_loop(port, path, bodies, n_each):
    """One client thread for each of `bodies`; each sends its body n_each times, one request
    after the other. Returns (seconds, [last answer of each])."""
    answers, errors = [None] * len(bodies), []
    ready = threading.Barrier(len(bodies) + 1)

    def work(i):
        client = Client(port, CALL_SECONDS)
        data = json.dumps(bodies[i]).encode()
        ready.wait()
        try:
            for _ in range(n_each):
                answers[i] = post(client, path, data)
        except Exception as e:  # told by the main thread
            errors.append(e)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(bodies))]
    for t in threads:
        t.start()
    ready.wait()
    begin = time.perf_counter()
    for t in threads:
        t.join()
    seconds = time.perf_counter() - begin
    if errors:
        raise errors[0]
    return seconds, answers


def generate(server, bodies, n_out, n_each=1):
    """A function that returns tokens a second of a closed loop. A server has port, path, and n_out() of an answer."""
    def run():
        seconds, run.answers = closed_loop(server.port, server.path, bodies, n_each)
        if any(server.n_out(answer) != n_out for answer in run.answers):
            raise RuntimeError(f"{server.path}: not {n_out} tokens: {str(run.answers[0])[:300]}")
        return len(bodies) * n_each * n_out / seconds
    return run


class Peftd(Process):
    def __init__(self, binary, model, work_dir, *settings):
        log = Path(tempfile.mkdtemp(dir=work_dir)) / "log"
        super().__init__([str(binary), "serve", "--model", str(model), "--listen", "127.0.0.1:0", "--store",
                          str(log.parent / "store"), "--log-level", "warn", "--client-timeout", "3600", *settings], log)
        self.listen(START_SECONDS)
        self.wait_until(lambda: self.answers("/readyz"), START_SECONDS)
        self.client = Client(self.port, CALL_SECONDS)

    path = "/v1/infer"

    @staticmethod
    def body(prompt, n_out, task="base"):
        """A request for n_out tokens, greedy."""
        return {"task": task, "input": prompt, "parameters": {"max_tokens": n_out, "ignore_eos": True, "return_tokens": True}}

    @staticmethod
    def n_out(answer):
        return answer["usage"]["completion_tokens"]

    def load(self, task, folder):
        """Uploads the adapter and makes it resident."""
        status, answer = self.client.put(task, files_of(folder))
        if status not in (200, 201):
            raise RuntimeError(f"{folder.name}: {status} {answer}")
        self.infer({"task": task, "input": "time"})  # the first request loads it

    def adapters(self):
        out, after = [], ""
        while True:
            answer = self.client.call("GET", f"/v1/adapters?limit=100{after}")[1]
            out += answer["adapters"]
            if not answer.get("next"):
                return out
            after = "&after=" + answer["next"]

    def infer(self, body):
        return post(self.client, "/v1/infer", body)
