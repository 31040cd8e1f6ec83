"""The training loop that all methods share."""

import time

import torch
from torch.nn import functional

from text import PADDING_LABEL

REPORT_EVERY = 25
WARM_UP = 0.06


def keep_answer_positions(model):
    """Make the language-model head compute only the positions that predict an answer token; returns how to set them."""
    kept = {}

    def select(_, inputs):
        return (inputs[0][kept["mask"]],) if kept.get("mask") is not None else inputs

    model.get_output_embeddings().register_forward_pre_hook(select)
    return kept


def generation_loss(model, batch, targets, kept):
    following = targets[:, 1:]
    kept["mask"] = functional.pad(following != PADDING_LABEL, (0, 1))
    logits = model(**batch).logits
    kept["mask"] = None
    return functional.cross_entropy(logits.float(), following[following != PADDING_LABEL])


def classification_loss(model, batch, targets):
    logits = model(**batch).logits.float()
    if targets.is_floating_point():
        return functional.binary_cross_entropy_with_logits(logits, targets)
    return functional.cross_entropy(logits, targets)


def loss_function(task, model):
    if not task.generates:
        return lambda batch, targets: classification_loss(model, batch, targets)
    kept = keep_answer_positions(model)
    return lambda batch, targets: generation_loss(model, batch, targets, kept)


def schedule(step, steps):
    """Linear rise, then linear fall to zero."""
    rise = max(1, int(WARM_UP * steps))
    return min((step + 1) / rise, (steps - step) / max(1, steps - rise))


def train(task, model, batches):
    """Train whatever requires gradients; products in bfloat16, parameters in float32."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=task.lr, weight_decay=0.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: schedule(step, len(batches)))
    loss_of = loss_function(task, model)
    model.train()
    started, total = time.monotonic(), 0.0
    for step, (batch, targets) in enumerate(batches, 1):
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(batch, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        total += loss.item()
        if step % REPORT_EVERY == 0:
            print(f"{task.name} {step}/{len(batches)} loss {total / REPORT_EVERY:.3f} {time.monotonic() - started:.0f} s",
                  flush=True)
            total = 0.0
