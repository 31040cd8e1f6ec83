"""peftd as a child process on 127.0.0.1, and a closed loop of clients against it or a peer.
Standard library only.
"""
import json
import socket
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


class Wire:
    """A connection of peftd that stays open and sends requests that were made before. It reads of an answer what says that it is one
    and where it ends: 16 clients that parse headers and JSON take a quarter of a core from the server beside them,
    and one that reads the vectors of 64 texts takes as long as a tenth of the server's time for them in int8."""

    def __init__(self, port, path, bodies):
        self.socket = socket.create_connection(("127.0.0.1", port), CALL_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\nContent-Length: "
        data = [json.dumps(body).encode() for body in bodies]
        self.requests = [head.encode() + b"%d\r\n\r\n" % len(d) + d for d in data]

    def ask(self, k):
        """Sends the k-th request of an endless round and returns the bytes of its answer's body."""
        self.socket.sendall(self.requests[k % len(self.requests)])
        seen, n_all, end = bytearray(), None, -1
        while n_all is None or len(seen) < n_all:
            more = self.socket.recv(1 << 18)
            if not more:
                raise RuntimeError("the connection ended within an answer")
            seen += more
            end = seen.find(b"\r\n\r\n") if n_all is None else end
            if n_all is None and end >= 0:
                head = seen[:end].lower() + b"\r\n"
                at = head.index(b"content-length:") + len(b"content-length:")
                n_all = end + 4 + int(head[at:head.index(b"\r\n", at)])
        if not seen.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(f"{seen[:500]!r}")
        return bytes(seen[end + 4:])


def closed_loop(port, path, bodies, n_each):
    """One client thread for each of `bodies`; each sends its body n_each times, one request
    after the other. Returns (seconds, [last answer of each])."""
    answers = [None] * len(bodies)

    def client(i):
        connection, data = Client(port, CALL_SECONDS), json.dumps(bodies[i]).encode()

        def ask(_):
            answers[i] = post(connection, path, data)
        return ask
    return at_once(len(bodies), n_each, client), answers


def texts_loop(server, tasks, batch, n_each):
    """One client a task, one text a call. In `len(batch) / len(tasks)` calls the clients ask for each text of the batch once, as one call
    with all of them does. Returns texts a second."""
    def client(i):
        return Wire(server.port, server.path, [{"task": tasks[i], "input": t} for t in batch[i::len(tasks)]]).ask
    return len(tasks) * n_each / at_once(len(tasks), n_each, client)


def at_once(n, n_each, client):
    """The seconds that n threads take; thread i calls what client(i) has made n_each times, with 0, 1, ..."""
    errors, ready = [], threading.Barrier(n + 1)

    def work(i):
        try:
            try:
                ask = client(i)
            finally:
                ready.wait()
            for k in range(n_each):
                ask(k)
        except Exception as e:  # told by the main thread
            errors.append(e)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(n)]
    for t in threads:
        t.start()
    ready.wait()
    begin = time.perf_counter()
    for t in threads:
        t.join()
    seconds = time.perf_counter() - begin
    if errors:
        raise errors[0]
    return seconds


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
    def body(prompt, n_out, task="base", sampling=None):
        """A request for n_out tokens; sampling: parameters, None for greedy."""
        return {"task": task, "input": prompt,
                "parameters": {"max_tokens": n_out, "ignore_eos": True, "return_tokens": True, **(sampling or {})}}

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
