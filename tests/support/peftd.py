"""A server as a child process, and a connection to it: what the tests over HTTP, the soak, the parity driver and the benchmarks
share. Standard library only. (demo/demo.py stands alone on purpose: it shows what a client needs.)
"""

import http.client
import io
import json
import re
import signal
import socket
import subprocess
import time
from pathlib import Path


class Failure(Exception):
    """The server did not start, or did not do in time what was waited for."""


class Process:
    """One child that answers HTTP on 127.0.0.1 and writes to a log. Use as a context; it ends with SIGTERM."""

    STOP_SECONDS = 60

    def __init__(self, command, log_path, env=None, preexec_fn=None):
        self.log_path = Path(log_path)
        self.port = None
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen([str(part) for part in command], stdout=log, stderr=log, env=env,
                                            preexec_fn=preexec_fn)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def listen(self, seconds=60):
        """Waits until peftd says where it listens, and takes the port."""
        self.port = int(self.wait_for_log(rb"listening on https?://[^:]+:(\d+)", seconds).group(1))

    def log_text(self):
        return self.log_path.read_text("utf-8", "replace")

    def wait_for_log(self, pattern, seconds=30):
        """The match of a pattern of bytes in the log."""
        return self.wait_until(lambda: re.search(pattern, self.log_path.read_bytes()), seconds, f"no {pattern!r} in the log")

    def wait_until(self, condition, seconds=30, what="waited too long"):
        """What the condition gives once it holds; a child that has ended is not waited for."""
        end = time.monotonic() + seconds
        while True:
            has_ended = self.process.poll() is not None or time.monotonic() > end
            found = condition()
            if found:
                return found
            if has_ended:
                raise Failure(f"{what}:\n{self.log_text()[-4000:]}")
            time.sleep(0.01)

    def answers(self, path):
        """True if GET gives 200."""
        try:
            with Client(self.port) as client:
                return client.call("GET", path)[0] == 200
        except OSError:
            return False

    def stop(self, how=signal.SIGTERM, seconds=None):
        """The exit status, or "timeout" if it had to be killed."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            return self.process.wait(seconds or self.STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return "timeout"

    def rss(self):
        """Resident bytes: anonymous memory and mapped files."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return 1024 * int(re.search(r"VmRSS:\s+(\d+)", status).group(1))


class Client:
    """One connection that stays open; for one thread. A context."""

    def __init__(self, port, seconds=120):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
        self.headers = None
        self.last_used = time.monotonic()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.connection.close()

    def close_if_idle(self, seconds):
        """The next call connects again if the last one was that long ago."""
        if time.monotonic() - self.last_used > seconds:
            self.connection.close()

    def send(self, method, path, body=None, headers=None):
        """The response, not read yet."""
        if self.connection.sock is None:
            self.connection.connect()  # headers and body go out as two writes: do not wait for the first's ACK
            self.connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection.request(method, path, body, headers or {})
        return self.connection.getresponse()

    def call(self, method, path, body=None, headers=None):
        """Status and content: parsed if it is JSON, None if there is none, else bytes. Its headers stay in `headers`."""
        if isinstance(body, dict):
            body, headers = json.dumps(body), {"Content-Type": "application/json", **(headers or {})}
        try:
            answer = self.send(method, path, body, headers)
            content, self.headers = answer.read(), answer.headers
        except (OSError, http.client.HTTPException):
            self.connection.close()
            raise
        self.last_used = time.monotonic()
        return answer.status, json.loads(content) if content[:1] in (b"{", b"[") else content or None

    def infer(self, request):
        return self.call("POST", "/v1/infer", request)

    def stream(self, request):
        """Status and the data of each event."""
        answer = self.send("POST", "/v1/infer", json.dumps(request), {"Content-Type": "application/json"})
        events = answer.read().decode().split("\n\n")
        return answer.status, [event.removeprefix("data: ") for event in events if event]

    def put(self, task, files, query=""):
        body, content_type = multipart(files)
        return self.call("PUT", f"/v1/adapters/{task}{query}", body, {"Content-Type": content_type})


def files_of(folder):
    """{name: bytes} of the files in a folder."""
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir()) if path.is_file()}


def multipart(files, boundary="a-line-that-is-in-no-file"):
    """The body and the content type of a form with each of {name: bytes} as a part."""
    out = io.BytesIO()
    for name, data in files.items():
        out.write(f"--{boundary}\r\nContent-Disposition: form-data; name=\"f\"; "
                  f"filename=\"{name}\"\r\nContent-Type: application/octet-stream\r\n\r\n".encode())
        out.write(data)
        out.write(b"\r\n")
    out.write(f"--{boundary}--\r\n".encode())
    return out.getvalue(), f"multipart/form-data; boundary={boundary}"
