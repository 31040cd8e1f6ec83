"""Hostile clients: every bad upload, call, route and connection gets its code from the error table, and nothing else happens.

After each group the server must answer a golden right, hold no task that it should not, and leave no file outside of its
store; its memory must not have grown by a body that it refused.
"""

import argparse
import os
import random
import socket
import sys
import tempfile
import threading
import time

from tests.soak import hostile_adapters, hostile_bodies
from tests.soak.common import JSON, MIB, Checks, Client, Peftd, adapter_files, golden, input_of, multipart, row_fits, run_threads

CELL, TASK = "bert-peft-lora", "good"
UPLOAD_MAX = 16 * MIB
CLIENT_TIMEOUT = 2
TYPES = {400: "invalid_request_error", 404: "not_found_error", 405: "invalid_request_error", 409: "conflict_error",
         412: "conflict_error", 413: "invalid_request_error", 415: "invalid_request_error",
         422: "invalid_request_error", 429: "rate_limit_error"}
WITHIN_SECONDS = 1.0  # of an ordinary call beside hostile ones


class Hostile:
    """The server, and what is asked of every answer to a bad request."""

    def __init__(self, checks, server, folder, is_short):
        self.checks, self.server = checks, server
        self.every = 10 if is_short else 1  # of the places where a file is cut
        self.many = 10 ** 5 if is_short else 10 ** 6  # inputs of one call
        self.huge = 64 * MIB if is_short else 1 << 30  # bytes of a body
        self.marker = os.path.join(folder, "marker")
        self.cases = golden(CELL)["cases"]
        self.n_calls = 0
        with server.client() as client:
            status, answer = client.put(TASK, adapter_files(CELL))
            checks.expect(status == 201, f"upload: {status} {answer}")

    def refuse(self, client, name, call: tuple, status: int, code: str):
        """`call` is (method, path, body, headers); the answer must be the error (status, code)."""
        self.n_calls += 1
        client.close_if_idle(CLIENT_TIMEOUT / 2)  # the server would, after the timeout
        got, answer = client.call(*call)
        error = (answer or {}).get("error", {})
        if not self.checks.expect((got, error.get("code")) == (status, code),
                                  f"{name}: expected {status} {code}, got {got} {str(answer)[:300]}"):
            return
        message = error["message"]
        is_well_formed = (set(error) == {"type", "code", "message", "param"} and error["type"] == TYPES[status]
                          and message and not any(c < " " for c in message) and self.server.dir.name not in str(answer)
                          and ("Allow" in client.headers) == (status == 405))
        self.checks.expect(is_well_formed, f"{name}: {answer}")

    def is_well(self, group: str):
        """The server is as before."""
        checks, case = self.checks, self.cases[self.n_calls % len(self.cases)]
        begin = time.monotonic()
        with self.server.client() as client:
            status, answer = client.infer({"task": TASK, "input": input_of(case), "parameters": {"logits": True}})
            checks.expect(status == 200 and row_fits(case["logits"], answer["output"]["logits"]),
                          f"after {group}: {status} {str(answer)[:500]}")
            seconds = time.monotonic() - begin
            checks.expect(seconds < WITHIN_SECONDS, f"after {group}: an ordinary call took {seconds:.1f} s")
            tasks = [a["task"] for a in client.call("GET", "/v1/adapters")[1]["adapters"]]
            checks.expect(tasks == [TASK], f"after {group} there are the tasks {tasks}")
            for name in tasks:  # of a bad upload that was taken: the next group starts afresh
                if name != TASK:
                    client.call("DELETE", f"/v1/adapters/{name}")
        checks.expect(len(os.listdir(os.path.join(self.server.store, "versions"))) == 1, f"{group} left a version")
        checks.expect(not os.listdir(os.path.join(self.server.store, "tmp")), f"{group} left something in tmp/")
        checks.expect(not os.path.exists(self.marker), f"{group}: a command of a client's has run")


# ---- uploads, calls, routes ---------------------------------------------------------------------------


def upload_bad_adapters(hostile):
    with hostile.server.client() as client:
        for number, (name, files, code) in enumerate(hostile_adapters.all_adapters(hostile.marker)):
            if number % hostile.every == 0 or " cut at " not in name:
                body, content_type = multipart(files)
                hostile.refuse(client, name, ("PUT", "/v1/adapters/bad", body, {"Content-Type": content_type}), 422, code)


