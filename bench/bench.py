"""The table of numbers: peftd against its peers, against the machine and against itself, with floors.

    bench/run.sh [--quick] [--only GROUP,...] [--keep] [--cores N] [--peftd BINARY]

Groups are modules of bench/groups, peers those of bench/peers, floors the table in bench/floors.py. The method, how to
install the peers and the last figures stand in bench/README.md. Exit status 1 if a floor that was measured does not hold.
"""
import argparse
import importlib
import os
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench import floors, machine, measure, models, report  # noqa: E402

GROUPS = ("decoder", "loras", "prompts", "encoder", "tasks", "streams", "shapes")
ON_REQUEST = ("big",)


@dataclass
class Bench:
    """What the groups need to know."""
    peftd: Path
    minilm: Path
    smollm2: Path
    out: Path  # for what is made once and kept
    peft: str  # Python of the environment with torch and PEFT, or None
    onnx: str  # Python of the environment with OpenVINO and ONNX Runtime, or None
    vllm: str  # Python of the environment with vLLM, or None
    llama: Path  # folder of llama.cpp's programs, or None
    files: list  # types of weights of the decoder groups
    shapes: list  # of the group big
    threads: int
    is_quick: bool
    is_quiet: bool  # cases wait while other programs use the machine

    settings = ()  # of every peftd

    @property
    def rounds(self):
        return 2 if self.is_quick else 3

    @property
    def n_each(self):
        """Requests of one stream in a round."""
        return 1 if self.is_quick else 2

    @property
    def calls(self):
        """Calls with many texts in a round."""
        return 3 if self.is_quick else 5

    @property
    def n_tasks(self):
        return 200 if self.is_quick else 2000

    @property
    def seconds(self):
        """After which a group's rounds end early on a slow machine."""
        return 60 if self.is_quick else 200

    def in_turn(self, cases, n_rounds=0, seconds=0):
        return measure.in_turn(cases, n_rounds or self.rounds, seconds or self.seconds,
                               machine.wait_until_quiet if self.is_quiet else lambda: None)

    def limit_cases(self, prefix):
        return machine.limit_cases(ROOT / "build/release/bench/bench_limits", self.threads, prefix)


def arguments():
    built, env = ROOT / "build/models", os.environ.get
    p = argparse.ArgumentParser(prog="bench/run.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--quick", action="store_true", help="fewer rounds and tasks")
    p.add_argument("--only", default=",".join(GROUPS), help=f"of {', '.join((*GROUPS, *ON_REQUEST))}; default: {', '.join(GROUPS)}")
    p.add_argument("--keep", action="store_true", help="floors also of groups and files that earlier runs have measured")
    p.add_argument("--quiet", action="store_true", help="each case waits, 20 s at most, while other programs use the machine")
    p.add_argument("--passive", action="store_true", help="peers' threads sleep at barriers: better for them on a busy machine")
    p.add_argument("--cores", type=int, default=0, help="so many cores and threads for all, clients included")
    p.add_argument("--files", default=",".join(models.TYPES), help="types of weights of the decoder groups")
    p.add_argument("--shapes", default="llama-1b,llama-7b", help="of the group big")
    p.add_argument("--peftd", type=Path, default=ROOT / "build/peftd")
    p.add_argument("--minilm", type=Path, default=Path(env("MINILM") or built / "minilm"))
    p.add_argument("--smollm2", type=Path, default=Path(env("SMOLLM2") or built / "smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"))
    p.add_argument("--peft", default=env("ORACLE_PEFT"), help="Python of the environment with torch and peft")
    p.add_argument("--onnx", default=env("ONNX_PYTHON"), help="Python of the environment with openvino and onnxruntime")
    p.add_argument("--vllm", default=env("VLLM_PYTHON"), help="Python of the environment with vllm")
    p.add_argument("--llama", type=Path, default=env("LLAMA_BIN"), help="folder of llama-server, llama-bench, llama-quantize")
    p.add_argument("--out", type=Path, default=ROOT / "build/bench", help="where results and CSV files go")
    a = p.parse_args()
    a.only = a.only.split(",")
    for group in a.only:
        if group not in GROUPS + ON_REQUEST:
            p.error(f"no group {group}")
    for path in (a.peftd, a.minilm, a.smollm2):
        if not path.exists():
            p.error(f"{path} is not there")
    return a


def run_group(group, bench, facts, keep):
    work = Path(tempfile.mkdtemp(prefix="run-", dir=bench.out))
    try:
        results = importlib.import_module(f"bench.groups.{group}").run(bench, work)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    path = bench.out / f"{group}.json"
    if keep and path.exists():
        results.keep(measure.Results.read(path))
    results.save(path, facts)
    report.print_group(results)
    return results


def main():
    a = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench: ended by SIGTERM"))  # so that the children end too
    if a.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:a.cores])
    a.out.mkdir(parents=True, exist_ok=True)
    bench = Bench(a.peftd, a.minilm, a.smollm2, a.out, a.peft, a.onnx, a.vllm, a.llama, a.files.split(","), a.shapes.split(","),
                  len(os.sched_getaffinity(0)), a.quick, a.quiet)
    if a.passive:
        os.environ["OMP_WAIT_POLICY"] = "passive"
    facts, begin = machine.facts(a.peftd), time.monotonic()
    print("peftd {commit}, {cores} cores, {cpu} ({levels}), {memory_gib} GiB, {busy_at_start:.0%} busy".format(**facts))
    if facts["busy_at_start"] > 0.1:
        print("The machine is busy: only the ratios say something, and less than on an idle one.")
    done = {group: run_group(group, bench, facts, a.keep) for group in a.only}
    if a.keep:
        kept = {g: a.out / f"{g}.json" for g in (*GROUPS, *ON_REQUEST) if g not in done}
        done |= {g: measure.Results.read(path) for g, path in kept.items() if path.exists()}
    verdicts = floors.judge_all(done)
    facts["seconds"] = round(time.monotonic() - begin)
    report.print_floors(verdicts)
    report.write_csv(a.out, done, verdicts, facts)
    print(f"{facts['seconds']} s; CSV and results in {os.path.relpath(a.out)}")
    return any(v.is_failed for v in verdicts)


if __name__ == "__main__":
    sys.exit(main())
