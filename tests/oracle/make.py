"""Makes all random goldens: `make.py --seed N --out DIR` writes DIR/bases and DIR/cells.

Each maker runs under the interpreter that has its library; the two libraries run side by side. The interpreters come
from the environment, ORACLE_PEFT and ORACLE_ADAPTERS (see setup.sh). The committed goldens are seed 1.
"""

import argparse
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
INTERPRETERS = ("ORACLE_PEFT", "ORACLE_ADAPTERS")
# A stage is a list of lanes that run side by side; the bases must be there before the first cell is made.
STAGES = [
    [("ORACLE_PEFT", [["bases.py", "bert", "llama-untied"]]),
     ("ORACLE_ADAPTERS", [["bases.py", "llama"]])],
    [("ORACLE_PEFT", [["own_cells.py"], ["peft_cells.py"]]),
     ("ORACLE_ADAPTERS", [["adapterhub_cells.py"]])],
]


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    missing = [name for name in INTERPRETERS if not os.environ.get(name)]
    if missing:
        sys.exit(f"not set: {', '.join(missing)}")
    for part in ("bases", "cells"):
        shutil.rmtree(arguments.out / part, ignore_errors=True)
    for stage in STAGES:
        run_stage(stage, arguments.seed, arguments.out.resolve())


if __name__ == "__main__":
    main()
