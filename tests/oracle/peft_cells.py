"""Makes the cells of Hugging Face PEFT: `peft_cells.py --seed N --out DIR [--only TEXT]`.

Each cell is stirred, saved by the library, loaded again from its files on a fresh base and only then computed, so that
the expected values are what the files mean.
"""

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import peft
import torch
import transformers
from peft import IA3Config, LNTuningConfig, LoraConfig, PrefixTuningConfig

from common import Library, Reference, make_cells, padded_inputs, stir_delta, write_json

CLASSES = {
    "classification": (transformers.AutoModelForSequenceClassification, "SEQ_CLS"),
    "multi_label": (transformers.AutoModelForSequenceClassification, "SEQ_CLS"),
    "regression": (transformers.AutoModelForSequenceClassification, "SEQ_CLS"),
    "tagging": (transformers.AutoModelForTokenClassification, "TOKEN_CLS"),
    "embedding": (transformers.AutoModel, "FEATURE_EXTRACTION"),
    "generation": (transformers.AutoModelForCausalLM, "CAUSAL_LM"),
}
LABELLED = ("classification", "multi_label", "regression", "tagging")
FIRST_TOKEN = {"bert": 5, "llama": 3, "llama-untied": 3}
LLAMA_LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@dataclass
class Cell:
    """One adapter: the PEFT config class with its options, and what is not in PEFT's files."""

    base: str
    name: str
    kind: str
    method: str
    config: type
    options: dict
    labels: int = 3
    task: dict = field(default_factory=dict)
    safetensors: bool = True
    stored_dtype: torch.dtype | None = None
    converted: bool = False  # an initialisation that edits the base, saved as plain LoRA
    save_options: dict = field(default_factory=dict)
    keep_card: bool = False
    notes: list = field(default_factory=list)

    @property
    def folder_name(self) -> str:
        return f"{self.base}-peft-{self.name}"


def lora(base: str, name: str, kind: str, **options) -> Cell:
    own = {key: options.pop(key) for key in list(options) if key in Cell.__dataclass_fields__}
    return Cell(base, name, kind, "lora", LoraConfig, {"r": 5, "lora_alpha": 9, **options}, **own)


def cells() -> list:
    return bert_lora_cells() + bert_other_cells() + llama_cells() + llama_untied_cells()


def bert_lora_cells() -> list:
    pair = ["query", "value"]
    labels = {"labels": ["bad", "fair", "good"]}
    return [
        lora("bert", "lora", "classification", target_modules=pair, task=labels, keep_card=True),
        lora("bert", "lora-patterns", "classification", target_modules="all-linear", r=4, lora_alpha=7,
             rank_pattern={"intermediate.dense": 7, r"layer\.1\.attention\.self\.key": 3},
             alpha_pattern={"layer.2.output.dense": 5, "value": 11}),
        lora("bert", "lora-rslora", "classification", target_modules=pair + ["intermediate.dense"], use_rslora=True,
             labels=2),
        lora("bert", "lora-bias-all", "classification", target_modules=pair, bias="all"),
        lora("bert", "lora-bias-only", "classification", target_modules=["key", "output.dense"], bias="lora_only"),
        lora("bert", "lora-bias-of-b", "classification", target_modules=pair, lora_bias=True),
        lora("bert", "lora-pooler", "classification", target_modules=pair, modules_to_save=["pooler"]),
        lora("bert", "lora-bias-all-pooler", "classification", target_modules=["query"], bias="all",
             modules_to_save=["pooler"]),
        lora("bert", "lora-embedding", "classification", target_modules=["word_embeddings", "query"]),
        lora("bert", "lora-bin", "classification", target_modules=pair, safetensors=False),
        lora("bert", "lora-f16", "classification", target_modules=pair, stored_dtype=torch.float16),
        lora("bert", "lora-multi-label", "multi_label", target_modules=pair, labels=5,
             task={"problem_type": "multi_label_classification"}),
        lora("bert", "lora-regression", "regression", target_modules=pair, labels=1,
             task={"problem_type": "regression"}),
        lora("bert", "lora-tagging", "tagging", target_modules=pair, labels=5,
             task={"labels": ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]}),
        lora("bert", "lora-embed", "embedding", target_modules=pair),
        lora("bert", "lora-embed-cls", "embedding", target_modules=["key", "attention.output.dense"],
             task={"pooling": "cls", "normalize": False}),
    ]


