"""When much comes at once and when somebody leaves early: no invented answer, no crash, nobody stopped for ever."""

import fcntl
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

from tests.integration.server import ENDLESS, GOLDEN, PEFTD, Server, adapter_files
from tests.support.peftd import multipart


def raw_request(method, path, body, content_type="application/json"):
    head = (f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {content_type}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n")
    return head.encode() + body


def send(server, method, path, body, content_type="application/json"):
    connection = server.raw(20)
    connection.sendall(raw_request(method, path, body, content_type))
    return connection


def answer(connection):
    """(status, JSON) of a connection's answer."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536) or b"\r\n\r\n"
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(next(line.split(b":")[1] for line in head.split(b"\r\n")
                      if line.lower().startswith(b"content-length")))
    while len(body) < length:
        body += connection.recv(65536)
    return int(head[9:12]), json.loads(body)


def endless(**more):
    return json.dumps({"task": "base", "input": {"tokens": [5, 6, 7]},
                       "parameters": {"max_tokens": ENDLESS, "ignore_eos": True, **more}}).encode()


class Encoder(unittest.TestCase):
    def test_a_job_that_was_cancelled_in_the_queue_is_no_answer(self):
        with Server("bert", "--max-queue", "40000") as s:
            s.put_cell("c", "bert-peft-lora")
            one = {"task": "c", "input": {"tokens": [5, 6, 7, 8]}, "parameters": {"logits": True}}
            right = s.infer(one).json["output"]
            n = s.request("GET", "/v1/info").json["model"]["n_positions"]
            bulk = json.dumps({"task": "c", "inputs": [{"tokens": [9] * (n - 8)}] * 1000}).encode()
            busy = [send(s, "POST", "/v1/infer", bulk) for _ in range(20)]
            s.wait_until(lambda: s.metrics()["vllm:num_requests_waiting"] > 3000)
            one["parameters"]["timeout"] = 0.02
            hurried = [send(s, "POST", "/v1/infer", json.dumps(one).encode()) for _ in range(200)]
            codes = []
            for connection in hurried:
                status, body = answer(connection)
                codes.append(status)
                if status == 200:
                    self.assertEqual(body["output"], right)
                else:
                    self.assertEqual((status, body["error"]["code"]), (504, "timeout"))
                connection.close()
            self.assertIn(504, codes)
            for connection in busy:
                connection.close()

    def test_clients_that_leave_while_the_store_has_no_time_for_them(self):
        with Server("bert") as s:
            body, content_type = multipart(adapter_files("bert-peft-lora"))
            s.put_cell("kept", "bert-peft-lora")
            with open(os.path.join(s.store, "lock"), "rb+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                gone = [send(s, "PUT", f"/v1/adapters/new{i}", body, content_type)
                        for i in range(6)]
                gone += [send(s, "DELETE", f"/v1/adapters/kept?version={'0' * 64}", b"")
                         for _ in range(4)]
                time.sleep(0.2)
                for connection in gone:
                    connection.close()
                time.sleep(0.3)  # the server notices, and answers nobody
            for i in range(6):  # the work goes on
                s.wait_until(lambda: s.request("GET", f"/v1/adapters/new{i}").status == 200)
            self.assertEqual(s.request("GET", "/v1/adapters/kept").status, 200)

    def test_large_calls_are_encoded_elsewhere_and_answer_the_same(self):
        with Server("bert") as s:
            s.put_cell("c", "bert-peft-lora")
            short = s.infer({"requests": [{"task": "c", "input": w} for w in ("a b", "c")]}).json
            n = 40000
            long = s.infer({"requests": [{"task": "c", "input": "a b" + " " * n},
                                         {"task": "c", "input": "c"},
                                         {"task": "c", "input": "c " * n},
                                         {"task": "none", "input": "c"}]})
            self.assertEqual(long.status, 200)
            for got, wanted in zip(long.json["responses"], short["responses"]):
                self.assertEqual(got["output"], wanted["output"])
            codes = [r["error"]["code"] for r in long.json["responses"][2:]]
            self.assertEqual(codes, ["input_too_long", "unknown_task"])
            body = json.dumps({"task": "c", "inputs": ["c " * n] * 50,
                               "parameters": {"truncate": True}}).encode()
            for connection in [send(s, "POST", "/v1/infer", body) for _ in range(6)]:
                connection.close()
            # A client that left before its answer was written is counted as 499, one that left after it as 200.
            done = [f'peftd_requests_total{{task="c",code="{code}"}}' for code in (200, 499)]
            before = 2 + 2
            s.wait_until(lambda: sum(s.metrics().get(name, 0) for name in done) == before + 6)

    def test_more_inputs_than_the_queue_holds(self):
        with Server("bert", "--max-queue", "4", "--flow-share", "100") as s:
            a = s.infer({"task": "base", "inputs": ["x"] * 5})
            self.assertEqual(a.error, (400, "bad_field", "inputs"))
            self.assertNotIn("Retry-After", a.headers)
            self.assertEqual(s.infer({"task": "base", "inputs": ["x"] * 4}).status, 200)

    def test_scrapes_during_a_start_that_fails(self):
        with tempfile.TemporaryDirectory() as store:
            with open(os.path.join(store, "format"), "w", encoding="utf-8") as f:
                f.write("another program's\n")
            for _ in range(3):
                self.fail_to_start(store)

    def fail_to_start(self, store):
        process = subprocess.Popen(
            [PEFTD, "serve", "--model", os.path.join(GOLDEN, "bases", "bert"), "--store", store,
             "--listen", "127.0.0.1:0"], stderr=subprocess.PIPE, bufsize=0)  # communicate() does not see what a buffer has
        port = int(process.stderr.readline().rsplit(b":", 1)[1])

        def scrape():
            while process.poll() is None:
                try:
                    with socket.create_connection(("127.0.0.1", port), 1) as c:
                        c.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                        c.recv(100)
                except OSError:
                    pass

        threads = [threading.Thread(target=scrape) for _ in range(2)]
        for thread in threads:
            thread.start()
        _, text = process.communicate(timeout=30)
        for thread in threads:
            thread.join()
        self.assertEqual(process.returncode, 1, text[-300:])
        self.assertIn(b"format", text)


class Decoder(unittest.TestCase):
    def test_everybody_is_told_at_the_end_of_the_drain(self):
        with Server("llama", "--drain-seconds", "0.5", "--context-max", "100000", "--kv-bytes",
                    "256MiB") as s:
            waiting = [send(s, "POST", "/v1/infer", endless()) for _ in range(500)]
            s.wait_until(lambda: s.metrics()["vllm:num_requests_running"] > 0)
            s.process.send_signal(signal.SIGTERM)
            for connection in waiting:
                status, body = answer(connection)
                self.assertEqual((status, body["error"]["code"]), (503, "draining"))
                connection.close()
            self.assertEqual(s.process.wait(20), 0)

    def test_what_is_asked_for_is_not_reserved(self):
        with Server("llama", "--context-max", "100000", "--kv-bytes", "106MiB") as s:
            blocks = s.metrics()['peftd_kv_blocks{state="free"}']
            self.assertGreater(blocks, 0)
            wide = [send(s, "POST", "/v1/infer", endless()) for _ in range(3)]
            s.wait_until(lambda: s.metrics()["vllm:num_requests_running"] == 3)
            a = s.infer({"task": "base", "input": {"tokens": [5]}, "parameters": {"max_tokens": 3}})
            self.assertEqual(a.status, 200)
            for connection in wide:
                connection.close()

    def test_one_clients_sequences_leave_kv_memory_to_others(self):
        with Server("llama", "--context-max", "5000", "--kv-bytes", "4MiB", "--kv-share", "60") as s:
            def used():
                return s.metrics()['peftd_kv_blocks{state="used"}']

            total = s.metrics()['peftd_kv_blocks{state="free"}']
            n = int(total) * 32 // 2  # two of them fill it
            flood = [socket.create_connection(("127.0.0.1", s.port), 60, source_address=("127.0.0.2", 0)) for _ in range(4)]
            for i, connection in enumerate(flood):
                connection.sendall(raw_request("POST", "/v1/infer", json.dumps({
                    "task": "base", "input": {"tokens": [5 + i, 6, 7]},
                    "parameters": {"max_tokens": n, "ignore_eos": True}}).encode()))
            most = []
            s.wait_until(lambda: most.append(used()) or s.metrics()["peftd_preemptions_total"])  # they are at their limit
            most += [used() for _ in range(50)]
            self.assertLessEqual(max(most), -(-total * 60 // 100))
            self.assertEqual(s.infer({"task": "base", "input": {"tokens": [5]}, "parameters": {"max_tokens": 3}}).status, 200)
            for connection in flood:
                status, body = answer(connection)
                self.assertEqual((status, body["usage"]["completion_tokens"]), (200, n))
                connection.close()

    def test_log_probabilities_take_memory_as_tokens_come(self):
        with Server("llama", "--context-max", "100000", "--kv-bytes", "256MiB",
                    "--max-result-numbers", "1000000000") as s:
            before = s.metrics()["process_resident_memory_bytes"]
            a = s.infer({"task": "base", "inputs": [{"tokens": [5, 6]}] * 1000,
                         "parameters": {"max_tokens": 20000, "ignore_eos": True, "logprobs": 20,
                                        "timeout": 0.5}})
            self.assertEqual(a.status, 504)
            self.assertLess(s.metrics()["process_resident_memory_bytes"] - before, 512 << 20)

    def test_logits_of_many_prompts(self):
        with Server("llama", "--max-items", "100000", "--max-queue", "100000") as s:
            vocabulary = s.request("GET", "/v1/info").json["model"]["n_vocab"]
            n = (16 << 20) // vocabulary + 1
            a = s.infer({"task": "base", "inputs": [{"tokens": [5]}] * n,
                         "parameters": {"logits": True, "max_tokens": 1}})
            self.assertEqual(a.error, (400, "bad_field", "parameters.logits"))

    def test_a_temperature_near_zero_is_greedy(self):
        with Server("llama") as s:
            tokens = [s.infer({"task": "base", "input": {"tokens": [5, 6, 7]},
                               "parameters": {"max_tokens": 8, "ignore_eos": True,
                                              "temperature": t, "return_tokens": True}}
                              ).json["output"]["tokens"] for t in (0, 1e-40, 1e-30)]
            self.assertEqual(tokens[0], tokens[1])
            self.assertEqual(tokens[0], tokens[2])

    def test_metrics_tell_who_ran_out_of_time_and_who_left(self):
        with Server("llama", "--context-max", "100000", "--kv-bytes", "256MiB") as s:
            body = json.loads(endless(timeout=0.3))
            body["stream"] = True
            a = s.infer(body)
            self.assertEqual(a.status, 200)
            self.assertIn(b'"code":"timeout"', a.body)
            self.assertTrue(a.body.endswith(b"data: [DONE]\n\n"))
            s.wait_until(lambda: s.metrics().get('peftd_requests_total{task="base",code="504"}') == 1)
            connection = send(s, "POST", "/v1/infer", endless())
            s.wait_until(lambda: s.metrics()["vllm:num_requests_running"] == 1)
            connection.close()
            s.wait_until(lambda: s.metrics().get('peftd_requests_total{task="base",code="499"}') == 1)
            self.assertNotIn('peftd_requests_total{task="base",code="200"}', s.metrics())

    def test_a_task_may_set_its_own_timeout(self):
        with Server("llama", "--context-max", "100000", "--kv-bytes", "256MiB") as s:
            files = adapter_files("llama-peft-lora")
            settings = json.loads(files.get("task.json", b"{}"))
            settings["parameters"] = {"timeout": 0.2, "max_tokens": ENDLESS, "ignore_eos": True}
            files["task.json"] = json.dumps(settings).encode()
            self.assertEqual(s.put("slow", files).status, 201)
            body = {"task": "slow", "input": {"tokens": [5]}}
            self.assertEqual(s.infer(body).error[:2], (504, "timeout"))
            body["parameters"] = {"timeout": 20, "max_tokens": 3}
            self.assertEqual(s.infer(body).status, 200)


if __name__ == "__main__":
    unittest.main()
