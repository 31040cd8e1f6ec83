#!/usr/bin/env python3
"""Score what can be had without training the task's adapter, on the same held-out examples, and record it.

Classification: the most frequent answer; the nearest class centroid and a linear probe on the frozen model's sentence embeddings.
Generation: the input itself, or its first sentence; the base model asked with the same prompt, with three examples in front
of it, and in its chat format. The first line of an answer counts, as the base model often goes on.
"""

import argparse
import collections
import re

import torch
from torch.nn import functional
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

import evaluate
import metrics
import probe
import prompts
import tasks
import text

PROBE_DECAYS = (0.0, 1e-4, 1e-3, 1e-2)


def embeddings(model, tokenizer, examples):
    """Mean of the last hidden states, normalised: this model's own sentence embedding."""
    def encode(ids):
        return functional.normalize(model(ids).last_hidden_state.mean(1), dim=-1)

    return probe.vectors_of(encode, tokenizer, examples)


def answer_key(example):
    """The target as something that can be counted: a label, or a tuple of labels."""
    return tuple(example["target"]) if isinstance(example["target"], list) else example["target"]


def majority(train_examples, scored_examples):
    winner = collections.Counter(map(answer_key, train_examples)).most_common(1)[0][0]
    return [winner] * len(scored_examples)


def nearest_centroid(train_examples, train_vectors, scored_vectors):
    """For a multi-label task each set of labels that occurs counts as a class."""
    keys = sorted(set(map(answer_key, train_examples)))
    owner = torch.tensor([keys.index(answer_key(example)) for example in train_examples])
    centroids = torch.stack([train_vectors[owner == number].mean(0) for number in range(len(keys))])
    best = (scored_vectors @ functional.normalize(centroids, dim=-1).T).argmax(-1)
    return [keys[number] for number in best.tolist()]


def linear_probe(task, examples, vectors):
    """A head alone; its weight decay is the one that does best on the development examples."""
    expected = [example["target"] for example in examples["dev"]]
    heads = [probe.fit(task, vectors["train"], examples["train"], decay) for decay in PROBE_DECAYS]
    best = max(heads, key=lambda head: metrics.score(task, evaluate.labels_of(task, head(vectors["dev"])), expected))
    return evaluate.labels_of(task, best(vectors["heldout"]))


def classification_answers(task, arguments, tokenizer, examples):
    model = AutoModel.from_pretrained(arguments.base).eval()
    vectors = {split: embeddings(model, tokenizer, rows) for split, rows in examples.items()}
    return {
        "most frequent answer": majority(examples["train"], examples["heldout"]),
        "nearest centroid": nearest_centroid(examples["train"], vectors["train"], vectors["heldout"]),
        "linear probe": linear_probe(task, examples, vectors),
    }


def first_sentence(passage):
    return re.split(r"(?<=[.!?:])\s", passage, maxsplit=1)[0]


def first_lines(answers):
    return [answer.partition("\n")[0] for answer in answers]


def generation_answers(task, arguments, tokenizer, examples):
    model = AutoModelForCausalLM.from_pretrained(arguments.base, dtype=torch.float32).eval()
    inputs = [example["input"] for example in examples["heldout"]]
    plain = [task.prompt.format(input=passage) for passage in inputs]
    shots = prompts.few_shot(task, examples["train"])
    asked = {
        "base, same prompt": plain,
        f"base, {prompts.SHOTS} examples in the prompt": [shots + prompt for prompt in plain],
        "base, asked in chat": [prompts.chat(task, tokenizer, passage) for passage in inputs],
    }
    answers = {name: first_lines(evaluate.generate(model, tokenizer, rows, task.max_tokens)) for name, rows in asked.items()}
    if task.source == "synopsis":
        return {"first sentence": [first_sentence(passage) for passage in inputs], **answers}
    return {"input copied": inputs, **answers}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", required=True, choices=[task.name for task in tasks.ALL])
    parser.add_argument("--base", required=True, help="Hugging Face folder of the base model")
    parser.add_argument("--data", required=True, help="folder made by data.py")
    parser.add_argument("--metrics", required=True, help="JSON file to update")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    task = tasks.by_name(arguments.task)
    tokenizer = AutoTokenizer.from_pretrained(arguments.base)
    examples = {split: text.read_examples(arguments.data, task, split) for split in ("train", "dev", "heldout")}
    expected = [example["target"] for example in examples["heldout"]]
    answer = generation_answers if task.generates else classification_answers
    answers = answer(task, arguments, tokenizer, examples)
    scores = {name: round(metrics.score(task, predicted, expected), 4) for name, predicted in answers.items()}
    print(task.name, scores)
    metrics.update(arguments.metrics, task, {"baselines": scores})


if __name__ == "__main__":
    main()
