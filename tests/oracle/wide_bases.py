"""Makes the bases of the cross product: `wide_bases.py --seed N --out DIR NAME...` writes DIR/bases/NAME.

A base opens in both environments: the makers of cells compute it in each and stop if they disagree.
"""

import argparse
import math
from pathlib import Path

import torch
import transformers

from bases import BPE_CORPUS, save_tokenizer, wordpiece_tokenizer
from common import fresh_folder, seed_everything
from families import Family, families
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

ROBERTA_SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
ROBERTA_VOCAB = 301


def stir_module(module: torch.nn.Module) -> None:
    """Lively values by the kind of module, because parameter names differ between families."""
    kind = type(module).__name__
    fan_in = {"Conv1D": lambda w: w.shape[0], "Conv1d": lambda w: w.shape[1] * w.shape[2]}
    for name, parameter in module.named_parameters(recurse=False):
        noise = torch.randn_like(parameter)
        if "Norm" in kind and name == "weight":
            parameter.copy_(0.2 * noise + (0 if kind.startswith("Gemma") else 1))
        elif parameter.dim() < 2:
            parameter.copy_(0.2 * noise)
        else:
            parameter.copy_(noise * 1.2 / math.sqrt(fan_in.get(kind, lambda w: w.shape[-1])(parameter)))


def stir(model: torch.nn.Module) -> None:
    with torch.no_grad():
        for name, module in model.named_modules():
            stir_module(module)
            if name.endswith("Attention.q"):  # T5 does not divide scores by the root of the head size
                module.weight.div_(math.sqrt(model.config.d_kv))
        for name, buffer in model.named_buffers():
            if name == "final_logits_bias":
                buffer.copy_(0.3 * torch.randn_like(buffer))


def add_tokenizer(kind: str, folder: Path) -> None:
    if kind == "wordpiece":
        save_tokenizer(wordpiece_tokenizer(), folder, {
            "tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 64, "unk_token": "[UNK]",
            "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"})
        return
    save_tokenizer(roberta_tokenizer(), folder, {
        "tokenizer_class": "RobertaTokenizer", "model_max_length": 64, "pad_token": "<pad>", "bos_token": "<s>",
        "cls_token": "<s>", "sep_token": "</s>", "eos_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>"})


def roberta_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(BPE_CORPUS, trainers.BpeTrainer(
        vocab_size=ROBERTA_VOCAB, special_tokens=ROBERTA_SPECIALS, show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return tokenizer


def make_base(family: Family, folder: Path, draw=stir) -> None:
    config = getattr(transformers, family.config)(**family.options)
    model = getattr(transformers, family.saved_as).from_config(config, attn_implementation="eager")
    draw(model)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    if family.tokenizer:
        add_tokenizer(family.tokenizer, folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    for name, family in families().items():
        if name in arguments.names or not arguments.names:
            seed_everything(arguments.seed, f"base/{name}")
            make_base(family, fresh_folder(arguments.out / "bases" / name))


if __name__ == "__main__":
    main()
