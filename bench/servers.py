"""Servers as child processes on 127.0.0.1 (peftd and llama-server), and a closed loop
of clients against them. Standard library only.
"""
import json
import socket
import tempfile
import threading
import time
from pathlib import Path

from bench import gguf_lora
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


class Peftd(Process):
    def __init__(self, binary, model, work_dir, *settings):
        log = Path(tempfile.mkdtemp(dir=work_dir)) / "log"
        super().__init__([str(binary), "serve", "--model", str(model), "--listen", "127.0.0.1:0", "--store",
                          str(log.parent / "store"), "--log-level", "warn", "--client-timeout", "3600", *settings], log)
        self.listen(START_SECONDS)
        self.wait_until(lambda: self.answers("/readyz"), START_SECONDS)
        self.client = Client(self.port, CALL_SECONDS)

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


class Llama(Process):
    """llama-server with f16 adapters made from PEFT folders; `folders` may be empty."""

    def __init__(self, binary, model, folders, work_dir, streams, threads):
        files = []
        for folder in folders:
            files.append(work_dir / f"{folder.name}.gguf")
            gguf_lora.convert(folder, files[-1])
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        # No cache of old prompts: every request computes its own.
        super().__init__([str(binary), "-m", str(model), "--host", "127.0.0.1", "--port", str(port),
                          "-t", str(threads), "-np", str(streams), "-c", "16384", "--cache-ram", "0",
                          "--no-ui", "--lora-init-without-apply", "--lora", ",".join(map(str, files))],
                         work_dir / "llama.log")
        self.port = port
        self.wait_until(lambda: self.answers("/health"), START_SECONDS)
