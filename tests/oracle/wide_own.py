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


def own_cells(family: Family) -> list:
    alone = [kind for kind in ("generation", "embedding") if kind in family.kinds][:1]
    cells = [Cell(family, "base", "base", kind, "base") for kind in alone]
    # The tensors of a tagging head look like those of a classification head.
    cells += [Cell(family, "delta", f"head-{kind}", kind, "head", save_head, load_head, row="head alone",
                   task={} if kind == "classification" else {"head": kind})
              for kind in family.kinds if kind in ("classification", "tagging", "span")]
    return cells
