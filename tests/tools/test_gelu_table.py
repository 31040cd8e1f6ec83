"""Tests that core/kern/kern_gelu.inc is what tools/gelu_table.py prints: `python3 tests/tools/test_gelu_table.py`."""

import re
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NUMBER = re.compile(r"-?\d\.\d+e[+-]\d+(?=f)")


def parts(text):
    """Words between the numbers, and the numbers; spaces and what marks a line of a comment do not count."""
    return re.sub(r"[\s*]+", " ", NUMBER.sub("#", text)), [float(n) for n in NUMBER.findall(text)]


class Table(unittest.TestCase):
    def test_the_table_is_what_its_script_prints(self):
        script = subprocess.run([sys.executable, str(ROOT / "tools/gelu_table.py")], check=True, capture_output=True, text=True)
        words, numbers = parts(script.stdout)
        has_words, has_numbers = parts((ROOT / "core/kern/kern_gelu.inc").read_text())
        self.assertEqual(has_words.strip(), words.strip())
        self.assertEqual(len(has_numbers), 8 * (8 + 6) + 32 * (6 + 4))
        for i, (have, want) in enumerate(zip(has_numbers, numbers)):
            # erfc() of another libm may differ in its last bit, which the differences multiply
            self.assertAlmostEqual(have, want, delta=1e-7 * abs(want) + 1e-12, msg=f"number {i}")


if __name__ == "__main__":
    unittest.main()
