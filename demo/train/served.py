#!/usr/bin/env python3
"""Score the demo's tasks as a running server answers them, on the held-out examples, and record it beside the library's score."""

import argparse
import json
import random
import urllib.request

import metrics
import tasks
import text

ITEMS = 64


def call(url, body=None):
    request = urllib.request.Request(url, json.dumps(body).encode() if body else None, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def outputs_of(url, items):
    """The output of each (task, example), in calls that mix all tasks; returns them in the order of items."""
    order = list(range(len(items)))
    random.Random(1).shuffle(order)
    outputs = [None] * len(items)
    for start in range(0, len(order), ITEMS):
        indices = order[start:start + ITEMS]
        requests = [{"task": items[index][0].name, "input": items[index][1]["input"]} for index in indices]
        for index, response in zip(indices, call(f"{url}/v1/infer", {"requests": requests})["responses"]):
            outputs[index] = response["output"]
    return outputs


def prediction(task, output):
    if task.generates:
        return output["text"].strip()
    return output["labels"] if task.multi_label else output["label"]


def main():
    parser = argparse.ArgumentParser(description="Score the tasks that a running server has loaded.")
    parser.add_argument("--server", required=True, help="address, for example http://127.0.0.1:8080")
    parser.add_argument("--data", required=True, help="folder made by data.py")
    parser.add_argument("--metrics", required=True, help="JSON file to update")
    arguments = parser.parse_args()

    there = {adapter["task"] for adapter in call(f"{arguments.server}/v1/adapters")["adapters"]}
    served = [task for task in tasks.ALL if task.name in there]
    items = [(task, example) for task in served for example in text.read_examples(arguments.data, task, "heldout")]
    outputs = outputs_of(arguments.server, items)
    for task in served:
        pairs = [(prediction(task, output), example["target"])
                 for (of, example), output in zip(items, outputs) if of is task]
        score = metrics.score(task, *zip(*pairs))
        print(f"{task.name}: {metrics.name(task)} {score:.4f} on {len(pairs)} examples")
        metrics.update(arguments.metrics, task, {"served": round(score, 4)})


if __name__ == "__main__":
    main()
