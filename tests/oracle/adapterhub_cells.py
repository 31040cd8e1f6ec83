"""Makes the cells of AdapterHub's adapters: `adapterhub_cells.py --seed N --out DIR [--only TEXT]`.

Attention is eager and nothing is cached: with a prefix the cached and the SDPA paths of some model classes differ.
As with PEFT, a cell is computed after its files were loaded again on a fresh base.
"""

import json
import logging
from dataclasses import dataclass, field
from pathlib import Path

import adapters
import torch
import transformers
from adapters import (AdapterModelInterface, AdapterPlusConfig, ConfigUnion, DoubleSeqBnConfig, IA3Config, LoRAConfig,
                      MAMConfig, ParBnConfig, PrefixTuningConfig, SeqBnConfig)

from common import Library, Reference, make_cells, padded_inputs, stir_delta, write_json

FIRST_TOKEN = {"bert": 5, "llama": 3}
METHODS = {DoubleSeqBnConfig: "houlsby", SeqBnConfig: "pfeiffer", ParBnConfig: "parallel",
           AdapterPlusConfig: "pfeiffer", PrefixTuningConfig: "prefix", LoRAConfig: "lora", IA3Config: "ia3",
           MAMConfig: "mam", ConfigUnion: "union"}
# Llama as a plug-in model: hooks where the library's own class has its adapters.
INTERFACE = AdapterModelInterface(
    adapter_methods=["bottleneck", "lora"], model_embeddings="embed_tokens", model_layers="layers",
    layer_self_attn="self_attn", layer_cross_attn=None, attn_k_proj="k_proj", attn_q_proj="q_proj",
    attn_v_proj="v_proj", attn_o_proj="o_proj", layer_intermediate_proj="mlp.up_proj",
    layer_output_proj="mlp.down_proj", layer_pre_self_attn="input_layernorm",
    layer_pre_ffn="post_attention_layernorm")
STATIC_CLASSES = {
    "classification": transformers.AutoModelForSequenceClassification,
    "tagging": transformers.AutoModelForTokenClassification,
    "embedding": transformers.AutoModel,
    "generation": transformers.AutoModelForCausalLM,
}
HEADS = {
    "classification": "add_classification_head",
    "multi_label": "add_classification_head",
    "regression": "add_classification_head",
    "tagging": "add_tagging_head",
    "generation": "add_causal_lm_head",
}


@dataclass
class Cell:
    """One adapter: its config, its head, and whether the model is a flex-head one or a static class of transformers."""

    base: str
    name: str
    kind: str
    config: adapters.AdapterConfig
    head: dict = field(default_factory=dict)
    static: bool = False
    with_head: bool = True
    safetensors: bool = False
    adapter_name: str = "sst"
    interface: AdapterModelInterface | None = None
    version: str | None = None  # of an older library, which the files then name
    notes: list = field(default_factory=list)

    @property
    def folder_name(self) -> str:
        return f"{self.base}-ah-{self.name}"

    @property
    def method(self) -> str:
        return METHODS[type(self.config)]

    @property
    def labels(self) -> int:
        return self.head.get("num_labels", 3)


def bert(name: str, config, kind: str = "classification", **options) -> Cell:
    if kind != "embedding":
        options.setdefault("head", {"num_labels": 3})
    return Cell("bert", name, kind, config, **options)


def llama(name: str, config, **options) -> Cell:
    """A llama cell that generates with the head of the base, as the static class does, unless it says otherwise."""
    if "kind" not in options:
        options = {"static": True, "with_head": False, **options}
    return Cell("llama", name, options.pop("kind", "generation"), config, **options)


def cells() -> list:
    return (bert_bottlenecks() + bert_switches() + bert_others() + bert_unions() + bert_heads() + llama_bottlenecks()
            + llama_switches() + llama_others() + llama_heads())