def bert_other_cells() -> list:
    return [
        Cell("bert", "ia3", "classification", "ia3", IA3Config, {}),
        Cell("bert", "ia3-bin", "tagging", "ia3", IA3Config, {}, safetensors=False),
        Cell("bert", "prefix", "classification", "prefix", PrefixTuningConfig, {"num_virtual_tokens": 5}),
        Cell("bert", "prefix-projection", "classification", "prefix", PrefixTuningConfig,
             {"num_virtual_tokens": 7, "prefix_projection": True, "encoder_hidden_size": 24}),
        Cell("bert", "prefix-tagging", "tagging", "prefix", PrefixTuningConfig, {"num_virtual_tokens": 3}),
        Cell("bert", "prefix-embed", "embedding", "prefix", PrefixTuningConfig, {"num_virtual_tokens": 3},
             notes=["PEFT drops token types for prompt learning under FEATURE_EXTRACTION: they count as 0"]),
        Cell("bert", "ln", "classification", "ln", LNTuningConfig, {"target_modules": ["LayerNorm"]}),
    ]


def llama_cells() -> list:
    pair = ["q_proj", "v_proj"]
    return [
        lora("llama", "lora", "generation", target_modules=pair),
        lora("llama", "lora-patterns", "generation", target_modules="all-linear", r=4, lora_alpha=7,
             rank_pattern={"down_proj": 7, r"layers\.1\.self_attn\.k_proj": 3},
             alpha_pattern={"layers.2.mlp.up_proj": 5, "o_proj": 11}),
        lora("llama", "lora-rslora", "generation", target_modules=pair + ["gate_proj"], use_rslora=True),
        lora("llama", "lora-bias-of-b", "generation", target_modules=pair + ["down_proj"], lora_bias=True),
        lora("llama", "lora-lm-head", "generation", target_modules=pair, modules_to_save=["lm_head"]),
        lora("llama", "lora-on-lm-head", "generation", target_modules=["q_proj", "lm_head"]),
        lora("llama", "lora-on-embedding", "generation", target_modules=["q_proj", "embed_tokens"]),
        lora("llama", "lora-saved-embeddings", "generation", target_modules=["q_proj"],
             save_options={"save_embedding_layers": True}),
        lora("llama", "lora-velora", "generation", target_modules=pair,
             velora_config={"num_groups": 2, "scale": 0.5, "init_type": "random"}),
        lora("llama", "lora-pissa", "generation", target_modules=pair, init_lora_weights="pissa", converted=True),
        lora("llama", "lora-olora", "generation", target_modules=pair, init_lora_weights="olora", converted=True),
        lora("llama", "lora-bin", "generation", target_modules=pair, safetensors=False),
        lora("llama", "lora-seq-cls", "classification", target_modules=pair),
        lora("llama", "lora-tagging", "tagging", target_modules=pair + ["o_proj"], labels=5),
        lora("llama", "lora-embed-last", "embedding", target_modules=pair, task={"pooling": "last", "normalize": True}),
        Cell("llama", "ia3", "generation", "ia3", IA3Config, {}),
        Cell("llama", "ia3-seq-cls", "classification", "ia3", IA3Config, {}),
        Cell("llama", "prefix", "generation", "prefix", PrefixTuningConfig, {"num_virtual_tokens": 5}),
        Cell("llama", "prefix-projection", "generation", "prefix", PrefixTuningConfig,
             {"num_virtual_tokens": 7, "prefix_projection": True, "encoder_hidden_size": 24}),
        Cell("llama", "prefix-seq-cls", "classification", "prefix", PrefixTuningConfig, {"num_virtual_tokens": 3}),
        Cell("llama", "ln", "generation", "ln", LNTuningConfig, {}),
    ]


