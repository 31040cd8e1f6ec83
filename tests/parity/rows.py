"""Rows alone and beside others: `rows.py --peftd PROGRAM --calls 200`, the same bits at each vector level of this CPU.

For one base of each kind (encoder, decoder, encoder-decoder) every committed case of every task is asked alone. Then come
random calls that mix tasks and lengths, for those that generate in a server whose KV memory is too small for them: sequences
are put back into the queue and computed again. Each answer is compared with the one alone, number by number as JSON holds
it, nine digits, which lead back to the f32. It fails if no sequence was put back.
"""

import argparse
import json
import platform
import random
import re
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.parity import parity  # noqa: E402

LEVELS = (("neon", "neon-dotprod", "neon-bf16", "sve") if platform.machine() == "aarch64"
          else ("avx2", "avx2float", "avxvnni", "avx512", "avx512vnni", "avx512bf16", "amx"))
REQUESTS = (2, 24)  # of a call
PREEMPTIONS = re.compile(r"^peftd_preemptions_total (\d+)$", re.MULTILINE)


@dataclass
class Base:
    """`max_tokens` makes sequences outgrow their first block of KV memory, `options` leave room for a few blocks."""

    name: str
    kind: str
    max_tokens: int = 0
    options: tuple = ()


BASES = (Base("bert", "encoder"), Base("llama", "decoder", 60, ("--kv-bytes", "161500", "--kv-share", "100")),
         Base("bart", "encoder-decoder", 60, ("--kv-bytes", "378000", "--kv-share", "100")))


def requests_of(server: parity.Server, cells: list, max_tokens: int) -> list:
    requests = []
    for cell in cells:
        if parity.upload(server, cell):
            for case in cell.cases:
                request = parity.request_of(cell, case)
                if cell.kind == "generation":
                    request["parameters"] |= {"max_tokens": max_tokens, "ignore_eos": True}
                requests.append(request)
    return requests


def answers(server: parity.Server, requests: list) -> list:
    status, answer = server.call("POST", "/v1/infer", {"requests": requests})
    if status != 200:
        raise parity.Failure(f"POST /v1/infer: {status} {json.dumps(answer)[:300]}")
    return [response.get("output", response.get("error")) for response in answer["responses"]]


def first_difference(one, other) -> str:
    text, beside = json.dumps(one), json.dumps(other)
    at = next((i for i, (a, b) in enumerate(zip(text, beside)) if a != b), min(len(text), len(beside)))
    return f"alone ...{text[max(0, at - 20):at + 30]}, mixed ...{beside[max(0, at - 20):at + 30]}"


def compare(server: parity.Server, alone: list, calls: int, shuffler: random.Random) -> tuple:
    """How many rows were compared, and what differed."""
    compared, faults = 0, []
    for number in range(calls):
        chosen = shuffler.sample(alone, shuffler.randint(*REQUESTS))
        for (request, output), mixed in zip(chosen, answers(server, [request for request, _ in chosen])):
            compared += 1
            if mixed != output:
                faults.append(f"call {number}, {request['task']}: {first_difference(output, mixed)}")
    return compared, faults


def check(arguments: argparse.Namespace, base: Base, level: str, shuffler: random.Random) -> bool:
    """One base at one level. A level that this CPU lacks passes, and says so."""
    options, model = ["--cpu-level", level], arguments.golden / "bases" / base.name
    cells = parity.read_cells(arguments.golden, base.name, "")
    try:
        with parity.Server(arguments.peftd, model, options) as server:
            requests = requests_of(server, cells, base.max_tokens)
            alone = [(request, answers(server, [request])[0]) for request in requests]
    except parity.BaseRefused as refusal:
        print(f"--   {level:<11} {base.kind:<16} {refusal}")
        return True
    with parity.Server(arguments.peftd, model, [*options, *base.options]) as server:
        requests_of(server, cells, base.max_tokens)
        compared, faults = compare(server, alone, arguments.calls, shuffler)
        put_back = int(PREEMPTIONS.search(server.call("GET", "/metrics")[1].decode())[1])
    errors = sum("logits" not in output and "embedding" not in output and "value" not in output for _, output in alone)
    if errors:
        faults.append(f"{errors} inputs were answered by errors")
    if base.options and not put_back:
        faults.append("no sequence was put back")
    print(f"{'FAIL' if faults else 'ok  '} {level:<11} {base.kind:<16} {base.name}: {len(alone)} inputs of "
          f"{len(cells)} tasks, {compared} rows in {arguments.calls} calls, {put_back} sequences put back", flush=True)
    for fault in faults[:parity.FAULTS_SHOWN]:
        print(f"       {fault}")
    return not faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peftd", required=True, help="the server program")
    parser.add_argument("--golden", type=Path, default=Path(__file__).resolve().parents[1] / "golden")
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--level", choices=LEVELS, help="only this one")
    arguments = parser.parse_args()
    shuffler = random.Random(arguments.seed)
    good = [check(arguments, base, level, shuffler) for level in LEVELS if level == (arguments.level or level) for base in BASES]
    print(f"{sum(good)} equal, {len(good) - sum(good)} not")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
