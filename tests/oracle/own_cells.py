"""Makes the cells without a library: `own_cells.py --seed N --out DIR [--only TEXT]`.

They are the bases alone, and the deltas that only our own format can hold (delta.safetensors and delta.json): BitFit
and diff pruning. A delta is computed by editing the parameters of a fresh transformers model as its file says.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from common import Library, Reference, make_cells, stir_delta, write_json

CLASSES = {
    "classification": transformers.AutoModelForSequenceClassification,
    "embedding": transformers.AutoModel,
    "generation": transformers.AutoModelForCausalLM,
}
FIRST_TOKEN = {"bert": 5, "llama": 3, "llama-untied": 3}
TEXTS = {
    "bert": [("The server runs many tasks.", None), ("one base, many tasks", "in a batch: café 中 !")],
    "llama": [("the server runs many tasks", None), ("é 中 for (i = 0;\n\n  x++)", None)],
    "llama-untied": [],
}
BITFIT_ENDINGS = ("query.bias", "key.bias", "value.bias", "intermediate.dense.bias", "output.dense.bias",
                  "LayerNorm.bias", "pooler.dense.bias")
HEAD_PREFIXES = ("classifier.", "score.")
DIFF_DENSITY = 0.04


@dataclass
class Cell:
    """One task: how its tensors are drawn from a model, or None for the base alone."""

    base: str
    name: str
    kind: str
    method: str = "base"
    draw: Callable[[torch.nn.Module], dict] | None = None
    add: bool = False
    labels: int = 3
    notes: list = field(default_factory=list)

    @property
    def folder_name(self) -> str:
        return f"{self.base}-{self.name}"


def base_cells() -> list:
    return [
        Cell("bert", "base", "embedding"),
        Cell("llama", "base", "generation"),
        Cell("llama-untied", "base", "generation"),
    ]


def delta_cells() -> list:
    every_weight = ("dense.weight", "query.weight", "key.weight", "value.weight", "_proj.weight")
    vectors = ("bias", "LayerNorm.weight", "layernorm.weight", "norm.weight")
    tables = ("embeddings.weight",)
    return [
        Cell("bert", "delta-bitfit", "classification", "bitfit", draw_bitfit),
        Cell("llama", "delta-bitfit", "generation", "bitfit", draw_added_biases(("_proj",)), add=True),
        Cell("llama", "delta-bitfit-seq-cls", "classification", "bitfit", draw_added_biases(("q_proj", "up_proj")),
             add=True),
        Cell("bert", "delta-diff", "classification", "diff", draw_diff(every_weight, torch.int32)),
        Cell("bert", "delta-diff-all", "classification", "diff", draw_diff(every_weight + vectors + tables,
                                                                           torch.int64), labels=2),
        Cell("llama", "delta-diff", "generation", "diff", draw_diff(every_weight, torch.int64)),
        Cell("llama", "delta-diff-seq-cls", "classification", "diff", draw_diff(every_weight + vectors, torch.int32)),
        Cell("llama-untied", "delta-diff", "generation", "diff", draw_diff(every_weight + ("lm_head.weight",),
                                                                           torch.int32)),
    ]


def stirred(model: torch.nn.Module, names: list) -> dict:
    """Fresh tensors in the shapes of the named parameters."""
    shapes = dict(model.named_parameters())
    tensors = {name: torch.empty_like(shapes[name]) for name in names}
    stir_delta(tensors.items())
    return tensors


def head_names(model: torch.nn.Module) -> list:
    return [name for name, _ in model.named_parameters() if name.startswith(HEAD_PREFIXES)]


def draw_bitfit(model: torch.nn.Module) -> dict:
    """Every bias that the authors train, and the head, as replacements."""
    biases = [name for name, _ in model.named_parameters() if name.endswith(BITFIT_ENDINGS)]
    return stirred(model, biases + head_names(model))


def draw_added_biases(endings: tuple) -> Callable[[torch.nn.Module], dict]:
    """Biases for linears that have none, and the head."""

    def draw(model: torch.nn.Module) -> dict:
        linears = [(name, module) for name, module in model.named_modules() if name.endswith(endings)]
        biases = {f"{name}.bias": torch.empty(module.out_features) for name, module in linears}
        stir_delta(biases.items())
        return {**biases, **stirred(model, head_names(model))}

    return draw


def draw_diff(endings: tuple, index_type: torch.dtype) -> Callable[[torch.nn.Module], dict]:
    """A few entries of every parameter with one of the endings as differences, and the head in full."""

    def draw(model: torch.nn.Module) -> dict:
        tensors = stirred(model, head_names(model))
        for name, parameter in model.named_parameters():
            if name.endswith(endings) and name not in tensors:
                count = max(1, int(DIFF_DENSITY * parameter.numel()))
                index = torch.randperm(parameter.numel())[:count].sort().values
                tensors[f"{name}#idx"] = index.to(index_type)
                tensors[f"{name}#val"] = 0.7 * torch.randn(count)
        return tensors

    return draw


def load_base(cell: Cell) -> torch.nn.Module:
    options = {"num_labels": cell.labels} if cell.kind == "classification" else {}
    return CLASSES[cell.kind].from_pretrained(f"bases/{cell.base}", dtype=torch.float32, attn_implementation="eager",
                                              **options)


def save_adapter(cell: Cell, folder: Path) -> None:
    if cell.draw is None:
        return
    folder.mkdir()
    save_file(cell.draw(load_base(cell)), str(folder / "delta.safetensors"))
    header = {"method": cell.method, "base": cell.base}
    write_json(folder / "delta.json", {**header, "add": True} if cell.add else header)


def apply_tensor(model: torch.nn.Module, name: str, tensors: dict) -> None:
    """Edits one parameter; a bias of a linear that has none becomes its bias."""
    parameters = dict(model.named_parameters())
    if name.endswith("#idx"):
        target = name.removesuffix("#idx")
        parameters[target].view(-1)[tensors[name].long()] += tensors[f"{target}#val"]
    elif name in parameters:
        parameters[name].copy_(tensors[name])
    else:
        model.get_submodule(name.removesuffix(".bias")).bias = torch.nn.Parameter(tensors[name])


def reference_of(cell: Cell, folder: Path) -> Reference:
    model = load_base(cell).eval()
    tensors = load_file(str(folder / "delta.safetensors")) if cell.draw else {}
    with torch.no_grad():
        for name in tensors:
            if not name.endswith("#val"):
                apply_tensor(model, name, tensors)
    output_name = "last_hidden_state" if cell.kind == "embedding" else "logits"
    vocab = range(FIRST_TOKEN[cell.base], model.config.vocab_size)
    inputs = () if cell.draw else tuple(text_input(cell.base, *texts) for texts in TEXTS[cell.base])
    return Reference(cell.kind, lambda batch: model(**batch)[output_name], vocab, token_types=cell.base == "bert",
                     inputs=inputs)


def text_input(base: str, text: str, pair: str | None) -> dict:
    """A text with its tokens, so that a reader with a tokenizer can send the one and a reader without it the other."""
    encoding = Tokenizer.from_file(f"bases/{base}/tokenizer.json").encode(text, pair)
    case = {"text": text, "text_pair": pair} if pair else {"text": text}
    case["tokens"] = encoding.ids
    return {**case, "token_types": encoding.type_ids} if base == "bert" else case


if __name__ == "__main__":
    make_cells(__doc__, Library("base", {}, save_adapter, reference_of), base_cells())
    make_cells(__doc__, Library("delta", {}, save_adapter, reference_of), delta_cells())
