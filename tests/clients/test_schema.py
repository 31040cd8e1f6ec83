"""schemathesis over /openapi.json: whatever it sends, no answer is a 5xx, of a status or of a form that is not described."""

import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest

from tests.integration.server import Server

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
EXAMPLES = os.environ.get("EXAMPLES", "10")


class Schema(unittest.TestCase):
    def run_over(self, base, cell):
        if importlib.util.find_spec("schemathesis") is None:
            self.skipTest("schemathesis is not installed: make clients")
        with Server(base, "--request-timeout", "20", "--max-items", "8") as s, tempfile.TemporaryDirectory() as notes:
            s.put_cell("sst2", cell)
            program = os.path.join(os.path.dirname(sys.executable), "schemathesis")
            done = subprocess.run([program, "run", f"http://127.0.0.1:{s.port}/openapi.json", "--checks", CHECKS, "--max-examples", EXAMPLES,
                                   "--seed", "1", "--no-color", "--suppress-health-check", "all", "--request-timeout", "60",
                                   "--phases", "fuzzing,stateful"], capture_output=True, text=True, timeout=600, check=False, cwd=notes)
            self.assertEqual(done.returncode, 0, done.stdout[-6000:] + done.stderr[-2000:])
            self.assertRegex(done.stdout, r"\d{3,} generated, \d{3,} passed")

    def test_an_encoder(self):
        self.run_over("bert", "bert-peft-lora")

    def test_a_decoder(self):
        self.run_over("llama", "llama-peft-lora")


if __name__ == "__main__":
    unittest.main()
