"""Bases with the modules of sentence-transformers: what stands behind the pooling."""

import json
import math
import os
import random
import shutil
import struct
import subprocess
import tempfile
import unittest

from tests.integration.server import GOLDEN, PEFTD, Server

N_IN, N_OUT = 40, 12


def safetensors(values):
    header, data = {}, b""
    for name, (shape, numbers) in values.items():
        packed = struct.pack(f"<{len(numbers)}f", *numbers)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(packed)]}
        data += packed
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def module(name, path=""):
    return {"type": f"sentence_transformers.models.{name}", "path": path}


class Modules(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.base = os.path.join(self.dir.name, "base")
        shutil.copytree(os.path.join(GOLDEN, "bases", "bert"), self.base)
        drawn = random.Random(1)
        self.weight = [[struct.unpack("<f", struct.pack("<f", drawn.gauss(0, 0.5)))[0] for _ in range(N_IN)]
                       for _ in range(N_OUT)]
        self.write("1_Pooling/config.json", json.dumps({"pooling_mode_mean_tokens": True}).encode())

    def tearDown(self):
        self.dir.cleanup()

    def write(self, name, data):
        path = os.path.join(self.base, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as f:
            f.write(data)

    def modules(self, *modules):
        self.write("modules.json", json.dumps([module("Transformer"), module("Pooling", "1_Pooling"), *modules]).encode())

    def dense(self, activation="torch.nn.modules.activation.Tanh", n_in=N_IN):
        self.write("2_Dense/config.json", json.dumps({"in_features": n_in, "out_features": N_OUT, "bias": True,
                                                      "activation_function": activation}).encode())
        self.write("2_Dense/model.safetensors", safetensors({
            "linear.weight": ([N_OUT, n_in], [x for row in self.weight for x in row[:n_in]]),
            "linear.bias": ([N_OUT], [0.25] * N_OUT)}))

    def embed(self):
        with Server(self.base) as s:
            return s.infer({"task": "base", "input": "the server runs many tasks"}).json["output"]["embedding"]

    def refusal(self):
        done = subprocess.run([PEFTD, "serve", "--model", self.base, "--listen", "127.0.0.1:0", "--store",
                               os.path.join(self.dir.name, "store")], capture_output=True, text=True, timeout=60)
        self.assertNotEqual(done.returncode, 0)
        return done.stderr

    def test_a_dense_stands_behind_the_pooling_and_before_the_norm(self):
        self.modules()
        pooled = self.embed()
        self.assertEqual(len(pooled), N_IN)
        want = [math.tanh(sum(w * x for w, x in zip(row, pooled)) + 0.25) for row in self.weight]
        self.dense()
        for normalize in (False, True):
            self.modules(module("Dense", "2_Dense"), *[module("Normalize", "3_Normalize")] * normalize)
            got = self.embed()
            norm = math.sqrt(sum(x * x for x in want)) if normalize else 1
            self.assertEqual(len(got), N_OUT)
            for g, w in zip(got, want):
                self.assertLess(abs(g - w / norm), 1e-5)

    def test_modules_that_are_not_computed_are_named(self):
        self.modules(module("LSTM", "2_LSTM"))
        self.assertIn("a module LSTM is not computed", self.refusal())
        self.dense()
        self.modules(module("Normalize", "2_Normalize"), module("Dense", "2_Dense"))
        self.assertIn("a module Dense behind a Normalize is not computed", self.refusal())
        self.modules(module("Dense", "../2_Dense"))
        self.assertIn("the path of a Dense is not a folder's name", self.refusal())
        self.modules(module("Dense", "none"))
        self.assertIn("the Dense none has no config.json", self.refusal())
        self.modules(module("Dense", "2_Dense"))
        self.dense("torch.nn.modules.activation.Hardswish")
        self.assertIn("a Dense with torch.nn.modules.activation.Hardswish is not computed", self.refusal())
        self.dense(n_in=N_IN - 1)
        self.assertIn("linear.weight", self.refusal())


if __name__ == "__main__":
    unittest.main()