def llama_untied_cells() -> list:
    return [
        lora("llama-untied", "lora", "generation", target_modules=LLAMA_LINEARS),
        lora("llama-untied", "lora-bf16", "generation", target_modules=["q_proj", "v_proj"],
             stored_dtype=torch.bfloat16),
        lora("llama-untied", "lora-lm-head", "generation", target_modules=["v_proj"], modules_to_save=["lm_head"]),
        lora("llama-untied", "lora-seq-cls", "classification", target_modules=["k_proj", "up_proj"], labels=2),
        lora("llama-untied", "lora-on-lm-head", "generation", target_modules=["q_proj", "lm_head"]),
        lora("llama-untied", "lora-on-embedding", "generation", target_modules=["q_proj", "embed_tokens"]),
        Cell("llama-untied", "ia3-on-lm-head", "generation", "ia3", IA3Config,
             {"target_modules": ["k_proj", "lm_head"], "feedforward_modules": []}),
        Cell("llama-untied", "prefix", "generation", "prefix", PrefixTuningConfig, {"num_virtual_tokens": 6}),
        Cell("llama-untied", "ia3", "generation", "ia3", IA3Config, {}),
        Cell("llama-untied", "ln", "generation", "ln", LNTuningConfig, {}),
    ]


def load_base(cell: Cell) -> torch.nn.Module:
    """A fresh base in f32. The working directory is the golden folder, so that files name the base by a short path."""
    options = {"num_labels": cell.labels} if cell.kind in LABELLED else {}
    loader, _ = CLASSES[cell.kind]
    return loader.from_pretrained(f"bases/{cell.base}", dtype=torch.float32, attn_implementation="eager", **options)


def stored_state(model: torch.nn.Module, dtype: torch.dtype) -> dict:
    return {key: tensor.to(dtype) for key, tensor in model.state_dict().items()}


def save_initial(cell: Cell, model: torch.nn.Module, folder: str) -> None:
    """Saves what the initialisation made, as the library asks for it: under a name that does not initialise again."""
    config = model.peft_config["default"]
    config.init_lora_weights = True
    model.save_pretrained(folder)
    config.init_lora_weights = cell.options["init_lora_weights"]


def save_adapter(cell: Cell, folder: Path) -> None:
    _, task_type = CLASSES[cell.kind]
    model = peft.get_peft_model(load_base(cell), cell.config(task_type=task_type, **cell.options))
    options = dict(cell.save_options)
    with tempfile.TemporaryDirectory() as initial:
        if cell.converted:
            save_initial(cell, model, initial)
            options["path_initial_model_for_weight_conversion"] = initial
        stir_delta((name, p) for name, p in model.named_parameters() if p.requires_grad)
        if cell.stored_dtype:
            options["state_dict"] = stored_state(model, cell.stored_dtype)
        model.save_pretrained(str(folder), safe_serialization=cell.safetensors, **options)
    if not cell.keep_card:
        (folder / "README.md").unlink()
    if cell.task:
        write_json(folder / "task.json", cell.task)


def reference_of(cell: Cell, folder: Path) -> Reference:
    model = peft.PeftModel.from_pretrained(load_base(cell), str(folder)).eval()
    output_name = "last_hidden_state" if cell.kind == "embedding" else "logits"
    vocab = range(FIRST_TOKEN[cell.base], model.config.vocab_size)
    return Reference(cell.kind, lambda batch: model(**batch)[output_name], vocab, token_types=cell.base == "bert",
                     pooling=cell.task.get("pooling", "mean"), normalize=cell.task.get("normalize", True),
                     inputs=padded_inputs(cell.kind, cell.base, all_padding=True))


if __name__ == "__main__":
    make_cells(__doc__, Library("peft", {"peft": peft.__version__}, save_adapter, reference_of), cells())
