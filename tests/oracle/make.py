"""Makes random goldens: `make.py --seed N --out DIR` writes DIR/bases and DIR/cells.

Without more it makes the committed goldens, which are seed 1. With --all it makes the cross product of families and
methods beside them; with --only FAMILY or --only FAMILY/TEXT only the cells of that family whose name contains TEXT,
leaving everything else in DIR alone.

Each maker runs under the interpreter that has its library, two at once. The interpreters come from the environment,
ORACLE_PEFT and ORACLE_ADAPTERS (see setup.sh).
"""

import argparse
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from families import families

HERE = Path(__file__).resolve().parent
INTERPRETERS = ("ORACLE_PEFT", "ORACLE_ADAPTERS")
# A stage is a list of lanes that run side by side; the bases must be there before the first cell is made.
STAGES = [
    [("ORACLE_PEFT", [["bases.py", "bert", "llama-untied"]]),
     ("ORACLE_ADAPTERS", [["bases.py", "llama"]])],
    [("ORACLE_PEFT", [["own_cells.py"], ["peft_cells.py"]]),
     ("ORACLE_ADAPTERS", [["adapterhub_cells.py"]])],
]
# The cross product: the bases, then two shares of the families side by side, a process for each library, because its
# import takes as long as a hundred cells. AdapterHub's checks the cells of the base that PEFT's wrote, so it follows.
WIDE_BASES = ("ORACLE_ADAPTERS", "wide_bases.py")
WIDE_CELLS = [("ORACLE_PEFT", "wide_peft.py"), ("ORACLE_ADAPTERS", "wide_adapterhub.py")]
AT_ONCE = 2
# Tuned checkpoints of methods without a library, for one family of each kind and those whose weights are special.
CHECKPOINTS = ("bert-cls", "roberta", "distilbert", "deberta-v2", "bart", "t5", "gpt2", "llama-odd", "qwen2", "phi3")


def run_lane(interpreter: str, scripts: list, seed: int, out: Path) -> None:
    # A fixed hash seed makes the order of sets, which PEFT writes to JSON as lists, the same in every run.
    environment = {**os.environ, "PYTHONHASHSEED": "0", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    for name, *arguments in scripts:
        command = [interpreter, "-W", "ignore", str(HERE / name), "--seed", str(seed), "--out", str(out), *arguments]
        subprocess.run(command, env=environment, check=True)


def run_stage(stage: list, seed: int, out: Path) -> None:
    with ThreadPoolExecutor() as pool:
        lanes = [pool.submit(run_lane, os.environ[name], scripts, seed, out) for name, scripts in stage]
        for lane in lanes:
            lane.result()


def run_wide(names: list, text: str, seed: int, out: Path) -> None:
    """The cells of the named families whose name contains the text."""
    run_lane(os.environ[WIDE_BASES[0]], [[WIDE_BASES[1], *names]], seed, out)

    def run_share(share: list) -> None:
        tuned = [name for name in share if name in CHECKPOINTS]
        for interpreter, script in WIDE_CELLS:
            run_lane(os.environ[interpreter], [[script, "--only", text, "--family", *share]], seed, out)
        if tuned:
            run_lane(os.environ["ORACLE_PEFT"], [["checkpoints.py", "--only", text, "--family", *tuned]], seed, out)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        shares = [names[number::AT_ONCE] for number in range(AT_ONCE)]
        for done in [pool.submit(run_share, share) for share in shares if share]:
            done.result()


def make_all(seed: int, out: Path, wide: bool) -> None:
    for part in ("bases", "cells", "impossible"):
        shutil.rmtree(out / part, ignore_errors=True)
    for stage in STAGES:
        run_stage(stage, seed, out)
    if wide:
        run_wide(list(families()), "", seed, out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--all", action="store_true", help="the cross product as well")
    parser.add_argument("--only", metavar="FAMILY[/TEXT]", help="cells of one family of the cross product")
    arguments = parser.parse_args()
    missing = [name for name in INTERPRETERS if not os.environ.get(name)]
    if missing:
        sys.exit(f"not set: {', '.join(missing)}")
    if not arguments.only:
        make_all(arguments.seed, arguments.out.resolve(), arguments.all)
        return
    family, _, text = arguments.only.partition("/")
    if family not in families():
        sys.exit(f"no such family: {family}; there are {', '.join(families())}")
    run_wide([family], text, arguments.seed, arguments.out.resolve())


if __name__ == "__main__":
    main()
