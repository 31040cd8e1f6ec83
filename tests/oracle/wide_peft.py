"""Makes the cells of Hugging Face PEFT of the cross product: `wide_peft.py --seed N --out DIR --family F...`.

Every method is made for the family's main kind and for one more in turn; a few are made for every kind. Cells that the
library cannot make, save or read back are listed in DIR/impossible.
"""

import contextlib
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import peft
import torch
from peft.utils import ModulesToSaveWrapper

from common import stir_delta
from families import Family, families
from wide import SEQUENCE_KINDS, Bases, Cell, make_cells, parse_arguments
from wide_own import own_cells

TASK_TYPES = {"classification": "SEQ_CLS", "multi_label": "SEQ_CLS", "regression": "SEQ_CLS", "tagging": "TOKEN_CLS",
              "span": "QUESTION_ANS", "embedding": "FEATURE_EXTRACTION", "generation": "CAUSAL_LM"}
EVERYWHERE = ("lora", "lora-dora", "ia3", "prefix", "prompt", "p-tuning-mlp", "ln")
TASK_ID = 1
RESIZED_BY = 5


@dataclass
class Method:
    """One row of the table: a config class of PEFT by name, and its options."""

    row: str
    method: str
    config: str
    options: dict
    kinds: tuple = ()  # only these
    resized: bool = False
    invocation: tuple = ()
    lossy: bool = False
    prompt_tokens: int = 0


def lora(row: str, family: Family, **options) -> Method:
    own = {key: options.pop(key) for key in list(options) if key in Method.__dataclass_fields__}
    return Method(row, "lora", "LoraConfig",
                  {"r": 5, "lora_alpha": 9, "target_modules": family.names.attention, **options}, **own)


def trained_tokens(family: Family) -> list:
    return [family.first_token + 2, family.first_token + 8]


def lora_methods(family: Family) -> list:
    names = family.names
    patterns = {"rank_pattern": {names.down: 7, rf".*\.1\..*{names.key[0]}": 3},
                "alpha_pattern": {names.out: 5, names.value: 11}}
    some = [*trained_tokens(family), 2]
    invocation = (family.first_token + 4, family.first_token + 9)
    return [
        lora("lora", family),
        lora("lora-all", family, target_modules=names.linears, r=3, lora_alpha=7),
        lora("lora-rslora", family, use_rslora=True),
        lora("lora-patterns", family, target_modules="all-linear", r=4, lora_alpha=7, **patterns),
        lora("lora-bias-all", family, bias="all"),
        lora("lora-bias-only", family, target_modules=[*names.key, names.down], bias="lora_only"),
        lora("lora-bias-of-b", family, lora_bias=True, target_modules=[*names.attention, names.down]),
        lora("lora-dora", family, use_dora=True),
        lora("lora-dora-all", family, use_dora=True, target_modules=names.linears, use_rslora=True),
        lora("lora-embedding", family, target_modules=[names.embedding, *names.attention]),
        lora("lora-dora-embedding", family, target_modules=[names.embedding], use_dora=True),
        lora("lora-tokens", family, trainable_token_indices={names.embedding: some}),
        lora("lora-norm-saved", family, modules_to_save=[names.first_norm]),
        *(lora("lora-distances", family, modules_to_save=["relative_attention_bias"])
          for _ in [0] if family.name.startswith("t5")),
        lora("lora-some-layers", family, layers_to_transform=[1]),
        lora("lora-resized", family, resized=True),
        lora("lora-alora", family, alora_invocation_tokens=list(invocation), invocation=invocation,
             kinds=("generation",)),
        lora("lora-alora-all", family, alora_invocation_tokens=list(invocation), invocation=invocation,
             kinds=("generation",), target_modules=names.linears, lora_bias=True, r=3, lora_alpha=7),
        lora("lora-pissa-unconverted", family, init_lora_weights="pissa", lossy=True),
        lora("lora-pissa-dora-unconverted", family, init_lora_weights="pissa", use_dora=True, use_rslora=True, r=4,
             rank_pattern={rf".*\.1\..*{names.key[0]}": 3}, lossy=True),
        lora("lora-olora-unconverted", family, init_lora_weights="olora", lossy=True),
    ]


