"""Keys: every route without one and with each verb, tasks by pattern, a changed file, quotas."""

import http.client
import json
import os
import re
import signal
import subprocess
import tempfile
import time
import unittest
from concurrent.futures import ThreadPoolExecutor

from tests.integration.server import ENDLESS, PEFTD, ROOT, Server, adapter_files

VERBS = ("infer", "read", "write", "admin")
CELL = "bert-peft-lora"


def routes():
    """(verb, method, path) of every row of the route table."""
    with open(os.path.join(ROOT, "server", "routes.c"), encoding="utf-8") as f:
        return re.findall(r'\{AUTH_(\w+),\s+"(\w+)",\s+"([^"]+)"', f.read())


def make_key(name, verbs, patterns="*", **limits):
    """(secret, entry of the file)."""
    out = subprocess.run([PEFTD, "key", name, verbs, patterns], capture_output=True, text=True, check=True).stdout.split("\n")
    return out[0], {**json.loads(out[1]), **({"limits": limits} if limits else {})}


class Keys:
    """A file of keys; `header` has each one's by name."""

    def __init__(self):
        self.dir = tempfile.TemporaryDirectory(prefix="peftd-keys-", ignore_cleanup_errors=True)
        self.path = os.path.join(self.dir.name, "keys.json")
        self.header, self.entries = {}, {}

    def add(self, name, verbs, patterns="*", **limits):
        secret, self.entries[name] = make_key(name, verbs, patterns, **limits)
        self.header[name] = {"Authorization": f"Bearer {secret}"}

    def write(self, text=None):
        with open(self.path + ".new", "w", encoding="utf-8") as f:
            f.write(text if text is not None else json.dumps({"keys": list(self.entries.values())}))
        os.rename(self.path + ".new", self.path)


def is_allowed(verb, verbs, metrics="open"):
    if verb == "METRICS":
        verb = "OPEN" if metrics == "open" else "READ"
    return verb == "OPEN" or verb.lower() in verbs or "admin" in verbs


