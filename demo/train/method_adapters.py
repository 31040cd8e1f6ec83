"""Houlsby's and Pfeiffer's bottleneck adapters, by the AdapterHub library."""

import adapters
from adapters import AutoAdapterModel
from transformers import AutoModelForCausalLM

CONFIG = {"houlsby": "double_seq_bn[reduction_factor=16]", "pfeiffer": "seq_bn[reduction_factor=48]"}


def base_model(task, path):
    if not task.generates:
        return AutoAdapterModel.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path)
    adapters.init(model)
    for layer in model.model.layers:
        layer.self_attn.register_forward_pre_hook(name_cache, with_kwargs=True)
    return model


def name_cache(_, arguments, named):
    """The library's Llama attention knows the cache of keys and values only by its old name, and would generate without it."""
    return arguments, {**named, "past_key_value": named.get("past_key_values")}


def build(task, base, tokenizer, examples):
    model = base_model(task, base)
    model.add_adapter(task.name, config=CONFIG[task.method])
    if not task.generates:
        model.add_classification_head(task.name, num_labels=len(task.labels), id2label=dict(enumerate(task.labels)))
    model.train_adapter(task.name)
    return model


def save(model, task, base, folder):
    model.config.name_or_path = task.base
    model.save_adapter(folder, task.name, with_head=not task.generates)


def load(task, base, folder):
    model = base_model(task, base)
    name = model.load_adapter(folder, with_head=not task.generates)
    model.set_active_adapters(name)
    return model
