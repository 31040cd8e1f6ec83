"""peftd diff: a tuned checkpoint becomes a delta that answers as the checkpoint itself does when it is served as a base."""

import json
import os
import shutil
import struct
import subprocess
import tempfile
import unittest
from array import array

from tests.integration.server import PEFTD, Server
from tests.support.peftd import files_of

BASES = os.path.join(os.path.dirname(__file__), "..", "golden", "bases")


def read_safetensors(path):
    with open(path, "rb") as f:
        size, = struct.unpack("<Q", f.read(8))
        return json.loads(f.read(size)), bytearray(f.read())


def write_safetensors(path, header, data):
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def changed(header, data, name, change):
    """Rewrites one f32 tensor: change(values, shape) alters the array."""
    begin, end = header[name]["data_offsets"]
    values = array("f", bytes(data[begin:end]))
    change(values, header[name]["shape"])
    data[begin:end] = values.tobytes()


def add_rank_two(values, shape):
    rows, columns = shape
    for r in range(rows):
        for c in range(columns):
            values[r * columns + c] += 0.01 * ((r * 7) % 5 - 2) * ((c * 3) % 7 - 3) + 0.02 * (r % 3) * (c % 2)


def add_some(values, _shape):
    for i in range(0, len(values), 97):
        values[i] += 0.25


def add_all(values, _shape):
    for i in range(len(values)):
        values[i] += 0.01 * ((i * 7919) % 101 - 50) / 50


class Diff(unittest.TestCase):
    def tuned(self, base, changes):
        folder = os.path.join(self.folder.name, "tuned")
        shutil.copytree(os.path.join(BASES, base), folder)
        path = os.path.join(folder, "model.safetensors")
        header, data = read_safetensors(path)
        for name, change in changes.items():
            changed(header, data, name, change)
        write_safetensors(path, header, data)
        return folder

    def diff(self, base, tuned):
        self.out = os.path.join(self.folder.name, "delta")
        return subprocess.run([PEFTD, "diff", "--base", os.path.join(BASES, base), "--tuned", tuned, "--out", self.out],
                              capture_output=True, text=True, timeout=60, check=False)

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="peftd-diff-")
        self.addCleanup(self.folder.cleanup)

    def answers(self, base, task, tokens):
        """The numbers that a task of this base answers with."""
        files = files_of(self.out) if task != "base" else {}
        with Server(base) as s:
            if files:
                self.assertEqual(s.put(task, files).status, 201)
            parameters = {"logits": True, "max_tokens": 4} if self.is_decoder else {}
            answer = s.infer({"task": task, "input": {"tokens": tokens}, "parameters": parameters})
            self.assertEqual(answer.status, 200, answer.json)
            output = answer.json["output"]
            return output["embedding"] if "embedding" in output else output["logits"]

    def compare(self, base, changes, forms):
        self.is_decoder = base != "bert"
        tuned = self.tuned(base, changes)
        done = self.diff(base, tuned)
        self.assertEqual(done.returncode, 0, done.stderr)
        for name, form in forms.items():
            self.assertIn(f"{name}: {form}", done.stdout)
        tokens = [5, 17, 40, 9, 33, 21]
        got, want, plain = self.answers(base, "tuned", tokens), self.answers(tuned, "base", tokens), self.answers(base, "base", tokens)
        scale = max(1.0, max(map(abs, want)))
        self.assertLess(max(abs(a - b) for a, b in zip(got, want)), 1e-4 * scale)
        self.assertGreater(max(abs(a - b) for a, b in zip(want, plain)), 1e-3 * scale, "the change changes nothing")

    def test_an_encoder_whose_tensors_changed_in_every_way(self):
        layer = "encoder.layer.1."
        self.compare("bert", {layer + "attention.self.query.weight": add_rank_two, layer + "output.dense.weight": add_some,
                              layer + "output.LayerNorm.weight": add_some, layer + "intermediate.dense.bias": add_all,
                              "embeddings.word_embeddings.weight": add_some},
                     {layer + "attention.self.query.weight": "low rank 2", layer + "output.dense.weight": "sparse",
                      layer + "output.LayerNorm.weight": "replaced", layer + "intermediate.dense.bias": "replaced",
                      "embeddings.word_embeddings.weight": "sparse"})

    def test_fused_and_transposed_linears_and_a_tied_embedding(self):
        self.compare("gpt2", {"transformer.h.0.attn.c_attn.weight": add_rank_two, "transformer.h.1.mlp.c_fc.weight": add_some,
                              "transformer.wte.weight": add_some},
                     {"transformer.h.0.attn.c_attn.weight": "low rank", "transformer.h.1.mlp.c_fc.weight": "sparse",
                      "transformer.wte.weight": "sparse"})

    def test_a_checkpoint_in_which_every_value_of_every_linear_changed(self):
        layers = [f"encoder.layer.{i}.{name}.weight" for i in range(3) for name in (
            "attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense",
            "intermediate.dense", "output.dense")]
        self.compare("bert", dict.fromkeys(layers, add_all), dict.fromkeys(layers, "dense"))

    def test_fused_and_transposed_linears_that_changed_as_a_whole(self):
        layers = ("transformer.h.0.attn.c_attn.weight", "transformer.h.1.mlp.c_fc.weight")
        self.compare("gpt2", dict.fromkeys(layers, add_all), dict.fromkeys(layers, "dense"))

    def test_relative_distances_of_each_stack(self):
        names = [f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight" for stack in ("encoder", "decoder")]
        self.compare("t5", dict.fromkeys(names, add_all), dict.fromkeys(names, "replaced"))

    def test_a_checkpoint_that_is_the_base_is_an_empty_delta(self):
        done = self.diff("bert", os.path.join(BASES, "bert"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"^(\d+) tensors, \1 of them the same; 0 bytes\n$")

    def test_a_checkpoint_of_another_shape_or_without_a_tensor_is_refused_by_name(self):
        tuned = self.tuned("bert", {})
        path = os.path.join(tuned, "model.safetensors")
        header, data = read_safetensors(path)
        header["encoder.layer.0.output.dense.weight"]["shape"].reverse()
        write_safetensors(path, header, data)
        done = self.diff("bert", tuned)
        self.assertEqual(done.returncode, 1)
        self.assertIn("encoder.layer.0.output.dense.weight: got", done.stderr)
        header["unknown.weight"] = header.pop("encoder.layer.0.output.dense.weight")
        write_safetensors(path, header, data)
        self.assertIn("no tensor encoder.layer.0.output.dense.weight", self.diff("bert", tuned).stderr)


if __name__ == "__main__":
    unittest.main()
