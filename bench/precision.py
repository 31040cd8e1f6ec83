"""What --precision and --kv-type cost in accuracy: a model's answers beside those of exact arithmetic.

    python3 -m bench.precision [--peftd BINARY] [--prompts 100] [--tokens 64] MODEL

A decoder: of each prompt's greedy continuation, whether its tokens are those of exact, how many
come before the first that differs, and how far the logits after the prompt lie from exact's. An
encoder: cosine and largest difference of embeddings. Standard library only.
"""
import argparse
import json
import math
import statistics
import tempfile
import urllib.request
from pathlib import Path

from bench import texts
from bench.servers import Peftd

PRECISIONS = ("exact", "bf16", "int8")
KV_TYPES = ("f16", "bf16")


def call(port, path, body=None):
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as r:
        return json.load(r)


def answers(port, inputs, parameters):
    out = []
    for i in range(0, len(inputs), 10):  # a row of logits is half a megabyte of text
        body = {"task": "base", "inputs": inputs[i:i + 10]}
        out += call(port, "/v1/infer", body | ({"parameters": parameters} if parameters else {}))["outputs"]
    return out


def prompts(n):
    """Texts of 5 to 40 words, no two alike."""
    words = " ".join(texts.prompts(16) + texts.encoder_texts()).split()
    return [" ".join(words[(i * 37) % (len(words) - 40):][:5 + i % 36]) for i in range(n)]


def generation(got, want):
    same = [g["tokens"] == w["tokens"] for g, w in zip(got, want)]
    before = [next((i for i, (x, y) in enumerate(zip(g["tokens"], w["tokens"])) if x != y), len(w["tokens"]))
              for g, w in zip(got, want)]
    apart = [max(abs(x - y) for x, y in zip(g["logits"], w["logits"])) for g, w in zip(got, want)]
    return (f"{sum(same)} of {len(same)} continuations the same, first token {sum(b > 0 for b in before)}; "
            f"same tokens before the first other: median {statistics.median(before):.0f}; "
            f"logits after the prompt: largest difference {max(apart):.3f}, median of the prompts' largest {statistics.median(apart):.3f}")


def embedding(got, want):
    def cosine(a, b):
        return sum(x * y for x, y in zip(a, b)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))
    pairs = [(g["embedding"], w["embedding"]) for g, w in zip(got, want)]
    apart = max(abs(x - y) for g, w in pairs for x, y in zip(g, w))
    least = min(cosine(g, w) for g, w in pairs)
    return f"least cosine {least:.6f}, largest difference of a value {apart:.5f}"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--peftd", default=Path(__file__).resolve().parent.parent / "build/release/peftd")
    p.add_argument("--prompts", type=int, default=100)
    p.add_argument("--tokens", type=int, default=64)
    a = p.parse_args()
    exact = None
    for option, value in [("precision", p) for p in PRECISIONS] + [("kv-type", t) for t in KV_TYPES]:
        with tempfile.TemporaryDirectory() as work, Peftd(a.peftd, a.model, Path(work), f"--{option}", value) as s:
            info = call(s.port, "/v1/info")
            is_decoder = info["model"]["is_decoder"]
            parameters = {"max_tokens": a.tokens, "temperature": 0, "ignore_eos": True, "logits": True, "return_tokens": True}
            got = answers(s.port, prompts(a.prompts), parameters if is_decoder else None)
            if exact is None:
                exact = got
                print(f"{a.model}: {info['model']['arch']}, {info['cpu_level']}, {a.prompts} inputs")
            else:
                print(f"{option} {value}: " + (generation if is_decoder else embedding)(got, exact), flush=True)


if __name__ == "__main__":
    main()
