#!/usr/bin/env python3
"""The suites of a unit test program, as many at once as there are cores.

    tools/unit.py PROGRAM [SUITE...]

A long suite is run by its cases. Prints what a failing one said, and a line with the number
of checks; ends with 1 if any failed, or if one ran nothing."""

import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

LONG = {"goldens": ("precision", "chunks", "batch", "library", "tiles")}


def run(program, suite, case=None):
    env = {**os.environ, "CK_DEFAULT_TIMEOUT": "300", "CK_RUN_SUITE": suite}
    if case:
        env["CK_RUN_CASE"] = case
    begin = time.monotonic()
    done = subprocess.run([program], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
    n = re.search(r"^\d+%: Checks: (\d+)", done.stdout, re.M)
    return done.returncode, int(n[1]) if n else 0, done.stdout, time.monotonic() - begin


def suites():
    """Each file's one suite."""
    found = []
    for folder, _, files in os.walk("tests"):
        for name in files:
            if re.match(r"test_.*\.c$", name):
                with open(os.path.join(folder, name), encoding="utf-8") as f:
                    found.append(re.search(r'suite_create\("([^"]+)"\)', f.read())[1])
    return sorted(found)


def main():
    program, wanted = sys.argv[1], sys.argv[2:] or suites()
    work = [(s, c) for s in wanted for c in LONG.get(s, (None,))]
    work.sort(key=lambda w: w[0] not in LONG)
    n_checks, failed, took = 0, [], []
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for what, (rc, n, text, seconds) in zip(work, pool.map(lambda w: run(program, *w), work)):
            n_checks += n
            took.append((seconds, " ".join(w for w in what if w)))
            for line in text.split("\n"):
                if "skipped" in line:
                    print(line)
            if rc or not n:
                failed.append(what)
                print(f"== {what[0]} {what[1] or ''}: {n} checks\n{text}")
    print("longest:", ", ".join(f"{what} {s:.0f} s" for s, what in sorted(took, reverse=True)[:6]))
    print(f"{len(wanted)} suites, {n_checks} checks, {len(failed)} failed")
    sys.exit(bool(failed))


main()