def upload_bad_bodies(hostile):
    with hostile.server.client() as client:
        for group in (hostile_bodies.forms(), hostile_bodies.tars()):
            for number, (name, body, content_type, status, code) in enumerate(group):
                if number % hostile.every == 0 or " cut at " not in name:
                    hostile.refuse(client, name, ("PUT", "/v1/adapters/bad", body, {"Content-Type": content_type}),
                                   status, code)


def send_bad_calls(hostile):
    with hostile.server.client() as client:
        for name, body, status, code in hostile_bodies.calls(hostile.many):
            hostile.refuse(client, name, ("POST", "/v1/infer", body, JSON), status, code)
        for body in hostile_bodies.odd_calls(hostile.many):
            client.close_if_idle(CLIENT_TIMEOUT / 2)
            status, answer = client.call("POST", "/v1/infer", body, JSON)
            hostile.checks.expect(status == 200, f"{body[:60]}: {status} {answer}")
        hostile.refuse(client, "text", ("POST", "/v1/infer", b"{}", {"Content-Type": "text/plain"}), 415,
                       "unsupported_media_type")
        hostile.refuse(client, "gzip", ("POST", "/v1/infer", b"{}", {**JSON, "Content-Encoding": "gzip"}), 415,
                       "unsupported_media_type")


def use_bad_names(hostile):
    body, content_type = multipart(adapter_files(CELL))
    put = {"Content-Type": content_type}
    with hostile.server.client() as client:
        for name in ("..", ".", "%2e%2e", ".hidden", "-x", "a%20b", "a%00b", "a%0ab", "%ff%fe", "a%5cb", "a+b", "a@b",
                     "a:b", "%252e%252e", "a;b", "~", "%C3%BC", "-" * 128):
            for method, status, code in (("PUT", 400, "bad_field"), ("GET", 404, "unknown_task"),
                                         ("DELETE", 404, "unknown_task")):
                call = (method, f"/v1/adapters/{name}", *((body, put) if method == "PUT" else (None, None)))
                hostile.refuse(client, f"{method} of the name {name}", call, status, code)
        for path in ("/v1/adapters/" + "n" * 129, "/v1/adapters/..%2fgood", "/v1/adapters/%2e%2e%2fgood",
                     "/v1/adapters/%2fetc%2fpasswd", "/v1/adapters//etc/passwd", "/v1/adapters/../good",
                     "/v1/adapters/good/../good", "/v1/adapters/", "/v1/adapters/a/b/c", "/v1//adapters", "//",
                     "/%2e%2e/%2e%2e/etc/passwd", "/../../etc/passwd", "/v1/infer%00", "/V1/INFER", "/" + "a/" * 10000):
            for method in ("GET", "PUT", "DELETE"):
                hostile.refuse(client, f"{method} {path[:60]}", (method, path), 404, "unknown_route")
        for name in ("base", "%62ase"):
            hostile.refuse(client, name, ("PUT", f"/v1/adapters/{name}", body, put), 409, "name_reserved")
            hostile.refuse(client, name, ("DELETE", f"/v1/adapters/{name}"), 409, "name_reserved")


