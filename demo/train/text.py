"""Examples from a task's data file, and their batches of token ids."""

import json
import os
import random

import torch

PADDING_LABEL = -100


def read_examples(folder, task, split):
    with open(os.path.join(folder, f"{task.name}.jsonl"), encoding="utf-8") as file:
        examples = [json.loads(line) for line in file]
    return [example for example in examples if example["split"] == split]


def pad(rows, value):
    width = max(len(row) for row in rows)
    return torch.tensor([row + [value] * (width - len(row)) for row in rows])


def target_vector(task, example):
    """The class index, or a 0/1 vector over the labels of a multi-label task."""
    if not task.multi_label:
        return task.labels.index(example["target"])
    return [float(label in example["target"]) for label in task.labels]


def classification_items(task, tokenizer, examples):
    ids = tokenizer([example["input"] for example in examples]).input_ids
    return [(row, target_vector(task, example)) for row, example in zip(ids, examples)]


def generation_items(task, tokenizer, examples):
    """Prompt and answer as one sequence that ends with the end token; only the answer is learnt."""
    items = []
    for example in examples:
        prompt = tokenizer(task.prompt.format(input=example["input"])).input_ids
        answer = tokenizer(example["target"]).input_ids + [tokenizer.eos_token_id]
        items.append((prompt + answer, [PADDING_LABEL] * len(prompt) + answer))
    return items


def items_of(task, tokenizer, examples):
    make = generation_items if task.generates else classification_items
    return make(task, tokenizer, examples)


def collate(task, tokenizer, items):
    rows, targets = zip(*items)
    batch = {"input_ids": pad(rows, tokenizer.pad_token_id), "attention_mask": pad([[1] * len(row) for row in rows], 0)}
    return batch, pad(targets, PADDING_LABEL) if task.generates else torch.tensor(targets)


def shuffled_batches(task, tokenizer, items, rng):
    """Random batches of sequences of similar length, in random order."""
    order = sorted(range(len(items)), key=lambda index: len(items[index][0]) + rng.uniform(0, 8))
    groups = [order[start:start + task.batch] for start in range(0, len(order), task.batch)]
    rng.shuffle(groups)
    return [collate(task, tokenizer, [items[index] for index in group]) for group in groups]


def epochs(task, tokenizer, examples, seed):
    """Every batch of the whole training, in order."""
    rng = random.Random(seed)
    items = items_of(task, tokenizer, examples)
    return [batch for _ in range(task.epochs) for batch in shuffled_batches(task, tokenizer, items, rng)]