def vector_methods(family: Family) -> list:
    pair, down = family.names.attention, family.names.down
    feed = {"target_modules": [*pair, down], "feedforward_modules": [down]}
    known = not family.name.startswith(("distilbert", "mbart", "electra", "xlm", "modernbert", "phi3"))
    return [
        Method("adalora", "adalora", "AdaLoraConfig", {"init_r": 6, "target_r": 4, "lora_alpha": 9, "total_step": 100,
                                                       "target_modules": [*pair, down]}),
        Method("ia3", "ia3", "IA3Config", {} if known else feed),
        Method("ia3-chosen", "ia3", "IA3Config", {"target_modules": [*family.names.key, family.names.out, down],
                                                  "feedforward_modules": [family.names.out]}),
        Method("ln", "ln", "LNTuningConfig", {"target_modules": family.names.norms}),
        Method("trainable-tokens", "trainable_tokens", "TrainableTokensConfig",
               {"target_modules": [family.names.embedding],
                "token_indices": trained_tokens(family)},
               kinds=("embedding", "generation")),  # it saves no head
        Method("beft", "beft", "BeftConfig", {"target_modules": [family.names.value]}),
    ]


def prompt_methods(family: Family) -> list:
    causal = ("generation",) if family.is_decoder else ("none",)
    multitask = {"num_virtual_tokens": 4, "num_tasks": 3, "num_ranks": 2}
    return [
        Method("prefix", "prefix", "PrefixTuningConfig", {"num_virtual_tokens": 5}),
        Method("prefix-projection", "prefix", "PrefixTuningConfig",
               {"num_virtual_tokens": 7, "prefix_projection": True, "encoder_hidden_size": 24}),
        Method("prompt", "prompt", "PromptTuningConfig", {"num_virtual_tokens": 5}, prompt_tokens=5),
        Method("p-tuning-mlp", "p_tuning", "PromptEncoderConfig",
               {"num_virtual_tokens": 6, "encoder_hidden_size": 20, "encoder_reparameterization_type": "MLP"}),
        Method("p-tuning-lstm", "p_tuning", "PromptEncoderConfig",
               {"num_virtual_tokens": 3, "encoder_hidden_size": 12, "encoder_num_layers": 2,
                "encoder_reparameterization_type": "LSTM"}),
        Method("multitask-prompt", "multitask_prompt", "MultitaskPromptTuningConfig", multitask),
        Method("cpt", "cpt", "CPTConfig", {"cpt_token_ids": [5, 9, 6, 7], "cpt_mask": [1, 1, 1, 1],
                                           "cpt_tokens_type_mask": [1, 2, 3, 4]}, kinds=causal),
        Method("cartridge", "cartridge", "CartridgeConfig", {"num_virtual_tokens": 6, "num_frozen_tokens": 1},
               kinds=causal),
        Method("adaption-prompt", "adaption_prompt", "AdaptionPromptConfig", {"adapter_len": 4, "adapter_layers": 2},
               kinds=causal),
    ]


