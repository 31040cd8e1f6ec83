#!/usr/bin/env python3
"""The test modules of a package, as many at once as there are cores: they mostly wait.

    tools/modules.py tests/integration

Prints what a failing one said, and a line with the number of tests; ends with 1 if any
failed, or if one ran nothing."""

import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Begun first, so that none of them is what all others have to be waited for.
LONG = ("test_http_framing", "test_auth", "test_pressure", "test_calls", "test_server_life", "test_tls", "test_operations")


def run(module):
    begin = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "unittest", "-q", module],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
    n = re.search(r"^Ran (\d+) tests?", done.stdout, re.M)
    return done.returncode, int(n[1]) if n else 0, done.stdout, time.monotonic() - begin


def main():
    folder = Path(sys.argv[1])
    names = sorted((p.stem for p in folder.glob("test_*.py")), key=lambda name: LONG.index(name) if name in LONG else len(LONG))
    modules = [".".join((*folder.parts, name)) for name in names]
    n_tests, failed, took = 0, [], []
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for name, (rc, n, text, seconds) in zip(names, pool.map(run, modules)):
            n_tests += n
            took.append((seconds, name))
            if rc or not n:
                failed.append(name)
                print(f"== {name}: {n} tests\n{text}")
    print("longest:", ", ".join(f"{name} {s:.0f} s" for s, name in sorted(took, reverse=True)[:6]))
    print(f"{len(names)} modules, {n_tests} tests, {len(failed)} failed")
    sys.exit(bool(failed))


main()
