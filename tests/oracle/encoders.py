"""Writes small encoders that are the other way round than the bases of the cross product, and cells of PEFT on them.

`encoders.py --out tests/golden`: DeBERTa with projections of its own for distances, positions, types and a projection
of embeddings (deberta-v2-own), with one kind of scores and log buckets over 300 positions (deberta-v2-c2p); ModernBERT
with every bias, another pooling and transformers 5's configuration (modernbert-cls); and on xlm-roberta, which must be
there, inputs with padding among the tokens. Runs under ORACLE_PEFT.
"""

import argparse
import json
from pathlib import Path

import peft
import torch
import transformers
from common import fresh_folder, seed_everything, stir_base, stir_delta, write_golden, write_json
from peft import IA3Config, LNTuningConfig, LoraConfig, PeftModel, get_peft_model
from transformers import (AutoModel, AutoModelForSequenceClassification, DebertaV2Config, DebertaV2Model, ModernBertConfig,
                          ModernBertForSequenceClassification)

SEED = 1
N_VOCAB = 61
SIZES = {"vocab_size": N_VOCAB, "hidden_size": 24, "num_attention_heads": 3}
DEBERTA = {**SIZES, "num_hidden_layers": 2, "intermediate_size": 40, "relative_attention": True}
OWN = DebertaV2Config(**DEBERTA, max_position_embeddings=160, position_buckets=-1, max_relative_positions=20,
                      share_att_key=False, pos_att_type=["c2p", "p2c"], norm_rel_ebd="layer_norm",
                      position_biased_input=True, type_vocab_size=2, embedding_size=16)
C2P = DebertaV2Config(**DEBERTA, max_position_embeddings=300, position_buckets=32, share_att_key=True, pos_att_type=["c2p"],
                      norm_rel_ebd="none", position_biased_input=False, type_vocab_size=0)
ROPE = {"full_attention": {"rope_type": "default", "rope_theta": 5000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 300.0}}
CLS = ModernBertConfig(**SIZES, num_hidden_layers=3, intermediate_size=28, max_position_embeddings=128, local_attention=6,
                       norm_bias=True, attention_bias=True, mlp_bias=True, classifier_bias=True, classifier_pooling="cls",
                       classifier_activation="relu", hidden_activation="silu", norm_eps=1e-3, pad_token_id=0, bos_token_id=1,
                       eos_token_id=2, cls_token_id=1, sep_token_id=2, num_labels=3, rope_parameters=ROPE,
                       layer_types=["sliding_attention", "full_attention", "sliding_attention"])
BASES = {
    "deberta-v2-own": (DebertaV2Model, OWN, (1, 40, 150)),
    "deberta-v2-c2p": (DebertaV2Model, C2P, (2, 70, 300)),
    "modernbert-cls": (ModernBertForSequenceClassification, CLS, (1, 9, 60)),
}


def lora(task_type: str, targets: list, **options) -> LoraConfig:
    return LoraConfig(task_type=task_type, r=4, lora_alpha=6, target_modules=targets, **options)


def ia3(targets: list, inputs: str) -> IA3Config:
    return IA3Config(task_type="FEATURE_EXTRACTION", target_modules=[*targets, inputs], feedforward_modules=[inputs])


