"""Hostile clients: every bad upload, call, route and connection gets its code from the error table, and that is all.

After each group the server must answer a golden right, have no other task or version, and no file in tmp/; no command
of a pickle may have run, and no refused body may have made its memory grow by more than twice the limit.
"""

import argparse
import os
import sys
import tempfile
import time

from tests.soak import hostile_adapters, hostile_bodies
from tests.soak.common import JSON, MIB, Checks, Peftd, adapter_files, golden, input_of, row_fits
from tests.support.peftd import multipart
from tests.soak.hostile_connections import (CLIENT_TIMEOUT, TASK, UPLOAD_MAX, WITHIN_SECONDS, be_slow, send_huge_bodies,
                                            talk_garbage)

CELL = "bert-peft-lora"
BAD = "/v1/adapters/bad"
TYPES = {400: "invalid_request_error", 404: "not_found_error", 405: "invalid_request_error", 409: "conflict_error",
         412: "conflict_error", 413: "invalid_request_error", 415: "invalid_request_error",
         422: "invalid_request_error", 429: "rate_limit_error"}


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
                hostile.refuse(client, name, ("PUT", BAD, body, {"Content-Type": content_type}), 422, code)


def upload_bad_bodies(hostile):
    with hostile.server.client() as client:
        for group in (hostile_bodies.forms(), hostile_bodies.tars()):
            for number, (name, body, content_type, status, code) in enumerate(group):
                if number % hostile.every == 0 or " cut at " not in name:
                    hostile.refuse(client, name, ("PUT", BAD, body, {"Content-Type": content_type}), status, code)


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
        for path in ("/v1/adapters/..%2fgood", "/v1/adapters/%2e%2e%2fgood",
                     "/v1/adapters/%2fetc%2fpasswd", "/v1/adapters//etc/passwd", "/v1/adapters/../good",
                     "/v1/adapters/good/../good", "/v1/adapters/", "/v1/adapters/a/b/c", "/v1//adapters", "//",
                     "/%2e%2e/%2e%2e/etc/passwd", "/../../etc/passwd", "/v1/infer%00", "/V1/INFER", "/" + "a/" * 10000):
            for method in ("GET", "PUT", "DELETE"):
                hostile.refuse(client, f"{method} {path[:60]}", (method, path), 404, "unknown_route")
        for method in ("GET", "PUT", "DELETE"):
            hostile.refuse(client, f"{method} of a name that is too long", (method, "/v1/adapters/" + "n" * 129),
                           400, "bad_field")
        for name in ("base", "%62ase"):
            hostile.refuse(client, name, ("PUT", f"/v1/adapters/{name}", body, put), 409, "name_reserved")
            hostile.refuse(client, name, ("DELETE", f"/v1/adapters/{name}"), 409, "name_reserved")


def use_bad_methods(hostile):
    with hostile.server.client() as client:
        for methods, path in (("GET PUT DELETE PATCH OPTIONS TRACE BREW", "/v1/infer"), ("POST DELETE", "/v1/adapters"),
                              ("POST PATCH", "/v1/adapters/good"), ("DELETE", "/metrics"), ("PUT", "/v1/info"),
                              ("POST get " + "X" * 1000, "/healthz")):
            for method in methods.split():
                hostile.refuse(client, f"{method[:10]} {path}", (method, path), 405, "method_not_allowed")
        body, content_type = multipart(adapter_files(CELL))
        for header, value, status, code in (
                ("If-Match", "x", 400, "bad_field"), ("If-Match", '"' + "0" * 64 + '"', 412, "version_mismatch"),
                ("If-Match", "f" * 10000, 400, "bad_field"), ("If-None-Match", '"x"', 400, "bad_field"),
                ("If-None-Match", "*", 412, "version_mismatch"),
                ("Content-Encoding", "gzip", 415, "unsupported_media_type")):
            hostile.refuse(client, f"{header}: {value[:20]}", (
                "PUT", f"/v1/adapters/{TASK}", body, {"Content-Type": content_type, header: value}), status, code)
        for query, code in (("dry_run=perhaps", "bad_field"), ("dryrun=true", "unknown_field"), ("=", "unknown_field"),
                            ("&&&" + "x" * 10000, "unknown_field"), ("activate=%00", "bad_field"),
                            ("dry_run", "bad_field"), ("activate=false&activate=true", "bad_field")):
            hostile.refuse(client, f"PUT ?{query[:20]}", (
                "PUT", f"/v1/adapters/{TASK}?{query}", body, {"Content-Type": content_type}), 400, code)
        for query in ("limit=-1", "limit=1e9", "limit=99999999999999999999", "limit=", "state=%ff"):
            hostile.refuse(client, f"GET ?{query}", ("GET", f"/v1/adapters?{query}"), 400, "bad_field")
        for version, status, code in (("", 400, "bad_field"), ("zz", 400, "bad_field"),
                                      ("../x", 400, "bad_field"), ("0" * 64, 404, "unknown_version")):
            hostile.refuse(client, f"DELETE ?version={version}", ("DELETE", f"/v1/adapters/{TASK}?version={version}"),
                           status, code)


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
    options = ["--max-upload-bytes", str(UPLOAD_MAX), "--client-timeout", str(CLIENT_TIMEOUT)]
    with tempfile.TemporaryDirectory(prefix="peftd-soak-") as folder, Peftd(checks, "bert", *options) as server:
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
