"""A real peftd process for the tests, and a small client. Standard library only."""

import http.client
import io
import json
import os
import re
import socket
import tarfile
import tempfile
import time
import zipfile

from tests.support.peftd import Process, files_of, multipart

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
PEFTD = os.path.abspath(os.environ.get("PEFTD", os.path.join(ROOT, "build", "peftd")))
GOLDEN = os.path.join(ROOT, "tests", "golden")
ENDLESS = 80000  # tokens that even the smallest model does not generate within a test


class Answer:
    def __init__(self, status, headers, body):
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        """(status, code, param) of an error answer."""
        e = self.json["error"]
        return self.status, e["code"], e["param"]


def what_went_wrong(log):
    """A log's first report of a sanitizer, which may stand long before its end, and its end."""
    report = re.search(r"(WARNING: ThreadSanitizer|ERROR: (Address|Leak)Sanitizer|\S+: runtime error:).{,4000}", log, re.S)
    return (report[0] + "\n...\n" if report else "") + log[-4000:]


class Server(Process):
    """Starts peftd on a free port with a store of its own; use as a context. `base` is one of the goldens' bases, or a path."""

    def __init__(self, base, *args, env=None, ready=True, preexec_fn=None):
        self.dir = tempfile.TemporaryDirectory(prefix="peftd-test-")
        self.store = os.path.join(self.dir.name, "store")
        super().__init__([PEFTD, "serve", "--model", os.path.join(GOLDEN, "bases", base), "--listen", "127.0.0.1:0",
                          "--store", self.store, *args], os.path.join(self.dir.name, "log"), {**os.environ, **(env or {})},
                         preexec_fn)
        self.listen()
        if ready:
            self.wait_until(lambda: self.request("GET", "/readyz").status == 200)

    def __exit__(self, *exc):
        status = self.stop()
        text = self.log_text()
        self.close()
        if exc[0] is None and status != 0:
            raise AssertionError(f"peftd ended with {status}:\n{what_went_wrong(text)}")

    def close(self):
        self.dir.cleanup()

    def connect(self, timeout=60):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def raw(self, timeout=60):
        return socket.create_connection(("127.0.0.1", self.port), timeout)

    def request(self, method, path, body=None, headers=None):
        conn = self.connect()
        try:
            conn.request(method, path, body, headers or {})
            r = conn.getresponse()
            return Answer(r.status, r.headers, r.read())
        finally:
            conn.close()

    def infer(self, body, **headers):
        if not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        return self.request("POST", "/v1/infer", body,
                            {"Content-Type": "application/json", **headers})

    def put(self, task, files, query="", headers=None):
        body, content_type = multipart(files)
        return self.request("PUT", f"/v1/adapters/{task}{query}", body,
                            {"Content-Type": content_type, **(headers or {})})

    def put_cell(self, task, cell, **kwargs):
        return self.put(task, adapter_files(cell), **kwargs)

    def talk(self, data, timeout=30):
        """What the server answers to these bytes until it closes the connection."""
        with self.raw(timeout) as c:
            c.sendall(data)
            return b"".join(iter(lambda: c.recv(65536), b""))

    def tokens_in(self, seconds):
        """About as many tokens as the base makes within some seconds, here and now: the context must have room for them. The more
        tokens there are the longer each of them takes, at most in proportion: so a second guess follows from what the first took."""
        n = 1000
        for _ in range(2):
            begin = time.monotonic()
            if self.infer({"task": "base", "input": "x", "parameters": {"max_tokens": n, "ignore_eos": True}}).status != 200:
                raise AssertionError("the base does not generate")
            n = min(int(n * (seconds / (time.monotonic() - begin)) ** 0.5), 12000)
        return n

    def metrics(self):
        """{"name{labels}": value}."""
        text = self.request("GET", "/metrics").body.decode()
        return {k: float(v) for k, v in
                (line.rsplit(" ", 1) for line in text.splitlines() if line[:1] != "#")}


def adapter_files(cell):
    """{name: bytes} of a golden's adapter."""
    return files_of(os.path.join(GOLDEN, "cells", cell, "adapter"))


def own_files(cell, task):
    """A golden's adapter with a content that no other task has."""
    files = adapter_files(cell)
    config = json.loads(files["adapter_config.json"])
    config["base_model_name_or_path"] = "of " + task  # read by nobody, and hashed
    return {**files, "adapter_config.json": json.dumps(config).encode()}


def golden(cell):
    with open(os.path.join(GOLDEN, "cells", cell, "golden.json"), encoding="utf-8") as f:
        return json.load(f)


def tar(files, mode="w", prefix=""):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as t:
        for name, data in files.items():
            entry = tarfile.TarInfo(prefix + name)
            entry.size = len(data)
            t.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def zipped(files, how=zipfile.ZIP_STORED, prefix=""):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", how) as z:
        for name, data in files.items():
            z.writestr(prefix + name, data)
    return out.getvalue()


def zstd(data):
    """A zstd frame of raw blocks: the format without the compression."""
    out = bytearray(b"\x28\xb5\x2f\xfd\xa0" + len(data).to_bytes(4, "little"))
    blocks = [data[i:i + 100000] for i in range(0, len(data), 100000)] or [b""]
    for i, block in enumerate(blocks):
        last = i == len(blocks) - 1
        out += ((len(block) << 3) | last).to_bytes(3, "little") + block
    return bytes(out)
