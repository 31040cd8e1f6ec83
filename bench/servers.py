"""Servers as child processes on 127.0.0.1 (peftd and llama-server), and a closed loop
of clients against them. Standard library only.
"""
import http.client
import json
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from bench import gguf_lora


class Server:
    """One child process that answers HTTP; use as a context. Stopped with SIGTERM."""

    def __init__(self, command, log_path):
        self.log = open(log_path, "wb")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        self.port = None

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()

    def log_tail(self):
        return Path(self.log.name).read_text(errors="replace")[-2000:]

    def wait_until(self, is_so, seconds=120):
        end = time.monotonic() + seconds
        while not is_so():
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{self.process.args[0]} did not start:\n{self.log_tail()}")
            time.sleep(0.05)

    def answers(self, path):
        try:
            return self.get(path)[0] == 200
        except OSError:
            return False

    def get(self, path):
        return Client(self.port).call("GET", path)

    def rss(self):
        """Resident bytes of the process: anonymous memory and mapped files."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(re.search(r"VmRSS:\s+(\d+)", status).group(1))


class Client:
    """One kept-alive connection."""

    def __init__(self, port):
        self.http = http.client.HTTPConnection("127.0.0.1", port, timeout=600)

    def call(self, method, path, body=None, content_type="application/json"):
        """(status, parsed answer)."""
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        if self.http.sock is None:
            self.http.connect()  # headers and body go out as two writes: do not wait for the first's ACK
            self.http.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.http.request(method, path, body, {"Content-Type": content_type} if body else {})
        r = self.http.getresponse()
        data = r.read()
        return r.status, json.loads(data) if data[:1] in (b"{", b"[") else data

    def post(self, path, body):
        status, answer = self.call("POST", path, body)
        if status != 200:
            raise RuntimeError(f"POST {path}: {status} {str(answer)[:500]}")
        return answer


def closed_loop(port, path, bodies, n_each):
    """One client thread for each of `bodies`; each sends its body n_each times, one request
    after the other. Returns (seconds, [last answer of each])."""
    answers, errors = [None] * len(bodies), []
    ready = threading.Barrier(len(bodies) + 1)

    def work(i):
        client = Client(port)
        data = json.dumps(bodies[i]).encode()
        ready.wait()
        try:
            for _ in range(n_each):
                answers[i] = client.post(path, data)
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


def multipart(folder):
    boundary = "a-line-that-is-in-no-file"
    out = bytearray()
    for path in sorted(folder.iterdir()):
        out += (f"--{boundary}\r\nContent-Disposition: form-data; name=\"f\"; filename=\"{path.name}\"\r\n"
                "Content-Type: application/octet-stream\r\n\r\n").encode() + path.read_bytes() + b"\r\n"
    return bytes(out + f"--{boundary}--\r\n".encode()), f"multipart/form-data; boundary={boundary}"


class Peftd(Server):
    def __init__(self, binary, model, work_dir, *settings):
        log = Path(tempfile.mkdtemp(dir=work_dir)) / "log"
        super().__init__([str(binary), "serve", "--model", str(model), "--listen", "127.0.0.1:0", "--store",
                          str(log.parent / "store"), "--log-level", "warn", "--client-timeout", "3600", *settings], log)
        self.wait_until(self.listens)
        self.wait_until(lambda: self.answers("/readyz"))
        self.client = Client(self.port)

    def listens(self):
        found = re.search(r"listening on http://[^:]+:(\d+)", Path(self.log.name).read_text(errors="replace"))
        self.port = int(found.group(1)) if found else None
        return found

    def load(self, task, folder):
        """Uploads the adapter and makes it resident."""
        status, answer = self.client.call("PUT", f"/v1/adapters/{task}", *multipart(folder))
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
        return self.client.post("/v1/infer", body)


class Llama(Server):
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
        self.wait_until(lambda: self.answers("/health"))