class MatrixTest(unittest.TestCase):
    def check(self, s, keys, name, verbs, metrics):
        for verb, method, path in routes():
            url = re.sub(r"\{\w+\}", "nothing", path)
            a = s.request(method, url, headers=keys.header.get(name, {}))
            what = (name, verb, method, path, a.status, a.body[:200])
            if is_allowed(verb, verbs, metrics):
                self.assertNotIn(a.status, (401, 403, 500), what)
            elif name is None:
                self.assertEqual(a.status, 401, what)
                self.assertEqual(a.headers["WWW-Authenticate"], "Bearer", what)
            else:
                self.assertEqual(a.status, 403, what)

    def test_every_route_takes_the_keys_of_its_verb_and_no_others(self):
        self.assertGreater(len(routes()), 8)
        for metrics in ("open", "read"):
            keys = Keys()
            for verb in VERBS:
                keys.add("only-" + verb, verb)
            keys.add("two", "infer,write")
            keys.write()
            with Server("bert", "--auth", keys.path, "--metrics-access", metrics) as s:
                self.check(s, keys, None, (), metrics)
                for verb in VERBS:
                    self.check(s, keys, "only-" + verb, (verb,), metrics)
                self.check(s, keys, "two", ("infer", "write"), metrics)
                begin = time.monotonic()
                self.assertEqual(s.stop(), 0)
                self.assertLess(time.monotonic() - begin, 10)  # what was refused is not waited for

    def test_every_task_that_is_named_must_fit_the_patterns(self):
        keys = Keys()
        keys.add("root", "admin")
        keys.add("acme", "infer,read,write", "acme-*")
        keys.write()
        with Server("bert", "--auth", keys.path) as s:
            for task in ("acme-1", "other"):
                self.assertEqual(s.put_cell(task, CELL, headers=keys.header["root"]).status, 201 if task == "acme-1" else 200)
            mine = keys.header["acme"]
            ok = {"input": {"tokens": [2, 5, 3]}}
            self.assertEqual(s.infer({"task": "acme-1", **ok}, **mine).status, 200)
            for task in ("other", "base", "absent", "other@12345678"):
                self.assertEqual(s.infer({"task": task, **ok}, **mine).error, (403, "forbidden", "task"), task)
                self.assertEqual(s.infer({"tasks": ["acme-1", task], **ok}, **mine).error, (403, "forbidden", "tasks[1]"), task)
                each = s.infer({"requests": [{"task": "acme-1", **ok}, {"task": task, **ok}]}, **mine)
                self.assertEqual(each.status, 200)
                self.assertIn("output", each.json["responses"][0])
                self.assertEqual(each.json["responses"][1]["error"]["code"], "forbidden")
            for method in ("GET", "PUT", "DELETE"):
                self.assertEqual(s.request(method, "/v1/adapters/other", headers=mine).error, (403, "forbidden", "task"))
            self.assertEqual(s.request("GET", "/v1/adapters/acme-1", headers=mine).status, 200)
            seen = s.request("GET", "/v1/adapters", headers=mine).json
            self.assertEqual([a["task"] for a in seen["adapters"]], ["acme-1"])
            self.assertIsNone(seen["next"])
            self.assertEqual(len(s.request("GET", "/v1/adapters", headers=keys.header["root"]).json["adapters"]), 2)

    def test_other_apis_names_of_tasks_must_fit_the_patterns_too(self):
        keys = Keys()
        keys.add("root", "admin")
        keys.add("acme", "infer,read,write", "acme-*")
        keys.write()
        with Server("bert", "--auth", keys.path, "--import-root", os.path.join(ROOT, "tests/golden/cells")) as s:
            for task in ("acme-1", "other"):
                s.put_cell(task, CELL, headers=keys.header["root"])
            mine = keys.header["acme"]
            load = {"lora_path": CELL + "/adapter"}
            for method, path, body in (
                    ("POST", "/classify", {"model": "other", "input": "a"}),
                    ("POST", "/tokenize", {"model": "other", "prompt": "a"}),
                    ("POST", "/detokenize", {"model": "other", "tokens": [5]}),
                    ("POST", "/v2/models/other/infer", {"inputs": []}),
                    ("GET", "/v2/models/other", None),
                    ("GET", "/v1/models/other", None),
                    ("GET", "/v1/adapters/other/files", None),
                    ("POST", "/v1/adapters/other/unload", {}),
                    ("PUT", "/v1/adapters/acme-2", {"from": "other"}),
                    ("POST", "/v1/load_lora_adapter", {"lora_name": "other", **load}),
                    ("POST", "/v1/unload_lora_adapter", {"lora_name": "other"})):
                a = s.request(method, path, None if body is None else json.dumps(body),
                              headers={"Content-Type": "application/json", **mine})
                self.assertEqual(a.status, 403, (path, a.body))
            self.assertEqual(s.request("POST", "/v1/load_lora_adapter", json.dumps({"lora_name": "acme-3", **load}),
                                       headers={"Content-Type": "application/json", **mine}).status, 200)
            models = s.request("GET", "/v1/models", headers=mine).json["data"]
            self.assertEqual([m["id"] for m in models[1:]], ["acme-1", "acme-3"])
            loras = s.request("GET", "/lora-adapters", headers=mine).json
            self.assertEqual([a["path"] for a in loras], ["acme-1", "acme-3"])

    def test_wrong_headers_are_no_keys(self):
        keys = Keys()
        keys.add("acme", "read")
        keys.write()
        good = keys.header["acme"]["Authorization"]
        with Server("bert", "--auth", keys.path) as s:
            for text in ("", "Bearer", "Bearer ", good[:-1], good + "0", good[7:], "Basic " + good[7:],
                         good[:-1] + ("0" if good[-1] != "0" else "1"), "Bearer " + "x" * 5000):
                self.assertEqual(s.request("GET", "/v1/adapters", headers={"Authorization": text}).error,
                                 (401, "unauthorized", None), text)
            self.assertEqual(s.request("GET", "/v1/adapters", headers={"Authorization": good}).status, 200)
            self.assertEqual(s.request("GET", "/nothing").status, 404)
            self.assertIn(" key=acme ", s.log_text())
            self.assertNotIn(good[-20:], s.log_text())


