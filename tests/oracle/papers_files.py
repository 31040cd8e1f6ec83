"""Files of papers.py, written without a library: safetensors, goldens, and a task as AdapterHub saves its parts."""

import json
import struct
from pathlib import Path

import numpy
from papers_models import Bottleneck, Gate, Model, Task

NAME = "task"
PATH = "bert.encoder.layer"


def write_safetensors(path: Path, tensors: dict) -> None:
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name in sorted(tensors):
        value = numpy.ascontiguousarray(tensors[name], numpy.float32)
        header[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [len(data), len(data) + value.nbytes]}
        data += value.tobytes()
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_json(path: Path, value) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_golden(path: Path, header: dict, cases: list) -> None:
    """golden.json with one case a line, its numbers as short as f32 allows."""
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}," for key, value in header.items()]
    rows = [json.dumps({**case, "logits": [float(f"{value:.9g}") for value in case["logits"]]}, separators=(",", ":"))
            for case in cases]
    path.write_text("{\n" + "\n".join(lines) + '\n  "cases": [\n    ' + ",\n    ".join(rows) + "\n  ]\n}\n",
                    encoding="utf-8")


# ---- AdapterHub ----


def gate_tensors(path: str, gate: Gate | None) -> dict:
    return {f"{path}.weight": gate.weight, f"{path}.bias": gate.bias} if gate else {}


def bottleneck_tensors(path: str, parts: dict) -> dict:
    tensors = {}
    for layer, part in parts.items():
        at = f"{PATH}.{layer}.{path}.adapters.{NAME}"
        tensors |= {f"{at}.adapter_down.0.weight": part.down, f"{at}.adapter_down.0.bias": part.down_bias,
                    f"{at}.adapter_up.weight": part.up, f"{at}.adapter_up.bias": part.up_bias,
                    **gate_tensors(f"{at}.gate", part.gate)}
    return tensors


def bottleneck_config(parts: dict, width: int, n_layers: int, **more) -> dict:
    one = next(iter(parts.values()))
    return {
        "mh_adapter": False, "output_adapter": True, "reduction_factor": width / len(one.down),
        "non_linearity": one.activation, "original_ln_before": False, "original_ln_after": True, "ln_before": False,
        "ln_after": False, "init_weights": "bert", "is_parallel": False, "scaling": one.scale,
        "use_gating": one.gate is not None, "residual_before_ln": True, "adapter_residual_before_ln": False,
        "inv_adapter": None, "inv_adapter_reduction_factor": None, "cross_adapter": False, "dropout": 0.0,
        "leave_out": [layer for layer in range(n_layers) if layer not in parts], "phm_layer": False, **more}


def prefix_parts(task: Task, n_layers: int) -> tuple:
    at = f"bert.prefix_tuning.prefix_tunings.{NAME}.self_prefix"
    tensors = {f"{at}.wte.weight": task.prefix.embedding}
    for index, weight, bias in zip((0, 2), task.prefix.weights, task.prefix.biases):
        tensors |= {f"{at}.control_trans.{index}.weight": weight, f"{at}.control_trans.{index}.bias": bias}
    for layer, gate in task.prefix.gates.items():
        tensors |= gate_tensors(f"{PATH}.{layer}.attention.self.prefix_tuning.prefix_gates.{NAME}", gate)
    return tensors, {
        "architecture": "prefix_tuning", "flat": False, "prefix_length": len(task.prefix.embedding),
        "bottleneck_size": len(task.prefix.biases[0]), "non_linearity": "tanh", "dropout": 0.0, "encoder_prefix": True,
        "cross_prefix": True, "use_gating": bool(task.prefix.gates), "shared_gating": True,
        "leave_out": [layer for layer in range(n_layers) if layer not in task.prefix.layers]}


