"""Scores, and the file that keeps them."""

import json
import os
import re


def accuracy(predicted, expected):
    return sum(left == right for left, right in zip(predicted, expected)) / len(expected)


def micro_f1(predicted, expected):
    """F1 over all (example, label) pairs; arguments are lists of label sets."""
    hits = sum(len(set(left) & set(right)) for left, right in zip(predicted, expected))
    total = sum(len(left) for left in predicted) + sum(len(right) for right in expected)
    return 2 * hits / total if total else 0.0


def longest_common_subsequence(left, right):
    previous = [0] * (len(right) + 1)
    for word in left:
        current = [0]
        for column, other in enumerate(right):
            current.append(previous[column] + 1 if word == other else max(previous[column + 1], current[column]))
        previous = current
    return previous[-1]


def words(text):
    return re.findall(r"[^\W_]+", text.lower())


def rouge_l_pair(predicted, expected):
    left, right = words(predicted), words(expected)
    common = longest_common_subsequence(left, right)
    return 2 * common / (len(left) + len(right)) if common else 0.0


def rouge_l(predicted, expected):
    """Mean ROUGE-L F1, lower case, no stemming."""
    return sum(map(rouge_l_pair, predicted, expected)) / len(expected)


def score(task, predicted, expected):
    if task.generates:
        return rouge_l(predicted, expected)
    return micro_f1(predicted, expected) if task.multi_label else accuracy(predicted, expected)


def name(task):
    if task.generates:
        return "ROUGE-L"
    return "micro-F1" if task.multi_label else "accuracy"


def read(path):
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def update(path, task, values):
    """Merge values into the task's entry of the metrics file."""
    everything = read(path)
    everything.setdefault(task.name, {}).update(values)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(dict(sorted(everything.items())), file, indent=2, ensure_ascii=False)
        file.write("\n")
