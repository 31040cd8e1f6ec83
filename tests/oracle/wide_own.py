"""The cells without a library of the cross product: the base alone, and heads in our own format.

They are made with those of PEFT, in one process a family.
"""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from common import stir_delta, write_json
from families import Family
from wide import Cell

# Parts of a model that a task brings along. What the base's checkpoint has as well (DeBERTa's pooler, ModernBERT's
# head) comes from there.
PARALLEL_RANK = 3
HEADS = ("classifier.", "score.", "qa_outputs.", "classification_head.", "pre_classifier.", "classification_head")


def head_tensors(model: torch.nn.Module) -> dict:
    return {name: p for name, p in model.named_parameters() if name.startswith(HEADS)}


def save_head(model: torch.nn.Module, folder: Path) -> torch.nn.Module:
    tensors = head_tensors(model)
    stir_delta(tensors.items())
    folder.mkdir()
    save_file({name: tensor.detach().clone() for name, tensor in tensors.items()}, str(folder / "delta.safetensors"))
    write_json(folder / "delta.json", {"method": "head"})
    return model


def load_head(model: torch.nn.Module, folder: Path) -> torch.nn.Module:
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, tensor in load_file(str(folder / "delta.safetensors")).items():
            if name in parameters:
                parameters[name].copy_(tensor)
    return model


def query_layers(model: torch.nn.Module) -> list:
    """The self-attentions of BERT's kind, by name."""
    return [(name, module) for name, module in model.named_modules() if name.endswith("attention.self")]


def save_parallel(model: torch.nn.Module, folder: Path) -> torch.nn.Module:
    """Multi-head parallel adapters (He and others 2022): each head i of an attention gets s ReLU(x D_i + d_i) U_i added
    to its output, before the output projection. `down` holds the D_i above each other, `up` one U_i a head."""
    tensors = {}
    for name, attention in query_layers(model):
        heads, size = attention.num_attention_heads, attention.attention_head_size
        shapes = {"down.weight": (heads * PARALLEL_RANK, heads * size), "down.bias": (heads * PARALLEL_RANK,),
                  "up.weight": (heads, size, PARALLEL_RANK), "scaling": (1,)}
        tensors.update({f"{name}.mh_adapter.{key}": torch.empty(shape) for key, shape in shapes.items()})
    stir_delta(tensors.items())
    head = head_tensors(model)
    stir_delta(head.items())
    tensors.update({name: tensor.detach().clone() for name, tensor in head.items()})
    folder.mkdir()
    save_file(tensors, str(folder / "delta.safetensors"))
    write_json(folder / "delta.json", {"method": "mh-parallel"})
    return attach_parallel(model, tensors)


def attach_parallel(model: torch.nn.Module, tensors: dict) -> torch.nn.Module:
    def hook(attention, inputs, keywords, output):
        own = {key: tensors[f"{attention.golden_name}.mh_adapter.{key}"] for key in ("down.weight", "down.bias",
                                                                                     "up.weight", "scaling")}
        x = inputs[0] if inputs else keywords["hidden_states"]
        down = torch.relu(x @ own["down.weight"].T + own["down.bias"])
        down = down.unflatten(-1, (own["up.weight"].shape[0], PARALLEL_RANK))
        added = own["scaling"] * torch.einsum("bnhr,hdr->bnhd", down, own["up.weight"]).flatten(-2)
        return (output[0] + added, *output[1:])

    for name, attention in query_layers(model):
        attention.golden_name = name
        attention.register_forward_hook(hook, with_kwargs=True)
    return model


def load_parallel(model: torch.nn.Module, folder: Path) -> torch.nn.Module:
    load_head(model, folder)
    return attach_parallel(model, load_file(str(folder / "delta.safetensors")))


def own_cells(family: Family) -> list:
    alone = [kind for kind in ("generation", "embedding") if kind in family.kinds][:1]
    cells = [Cell(family, "base", "base", kind, "base") for kind in alone]
    # The tensors of a tagging head look like those of a classification head.
    cells += [Cell(family, "delta", f"head-{kind}", kind, "head", save_head, load_head, row="head alone",
                   task={} if kind == "classification" else {"head": kind})
              for kind in family.kinds if kind in ("classification", "tagging", "span")]
    if family.name in ("bert-cls", "roberta", "electra"):
        cells.append(Cell(family, "delta", "mh-parallel", "classification", "mh-parallel", save_parallel,
                          load_parallel, notes=["no library: the formula of the paper, tensors under our names"]))
    return cells
