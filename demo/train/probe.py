"""A linear head on frozen vectors."""

import torch
from torch.nn import functional

import evaluate
import text

STEPS = 500
LR = 0.05


def vectors_of(encode, tokenizer, examples):
    """encode(ids) of every example, where ids are rows of equal length."""
    rows = tokenizer([example["input"] for example in examples]).input_ids
    result = [None] * len(rows)
    with torch.no_grad():
        for group in evaluate.equal_length_batches(rows):
            for index, vector in zip(group, encode(torch.tensor([rows[index] for index in group]))):
                result[index] = vector
    return torch.stack(result)


def fit(task, vectors, examples, decay):
    targets = torch.tensor([text.target_vector(task, example) for example in examples])
    loss_of = functional.binary_cross_entropy_with_logits if task.multi_label else functional.cross_entropy
    head = torch.nn.Linear(vectors.shape[1], len(task.labels))
    optimizer = torch.optim.Adam(head.parameters(), lr=LR, weight_decay=decay)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(head(vectors), targets).backward()
        optimizer.step()
    return head.requires_grad_(False)
