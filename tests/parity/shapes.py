"""Bases in real shapes: `shapes.py --peftd PROGRAM [NAME...]` makes each with sixteen tasks and asks for all at once.

tests/oracle/shapes.py draws the weights and computes the tasks, eight methods twice, with the libraries. The server gets
one call with an input for each task; answers are compared as parity.py does, and its memory is printed beside the files'
bytes. A base's files go before the next is made: the largest is 2.4 GB. Needs ORACLE_PEFT and ORACLE_ADAPTERS.
"""

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.parity import parity  # noqa: E402

ORACLE = Path(__file__).resolve().parents[1] / "oracle"
NAMES = ("roberta-base", "deberta-v3-base", "bart-large", "mbart-large", "gpt2-medium")
MAKERS = (("ORACLE_ADAPTERS", "adapterhub"), ("ORACLE_PEFT", "peft"))
MB = 1e6


def make(name: str, seed: int, out: Path) -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "0", "HF_HUB_OFFLINE": "1"}
    for interpreter, library in MAKERS:
        command = [os.environ[interpreter], "-W", "ignore", str(ORACLE / "shapes.py"), "--seed", str(seed), "--out",
                   str(out), library, name]
        subprocess.run(command, env=environment, check=True, capture_output=True, text=True)


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def metric(server: parity.Server, name: str) -> float:
    text = server.call("GET", "/metrics")[1].decode()
    return float(re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)[1])


class Peak(threading.Thread):
    """The largest value of a gauge while the context lasts."""

    def __init__(self, server: parity.Server, name: str):
        super().__init__(daemon=True)
        self.server, self.gauge, self.value, self.is_over = server, name, 0.0, threading.Event()

    def run(self) -> None:
        while not self.is_over.wait(0.02):
            self.value = max(self.value, metric(self.server, self.gauge))

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.is_over.set()
        self.join()


def memory_of(server: parity.Server) -> dict:
    text = Path(f"/proc/{server.process.pid}/status").read_text(encoding="ascii")
    return {key: int(value) * 1024 for key, value in re.findall(r"^(VmHWM|RssAnon|RssFile):\s+(\d+) kB", text, re.MULTILINE)}


def ask(server: parity.Server, cells: list) -> dict:
    """Sends one call with a case of every task; what it took."""
    items = [(cell, cell.cases[0]) for cell in cells if parity.upload(server, cell)]
    random.Random(1).shuffle(items)
    begin = time.monotonic()
    with Peak(server, 'peftd_kv_blocks{state="used"}') as peak:
        responses = parity.infer(server, items)
    took = time.monotonic() - begin
    for (cell, case), response in zip(items, responses):
        expected = (parity.rows_of_case(case), case.get("generated"))
        parity.judge(cell, parity.label_of(case), expected, response, parity.GOLDEN_TOLERANCE)
    info = server.call("GET", "/v1/info")[1]
    blocks = sum(metric(server, f'peftd_kv_blocks{{state="{state}"}}') for state in ("used", "free"))
    return {"tasks": len(items), "seconds": took, "base": info["model"]["bytes"], **memory_of(server),
            "deltas": metric(server, 'peftd_adapter_bytes{state="resident"}'),
            "kv": info["engine"]["kv_bytes"] * peak.value / max(1.0, blocks)}


def show(name: str, cells: list, found: dict, files: dict) -> None:
    methods = sorted({cell.row for cell in cells})
    worst = max(cell.worst for cell in cells)
    print(f"| {name} | {found['tasks']} of {len(methods)} | {worst:.1e} | {files['base'] / MB:.0f} | {found['base'] / MB:.0f} "
          f"| {files['tasks'] / MB:.0f} | {found['deltas'] / MB:.0f} | {found['kv'] / MB:.1f} | {found['RssAnon'] / MB:.0f} + "
          f"{found['RssFile'] / MB:.0f} | {found['VmHWM'] / MB:.0f} | {found['seconds']:.1f} |", flush=True)


def run(arguments: argparse.Namespace, name: str, out: Path) -> bool:
    make(name, arguments.seed, out)
    cells = parity.read_cells(out, name, "")
    files = {"base": size_of(out / "bases" / name), "tasks": sum(size_of(cell.folder) for cell in cells)}
    with parity.Server(arguments.peftd, out / "bases" / name, arguments.server_options) as server:
        found = ask(server, cells)
    show(name, cells, found, files)
    for cell in cells:
        if cell.verdict != "equal":
            parity.report(cell)
    return len(cells) == 16 and all(cell.verdict == "equal" for cell in cells)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peftd", required=True, help="the server program")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--option", dest="server_options", action="append", default=[], help="for peftd serve")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all of them")
    arguments = parser.parse_args()
    print("| base | tasks of methods | worst, of scale | base's files, MB | base | tasks' files | deltas | KV used | private + "
          "mapped | peak | the call, s |\n|---|---|---|---|---|---|---|---|---|---|---|", flush=True)
    good = []
    for name in arguments.names or NAMES:
        with tempfile.TemporaryDirectory(prefix="peftd-shapes-") as out:
            good.append(run(arguments, name, Path(out)))
    print(f"{sum(good)} equal, {len(good) - sum(good)} not")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
