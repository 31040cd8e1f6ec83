#!/usr/bin/env python3
"""The suites of a unit test program, as many at once as there are cores; a long suite by its cases.

    tools/unit.py PROGRAM [SUITE...]"""

import os
import re
import sys

from together import run_all

LONG = {"goldens": ("precision", "chunks", "batch", "library", "tiles")}


def suites():
    """Each file's one suite."""
    found = []
    for folder, _, files in os.walk("tests"):
        for name in files:
            if re.match(r"test_.*\.c$", name):
                with open(os.path.join(folder, name), encoding="utf-8") as f:
                    found.append(re.search(r'suite_create\("([^"]+)"\)', f.read())[1])
    return sorted(found)


def part(program, suite, case):
    env = {"CK_DEFAULT_TIMEOUT": "300", "CK_RUN_SUITE": suite}
    return (f"{suite} {case}", [program], {**env, "CK_RUN_CASE": case}) if case else (suite, [program], env)


def main():
    program, wanted = sys.argv[1], sys.argv[2:] or suites()
    long_first = sorted(wanted, key=lambda suite: suite not in LONG)
    parts = [part(program, suite, case) for suite in long_first for case in LONG.get(suite, (None,))]
    run_all(parts, "parts of suites", "checks", r"^\d+%: Checks: (\d+)", show=": skipped: level ")


main()
