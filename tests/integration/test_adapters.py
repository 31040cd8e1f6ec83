"""The adapter routes: uploads in every wrapping, guards, lists, deletion."""

import json
import os
import time
import unittest
import zipfile

from tests.integration.server import Server, adapter_files, own_files, tar, zipped, zstd
from tests.support.peftd import multipart

CELL = "bert-peft-lora"


class Adapters(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = Server("bert", "--max-upload-bytes", "1MiB")

    @classmethod
    def tearDownClass(cls):
        cls.s.__exit__(None, None, None)

    def upload(self, task, body, content_type=None):
        headers = {"Content-Type": content_type} if content_type else {}
        return self.s.request("PUT", f"/v1/adapters/{task}", body, headers)

    def test_every_wrapping_gives_the_same_version(self):
        files = own_files(CELL, "wrap")
        plain = tar(files)
        answers = [self.s.put("wrap", files),
                   self.upload("wrap", plain, "application/x-tar"),
                   self.upload("wrap", tar(files, "w:gz"), "application/gzip"),
                   self.upload("wrap", zstd(plain), "application/zstd"),
                   self.upload("wrap", plain, "application/octet-stream"),
                   self.upload("wrap", tar(files, prefix="./")),
                   self.upload("wrap", tar(files, prefix="my-adapter/")),
                   self.upload("wrap", zipped(files), "application/zip"),
                   self.upload("wrap", zipped(files, zipfile.ZIP_DEFLATED, "my-adapter/"), "application/octet-stream")]
        self.assertEqual([a.status for a in answers], [201] + [200] * 8,
                         [a.body for a in answers])
        self.assertEqual(len({a.json["version"] for a in answers}), 1)

    def test_files_that_name_another_base_are_a_warning_and_with_strict_refused(self):
        files = adapter_files(CELL)
        plain = json.loads(files["adapter_config.json"])

        def put(task, name, query="", **more):
            config = json.dumps({**plain, "base_model_name_or_path": name}).encode()
            return self.s.put(task, {**files, "adapter_config.json": config, **more}, query)

        for i, name in enumerate(("bert", "hub/BERT", "/models/bert/", "", None, "x/" + "0" * 40, "hub/bert-base")):
            answer = put(f"same{i}", name, "?strict=true")
            self.assertEqual((answer.status, answer.json.get("warnings")), (201, []), name)
        for i, (name, more) in enumerate((("hub/Be-Large_v2 \"x\"", {}), ("bert", {"config.json": b'{"model_type": "gpt2"}'}),
                                          ("bert", {"config.json": b'{"model_type": "bert", "vocab_size": 7}'}))):
            want = ("Be-Large_v2__x_", "gpt2", "7_ids")[i]
            refused = put(f"other{i}", name, "?strict=true", **more)
            self.assertEqual(refused.error[:2], (422, "adapter_mismatch"))
            self.assertIn(f"made for {want}, and this base is bert", refused.json["error"]["message"])
            self.assertEqual(self.s.request("GET", f"/v1/adapters/other{i}").status, 404)
            answer = put(f"other{i}", name, **more)
            self.assertEqual((answer.status, len(answer.json["warnings"])), (201, 1), answer.json)
            self.assertIn(f"made for another base, {want}:", answer.json["warnings"][0])
            self.assertEqual(self.s.request("GET", f"/v1/adapters/other{i}").json["warnings"], answer.json["warnings"])
            self.assertEqual(put(f"again{i}", name, "?strict=true", **more).status, 422, "what is resident already")
            self.assertIn(f"event=adapter_of_another_base task=other{i} made_for={want}", self.s.log_text())

    def test_labels_fall_back_to_those_of_a_config_json(self):
        bare = {k: v for k, v in adapter_files(CELL).items() if k != "task.json"}
        head = b'{"head": "classification"}'
        names = lambda task: list(self.s.infer({"task": task, "input": "x"}).json["output"]["scores"])
        for i, (config, said, want) in enumerate((
                ({"id2label": {"0": "no", "1": "perhaps", "2": "yes"}}, head, ["no", "perhaps", "yes"]),
                ({"id2label": {"0": "no", "1": "perhaps", "2": "yes"}}, b'{"head": "classification", "labels": ["a", "b", "c"]}', ["a", "b", "c"]),
                ({"id2label": {"0": "no", "1": "yes"}}, head, None), ({"id2label": {"0": "x", "1": "x", "2": "y"}}, head, None),
                ({"id2label": {"0": "x", "1": "", "2": "y"}}, head, None), ({"id2label": {"0": "x", "1": "z", "3": "y"}}, head, None),
                ({"id2label": {"0": "x", "1": 5, "2": "y"}}, head, None), ({"id2label": ["x", "y", "z"]}, head, None), ({}, head, None))):
            files = {**bare, "task.json": said, "config.json": json.dumps(config).encode()}
            answer = self.s.put(f"labels{i}", files)
            self.assertLess(answer.status, 300, answer.body)
            self.assertNotIn("config.json", answer.json["ignored"])
            self.assertEqual(names(f"labels{i}"), want or ["LABEL_0", "LABEL_1", "LABEL_2"], config)
        self.assertEqual(self.s.put("labels", {**bare, "task.json": head, "config.json": b"{"}).error[:2], (422, "adapter_invalid"))

    def test_201_is_a_new_version_whatever_the_task(self):
        files = own_files(CELL, "new")
        self.assertEqual([self.s.put(task, files).status for task in ("new1", "new2", "new1")],
                         [201, 200, 200])

    def test_hidden_files_are_left_out(self):
        files = own_files(CELL, "hidden")
        hidden = {".gitattributes": b"x", "._task.json": b"x", **files}
        version = self.s.put("hidden", files).json["version"]
        self.assertEqual(self.s.put("hidden", hidden).json["version"], version)
        checkout = tar({".git/config": b"x", "a/.git/HEAD": b"x", **hidden})
        self.assertEqual(self.upload("hidden", checkout).json["version"], version)

    def test_a_query_parameter_has_one_value(self):
        self.s.put_cell("query", CELL)
        cases = [("DELETE", "?version", "version"), ("DELETE", "?version=", "version"),
                 ("DELETE", "?version=zz", "version"), ("DELETE", "?version=" + "a" * 65, "version"),
                 ("DELETE", "?version=12345678&version=12345679", "version"),
                 ("PUT", "?dry_run", "dry_run"), ("PUT", "?dry_run=true&dry_run=false", "dry_run"),
                 ("PUT", "?activate=false&activate", "activate")]
        for method, query, name in cases:
            body, form = multipart(own_files(CELL, "query")) if method == "PUT" else (None, "")
            a = self.s.request(method, "/v1/adapters/query" + query, body, {"Content-Type": form})
            self.assertEqual(a.error, (400, "bad_field", name), query)
        self.assertEqual(self.s.request("GET", "/v1/adapters?limit").error,
                         (400, "bad_field", "limit"))
        self.assertEqual(self.s.request("GET", "/healthz?x").error, (400, "unknown_field", "x"))
        self.assertEqual(self.s.request("GET", "/v1/adapters/query").json["generation"], 1)

    def test_a_form_field_is_no_query_parameter(self):
        body, form = multipart(adapter_files(CELL), "B")
        body = b'--B\r\nContent-Disposition: form-data; name="dry_run"\r\n\r\ntrue\r\n' + body
        self.assertEqual(self.upload("field", body, form).error, (400, "bad_field", "file"))

    def test_bad_parameters_of_task_json_are_refused_at_once(self):
        files = adapter_files(CELL)
        task = json.loads(files["task.json"])
        for name, value in (("foo", 1), ("stop", ""), ("top_p", 5), ("stream", True)):
            files["task.json"] = json.dumps({**task, "parameters": {name: value}}).encode()
            for query in ("", "?dry_run=true"):
                a = self.s.put("defaults", files, query)
                self.assertEqual(a.error, (422, "adapter_invalid", "parameters." + name))
                self.assertIn("task.json", a.json["error"]["message"])
        self.assertEqual(self.s.request("GET", "/v1/adapters/defaults").status, 404)

    def test_labels_are_different(self):
        files = adapter_files(CELL)
        for labels in (["a", "a", "b"], ["a", "", "b"]):
            files["task.json"] = json.dumps({"labels": labels}).encode()
            self.assertEqual(self.s.put("labels", files).error, (422, "adapter_invalid", "labels"))

    def test_the_adapter_object(self):
        a = self.s.put_cell("object", CELL)
        j = self.s.request("GET", "/v1/adapters/object")
        self.assertEqual(j.headers["ETag"], f'"{j.json["version"]}"')
        self.assertEqual(j.json["version"], a.json["version"])
        self.assertEqual((j.json["task"], j.json["kind"], j.json["method"], j.json["generation"]),
                         ("object", "classification", "lora", 1))
        for name in ("program", "state", "pinned", "bytes_stored", "bytes_resident", "created",
                     "last_used", "requests"):
            self.assertIn(name, j.json)
        self.assertEqual(j.json["program"][0]["op"], "LOWRANK")

    def test_dry_run_stores_nothing(self):
        a = self.s.put_cell("dry", CELL, query="?dry_run=true")
        self.assertEqual((a.status, a.json["kind"]), (200, "classification"))
        self.assertEqual(self.s.request("GET", "/v1/adapters/dry").error,
                         (404, "unknown_task", "task"))

    def test_without_activation_the_pointer_stays(self):
        first = self.s.put_cell("later", CELL).json["version"]
        a = self.s.put("later", own_files("bert-peft-lora-f16", "later"), "?activate=false")
        self.assertEqual(a.status, 201, a.body)
        self.assertNotEqual(a.json["version"], first)
        self.assertEqual(self.s.infer({"task": "later", "input": "x"}).json["version"], first)
        j = self.s.infer({"task": f"later@{a.json['version'][:12]}", "input": "x"}).json
        self.assertEqual(j["version"], a.json["version"])
        self.assertEqual(self.s.request("DELETE",
                                        f"/v1/adapters/later?version={first}").error[:2],
                         (409, "busy"))
        self.assertEqual(self.s.request("DELETE", "/v1/adapters/later?version="
                                        + a.json["version"]).status, 204)
        self.assertEqual(self.s.infer({"task": f"later@{a.json['version'][:12]}",
                                       "input": "x"}).error[:2], (404, "unknown_version"))

    def test_guards(self):
        first = self.s.put_cell("guard", CELL, headers={"If-Match": "*"})
        self.assertEqual(first.error[:2], (412, "version_mismatch"))
        first = self.s.put("guard", own_files(CELL, "guard"), headers={"If-None-Match": "*"})
        self.assertEqual(first.status, 201)
        again = self.s.put_cell("guard", CELL, headers={"If-None-Match": "*"})
        self.assertEqual(again.error[:2], (412, "version_mismatch"))
        wrong = self.s.put_cell("guard", "bert-peft-ia3", headers={"If-Match": '"' + "0" * 64 + '"'})
        self.assertEqual(wrong.error[:2], (412, "version_mismatch"))
        right = self.s.put("guard", own_files("bert-peft-ia3", "guard"),
                           headers={"If-Match": first.headers["ETag"]})
        self.assertEqual((right.status, right.json["generation"]), (201, 2))
        etag = right.headers["ETag"]
        for bad in ("x", etag + "x", etag[:-1], etag[1:], etag + ', "x"', "*x", etag[:20] + '"'):
            a = self.s.put_cell("guard", CELL, headers={"If-Match": bad})
            self.assertEqual(a.error, (400, "bad_field", "If-Match"), bad)
        a = self.s.put_cell("guard", CELL, headers={"If-Match": "*"})
        self.assertEqual((a.status in (200, 201), a.json["generation"]), (True, 3))

    def test_deleted_tasks_are_gone(self):
        self.s.put_cell("gone", CELL)
        self.assertEqual(self.s.infer({"task": "gone", "input": "x"}).status, 200)
        self.assertEqual(self.s.request("DELETE", "/v1/adapters/gone").status, 204)
        self.assertEqual(self.s.infer({"task": "gone", "input": "x"}).error,
                         (404, "unknown_task", "task"))
        self.assertEqual(self.s.request("DELETE", "/v1/adapters/gone").error[:2],
                         (404, "unknown_task"))

    def test_base_is_reserved(self):
        self.assertEqual(self.s.put_cell("base", CELL).error[:2], (409, "name_reserved"))
        self.assertEqual(self.s.request("DELETE", "/v1/adapters/base").error[:2],
                         (409, "name_reserved"))
        a = self.s.request("GET", "/v1/adapters/base")
        self.assertEqual(a.error, (404, "unknown_task", "task"))
        self.assertIn("the model itself", a.json["error"]["message"])

    def test_refusals(self):
        files = adapter_files(CELL)
        body, form = multipart(files)
        cases = [
            (b"", None, 422, "adapter_invalid"),
            (b"not a tar", "application/x-tar", 422, "adapter_invalid"),
            (b"not a gzip", "application/gzip", 422, "adapter_invalid"),
            (tar(files)[:2000], "application/x-tar", 422, "adapter_invalid"),
            (tar({}), "application/x-tar", 422, "adapter_invalid"),
            (tar({"../x": b"1"}), "application/x-tar", 400, "bad_field"),
            (tar({"/etc/x": b"1"}), "application/x-tar", 400, "bad_field"),
            (tar({".hidden": b"1"}), "application/x-tar", 422, "adapter_invalid"),
            (tar({"a b": b"1"}), "application/x-tar", 422, "adapter_invalid"),
            (tar({"a/task.json": b"1", "b/task.json": b"2"}), None, 400, "bad_field"),
            (zipped(files)[:2000], "application/zip", 422, "adapter_invalid"),
            (zipped({}), "application/zip", 422, "adapter_invalid"),
            (zipped({"../x": b"1"}), "application/zip", 400, "bad_field"),
            (zipped({"/etc/x": b"1"}), "application/zip", 400, "bad_field"),
            (zipped({"x": bytes(2 << 20)}, zipfile.ZIP_DEFLATED), "application/zip", 413, "body_too_large"),
            (zipped({f"f{i}": b"" for i in range(300)}), None, 400, "bad_field"),
            (zipped(files).replace(b"rank_pattern", b"rank_pattenr"), "application/zip", 422, "adapter_invalid"),  # its checksum
            (b"{}", "application/json", 400, "missing_field"),
            (b"[]", "application/json", 400, "bad_json"),
            (b'{"x": 1}', "application/json", 400, "unknown_field"),
            (b" " * 70000, "application/json", 413, "body_too_large"),
            (tar({"x": bytes(2 << 20)}, "w:gz"), "application/gzip", 413, "body_too_large"),
            (tar({f"f{i}": b"" for i in range(300)}), None, 400, "bad_field"),
            (body, "multipart/form-data", 400, "bad_field"),
            (body, "multipart/form-data; boundary=other", 400, "bad_field"),
            (body[:-20], form, 400, "bad_field"),
            (body, "application/json", 400, "bad_json"),
            (body, "multipart/form-data2; boundary=x", 415, "unsupported_media_type"),
            (body, "text/plain", 415, "unsupported_media_type"),
        ]
        for data, content_type, status, code in cases:
            a = self.upload("refused", data, content_type)
            self.assertEqual(a.error[:2], (status, code), (data[:60], content_type, a.body))
        self.assertEqual(self.s.request("GET", "/v1/adapters/refused").status, 404)

    def test_what_nobody_reads_is_ignored_and_not_stored(self):
        files = own_files(CELL, "ignored")
        files.pop("README.md")  # as PEFT saved it
        plain = self.s.put("ignored", files).json
        self.assertEqual(plain["ignored"], [])
        others = ["README.md", "my notes.txt", "optimizer.pt", "scheduler.pt",
                  "trainer_state.json", "training_args.bin", "rng_state.pth"]
        a = self.s.put("ignored", {**files, **{name: b"x" for name in others}})
        self.assertEqual((a.status, a.json["ignored"]), (200, others), a.body)
        self.assertEqual((a.json["version"], a.json["bytes_stored"]),
                         (plain["version"], plain["bytes_stored"]))
        self.assertEqual(sorted(os.listdir(os.path.join(self.s.store, "versions",
                                                        plain["version"]))),
                         sorted([*files, "version.json"]))
        self.assertNotIn("ignored", self.s.request("GET", "/v1/adapters/ignored").json)
        a = self.s.put("ignored", {**files, "x": b""}, "?dry_run=true")
        self.assertEqual(a.json["ignored"], ["x"])

    def test_a_trainers_folder_is_the_adapter_that_it_ended_with(self):
        files = own_files(CELL, "trainer")
        files.pop("README.md")
        stage = {"checkpoint-10/" + name: data for name, data in
                 {**own_files(CELL, "stage"), "optimizer.pt": b"x"}.items()}
        a = self.upload("trainer", tar({**stage, **files, "training_args.bin": b"x"}, prefix="out/"))
        self.assertEqual(a.status, 201, a.body)
        self.assertEqual(a.json["version"], self.s.put("trainer", files).json["version"])
        self.assertEqual(sorted(a.json["ignored"]),
                         sorted("out/" + name for name in [*stage, "training_args.bin"]))

    def test_what_is_no_adapter_is_named(self):
        files = adapter_files(CELL)
        model = {"config.json": b"{}", "model.safetensors": b"x", "tokenizer.json": b"{}"}
        two = tar({f"{folder}/{name}": data for folder in "ab" for name, data in files.items()})
        form, form_type = multipart({"my.zip": zipped(files)})
        for body, kind, status, code, words in (
                (tar(model), None, 422, "adapter_unsupported", "whole model"),
                (two, None, 422, "adapter_invalid", "several adapters, one in 'a/' and one in 'b/'"),
                (form, form_type, 422, "adapter_invalid", "my.zip is an archive"),
                (tar({"optimizer.pt": b"x"}), None, 422, "adapter_invalid", "Trainer"),
                (tar({"my notes.txt": b"x"}), None, 422, "adapter_invalid", "my notes.txt")):
            a = self.upload("named", body, kind)
            self.assertEqual(a.error[:2], (status, code), a.body)
            self.assertIn(words, a.json["error"]["message"])

    def test_what_does_not_fit_says_what(self):
        a = self.s.put_cell("misfit", "llama-peft-lora")
        self.assertEqual(a.status, 422)
        self.assertIn(a.json["error"]["code"], ("adapter_mismatch", "adapter_unsupported",
                                                "adapter_invalid"))
        damaged = adapter_files(CELL)
        damaged["adapter_model.safetensors"] = damaged["adapter_model.safetensors"][:-100]
        self.assertEqual(self.s.put("damaged", damaged).error[:2], (422, "adapter_invalid"))

    def test_bad_names(self):
        files = adapter_files(CELL)
        self.assertEqual(self.s.put("-x", files).error, (400, "bad_field", "task"))
        self.assertEqual(self.s.put("a%20b", files).error, (400, "bad_field", "task"))
        self.assertEqual(self.s.put("..%2Fx", files).error[1], "unknown_route")
        for method in ("GET", "PUT", "DELETE"):
            self.assertEqual(self.s.request(method, "/v1/adapters/" + "a" * 129).error,
                             (400, "bad_field", "task"))

    def test_list_in_pages(self):
        names = [f"page{i}" for i in range(5)]
        for name in names:
            self.s.put_cell(name, CELL)
        seen, after = [], "page"
        while True:
            j = self.s.request("GET", f"/v1/adapters?limit=2&after={after}").json
            self.assertLessEqual(len(j["adapters"]), 2)
            seen += [a["task"] for a in j["adapters"]]
            if j["next"] is None:
                break
            after = j["next"]
            self.assertEqual(after, seen[-1])
        self.assertEqual(seen[:5], names)
        self.assertEqual(seen, sorted(seen))
        for query in ("limit=0", "limit=x", "limit=1001", "state=odd"):
            self.assertEqual(self.s.request("GET", f"/v1/adapters?{query}").error,
                             (400, "bad_field", query.split("=")[0]))
        self.assertEqual(self.s.request("GET", "/v1/adapters?state=merged").json,
                         {"adapters": [], "next": None})

    def test_a_huge_upload_is_refused_and_takes_no_memory(self):
        before = self.s.metrics()["process_resident_memory_bytes"]
        conn = self.s.connect()
        conn.putrequest("PUT", "/v1/adapters/huge")
        conn.putheader("Content-Length", str(1 << 30))
        conn.endheaders()
        block, error = bytes(1 << 20), None
        try:
            for _ in range(1 << 10):
                conn.send(block)
        except OSError as e:  # cut: that is what early means
            error = e
        self.assertIsNotNone(error)
        r = conn.getresponse()
        self.assertEqual((r.status, json.loads(r.read())["error"]["code"]),
                         (413, "body_too_large"))
        conn.close()
        after = self.s.metrics()["process_resident_memory_bytes"]
        self.assertLess(after - before, 32 << 20)

    def test_chunked_uploads(self):
        body, form = multipart(own_files(CELL, "chunked"))
        conn = self.s.connect()
        pieces = (body[i:i + 1000] for i in range(0, len(body), 1000))
        conn.request("PUT", "/v1/adapters/chunked", pieces, {"Content-Type": form},
                     encode_chunked=True)
        r = conn.getresponse()
        self.assertEqual((r.status, json.loads(r.read())["kind"]), (201, "classification"))
        conn.request("PUT", "/v1/adapters/chunked", (bytes(100000) for _ in range(30)),
                     {"Content-Type": form}, encode_chunked=True)
        r = conn.getresponse()
        self.assertEqual((r.status, json.loads(r.read())["error"]["code"]),
                         (413, "body_too_large"))
        conn.close()

    def test_requests_are_counted(self):
        self.s.put_cell("counted", CELL)
        for _ in range(3):
            self.s.infer({"task": "counted", "input": "x"})
        m = self.s.metrics()
        self.assertEqual(m['peftd_requests_total{task="counted",code="200"}'], 3)
        self.assertGreater(m['peftd_tokens_total{task="counted",kind="prompt"}'], 3)


class EncoderDecoder(unittest.TestCase):
    def test_a_prefix_of_a_class_that_does_not_generate_is_refused(self):
        files = adapter_files("bart-peft-prefix")
        config = json.loads(files["adapter_config.json"])
        self.assertEqual(config["num_transformer_submodules"], 2)
        with Server("bart") as s:
            self.assertEqual(s.put("two", files).status, 201)
            one = {**files, "adapter_config.json": json.dumps({**config, "num_transformer_submodules": 1}).encode()}
            self.assertEqual(s.put("one", one).error, (422, "adapter_unsupported", "num_transformer_submodules"))


class Restart(unittest.TestCase):
    def test_adapters_survive_and_load_on_demand(self):
        with Server("bert") as s:
            s.put_cell("kept", CELL)
            want = s.infer({"task": "kept", "input": "x"}).json["output"]
            s.stop()
            store = s.store
            with Server("bert", env={"PEFTD_STORE": ""}) as other:
                self.assertEqual(other.request("GET", "/v1/adapters").json["adapters"], [])
            with Server("bert", "--store", store) as again:
                m = again.metrics()
                self.assertEqual((m['peftd_adapters{state="stored"}'],
                                  m['peftd_adapters{state="resident"}']), (1, 0))
                self.assertEqual(again.request("GET", "/v1/adapters/kept").json["state"], "stored")
                self.assertEqual(again.infer({"task": "kept", "input": "x"}).json["output"], want)
                m = again.metrics()
                self.assertEqual((m['peftd_adapters{state="stored"}'],
                                  m['peftd_adapters{state="resident"}']), (0, 1))
                self.assertEqual(m['peftd_adapter_loads_total{task="kept",result="ok"}'], 1)


class SlowClient(unittest.TestCase):
    def test_is_cut_and_holds_up_nobody(self):
        with Server("bert", "--client-timeout", "1", "--http-threads", "1") as s:
            slow = [s.raw(10) for _ in range(20)]
            for c in slow:
                c.sendall(b"POST /v1/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
            begin = time.monotonic()
            self.assertEqual(s.infer({"task": "base", "input": "x"}).status, 200)
            self.assertLess(time.monotonic() - begin, 1)
            for c in slow:
                self.assertEqual(c.recv(100), b"")  # closed by the server
                c.close()
            self.assertLess(time.monotonic() - begin, 6)


if __name__ == "__main__":
    unittest.main()
