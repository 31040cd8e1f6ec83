"""Tests that the parity driver passes a right server and fails every kind of wrong one: `python3 test_parity.py`.

A comparison that cannot fail proves nothing, so each fault of fake_peftd.py must be reported.
"""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import parity
import table

HERE = Path(__file__).resolve().parent
GOLDEN = HERE.parent / "golden"


def run_driver(fault: str, *options: str, level: str = "avx2") -> subprocess.CompletedProcess:
    command = [sys.executable, str(HERE / "parity.py"), "--peftd", str(HERE / "fake_peftd.py"), "--golden", str(GOLDEN),
               "--base", "llama", *options]
    environment = {**os.environ, "FAKE_FAULT": fault, "FAKE_LEVEL": level}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def run_rows(fault: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(HERE / "rows.py"), "--peftd", str(HERE / "fake_peftd.py"), "--level", "avx2", "--calls", "5"]
    return subprocess.run(command, env={**os.environ, "FAKE_FAULT": fault}, capture_output=True, text=True, timeout=120)


def cell_of(base: str, row: str, **found) -> parity.Cell:
    return parity.Cell(f"{base}-peft-{row}", "generation", [], [], HERE, base, "peft", row, **found)


class Driver(unittest.TestCase):
    def assert_fails(self, text: str, done: subprocess.CompletedProcess):
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn(text, done.stdout)
        self.assertNotIn(" 0 wrong", done.stdout)

    def test_a_right_server_passes(self):
        done = run_driver("")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn(" equal, 0 refused, 0 wrong", done.stdout)

    def test_a_right_server_passes_alone(self):
        self.assertEqual(run_driver("", "--alone", "3").returncode, 0)

    def test_faults_are_reported(self):
        faults = {"value": "differs by", "token": "tokens [", "kind": "kind 'span'", "error": "spoilt",
                  "missing": "differs by inf", "upload": "upload: 422", "exit": "exit status 3"}
        for fault, text in faults.items():
            with self.subTest(fault):
                self.assert_fails(text, run_driver(fault))

    def test_a_refused_cell_is_counted_apart(self):
        done = run_driver("refuse", "--refusals")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("adapter_unsupported: no such method here", done.stdout)
        self.assertNotIn(" 0 refused", done.stdout)
        self.assertIn(" 0 wrong", done.stdout)

    def test_a_refused_cell_fails_where_none_is_expected(self):
        self.assertEqual(run_driver("refuse").returncode, 1)

    def test_a_base_that_does_not_open_refuses_its_cells(self):
        done = run_driver("base", "--refusals")
        self.assertEqual(done.returncode, 1, "nothing was equal")
        self.assertIn("base: config.json: model_type: unknown", done.stdout)
        self.assertIn("0 equal, ", done.stdout)
        self.assertIn(" 0 wrong", done.stdout)

    def test_a_server_that_dies_at_the_start_is_wrong(self):
        self.assert_fails("listening on", run_driver("crash", "--refusals"))

    def test_the_table_has_a_line_for_each_row(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "methods.md"
            run_driver("refuse", "--refusals", "--table", str(path))
            text = path.read_text(encoding="utf-8")
        self.assertIn("| peft lora-rslora | = |", text)
        self.assertIn("adapter_unsupported: no such method here", text)

    def test_a_row_that_depends_on_its_batch_is_reported(self):
        self.assert_fails("differs by", run_driver("batch", "--alone", "10"))

    def test_at_the_portable_level_it_may_depend_within_the_tolerance(self):
        self.assertEqual(run_driver("batch", "--alone", "10", level="portable").returncode, 0)

    def test_nothing_to_compare_is_a_failure(self):
        self.assertEqual(run_driver("", "--only", "no-such-cell").returncode, 1)


class Rows(unittest.TestCase):
    def test_a_right_server_passes(self):
        done = run_rows("")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("3 equal, 0 not", done.stdout)

    def test_a_row_that_depends_on_its_batch_is_reported(self):
        done = run_rows("batch")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, r"call \d+, bert-.*: alone .*, mixed ")

    def test_rows_that_were_never_put_back_show_nothing(self):
        done = run_rows("kept")
        self.assertEqual(done.returncode, 1)
        self.assertIn("no sequence was put back", done.stdout)


class Table(unittest.TestCase):
    def test_statuses_of_one_place_are_joined_and_reasons_numbered(self):
        cells = [cell_of("a", "lora"), cell_of("a", "lora", refusal="no: layer 3"), cell_of("b", "lora", faults=["x"]),
                 cell_of("b", "ia3", refusal="no: layer 5")]
        text = table.text(cells, [{"base": "a", "reader": "peft", "row": "ia3", "reason": "it cannot"}])
        self.assertIn("| peft lora | = r1 | **wrong** |", text)
        self.assertIn("| peft ia3 | i1 | r1 |", text)
        self.assertIn("r1. no: layer N", text)
        self.assertIn("i1. it cannot", text)
        self.assertIn("1 equal, 2 refused, 1 wrong, 1 impossible", text)


class Comparison(unittest.TestCase):
    def test_a_span_is_two_rows(self):
        self.assertEqual(parity.as_rows({"start": [1.0], "end": [2.0]}), [[1.0], [2.0]])

    def test_the_scale_is_the_largest_expected_magnitude(self):
        self.assertAlmostEqual(parity.row_difference([0.0, -8.0], [0.0, -8.0008]), 1e-4)

    def test_the_scale_is_at_least_one(self):
        self.assertAlmostEqual(parity.row_difference([0.0, 0.5], [1e-4, 0.5]), 1e-4)

    def test_each_row_has_its_own_scale(self):
        self.assertAlmostEqual(parity.rows_difference([[1000.0], [1.0]], [[1000.0], [1.01]]), 0.01)

    def test_what_is_not_a_row_of_numbers_differs_infinitely(self):
        for got in ([1.0], [1.0, 2.0, 3.0], None, [1.0, None], [1.0, float("nan")]):
            self.assertEqual(parity.row_difference([1.0, 2.0], got), float("inf"))


if __name__ == "__main__":
    unittest.main()
