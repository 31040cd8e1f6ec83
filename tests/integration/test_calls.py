"""What one call may cost the server and its other clients: time, memory, and answers that are not its own."""

import json
import math
import signal
import struct
import time
import unittest

from tests.integration.server import Server, adapter_files, own_files
from tests.integration.test_pressure import answer, send

LONG = "a b c d " * 980000  # just below the largest body


def overflowing(files):
    """The same adapter with numbers that a model cannot compute with."""
    data = files["adapter_model.safetensors"]
    n = 8 + struct.unpack("<Q", data[:8])[0]
    floats = struct.unpack(f"<{(len(data) - n) // 4}f", data[n:])
    big = struct.pack(f"<{len(floats)}f", *(x * 1e36 for x in floats))
    return {**files, "adapter_model.safetensors": data[:n] + big}


def safetensors(shapes):
    """A file of tensors that are all 0.5."""
    header, at = {}, 0
    for name, shape in shapes.items():
        n = 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + struct.pack("<f", 0.5) * (at // 4)


def with_task(files, **settings):
    return {**files, "task.json": json.dumps({**json.loads(files.get("task.json", b"{}")),
                                              **settings}).encode()}


class Texts(unittest.TestCase):
    """Encoding: once for all that encode equally, bounded in time, and nobody else waits."""

    def healthy(self, s):
        start = time.monotonic()
        self.assertEqual(s.request("GET", "/healthz").status, 200)
        self.assertLess(time.monotonic() - start, 1)

    def test_one_text_through_many_tasks_is_encoded_once(self):
        with Server("bert") as s:
            s.put_cell("c", "bert-peft-lora")
            start = time.monotonic()
            a = s.infer({"tasks": ["c"] * 1020, "input": LONG,
                         "parameters": {"truncate": True, "timeout": 30}})
            self.assertEqual(a.status, 200, a.body[:300])
            self.assertLess(time.monotonic() - start, 30)  # one alone takes a second
            one = s.infer({"task": "c", "input": "a b c d " * 100,
                           "parameters": {"truncate": True}}).json
            for r in a.json["results"]:
                self.assertEqual(r["output"], one["output"])

    def test_tasks_answer_as_each_of_them_alone(self):
        with Server("bert") as s:
            lora = adapter_files("bert-peft-lora")
            s.put("plain", lora)
            s.put("says", with_task(lora, prompt="It says: {input}!"))
            s.put("same", with_task({**lora, "README.md": b"x"}, prompt="It says: {input}!"))
            s.put("cut", with_task(lora, parameters={"truncate": True}))
            s.put_cell("tags", "bert-ah-head-tagging")
            s.put_cell("shorter", "bert-peft-prefix")
            names = ["plain", "says", "tags", "same", "shorter", "cut", "base", "plain", "tags"]
            inputs = ["one text", {"text": "two", "text_pair": "texts"}, {"tokens": [5, 6, 7]}]
            both = s.infer({"tasks": names, "inputs": inputs}).json["results"]
            for name, r in zip(names, both):
                alone = s.infer({"task": name, "inputs": inputs}).json
                self.assertEqual({**r, "id": 0}, {**alone, "id": 0})
            a = s.infer({"tasks": ["cut", "plain"], "input": "word " * 500})
            self.assertEqual(a.error, (422, "input_too_long", "input"))

    def test_a_call_that_is_being_encoded_ends_at_its_timeout(self):
        with Server("bert") as s:
            lora = adapter_files("bert-peft-lora")
            names = [f"p{i}" for i in range(40)]
            for i, name in enumerate(names):  # nothing to share
                self.assertEqual(s.put(name, with_task(lora, prompt=f"{i} {{input}}")).status, 201)
            body = {"tasks": names, "input": LONG, "parameters": {"truncate": True, "timeout": 2}}
            start = time.monotonic()
            busy = [send(s, "POST", "/v1/infer", json.dumps(body).encode()) for _ in range(2)]
            time.sleep(0.5)
            body["parameters"]["timeout"] = 1  # it waits for a thread, and not longer than that
            waiting = send(s, "POST", "/v1/infer", json.dumps(body).encode())
            self.healthy(s)
            self.assertEqual(s.put("new", own_files("bert-peft-lora", "new")).status, 201)
            for connection in (waiting, *busy):
                status, reply = answer(connection)
                self.assertEqual((status, reply["error"]["code"]), (504, "timeout"))
                connection.close()
            self.assertLess(time.monotonic() - start, 12)
            # A client that leaves, and the end of the server, stop it as well.
            body["parameters"] = {"truncate": True}
            send(s, "POST", "/v1/infer", json.dumps(body).encode()).close()
            s.wait_until(lambda: s.metrics().get('peftd_requests_total{task="p0",code="499"}'))
            self.assertEqual(s.infer({"task": "p0", "input": "x " * 40000,
                                      "parameters": {"truncate": True}}).status, 200)

    def test_the_end_of_the_drain_is_the_end_of_an_encode(self):
        with Server("bert", "--drain-seconds", "0.5") as s:
            lora = adapter_files("bert-peft-lora")
            names = [f"p{i}" for i in range(100)]
            for i, name in enumerate(names):
                s.put(name, with_task(lora, prompt=f"{i} {{input}}"))
            body = json.dumps({"tasks": names, "input": LONG[:1600000], "parameters": {"truncate": True}})
            busy = [send(s, "POST", "/v1/infer", body.encode()) for _ in range(3)]
            time.sleep(0.5)
            s.process.send_signal(signal.SIGTERM)
            for connection in busy:
                status, reply = answer(connection)
                self.assertEqual((status, reply["error"]["code"]), (503, "draining"))
                connection.close()
            self.assertEqual(s.process.wait(20), 0)

    def test_many_tasks_of_a_small_body_keep_no_http_thread(self):
        with Server("bert", "--http-threads", "2") as s:
            lora = adapter_files("bert-peft-lora")
            names = [f"p{i}" for i in range(200)]
            for i, name in enumerate(names):
                s.put(name, with_task(lora, prompt=f"{i} {{input}}"))
            body = json.dumps({"tasks": names, "input": "a b c d " * 7500,
                               "parameters": {"truncate": True, "timeout": 5}}).encode()
            self.assertLess(len(body), 64 << 10)
            busy = [send(s, "POST", "/v1/infer", body) for _ in range(4)]
            for _ in range(5):
                time.sleep(0.1)
                self.healthy(s)
            for connection in busy:
                connection.close()


class Elements(unittest.TestCase):
    """What is wrong with one element is its own affair."""

    @classmethod
    def setUpClass(cls):
        cls.s = Server("bert")
        files = adapter_files("bert-peft-lora")
        assert cls.s.put("good", files).status == 201
        assert cls.s.put("bad", overflowing(files)).status == 201

    @classmethod
    def tearDownClass(cls):
        cls.s.__exit__(None, None, None)

    def test_an_output_that_is_not_finite_fails_its_element_alone(self):
        good, bad = {"task": "good", "input": "x"}, {"task": "bad", "input": "x"}
        alone = self.s.infer(good).json["output"]
        a = self.s.infer({"requests": [good, bad, {**bad, "inputs": ["y"], "input": None}, good]})
        self.assertEqual(a.status, 200)
        r = a.json["responses"]
        self.assertEqual([r[0]["output"], r[3]["output"]], [alone] * 2)
        for i, path in ((1, "requests[1].input"), (2, "requests[2].inputs[0]")):
            self.assertEqual(list(r[i]), ["error"])
            self.assertEqual((r[i]["error"]["code"], r[i]["error"]["param"]), ("internal", path))
            self.assertIn("'bad'", r[i]["error"]["message"])
        self.assertEqual(self.s.metrics()['peftd_requests_total{task="bad",code="500"}'], 2)

    def test_otherwise_the_call_fails_and_says_where(self):
        a = self.s.infer({"task": "bad", "input": "x"})
        self.assertEqual(a.error, (500, "internal", "input"))
        self.assertIsNone(a.headers["X-Peftd-Version"])
        self.assertEqual(self.s.infer({"task": "bad", "inputs": ["x", "y"]}).error,
                         (500, "internal", "inputs[0]"))
        a = self.s.infer({"tasks": ["good", "bad"], "inputs": ["x"]})
        self.assertEqual(a.error, (500, "internal", "inputs[0]"))
        self.assertIn("'bad'", a.json["error"]["message"])

    def test_a_message_begins_with_the_place_that_param_names(self):
        ids = {"tokens": [1, 99999]}
        for body, param in (
                ({"task": "good", "input": ids}, "input.tokens"),
                ({"task": "good", "inputs": ["x", ids]}, "inputs[1].tokens"),
                ({"tasks": ["base", "good"], "inputs": ["x", ids]}, "inputs[1].tokens"),
                ({"task": "good", "inputs": ["x", {"tokens": [1], "token_types": [9]}]},
                 "inputs[1].token_types"),
                ({"task": "good", "inputs": ["x", "y", {"tokens": []}]}, "inputs[2]"),
                ({"task": "good", "inputs": ["x", "word " * 500]}, "inputs[1]"),
                ({"task": "good", "input": {"messages": [{"role": "user", "content": "x"}]}},
                 "input"),
                ({"task": "good", "input": "x", "stream": True}, "stream")):
            for prefix, call in (("", body), ("requests[1].", {"requests": [
                    {"task": "good", "input": "x"}, body]})):
                if prefix and param == "stream":
                    continue
                a = self.s.infer(call).json
                e = a["error"] if not prefix else a["responses"][1]["error"]
                self.assertEqual(e["param"], prefix + param)
                self.assertTrue(e["message"].startswith(prefix + param + ": "), e["message"])
                self.assertEqual(e["message"].count(param + ":"), 1, e["message"])


class Sizes(unittest.TestCase):
    def test_a_prompt_multiplies_what_is_sent_only_so_often(self):
        with Server("bert") as s:
            lora = adapter_files("bert-peft-lora")
            a = s.put("bomb", with_task(lora, prompt="{input}" * 149000))
            self.assertEqual(a.error, (422, "adapter_invalid", "prompt"))
            self.assertEqual(s.put("bomb", with_task(lora, prompt="{input}" * 16)).status, 201)
            before = s.metrics()["process_resident_memory_bytes"]
            for truncate in (False, True):
                a = s.infer({"task": "bomb", "inputs": ["x", "x " * 1000000],
                             "parameters": {"truncate": truncate}})
                self.assertEqual(a.error, (422, "input_too_long", "inputs[1]"))
                self.assertIn("16 times", a.json["error"]["message"])
            self.assertLess(s.metrics()["process_resident_memory_bytes"] - before, 64 << 20)

    def refused(self, answer_, n, limit, param):
        self.assertEqual(answer_.error, (400, "bad_field", param))
        self.assertIn(f" {n} numbers, at most {limit} ", answer_.json["error"]["message"])

    def test_the_results_of_a_call_are_bounded_for_every_kind(self):
        with Server("bert", "--max-result-numbers", "80") as s:
            s.put_cell("c", "bert-peft-lora")
            s.put_cell("tags", "bert-ah-head-tagging")
            labels = len(s.infer({"task": "c", "input": "x"}).json["output"]["scores"])
            fit = 80 // labels
            self.assertEqual(s.infer({"task": "c", "inputs": ["x"] * fit}).status, 200)
            self.refused(s.infer({"task": "c", "inputs": ["x"] * (fit + 1)}),
                         labels * (fit + 1), 80, "inputs")
            self.assertEqual(s.infer({"task": "base", "inputs": ["x"] * 2}).status, 200)
            self.refused(s.infer({"task": "base", "inputs": ["x"] * 3}), 120, 80, "inputs")
            self.refused(s.infer({"tasks": ["base"] * 3, "input": "x"}), 120, 80, "input")
            a = s.infer({"task": "tags", "input": {"tokens": [5, 6]},
                         "parameters": {"logits": True}})
            columns = len(a.json["output"]["logits"][0])
            n = 80 // columns + 1
            self.refused(s.infer({"task": "tags", "input": {"tokens": [5] * n}}), n * columns, 80,
                         "input")
            self.assertEqual(s.infer({"task": "tags", "input": {"tokens": [5] * (n - 1)}}).status,
                             200)
            r = s.infer({"requests": [{"task": "base", "input": "x"}] * 3}).json["responses"]
            self.assertEqual(["error" in one for one in r], [False, False, True])
            self.assertEqual(r[2]["error"]["param"], "requests[2].input")

    def test_names_of_labels_count_as_they_are_repeated(self):
        with Server("bert") as s:
            lora = adapter_files("bert-peft-lora")
            labels = len(s.put("c", lora).json and s.infer({"task": "c", "input": "x"}).json[
                "output"]["scores"])
            names = [str(i) + "x" * 300000 for i in range(labels)]
            self.assertEqual(s.put("wide", with_task(lora, labels=names)).status, 201)
            n = labels * (1 + 300001 // 16)
            self.assertEqual(s.infer({"task": "wide", "inputs": ["x"] * 3}).status, 200)
            self.refused(s.infer({"task": "wide", "inputs": ["x"] * 1024}), 1024 * n, 16 << 20,
                         "inputs")

    def test_the_results_of_a_generation_are_bounded(self):
        with Server("llama", "--max-result-numbers", "1000") as s:
            vocabulary = s.request("GET", "/v1/info").json["model"]["n_vocab"]
            call = {"task": "base", "input": {"tokens": [5]}}
            n = 1000 // vocabulary + 1
            a = s.infer({**call, "parameters": {"logits": True, "max_tokens": 1, "n": n}})
            self.refused(a, n * vocabulary, 1000, "parameters.logits")
            a = s.infer({**call, "parameters": {"logprobs": 4, "max_tokens": 101}})
            self.refused(a, 1010, 1000, "parameters.logprobs")
            a = s.infer({**call, "parameters": {"logprobs": 4, "max_tokens": 100}})
            self.assertEqual(a.status, 200)

    def test_a_tagger_with_many_labels_takes_no_memory_without_bound(self):
        n_labels = 4000
        linear = "base_model.model.encoder.layer.1.output.dense"
        files = {"adapter_config.json": json.dumps({"peft_type": "LORA", "task_type": "TOKEN_CLS",
                                                    "r": 2, "lora_alpha": 2}).encode(),
                 "adapter_model.safetensors": safetensors({
                     "base_model.model.classifier.weight": (n_labels, 40),
                     "base_model.model.classifier.bias": (n_labels,),
                     linear + ".lora_A.weight": (2, 90), linear + ".lora_B.weight": (40, 2)})}
        with Server("bert") as s:
            self.assertEqual(s.put("tags", files).status, 201)
            before = s.metrics()["process_resident_memory_bytes"]
            a = s.infer({"task": "tags", "inputs": [{"tokens": [5] * 64}] * 1024})
            self.refused(a, 1024 * 64 * n_labels, 16 << 20, "inputs")
            self.assertLess(s.metrics()["process_resident_memory_bytes"] - before, 64 << 20)
            a = s.infer({"task": "tags", "inputs": [{"tokens": [5] * 64}] * 4})
            self.assertEqual(a.status, 200)


class Adapters(unittest.TestCase):
    def test_files_without_a_head_come_with_a_warning(self):
        with Server("bert") as s:
            headless = adapter_files("bert-ah-embed")
            a = s.put("e", headless)
            self.assertEqual((a.status, a.json["kind"]), (201, "embedding"), a.body)
            self.assertEqual(len(a.json["warnings"]), 1)
            self.assertIn("head", a.json["warnings"][0])
            self.assertEqual(s.request("GET", "/v1/adapters/e").json["warnings"],
                             a.json["warnings"])
            a = s.put("said", with_task(headless, head="embedding"))
            self.assertEqual((a.json["kind"], a.json["warnings"]), ("embedding", []))
            self.assertEqual(s.put_cell("c", "bert-peft-lora").json["warnings"], [])

    def test_adapters_of_every_state_can_be_listed(self):
        with Server("bert") as s:
            s.put_cell("c", "bert-peft-lora")
            for state, n in (("resident", 1), ("stored", 0), ("merged", 0)):
                a = s.request("GET", f"/v1/adapters?state={state}")
                self.assertEqual((a.status, len(a.json["adapters"]), a.json["next"]),
                                 (200, n, None))


if __name__ == "__main__":
    unittest.main()
