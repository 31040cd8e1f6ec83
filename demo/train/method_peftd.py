"""BitFit and a FISH-mask sparse difference, which no library saves: delta.json and delta.safetensors.

delta.safetensors holds, under the parameter names of BertForSequenceClassification: `<name>`, a parameter that replaces the
base's; `<name>#idx`, flat positions in ascending order (int32), and `<name>#val`, what to add there (float32). The head reads
the mean of the last hidden states, as the base was trained to be read; task.json says so.
"""

import json
import os

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, BertForSequenceClassification
from transformers.modeling_outputs import SequenceClassifierOutput

import loop
import probe
import text

FISHER_EXAMPLES = 512
HEAD_DECAY = 3e-3
KEPT_FRACTION = 0.005


class MeanPooled(BertForSequenceClassification):
    def pooled(self, input_ids, attention_mask):
        hidden = self.bert(input_ids, attention_mask).last_hidden_state
        shares = attention_mask / attention_mask.sum(1, keepdim=True)
        return (hidden * shares.unsqueeze(-1)).sum(1)

    def forward(self, input_ids, attention_mask):
        return SequenceClassifierOutput(logits=self.classifier(self.dropout(self.pooled(input_ids, attention_mask))))


def base_model(task, path):
    return MeanPooled.from_pretrained(path, config=AutoConfig.from_pretrained(path, num_labels=len(task.labels)))


def is_encoder_weight(name, parameter):
    return name.startswith("bert.encoder.layer.") and name.endswith(".weight") and parameter.dim() == 2


def is_trained_bias(name):
    return name.endswith(".bias") and name.startswith("bert.encoder.layer.")


def build(task, base, tokenizer, examples):
    model = base_model(task, base)
    start_head(task, model, tokenizer, examples)
    trained = is_trained if task.method == "bitfit" else is_sparsely_trained
    for name, parameter in model.named_parameters():
        parameter.requires_grad = trained(name, parameter)
    if task.method == "diff":
        mask_gradients(model, fish_masks(task, model, tokenizer, examples[:FISHER_EXAMPLES]))
    return model


def start_head(task, model, tokenizer, examples):
    """Fit the classifier to the frozen model first: the gradients behind a random one say little about the weights."""
    model.eval()
    vectors = probe.vectors_of(lambda ids: model.pooled(ids, torch.ones_like(ids)), tokenizer, examples)
    head = probe.fit(task, vectors, examples, HEAD_DECAY)
    model.classifier.load_state_dict(head.state_dict())


def is_trained(name, parameter):
    return name.startswith("classifier.") or is_trained_bias(name)


def is_sparsely_trained(name, parameter):
    return name.startswith("classifier.") or is_encoder_weight(name, parameter)


def fisher(task, model, tokenizer, examples):
    """Sum of squared gradients of each encoder weight (the empirical Fisher information), one example at a time."""
    weights = {name: weight for name, weight in model.named_parameters() if is_encoder_weight(name, weight)}
    sums = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    loss_of = loop.loss_function(task, model)
    model.eval()
    for item in text.items_of(task, tokenizer, examples):
        model.zero_grad()
        loss_of(*text.collate(task, tokenizer, [item])).backward()
        for name, weight in weights.items():
            sums[name] += weight.grad.square()
    model.zero_grad()
    return sums


def fish_masks(task, model, tokenizer, examples):
    """Keep the weights with the most Fisher information, over all matrices together."""
    sums = fisher(task, model, tokenizer, examples)
    every = torch.cat([total.flatten() for total in sums.values()])
    threshold = every.topk(int(KEPT_FRACTION * every.numel())).values[-1]
    return {name: (total >= threshold).float() for name, total in sums.items()}


def mask_gradients(model, masks):
    for name, parameter in model.named_parameters():
        if name in masks:
            parameter.register_hook(lambda gradient, mask=masks[name]: gradient * mask)


def sparse_tensors(name, weight, before):
    difference = (weight - before).flatten()
    positions = difference.nonzero().flatten()
    if not len(positions):
        return {}
    return {f"{name}#idx": positions.to(torch.int32), f"{name}#val": difference[positions]}


def tensors_of(model, task, base):
    before = base_model(task, base).state_dict()
    tensors = {}
    for name, parameter in model.named_parameters():
        if is_encoder_weight(name, parameter) and parameter.requires_grad:
            tensors.update(sparse_tensors(name, parameter.detach(), before[name]))
        elif parameter.requires_grad:
            tensors[name] = parameter.detach().contiguous()
    return tensors


def save(model, task, base, folder):
    save_file(tensors_of(model, task, base), os.path.join(folder, "delta.safetensors"))
    with open(os.path.join(folder, "delta.json"), "w", encoding="utf-8") as file:
        json.dump({"method": task.method, "base": task.base}, file, indent=2)
        file.write("\n")


def load(task, base, folder):
    model = base_model(task, base)
    tensors = load_file(os.path.join(folder, "delta.safetensors"))
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for key, tensor in tensors.items():
            name, _, part = key.partition("#")
            if not part:
                parameters[name].copy_(tensor)
            elif part == "val":
                parameters[name].view(-1).index_add_(0, tensors[f"{name}#idx"].long(), tensor)
    return model
