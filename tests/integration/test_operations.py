"""Health, metrics, routes, start and stop, over HTTP against the real server."""

import json
import os
import signal
import subprocess
import tempfile
import time
import unittest

from tests.integration.server import ENDLESS, GOLDEN, PEFTD, Server, adapter_files


class Operations(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = Server("bert")

    @classmethod
    def tearDownClass(cls):
        cls.s.__exit__(None, None, None)

    def test_health_and_readiness(self):
        self.assertEqual(self.s.request("GET", "/healthz").json, {"status": "ok"})
        self.assertEqual(self.s.request("GET", "/readyz").json, {"status": "ready"})

    def test_head_is_get_without_a_body(self):
        a = self.s.request("HEAD", "/healthz")
        self.assertEqual((a.status, a.body), (200, b""))
        self.assertEqual(a.headers["Content-Length"], "15")

    def test_unknown_route(self):
        for path in ("/", "/v1", "/v1/infer/", "/v1/adapters/a/b", "/v1/adapters/", "/healthz/x"):
            self.assertEqual(self.s.request("GET", path).error, (404, "unknown_route", None), path)

    def test_wrong_method_names_the_right_ones(self):
        for method, path, allow in (("GET", "/v1/infer", "POST"),
                                    ("POST", "/healthz", "GET, HEAD"),
                                    ("POST", "/v1/adapters/x", "GET, HEAD, PUT, DELETE")):
            a = self.s.request(method, path)
            self.assertEqual(a.error, (405, "method_not_allowed", None))
            self.assertEqual(a.headers["Allow"], allow)

    def test_unknown_query_parameter(self):
        self.assertEqual(self.s.request("GET", "/v1/adapters?limt=3").error,
                         (400, "unknown_field", "limt"))

    def test_a_body_where_there_must_be_none(self):
        for method, path in (("GET", "/healthz"), ("DELETE", "/v1/adapters/x")):
            a = self.s.request(method, path, b"x")
            self.assertEqual(a.error[:2], (413, "body_too_large"))
            self.assertEqual(a.json["error"]["message"], "this route takes no body")

    def test_identity_is_no_encoding(self):
        body = json.dumps({"task": "base", "input": "x"})
        for encoding, status in (("identity", 200), ("Identity", 200), ("gzip", 415)):
            a = self.s.request("POST", "/v1/infer", body, {"Content-Encoding": encoding})
            self.assertEqual(a.status, status, encoding)

    def test_a_head_that_can_be_read_in_two_ways_is_refused(self):
        hidden = b"GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n"
        for head, param in ((b"", b"Host"), (b"Host: x\r\nHost: y", b"Host"),
                            (b"Host: x\r\nContent-Length: 2\r\nContent-Length: 3", b"Content-Length"),
                            (b"Host: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked",
                             b"Transfer-Encoding"),
                            (b"Host: x\r\nTransfer-Encoding: gzip, chunked", b"Transfer-Encoding"),
                            (b"Host: x\r\nContent-Length : 5", None)):
            head = b"POST /v1/infer HTTP/1.1\r\n" + head + (b"\r\n" if head else b"")
            answer = self.s.talk(head + b"\r\n0\r\n\r\n" + hidden)
            self.assertEqual(answer.count(b"HTTP/1.1 "), 1, answer)  # then it is closed
            self.assertTrue(answer.startswith(b"HTTP/1.1 400 "), answer)
            self.assertIn(b"\r\nX-Request-Id: req-", answer)
            self.assertIn(b'"param":"%s"' % param if param else b'"param":null', answer)
        self.assertIn(b"200", self.s.talk(b"GET /healthz HTTP/1.0\r\n\r\n"))

    def test_request_id_is_echoed_if_valid(self):
        a = self.s.request("GET", "/healthz", headers={"X-Request-Id": "my.id_1-2"})
        self.assertEqual(a.headers["X-Request-Id"], "my.id_1-2")
        for bad in ("a b", "x" * 129, "a/b", "\"", ""):
            a = self.s.request("GET", "/healthz", headers={"X-Request-Id": bad})
            self.assertRegex(a.headers["X-Request-Id"], r"^req-[0-9a-f]{16}$")

    def test_info_names_no_path(self):
        a = self.s.request("GET", "/v1/info")
        self.assertEqual(a.json["model"]["arch"], "bert")
        self.assertEqual(a.json["limits"]["max_items"], 1024)
        self.assertNotIn(self.s.dir.name, a.body.decode())
        self.assertNotIn(GOLDEN, a.body.decode())

    def test_keys_and_values_have_16_bits_where_answers_are_rounded_anyway(self):
        body = {"task": "base", "input": {"tokens": list(range(3, 40))}, "parameters": {"max_tokens": 1, "logits": True}}
        logits = {}
        for args, kept in (((), "f32"), (("--precision", "int8"), "16"), (("--precision", "bf16"), "16"),
                           (("--precision", "int8", "--kv-type", "f32"), "f32"), (("--kv-type", "bf16"), "bf16")):
            with Server("llama", *args) as s:
                info = s.request("GET", "/v1/info").json
                if kept == "16":  # of two kinds, by what the CPU multiplies
                    kept = "bf16" if info["cpu_level"].endswith(("bf16", "amx")) else "f16"
                self.assertEqual(info["limits"]["kv_type"], kept, args)
                self.assertEqual("event=bf16_weights_only" in s.log_text(), "bf16" in args[1:2] and kept != "bf16")
                logits[args] = s.infer(body).json["output"]["logits"]
        self.assertNotEqual(logits["--precision", "int8"], logits["--precision", "int8", "--kv-type", "f32"])

    def test_metrics_have_every_name_of_the_contract(self):
        self.s.infer({"task": "base", "input": "x"})
        text = self.s.request("GET", "/metrics").body.decode()
        for name in """peftd_requests_total peftd_request_seconds peftd_queue_seconds
                peftd_time_to_first_token_seconds peftd_inter_token_seconds peftd_tokens_total
                peftd_step_seconds peftd_step_rows peftd_step_tasks peftd_saved_rows_total peftd_queue_depth
                peftd_adapters peftd_adapter_bytes peftd_adapter_load_seconds
                peftd_adapter_loads_total peftd_adapter_evictions_total peftd_kv_blocks
                peftd_preemptions_total peftd_build_info process_cpu_seconds_total
                process_resident_memory_bytes process_open_fds process_start_time_seconds vllm:num_requests_running
                vllm:num_requests_waiting vllm:lora_requests_info""".split():
            self.assertRegex(text, rf"(?m)^# TYPE {name} \w+$")
            self.assertRegex(text, rf"(?m)^{name}(_bucket|_count)?[{{ ]")

    def test_metrics_are_well_formed(self):
        for line in self.s.request("GET", "/metrics").body.decode().splitlines():
            if line.startswith("#"):
                self.assertRegex(line, r"^# (HELP|TYPE) [a-z_:]+ \S")
            else:
                self.assertRegex(line, r'^[a-z_:]+(\{[a-z_]+="[^"]*"(,[a-z_]+="[^"]*")*\})? '
                                       r'-?[0-9.e+-]+$')

    def test_names_that_clients_make_up_get_no_series(self):
        self.s.infer({"task": "made-up-name", "input": "x"})
        text = self.s.request("GET", "/metrics").body.decode()
        self.assertNotIn("made-up-name", text)
        self.assertRegex(text, r'peftd_requests_total\{task="other",code="404"\} \d')

    def test_keep_alive_serves_many_requests(self):
        conn = self.s.connect()
        for path in ("/healthz", "/nope", "/readyz", "/v1/info", "/healthz"):
            conn.request("GET", path)
            conn.getresponse().read()
        conn.request("POST", "/nope", b"x" * 1000)
        self.assertEqual(conn.getresponse().read()[:9], b'{"error":')
        conn.request("GET", "/healthz")
        self.assertEqual(conn.getresponse().status, 200)
        conn.close()

    def test_garbage_instead_of_http(self):
        for garbage in (b"\x00\x01\x02\r\n\r\n", b"GET\r\n\r\n", b"A" * 200000,
                        b"POST /v1/infer HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
                        b"POST /v1/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                        b"zz\r\n"):
            with self.s.raw(5) as c:
                try:
                    c.sendall(garbage)
                    c.shutdown(1)
                    while c.recv(65536):
                        pass
                except OSError:
                    pass
        self.assertEqual(self.s.request("GET", "/healthz").status, 200)


class Life(unittest.TestCase):
    def test_sigterm_finishes_what_runs_and_exits_0(self):
        with Server("llama", "--context-max", "20000", "--kv-bytes", "1GiB") as s:
            n = s.tokens_in(3)
            conn = s.connect()
            conn.request("POST", "/v1/infer", json.dumps(
                {"task": "base", "input": "x",
                 "parameters": {"max_tokens": n, "ignore_eos": True}}),
                {"Content-Type": "application/json"})
            s.wait_until(lambda: s.metrics()["vllm:num_requests_running"] == 1)
            s.process.send_signal(signal.SIGTERM)
            s.wait_until(lambda: s.request("GET", "/readyz").status == 503)
            self.assertEqual(s.request("GET", "/readyz").json, {"status": "draining"})
            self.assertEqual(s.request("GET", "/healthz").status, 200)
            a = s.infer({"task": "base", "input": "y"})
            self.assertEqual(a.error, (503, "draining", None))
            self.assertEqual(a.headers["Retry-After"], "1")
            r = conn.getresponse()
            self.assertEqual(r.status, 200)
            self.assertEqual(json.loads(r.read())["usage"]["completion_tokens"], n)
            conn.close()
            self.assertEqual(s.process.wait(20), 0)

    def test_the_drain_ends_at_its_deadline(self):
        with Server("llama", "--context-max", "100000", "--kv-bytes", "1GiB", "--drain-seconds",
                    "0.3") as s:
            conn = s.connect()
            conn.request("POST", "/v1/infer", json.dumps(
                {"task": "base", "input": "x",
                 "parameters": {"max_tokens": ENDLESS, "ignore_eos": True}}),
                {"Content-Type": "application/json"})
            s.wait_until(lambda: s.metrics()["vllm:num_requests_running"] == 1)
            begin = time.monotonic()
            s.process.send_signal(signal.SIGTERM)
            r = conn.getresponse()
            self.assertEqual(r.status, 503)
            self.assertEqual(json.loads(r.read())["error"]["code"], "draining")
            conn.close()
            self.assertEqual(s.process.wait(20), 0)
            self.assertLess(time.monotonic() - begin, 5)

    def test_a_second_signal_ends_at_once(self):
        s = Server("llama", "--context-max", "100000")
        conn = s.connect()
        conn.request("POST", "/v1/infer", json.dumps(
            {"task": "base", "input": "x",
             "parameters": {"max_tokens": ENDLESS, "ignore_eos": True}}),
            {"Content-Type": "application/json"})
        s.wait_until(lambda: s.metrics()["vllm:num_requests_running"] == 1)
        s.process.send_signal(signal.SIGTERM)
        s.wait_until(lambda: "event=drain" in s.log_text())
        self.assertEqual(s.stop(signal.SIGINT, 10), 1)
        conn.close()
        s.close()

    def test_sighup_reads_the_store_again(self):
        with Server("bert") as s:
            s.process.send_signal(signal.SIGHUP)
            s.wait_for_log(rb"event=rescan")
            self.assertEqual(s.request("GET", "/readyz").status, 200)

    def test_a_model_that_is_not_there_is_an_error(self):
        p = subprocess.run([PEFTD, "serve", "--model", "/nonexistent", "--listen", "127.0.0.1:0"],
                           capture_output=True, text=True, timeout=60, check=False,
                           cwd="/tmp")
        self.assertEqual(p.returncode, 1)
        self.assertIn("peftd serve: ", p.stderr)

    def test_an_address_in_use_is_an_error(self):
        with Server("bert") as s:
            p = subprocess.run([PEFTD, "serve", "--model", os.path.join(GOLDEN, "bases", "bert"),
                                "--listen", f"127.0.0.1:{s.port}"],
                               capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(p.returncode, 1)
        self.assertIn("in use", p.stderr)


class CommandLine(unittest.TestCase):
    def run_peftd(self, *args, env=None):
        return subprocess.run([PEFTD, *args], capture_output=True, text=True, timeout=60,
                              check=False, env={**os.environ, **(env or {})})

    def test_version(self):
        p = self.run_peftd("version")
        self.assertEqual(p.returncode, 0)
        self.assertRegex(p.stdout, r"(?s)peftd \d.*commit .*cpu level .*blas OpenBLAS")

    def test_help_lists_every_setting(self):
        out = self.run_peftd("--help").stdout
        for flag in ("--model", "--store", "--listen", "--max-batch-tokens", "--drain-seconds"):
            self.assertIn(flag, out)

    def test_help_is_a_command_or_a_flag_and_else_a_value(self):
        for args in (["help"], ["-h"], ["serve", "--help"], ["serve", "--store", "x", "-h"]):
            self.assertIn("--max-queue", self.run_peftd(*args).stdout, args)
        p = self.run_peftd("serve", "--model", "/nonexistent", "--store", "help")
        self.assertEqual((p.returncode, p.stdout), (1, ""))

    def test_a_port_is_a_number_to_65535(self):
        for port in ("65536", "99999", "131072", "http", "", "+80", " 80", "080000", "8080x", "-1"):
            p = self.run_peftd("serve", "--model", "/nonexistent", "--listen", "127.0.0.1:" + port)
            self.assertEqual(p.returncode, 2)
            self.assertIn("the port is not a number from 0 to 65535", p.stderr, port)

    def test_unknown_settings_are_errors(self):
        for args, env in ((["serve", "--modle", "x"], {}), (["serve"], {"PEFTD_MODLE": "x"}),
                          (["serve", "--max-queue", "many"], {}), (["bake"], {})):
            p = self.run_peftd(*args, env=env)
            self.assertEqual(p.returncode, 2, args)
            self.assertNotEqual(p.stderr, "")

    def test_check_prints_kind_program_and_bytes(self):
        base = os.path.join(GOLDEN, "bases", "bert")
        cell = os.path.join(GOLDEN, "cells", "bert-peft-lora", "adapter")
        p = self.run_peftd("check", "--model", base, cell)
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertRegex(p.stdout, r"kind classification, method lora, \d+ bytes")
        self.assertIn("LOWRANK", p.stdout)
        self.assertIn("HEAD", p.stdout)

    def test_check_refuses_what_requests_could_not_use(self):
        base = os.path.join(GOLDEN, "bases", "bert")
        with tempfile.TemporaryDirectory() as folder:
            for name, data in adapter_files("bert-peft-lora").items():
                with open(os.path.join(folder, name), "wb") as f:
                    f.write(data)
            with open(os.path.join(folder, ".gitattributes"), "wb") as f:
                f.write(b"x")
            with open(os.path.join(folder, "my notes.txt"), "wb") as f:
                f.write(b"x")
            p = self.run_peftd("check", "--model", base, folder)
            self.assertEqual(p.returncode, 0)
            self.assertRegex(p.stdout, r'ignored: \[.*"my notes.txt"')
            with open(os.path.join(folder, "task.json"), "w", encoding="utf-8") as f:
                f.write('{"parameters": {"top_p": 5}}')
            p = self.run_peftd("check", "--model", base, folder)
        self.assertEqual(p.returncode, 1)
        self.assertRegex(p.stderr, r"adapter_invalid: task\.json: parameters\.top_p: ")

    def test_check_fails_if_one_does_not_fit(self):
        base = os.path.join(GOLDEN, "bases", "bert")
        good = os.path.join(GOLDEN, "cells", "bert-peft-lora", "adapter")
        bad = os.path.join(GOLDEN, "cells", "llama-peft-lora", "adapter")
        p = self.run_peftd("check", "--model", base, good, bad)
        self.assertEqual(p.returncode, 1)
        self.assertRegex(p.stderr, r"adapter_\w+: \S")
        self.assertIn("kind classification", p.stdout)


if __name__ == "__main__":
    unittest.main()