def use_bad_methods(hostile):
    with hostile.server.client() as client:
        for method, path in (("GET", "/v1/infer"), ("PUT", "/v1/infer"), ("DELETE", "/v1/infer"), ("PATCH", "/v1/infer"),
                             ("POST", "/v1/adapters"), ("DELETE", "/v1/adapters"), ("POST", "/v1/adapters/good"),
                             ("PATCH", "/v1/adapters/good"), ("POST", "/healthz"), ("DELETE", "/metrics"),
                             ("PUT", "/v1/info"), ("OPTIONS", "/v1/infer"), ("TRACE", "/v1/infer"), ("BREW", "/v1/infer"),
                             ("get", "/healthz"), ("X" * 1000, "/healthz")):
            hostile.refuse(client, f"{method[:10]} {path}", (method, path), 405, "method_not_allowed")
        body, content_type = multipart(adapter_files(CELL))
        for header, value, status, code in (
                ("If-Match", "x", 400, "bad_field"), ("If-Match", '"' + "0" * 64 + '"', 412, "version_mismatch"),
                ("If-Match", "f" * 10000, 400, "bad_field"), ("If-None-Match", '"x"', 400, "bad_field"),
                ("If-None-Match", "*", 412, "version_mismatch"), ("Content-Encoding", "gzip", 415, "unsupported_media_type")):
            hostile.refuse(client, f"{header}: {value[:20]}", (
                "PUT", f"/v1/adapters/{TASK}", body, {"Content-Type": content_type, header: value}), status, code)
        for query, code in (("dry_run=perhaps", "bad_field"), ("dryrun=true", "unknown_field"), ("=", "unknown_field"),
                            ("&&&" + "x" * 10000, "unknown_field"), ("activate=%00", "bad_field")):
            hostile.refuse(client, f"PUT ?{query[:20]}", (
                "PUT", f"/v1/adapters/{TASK}?{query}", body, {"Content-Type": content_type}), 400, code)
        for query in ("limit=-1", "limit=1e9", "limit=99999999999999999999", "limit=", "state=%ff"):
            hostile.refuse(client, f"GET ?{query}", ("GET", f"/v1/adapters?{query}"), 400, "bad_field")
        for version, status, code in (("", 404, "unknown_version"), ("zz", 404, "unknown_version"),
                                      ("../x", 404, "unknown_version"), ("0" * 64, 404, "unknown_version")):
            hostile.refuse(client, f"DELETE ?version={version}", ("DELETE", f"/v1/adapters/{TASK}?version={version}"),
                           status, code)


# ---- connections ---------------------------------------------------------------------------------------


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
        connection.putheader(*(("Transfer-Encoding", "chunked") if is_chunked else ("Content-Length", str(hostile.huge))))
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
    for path, method, limit in (("/v1/adapters/bad", "PUT", UPLOAD_MAX), ("/v1/infer", "POST", 8 * MIB),
                                ("/healthz", "GET", 0), ("/nowhere", "POST", 0)):
        for is_chunked in (False, True):
            name = f"{method} {path} of {hostile.huge // MIB} MiB, {'chunked' if is_chunked else 'declared'}"
            content_type = "application/json" if path == "/v1/infer" else "application/x-tar"
            with Peak(hostile.server) as peak:
                status = send_huge_body(hostile, path, method, content_type, is_chunked)
            hostile.checks.expect(status in ((404, 413) if path == "/nowhere" else (413,)), f"{name}: {status}")
            hostile.checks.expect(hostile.server.is_sanitized() or peak.grown <= limit + MIB,
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
        hostile.checks.expect(n == SLOW_EACH, f"a client that sends {name}: {SLOW_EACH - n} of {SLOW_EACH} still connected "
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
    [b"Content-Length: -5"], [b"Content-Length: 5x"], [b"Content-Length: 99999999999999999999"], [b"Content-Length: +5"],
    [b"Content-Length: 0x5"], [b"Content-Length: 5, 6"], [b"Content-Length: 5", b"Content-Length: 6"],
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


GROUPS = {
    "bad adapters": upload_bad_adapters,
    "bad forms and tars": upload_bad_bodies,
    "bad calls": send_bad_calls,
    "bad names": use_bad_names,
    "bad methods and headers": use_bad_methods,
    "huge bodies": send_huge_bodies,
    "garbage": talk_garbage,
    "slow clients": be_slow,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--short", action="store_true", help="less of everything that takes long")
    parser.add_argument("--only", choices=GROUPS, help="only this group")
    arguments = parser.parse_args()
    checks = Checks()
    with tempfile.TemporaryDirectory(prefix="peftd-soak-") as folder, \
            Peftd(checks, "bert", "--max-upload-bytes", str(UPLOAD_MAX), "--client-timeout", str(CLIENT_TIMEOUT)) as server:
        hostile = Hostile(checks, server, folder, arguments.short)
        before = server.rss()
        for name, run in GROUPS.items():
            if arguments.only in (None, name):
                begin = time.monotonic()
                run(hostile)
                hostile.is_well(name)
                print(f"{name}: {time.monotonic() - begin:.1f} s", flush=True)
        facts = (f"hostile: {hostile.n_calls} bad requests and connections, "
                 f"RSS {before // MIB} to {server.rss() // MIB} MiB")
    return checks.done(facts)


if __name__ == "__main__":
    sys.exit(main())