def shared_methods(family: Family) -> list:
    """Methods of shared or seeded matrices."""
    pair = {"target_modules": family.names.attention}
    return [
        Method("vera", "vera", "VeraConfig", {"r": 5, **pair}),
        Method("vera-from-seed", "vera", "VeraConfig", {"r": 5, "save_projection": False, **pair}),
        Method("pvera", "pvera", "PveraConfig", {"r": 5, **pair}),
        Method("randlora", "randlora", "RandLoraConfig", {"r": 7, "randlora_alpha": 9, **pair}),
        Method("randlora-from-seed", "randlora", "RandLoraConfig",
               {"r": 7, "randlora_alpha": 9, "save_projection": False, **pair}),
        Method("randlora-sparse", "randlora", "RandLoraConfig", {"r": 7, "randlora_alpha": 30, "sparse": True, **pair}),
        Method("vblora", "vblora", "VBLoRAConfig", {"r": 3, "num_vectors": 10, "vector_length": 4, "topk": 2, **pair}),
        Method("vblora-topk", "vblora", "VBLoRAConfig", {"r": 3, "num_vectors": 10, "vector_length": 4, "topk": 3,
                                                         "save_only_topk_weights": True, **pair}),
        Method("unilora", "unilora", "UniLoraConfig", {"r": 3, "theta_d_length": 60, "save_indices": True, **pair}),
        Method("unilora-from-seed", "unilora", "UniLoraConfig", {"r": 3, "theta_d_length": 60, **pair}),
        Method("fourierft", "fourierft", "FourierFTConfig", {"n_frequency": 40, "scaling": 150.0, **pair}),
        Method("waveft", "waveft", "WaveFTConfig", {"n_frequency": 40, "scaling": 20.0, **pair}),
        Method("tinylora", "tinylora", "TinyLoraConfig", {"r": 2, "u": 9, **pair}),
        Method("tinylora-tied", "tinylora", "TinyLoraConfig",
               {"r": 3, "u": 5, "weight_tying": 0.6, "save_projection": False,
                "target_modules": [family.names.embedding, *family.names.linears]}),
        Method("frod", "frod", "FrodConfig", {**pair}),
        Method("shira", "shira", "ShiraConfig", {"r": 2, **pair}),
        Method("supertuning", "supertuning", "SupertuningConfig", {"sparsity": 0.9, **pair}),
        Method("supertuning-lora", "supertuning", "SupertuningConfig",
               {"sparsity": 0.95, "r": 3, "lora_alpha": 7, **pair}),
    ]


def matrix_methods(family: Family) -> list:
    pair = {"target_modules": family.names.attention}
    return [
        Method("loha", "loha", "LoHaConfig", {"r": 3, "alpha": 7, **pair}),
        Method("lokr", "lokr", "LoKrConfig", {"r": 3, "alpha": 7, **pair}),
        Method("lokr-factored", "lokr", "LoKrConfig", {"r": 1, "alpha": 2, "decompose_both": True,
                                                       "decompose_factor": 4, **pair}),
        Method("oft", "oft", "OFTConfig", {"oft_block_size": 4, **pair}),
        Method("oft-cayley", "oft", "OFTConfig", {"oft_block_size": 4, "use_cayley_neumann": False, **pair}),
        Method("oft-shared", "oft", "OFTConfig", {"oft_block_size": 4, "block_share": True, **pair}),
        Method("oft-coft", "oft", "OFTConfig", {"oft_block_size": 4, "coft": True, "eps": 0.05, **pair}),
        Method("boft", "boft", "BOFTConfig", {"boft_block_size": 4, **pair}),
        Method("boft-2", "boft", "BOFTConfig", {"boft_block_size": 4, "boft_n_butterfly_factor": 2, **pair}),
        Method("hra", "hra", "HRAConfig", {"r": 4, **pair}),
        Method("hra-gs", "hra", "HRAConfig", {"r": 4, "apply_GS": True, **pair}),
        Method("miss", "miss", "MissConfig", {"r": 4, **pair}),
        Method("miss-bat", "miss", "MissConfig", {"r": 4, "init_weights": "bat", **pair}),
        Method("miss-mini", "miss", "MissConfig", {"r": 4, "mini_r": 2, "init_weights": "mini", **pair}),
        Method("c3a", "c3a", "C3AConfig", {"block_size": 4, **pair}),
        Method("road-1", "road", "RoadConfig", {"variant": "road_1", "group_size": 4, **pair}),
        # groups of 20 outputs of 40: one begins in front of a panel's end, at 32, and ends behind it
        *([Method("road-wide", "road", "RoadConfig", {"variant": "road_1", "group_size": 20, **pair})]
          if family.options.get("hidden_size") == 40 and family.tokenizer == "wordpiece" else []),
        Method("road-2", "road", "RoadConfig", {"variant": "road_2", "group_size": 4, **pair}),
        Method("road-4", "road", "RoadConfig", {"variant": "road_4", "group_size": 4, **pair}),
        Method("delora", "delora", "DeloraConfig", {"r": 5, "delora_lambda": 3, **pair}),
        Method("hira", "hira", "HiraConfig", {"r": 5, **pair}),
        Method("gralora", "gralora", "GraloraConfig", {"r": 4, "alpha": 7, "gralora_k": 2, **pair}),
        Method("gralora-hybrid", "gralora", "GraloraConfig",
               {"r": 4, "alpha": 7, "gralora_k": 2, "hybrid_r": 2, **pair}),
        Method("glora", "glora", "GloraConfig", {"r": 3, **pair}),
        Method("deft", "deft", "DeftConfig", {"r": 4, **pair}),
        Method("psoft", "psoft", "PsoftConfig", {"r": 4, "psoft_alpha": 5, **pair}),
        Method("osf", "osf", "OSFConfig", {"effective_rank": 8, **pair}),
        Method("adamss", "adamss", "AdamssConfig", {"r": 8, "num_subspaces": 2, "subspace_rank": 1, **pair}),
        Method("peanut", "peanut", "PeanutConfig", {"r": 3, **pair}),
        Method("peanut-deep", "peanut", "PeanutConfig", {"r": 3, "depth": 2, "act_fn": "gelu", "scaling": 0.5, **pair}),
        Method("poly", "poly", "PolyConfig", {"r": 3, "n_tasks": 3, "n_skills": 2, "n_splits": 2, **pair}),
        Method("lily", "lily", "LilyConfig", {"r": 4, **pair}),
    ]


