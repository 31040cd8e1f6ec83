"""Tests what benchmarks reckon, not what they measure: `python3 tests/tools/test_bench.py`."""

import json
import re
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench import adapters, gguf, models, shares  # noqa: E402
from bench.measure import Case, Results  # noqa: E402

MINILM = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6}


def results(*names):
    out = Results("group", "title")
    out.add(Case(name, "who", "what", "unit", None, [1.0]) for name in names)
    return out


class Kept(unittest.TestCase):
    def test_files_are_kept_whole_and_a_measured_one_takes_nothing_of_an_earlier_run(self):
        old = results("limit/f16/f32", "one/f16/exact", "one/f16/llama", "limit/q8_0/f32", "one/q8_0/exact", "one/q8_0/llama")
        new = results("limit/f16/f32", "one/f16/exact")  # without the peer
        new.keep(old)
        self.assertEqual(set(new.cases), {"limit/f16/f32", "one/f16/exact", "limit/q8_0/f32", "one/q8_0/exact", "one/q8_0/llama"})

    def test_a_group_without_files_keeps_nothing(self):
        new = results("limit/f32", "each/exact")
        new.keep(results("limit/f32", "each/exact", "each/vLLM", "first"))
        self.assertEqual(set(new.cases), {"limit/f32", "each/exact"})


class Shares(unittest.TestCase):
    def column(self, *frames):
        return shares.PLACES[shares.place_of(frames)][0]

    def test_a_kernel_counts_for_who_calls_it(self):
        self.assertEqual(self.column("gemm_bf16", "run_panel", "gemm_run", "run_tiles", "fwd_linears"), "base products")
        self.assertEqual(self.column("gemm_of_f32", "gemm", "fwd__attend", "fwd_attention", "fwd_linears"), "attention")
        self.assertEqual(self.column("to_bf16", "gemm_make_x", "fwd_linears", "fwd_attention"), "base products")
        self.assertEqual(self.column("outer.isra.0", "run_tiles", "fwd_linears"), "deltas")
        self.assertEqual(self.column("act_all", "run_tiles", "fwd_linears"), "norms, activations")
        self.assertEqual(self.column("memmove", "MHD_run"), "HTTP, JSON")

    def test_every_function_named_exists(self):
        source = "".join(path.read_text() for path in (ROOT / "core").rglob("*.[ci]*"))
        for name, pattern in shares.PLACES[:-1]:
            for one in re.split("[|<]", pattern):
                stem = one.split("\\w")[0]
                self.assertRegex(source, rf"\b{stem}" + r"\(" * (stem == one), f"{name}: {one}")


class Limits(unittest.TestCase):
    def test_a_lora_adds_its_factors_to_every_token_of_an_encoder(self):
        with tempfile.TemporaryDirectory() as d:
            (Path(d) / "config.json").write_text(json.dumps(MINILM))
            more = models.flop_of_encoder(Path(d), 33, rank=adapters.RANK) - models.flop_of_encoder(Path(d), 33)
        self.assertEqual(more, 2 * 33 * adapters.n_factors("minilm"))

    def test_factors_are_those_of_the_file(self):
        with tempfile.TemporaryDirectory() as d:
            adapters.make("smollm2", "lora", Path(d), 0)
            data = (Path(d) / "adapter_model.safetensors").read_bytes()
        n = int.from_bytes(data[:8], "little")
        shapes = [t["shape"] for t in json.loads(data[8:8 + n]).values()]
        self.assertEqual(sum(a * b for a, b in shapes), adapters.n_factors("smollm2"))

    def test_a_step_reads_the_factors_of_each_stream(self):
        facts = gguf.Facts(bytes_of_token=100, flop_of_layers=0, flop_of_head=0, flop_of_pair=0)
        self.assertAlmostEqual(facts.most(4, 1, 1)(1.0, 1e-9), 4 / 100)
        self.assertAlmostEqual(facts.most(4, 1, 1, 50)(1e9, 1e-9), 4 / (100 + 4 * 2 * 50))


if __name__ == "__main__":
    unittest.main()
