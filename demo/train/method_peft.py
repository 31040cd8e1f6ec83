"""LoRA, (IA)3 and prefix tuning, by the peft library."""

import os

import torch
from peft import IA3Config, LoraConfig, PeftModel, PrefixTuningConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

import prompts

PREFIX_TOKENS = 40
BERT_LINEARS = ["query", "key", "value", "attention.output.dense", "intermediate.dense", "output.dense"]


def base_model(task, path):
    if task.generates:
        return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    return AutoModelForSequenceClassification.from_pretrained(
        path, num_labels=len(task.labels), id2label=dict(enumerate(task.labels)),
        label2id={label: index for index, label in enumerate(task.labels)})


def lora_config(task):
    if task.generates:
        return LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"])
    return LoraConfig(task_type="SEQ_CLS", r=8, lora_alpha=16, target_modules=BERT_LINEARS)


def ia3_config(task):
    return IA3Config(task_type="SEQ_CLS", target_modules=["key", "value", "output.dense"],
                     feedforward_modules=["output.dense"])


def build(task, base, tokenizer, examples):
    model = base_model(task, base)
    if task.method == "prefix":
        return prefix_model(task, model, tokenizer, examples)
    return get_peft_model(model, {"lora": lora_config, "ia3": ia3_config}[task.method](task))


def prefix_model(task, model, tokenizer, examples):
    """Start from the keys and values of a prompt with examples: a random prefix learns far more slowly."""
    ids = torch.tensor([tokenizer(prompts.few_shot(task, examples)).input_ids[-PREFIX_TOKENS:]])
    with torch.no_grad():
        layers = model(input_ids=ids, use_cache=True).past_key_values.layers
    slots = [slot for layer in layers for slot in (layer.keys[0], layer.values[0])]
    start = torch.stack(slots).permute(2, 0, 1, 3).reshape(ids.shape[1], -1)
    tuned = get_peft_model(model, PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=ids.shape[1]))
    tuned.prompt_encoder["default"].embedding.weight.data.copy_(start)
    return tuned


def save(model, task, base, folder):
    model.peft_config["default"].base_model_name_or_path = task.base
    model.save_pretrained(folder, save_embedding_layers=False)
    os.remove(os.path.join(folder, "README.md"))  # an unfilled form


def load(task, base, folder):
    return PeftModel.from_pretrained(base_model(task, base), folder)
