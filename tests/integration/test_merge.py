"""Tasks that run on merged weights, over HTTP: the routes, what an object says, and requests while tasks are merged and unmerged."""

import json
import threading
import time
import unittest

from tests.integration.server import Server, golden, own_files
from tests.integration.test_lifecycle import call

LORA = "bert-peft-lora"
TOLERANCE = 1e-5  # of scale: a merged weight is rounded to f32 once more


def logits(server, task, tokens, **more):
    answer = server.infer({"task": task, "input": {"tokens": tokens}, "parameters": {"logits": True}, **more})
    if answer.status != 200:
        raise AssertionError(answer.body)
    return answer.json["output"]["logits"]


def apart(a, b):
    return max(abs(x - y) for x, y in zip(a, b)) / max(map(abs, b))


class Merge(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = Server("bert", "--merged-bytes", "1MiB")
        cls.addClassCleanup(cls.s.__exit__, None, None, None)
        for task, cell in (("lora", LORA), ("other", LORA), ("prefix", "bert-ah-prefix"), ("both", "bert-ah-union-lora-bottleneck-prefix")):
            answer = cls.s.put(task, own_files(cell, task))
            assert answer.status == 201, answer.body
        cls.tokens = golden(LORA)["cases"][0]["tokens"]

    def state(self, task):
        return call(self.s, "GET", task).json["state"]

    def test_a_task_is_merged_and_unmerged_and_its_bits_come_back(self):
        before = logits(self.s, "lora", self.tokens)
        answer = call(self.s, "POST", "lora/merge")
        self.assertEqual((answer.status, answer.json["state"]), (200, "merged"), answer.body)
        self.assertEqual(answer.headers["ETag"], f'"{answer.json["version"]}"')
        self.assertEqual((answer.json["merged"]["linears"], answer.json["merged"]["left"]), (6, []))
        self.assertEqual([a["task"] for a in self.s.request("GET", "/v1/adapters?state=merged").json["adapters"]], ["lora"])
        self.assertNotIn("lora", [a["task"] for a in self.s.request("GET", "/v1/adapters?state=resident").json["adapters"]])
        m = self.s.metrics()
        self.assertEqual((m['peftd_adapters{state="merged"}'], m['peftd_adapter_bytes{state="merged"}']),
                         (1, answer.json["merged"]["bytes"]))
        merged = logits(self.s, "lora", self.tokens)
        self.assertLessEqual(apart(merged, before), TOLERANCE)
        self.assertEqual(call(self.s, "POST", "lora/merge").json["state"], "merged")
        self.assertEqual(call(self.s, "POST", "lora/unload").error[:2], (409, "busy"))
        answer = call(self.s, "POST", "lora/unmerge").json
        self.assertEqual((answer["state"], answer["merged"]), ("resident", None))
        self.assertEqual(logits(self.s, "lora", self.tokens), before)
        self.assertEqual(call(self.s, "POST", "lora/unmerge").json["state"], "resident")
        self.assertEqual(self.s.metrics()['peftd_adapter_bytes{state="merged"}'], 0)

    def test_what_cannot_be_merged_is_refused_with_the_reason(self):
        answer = call(self.s, "POST", "prefix/merge")
        self.assertEqual(answer.error, (422, "adapter_unsupported", "task"))
        self.assertIn("KV_PREFIX: ", answer.json["error"]["message"])
        self.assertEqual(self.state("prefix"), "resident")
        for action in ("merge", "unmerge"):
            self.assertEqual(call(self.s, "POST", "none/" + action).error[:2], (404, "unknown_task"))
            self.assertEqual(call(self.s, "POST", "base/" + action).error, (409, "name_reserved", "task"))
            self.assertEqual(call(self.s, "POST", "lora/" + action, {"x": 1}).error, (400, "unknown_field", "x"))

    def test_of_several_operations_the_object_says_which_stay(self):
        before = logits(self.s, "both", self.tokens)
        left = call(self.s, "POST", "both/merge").json["merged"]["left"]
        self.assertEqual([(x["operation"], x["count"]) for x in left], [("LOWRANK at a join", 3), ("KV_PREFIX", 2)])
        self.assertTrue(all(x["because"] for x in left))
        self.assertLessEqual(apart(logits(self.s, "both", self.tokens), before), TOLERANCE)
        call(self.s, "POST", "both/unmerge")

    def test_a_new_version_is_not_merged(self):
        self.s.put("moves", own_files(LORA, "moves-1"))
        self.assertEqual(call(self.s, "POST", "moves/merge").json["state"], "merged")
        self.assertEqual(self.s.put("moves", own_files(LORA, "moves-2")).json["state"], "resident")
        self.assertEqual(call(self.s, "POST", "moves/rollback").json["state"], "resident")

    def test_requests_go_on_while_tasks_are_merged_and_unmerged(self):
        want = {t: logits(self.s, t, self.tokens) for t in ("lora", "other", "prefix")}
        wrong, is_over = [], threading.Event()

        def ask():
            while not is_over.is_set():
                body = {"requests": [{"task": t, "input": {"tokens": self.tokens}, "parameters": {"logits": True}} for t in want]}
                answer = self.s.infer(body)
                for t, r in zip(want, answer.json["responses"]):
                    off = apart(r["output"]["logits"], want[t])
                    if off > (0 if t == "prefix" else TOLERANCE):
                        wrong.append((t, off))

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for t in threads:
            t.start()
        try:
            for i in range(30):
                task = ("lora", "other")[i % 2]
                self.assertEqual(call(self.s, "POST", task + "/merge").status, 200)
                self.assertEqual(call(self.s, "POST", ("other", "lora")[i % 2] + "/unmerge").status, 200)
        finally:
            is_over.set()
            for t in threads:
                t.join()
        self.assertEqual(wrong, [])
        call(self.s, "POST", "other/unmerge")


def of_last_layer(files, layers="layer"):
    """A LoRA's files without the tensors of all layers but the third."""
    data = files["adapter_model.safetensors"]
    n = int.from_bytes(data[:8], "little")
    head = {k: v for k, v in json.loads(data[8:8 + n]).items() if f".{layers}.0." not in k and f".{layers}.1." not in k}
    body = b""
    for k, v in sorted(head.items()):
        if k != "__metadata__":
            begin, end = v["data_offsets"]
            v["data_offsets"] = [len(body), len(body) + end - begin]
            body += data[8 + n + begin:8 + n + end]
    text = json.dumps(head).encode()
    return {**files, "adapter_model.safetensors": len(text).to_bytes(8, "little") + text + body}


class Tasks(unittest.TestCase):
    def test_one_input_through_many_tasks_shares_the_layers_that_they_do_not_change(self):
        tokens, tasks = golden(LORA)["cases"][0]["tokens"], ["base", "lora", "late", "base"]
        with Server("bert") as s:
            self.assertEqual(s.put("lora", own_files(LORA, "lora")).status, 201)
            self.assertEqual(s.put("late", of_last_layer(own_files(LORA, "late"))).status, 201)
            alone = [s.infer({"task": t, "input": {"tokens": tokens}}).json["output"] for t in tasks]
            self.assertEqual(s.metrics()["peftd_saved_rows_total"], 0)
            answer = s.infer({"tasks": tasks, "input": {"tokens": tokens}})
            self.assertEqual([r["output"] for r in answer.json["results"]], alone)
            # `late` has the first two of three layers from the base, which is computed twice; `lora` changes the first
            self.assertEqual(s.metrics()["peftd_saved_rows_total"], 2 * len(tokens))


    def test_tasks_of_a_decoder_share_the_layers_of_their_prompt(self):
        cell = "llama-peft-lora"
        tokens, tasks = golden(cell)["cases"][0]["tokens"], ["base", "lora", "late"]
        with Server("llama") as s:
            self.assertEqual(s.put("lora", own_files(cell, "lora")).status, 201)
            self.assertEqual(s.put("late", of_last_layer(own_files(cell, "late"), "layers")).status, 201)
            body = {"input": {"tokens": tokens}, "parameters": {"max_tokens": 8, "return_tokens": True, "ignore_eos": True, "logits": True}}
            alone = [s.infer({"task": t, **body}).json["output"] for t in tasks]
            self.assertEqual(s.metrics()["peftd_saved_rows_total"], 0)
            answer = s.infer({"tasks": tasks, **body})
            self.assertEqual([r["output"] for r in answer.json["results"]], alone)
            self.assertEqual(s.metrics()["peftd_saved_rows_total"], 2 * len(tokens))


class Budget(unittest.TestCase):
    def test_without_room_a_merge_is_refused(self):
        with Server("bert", "--merged-bytes", "1KiB") as s:
            s.put("lora", own_files(LORA, "lora"))
            answer = call(s, "POST", "lora/merge")
            self.assertEqual(answer.error, (507, "store_full", "task"))
            self.assertIn("--merged-bytes", answer.json["error"]["message"])
            self.assertEqual(call(s, "GET", "lora").json["state"], "resident")
            self.assertEqual(s.request("GET", "/v1/info").json["limits"]["merged_bytes"], 1024)

    def test_merged_tasks_are_so_in_memory_only(self):
        with Server("bert") as s:
            s.put("lora", own_files(LORA, "lora"))
            self.assertEqual(call(s, "POST", "lora/merge").json["state"], "merged")
            s.stop()
            with Server("bert", "--store", s.store) as again:
                self.assertEqual(call(again, "GET", "lora").json["state"], "stored")


class End(unittest.TestCase):
    def test_a_server_may_end_just_after_a_window(self):
        """A window is judged by a thread of the store without a request: the thread sanitizer sees if the engine that it asks ends first."""
        tokens = golden(LORA)["cases"][0]["tokens"] * 10
        for seconds in (0.05, 0.08, 0.11):  # to end between the tick that asks for it and the next one, which is 0.05 s later
            with Server("bert", "--merge-share", "60", "--merge-window", "0.1") as s:
                self.assertEqual(s.put("hot", own_files(LORA, "hot")).status, 201)
                self.assertEqual(s.infer({"task": "hot", "inputs": [{"tokens": tokens}] * 200}).status, 200)
                time.sleep(seconds)


class ByShare(unittest.TestCase):
    """--merge-share: who stays hot is merged by itself, and what somebody says by hand counts more."""

    def setUp(self):
        self.s = Server("bert", "--merge-share", "60", "--merge-window", "0.1")
        self.addCleanup(self.s.__exit__, None, None, None)
        for task in ("hot", "other"):
            self.assertEqual(self.s.put(task, own_files(LORA, task)).status, 201)
        self.tokens = golden(LORA)["cases"][0]["tokens"]

    def ask(self, task, n=200):
        """As many rows as a window wants at the least."""
        answer = self.s.infer({"task": task, "inputs": [{"tokens": self.tokens}] * n})
        self.assertEqual(answer.status, 200, answer.body)
        return answer

    def ask_until(self, task, state, of):
        """Asks until `of` is so, and fails if that takes long."""
        for _ in range(300):
            answer = self.ask(task)
            if call(self.s, "GET", of).json["state"] == state:
                return answer
        self.fail(f"{of} is not {state}: {call(self.s, 'GET', of).body}")

    def test_a_task_that_stays_hot_is_merged_and_every_answer_says_so(self):
        before = logits(self.s, "hot", self.tokens)
        answer = self.ask("hot")
        self.assertNotIn("merged", answer.json)
        self.assertIsNone(answer.headers["X-Peftd-Merged"])
        self.ask_until("hot", "merged", "hot")
        self.assertEqual(call(self.s, "GET", "hot").json["merged"]["by"], "share")
        answer = self.ask("hot")
        self.assertEqual((answer.json["merged"], answer.headers["X-Peftd-Merged"]), (True, "true"))
        self.assertLessEqual(apart(logits(self.s, "hot", self.tokens), before), TOLERANCE)
        self.assertNotIn("merged", self.ask("base").json)
        self.ask_until("base", "resident", "hot")
        self.assertEqual(logits(self.s, "hot", self.tokens), before)
        self.assertNotIn("merged", self.ask("hot").json)

    def test_an_unmerge_by_hand_wins_and_a_merge_by_hand_stays(self):
        self.assertEqual(call(self.s, "POST", "other/merge").json["merged"]["by"], "call")
        self.ask_until("hot", "merged", "hot")
        self.assertEqual(call(self.s, "POST", "hot/unmerge").json["state"], "resident")
        for _ in range(60):
            self.ask("hot")
            self.assertEqual((call(self.s, "GET", "hot").json["state"], call(self.s, "GET", "other").json["state"]), ("resident", "merged"))

    def test_off_by_default(self):
        limits = self.s.request("GET", "/v1/info").json["limits"]
        self.assertEqual((limits["merge_share"], limits["merge_window"]), (60, 0.1))
        with Server("bert") as s:
            self.assertEqual(s.request("GET", "/v1/info").json["limits"]["merge_share"], 0)


class Generation(unittest.TestCase):
    def test_a_merged_task_generates_the_same_tokens(self):
        cell = "llama-peft-lora"
        with Server("llama") as s:
            s.put("g", own_files(cell, "g"))
            body = {"task": "g", "input": {"tokens": golden(cell)["cases"][0]["tokens"]}, "parameters": {"max_tokens": 24, "return_tokens": True, "ignore_eos": True}}
            before = s.infer(body).json["output"]["tokens"]
            self.assertEqual(call(s, "POST", "g/merge").json["state"], "merged")
            self.assertEqual(s.infer(body).json["output"]["tokens"], before)


if __name__ == "__main__":
    unittest.main()
