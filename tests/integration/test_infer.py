"""POST /v1/infer: every form of input, every kind of answer, every refusal."""

import json
import math
import threading
import time
import unittest

from tests.integration.server import ENDLESS, Server, adapter_files, golden

TOL = 2e-5


class Encoder(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = Server("bert")
        for task, cell in (("rate", "bert-peft-lora"), ("topics", "bert-peft-lora-multi-label"),
                           ("price", "bert-peft-lora-regression"),
                           ("names", "bert-peft-lora-tagging"),
                           ("embed", "bert-peft-lora-embedding"), ("ia3", "bert-peft-ia3"),
                           ("prefix", "bert-peft-prefix"), ("pfeiffer", "bert-ah-pfeiffer")):
            a = cls.s.put_cell(task, cell)
            assert a.status == 201, (cell, a.body)

    @classmethod
    def tearDownClass(cls):
        cls.s.__exit__(None, None, None)

    def assertClose(self, got, want):
        self.assertEqual(len(got), len(want))
        for g, w in zip(got, want):
            self.assertLessEqual(abs(g - w), TOL * max(1, abs(w)))

    def test_classification(self):
        a = self.s.infer({"task": "rate", "input": "a b c", "parameters": {"logits": True}})
        self.assertEqual(a.status, 200)
        j = a.json
        self.assertEqual(j["kind"], "classification")
        self.assertEqual(list(j["output"]["scores"]), ["bad", "fair", "good"])
        self.assertAlmostEqual(sum(j["output"]["scores"].values()), 1, 5)
        best = max(j["output"]["scores"], key=j["output"]["scores"].get)
        self.assertEqual((j["output"]["label"], j["output"]["score"]),
                         (best, j["output"]["scores"][best]))
        e = [math.exp(x) for x in j["output"]["logits"]]
        self.assertClose(list(j["output"]["scores"].values()), [x / sum(e) for x in e])
        self.assertEqual(j["usage"]["completion_tokens"], 0)
        self.assertGreater(j["usage"]["prompt_tokens"], 2)
        self.assertEqual(a.headers["X-Peftd-Version"], j["version"])
        self.assertEqual(a.headers["X-Request-Id"], j["id"])
        self.assertEqual(j["generation"], 1)

    def test_logits_only_when_asked_for(self):
        self.assertNotIn("logits", self.s.infer({"task": "rate", "input": "x"}).json["output"])

    def test_multi_label_has_a_threshold(self):
        low = self.s.infer({"task": "topics", "input": "x", "parameters": {"threshold": 0}}).json
        high = self.s.infer({"task": "topics", "input": "x", "parameters": {"threshold": 1}}).json
        self.assertEqual(low["kind"], "multi_label")
        self.assertEqual(low["output"]["labels"], list(low["output"]["scores"]))
        self.assertEqual(high["output"]["labels"], [])

    def test_regression(self):
        j = self.s.infer({"task": "price", "input": "x", "parameters": {"logits": True}}).json
        self.assertEqual(j["kind"], "regression")
        out = j["output"]
        self.assertTrue("value" in out or len(out["values"]) > 1)

    def test_tagging_has_offsets_in_code_points(self):
        text = "the cat 猫 runs in Köln"
        j = self.s.infer({"task": "names", "input": text, "parameters": {"logits": True}}).json
        self.assertEqual(j["kind"], "tagging")
        out = j["output"]
        self.assertEqual(len(out["tokens"]), len(out["logits"]))
        self.assertEqual(len(out["tokens"]), j["usage"]["prompt_tokens"] - 2)  # [CLS], [SEP]
        for t in out["tokens"] + out["entities"]:
            self.assertEqual(t["text"], text[t["start"]:t["end"]])

    def test_tagging_of_a_pair_tells_which_text(self):
        files = adapter_files("bert-peft-lora-tagging")
        files["task.json"] = json.dumps({"labels": ["B-A", "B-B", "B-C", "B-D", "B-E"]}).encode()
        self.s.put("everything", files)
        texts = "the cat 猫 runs in Köln", "a dog 犬 in Bern runs home from the cat in Köln"
        out = self.s.infer({"task": "everything",
                            "input": {"text": texts[0], "text_pair": texts[1]}}).json["output"]
        for part in ("tokens", "entities"):
            self.assertIn(1, [t.get("sequence") for t in out[part]], part)
            for t in out[part]:
                self.assertEqual(t["text"], texts[t.get("sequence", 0)][t["start"]:t["end"]])

    def test_tagging_of_tokens_tags_all_of_them(self):
        case = golden("bert-peft-lora-tagging")["cases"][2]
        j = self.s.infer({"task": "names", "input": {"tokens": case["tokens"],
                                                     "token_types": case["token_types"]},
                          "parameters": {"logits": True}}).json
        self.assertEqual(len(j["output"]["tokens"]), len(case["tokens"]))
        for got, want in zip(j["output"]["logits"], case["logits"]):
            self.assertClose(got, want)

    def test_goldens_of_all_tasks_in_one_call(self):
        cells = {"rate": "bert-peft-lora", "topics": "bert-peft-lora-multi-label",
                 "ia3": "bert-peft-ia3", "prefix": "bert-peft-prefix",
                 "pfeiffer": "bert-ah-pfeiffer"}
        cases = [(task, c) for task, cell in cells.items() for c in golden(cell)["cases"]]
        a = self.s.infer({"requests": [
            {"task": task, "input": {"tokens": c["tokens"], "token_types": c["token_types"]},
             "parameters": {"logits": True}} for task, c in cases]})
        for (task, c), r in zip(cases, a.json["responses"]):
            self.assertNotIn("error", r)
            self.assertClose(r["output"]["logits"], c["logits"])

    def test_base_embeds(self):
        j = self.s.infer({"task": "base", "input": "some words"}).json
        self.assertEqual((j["kind"], j["generation"]), ("embedding", 0))
        self.assertEqual(len(j["output"]["embedding"]), 40)

    def test_inputs_are_answered_in_order(self):
        texts = ["one", {"text": "two", "text_pair": "three"}, {"tokens": [5, 6, 7]}]
        many = self.s.infer({"task": "rate", "inputs": texts}).json
        self.assertEqual(len(many["outputs"]), 3)
        self.assertNotIn("output", many)
        for text, out in zip(texts, many["outputs"]):
            one = self.s.infer({"task": "rate", "input": text}).json["output"]
            self.assertEqual(one["label"], out["label"])
            self.assertClose(list(out["scores"].values()), list(one["scores"].values()))

    def test_tasks_answer_one_input_each(self):
        a = self.s.infer({"tasks": ["rate", "base", "names"], "input": "one text"})
        results = a.json["results"]
        self.assertEqual([r["task"] for r in results], ["rate", "base", "names"])
        self.assertEqual([r["kind"] for r in results], ["classification", "embedding", "tagging"])
        self.assertIsNone(a.headers["X-Peftd-Version"])
        both = self.s.infer({"tasks": ["rate", "base"], "inputs": ["a", "b"]}).json["results"]
        self.assertEqual([len(r["outputs"]) for r in both], [2, 2])

    def test_tasks_fail_as_a_whole(self):
        self.assertEqual(self.s.infer({"tasks": ["rate", "nope"], "input": "x"}).error,
                         (404, "unknown_task", "tasks[1]"))

    def test_requests_stand_alone(self):
        a = self.s.infer({"requests": [
            {"task": "rate", "input": "x"},
            {"task": "nope", "input": "x"},
            {"task": "rate", "input": {"messages": [{"role": "user", "content": "x"}]}},
            {"task": "rate", "input": {"tokens": [1, 99999]}},
            {"task": "rate", "input": "x", "parameters": {"top_p": 2}},
            {"task": "rate", "input": "x", "paramters": {}},
            {"task": "rate", "inputs": ["x", 3]},
            "x",
            {"tasks": ["rate", "base"], "input": "x"}]})
        self.assertEqual(a.status, 200)
        got = [(r["error"]["code"], r["error"]["param"]) if "error" in r else None
               for r in a.json["responses"]]
        self.assertEqual(got, [
            None, ("unknown_task", "requests[1].task"), ("wrong_kind", "requests[2].input"),
            ("bad_field", "requests[3].input.tokens"),
            ("bad_field", "requests[4].parameters.top_p"),
            ("unknown_field", "requests[5].paramters"),
            ("bad_field", "requests[6].inputs[1]"), ("bad_field", "requests[7]"), None])

    def test_refusals(self):
        ok = {"task": "rate", "input": "x"}
        for body, status, code, param in (
                (b"", 400, "bad_json", None),
                (b"{", 400, "bad_json", None),
                (b"[]", 400, "bad_json", None),
                (b"[" * 10000, 400, "bad_json", None),
                (b'{"a":' * 10000, 400, "bad_json", None),
                (b'{"task":"rate","task":"rate","input":"x"}', 400, "bad_json", None),
                (b'{"task":"rate","input":"\xff"}', 400, "bad_json", None),
                (b'{"task":"rate","input":"\\ud800"}', 400, "bad_json", None),
                (b'{"task":"rate","input":"x"} x', 400, "bad_json", None),
                ({}, 400, "missing_field", "task"),
                ({"task": "rate"}, 400, "missing_field", "input"),
                ({**ok, "inputs": ["x"]}, 400, "bad_field", "inputs"),
                ({**ok, "tasks": ["rate"]}, 400, "bad_field", "tasks"),
                ({"task": "rate", "inputs": []}, 400, "bad_field", "inputs"),
                ({"tasks": [], "input": "x"}, 400, "bad_field", "tasks"),
                ({"requests": []}, 400, "bad_field", "requests"),
                ({"requests": [ok], "task": "rate"}, 400, "unknown_field", "task"),
                ({**ok, "modle": 1}, 400, "unknown_field", "modle"),
                ({**ok, "task": 7}, 400, "bad_field", "task"),
                ({**ok, "task": "../x"}, 400, "bad_field", "task"),
                ({**ok, "task": "rate@short"}, 400, "bad_field", "task"),
                ({**ok, "task": "rate@deadbeef"}, 404, "unknown_version", "task"),
                ({**ok, "task": "nope"}, 404, "unknown_task", "task"),
                ({**ok, "input": 7}, 400, "bad_field", "input"),
                ({**ok, "input": {}}, 400, "missing_field", "input.text"),
                ({**ok, "input": {"txt": "x"}}, 400, "unknown_field", "input.txt"),
                ({**ok, "input": {"text": "x", "tokens": [1]}}, 400, "unknown_field",
                 "input.text"),
                ({**ok, "input": {"tokens": [1.5]}}, 400, "bad_field", "input.tokens[0]"),
                ({**ok, "input": {"tokens": [-1]}}, 400, "bad_field", "input.tokens[0]"),
                ({**ok, "input": {"tokens": [1], "token_types": [0, 0]}}, 400, "bad_field",
                 "input.token_types"),
                ({**ok, "input": {"tokens": []}}, 400, "bad_field", "input"),
                ({**ok, "input": {"question": "x"}}, 400, "missing_field", "input.context"),
                ({**ok, "input": {"messages": [{"role": "user"}]}}, 400, "bad_field",
                 "input.messages[0]"),
                ({**ok, "input": {"text": "x", "choices": ["a", "b"]}}, 422, "wrong_kind",
                 "input"),
                ({**ok, "input": {"question": "x", "context": "y"}}, 422, "wrong_kind", "input"),
                ({**ok, "input": "word " * 500}, 422, "input_too_long", "input"),
                ({**ok, "stream": True}, 422, "wrong_kind", "stream"),
                ({**ok, "stream": 1}, 400, "bad_field", "stream"),
                ({"tasks": ["rate"], "input": "x", "stream": True}, 400, "bad_field", "stream"),
                ({**ok, "parameters": []}, 400, "bad_field", "parameters"),
                ({**ok, "parameters": {"temprature": 1}}, 400, "unknown_field",
                 "parameters.temprature"),
                ({**ok, "parameters": {"logits": 1}}, 400, "bad_field", "parameters.logits"),
                ({**ok, "parameters": {"max_tokens": 0}}, 400, "bad_field",
                 "parameters.max_tokens"),
                ({**ok, "parameters": {"max_tokens": 1.5}}, 400, "bad_field",
                 "parameters.max_tokens"),
                ({**ok, "parameters": {"temperature": -1}}, 400, "bad_field",
                 "parameters.temperature"),
                ({**ok, "parameters": {"num_beams": 4}}, 400, "bad_field",
                 "parameters.num_beams"),
                ({**ok, "parameters": {"stop": ["a", ""]}}, 400, "bad_field",
                 "parameters.stop"),
                ({**ok, "parameters": {"priority": 11}}, 400, "bad_field",
                 "parameters.priority"),
                ({"task": "rate", "inputs": ["x"] * 1025}, 400, "bad_field", "inputs")):
            self.assertEqual(self.s.infer(body).error, (status, code, param), str(body)[:200])

    def test_neutral_parameters_are_taken(self):
        a = self.s.infer({"task": "rate", "input": "x", "parameters": {
            "num_beams": 1, "length_penalty": 1.0, "early_stopping": False,
            "no_repeat_ngram_size": 0, "forced_bos_token_id": None, "seed": None, "top_k": 0}})
        self.assertEqual(a.status, 200)

    def test_truncate_cuts_what_is_too_long(self):
        j = self.s.infer({"task": "rate", "input": "word " * 500,
                          "parameters": {"truncate": True}}).json
        self.assertEqual(j["usage"]["prompt_tokens"], 64)

    def test_a_version_can_be_asked_for(self):
        version = self.s.request("GET", "/v1/adapters/rate").json["version"]
        for v in (version, version[:8], version[:20]):
            j = self.s.infer({"task": f"rate@{v}", "input": "x"}).json
            self.assertEqual(j["version"], version)
        base = self.s.infer({"task": "base", "input": "x"}).json["version"]
        self.assertEqual(self.s.infer({"task": f"base@{base[:8]}", "input": "x"}).status, 200)

    def test_media_type_must_be_json(self):
        for other in ("text/plain", "application/jsonlines"):
            a = self.s.request("POST", "/v1/infer", b"{}", {"Content-Type": other})
            self.assertEqual(a.error, (415, "unsupported_media_type", None))
        a = self.s.request("POST", "/v1/infer", b"{}", {"Content-Encoding": "gzip"})
        self.assertEqual(a.error, (415, "unsupported_media_type", None))

    def test_text_may_hold_a_nul(self):
        self.assertEqual(self.s.infer({"task": "base", "input": "a\0b"}).status, 200)

    def test_many_clients_at_once(self):
        failed = []

        def client(k):
            for i in range(10):
                a = self.s.infer({"requests": [
                    {"task": t, "inputs": [f"text {k} {i}", "other"]}
                    for t in ("rate", "base", "names", "ia3", "prefix", "pfeiffer")]})
                if a.status != 200 or any("error" in r for r in a.json["responses"]):
                    failed.append(a.body)

        threads = [threading.Thread(target=client, args=(k,)) for k in range(16)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(failed, [])


class Limits(unittest.TestCase):
    def test_bodies_above_the_limit_are_refused_early(self):
        with Server("bert", "--max-body-bytes", "64KiB") as s:
            a = s.infer({"task": "base", "input": "x" * 70000})
            self.assertEqual(a.error, (413, "body_too_large", None))
            with s.raw() as c:  # 1 GB announced, nothing sent
                c.sendall(b"POST /v1/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n"
                          b"Expect: 100-continue\r\n\r\n")
                self.assertIn(b"413 ", c.recv(65536))

    def test_a_full_queue_is_429(self):
        with Server("llama", "--max-queue", "4", "--flow-share", "100", "--max-batch-jobs", "1", "--context-max",
                    "100000", "--kv-bytes", "256MiB") as s:
            endless = json.dumps({"task": "base", "inputs": ["x"], "parameters": {
                "max_tokens": ENDLESS, "ignore_eos": True}})
            busy = [s.connect() for _ in range(4)]
            for i, connection in enumerate(busy):
                connection.request("POST", "/v1/infer", endless)
                s.wait_until(lambda: s.metrics()["vllm:num_requests_running"] == 1)
                s.wait_until(lambda: s.metrics()["vllm:num_requests_waiting"] == i)
            a = s.infer({"task": "base", "inputs": ["x"] * 2})
            self.assertEqual(a.error[:2], (429, "overloaded"))
            self.assertEqual(a.headers["Retry-After"], "1")
            one = {"task": "base", "input": "x", "parameters": {"max_tokens": 1}}
            each = s.connect()  # there is room for one element of two
            each.request("POST", "/v1/infer", json.dumps({"requests": [one] * 2}))
            s.wait_until(lambda: s.metrics()["vllm:num_requests_waiting"] == 4)
            for connection in busy:
                connection.close()
            first, second = json.loads(each.getresponse().read())["responses"]
            self.assertIn("output", first)
            self.assertEqual(second["error"]["code"], "overloaded")
            s.wait_until(lambda: s.metrics()["vllm:num_requests_running"] == 0)
            self.assertEqual(s.infer({"task": "base", "inputs": ["x"] * 4,
                                      "parameters": {"max_tokens": 1}}).status, 200)

    def test_too_many_bytes_at_once_are_429(self):
        with Server("bert", "--max-inflight-bytes", "16KiB") as s:
            self.assertEqual(s.infer({"task": "base", "input": "x" * 20000}).error,
                             (429, "overloaded", None))
            self.assertEqual(s.infer({"task": "base", "input": "x"}).status, 200)

    def test_max_items_counts_every_task(self):
        with Server("bert", "--max-items", "6") as s:
            ok = {"tasks": ["base", "base"], "inputs": ["x"] * 3}
            self.assertEqual(s.infer(ok).status, 200)
            self.assertEqual(s.infer({"requests": [ok, {"task": "base", "input": "x"}]}).error,
                             (400, "bad_field", "requests"))


class Decoder(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = Server("llama", "--context-max", "100000", "--kv-bytes", "1GiB")
        for task, cell in (("lora", "llama-peft-lora"), ("prefix", "llama-peft-prefix")):
            a = cls.s.put_cell(task, cell)
            assert a.status == 201, (cell, a.body)

    @classmethod
    def tearDownClass(cls):
        cls.s.__exit__(None, None, None)

    def generate(self, **parameters):
        parameters.setdefault("ignore_eos", True)
        a = self.s.infer({"task": "lora", "input": "hello there", "parameters": parameters})
        self.assertEqual(a.status, 200, a.body)
        return a.json

    def test_generation(self):
        j = self.generate(max_tokens=7, return_tokens=True)
        self.assertEqual(j["kind"], "generation")
        self.assertEqual(j["output"]["finish_reason"], "length")
        self.assertEqual(len(j["output"]["tokens"]), 7)
        self.assertEqual(j["usage"]["completion_tokens"], 7)

    def test_greedy_repeats_and_seeds_repeat(self):
        self.assertEqual(self.generate(max_tokens=9)["output"], self.generate(max_tokens=9)["output"])
        hot = {"max_tokens": 20, "temperature": 1.5, "seed": 3}
        self.assertEqual(self.generate(**hot)["output"], self.generate(**hot)["output"])
        self.assertNotEqual(self.generate(**hot)["output"],
                            self.generate(**{**hot, "seed": 4})["output"])
        self.assertNotEqual(self.generate(max_tokens=20, temperature=1.5)["output"],
                            self.generate(max_tokens=20, temperature=1.5)["output"])

    def test_n_completions(self):
        j = self.generate(max_tokens=20, temperature=1.5, seed=3, n=3)
        self.assertEqual(len(j["outputs"]), 3)
        self.assertEqual(j["output"], j["outputs"][0])
        second = self.generate(max_tokens=20, temperature=1.5, seed=4)
        self.assertEqual(j["outputs"][1], second["output"])
        self.assertEqual(j["usage"]["prompt_tokens"], second["usage"]["prompt_tokens"])
        self.assertEqual(j["usage"]["completion_tokens"], 60)

    def test_stop_strings_end_the_text_before_them(self):
        full = self.generate(max_tokens=40)["output"]["text"]
        stop = full[10:12]
        j = self.generate(max_tokens=40, stop=[stop, "not there"])
        self.assertEqual(j["output"]["text"], full[:full.index(stop)])
        self.assertEqual(j["output"]["finish_reason"], "stop")
        self.assertLess(j["usage"]["completion_tokens"], 40)

    def test_logprobs_and_logits(self):
        j = self.generate(max_tokens=5, logprobs=3, logits=True, return_tokens=True)["output"]
        self.assertEqual(len(j["logprobs"]), 5)
        self.assertEqual(len(j["logits"]), 301)
        for token, lp in zip(j["tokens"], j["logprobs"]):
            self.assertEqual(lp["id"], token)  # greedy: the most likely
            self.assertEqual(len(lp["top"]), 3)
            self.assertEqual(lp["top"][0]["logprob"], lp["logprob"])
            self.assertLess(lp["logprob"], 0)
        self.assertEqual(j["logits"].index(max(j["logits"])), j["tokens"][0])

    def test_messages_need_a_chat_template(self):
        a = self.s.infer({"task": "lora",
                          "input": {"messages": [{"role": "user", "content": "x"}]}})
        self.assertEqual(a.error[:2], (422, "wrong_kind"))

    def test_timeout_is_504_and_frees_the_row(self):
        begin = time.monotonic()
        a = self.s.infer({"task": "lora", "input": "x", "parameters": {
            "max_tokens": ENDLESS, "ignore_eos": True, "timeout": 0.1}})
        self.assertEqual(a.error, (504, "timeout", None))
        self.assertLess(time.monotonic() - begin, 2)
        self.s.wait_until(lambda: self.s.metrics()["vllm:num_requests_running"] == 0, 2)

    def test_done_items_survive_the_timeout_of_others(self):
        a = self.s.infer({"requests": [
            {"task": "lora", "input": "x", "parameters": {"max_tokens": 2, "timeout": 1}},
            {"task": "lora", "input": "x",
             "parameters": {"max_tokens": ENDLESS, "ignore_eos": True, "timeout": 1}}]})
        self.assertEqual(a.status, 200)
        first, second = a.json["responses"]
        self.assertEqual(first["kind"], "generation")
        self.assertEqual(second["error"]["code"], "timeout")

    def test_a_client_that_goes_away_frees_its_row(self):
        for stream in (False, True):
            conn = self.s.connect()
            conn.request("POST", "/v1/infer", json.dumps(
                {"task": "lora", "input": "x", "stream": stream,
                 "parameters": {"max_tokens": ENDLESS, "ignore_eos": True}}),
                {"Content-Type": "application/json"})
            self.s.wait_until(lambda: self.s.metrics()["vllm:num_requests_running"] == 1)
            conn.close()
            begin = time.monotonic()
            self.s.wait_until(lambda: self.s.metrics()["vllm:num_requests_running"] == 0, 2)
            self.assertLess(time.monotonic() - begin, 1)

    def events(self, answer):
        lines = answer.body.decode().split("\n\n")
        self.assertEqual(lines.pop(), "")
        self.assertTrue(all(line.startswith("data: ") for line in lines))
        return [line[6:] for line in lines]

    def test_stream_is_the_text_in_pieces_then_the_answer(self):
        body = {"task": "prefix", "input": "hello", "stream": True,
                "parameters": {"max_tokens": 50, "ignore_eos": True, "temperature": 1.2,
                               "seed": 5}}
        a = self.s.infer(body)
        self.assertEqual(a.status, 200)
        self.assertEqual(a.headers["Content-Type"], "text/event-stream")
        self.assertEqual(a.headers["X-Peftd-Version"],
                         self.s.request("GET", "/v1/adapters/prefix").json["version"])
        *deltas, last, done = self.events(a)
        self.assertEqual(done, "[DONE]")
        last = json.loads(last)
        text = "".join(json.loads(d)["delta"] for d in deltas)
        self.assertEqual(text, last["output"]["text"])
        whole = self.s.infer({**body, "stream": False}).json
        self.assertEqual({k: v for k, v in last.items() if k != "id"},
                         {k: v for k, v in whole.items() if k != "id"})

    def test_stream_errors_before_the_first_byte_have_their_status(self):
        a = self.s.infer({"task": "nope", "input": "hello", "stream": True})
        self.assertEqual(a.error, (404, "unknown_task", "task"))

    def test_stream_timeout_ends_with_an_error_event(self):
        a = self.s.infer({"task": "lora", "input": "hello", "stream": True, "parameters": {
            "max_tokens": ENDLESS, "ignore_eos": True, "timeout": 0.2}})
        self.assertEqual(a.status, 200)
        *_, last, done = self.events(a)
        self.assertEqual(json.loads(last)["error"]["code"], "timeout")
        self.assertEqual(done, "[DONE]")

    def test_who_has_the_first_token_is_counted_as_running(self):
        for _ in range(20):
            conn = self.s.connect()
            conn.request("POST", "/v1/infer", json.dumps(
                {"task": "base", "input": "x", "stream": True, "parameters": {"max_tokens": ENDLESS, "ignore_eos": True}}))
            conn.getresponse().read1(100)
            self.assertEqual(self.s.metrics()["vllm:num_requests_running"], 1)
            conn.close()
            self.s.wait_until(lambda: self.s.metrics()["vllm:num_requests_running"] == 0)

    def test_pieces_arrive_while_the_rest_is_made(self):
        conn = self.s.connect()
        conn.request("POST", "/v1/infer", json.dumps(
            {"task": "lora", "input": "x", "stream": True,
             "parameters": {"max_tokens": ENDLESS, "ignore_eos": True}}),
            {"Content-Type": "application/json"})
        r = conn.getresponse()
        for _ in range(2):
            self.assertTrue(r.readline().startswith(b"data: {\"delta\":"))
            self.assertEqual(r.readline(), b"\n")
            self.assertEqual(self.s.metrics()["vllm:num_requests_running"], 1)
        conn.close()
        self.s.wait_until(lambda: self.s.metrics()["vllm:num_requests_running"] == 0)

    def test_streams_and_calls_of_all_tasks_at_once(self):
        failed = []

        def client(k):
            for i in range(4):
                a = self.s.infer({"task": ("lora", "prefix", "base")[k % 3], "input": f"text {k}",
                                  "stream": k % 2 == 0,
                                  "parameters": {"max_tokens": 30, "ignore_eos": True}})
                if a.status != 200 or (k % 2 == 0) != a.body.endswith(b"data: [DONE]\n\n"):
                    failed.append((k, i, a.body))

        threads = [threading.Thread(target=client, args=(k,)) for k in range(16)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(failed, [])


class Context(unittest.TestCase):
    def test_default_max_tokens_gives_way_to_a_long_prompt(self):
        with Server("llama", "--context-max", "256") as s:
            tokens = [5] * 254
            j = s.infer({"task": "base", "inputs": [{"tokens": tokens}, {"tokens": [5, 6]}],
                         "parameters": {"ignore_eos": True, "return_tokens": True}}).json
            self.assertEqual([len(o["tokens"]) for o in j["outputs"]], [2, 128])
            self.assertEqual(s.infer({"task": "base", "input": {"tokens": tokens},
                                      "parameters": {"max_tokens": 3}}).error,
                             (422, "input_too_long", "input.tokens"))
            j = s.infer({"task": "base", "input": {"tokens": tokens},
                         "parameters": {"max_tokens": 30, "truncate": True,
                                        "ignore_eos": True}}).json
            self.assertEqual(j["usage"], {"prompt_tokens": 226, "completion_tokens": 30})


class NoTokenizer(unittest.TestCase):
    def test_only_tokens_are_served(self):
        with Server("llama-untied") as s:
            self.assertEqual(s.infer({"task": "base", "input": "x"}).error,
                             (422, "no_tokenizer", "input"))
            j = s.infer({"task": "base", "input": {"tokens": [1, 2, 3]},
                         "parameters": {"max_tokens": 4, "ignore_eos": True}}).json
            self.assertIsNone(j["output"]["text"])
            self.assertEqual(len(j["output"]["tokens"]), 4)
            a = s.infer({"task": "base", "input": {"tokens": [1, 2, 3]},
                         "parameters": {"stop": "x"}})
            self.assertEqual(a.error[:2], (422, "no_tokenizer"))


if __name__ == "__main__":
    unittest.main()
