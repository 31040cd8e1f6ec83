"""The life of a task over HTTP: versions, files, rollback, residency by hand, copies, imports and the resolver."""

import io
import json
import os
import shutil
import socket
import tarfile
import tempfile
import threading
import unittest

from tests.integration.server import GOLDEN, Server, own_files
from tests.integration.test_openai import post

CELL = "bert-peft-lora"


def call(server, method, path, body=None):
    return server.request(method, "/v1/adapters/" + path, None if body is None else json.dumps(body),
                          {"Content-Type": "application/json"})


class Lifecycle(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = Server("bert")
        cls.addClassCleanup(cls.s.__exit__, None, None, None)

    def put(self, task, content, query=""):
        answer = self.s.put(task, own_files(CELL, content), query)
        self.assertLess(answer.status, 300, answer.body)
        return answer.json["version"]

    def current(self, task):
        return self.s.infer({"task": task, "input": "x"}).json["version"]

    def test_versions_are_listed_newest_first(self):
        versions = [self.put("many", f"many-{i}") for i in range(3)]
        got = call(self.s, "GET", "many/versions").json
        self.assertEqual((got["task"], got["count"]), ("many", 3))
        self.assertEqual([v["version"] for v in got["versions"]], versions[::-1])
        self.assertEqual([v["current"] for v in got["versions"]], [True, False, False])
        short = call(self.s, "GET", "many/versions?limit=2").json
        self.assertEqual((short["count"], len(short["versions"])), (3, 2))
        self.assertEqual(call(self.s, "GET", "none/versions").error[:2], (404, "unknown_task"))
        for limit in ("0", "10001", "x", "-1"):
            self.assertEqual(call(self.s, "GET", "many/versions?limit=" + limit).error, (400, "bad_field", "limit"))

    def test_files_come_back_byte_for_byte_and_make_the_same_version(self):
        files = {**own_files(CELL, "back"), "task.json": b'{"labels": ["a", "b", "c"]}', "README.md": b"not kept"}
        version = self.s.put("back", files).json["version"]
        del files["README.md"]
        answer = call(self.s, "GET", "back/files")
        self.assertEqual((answer.status, answer.headers["Content-Type"]), (200, "application/x-tar"))
        self.assertEqual(int(answer.headers["Content-Length"]), len(answer.body))
        with tarfile.open(fileobj=io.BytesIO(answer.body)) as t:
            self.assertEqual({m.name: t.extractfile(m).read() for m in t.getmembers()}, files)
        again = self.s.request("PUT", "/v1/adapters/again", answer.body, {"Content-Type": "application/x-tar"})
        self.assertEqual((again.status, again.json["version"]), (200, version))
        self.assertEqual(call(self.s, "GET", "again/files").body, answer.body)

    def test_files_of_any_version(self):
        first, second = self.put("two", "two-1"), self.put("two", "two-2")
        old = call(self.s, "GET", f"two/files?version={first[:12]}").body
        self.assertNotEqual(old, call(self.s, "GET", "two/files").body)
        self.assertEqual(call(self.s, "GET", f"two/files?version={second}").body, call(self.s, "GET", "two/files").body)
        self.assertEqual(call(self.s, "GET", "two/files?version=00000000").error[:2], (404, "unknown_version"))
        self.assertEqual(call(self.s, "GET", "two/files?version=x").error, (400, "bad_field", "version"))
        self.assertEqual(call(self.s, "GET", "none/files").error[:2], (404, "unknown_task"))
        head = self.s.request("HEAD", "/v1/adapters/two/files")
        self.assertEqual((head.status, head.body), (200, b""))

    def test_rollback_goes_back_and_forth_and_to_any_version(self):
        first, second, third = (self.put("roll", f"roll-{i}") for i in range(3))
        answer = call(self.s, "POST", "roll/rollback")
        self.assertEqual((answer.status, answer.json["version"], answer.json["generation"]), (200, second, 4))
        self.assertEqual(answer.headers["ETag"], f'"{second}"')
        self.assertEqual(self.current("roll"), second)
        self.assertEqual(call(self.s, "POST", "roll/rollback", {}).json["version"], third)
        self.assertEqual(call(self.s, "POST", "roll/rollback", {"version": first[:8]}).json["version"], first)
        self.assertEqual(self.current("roll"), first)
        for body, error in (({"version": "00000000"}, (404, "unknown_version", "version")), ({"version": "x"}, (400, "bad_field", "version")),
                            ({"x": 1}, (400, "unknown_field", "x"))):
            self.assertEqual(call(self.s, "POST", "roll/rollback", body).error, error)
        self.assertEqual(call(self.s, "POST", "none/rollback").error[:2], (404, "unknown_task"))
        self.put("single", "single")
        self.assertEqual(call(self.s, "POST", "single/rollback").error[:2], (404, "unknown_version"))

    def test_activate_needs_its_version(self):
        first = self.put("act", "act-1")
        second = self.put("act", "act-2", "?activate=false")
        self.assertEqual(self.current("act"), first)
        self.assertEqual(call(self.s, "POST", "act/activate").error, (400, "missing_field", "version"))
        self.assertEqual(self.current("act"), first)
        self.assertEqual(call(self.s, "POST", "act/activate", {"version": second}).json["version"], second)
        self.assertEqual(self.current("act"), second)

    def test_residency_by_hand(self):
        self.put("hand", "hand")
        state = lambda: (lambda a: (a["state"], a["pinned"]))(call(self.s, "GET", "hand").json)
        self.assertEqual(call(self.s, "POST", "hand/unload").json["state"], "stored")
        self.assertEqual(state(), ("stored", False))
        self.assertEqual(call(self.s, "POST", "hand/load").json["state"], "resident")
        self.assertEqual(state(), ("resident", False))
        self.assertEqual(call(self.s, "POST", "hand/pin").json["pinned"], True)
        self.assertEqual(call(self.s, "POST", "hand/unload").error[:2], (409, "busy"))
        self.assertEqual(call(self.s, "POST", "hand/unpin").json["pinned"], False)
        self.assertEqual(call(self.s, "POST", "hand/unload").json["state"], "stored")
        self.assertEqual(self.s.infer({"task": "hand", "input": "x"}).status, 200)
        for action in ("load", "unload", "pin", "unpin", "rollback"):
            self.assertEqual(call(self.s, "POST", "none/" + action).error[:2], (404, "unknown_task"))
            self.assertEqual(call(self.s, "POST", "base/" + action).error, (409, "name_reserved", "task"))
        self.assertEqual(call(self.s, "POST", "hand/load", {"version": "0" * 8}).error, (400, "unknown_field", "version"))
        self.assertEqual(call(self.s, "GET", "hand/load").error[:2], (405, "method_not_allowed"))

    def test_a_task_may_be_made_from_another_ones_version(self):
        first, second = self.put("origin", "origin-1"), self.put("origin", "origin-2")
        answer = call(self.s, "PUT", "copy", {"from": "origin"})
        self.assertEqual((answer.status, answer.json["version"]), (200, second))
        self.assertEqual(call(self.s, "PUT", "copy", {"from": f"origin@{first[:9]}"}).json["version"], first)
        self.assertEqual(self.current("copy"), first)
        self.s.request("DELETE", "/v1/adapters/origin")
        self.assertEqual(self.current("copy"), first)
        for body, error in (({"from": "none"}, (404, "unknown_task", "from")), ({"from": "copy@00000000"}, (404, "unknown_version", "from")),
                            ({"from": "a b"}, (400, "bad_field", "from")), ({"from": "copy", "path": "x"}, (400, "bad_field", "path")),
                            ({"path": "x"}, (403, "path_forbidden", "path"))):
            self.assertEqual(call(self.s, "PUT", "other", body).error, error)

    def test_a_dry_run_of_a_copy_stores_nothing(self):
        self.put("dry", "dry")
        answer = self.s.request("PUT", "/v1/adapters/dry2?dry_run=true", b'{"from": "dry"}', {"Content-Type": "application/json"})
        self.assertEqual(answer.status, 200, answer.body)
        self.assertEqual(call(self.s, "GET", "dry2").status, 404)


class Import(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = tempfile.TemporaryDirectory(prefix="peftd-import-")
        cls.addClassCleanup(cls.dir.cleanup)
        cls.root = os.path.join(cls.dir.name, "root")
        cls.outside = os.path.join(cls.dir.name, "root-beside")
        cell = os.path.join(GOLDEN, "cells", CELL, "adapter")
        for place in (os.path.join(cls.root, "good"), os.path.join(cls.root, "deep", "er"), cls.outside):
            shutil.copytree(cell, place)
        shutil.copytree(os.path.join(GOLDEN, "cells", "bert-peft-ia3", "adapter"), os.path.join(cls.root, "ia3"))
        os.makedirs(os.path.join(cls.root, "bad"))
        with open(os.path.join(cls.root, "bad", "adapter_config.json"), "w", encoding="utf-8") as f:
            f.write("{")
        links = os.path.join(cls.root, "links")
        os.makedirs(links)
        for name in os.listdir(cell):  # as the hub's cache has them
            os.symlink(os.path.join("..", "good", name), os.path.join(links, name))
        stolen = os.path.join(cls.root, "stolen")
        os.makedirs(stolen)
        os.symlink("/etc/passwd", os.path.join(stolen, "adapter_config.json"))
        os.symlink(cls.outside, os.path.join(cls.root, "out"))
        os.symlink(os.path.join("..", "root-beside"), os.path.join(cls.root, "out2"))
        os.symlink("/proc/self/root", os.path.join(cls.root, "magic"))
        odd = os.path.join(cls.root, "odd")
        shutil.copytree(cell, odd)
        os.remove(os.path.join(odd, "adapter_config.json"))
        os.mkfifo(os.path.join(odd, "adapter_config.json"))
        cls.s = Server("bert", "--import-root", cls.root, "--resolve", "on", "--max-upload-bytes", "1MiB")
        cls.addClassCleanup(cls.s.__exit__, None, None, None)
        cls.version = cls.s.put_cell("uploaded", CELL).json["version"]

    def test_a_folder_below_the_root_becomes_a_version(self):
        for i, path in enumerate(("good", "./good/", "deep/er", "deep/../good", self.root + "/good", "links")):
            answer = call(self.s, "PUT", f"path{i}", {"path": path})
            self.assertEqual((answer.status, answer.json.get("version")), (200, self.version), (path, answer.body))

    def test_no_path_leaves_the_root(self):
        for path in ("..", "../root-beside", "good/../../root-beside", "/etc", self.outside, "/", "out", "out2", "stolen",
                     "magic/etc", "/proc/self/root" + self.root, self.root + "/../root-beside"):
            answer = call(self.s, "PUT", "escape", {"path": path})
            self.assertEqual(answer.error, (403, "path_forbidden", "path"), (path, answer.body))
            self.assertNotIn(self.dir.name, answer.body.decode())
        self.assertEqual(call(self.s, "GET", "escape").status, 404)

    def test_what_is_there_and_no_adapter_is_refused_by_what_it_is(self):
        for path, status, code in (("nothing", 400, "bad_field"), ("good/adapter_config.json", 400, "bad_field"),
                                   ("bad", 422, "adapter_invalid"), ("", 403, "path_forbidden"), ("odd", 422, "adapter_invalid"),
                                   ("x" * 5000, 403, "path_forbidden")):
            answer = call(self.s, "PUT", "refused", {"path": path})
            if path.startswith("x"):
                self.assertIn(answer.status, (403, 503))
            else:
                self.assertEqual(answer.error[:2], (status, code), (path, answer.body))
        big = os.path.join(self.root, "big")
        os.makedirs(big, exist_ok=True)
        with open(os.path.join(big, "adapter_model.safetensors"), "wb") as f:
            f.truncate(2 << 20)
        self.assertEqual(call(self.s, "PUT", "refused", {"path": "big"}).error[:2], (413, "body_too_large"))

    def test_vllms_routes_load_and_unload(self):
        load = lambda **body: post(self.s, "/v1/load_lora_adapter", body)
        answer = load(lora_name="lo", lora_path="good")
        self.assertEqual((answer.status, answer.body), (200, b"Success: LoRA adapter 'lo' added successfully."))
        self.assertIn("lo", [m["id"] for m in self.s.request("GET", "/v1/models").json["data"]])
        self.assertEqual(load(lora_name="lo", lora_path=self.root + "/good").status, 200)  # again: nothing to do
        self.assertEqual(call(self.s, "GET", "lo").json["generation"], 1)
        self.assertEqual(load(lora_name="lo", lora_path="ia3").error, (412, "version_mismatch", "lora_name"))
        self.assertEqual(load(lora_name="lo", lora_path="ia3", load_inplace=True).status, 200)
        self.assertEqual(call(self.s, "GET", "lo").json["method"], "ia3")
        for body, error in (({"lora_path": "good"}, (400, "missing_field", "lora_name")), ({"lora_name": "x"}, (400, "missing_field", "lora_path")),
                            ({"lora_name": "x", "lora_path": "nothing"}, (404, "unknown_path", "lora_path")),
                            ({"lora_name": "x", "lora_path": "/etc"}, (403, "path_forbidden", "lora_path")),
                            ({"lora_name": "../x", "lora_path": "good"}, (400, "bad_field", "lora_name")),
                            ({"lora_name": "bert", "lora_path": "good"}, (409, "name_reserved", "lora_name")),
                            ({"lora_name": "x", "lora_path": "good", "y": 1}, (400, "unknown_field", "y"))):
            self.assertEqual(load(**body).error, error)
        self.assertEqual(load(lora_name="x", lora_path="bad").error[:2], (422, "adapter_invalid"))
        unload = lambda **body: post(self.s, "/v1/unload_lora_adapter", body)
        self.assertEqual(unload(lora_name="lo").body, b"Success: LoRA adapter 'lo' removed successfully.")
        self.assertEqual(unload(lora_name="lo").error, (404, "unknown_task", "lora_name"))
        self.assertEqual(self.s.infer({"task": "lo", "input": "x"}).error[:2], (404, "unknown_task"))

    def test_an_unknown_task_is_found_by_its_first_request(self):
        self.assertEqual(call(self.s, "GET", "good").status, 404)
        answers = []
        threads = [threading.Thread(target=lambda: answers.append(self.s.infer({"task": "good", "input": "x"}))) for _ in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual([(a.status, a.json.get("version")) for a in answers], [(200, self.version)] * 8)
        self.assertEqual(call(self.s, "GET", "good").json["generation"], 1)
        self.assertGreaterEqual(self.s.metrics()['peftd_requests_total{task="good",code="200"}'], 8)
        self.assertEqual(post(self.s, "/classify", {"model": "links", "input": "x"}).status, 200)

    def test_what_the_resolver_does_not_find_is_unknown(self):
        for task in ("nothing", "out", "stolen"):
            answer = self.s.infer({"task": task, "input": "x"})
            self.assertIn(answer.error[:2], ((404, "unknown_task"), (403, "path_forbidden")))
        self.assertEqual(self.s.infer({"task": "nothing", "input": "x"}).error, (404, "unknown_task", "task"))
        self.assertEqual(self.s.infer({"requests": [{"task": "nothing", "input": "x"}]}).json["responses"][0]["error"]["param"],
                         "requests[0].task")
        self.assertEqual(post(self.s, "/classify", {"model": "nothing", "input": "x"}).error, (404, "unknown_task", "model"))
        self.assertEqual(self.s.infer({"task": "bad", "input": "x"}).error[:2], (422, "adapter_invalid"))
        self.assertEqual(self.s.infer({"task": "deep@00000000", "input": "x"}).error[:2], (404, "unknown_task"))
        self.assertEqual([k for k in self.s.metrics() if 'task="nothing"' in k], [])

    def test_a_client_that_leaves_while_the_resolver_works_harms_nobody(self):
        body = json.dumps({"task": "ia3", "input": "x"})
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", self.s.port)) as c:
                c.sendall(f"POST /v1/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
            call(self.s, "DELETE", "ia3")
        self.assertEqual(self.s.infer({"task": "ia3", "input": "x"}).status, 200)


class NoResolver(unittest.TestCase):
    def test_without_the_setting_nothing_is_looked_for(self):
        with tempfile.TemporaryDirectory() as root:
            shutil.copytree(os.path.join(GOLDEN, "cells", CELL, "adapter"), os.path.join(root, "good"))
            with Server("bert", "--import-root", root) as s:
                self.assertEqual(s.infer({"task": "good", "input": "x"}).error, (404, "unknown_task", "task"))
                self.assertEqual(call(s, "PUT", "good", {"path": "good"}).status, 201)
                self.assertEqual(s.infer({"task": "good", "input": "x"}).status, 200)


if __name__ == "__main__":
    unittest.main()
