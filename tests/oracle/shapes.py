"""Bases in the shapes that hubs hold, and tasks on them: `shapes.py --seed N --out DIR peft|adapterhub NAME`.

Under ORACLE_ADAPTERS `adapterhub` writes DIR/bases/NAME and the cells of AdapterHub, under ORACLE_PEFT `peft` adds
those of PEFT: four methods each, two tasks a method. Weights are random. Every model is loaded for its cell and let go
after it, so that one of 600 million parameters needs 5 GB.
"""

import argparse
import os
from dataclasses import replace
from pathlib import Path

import torch
import transformers

from common import fresh_folder, seed_everything
from families import Family, families
from wide import Bases, Cell, make_cells
from wide_bases import make_base, stir

TASKS_A_METHOD = 2
LENGTHS = (57,)
CALM = 0.7  # twelve to twenty-four layers of the small bases' weights would make chaos of rounding
MAX_TOKENS = 3
PEFT_ROWS = ("lora-all", "lora-dora", "adalora", "ia3")
ADAPTERHUB_ROWS = ("double_seq_bn", "seq_bn", "prefix", "mam")

BASE = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
LARGE = {"d_model": 1024, "encoder_layers": 12, "decoder_layers": 12, "encoder_attention_heads": 16,
         "decoder_attention_heads": 16, "encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096, "max_position_embeddings": 1024}
SHAPES = {
    "roberta-base": ("roberta", {**BASE, "vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}),
    "deberta-v3-base": ("deberta-v2", {**BASE, "vocab_size": 128100, "max_position_embeddings": 512,
                                       "position_buckets": 256, "pooler_hidden_size": 768}),
    "bart-large": ("bart", {**LARGE, "vocab_size": 50265}),
    "mbart-large": ("mbart", {**LARGE, "vocab_size": 250027}),
    "gpt2-medium": ("gpt2", {"vocab_size": 50257, "n_positions": 1024, "n_embd": 1024, "n_head": 16, "n_layer": 24,
                             "n_inner": None}),
}


class Loaded(Bases):
    """A model from its files for each use."""

    def fresh(self, cell: Cell, copy_number: int) -> torch.nn.Module:
        torch.manual_seed(1000 + copy_number)
        return self.load(cell, cell.labels or (3 if cell.kind == "classification" else None))


def family_of(name: str) -> Family:
    like, options = SHAPES[name]
    family = families()[like]
    return replace(family, name=name, options={**family.options, **options}, tokenizer=None)


def calm(model: torch.nn.Module) -> None:
    stir(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                parameter.mul_(CALM)


def calmed(method):
    """A LoRA beside its base and not three times as large, for the same reason."""
    return replace(method, options={**method.options, "lora_alpha": 1}) if "lora_alpha" in method.options else method


def cells_of(library, family: Family, wanted: tuple) -> list:
    """Two cells of each wanted row of the library's maker, for the family's main kind."""
    kind, cells = family.main_kind, []
    like = replace(family, name=SHAPES[family.name][0])
    rows = library.rows() if hasattr(library, "rows") else [calmed(row) for row in library.methods_of(like)]
    for row in [row for name in wanted for row in rows if row.row == name]:
        for number in range(TASKS_A_METHOD):
            cell = library.cell_of(family, row, kind, *([True] if hasattr(library, "rows") else []))
            cell.name, cell.lengths, cell.is_large = f"{cell.name}-{number + 1}", LENGTHS, True
            cell.max_tokens = min(cell.max_tokens, MAX_TOKENS)
            cells.append(cell)
    return cells


def make(arguments: argparse.Namespace, family: Family) -> None:
    if arguments.library == "adapterhub":
        import adapters
        import wide_adapterhub as library
        seed_everything(arguments.seed, f"base/{family.name}")
        make_base(family, fresh_folder(Path("bases") / family.name), calm)
        versions, wanted, flex = {"adapters": adapters.__version__}, ADAPTERHUB_ROWS, library.load_flex
    else:
        import peft
        import wide_peft as library
        versions, wanted, flex = {"peft": peft.__version__}, PEFT_ROWS, None
    make_cells(cells_of(library, family, wanted), Loaded(flex), versions, arguments)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--trace", action="store_true", help="print where the library refuses")
    parser.add_argument("library", choices=("peft", "adapterhub"))
    parser.add_argument("name", choices=sorted(SHAPES))
    arguments = parser.parse_args()
    arguments.only = ""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(arguments.threads)
    arguments.out.mkdir(parents=True, exist_ok=True)
    os.chdir(arguments.out)
    make(arguments, family_of(arguments.name))


if __name__ == "__main__":
    main()
