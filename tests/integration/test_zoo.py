"""make zoo: a base of each family that there is, a task of each method, and answers that are the libraries'."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from demo import zoo
from tests.integration.server import GOLDEN, PEFTD, ROOT

FEW = ("bart", "electra", "gpt2")  # of each kind one


class Zoo(unittest.TestCase):
    def test_every_task_answers_as_its_library_does(self):
        done = subprocess.run([sys.executable, os.path.join(ROOT, "demo", "zoo.py"), "--peftd", PEFTD, "--ask", *FEW],
                              capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"\d+ tasks on 3 bases of 3 families, 0 wrong")

    def test_another_number_or_token_is_wrong(self):
        golden = {"cases": [{"logits": [1.0, -2.0], "generated": [4, 5]}]}
        self.assertEqual(zoo.difference(golden, {"logits": [1.0, -2.0], "tokens": [4, 5]}), 0.0)
        self.assertGreater(zoo.difference(golden, {"logits": [1.0, -2.001], "tokens": [4, 5]}), zoo.TOLERANCE)
        self.assertGreater(zoo.difference(golden, {"logits": [1.0, -2.0], "tokens": [4, 6]}), zoo.TOLERANCE)
        self.assertGreater(zoo.difference(golden, {"logits": [1.0]}), zoo.TOLERANCE)

    def test_it_has_every_family_that_the_server_knows(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(os.path.join(GOLDEN, "bases", "bert", "model.safetensors"), folder)
            with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
                json.dump({"model_type": "no-such-family"}, f)
            done = subprocess.run([PEFTD, "check", "--model", folder, os.path.join(GOLDEN, "cells", "bert-peft-lora", "adapter")],
                                  capture_output=True, text=True, timeout=60, check=False)
        known = set(re.findall(r"[a-z0-9_-]+", done.stderr.rpartition("is not computed:")[2]))
        self.assertIn("bert", known, done.stderr)
        self.assertEqual({base.family for base in zoo.zoo()}, known)


if __name__ == "__main__":
    unittest.main()