def bert_bottlenecks() -> list:
    return [
        bert("houlsby", DoubleSeqBnConfig(reduction_factor=4)),
        bert("pfeiffer", SeqBnConfig(reduction_factor=3), safetensors=True),
        bert("par", ParBnConfig(reduction_factor=2), adapter_name="Task one"),
        bert("scaled-par", ParBnConfig(reduction_factor=5, scaling="learned"), safetensors=True),
        bert("adapter-plus", AdapterPlusConfig(reduction_factor=6, stochastic_depth=0.0)),
    ]


def bert_switches() -> list:
    return [
        bert("ln-before", DoubleSeqBnConfig(reduction_factor=4, ln_before=True, non_linearity="gelu")),
        bert("ln-after", SeqBnConfig(reduction_factor=4, ln_after=True, non_linearity="gelu_new"), safetensors=True),
        bert("ln-after-residual", DoubleSeqBnConfig(reduction_factor=4, ln_after=True, non_linearity="tanh",
                                                    adapter_residual_before_ln=True)),
        bert("residual-after-ln", SeqBnConfig(reduction_factor=4, residual_before_ln=False,
                                              non_linearity="leakyrelu")),
        bert("residual-post-add", SeqBnConfig(reduction_factor=4, residual_before_ln="post_add")),
        bert("original-ln-twice", DoubleSeqBnConfig(reduction_factor=4, original_ln_before=True), safetensors=True),
        bert("original-ln-before-only", DoubleSeqBnConfig(reduction_factor=4, original_ln_before=True,
                                                          original_ln_after=False, residual_before_ln=False)),
        bert("no-original-ln", SeqBnConfig(reduction_factor=4, original_ln_before=False, original_ln_after=False)),
        bert("par-ln-before", ParBnConfig(reduction_factor=4, ln_before=True, mh_adapter=True, non_linearity="swish")),
        bert("par-ln-after", ParBnConfig(reduction_factor=4, ln_after=True, scaling=0.5), adapter_name="pool"),
        bert("par-no-original-ln", ParBnConfig(reduction_factor=4, original_ln_after=False)),
        bert("scaling", DoubleSeqBnConfig(reduction_factor=4, scaling=0.7)),
        bert("scaling-channel", DoubleSeqBnConfig(reduction_factor=4, scaling="channel"), safetensors=True),
        bert("attention-only", SeqBnConfig(reduction_factor=4, mh_adapter=True, output_adapter=False)),
        bert("leave-out", DoubleSeqBnConfig(reduction_factor=4, leave_out=[1])),
        bert("reduction-map", DoubleSeqBnConfig(reduction_factor={"0": 2, "2": 7, "default": 13})),
    ]


def bert_others() -> list:
    return [
        bert("prefix", PrefixTuningConfig(prefix_length=5, bottleneck_size=24)),
        bert("prefix-flat", PrefixTuningConfig(flat=True, prefix_length=3)),
        bert("prefix-leave-out", PrefixTuningConfig(prefix_length=7, bottleneck_size=11, leave_out=[1])),
        bert("lora", LoRAConfig(r=5, alpha=9)),
        bert("lora-all", LoRAConfig(r=3, alpha=7, attn_matrices=["q", "k", "v"], intermediate_lora=True,
                                    output_lora=True), safetensors=True),
        bert("ia3", IA3Config()),
        bert("ia3-safetensors", IA3Config(output_lora=True), safetensors=True),
        bert("ia3-old-alpha", IA3Config(alpha=3), version="adapters.1.0.1"),
    ]


def small_prefix(**options) -> PrefixTuningConfig:
    return PrefixTuningConfig(prefix_length=4, bottleneck_size=16, **options)


def bert_unions() -> list:
    return [
        bert("mam", MAMConfig(small_prefix(), ParBnConfig(reduction_factor=4))),
        bert("union-lora-bottleneck-prefix", ConfigUnion(small_prefix(leave_out=[0]), LoRAConfig(r=3, alpha=7),
                                                         SeqBnConfig(reduction_factor=4))),
        bert("union-two-bottlenecks", ConfigUnion(
            ParBnConfig(mh_adapter=True, output_adapter=False, reduction_factor=4), SeqBnConfig(reduction_factor=4))),
        bert("union-by-layer", ConfigUnion(SeqBnConfig(leave_out=[0], non_linearity="gelu", reduction_factor=4),
                                           SeqBnConfig(leave_out=[1, 2], reduction_factor=4))),
    ]