FEATURES, CLASSES = "FEATURE_EXTRACTION", "SEQ_CLS"
SHARED = ["query_proj", "key_proj"]
CELLS = [
    ("deberta-v2-own", "lora", lora(FEATURES, ["query_proj", "pos_query_proj", "pos_key_proj"])),
    ("deberta-v2-own", "ia3", ia3(SHARED, "output.dense")),
    ("deberta-v2-own", "ln", LNTuningConfig(task_type=FEATURES, target_modules=["encoder.LayerNorm"])),
    ("deberta-v2-c2p", "lora", lora(FEATURES, SHARED)),
    ("deberta-v2-c2p", "lora-first", lora(FEATURES, ["key_proj"], layers_to_transform=[0])),
    ("deberta-v2-c2p", "ia3", ia3(SHARED, "output.dense")),
    ("modernbert-cls", "ia3", ia3(["Wqkv"], "mlp.Wo")),
    ("modernbert-cls", "lora-head", lora(CLASSES, ["Wqkv", "head.dense"])),
    ("modernbert-cls", "lora-saved-head", lora(CLASSES, ["Wi", "attn.Wo"], modules_to_save=["head", "classifier"])),
    ("modernbert-cls", "lora-saved-dense", lora(CLASSES, ["Wi", "attn.Wo"], modules_to_save=["head.dense", "classifier"])),
]
PADDING = ([1], [7, 1, 52, 1, 1, 90], [1, 1, 33, 8, 1])  # xlm-roberta's padding is 1


def open_base(out: Path, base: str, task_type: str) -> torch.nn.Module:
    folder = out / "bases" / base
    if task_type == CLASSES:
        return AutoModelForSequenceClassification.from_pretrained(folder).eval()
    return AutoModel.from_pretrained(folder).eval()


def make_case(model: torch.nn.Module, tokens: list) -> dict:
    with torch.no_grad():
        output = model(input_ids=torch.tensor([tokens]), attention_mask=torch.ones(1, len(tokens), dtype=torch.long))
    if "logits" in output:
        return {"tokens": tokens, "logits": output.logits[0]}
    mean = output.last_hidden_state[0].mean(0)
    return {"tokens": tokens, "embedding": mean / mean.norm()}


def write_cell(out: Path, name: str, header: dict, model: torch.nn.Module, inputs: list) -> None:
    kind = "classification" if "logits" in (cases := [make_case(model, tokens) for tokens in inputs])[0] else "embedding"
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    if header["reader"] == "peft":
        versions["peft"] = peft.__version__
    (out / "cells" / name).mkdir(parents=True, exist_ok=True)
    write_golden(out / "cells" / name / "golden.json", {**header, "kind": kind, "versions": versions, "seed": SEED}, cases)


def draw(lengths: tuple, generator: torch.Generator) -> list:
    return [torch.randint(3, N_VOCAB, (length,), generator=generator).tolist() for length in lengths]


def make_base(out: Path, name: str) -> None:
    kind, config, lengths = BASES[name]
    generator = seed_everything(SEED, name)
    model = kind(config).eval()
    stir_base(model)
    model.save_pretrained(fresh_folder(out / "bases" / name))
    path = out / "bases" / name / "config.json"
    if name == "deberta-v2-own":  # as files on the hub write it
        write_json(path, {**json.loads(path.read_text()), "pos_att_type": "c2p|p2c"})
    header = {"base": name, "reader": "base", "method": "base"}
    write_cell(out, f"{name}-base", header, open_base(out, name, FEATURES), draw(lengths, generator))


def make_cell(out: Path, base: str, method: str, config) -> None:
    name = f"{base}-peft-{method}"
    generator = seed_everything(SEED, name)
    model = get_peft_model(open_base(out, base, config.task_type), config)
    stir_delta((key, value) for key, value in model.named_parameters() if value.requires_grad)
    model.peft_config["default"].base_model_name_or_path = f"bases/{base}"
    folder = fresh_folder(out / "cells" / name) / "adapter"
    model.save_pretrained(folder)
    (folder / "README.md").unlink()
    again = PeftModel.from_pretrained(open_base(out, base, config.task_type), folder).eval()
    header = {"base": base, "reader": "peft", "method": method.split("-")[0]}
    write_cell(out, name, header, again, draw(BASES[base][2], generator))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    for name in BASES:
        make_base(out, name)
    for cell in CELLS:
        make_cell(out, *cell)
    header = {"base": "xlm-roberta", "reader": "base", "method": "base", "notes": "padding among the tokens"}
    write_cell(out, "xlm-roberta-base-padding", header, open_base(out, "xlm-roberta", FEATURES), list(PADDING))


if __name__ == "__main__":
    main()