def methods_of(family: Family) -> list:
    return (lora_methods(family) + vector_methods(family) + prompt_methods(family) + shared_methods(family)
            + matrix_methods(family))


def config_of(cell: Cell, method: Method):
    config_class = getattr(peft, method.config)
    task_type = TASK_TYPES.get(cell.kind)
    if cell.kind == "generation" and cell.family.is_seq2seq:
        task_type = "SEQ_2_SEQ_LM"
    options = dict(method.options)
    if "num_virtual_tokens" in options and method.method != "prefix":
        options.update(cell.family.prompt_options)
    saved = list(cell.family.heads_to_save.get(cell.kind, [])) + (["classifier"] if task_type is None else [])
    if saved and "modules_to_save" in config_class.__dataclass_fields__:
        options["modules_to_save"] = options.get("modules_to_save", []) + saved
    return config_class(task_type=task_type, **options)


def resized(cell: Cell, method: Method, model: torch.nn.Module) -> torch.nn.Module:
    if method.resized:
        model.resize_token_embeddings(cell.family.options["vocab_size"] + RESIZED_BY, mean_resizing=False)
    return model


def stir_resized(model: torch.nn.Module) -> None:
    """New rows are as lively as the old ones; the library saves the whole table."""
    with torch.no_grad():
        for table in (model.get_input_embeddings(), model.get_output_embeddings()):
            if table is not None:
                table.weight[-RESIZED_BY:] = 0.2 * torch.randn(RESIZED_BY, table.weight.shape[1])


def saver(cell: Cell, method: Method):
    def save(model: torch.nn.Module, folder: Path) -> torch.nn.Module:
        resized(cell, method, model)
        if method.resized:
            stir_resized(model)
        model = peft.get_peft_model(model, config_of(cell, method))
        stir_delta((name, p) for name, p in model.named_parameters() if p.requires_grad)
        stir_lambdas(model)
        model.save_pretrained(str(folder))
        (folder / "README.md").unlink(missing_ok=True)
        return model

    return save


