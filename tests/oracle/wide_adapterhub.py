"""Makes the cells of AdapterHub of the cross product: `wide_adapterhub.py --seed N --out DIR --family F...`.

Families of the library get flex heads, plug-in families the heads of transformers; generation uses the base's own LM head
unless the row is about heads. Nothing is cached. Gates and ReFT depend on how a sequence is cut into forwards, so their
generation cells stop after the first token.
"""

import contextlib
import functools
import logging
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

import adapters
import torch
from adapters import (AdapterPlusConfig, CompacterConfig, CompacterPlusPlusConfig, ConfigUnion, DiReftConfig,
                      DoRAConfig, DoubleSeqBnConfig, DoubleSeqBnInvConfig, DvoRAConfig, IA3Config, LoRAConfig,
                      LoReftConfig, MAMConfig, NoReftConfig, ParBnConfig, PrefixTuningConfig, PromptTuningConfig,
                      SeqBnConfig, SeqBnInvConfig, UniPELTConfig, VeraConfig)
from adapters.composition import Average, Fuse, Stack

from common import stir_delta
from families import Family, families
from wide import Bases, Cell, Impossible, check_agreement, make_cells, parse_arguments

PLUG_INS = ("qwen2", "qwen3", "gemma2", "gemma3_text", "modernbert")
EVERYWHERE = ("double_seq_bn", "seq_bn", "par_bn", "prefix", "lora", "ia3", "mam", "unipelt")
NAME = "sst"
HEAD_PARTS = ("classifier", "score", "qa_outputs", "pre_classifier", "classification_head", "pooler", "head.")
ADD_HEAD = {
    "classification": lambda model, name, options: model.add_classification_head(name, **{"num_labels": 3, **options}),
    "multi_label": lambda model, name, options: model.add_classification_head(
        name, **{"num_labels": 4, "multilabel": True, **options}),
    "regression": lambda model, name, options: model.add_classification_head(name, **{"num_labels": 1, **options}),
    "tagging": lambda model, name, options: model.add_tagging_head(name, **{"num_labels": 5, **options}),
    "span": lambda model, name, options: model.add_qa_head(name, **options),
    "multiple_choice": lambda model, name, options: model.add_multiple_choice_head(
        name, **{"num_choices": 3, **options}),
}


@dataclass
class Row:
    """One line of the table: what config a family of that width gets, or two of them composed."""

    row: str
    method: str
    config: Callable[[int], adapters.AdapterConfig]
    kinds: tuple = ()  # only these
    head: dict = field(default_factory=dict)
    flex_head: bool = False  # an LM head of AdapterHub instead of the base's own
    compose: Callable | None = None
    fusion: str | None = None
    safetensors: bool = False
    one_token: bool = False  # not the same with and without a cache
    lossy: bool = False
    is_split: bool = False
    keep: float = 1.0  # of the entries of the adapter's matrices


def width_of(family: Family) -> int:
    return next(family.options[key] for key in ("hidden_size", "dim", "d_model", "n_embd") if key in family.options)


