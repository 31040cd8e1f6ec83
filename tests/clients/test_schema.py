"""schemathesis over /openapi.json: whatever it sends, no answer is a 5xx, of a status or of a form that is not described; with keys
and without. And promtool over /metrics.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

from tests.integration.server import Server
from tests.integration.test_auth import Keys

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
EXAMPLES = os.environ.get("EXAMPLES", "10")


class Schema(unittest.TestCase):
    def run_over(self, base, cell, *args, key=None, put_with=None):
        """`key` is the header that is sent; `put_with` the one that uploads the task."""
        if importlib.util.find_spec("schemathesis") is None:
            self.skipTest("schemathesis is not installed: make clients")
        with Server(base, "--request-timeout", "20", "--max-items", "8", *args) as s, tempfile.TemporaryDirectory() as notes:
            self.assertEqual(s.put_cell("sst2", cell, headers=put_with).status, 201)
            header = ["-H", f"Authorization: {key['Authorization']}"] if key else []
            program = os.path.join(os.path.dirname(sys.executable), "schemathesis")
            done = subprocess.run([program, "run", f"http://127.0.0.1:{s.port}/openapi.json", "--checks", CHECKS, "--max-examples", EXAMPLES, *header,
                                   "--seed", "1", "--no-color", "--suppress-health-check", "all", "--request-timeout", "60",
                                   "--phases", "fuzzing,stateful"], capture_output=True, text=True, timeout=600, check=False, cwd=notes)
            self.assertEqual(done.returncode, 0, done.stdout[-6000:] + done.stderr[-2000:])
            self.assertRegex(done.stdout, r"\d{3,} generated, \d{3,} passed")

    def test_an_encoder(self):
        self.run_over("bert", "bert-peft-lora")

    def test_a_decoder(self):
        self.run_over("llama", "llama-peft-lora")

    def test_with_keys(self):
        """None, one that may do everything, and one for some routes and tasks."""
        keys = Keys()
        keys.add("all", "admin")
        keys.add("some", "infer,read", "sst*")
        keys.write()
        for name in (None, "all", "some"):
            with self.subTest(key=name):
                self.run_over("bert", "bert-peft-lora", "--auth", keys.path, "--metrics-access", "read", key=name and keys.header[name],
                              put_with=keys.header["all"])


class Metrics(unittest.TestCase):
    def test_promtool_finds_nothing_but_names_that_routers_expect(self):
        """Routers know vLLM's three gauges by their names, which have a colon; that is for recorded series, says promtool."""
        if not shutil.which("promtool"):
            self.skipTest("no promtool: the package prometheus")
        with Server("llama") as s:
            self.assertEqual(s.put_cell("good", "llama-peft-lora").status, 201)
            for task in ("good", "base", "none"):
                s.infer({"task": task, "input": "x", "parameters": {"max_tokens": 3}})
            text = s.request("GET", "/metrics").body
        done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, timeout=60, check=False)
        found = (done.stdout + done.stderr).decode().splitlines()
        self.assertEqual(sorted(found), [f"vllm:{name} metric names should not contain ':'" for name in
                                         ("lora_requests_info", "num_requests_running", "num_requests_waiting")])


if __name__ == "__main__":
    unittest.main()
