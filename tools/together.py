"""Parts of a test run, as many at once as there are cores.

A part is a program with a name; it says how many tests it ran. Prints what a failing one said, the
longest, and a line with the sum; a part that ran nothing has failed."""

import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor


def run_one(argv, env, count):
    begin = time.monotonic()
    done = subprocess.run(argv, env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
    n = re.search(count, done.stdout, re.M)
    return done.returncode, int(n[1]) if n else 0, done.stdout, time.monotonic() - begin


def run_all(parts, kind, counted, count, show=None):
    """Runs `parts`, each (name, argv, changes of the environment), and ends the process: with 1 if any failed.

    kind and counted name, in the last line, a part and what `count` finds the number of in its output;
    lines that hold `show` are printed though the part passed."""
    n_counted, failed, took = 0, [], []
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for (name, _, _), (rc, n, text, seconds) in zip(parts, pool.map(lambda part: run_one(*part[1:], count), parts)):
            n_counted += n
            took.append((seconds, name))
            for line in text.split("\n"):
                if show and show in line:
                    print(line)
            if rc or not n:
                failed.append(name)
                print(f"== {name}: {n} {counted}\n{text}")
    print("longest:", ", ".join(f"{name} {s:.0f} s" for s, name in sorted(took, reverse=True)[:6]))
    print(f"{len(parts)} {kind}, {n_counted} {counted}, {len(failed)} failed")
    sys.exit(bool(failed))