def bert_heads() -> list:
    tags = {0: "O", 1: "B-PER", 2: "I-PER", 3: "B-LOC", 4: "I-LOC"}
    small = LoRAConfig(r=3, alpha=4)
    return [
        bert("head-one-layer", SeqBnConfig(reduction_factor=8), head={"num_labels": 4, "layers": 1}),
        bert("head-three-layers", small, head={"num_labels": 2, "layers": 3, "activation_function": "gelu"}),
        bert("head-no-activation", small, head={"num_labels": 2, "activation_function": None}),
        bert("head-pooler", SeqBnConfig(reduction_factor=8), safetensors=True,
             head={"num_labels": 2, "layers": 1, "use_pooler": True, "id2label": {0: "no", 1: "yes"}}),
        bert("head-multi-label", DoubleSeqBnConfig(reduction_factor=8), "multi_label",
             head={"num_labels": 5, "multilabel": True}),
        bert("head-regression", small, "regression", head={"num_labels": 1}),
        bert("head-tagging", DoubleSeqBnConfig(reduction_factor=8), "tagging",
             head={"num_labels": 5, "id2label": tags}),
        bert("static", DoubleSeqBnConfig(reduction_factor=4), static=True),
        bert("static-tagging", SeqBnConfig(reduction_factor=4), "tagging", static=True, safetensors=True,
             head={"num_labels": 5}),
        bert("embed", SeqBnConfig(reduction_factor=4), "embedding", static=True),
    ]


def llama_bottlenecks() -> list:
    return [
        llama("houlsby", DoubleSeqBnConfig(reduction_factor=4)),
        llama("pfeiffer", SeqBnConfig(reduction_factor=3), safetensors=True),
        llama("par", ParBnConfig(reduction_factor=2)),
        llama("scaled-par", ParBnConfig(reduction_factor=5, scaling="learned"), safetensors=True),
        llama("adapter-plus", AdapterPlusConfig(reduction_factor=6, stochastic_depth=0.0)),
    ]


def llama_switches() -> list:
    return [
        llama("ln-before", DoubleSeqBnConfig(reduction_factor=4, ln_before=True, non_linearity="gelu")),
        llama("ln-after", SeqBnConfig(reduction_factor=4, ln_after=True, non_linearity="gelu_new"), safetensors=True),
        llama("ln-after-residual", DoubleSeqBnConfig(reduction_factor=4, ln_after=True, non_linearity="tanh",
                                                     adapter_residual_before_ln=True)),
        llama("residual-after-ln", SeqBnConfig(reduction_factor=4, residual_before_ln=False,
                                               non_linearity="leakyrelu")),
        llama("original-ln-before-only", DoubleSeqBnConfig(reduction_factor=4, original_ln_before=True,
                                                           original_ln_after=False, residual_before_ln=False)),
        llama("par-ln-before", ParBnConfig(reduction_factor=4, ln_before=True, mh_adapter=True,
                                           non_linearity="swish")),
        llama("par-ln-after", ParBnConfig(reduction_factor=4, ln_after=True, scaling=0.5)),
        llama("leave-out", DoubleSeqBnConfig(reduction_factor=4, leave_out=[1], scaling="channel")),
        llama("reduction-map", DoubleSeqBnConfig(reduction_factor={"0": 2, "2": 7, "default": 13})),
    ]


