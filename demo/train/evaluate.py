"""Predictions of a model, in float32."""

import itertools

import torch

import metrics

BATCH = 32


def equal_length_batches(rows):
    """Yield lists of row numbers; all rows of one list have the same length, so that none is padded."""
    order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
    for _, group in itertools.groupby(order, key=lambda index: len(rows[index])):
        group = list(group)
        for start in range(0, len(group), BATCH):
            yield group[start:start + BATCH]


def logits_of(model, tokenizer, texts):
    rows = tokenizer(texts).input_ids
    result = [None] * len(rows)
    with torch.no_grad():
        for group in equal_length_batches(rows):
            ids = torch.tensor([rows[index] for index in group])
            logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
            for index, row in zip(group, logits):
                result[index] = row
    return torch.stack(result)


def labels_of(task, logits):
    """The best label of each row, or for a multi-label task the list of those whose probability is above one half."""
    if task.multi_label:
        return [[label for label, value in zip(task.labels, row) if value > 0] for row in logits.tolist()]
    return [task.labels[index] for index in logits.argmax(-1).tolist()]


def generate(model, tokenizer, prompts, max_tokens):
    """Greedy continuations, without the end token. Padding stands on the left, where masks and positions skip it."""
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    result = [None] * len(prompts)
    for start in range(0, len(order), BATCH):
        group = order[start:start + BATCH]
        batch = tokenizer([prompts[index] for index in group], padding=True, padding_side="left", return_tensors="pt")
        with torch.no_grad():
            output = model.generate(
                input_ids=batch.input_ids, attention_mask=batch.attention_mask, do_sample=False, max_new_tokens=max_tokens,
                eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
        answers = tokenizer.batch_decode(output[:, batch.input_ids.shape[1]:], skip_special_tokens=True)
        for index, answer in zip(group, answers):
            result[index] = answer.strip()
    return result


def predict(task, model, tokenizer, examples):
    inputs = [example["input"] for example in examples]
    if task.generates:
        prompts = [task.prompt.format(input=text) for text in inputs]
        return generate(model, tokenizer, prompts, task.max_tokens)
    return labels_of(task, logits_of(model, tokenizer, inputs))


def score(task, model, tokenizer, examples):
    model.eval()
    predicted = predict(task, model, tokenizer, examples)
    return metrics.score(task, predicted, [example["target"] for example in examples])