class FileTest(unittest.TestCase):
    def test_a_changed_file_counts_after_sighup_and_a_damaged_one_does_not(self):
        keys = Keys()
        keys.add("one", "read")
        keys.write()

        def status(name):
            return s.request("GET", "/v1/adapters", headers=keys.header[name]).status

        def hup(pattern):
            before = len(re.findall(pattern, s.log_text()))
            s.process.send_signal(signal.SIGHUP)
            s.wait_until(lambda: len(re.findall(pattern, s.log_text())) > before)
        with Server("bert", "--auth", keys.path) as s:
            keys.add("two", "read")
            self.assertEqual((status("one"), status("two")), (200, 401))
            del keys.entries["one"]
            keys.write()
            hup("event=keys\n")
            self.assertEqual((status("one"), status("two")), (401, 200))
            keys.write("{")
            hup("event=keys error=")
            self.assertEqual((status("one"), status("two")), (401, 200))

    def test_a_server_with_a_damaged_file_does_not_start(self):
        keys = Keys()
        for text in ("{", '{"keys": [{"name": "a"}]}'):
            keys.write(text)
            r = subprocess.run([PEFTD, "serve", "--model", os.path.join(ROOT, "tests/golden/bases/bert"), "--listen",
                                "127.0.0.1:0", "--store", os.path.join(keys.dir.name, "store"), "--auth", keys.path],
                               capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual(r.returncode, 1)
            self.assertIn("the file of keys", r.stderr)


class FlowTest(unittest.TestCase):
    """One slot, which an endless call of `root` has: what others ask for waits until it ends."""

    def start(self, keys, *args):
        keys.add("root", "infer")
        keys.write()
        s = Server("llama", "--auth", keys.path, "--http-threads", "1", "--max-batch-jobs", "1", "--context-max", "100000",
                   "--kv-bytes", "256MiB", *args)
        held = self.send(s, keys, "root", "127.0.0.1", ENDLESS)
        s.wait_until(lambda: s.metrics()["vllm:num_requests_running"] == 1)
        return s, held

    def send(self, s, keys, name, address, max_tokens):
        """A connection that has asked."""
        connection = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60, source_address=(address, 0))
        connection.request("POST", "/v1/infer", json.dumps({"task": "base", "input": {"tokens": [5]}, "parameters": {
            "max_tokens": max_tokens, "ignore_eos": True}}), keys.header[name])
        return connection

    def waiting(self, s, n):
        s.wait_until(lambda: s.metrics()["vllm:num_requests_waiting"] == n)

    def test_a_flow_is_a_key_wherever_it_comes_from(self):
        keys = Keys()
        keys.add("a", "infer")
        keys.add("b", "infer")
        s, held = self.start(keys, "--max-queue", "4", "--flow-share", "50")
        with s:
            mine = [self.send(s, keys, "a", address, 1) for address in ("127.0.0.2", "127.0.0.3")]
            self.waiting(s, 2)
            more = self.send(s, keys, "a", "127.0.0.4", 1)
            self.assertEqual(more.getresponse().status, 429)
            other = self.send(s, keys, "b", "127.0.0.2", 1)
            self.waiting(s, 3)
            held.close()
            for connection in (*mine, other):
                self.assertEqual(connection.getresponse().status, 200)
                connection.close()
            more.close()

    def test_a_keys_weight_is_its_share(self):
        keys = Keys()
        keys.add("light", "infer")
        keys.add("heavy", "infer", weight=3)
        s, held = self.start(keys, "--max-batch-tokens", "256")
        with s:  # each is a turn's rows, so that one that ends is logged before the next one but one has
            asked = [self.send(s, keys, name, "127.0.0.1", 255) for name in ["light"] * 40 + ["heavy"] * 40]
            self.waiting(s, 80)
            held.close()
            for connection in asked:
                self.assertEqual(connection.getresponse().status, 200)
                connection.close()
            order = re.findall(r"key=(light|heavy)\b", s.log_text())
            self.assertEqual(len(order), 80)
            self.assertGreater(order[:40].count("heavy"), 25, order)  # 30, and 20 if they weighed the same


