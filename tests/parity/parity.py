"""Compares a running peftd with golden values: `parity.py --peftd PROGRAM --golden DIR`.

For each base of the golden folder it starts a server, uploads every cell as a task of its own, and sends the cases of
all cells together in shuffled calls, so that every row is computed beside the rows of other tasks. With --alone N it
compares peftd with itself instead: each case alone against the same case in N random mixed calls, bit for bit unless the
server runs at the portable level.

A cell is equal, refused (by name: the server says that it does not compute it, or does not open its base) or wrong.
One line per cell, then the counts; the exit status is 1 if a cell is wrong, or refused and refusals are not allowed
(--refusals). --table FILE writes the table of methods and bases, together with what the libraries cannot make.
"""

import argparse
import http.client
import json
import math
import random
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.parity import table  # noqa: E402
from tests.support.peftd import Client, Failure, Process, multipart  # noqa: E402

GOLDEN_TOLERANCE = 1e-4  # of the largest magnitude in the expected row, at least of 1
# Where the library's own f32 answers are off its float64 ones by more (tests/oracle/wide.py, note_rounding), the golden
# says by how much: it and ours may each be.
ROUNDING_SHARE = 2
# Alone and mixed: at the vector levels the same bits, and nine digits of JSON lead back to them. OpenBLAS, the product of
# the portable level, chooses its kernel by the number of rows, so there two sums of f32 in another order are compared.
ALONE_TOLERANCE = {"portable": 1e-5}
START_SECONDS = 60
CALL_SECONDS = 120
REQUESTS_PER_CALL = 48
FAULTS_SHOWN = 3
REFUSALS = ("adapter_unsupported", "adapter_invalid", "adapter_mismatch", "wrong_kind")


class BaseRefused(Exception):
    """peftd does not open this base, and says why."""


@dataclass
class Cell:
    """One golden cell, and what was found about it."""

    name: str
    kind: str
    cases: list
    files: list
    folder: Path
    base: str = ""
    library: str = ""
    row: str = ""
    worst: float = 0.0
    refusal: str = ""
    faults: list = field(default_factory=list)

    @property
    def verdict(self) -> str:
        return "wrong" if self.faults else "refused" if self.refusal else "equal"

    @property
    def task(self) -> str:
        return "base" if self.library == "base" else self.name


class Server(Process):
    """A peftd process on a port of its own choice with an empty store; a context manager."""

    STOP_SECONDS = 40

    def __init__(self, program: str, model: Path, extra: list):
        self.folder = tempfile.TemporaryDirectory(prefix="peftd-parity-")
        super().__init__([program, "serve", "--model", model, "--store", Path(self.folder.name) / "store",
                          "--listen", "127.0.0.1:0", *extra], Path(self.folder.name) / "stderr")

    def __enter__(self):
        try:
            self.listen(START_SECONDS)
            self.wait_until(lambda: self.answers("/readyz"), START_SECONDS)
        except (Failure, OSError) as error:
            refusal = self._refusal()
            self.process.kill()
            self.process.wait()
            if refusal:
                raise BaseRefused(refusal) from error
            raise
        return self

    def __exit__(self, *_):
        self.exit_status = self.stop()
        self.log_tail = self._tail()
        self.folder.cleanup()

    def call(self, method: str, path: str, body=None, headers=None) -> tuple:
        """The status and the JSON of one answer."""
        try:
            with Client(self.port, CALL_SECONDS) as client:
                return client.call(method, path, body, headers)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Failure(f"{method} {path}: {error!r}\n{self._tail()}") from error

    def _refusal(self) -> str:
        """What a server said that ended by itself; nothing if it runs, or was killed."""
        told = re.findall(r"^peftd serve: (.+)$", self.log_text(), re.MULTILINE)
        try:
            status = self.process.wait(1)
        except subprocess.TimeoutExpired:
            return ""
        return told[-1] if status in (1, 2) and told else ""

    def _tail(self) -> str:
        return "\n".join(self.log_text().splitlines()[-15:])


