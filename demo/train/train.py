#!/usr/bin/env python3
"""Train the adapter of one demo task and save it with its task.json; score.py scores it."""

import argparse
import importlib
import json
import os
import random
import shutil

import numpy
import torch
from transformers import AutoTokenizer

import loop
import metrics
import tasks
import text


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", required=True, choices=[task.name for task in tasks.ALL])
    parser.add_argument("--base", required=True, help="Hugging Face folder of the base model")
    parser.add_argument("--data", required=True, help="folder made by data.py")
    parser.add_argument("--out", required=True, help="folder for the adapter; replaced")
    parser.add_argument("--metrics", required=True, help="JSON file to update")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def seed_everything(seed):
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


def task_settings(task):
    """What the library's own files do not tell the server."""
    if task.generates:
        return {"prompt": task.prompt, "parameters": {"max_tokens": task.max_tokens}}
    kind = "multi_label_classification" if task.multi_label else "single_label_classification"
    pooling = {"pooling": task.pooling} if task.pooling else {}
    return {"labels": list(task.labels), "problem_type": kind, **pooling}


def save_folder(method, model, task, arguments):
    shutil.rmtree(arguments.out, ignore_errors=True)
    os.makedirs(arguments.out)
    method.save(model, task, arguments.base, arguments.out)
    with open(os.path.join(arguments.out, "task.json"), "w", encoding="utf-8") as file:
        json.dump(task_settings(task), file, indent=2, ensure_ascii=False)
        file.write("\n")


def folder_bytes(folder):
    return sum(entry.stat().st_size for entry in os.scandir(folder))


def main():
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    seed_everything(arguments.seed)
    task = tasks.by_name(arguments.task)
    method = importlib.import_module(f"method_{task.made_with}")
    tokenizer = AutoTokenizer.from_pretrained(arguments.base)
    examples = text.read_examples(arguments.data, task, "train")

    model = method.build(task, arguments.base, tokenizer, examples)
    loop.train(task, model, text.epochs(task, tokenizer, examples, arguments.seed))
    save_folder(method, model, task, arguments)
    metrics.update(arguments.metrics, task, {
        "base": task.base, "method": task.method, "made_with": task.made_with, "seed": arguments.seed,
        "train": len(examples), "bytes": folder_bytes(arguments.out),
    })


if __name__ == "__main__":
    main()
