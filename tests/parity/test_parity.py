"""Tests that the parity driver passes a right server and fails every kind of wrong one: `python3 test_parity.py`.

A comparison that cannot fail proves nothing, so each fault of fake_peftd.py must be reported.
"""

import os
import subprocess
import sys
import unittest
from pathlib import Path

import parity

HERE = Path(__file__).resolve().parent
GOLDEN = HERE.parent / "golden"


def run_driver(fault: str, *options: str, level: str = "avx2") -> subprocess.CompletedProcess:
    command = [sys.executable, str(HERE / "parity.py"), "--peftd", str(HERE / "fake_peftd.py"), "--golden", str(GOLDEN),
               "--base", "llama", *options]
    environment = {**os.environ, "FAKE_FAULT": fault, "FAKE_LEVEL": level}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


class Driver(unittest.TestCase):
    def assert_fails(self, text: str, done: subprocess.CompletedProcess):
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn(text, done.stdout)
        self.assertNotIn(" 0 failed", done.stdout)

    def test_a_right_server_passes(self):
        done = run_driver("")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn(" passed, 0 failed", done.stdout)

    def test_a_right_server_passes_alone(self):
        self.assertEqual(run_driver("", "--alone", "3").returncode, 0)

    def test_faults_are_reported(self):
        faults = {"value": "differs by", "token": "tokens [", "kind": "kind 'span'", "error": "spoilt",
                  "missing": "differs by inf", "upload": "upload: 422", "exit": "exit status 3"}
        for fault, text in faults.items():
            with self.subTest(fault):
                self.assert_fails(text, run_driver(fault))

    def test_a_row_that_depends_on_its_batch_is_reported(self):
        self.assert_fails("differs by", run_driver("batch", "--alone", "10"))

    def test_at_the_portable_level_it_may_depend_within_the_tolerance(self):
        self.assertEqual(run_driver("batch", "--alone", "10", level="portable").returncode, 0)

    def test_nothing_to_compare_is_a_failure(self):
        self.assertEqual(run_driver("", "--only", "no-such-cell").returncode, 1)


class Comparison(unittest.TestCase):
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
