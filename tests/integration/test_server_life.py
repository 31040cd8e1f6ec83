"""What an operator relies on: health while the port is full, an orderly end whatever runs, plain words at the start."""

import fcntl
import json
import os
import resource
import signal
import socket
import subprocess
import tempfile
import time
import unittest

from tests.integration.server import GOLDEN, PEFTD, Answer, Server, adapter_files, multipart

BERT = os.path.join(GOLDEN, "bases", "bert")


def admin(server, path):
    port = int(server.wait_for_log(rb"admin on http://[^:]+:(\d+)").group(1))
    with socket.create_connection(("127.0.0.1", port), 10) as c:
        c.sendall(b"GET %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % path.encode())
        head, _, body = b"".join(iter(lambda: c.recv(65536), b"")).partition(b"\r\n\r\n")
    return Answer(int(head[9:12]), None, body)


def long_call(s):
    """Six seconds of encoding here and now, twice the drain and the time for last words; 100 MB at most."""
    def call(n):
        return json.dumps({"task": "base", "inputs": ["a " * 20000] * n, "parameters": {"truncate": True}}).encode()
    begin = time.monotonic()
    if s.infer(call(50)).status != 200:
        raise AssertionError("the call is not one")
    return call(min(int(6 * 50 / (time.monotonic() - begin)), 2500))


class Full(unittest.TestCase):
    def test_health_answers_on_its_own_port_while_all_connections_are_taken(self):
        with Server("bert", "--max-connections", "4", "--admin-listen", "127.0.0.1:0") as s:
            taken = [s.raw() for _ in range(12)]
            for path, status in (("/healthz", 200), ("/readyz", 200), ("/metrics", 200), ("/v1/info", 200),
                                 ("/v1/adapters", 404)):
                before = time.monotonic()
                self.assertEqual(admin(s, path).status, status, path)
                self.assertLess(time.monotonic() - before, 5)
            self.assertIn(b"peftd_requests_total", admin(s, "/metrics").body)
            for c in taken:
                c.close()

    def test_the_admin_port_says_that_the_server_drains(self):
        with Server("llama", "--context-max", "20000", "--kv-bytes", "1GiB", "--admin-listen", "127.0.0.1:0") as s:
            n = s.tokens_in(3)
            conn = s.connect()
            conn.request("POST", "/v1/infer", json.dumps(
                {"task": "base", "input": "x", "parameters": {"max_tokens": n, "ignore_eos": True}}))
            s.wait_until(lambda: s.metrics()["vllm:num_requests_running"] == 1)
            s.process.send_signal(signal.SIGTERM)
            s.wait_until(lambda: admin(s, "/readyz").status == 503)
            self.assertEqual(admin(s, "/healthz").status, 200)
            self.assertEqual(conn.getresponse().status, 200)
            conn.close()
            self.assertEqual(s.process.wait(60), 0)

    def test_idle_connections_make_room(self):
        with Server("bert", "--max-connections", "8", "--client-timeout", "60") as s:
            idle = [s.raw() for _ in range(30)]
            before = time.monotonic()
            for path in ("/healthz", "/readyz", "/metrics"):
                self.assertEqual(s.request("GET", path).status, 200)
            self.assertLess(time.monotonic() - before, 20)
            for c in idle:
                c.close()

    def test_a_connection_that_waits_for_its_answer_makes_no_room(self):
        with Server("llama", "--context-max", "20000", "--kv-bytes", "1GiB", "--max-connections", "2", "--http-threads",
                    "1") as s:
            n = s.tokens_in(2)
            conn = s.connect()
            conn.request("POST", "/v1/infer", json.dumps(
                {"task": "base", "input": "x", "parameters": {"max_tokens": n, "ignore_eos": True}}))
            idle = [s.raw() for _ in range(4)]
            self.assertEqual(s.request("GET", "/healthz").status, 200)
            self.assertEqual(conn.getresponse().status, 200)
            conn.close()
            for c in idle:
                c.close()


class End(unittest.TestCase):
    def end(self, *, leaves):
        s = Server("bert", "--drain-seconds", "1", "--max-body-bytes", "128MiB", "--max-items", "4096")
        self.addCleanup(s.close)
        body = long_call(s)
        c = s.raw(30)
        c.sendall(b"POST /v1/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        time.sleep(0.5)  # it is being parsed or encoded now
        if leaves:
            c.close()
            time.sleep(0.2)
        self.assertEqual(s.stop(signal.SIGTERM, 120), 0, s.log_text()[-2000:])
        self.assertIn("event=stop", s.log_text())
        return s, c

    def test_the_drain_ends_while_a_worker_encodes_for_a_client_that_has_left(self):
        self.end(leaves=True)

    def test_the_drain_ends_while_a_worker_encodes_and_the_client_gets_its_answer(self):
        s, c = self.end(leaves=False)
        self.assertIn("event=drain_deadline", s.log_text())  # else the call was too short to show anything
        answer = b"".join(iter(lambda: c.recv(65536), b""))
        c.close()
        self.assertTrue(answer.startswith(b"HTTP/1.1 503 "), answer[:200])
        self.assertEqual(json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"], "draining")

    def test_the_drain_ends_while_the_store_waits_for_its_lock(self):
        for leaves in (False, True):
            s = Server("bert", "--drain-seconds", "1")
            self.addCleanup(s.close)
            body, content_type = multipart(adapter_files("bert-peft-lora"))
            with open(os.path.join(s.store, "lock"), "rb+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                c = s.raw(30)
                c.sendall(b"PUT /v1/adapters/x HTTP/1.1\r\nHost: x\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n"
                          % (content_type.encode(), len(body)) + body)
                time.sleep(0.3)
                if leaves:
                    c.close()
                s.process.send_signal(signal.SIGTERM)
                if not leaves:
                    self.assertTrue(c.recv(65536).startswith(b"HTTP/1.1 503 "))
                    c.close()
                time.sleep(3.5)  # longer than the drain and the time for last words
                self.assertIsNone(s.process.poll(), s.log_text()[-2000:])  # the worker still has the store
            self.assertEqual(s.process.wait(60), 0, s.log_text()[-2000:])
            self.assertIn("event=stop", s.log_text())

    def test_a_file_that_may_not_grow_is_a_full_store(self):
        with Server("bert") as s:
            resource.prlimit(s.process.pid, resource.RLIMIT_FSIZE, (64 * 1024, 64 * 1024))
            big = adapter_files("bert-peft-lora")
            big["adapter_config.json"] += b" " * 300000  # a file that is kept
            self.assertEqual(s.put("big", big).error, (507, "store_full", None))
            self.assertEqual(s.request("GET", "/healthz").status, 200)


class Start(unittest.TestCase):
    def run_peftd(self, *args):
        return subprocess.run([PEFTD, *args], capture_output=True, text=True, timeout=60, check=False)

    def test_the_log_has_the_values_in_force(self):
        with Server("bert") as s:
            line = s.wait_for_log(rb"event=settings ([^\n]+)").group(1).decode()
            words = dict(w.split("=", 1) for w in line.split(" ") if "=" in w)
            engine = s.request("GET", "/v1/info").json
            self.assertEqual(words["threads"], str(len(os.sched_getaffinity(0))))
            self.assertEqual(words["context_max"], str(engine["engine"]["context_max"]))
            self.assertEqual(words["cpu_level"], engine["cpu_level"])
            self.assertEqual(words["kv_bytes"], str(engine["engine"]["kv_bytes"]))
            self.assertEqual(engine["limits"]["threads"], engine["engine"]["threads"])

    def test_a_model_that_is_not_there_is_found_before_listening(self):
        with tempfile.TemporaryDirectory() as folder:
            for path, says in (("/nope/really", "--model /nope/really: No such file"),
                               ("./nope", "--model ./nope: No such file"),
                               (folder, f"--model {folder}: config.json: No such file"),
                               ("google/bert-base", "nothing is downloaded")):
                for command in (("serve", "--listen", "127.0.0.1:0", "--store", folder), ("check", "x")):
                    p = self.run_peftd(*command, "--model", path)
                    self.assertEqual(p.returncode, 1, p.stderr)
                    self.assertIn(says, p.stderr)
                    self.assertNotIn("listening", p.stderr)
        for word in ("google/bert-base", "config.json", "model.safetensors", "tokenizer.json", ".gguf"):
            self.assertIn(word, p.stderr)

    def test_usage_errors_exit_2_with_a_usage_line(self):
        for args, says in ((["serve"], "--model PATH is needed"), (["serve", "--modle", "x"], "--modle"),
                           (["serve", "--model", BERT, "extra"], "extra"), (["serve", "--max-queue"], "needs a value"),
                           (["serve", "--model", BERT, "--listen", "here"], "listen on here: not of the form ADDR:PORT"),
                           (["serve", "--model", BERT, "--admin-listen", "a:b"], "admin_listen on a:b: the port"),
                           (["check"], "which adapters"), (["check", "x"], "--model PATH is needed"),
                           (["store"], "ls, verify or gc"), (["bake"], "bake")):
            p = self.run_peftd(*args)
            self.assertEqual((p.returncode, p.stdout), (2, ""), args)
            self.assertIn(says, p.stderr, args)
            self.assertRegex(p.stderr, r"(?m)^usage: peftd ", args)


if __name__ == "__main__":
    unittest.main()
