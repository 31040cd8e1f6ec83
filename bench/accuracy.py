"""What --precision costs the demo's eight tasks: their scores on the held-out examples at each precision.

    python3 demo/train/data.py --out DATA          the examples, from Debian's package indexes
    python3 -m bench.accuracy [--peftd BINARY] [--precisions exact,bf16,int8] DATA

Scores are those of demo/README.md (accuracy, micro-F1, ROUGE-L), and in brackets how many of the
answers are not exact's. Calls mix all tasks of a model. Standard library only.
"""
import argparse
import json
import sys
import tempfile
from pathlib import Path

from bench.servers import Peftd

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "demo/train"))
import metrics  # noqa: E402
import tasks  # noqa: E402

ITEMS = 64
MODELS = {tasks.MINILM: ROOT / "build/models/minilm", tasks.SMOLLM2: ROOT / "build/models/smollm2"}


def examples(data, task):
    lines = (data / f"{task.name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [e for e in map(json.loads, lines) if e["split"] == "heldout"]


def prediction(task, output):
    if task.generates:
        return output["text"].strip()
    return output["labels"] if task.multi_label else output["label"]


def answers(server, items):
    """Predictions for (task, example) pairs, whose order mixes the tasks, by task."""
    out = {task.name: [] for task, _ in items}
    for i in range(0, len(items), ITEMS):
        part = items[i:i + ITEMS]
        requests = [{"task": task.name, "input": example["input"]} for task, example in part]
        for (task, _), answer in zip(part, server.infer({"requests": requests})["responses"]):
            out[task.name].append(prediction(task, answer["output"]))
    return out


def mixed(data, served):
    """Examples of all tasks in turn; each task's stay in order."""
    rows = [[(task, e) for e in examples(data, task)] for task in served]
    return [row[i] for i in range(max(map(len, rows))) for row in rows if i < len(row)]


def measure(binary, model, precision, served, items):
    file = next(model.glob("*.gguf"), model)
    with tempfile.TemporaryDirectory() as work, Peftd(binary, file, Path(work), "--precision", precision) as server:
        for task in served:
            server.load(task.name, ROOT / "demo/adapters" / task.name)
        return answers(server, items)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("data", type=Path)
    p.add_argument("--peftd", default=ROOT / "build/release/peftd")
    p.add_argument("--precisions", default="exact,bf16,int8")
    a = p.parse_args()
    precisions = a.precisions.split(",")
    for base, model in MODELS.items():
        served = [task for task in tasks.ALL if task.base == base]
        items = mixed(a.data, served)
        got = {x: measure(a.peftd, model, x, served, items) for x in precisions}
        for task in served:
            expected = [e["target"] for e in examples(a.data, task)]
            cells = []
            for x in precisions:
                mine, first = got[x][task.name], got[precisions[0]][task.name]
                other = sum(g != w for g, w in zip(mine, first))
                cells.append(f"{x} {metrics.score(task, mine, expected):.3f} ({other})")
            print(f"{task.name:<10} {metrics.name(task):<9} {len(expected):5} examples  {'  '.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
