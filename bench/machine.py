"""The machine: what it is, how busy it is, what it can do at most."""
import json
import os
import re
import subprocess
import time
from pathlib import Path

from bench.measure import Case

LIMITS = {"f32": ("multiply-adds in f32", "GFLOP/s"), "bf16": ("multiply-adds in bf16", "GFLOP/s"),
          "int8": ("multiply-adds in int8", "GOP/s"),
          "int8_groups": ("the same with an f32 scale each 32 values", "GOP/s"),
          "int8_long": ("the same with such scales of one factor", "GOP/s"), "read": ("reading memory", "GB/s")}


def facts(peftd):
    cpu = Path("/proc/cpuinfo").read_text()
    flags = set(re.search(r"^flags\s*:(.*)$", cpu, re.M).group(1).split()) if "flags" in cpu else set()
    model = re.search(r"^model name\s*:\s*(.*)$", cpu, re.M)
    memory = re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())
    version = subprocess.run([peftd, "version"], capture_output=True, text=True, check=True).stdout
    version = dict(re.findall(r"^(commit|cpu level|blas) (.*)$", version, re.M))
    wide = [f for f in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16") if f in flags]
    return {"cpu": model.group(1) if model else os.uname().machine, "cores": len(os.sched_getaffinity(0)), "levels": " ".join(wide),
            "cpu_level": version.get("cpu level", ""), "blas": version.get("blas", ""), "commit": version.get("commit", ""),
            "memory_gib": round(int(memory.group(1)) / 2**20, 1), "kernel": os.uname().release,
            "date": time.strftime("%Y-%m-%d %H:%M", time.gmtime()), "busy_at_start": round(busy(), 2)}


def busy(seconds=3):
    """The share of the processors' time that others use now."""
    def times():
        return [int(n) for n in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    before = times()
    time.sleep(seconds)
    spent = [b - a for a, b in zip(before, times())]
    return 1 - (spent[3] + spent[4]) / max(1, sum(spent))


def wait_until_quiet(most=0.1, seconds=20):
    """Waits until others use less than this share of the processors, for so many seconds at most."""
    end = time.monotonic() + seconds
    while busy(0.1) > most and time.monotonic() < end:
        pass


def limit_cases(program, threads, prefix):
    """One case for each limit, PREFIX/f32 and so on; the first measures them all."""
    found = {}

    def measure():
        found.update(json.loads(subprocess.run([program, str(threads)], check=True, capture_output=True, text=True).stdout))
        return found["f32"]

    def known(name):
        return lambda: found[name]
    return [Case(f"{prefix}/{name}", "machine", f"{what}, {threads} threads", unit, measure if name == "f32" else known(name), is_limit=True)
            for name, (what, unit) in LIMITS.items()]
