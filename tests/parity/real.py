"""Compares real models with `transformers`: `real.py --peftd PROGRAM --golden DIR --minilm DIR --smollm2 FILE`.

MiniLM's embeddings of texts (so its tokenizer too), and SmolLM2's logits and greedy tokens, over HTTP, all cases of a
model in one call. One line per model, then `N passed, M failed`.
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from parity import Failure, Server  # noqa: E402

# f32 arithmetic of 6 and of 30 layers in another order of summation; transformers itself differs by as much between
# a padded and an unpadded batch.
TOLERANCE = 1e-4


def infer(server, requests):
    status, answer = server.call("POST", "/v1/infer", {"requests": requests})
    if status != 200:
        raise Failure(f"/v1/infer: {status}")
    return [r.get("output", r) for r in answer["responses"]]


def text_input(case):
    if case.get("text_pair") is not None:
        return {"text": case["text"], "text_pair": case["text_pair"]}
    return case["text"]


def difference(found, expected):
    scale = max(1.0, max(abs(v) for v in expected))
    return max(abs(a - b) for a, b in zip(found, expected, strict=True)) / scale


def minilm_faults(server, golden):
    requests = [{"task": "base", "input": text_input(c)} for c in golden["cases"]]
    for case, out in zip(golden["cases"], infer(server, requests), strict=True):
        worst = difference(out["embedding"], case["embedding"])
        if worst > TOLERANCE:
            yield f"{case['text'][:40]!r}: differs by {worst:.1e}"


def smollm2_faults(server, golden):
    parameters = {"temperature": 0, "max_tokens": golden["max_tokens"], "ignore_eos": golden["ignore_eos"],
                  "return_tokens": True, "logits": True}
    requests = [{"task": "base", "input": c["text"], "parameters": parameters} for c in golden["cases"]]
    for case, out in zip(golden["cases"], infer(server, requests), strict=True):
        worst = difference([out["logits"][i] for i in golden["ids"]], case["logits_at_ids"])
        if worst > TOLERANCE:
            yield f"{case['text'][:40]!r}: logits differ by {worst:.1e}"
        if out["tokens"] != case["generated"]:
            yield f"{case['text'][:40]!r}: tokens {out['tokens']}, expected {case['generated']}"


def run(name, faults, program, model, golden):
    with Server(program, model, []) as server:
        found = list(faults(server, golden))
    print(f"{'FAIL' if found else 'ok  '} {name}  {len(golden['cases'])} cases")
    for fault in found[:5]:
        print(f"     {fault}")
    return not found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("peftd", "golden", "minilm", "smollm2"):
        parser.add_argument(f"--{name}", required=True)
    args = parser.parse_args()
    folder = Path(args.golden) / "real"
    good = [run("minilm", minilm_faults, args.peftd, Path(args.minilm),
                json.loads((folder / "minilm.json").read_text())),
            run("smollm2", smollm2_faults, args.peftd, Path(args.smollm2),
                json.loads((folder / "smollm2.json").read_text()))]
    print(f"{sum(good)} passed, {len(good) - sum(good)} failed")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