def read_cells(golden: Path, base: str, only: str) -> list:
    cells = []
    for path in sorted(golden.glob(f"cells/{base}-*/golden.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        name, folder = path.parent.name, path.parent / "adapter"
        if content["base"] == base and only in name:
            files = sorted(file for file in folder.rglob("*") if file.is_file())
            cells.append(Cell(name, content["kind"], content["cases"], files, folder, base, content["reader"],
                              content.get("row") or name.removeprefix(f"{base}-").partition("-")[2] or name))
    return cells


def upload(server: Server, cell: Cell) -> bool:
    """Whether the task can be asked; the cell of the base alone has nothing to upload."""
    if cell.library == "base" or cell.verdict != "equal":
        return cell.verdict == "equal"
    body, content_type = multipart({file.relative_to(cell.folder).as_posix(): file.read_bytes() for file in cell.files})
    status, answer = server.call("PUT", f"/v1/adapters/{cell.task}", body, {"Content-Type": content_type})
    # bad_field: an upload of several folders, where the server takes one.
    if status not in (200, 201) and not note_refusal(cell, answer, (*REFUSALS, "bad_field")):
        cell.faults.append(f"upload: {status} {json.dumps(answer)}")
    return cell.verdict == "equal"


def note_refusal(cell: Cell, answer, codes: tuple = REFUSALS) -> bool:
    """Keeps the reason when the answer is an error that says that this is not computed."""
    error = answer.get("error") if isinstance(answer, dict) else None
    if not isinstance(error, dict) or error.get("code") not in codes:
        return False
    cell.refusal = cell.refusal or f"{error['code']}: {error.get('message')}"
    return True


def request_of(cell: Cell, case: dict) -> dict:
    keys = ("text", "text_pair", "choices") if "text" in case else ("tokens", "token_types")
    request = {"task": cell.task, "input": {key: case[key] for key in keys if key in case}}
    if cell.kind == "generation":
        request["parameters"] = {"logits": True, "return_tokens": True, "temperature": 0,
                                 "max_tokens": case["max_tokens"], "ignore_eos": case["ignore_eos"]}
    elif cell.kind != "embedding":
        request["parameters"] = {"logits": True}
    return request


def infer(server: Server, items: list) -> list:
    """The responses to the (cell, case) items, sent as one call."""
    status, answer = server.call("POST", "/v1/infer", {"requests": [request_of(cell, case) for cell, case in items]})
    responses = answer.get("responses") if isinstance(answer, dict) else None
    if status != 200 or not isinstance(responses, list) or len(responses) != len(items):
        raise Failure(f"POST /v1/infer: {status} {json.dumps(answer)[:500]}")
    return responses


def as_rows(value) -> list:
    if isinstance(value, dict):
        return [value.get("start"), value.get("end")]
    return value if isinstance(value, list) and value and isinstance(value[0], list) else [value]


def rows_of_output(kind: str, output: dict) -> list:
    """The numbers of an answer as rows, whatever its kind calls them."""
    if kind == "embedding":
        return as_rows(output.get("embedding"))
    if kind == "regression":
        return as_rows(output.get("values", [output.get("value")]))
    return as_rows(output.get("logits"))


def rows_of_case(case: dict) -> list:
    return as_rows(case["embedding"] if "embedding" in case else case["logits"])


def row_difference(expected: list, got) -> float:
    """The largest difference relative to the row's scale; infinite when the row is not one of as many numbers."""
    if not isinstance(got, list) or len(got) != len(expected):
        return math.inf
    if not all(isinstance(number, (int, float)) and math.isfinite(number) for number in got):
        return math.inf
    scale = max(1.0, max(abs(number) for number in expected))
    return max(abs(number - other) for number, other in zip(expected, got)) / scale


def rows_difference(expected: list, got: list) -> float:
    if len(expected) != len(got):
        return math.inf
    return max(row_difference(row, other) for row, other in zip(expected, got))


def judge(cell: Cell, label: str, expected: tuple, response: dict, tolerance: float) -> None:
    """Notes in the cell how a response differs from the expected (rows, generated tokens or None)."""
    rows, generated = expected
    if "error" in response:
        if not note_refusal(cell, response):
            cell.faults.append(f"{label}: {json.dumps(response['error'])}")
        return
    if response.get("kind") != cell.kind:
        cell.faults.append(f"{label}: kind {response.get('kind')!r}, expected {cell.kind!r}")
        return
    output = response["output"]
    difference = rows_difference(rows, rows_of_output(cell.kind, output))
    cell.worst = max(cell.worst, difference)
    if not difference <= tolerance:
        cell.faults.append(f"{label}: differs by {difference:.2e} of scale, allowed {tolerance:.0e}")
    if generated is not None and output.get("tokens") != generated:
        cell.faults.append(f"{label}: tokens {output.get('tokens')}, expected {generated}")


def tolerance_of(case: dict, least: float = GOLDEN_TOLERANCE) -> float:
    return max(least, ROUNDING_SHARE * case.get("rounding", 0.0))


def label_of(case: dict) -> str:
    return repr(case["text"]) if "text" in case else f"{len(case['tokens'])} tokens"


def compare_with_goldens(server: Server, items: list, shuffler: random.Random) -> None:
    shuffler.shuffle(items)
    for start in range(0, len(items), REQUESTS_PER_CALL):
        chunk = items[start:start + REQUESTS_PER_CALL]
        for (cell, case), response in zip(chunk, infer(server, chunk)):
            expected = (rows_of_case(case), case.get("generated"))
            judge(cell, label_of(case), expected, response, tolerance_of(case))


def expected_of_response(cell: Cell, response: dict) -> tuple | None:
    """A response turned into what later ones are compared with, or None (and a fault) if it is an error."""
    if "error" in response:
        if not note_refusal(cell, response):
            cell.faults.append(f"alone: {json.dumps(response['error'])}")
        return None
    output = response["output"]
    return rows_of_output(cell.kind, output), output.get("tokens") if cell.kind == "generation" else None


def compare_with_alone(server: Server, items: list, shuffler: random.Random, calls: int) -> None:
    tolerance = ALONE_TOLERANCE.get(server.call("GET", "/v1/info")[1]["cpu_level"], 0.0)
    alone = []
    for cell, case in items:
        expected = expected_of_response(cell, infer(server, [(cell, case)])[0])
        if expected:
            alone.append((cell, case, expected))
    for number in range(calls):
        chosen = shuffler.sample(alone, min(shuffler.randint(2, REQUESTS_PER_CALL), len(alone)))
        responses = infer(server, [(cell, case) for cell, case, _ in chosen])
        for (cell, case, expected), response in zip(chosen, responses):
            judge(cell, f"call {number}, {label_of(case)}", expected, response,
                  tolerance and tolerance_of(case, tolerance))


def make_delta(program: str, bases: Path, cell: Cell, folder: Path) -> None:
    """The files of a cell that is a tuned checkpoint: what `peftd diff` makes of it."""
    tuned, cell.folder = cell.folder.parent / "tuned", folder / cell.name
    done = subprocess.run([program, "diff", "--base", str(bases / cell.base), "--tuned", str(tuned), "--out",
                           str(cell.folder)], capture_output=True, text=True, timeout=CALL_SECONDS)
    last = (done.stderr.splitlines() or [f"exit status {done.returncode}"])[-1]
    if done.returncode in (1, 2):
        cell.refusal = f"diff: {last}"
    elif done.returncode:
        cell.faults.append(f"diff: {last}")
    cell.files = sorted(file for file in cell.folder.rglob("*") if file.is_file())


def prepare(arguments, cells: list, folder: Path) -> None:
    for cell in cells:
        if cell.library == "diff":
            make_delta(arguments.peftd, arguments.golden / "bases", cell, folder)


def check_base(arguments, base: str, shuffler: random.Random) -> list:
    """Runs all cells of one base through one server; a server that fails is a fault of every cell."""
    cells = read_cells(arguments.golden, base, arguments.only)
    if not cells:
        return []
    with tempfile.TemporaryDirectory(prefix="peftd-diff-") as folder:
        prepare(arguments, cells, Path(folder))
        serve_cells(arguments, base, cells, shuffler)
    return cells


def serve_cells(arguments, base: str, cells: list, shuffler: random.Random) -> None:
    try:
        with Server(arguments.peftd, arguments.golden / "bases" / base, arguments.server_options) as server:
            items = [(cell, case) for cell in cells if upload(server, cell) for case in cell.cases]
            if arguments.alone:
                compare_with_alone(server, items, shuffler, arguments.alone)
            else:
                compare_with_goldens(server, items, shuffler)
        if server.exit_status != 0:
            raise Failure(f"exit status {server.exit_status}:\n{server.log_tail}")
    except BaseRefused as refusal:
        for cell in cells:
            cell.refusal = f"base: {refusal}"
    except Failure as error:
        print(f"{base}: {error}")
        for cell in cells:
            cell.faults.append(f"server of {base} failed")


def report(cell: Cell) -> None:
    verdict = {"equal": "ok", "refused": "no", "wrong": "FAIL"}[cell.verdict]
    print(f"{verdict:<4} {cell.name:<48} {cell.kind:<14} {len(cell.cases)} cases  max {cell.worst:.1e}")
    if cell.refusal:
        print(f"       {cell.refusal}")
    for fault in cell.faults[:FAULTS_SHOWN]:
        print(f"       {fault}")
    if len(cell.faults) > FAULTS_SHOWN:
        print(f"       and {len(cell.faults) - FAULTS_SHOWN} more")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peftd", required=True, help="the server program")
    parser.add_argument("--golden", type=Path, required=True, help="a folder with bases/ and cells/")
    parser.add_argument("--base", help="only this base")
    parser.add_argument("--only", default="", help="only cells whose name contains this")
    parser.add_argument("--seed", type=int, default=1, help="of the shuffle")
    parser.add_argument("--alone", type=int, default=0, metavar="N", help="compare alone with N random mixed calls")
    parser.add_argument("--refusals", action="store_true", help="a refused cell is no failure")
    parser.add_argument("--table", type=Path, help="write the table of methods and bases here")
    parser.add_argument("server_options", nargs="*", help="after --: options for peftd serve")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    shuffler = random.Random(arguments.seed)
    bases = [arguments.base] if arguments.base else sorted(path.name for path in arguments.golden.glob("bases/*"))
    cells = []
    for base in bases:
        found = check_base(arguments, base, shuffler)
        for cell in found:
            report(cell)
        cells += found
    count = {verdict: sum(cell.verdict == verdict for cell in cells) for verdict in ("equal", "refused", "wrong")}
    if arguments.table:
        arguments.table.write_text(table.text(cells, table.read_impossible(arguments.golden)), encoding="utf-8")
    print(f"{count['equal']} equal, {count['refused']} refused, {count['wrong']} wrong")
    is_good = not count["wrong"] and (arguments.refusals or not count["refused"])
    return 0 if is_good and count["equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
