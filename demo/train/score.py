#!/usr/bin/env python3
"""Load a saved adapter into its base and score it on the held-out examples; record the score, or check the recorded one."""

import argparse
import importlib

import torch
from transformers import AutoTokenizer

import evaluate
import metrics
import tasks
import text

TOLERANCE = 0.002


def check(task, score, path):
    recorded = metrics.read(path)[task.name]["score"]
    if abs(score - recorded) > TOLERANCE:
        raise SystemExit(f"{task.name}: {score:.4f} now, {recorded:.4f} recorded")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", required=True, choices=[task.name for task in tasks.ALL])
    parser.add_argument("--base", required=True, help="Hugging Face folder of the base model")
    parser.add_argument("--data", required=True, help="folder made by data.py")
    parser.add_argument("--adapter", required=True, help="folder made by train.py")
    parser.add_argument("--metrics", required=True, help="JSON file to update or to check")
    parser.add_argument("--check", action="store_true", help="compare with the recorded score and record nothing")
    parser.add_argument("--dev", action="store_true", help="only print the score on the development examples")
    parser.add_argument("--seed", type=int, default=1, help="of the parts of the base that the adapter replaces")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    task = tasks.by_name(arguments.task)
    method = importlib.import_module(f"method_{task.made_with}")
    examples = text.read_examples(arguments.data, task, "dev" if arguments.dev else "heldout")
    tokenizer = AutoTokenizer.from_pretrained(arguments.base)
    model = method.load(task, arguments.base, arguments.adapter)
    score = evaluate.score(task, model, tokenizer, examples)
    print(f"{task.name}: {metrics.name(task)} {score:.4f} on {len(examples)} examples")
    if arguments.check:
        check(task, score, arguments.metrics)
    elif not arguments.dev:
        metrics.update(arguments.metrics, task, {
            "metric": metrics.name(task), "score": round(score, 4), "heldout": len(examples)})


if __name__ == "__main__":
    main()
