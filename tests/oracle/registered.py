"""Writes the order in which transformers' classes register their linears and token tables, for
tests/core/model/test_registered.c: `registered.py tests/golden/bases tests/golden/registered.txt`, a line for each base.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModel
from transformers.pytorch_utils import Conv1D

BASES = ("bart", "bert", "deberta-v2-conv", "deberta-v2-own", "distilbert", "electra", "gemma2", "gemma3_text", "gpt2",
         "llama", "mbart", "mistral", "modernbert", "phi3", "qwen2", "qwen3", "roberta", "t5", "t5-gated", "xlm-roberta")


def modules_of(folder: Path) -> list:
    model = AutoModel.from_config(AutoConfig.from_pretrained(folder))
    tables = (torch.nn.Linear, Conv1D)
    tokens = ("embed_tokens", "word_embeddings", "tok_embeddings", "wte")
    return [name for name, module in model.named_modules() if isinstance(module, tables) or name.endswith(tokens)]


def main() -> None:
    bases, out = Path(sys.argv[1]), Path(sys.argv[2])
    out.write_text("".join(f"{base} {' '.join(modules_of(bases / base))}\n" for base in BASES))


if __name__ == "__main__":
    main()