def whole_factor(width: int) -> int:
    """A reduction factor whose bottleneck PHM can cut in four; the library wants an integer when W is shared."""
    return next(factor for factor in range(3, width) if width // factor % 4 == 0)


def bottleneck_rows() -> list:
    def fixed(config_class, **options):
        return lambda width: config_class(**options)

    return [
        Row("double_seq_bn", "houlsby", fixed(DoubleSeqBnConfig, reduction_factor=4)),
        Row("seq_bn", "pfeiffer", fixed(SeqBnConfig, reduction_factor=3), safetensors=True),
        Row("par_bn", "parallel", fixed(ParBnConfig, reduction_factor=2)),
        Row("scaled_par_bn", "parallel", fixed(ParBnConfig, reduction_factor=5, scaling="learned"), safetensors=True),
        Row("adapter-plus", "pfeiffer", fixed(AdapterPlusConfig, reduction_factor=6, stochastic_depth=0.0)),
        Row("compacter", "compacter", lambda width: CompacterConfig(reduction_factor=width / 8)),
        Row("compacter++", "compacter", lambda width: CompacterPlusPlusConfig(reduction_factor=width / 4)),
        Row("compacter-shared-w", "compacter", lambda width: CompacterPlusPlusConfig(
            reduction_factor=whole_factor(width), shared_W_phm=True)),
        Row("compacter-own-rule", "compacter", lambda width: CompacterPlusPlusConfig(
            reduction_factor=width / 8, shared_phm_rule=False, factorized_phm_W=False)),
        Row("compacter-factored-rule", "compacter", lambda width: CompacterPlusPlusConfig(
            reduction_factor=width / 8, factorized_phm_rule=True, phm_rank=2)),
        Row("seq_bn_inv", "pfeiffer", fixed(SeqBnInvConfig, reduction_factor=4)),
        Row("double_seq_bn_inv", "houlsby", fixed(DoubleSeqBnInvConfig, reduction_factor=4)),
        Row("seq_bn-cross", "pfeiffer", fixed(SeqBnConfig, reduction_factor=4, mh_adapter=True, cross_adapter=True)),
    ]


def switch_rows() -> list:
    """Every switch of a bottleneck, one or two at a time."""
    double = {"DoubleSeqBn": DoubleSeqBnConfig, "SeqBn": SeqBnConfig, "ParBn": ParBnConfig}

    def row(name: str, kind: str, **options) -> Row:
        method = {"DoubleSeqBn": "houlsby", "SeqBn": "pfeiffer", "ParBn": "parallel"}[kind]
        gated = bool(options.get("use_gating"))
        return Row(f"switch-{name}", method, lambda width: double[kind](reduction_factor=4, **options),
                   one_token=gated)

    return [
        row("ln-before", "DoubleSeqBn", ln_before=True, non_linearity="gelu"),
        row("ln-after", "SeqBn", ln_after=True, non_linearity="gelu_new"),
        row("ln-after-residual", "DoubleSeqBn", ln_after=True, non_linearity="tanh", adapter_residual_before_ln=True),
        row("residual-after-ln", "SeqBn", residual_before_ln=False, non_linearity="leakyrelu"),
        row("residual-post-add", "SeqBn", residual_before_ln="post_add"),
        row("original-ln-twice", "DoubleSeqBn", original_ln_before=True),
        row("original-ln-before-only", "DoubleSeqBn", original_ln_before=True, original_ln_after=False,
            residual_before_ln=False),
        row("no-original-ln", "SeqBn", original_ln_before=False, original_ln_after=False),
        row("par-ln-before", "ParBn", ln_before=True, mh_adapter=True, non_linearity="swish"),
        row("par-ln-after", "ParBn", ln_after=True, scaling=0.5),
        row("scaling-channel", "DoubleSeqBn", scaling="channel"),
        row("scaling", "DoubleSeqBn", scaling=0.7),
        row("gated", "SeqBn", use_gating=True),
        row("attention-only", "SeqBn", mh_adapter=True, output_adapter=False),
        row("leave-out", "DoubleSeqBn", leave_out=[1]),
        Row("switch-reduction-map", "houlsby",
            lambda width: DoubleSeqBnConfig(reduction_factor={"0": 2, "1": 7, "default": 13})),
    ]


def prefix_of(length: int = 4, size: int = 12, **options) -> PrefixTuningConfig:
    return PrefixTuningConfig(prefix_length=length, bottleneck_size=size, **options)


def other_rows() -> list:
    all_matrices = {"attn_matrices": ["q", "k", "v"], "intermediate_lora": True, "output_lora": True}
    return [
        Row("prefix", "prefix", lambda width: prefix_of(5)),
        Row("prefix-flat", "prefix", lambda width: PrefixTuningConfig(flat=True, prefix_length=3)),
        Row("prefix-leave-out", "prefix", lambda width: prefix_of(7, 11, leave_out=[1])),
        Row("prefix-decoder-only", "prefix", lambda width: prefix_of(encoder_prefix=False, cross_prefix=False)),
        Row("prefix-gated", "prefix", lambda width: prefix_of(use_gating=True), one_token=True),
        Row("prefix-two-gates", "prefix", lambda width: prefix_of(use_gating=True, shared_gating=False),
            one_token=True),
        Row("lora", "lora", lambda width: LoRAConfig(r=5, alpha=9)),
        Row("lora-all", "lora", lambda width: LoRAConfig(r=3, alpha=7, **all_matrices), safetensors=True),
        Row("lora-out", "lora", lambda width: LoRAConfig(r=3, alpha=7, attn_matrices=["k", "o"])),
        Row("lora-gated", "lora", lambda width: LoRAConfig(r=3, alpha=7, use_gating=True, **all_matrices),
            one_token=True),
        Row("lora-leave-out", "lora", lambda width: LoRAConfig(r=3, alpha=7, leave_out=[0])),
        Row("lora-dora", "lora", lambda width: DoRAConfig(r=3, alpha=7)),
        Row("lora-vera", "vera", lambda width: VeraConfig(r=4, alpha=7)),
        Row("lora-dvora", "vera", lambda width: DvoRAConfig(r=4, alpha=7)),
        Row("ia3", "ia3", lambda width: IA3Config()),
        Row("ia3-output", "ia3", lambda width: IA3Config(output_lora=True, attn_matrices=["q", "k", "v"])),
        Row("prompt", "prompt", lambda width: PromptTuningConfig(prompt_length=5)),
        Row("prompt-after-bos", "prompt", lambda width: PromptTuningConfig(prompt_length=4, combine="prefix_after_bos"),
            is_split=True),
        Row("loreft", "loreft", lambda width: LoReftConfig(r=2, prefix_positions=3, suffix_positions=2),
            one_token=True),
        Row("loreft-tied", "loreft", lambda width: LoReftConfig(r=2, prefix_positions=2, suffix_positions=2,
                                                                tied_weights=True, layers=[1]), one_token=True),
        Row("noreft", "noreft", lambda width: NoReftConfig(r=2, prefix_positions=3, suffix_positions=1,
                                                           non_linearity="relu"), one_token=True),
        Row("direft", "direft", lambda width: DiReftConfig(r=2, prefix_positions=3), one_token=True, lossy=True),
    ]


def union_rows() -> list:
    bottleneck = {"reduction_factor": 4}
    return [
        Row("mam", "mam", lambda width: MAMConfig(prefix_of(), ParBnConfig(**bottleneck))),
        Row("unipelt", "unipelt", lambda width: UniPELTConfig(
            prefix_of(use_gating=True), SeqBnConfig(use_gating=True, **bottleneck),
            LoRAConfig(r=3, alpha=2, use_gating=True)), one_token=True),
        Row("union-all", "union", lambda width: ConfigUnion(
            prefix_of(leave_out=[0]), LoRAConfig(r=3, alpha=7), SeqBnConfig(**bottleneck))),
        Row("union-lora-bottleneck", "union", lambda width: ConfigUnion(
            LoRAConfig(r=3, alpha=7), DoubleSeqBnConfig(**bottleneck))),
        Row("union-two-bottlenecks", "union", lambda width: ConfigUnion(
            ParBnConfig(mh_adapter=True, output_adapter=False, **bottleneck), SeqBnConfig(**bottleneck))),
        Row("union-by-layer", "union", lambda width: ConfigUnion(
            SeqBnConfig(leave_out=[0], non_linearity="gelu", **bottleneck),
            SeqBnConfig(leave_out=[1, 2, 3, 4, 5], **bottleneck))),
        # S4 (Chen and others 2023): groups of layers, each with its own set of methods.
        Row("s4-groups", "s4", lambda width: ConfigUnion(
            prefix_of(leave_out=[1, 3]), SeqBnConfig(leave_out=[0, 4], **bottleneck),
            LoRAConfig(r=3, alpha=7, leave_out=[0, 2]))),
        Row("union-prompt", "union", lambda width: ConfigUnion(
            PromptTuningConfig(prompt_length=3), SeqBnInvConfig(**bottleneck))),
        # SparseAdapter (He and others 2022): the masks are in the weights.
        Row("sparse-adapter", "pfeiffer", lambda width: DoubleSeqBnConfig(reduction_factor=2), keep=0.3),
    ]


def head_rows() -> list:
    small = {"config": lambda width: LoRAConfig(r=3, alpha=4)}
    classes = ("classification",)
    return [
        Row("head-one-layer", "lora", kinds=classes, head={"layers": 1}, **small),
        Row("head-three-layers", "lora", kinds=classes, head={"layers": 3, "activation_function": "gelu"}, **small),
        Row("head-no-activation", "lora", kinds=classes, head={"activation_function": None}, **small),
        Row("head-pooler", "lora", kinds=classes, head={"layers": 1, "use_pooler": True}, **small),
        Row("head-labels", "lora", kinds=classes, head={"id2label": {0: "no", 1: "yes", 2: "maybe"}}, **small),
        Row("head-multi-label", "lora", kinds=("multi_label",), **small),
        Row("head-regression", "lora", kinds=("regression",), **small),
        Row("head-tagging-two-layers", "lora", kinds=("tagging",), head={"layers": 2}, **small),
        Row("head-span-two-layers", "lora", kinds=("span",), head={"layers": 2, "activation_function": "relu"},
            **small),
        Row("head-multiple-choice", "pfeiffer", lambda width: SeqBnConfig(reduction_factor=4),
            kinds=("multiple_choice",)),
        Row("head-lm", "lora", kinds=("generation",), flex_head=True, **small),
        Row("head-lm-one-layer", "pfeiffer", lambda width: SeqBnConfig(reduction_factor=4), kinds=("generation",),
            flex_head=True, head={"layers": 1}),
    ]


def composition_rows() -> list:
    bottleneck = {"config": lambda width: SeqBnConfig(reduction_factor=4)}
    double = {"config": lambda width: DoubleSeqBnConfig(reduction_factor=4)}
    low_rank = {"config": lambda width: LoRAConfig(r=3, alpha=7)}
    first, second = f"{NAME}-a", f"{NAME}-b"

    def average(*names):
        return Average(*names, weights=[0.3, 0.7])

    return [
        Row("stack", "stack", compose=lambda: Stack(first, second), **bottleneck),
        Row("stack-lora", "stack", compose=lambda: Stack(first, second), **low_rank),
        Row("stack-prefix", "stack", lambda width: prefix_of(), compose=lambda: Stack(first, second)),
        Row("average", "average", compose=lambda: average(first, second), **double),
        Row("average-lora", "average", compose=lambda: average(first, second), **low_rank),
        Row("fusion", "fusion", compose=lambda: Fuse(first, second), fusion="dynamic", **bottleneck),
        Row("fusion-double", "fusion", compose=lambda: Fuse(first, second), fusion="dynamic", **double),
        Row("fusion-static", "fusion", compose=lambda: Fuse(first, second), fusion="static", **bottleneck),
        Row("stack-fusion", "fusion", compose=lambda: Stack(f"{NAME}-c", Fuse(first, second)), fusion="dynamic",
            **bottleneck),
    ]


def rows() -> list:
    return (bottleneck_rows() + switch_rows() + other_rows() + union_rows() + head_rows() + composition_rows())


def has_head(cell: Cell) -> bool:
    return cell.kind not in ("embedding",) and (cell.flex or cell.kind != "generation")


def prepared(cell: Cell, model: torch.nn.Module) -> torch.nn.Module:
    if not cell.flex:
        adapters.init(model)
    return model


def add_head(cell: Cell, row: Row, model: torch.nn.Module, name: str) -> None:
    if cell.kind != "generation":
        ADD_HEAD[cell.kind](model, name, row.head)
    elif cell.family.is_seq2seq:
        model.add_seq2seq_lm_head(name, **row.head)
    else:
        model.add_causal_lm_head(name, **row.head)


def stir_new(cell: Cell, model: torch.nn.Module, known: set) -> None:
    """What was added to the model, and the static head that is saved with it; shared tensors once."""
    parts = {}
    for name, parameter in model.named_parameters():
        is_head = has_head(cell) and not cell.flex and name.startswith(HEAD_PARTS)
        if (id(parameter) not in known and "heads.default" not in name) or is_head:
            parts.setdefault(id(parameter), (name, parameter))
    stir_delta(parts.values())
    with torch.no_grad():
        for name, parameter in parts.values():
            if name.endswith("parametrizations.weight.original"):  # torch keeps the signs of R's columns there
                parameter.diagonal().copy_(torch.where(parameter.diagonal() < 0, -1.0, 1.0))


def prune(model: torch.nn.Module, keep: float) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if keep < 1 and ".adapters." in name and parameter.dim() == 2:
                parameter.mul_(torch.rand_like(parameter) < keep)


def save_one(cell: Cell, row: Row):
    def save(model: torch.nn.Module, folder: Path) -> torch.nn.Module:
        model = prepared(cell, model)
        known = {id(p) for p in model.parameters()}
        model.add_adapter(NAME, config=row.config(width_of(cell.family)))
        if cell.flex:
            add_head(cell, row, model, NAME)
        model.set_active_adapters(NAME)
        stir_new(cell, model, known)
        prune(model, row.keep)
        model.save_adapter(str(folder), NAME, with_head=has_head(cell), use_safetensors=row.safetensors)
        return model

    return save


def load_one(cell: Cell, row: Row):
    def load(model: torch.nn.Module, folder: Path) -> torch.nn.Module:
        model = prepared(cell, model)
        name = model.load_adapter(str(folder), with_head=has_head(cell), use_safetensors=row.safetensors)
        model.set_active_adapters(name)
        return model

    return load


def save_setup(cell: Cell, row: Row):
    """A composition as save_adapter_setup writes it: a folder for each adapter, one for the fusion, one head."""

    def save(model: torch.nn.Module, folder: Path) -> torch.nn.Module:
        model, setup = prepared(cell, model), row.compose()
        known = {id(p) for p in model.parameters()}
        for name in setup.flatten():
            model.add_adapter(name, config=row.config(width_of(cell.family)))
        for fusion in [setup, *setup.children]:
            if isinstance(fusion, Fuse):
                model.add_adapter_fusion(fusion, row.fusion)
        if cell.flex:
            add_head(cell, row, model, NAME)
        model.set_active_adapters(setup)
        stir_new(cell, model, known)
        head = {"head_setup": NAME if cell.flex else True} if has_head(cell) else {}
        model.save_adapter_setup(str(folder), setup, **head)
        if cell.flex:
            model.active_head = NAME
        return model

    return save


def load_setup(cell: Cell):
    def load(model: torch.nn.Module, folder: Path) -> torch.nn.Module:
        model = prepared(cell, model)
        model.load_adapter_setup(str(folder), set_active=True)
        if cell.flex:
            model.active_head = NAME
        return model

    return load


@contextlib.contextmanager
def muted(model: torch.nn.Module):
    """The model with its head but without its adapters."""
    head, setup = getattr(model, "active_head", None), model.active_adapters
    model.active_adapters = None
    yield model
    model.active_adapters = setup
    if head:
        model.active_head = head


def run_uncached(model: torch.nn.Module, batch: dict):
    return model(**batch, use_cache=False)


def cell_of(family: Family, row: Row, kind: str, is_main: bool) -> Cell:
    static = family.name in PLUG_INS or kind == "embedding" or (kind == "generation" and not row.flex_head)
    name = row.row if is_main else f"{row.row}-{kind.replace('_', '-')}"
    cell = Cell(family, "adapterhub", name.replace("++", "-plus"), kind, row.method, row=row.row, flex=not static, lossy=row.lossy,
                muted=muted, is_split=row.is_split)
    cell.save, cell.load = save_one(cell, row), load_one(cell, row)
    if row.compose:
        cell.save, cell.load = save_setup(cell, row), load_setup(cell)
    if family.is_decoder or family.is_seq2seq:
        cell.run = run_uncached
    if kind == "embedding" and family.is_decoder:  # without a head the files would also do for generation
        cell.task = {"head": "embedding"}
    if kind == "multi_label" and not cell.flex:  # the library keeps it in the model's configuration alone
        cell.task = {"problem_type": "multi_label_classification"}
    if row.one_token:
        cell.max_tokens = 1
    if row.method == "prompt":  # padding among the tokens shows how positions are counted
        cell.inputs = ({"tokens": [7, family.pad_id, 52, family.pad_id, family.pad_id, 90]},)
    return cell


def kinds_of(family: Family, row: Row) -> list:
    """The main kind and another one in turn; a row that names its kinds has those that the family has."""
    known = list(family.kinds)
    if "classification" in known:
        known += ["multi_label", "regression"] + (["multiple_choice"] if family.tokenizer else [])
    if row.kinds:
        return [kind for kind in row.kinds if kind in known]
    if row.row in EVERYWHERE or len(family.kinds) < 2:
        return list(family.kinds)
    others = family.kinds[1:]
    return [family.kinds[0], others[zlib.crc32(f"{family.name}/{row.row}".encode()) % len(others)]]


def cells_of(family: Family) -> list:
    cells = []
    for row in rows():
        for kind in kinds_of(family, row):
            is_main = kind == (row.kinds[0] if row.kinds else family.main_kind)
            if not (family.name in PLUG_INS and (row.flex_head or row.head)):
                cells.append(cell_of(family, row, kind, is_main))
    return cells


def load_flex(path: str, **options) -> torch.nn.Module:
    return adapters.AutoAdapterModel.from_pretrained(path, **options).eval()


def make_family(family: Family, arguments) -> None:
    bases = Bases(load_flex)
    check_agreement(family, bases)
    cells = cells_of(family)
    for cell in cells if family.no_adapterhub else []:
        cell.save = functools.partial(refuse, family.no_adapterhub)
    make_cells(cells, bases, {"adapters": adapters.__version__}, arguments)


def refuse(reason: str, *_):
    raise Impossible(reason)


if __name__ == "__main__":
    logging.getLogger("adapters").setLevel(logging.ERROR)
    given = parse_arguments(__doc__)
    for name in given.family:
        make_family(families()[name], given)