def lora_parts(task: Task, n_layers: int) -> tuple:
    tensors = {}
    for name, part in task.loras.items():
        at = f"{name}.loras.{NAME}"
        tensors |= {f"{at}.lora_A": part.a, f"{at}.lora_B": part.b, **gate_tensors(f"{at}.gate", part.gate)}
    one = next(iter(task.loras.values()))
    layers = {int(name.split(".")[3]) for name in task.loras}
    return tensors, {
        "architecture": "lora", "r": len(one.a), "alpha": round(one.scale * len(one.a)), "attn_matrices": ["q", "v"],
        "composition_mode": "add", "selfattn_lora": True, "intermediate_lora": False, "output_lora": False,
        "use_gating": one.gate is not None, "use_dora": False, "vera_d": None, "vera_b": None, "dropout": 0.0,
        "init_weights": "lora", "leave_out": [layer for layer in range(n_layers) if layer not in layers]}


def folded_heads(model: Model, task: Task) -> dict:
    """Adapters beside the heads as one beside the attention: W_o (c + s U ReLU(D x + d)) is the attention's output plus
    (s W_o U) ReLU(D x + d), where U has the heads' U_i as blocks."""
    parts = {}
    for layer, heads in task.heads.items():
        n_heads, rank, width = heads.down.shape
        size = width // n_heads
        blocks = numpy.zeros((width, n_heads * rank))
        for i in range(n_heads):
            blocks[i * size:(i + 1) * size, i * rank:(i + 1) * rank] = heads.up[i]
        out = model.parameters[f"{PATH}.{layer}.attention.output.dense.weight"]
        parts[layer] = Bottleneck(heads.down.reshape(-1, width), heads.bias.reshape(-1), out @ blocks,
                                  numpy.zeros(width), scale=heads.scale)
    return parts


def adapterhub_parts(config: dict, model: Model, task: Task) -> tuple:
    """The tensors of a task and the configurations of its parts."""
    tensors, configs, width, n_layers = {}, [], config["hidden_size"], model.n_layers
    if task.prefix:
        added, part = prefix_parts(task, n_layers)
        tensors, configs = {**tensors, **added}, [*configs, part]
    bottlenecks = [("output", task.behind_ffn, {"original_ln_before": True}),
                   ("output", task.beside_ffn, {"is_parallel": True}),
                   ("output", task.after_ffn, {"mh_adapter": bool(task.after_attention)}),
                   ("attention.output", folded_heads(model, task),
                    {"mh_adapter": True, "output_adapter": False, "is_parallel": True})]
    for path, parts, more in bottlenecks:
        if parts:
            tensors |= bottleneck_tensors(path, parts)
            configs.append(bottleneck_config(parts, width, n_layers, **more))
    tensors |= bottleneck_tensors("attention.output", task.after_attention)
    if task.loras:
        added, part = lora_parts(task, n_layers)
        tensors, configs = {**tensors, **added}, [*configs, part]
    return tensors, configs


def adapterhub_files(folder: Path, config: dict, model: Model, task: Task) -> None:
    """The files that save_adapter(..., with_head=True) leaves, the head a linear of the first row."""
    tensors, configs = adapterhub_parts(config, model, task)
    union = {"architecture": "union", "configs": configs} if len(configs) > 1 else configs[0]
    common = {"hidden_size": config["hidden_size"], "model_class": "BertAdapterModel", "model_name": "bert",
              "model_type": "bert", "name": NAME, "version": "adapters.1.3.0"}
    write_safetensors(folder / "adapter.safetensors", tensors)
    write_json(folder / "adapter_config.json", {"config": union, **common})
    weight, bias = task.head
    write_safetensors(folder / "model_head.safetensors", {f"heads.{NAME}.1.weight": weight, f"heads.{NAME}.1.bias": bias})
    write_json(folder / "head_config.json", {"config": {
        "head_type": "classification", "num_labels": len(bias), "layers": 1, "activation_function": "tanh",
        "bias": True, "use_pooler": False, "dropout_prob": None,
        "label2id": {f"LABEL_{i}": i for i in range(len(bias))}}, **common})