class QuotaTest(unittest.TestCase):
    SHORT = {"task": "base", "input": {"tokens": [2, 5, 6, 7, 8, 9, 10, 11, 12, 3]}}

    def at_once(self, n, call):
        """The answers of n calls that overlap."""
        with ThreadPoolExecutor(n) as pool:
            return list(pool.map(lambda _: call(), range(n)))

    def check_exact(self, answers, n_good):
        self.assertEqual(sorted({a.status for a in answers}), [200, 429], [a.body for a in answers])
        self.assertEqual(sum(a.status == 200 for a in answers), n_good)
        for a in answers:
            if a.status == 429:
                self.assertEqual(a.json["error"]["code"], "quota_exceeded")
                self.assertEqual(a.json["error"]["type"], "rate_limit_error")
                self.assertTrue(1 <= int(a.headers["Retry-After"]) <= 61, a.headers["Retry-After"])

    def test_requests_and_tokens_of_a_minute_are_exact(self):
        keys = Keys()
        keys.add("requests", "infer,read", requests_per_minute=5)
        keys.add("tokens", "infer", tokens_per_minute=35)
        keys.add("free", "infer")
        keys.write()
        with Server("bert", "--auth", keys.path) as s:
            self.check_exact(self.at_once(12, lambda: s.request("GET", "/v1/adapters", headers=keys.header["requests"])), 5)
            self.check_exact(self.at_once(12, lambda: s.infer(self.SHORT, **keys.header["tokens"])), 3)
            self.assertEqual(s.infer({"task": "base", "inputs": [{"tokens": [2, 5, 3]}] * 2}, **keys.header["tokens"]).error,
                             (429, "quota_exceeded", None))
            self.assertEqual(s.infer({"task": "base", "input": {"tokens": [2, 5, 6, 3, 4]}}, **keys.header["tokens"]).status, 200)
            self.assertEqual(s.infer({"task": "base", "input": {"tokens": [2]}}, **keys.header["tokens"]).status, 429)
            self.assertEqual(s.infer(self.SHORT, **keys.header["free"]).status, 200)

    def test_tokens_that_were_not_generated_are_given_back(self):
        keys = Keys()
        keys.add("free", "infer")
        keys.add("tokens", "infer", tokens_per_minute=100)
        keys.write()
        call = {"task": "base", "input": {"tokens": [5, 17, 40]}, "parameters": {"max_tokens": 60}}
        with Server("llama", "--auth", keys.path) as s:
            long = {**call, "parameters": {"max_tokens": 98}}
            self.assertEqual(s.infer(long, **keys.header["tokens"]).error, (429, "quota_exceeded", None))
            text = s.infer(call, **keys.header["free"]).json["output"]["text"]
            call["parameters"]["stop"] = text[:2]
            for _ in range(5):
                a = s.infer(call, **keys.header["tokens"])
                self.assertEqual(a.status, 200, a.body)
                self.assertLess(a.json["usage"]["completion_tokens"], 15)

    def test_tasks_and_stored_bytes_are_exact(self):
        keys = Keys()
        keys.add("tasks", "write", "t-*", tasks=2)
        keys.write()
        with Server("bert", "--auth", keys.path) as s:
            size = 0
            for name in ("t-1", "t-2", "t-1"):
                a = s.put_cell(name, CELL, headers=keys.header["tasks"])
                self.assertIn(a.status, (200, 201), a.body)
                size = a.json["bytes_stored"]
            a = s.put_cell("t-3", CELL, headers=keys.header["tasks"])
            self.assertEqual((a.error, a.headers["Retry-After"]), ((429, "quota_exceeded", None), "60"))
            self.assertEqual(s.put_cell("t-3", CELL, query="?dry_run=true", headers=keys.header["tasks"]).status, 200)
            self.assertEqual(s.request("DELETE", "/v1/adapters/t-2", headers=keys.header["tasks"]).status, 204)
            self.assertEqual(s.put_cell("t-3", CELL, headers=keys.header["tasks"]).status, 200)
            keys.add("bytes", "write", "b-*", stored_bytes=size * 5 // 2)
            keys.write()
            s.process.send_signal(signal.SIGHUP)
            s.wait_for_log(rb"event=keys\n")
            for name, status in (("b-1", 200), ("b-2", 200), ("b-3", 429), ("b-2", 200)):
                self.assertEqual(s.put_cell(name, CELL, headers=keys.header["bytes"]).status, status, name)

    def test_a_priority_is_what_the_key_allows_and_no_task_raises_it(self):
        keys = Keys()
        keys.add("low", "infer,write", max_priority=2)
        keys.add("any", "infer")
        keys.write()
        with Server("bert", "--auth", keys.path, "--max-priority", "7") as s:
            for name, priority, status in (("low", 2, 200), ("low", 3, 403), ("any", 7, 200), ("any", 8, 403), ("any", -10, 200)):
                a = s.infer({**self.SHORT, "parameters": {"priority": priority}}, **keys.header[name])
                self.assertEqual(a.status, status, (name, priority))
                if status == 403:
                    self.assertEqual(a.error, (403, "forbidden", "parameters.priority"))
            files = {**adapter_files(CELL), "task.json": b'{"parameters": {"priority": 10, "timeout": 1000000}}'}
            self.assertEqual(s.put("eager", files, headers=keys.header["low"]).status, 201)
            self.assertEqual(s.infer({**self.SHORT, "task": "eager"}, **keys.header["low"]).status, 200)

    def test_a_task_does_not_raise_the_timeout(self):
        with Server("llama", "--context-max", "100000", "--kv-bytes", "1GiB", "--request-timeout", "0.3") as s:
            files = {**adapter_files("llama-peft-lora"), "task.json": b'{"parameters": {"timeout": 1000}}'}
            self.assertEqual(s.put("slow", files).status, 201)
            call = {"task": "slow", "input": {"tokens": [5]}, "parameters": {"max_tokens": ENDLESS, "ignore_eos": True}}
            self.assertEqual(s.infer(call).status, 504)


if __name__ == "__main__":
    unittest.main()
