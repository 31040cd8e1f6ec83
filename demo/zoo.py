#!/usr/bin/env python3
"""Serves a random base of each family with a task of each method: `zoo.py [--peftd PROGRAM] [--ask] [FAMILY...]`.

The bases and tasks are the committed goldens, small and untrained: their answers mean nothing, but every number is known
from the library that the task belongs to. Each base gets a server on a port of its own; the lines that are printed say
which tasks it has and how to ask them. The servers end with Ctrl-C. With --ask each task is asked once, the answer is
compared with the library's, and the servers end by themselves. Standard library only.
"""

import argparse
import contextlib
import json
import shlex
import signal
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from tests.support.peftd import Client, Process, multipart  # noqa: E402

GOLDEN = ROOT / "tests" / "golden"
OPTIONS = ("--kv-bytes", "16MiB", "--threads", "1", "--http-threads", "1")
TOLERANCE = 1e-4
LIBRARIES = {"peft": "peft", "adapterhub": "adapterhub", "delta": "own"}


class Base:
    """One base and the cells that show a method each: {task name: cell folder}."""

    def __init__(self, folder: Path):
        self.folder, self.tasks = folder, {}
        self.family = json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"]


def golden_of(cell: Path) -> dict:
    return json.loads((cell / "golden.json").read_text(encoding="utf-8"))


def files_of(folder: Path) -> dict:
    """{path: bytes}: a composition has a folder for each of its adapters."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def zoo() -> list:
    """The bases, most tasks first in each family; one whose methods its family has shown already is left out."""
    bases = {folder.name: Base(folder) for folder in sorted((GOLDEN / "bases").iterdir()) if folder.is_dir()}
    for path in sorted(GOLDEN.glob("cells/*/golden.json")):
        golden = golden_of(path.parent)
        if golden["base"] in bases and golden["reader"] in LIBRARIES:
            name = f"{LIBRARIES[golden['reader']]}-{golden['method']}"
            bases[golden["base"]].tasks.setdefault(name, path.parent)
    chosen, shown = [], set()
    for base in sorted(bases.values(), key=lambda base: (base.family, -len(base.tasks), base.folder.name)):
        new = {(base.family, name) for name in base.tasks} - shown
        if new or all(base.family != other.family for other in chosen):
            chosen.append(base)
            shown |= new
    return chosen


class Server(Process):
    """A peftd that serves one base with its tasks; a context."""

    def __init__(self, program: str, base: Base, folder: Path):
        self.base = base
        super().__init__([program, "serve", "--model", base.folder, "--store", folder / base.folder.name, "--listen",
                          "127.0.0.1:0", *OPTIONS], folder / f"{base.folder.name}.log")

    def fill(self) -> None:
        self.listen()
        self.wait_until(lambda: self.answers("/readyz"))
        with Client(self.port) as client:
            for task, cell in self.base.tasks.items():
                body, content_type = multipart(files_of(cell / "adapter"))
                status, answer = client.call("PUT", f"/v1/adapters/{task}", body, {"Content-Type": content_type})
                if status not in (200, 201):
                    raise SystemExit(f"{self.base.folder.name}, {task}: {answer}")


def request_of(task: str, golden: dict) -> dict:
    case = golden["cases"][-1]
    keys = ("text", "text_pair", "choices") if "text" in case else ("tokens", "token_types")
    request = {"task": task, "input": {key: case[key] for key in keys if key in case}}
    if golden["kind"] == "generation":
        request["parameters"] = {"logits": True, "return_tokens": True, "max_tokens": case["max_tokens"],
                                 "ignore_eos": case["ignore_eos"]}
    elif golden["kind"] != "embedding":
        request["parameters"] = {"logits": True}
    return request


def numbers(value) -> list:
    """All numbers of a value, in its order."""
    if isinstance(value, dict):
        return [x for key in ("start", "end") for x in numbers(value[key])]
    return [x for part in value for x in numbers(part)] if isinstance(value, list) else [value]


def difference(golden: dict, output: dict) -> float:
    case = golden["cases"][-1]
    expected = numbers(case["embedding"] if "embedding" in case else case["logits"])
    got = numbers(output.get("embedding", output.get("logits", output.get("value"))))
    if len(got) != len(expected) or output.get("tokens", case.get("generated")) != case.get("generated") is not None:
        return float("inf")
    return max(abs(a - b) for a, b in zip(expected, got)) / max(1.0, *map(abs, expected))


def show(server: Server) -> None:
    base = server.base
    print(f"\n{base.family}: {base.folder.name}, http://127.0.0.1:{server.port}, {len(base.tasks)} tasks")
    print("  " + ", ".join(base.tasks))
    task = next(iter(base.tasks), "base")
    golden = golden_of(base.tasks[task]) if base.tasks else {"kind": "embedding", "cases": [{"tokens": [3, 4, 5]}]}
    request = {key: value for key, value in request_of(task, golden).items() if key != "parameters"}
    body = json.dumps({"requests": [request]})
    print(f"  curl 127.0.0.1:{server.port}/v1/infer -d {shlex.quote(body)}", flush=True)


def ask(server: Server) -> list:
    """Every task in one call; those whose answer is not the library's."""
    goldens = {task: golden_of(cell) for task, cell in server.base.tasks.items()}
    if not goldens:
        return []
    with Client(server.port) as client:
        requests = [request_of(task, golden) for task, golden in goldens.items()]
        status, answer = client.call("POST", "/v1/infer", {"requests": requests})
    if status != 200:
        return [f"{server.base.folder.name}: {status} {answer}"]
    wrong = []
    for (task, golden), response in zip(goldens.items(), answer["responses"]):
        limit = max(TOLERANCE, 2 * golden["cases"][-1].get("rounding", 0))  # as tests/parity does
        if "output" not in response or difference(golden, response["output"]) > limit:
            wrong.append(f"{server.base.folder.name}, {task}: {json.dumps(response)[:200]}")
    print(f"{server.base.family:<12} {server.base.folder.name:<18} {len(goldens)} tasks, {len(wrong)} wrong", flush=True)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peftd", default=str(ROOT / "build" / "peftd"), help="the server program")
    parser.add_argument("--ask", action="store_true", help="ask each task once, compare, and end")
    parser.add_argument("families", nargs="*", metavar="FAMILY", help="model types; all of them")
    arguments = parser.parse_args()
    bases = [base for base in zoo() if not arguments.families or base.family in arguments.families]
    missing = set(arguments.families) - {base.family for base in bases}
    if missing:
        sys.exit(f"no such family: {', '.join(sorted(missing))}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with tempfile.TemporaryDirectory(prefix="peftd-zoo-") as folder, contextlib.ExitStack() as stack:
        servers = [stack.enter_context(Server(arguments.peftd, base, Path(folder))) for base in bases]
        for server in servers:
            server.fill()
            if not arguments.ask:
                show(server)
        if arguments.ask:
            wrong = [line for server in servers for line in ask(server)]
            print("\n".join([*wrong, f"{sum(len(base.tasks) for base in bases)} tasks on {len(bases)} bases of "
                             f"{len({base.family for base in bases})} families, {len(wrong)} wrong"]))
            return 1 if wrong else 0
        print("\nThe numbers that the libraries gave are in tests/golden/cells/*/golden.json. Ctrl-C ends the servers.", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main())