def stir_lambdas(model: torch.nn.Module) -> None:
    """Vectors whose neutral value is 1, which common.py does not know: RoAd's scale, VeRA's inner scale."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and ("road_alpha" in name or "vera_lambda" in name or "delora_lambda" in name
                                            or "boft_s" in name or "randlora_gamma" in name):
                parameter.copy_(1 + 0.3 * torch.randn_like(parameter))


def loader(cell: Cell, method: Method):
    def load(model: torch.nn.Module, folder: Path) -> torch.nn.Module:
        return peft.PeftModel.from_pretrained(resized(cell, method, model), str(folder))

    return load


@contextlib.contextmanager
def muted(model: torch.nn.Module):
    """The model with its head but without its adapter."""
    if model.active_peft_config.is_prompt_learning:
        yield model.base_model
        return
    with model.disable_adapter():
        for module in model.modules():
            if isinstance(module, ModulesToSaveWrapper):
                module.enable_adapters(True)
        yield model


def runner(cell: Cell, method: Method):
    """How the library is called when a task needs an id. Its seq2seq forward of multitask prompts wants labels, so
    they are computed as its generate() does: the prompt goes to the encoder."""
    if method.row not in ("multitask-prompt", "poly"):
        return None

    def run(model: torch.nn.Module, batch: dict):
        ids = torch.full((1,), TASK_ID)
        if method.row == "poly" or not (cell.family.is_seq2seq and cell.kind == "generation"):
            return model(**batch, task_ids=ids)
        embeds = model.word_embeddings(batch["input_ids"])
        count = model.active_peft_config.num_virtual_tokens
        prompts = model.get_prompt(batch_size=1, task_ids=ids)[:, :count]
        embeds = torch.cat((prompts, embeds), dim=1)
        return model.base_model(inputs_embeds=embeds, attention_mask=torch.ones(embeds.shape[:2]),
                                decoder_input_ids=batch["decoder_input_ids"])

    return run


def kinds_of(family: Family, method: Method) -> list:
    kinds = [kind for kind in family.kinds if not method.kinds or kind in method.kinds]
    if method.row in EVERYWHERE or len(kinds) < 2:
        return kinds
    others = kinds[1:]
    return [kinds[0], others[zlib.crc32(f"{family.name}/{method.row}".encode()) % len(others)]]


def cell_of(family: Family, method: Method, kind: str) -> Cell:
    name = method.row if kind == family.main_kind else f"{method.row}-{kind.replace('_', '-')}"
    cell = Cell(family, "peft", name, kind, method.method, row=method.row, lossy=method.lossy, muted=muted)
    cell.save, cell.load, cell.run = saver(cell, method), loader(cell, method), runner(cell, method)
    if cell.run:
        cell.task = {"task_id": TASK_ID}
        cell.notes = [f"the library is asked for task id {TASK_ID}; its files hold all tasks"]
    if method.invocation:
        first, filler = list(method.invocation), [family.first_token + 11, family.first_token + 5]
        cell.inputs = tuple({"tokens": tokens} for tokens in (
            [*filler, *first, *filler], [*filler, *first], [*first, *filler, *first, *filler], [first[0], *filler]))
        cell.muted = None
    if "tokens" in method.row:
        cell.inputs = ({"tokens": [*trained_tokens(family), family.first_token + 5, *ending(family, kind)]},)
    if method.resized and kind != "embedding":
        new = cell.family.options["vocab_size"]
        cell.inputs = ({"tokens": [new, family.first_token + 2, new + 3, *ending(family, kind)]},)
    return cell


def ending(family: Family, kind: str) -> list:
    return [family.eos_ends] if family.eos_ends is not None and kind in SEQUENCE_KINDS else []


def extra_kinds(family: Family) -> list:
    """LoRA for the kinds that are the same class with other labels, and for multiple choice."""
    method = lora_methods(family)[0]
    kinds = {"multi_label": "multi_label_classification", "regression": "regression"}
    cells = []
    if "classification" in family.kinds:
        for kind, problem in kinds.items():
            cell = cell_of(family, method, kind)
            cell.task = {"problem_type": problem}
            cells.append(cell)
    if family.tokenizer and "classification" in family.kinds:
        cells.append(cell_of(family, method, "multiple_choice"))
    return cells


def cells_of(family: Family) -> list:
    methods = methods_of(family)
    cells = [cell_of(family, method, kind) for method in methods for kind in kinds_of(family, method)]
    return cells + extra_kinds(family)


def make_family(family: Family, arguments) -> None:
    bases, own = Bases(), own_cells(family)
    make_cells([cell for cell in own if cell.library == "base"], bases, {}, arguments)
    make_cells([cell for cell in own if cell.library == "delta"], bases, {}, arguments)
    make_cells(cells_of(family), bases, {"peft": peft.__version__}, arguments)


if __name__ == "__main__":
    given = parse_arguments(__doc__)
    for name in given.family:
        make_family(families()[name], given)
