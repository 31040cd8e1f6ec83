"""Connections that no client should make: bodies of a gibibyte, bytes that are no HTTP, and slowness of every kind.

The functions take the Hostile of hostile.py.
"""

import random
import socket
import threading
import time

from tests.soak.common import MIB, Client, run_threads

TASK = "good"
UPLOAD_MAX, CALL_MAX = 16 * MIB, 8 * MIB
CLIENT_TIMEOUT = 2
WITHIN_SECONDS = 0.9 * CLIENT_TIMEOUT  # of an ordinary call: one that a slow client blocks takes longer


class Peak:
    """The most memory that the server had meanwhile. A context."""

    def __init__(self, server):
        self.server, self.is_over = server, False

    def __enter__(self):
        self.before = self.most = self.server.rss()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def watch(self):
        while not self.is_over:
            self.most = max(self.most, self.server.rss())
            time.sleep(0.01)

    def __exit__(self, *_):
        self.is_over = True
        self.thread.join()

    @property
    def grown(self) -> int:
        return self.most - self.before


def send_huge_body(hostile, path, method, content_type, is_chunked):
    """The status of the answer to it."""
    with Client(hostile.server.port) as client:
        connection, block = client.connection, bytes(MIB)
        connection.putrequest(method, path)
        connection.putheader("Content-Type", content_type)
        if is_chunked:
            connection.putheader("Transfer-Encoding", "chunked")
        else:
            connection.putheader("Content-Length", str(hostile.huge))
        connection.endheaders()
        try:
            for _ in range(hostile.huge // MIB):
                connection.send(b"%x\r\n%b\r\n" % (MIB, block) if is_chunked else block)
            if is_chunked:
                connection.send(b"0\r\n\r\n")
        except OSError:
            pass  # cut: the answer has been sent
        return connection.getresponse().status


def send_huge_bodies(hostile):
    for path, method, limit in (("/v1/adapters/bad", "PUT", UPLOAD_MAX), ("/v1/infer", "POST", CALL_MAX),
                                ("/healthz", "GET", 0), ("/nowhere", "POST", 0)):
        for is_chunked in (False, True):
            name = f"{method} {path} of {hostile.huge // MIB} MiB, {'chunked' if is_chunked else 'declared'}"
            content_type = "application/json" if path == "/v1/infer" else "application/x-tar"
            with Peak(hostile.server) as peak:
                status = send_huge_body(hostile, path, method, content_type, is_chunked)
            hostile.checks.expect(status in ((404, 413) if path == "/nowhere" else (413,)), f"{name}: {status}")
            # Twice, since what is kept of the body moves when its buffer grows.
            hostile.checks.expect(hostile.server.is_sanitized() or peak.grown <= 2 * limit + MIB,
                                  f"{name}: memory grew by {peak.grown / MIB:.1f} MiB")
            hostile.n_calls += 1


def slow_client(port, head: bytes, one: bytes, interval: float, deadline: float) -> bool:
    """Sends `head`, then `one` after each interval; True if the server ends it before the deadline."""
    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        connection.sendall(head)
        connection.settimeout(interval)
        while time.monotonic() < deadline:
            try:
                if not connection.recv(65536):
                    return True
            except TimeoutError:
                pass
            except OSError:
                return True
            try:
                if one:
                    connection.sendall(one)
            except OSError:
                return True
    return False


SLOW = {
    "nothing": (b"", b""),
    "half a request line": (b"GET /hea", b""),
    "a header, byte by byte": (b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ", b"a"),
    "a request line, byte by byte": (b"GET /", b"a"),
    "empty lines": (b"", b"\r\n"),
    "half a body": (b"POST /v1/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n{", b""),
    "a body, byte by byte": (b"POST /v1/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n{", b" "),
    "chunks, one by one": (b"PUT /v1/adapters/bad HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
                           b"1\r\nx\r\n"),
    "questions without reading": (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 5000, b""),
}
SLOW_INTERVAL = 1.0
SLOW_SECONDS = 6 * CLIENT_TIMEOUT  # until each of them must have been ended
SLOW_EACH = 8


def be_slow(hostile):
    """Slow clients of every kind at once; others must not notice, and each must be ended."""
    deadline = time.monotonic() + SLOW_SECONDS
    ended = {name: 0 for name in SLOW}
    lock = threading.Lock()

    def run(name):
        if name == "questions without reading":
            is_ended = deaf_client(hostile.server.port, SLOW[name][0], deadline)
        else:
            is_ended = slow_client(hostile.server.port, *SLOW[name], SLOW_INTERVAL, deadline)
        with lock:
            ended[name] += is_ended

    threads = [threading.Thread(target=run, args=(name,)) for name in SLOW for _ in range(SLOW_EACH)]
    for thread in threads:
        thread.start()
    slowest = 0.0
    while any(thread.is_alive() for thread in threads):
        begin = time.monotonic()
        with hostile.server.client() as client:
            hostile.checks.expect(client.infer({"task": TASK, "input": "x"})[0] == 200, "a call beside slow clients")
        slowest = max(slowest, time.monotonic() - begin)
        time.sleep(0.05)
    hostile.checks.expect(slowest < WITHIN_SECONDS, f"a call beside slow clients took {slowest:.1f} s")
    for name, n in ended.items():
        hostile.checks.expect(n == SLOW_EACH, f"a client that sends {name}: {SLOW_EACH - n} of {SLOW_EACH} are there "
                                              f"after {SLOW_SECONDS} s, the client timeout is {CLIENT_TIMEOUT} s")
        hostile.n_calls += SLOW_EACH


GARBAGE = [
    b"\0\1\2\r\n\r\n", b"\r\n" * 1000, b"GET\r\n\r\n", b"A" * 200000, b"GET  / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /healthz HTTP/9.9\r\nHost: x\r\n\r\n", b"GET /healthz FTP/1.1\r\n\r\n", b"GET /healthz HTTP/1.1\r\n\r\n",
    b"GET /healthz\r\n\r\n", b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + bytes(200),  # TLS
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 20000 + b"\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 100000 + b"\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n", b"GET /healthz HTTP/1.1\r\nHost: x\r\n: y\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: a\0b\r\n\r\n", b"GET /heal\0thz HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /healthz HTTP/1.1\nHost: x\n\n", b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: a\r\n folded\r\n\r\n",
]
SPOILED = (b"POST /v1/infer HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 30\r\n"
           b'Connection: close\r\n\r\n{"task": "good", "input": "x"}')
SMUGGLED = b"GET /v1/adapters/smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
LENGTHS = [
    [b"Content-Length: -5"], [b"Content-Length: 5x"], [b"Content-Length: 99999999999999999999"],
    [b"Content-Length: +5"], [b"Content-Length: 0x5"], [b"Content-Length: 5, 6"],
    [b"Content-Length: 5", b"Content-Length: 6"],
    [b"Content-Length: 5", b"Transfer-Encoding: chunked"], [b"Transfer-Encoding: chunked", b"Content-Length: 5"],
    [b"Transfer-Encoding: gzip"], [b"Transfer-Encoding: chunked, chunked"],
]
CHUNKS = [b"zz\r\n", b"-1\r\n", b"FFFFFFFFFFFFFFFFF\r\n", b"5\r\nabc\r\n0\r\n\r\n", b"5;" + b"x" * 200000 + b"\r\n",
          b"5\nabcde", b"0\r\n" + b"X: y\r\n" * 20000 + b"\r\n", b"1\r\n", b"7fffffffffffffff\r\n"]


def converse(port, sent: bytes) -> bytes:
    """All that comes back until the server ends the connection; None if it does not."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), 5 * CLIENT_TIMEOUT) as connection:
        try:
            connection.sendall(sent)
            while piece := connection.recv(65536):
                received += piece
        except TimeoutError:
            return None
        except OSError:
            pass  # reset: ended as well
    return received


def deaf_client(port, sent: bytes, deadline: float) -> bool:
    """Sends without ever reading; True if the server gives up before the deadline."""
    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(SLOW_INTERVAL)
        while time.monotonic() < deadline:
            try:
                connection.sendall(sent)
            except TimeoutError:
                pass
            except OSError:
                return True
    return False


def statuses(received: bytes) -> list:
    return [int(line.split()[1]) for line in received.split(b"\r\n") if line.startswith(b"HTTP/1.") and b" " in line]


def garbage_cases():
    """(what is sent, statuses that may come back first; none at all is always right)."""
    post = b"POST /v1/infer HTTP/1.1\r\nHost: x\r\n"
    for sent in GARBAGE:
        yield sent, (200, 400, 404, 405, 413, 414, 431, 501, 505)
    for lines in LENGTHS:
        yield post + b"\r\n".join(lines) + b"\r\n\r\n0\r\n\r\n" + SMUGGLED, (400, 413, 501)
    for chunk in CHUNKS:  # 500: libmicrohttpd's own word for a chunk header that is larger than its buffer
        yield post + b"Transfer-Encoding: chunked\r\n\r\n" + chunk, (400, 413, 431, 500)


def talk_garbage(hostile):
    port, checks = hostile.server.port, hostile.checks

    def talk(sent, allowed):
        received = converse(port, sent)
        checks.expect(received is not None and all(status in allowed for status in statuses(received)[:1]),
                      f"{sent[:150]}: {'the connection stays' if received is None else received[:200]}")

    cases = list(garbage_cases())
    hostile.n_calls += len(cases)
    run_threads(checks, [lambda case=case: talk(*case) for case in cases])
    chooser = random.Random(1)
    for _ in range(400 // hostile.every):
        sent = bytearray(SPOILED)
        for _ in range(chooser.randint(1, 8)):
            sent[chooser.randrange(len(sent))] = chooser.randrange(256)
        with socket.create_connection(("127.0.0.1", port), 30) as connection:
            connection.sendall(sent[:chooser.randint(1, len(sent))])  # and leave, at times in the middle
            if chooser.random() < 0.5:
                connection.shutdown(socket.SHUT_WR)
        hostile.n_calls += 1