def llama_others() -> list:
    return [
        llama("prefix", PrefixTuningConfig(prefix_length=5, bottleneck_size=24)),
        llama("prefix-flat", PrefixTuningConfig(flat=True, prefix_length=3)),
        llama("prefix-leave-out", PrefixTuningConfig(prefix_length=7, bottleneck_size=11, leave_out=[1])),
        llama("lora", LoRAConfig(r=5, alpha=9)),
        llama("lora-all", LoRAConfig(r=3, alpha=7, attn_matrices=["q", "k", "v"], intermediate_lora=True,
                                     output_lora=True), safetensors=True),
        llama("ia3", IA3Config()),
        llama("mam", MAMConfig(small_prefix(), ParBnConfig(reduction_factor=4))),
        llama("interface-pfeiffer", SeqBnConfig(reduction_factor=4), interface=INTERFACE),
        llama("interface-lora", LoRAConfig(r=2, alpha=5, intermediate_lora=True), interface=INTERFACE),
    ]


def llama_heads() -> list:
    return [
        llama("head-causal-lm", DoubleSeqBnConfig(reduction_factor=8), kind="generation"),
        llama("head-causal-lm-one-layer", LoRAConfig(r=3, alpha=4), kind="generation", head={"layers": 1},
              safetensors=True),
        llama("head-classification", SeqBnConfig(reduction_factor=8), kind="classification", head={"num_labels": 3}),
        llama("head-tagging", LoRAConfig(r=3, alpha=4), kind="tagging", head={"num_labels": 5}, safetensors=True),
        llama("static-head", IA3Config(), static=True, with_head=True),
        llama("static-classification", PrefixTuningConfig(flat=True, prefix_length=3), kind="classification",
              static=True, head={"num_labels": 3}),
    ]


def load_base(cell: Cell) -> torch.nn.Module:
    """A fresh base in f32. The working directory is the golden folder, so that files name the base by a short path."""
    path = f"bases/{cell.base}"
    options = {"dtype": torch.float32, "attn_implementation": "eager"}
    if not cell.static:
        return adapters.AutoAdapterModel.from_pretrained(path, **options)
    if cell.kind in ("classification", "tagging"):
        options["num_labels"] = cell.labels
    model = STATIC_CLASSES[cell.kind].from_pretrained(path, **options)
    adapters.init(model, interface=cell.interface)
    return model


def add_parts(cell: Cell, model: torch.nn.Module) -> None:
    model.add_adapter(cell.adapter_name, config=cell.config)
    if not cell.static:
        getattr(model, HEADS[cell.kind])(cell.adapter_name, **cell.head)
    model.train_adapter(cell.adapter_name)


def trained(model: torch.nn.Module, frozen: set) -> list:
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad and id(p) not in frozen]


def save_adapter(cell: Cell, folder: Path) -> None:
    model = load_base(cell)
    frozen = {id(p) for p in model.base_model.parameters()}
    add_parts(cell, model)
    stir_delta(trained(model, frozen))
    model.save_adapter(str(folder), cell.adapter_name, with_head=cell.with_head, use_safetensors=cell.safetensors)
    if cell.version:
        path = folder / "adapter_config.json"
        write_json(path, {**json.loads(path.read_text(encoding="utf-8")), "version": cell.version})


def reference_of(cell: Cell, folder: Path) -> Reference:
    model = load_base(cell)
    name = model.load_adapter(str(folder), with_head=cell.with_head, use_safetensors=cell.safetensors)
    model.set_active_adapters(name)
    model.eval()
    output_name = "last_hidden_state" if cell.kind == "embedding" else "logits"
    options = {"use_cache": False} if cell.base == "llama" else {}
    vocab = range(FIRST_TOKEN[cell.base], model.config.vocab_size)
    return Reference(cell.kind, lambda batch: model(**batch, **options)[output_name], vocab,
                     token_types=cell.base == "bert",
                     inputs=padded_inputs(cell.kind, cell.base, all_padding=cell.static))


if __name__ == "__main__":
    logging.getLogger("adapters").setLevel(logging.ERROR)
    make_cells(__doc__, Library("adapterhub", {"adapters": adapters.__version__}, save_adapter, reference_of), cells())
