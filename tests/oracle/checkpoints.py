"""Tuned full checkpoints by methods that no library saves: `checkpoints.py --seed N --out DIR --family F...`.

A cell is cells/<base>-diff-<method>/tuned, a full checkpoint beside its base, with golden.json: what `peftd diff` gets
and what the task then answers. The changes are made in numpy from the formulas of the papers, and the checkpoint is
loaded again before anything is computed.
"""

import functools
import math
from pathlib import Path

import numpy
import torch
import transformers

from families import Family, families
from wide import CLASSES, Bases, Cell, Impossible, difference, expected, make_cells, parse_arguments, probe_of

SPARSE_FRACTION = 0.005  # of diff pruning and FishMask
NODE_FRACTION = 0.1  # of FAR
HARD_CONCRETE = (-1.5, 1.5)  # gamma and zeta of diff pruning
INTRINSIC_DIMENSION = 50
LOW_RANK, ALPHA = 3, 7
HEADS = ("classifier", "score", "classification_head", "pre_classifier", "qa_outputs")
FFN_UP = ("intermediate.dense", "lin1", "fc1", "c_fc", "wi", "wi_0", "wi_1", "up_proj", "gate_proj")  # not fused ones
FFN_DOWN = ("output.dense", "lin2", "fc2", "mlp.c_proj", "wo", "down_proj")
QUERY_VALUE = ("query", "value", "q_lin", "v_lin", "query_proj", "value_proj", "q_proj", "v_proj", "c_attn", "q", "v",
               "qkv_proj", "Wqkv")
LEAST_EFFECT = 1e-3


class Weights:
    """The base's parameters in numpy, by their names in the model, and a generator for the task's values."""

    def __init__(self, model: torch.nn.Module, seed: int):
        self.values = {name: p.detach().double().numpy().copy() for name, p in model.named_parameters()}
        self.transposed = {f"{name}.weight" for name, module in model.named_modules()
                           if type(module).__name__ == "Conv1D"}
        self.random = numpy.random.default_rng(seed)
        self.n_layers = 1 + max(layer_of(name) for name in self.values)

    @property
    def body(self) -> list:
        return [name for name in self.values if not name.startswith(HEADS)]

    def linears(self, endings: tuple) -> list:
        """Weights of the linears with these names; not the attention's output, which ends like BERT's FFN."""
        return [name for name in self.body if name.endswith(".weight")
                and name.removesuffix(".weight").endswith(tuple(f".{ending}" for ending in endings))
                and not (endings is FFN_DOWN and "attention.output" in name)]

    def normal(self, shape, scale: float = 1.0) -> numpy.ndarray:
        return scale * self.random.standard_normal(shape)


def layer_of(name: str) -> int:
    return next((int(part) for part in name.split(".") if part.isdigit()), -1)


def train_head(w: Weights) -> None:
    for name in [name for name in w.values if name.startswith(HEADS)]:
        shape = w.values[name].shape
        w.values[name] = w.normal(shape, 1 / math.sqrt(shape[-1]) if len(shape) > 1 else 0.3)


def bitfit(w: Weights) -> None:
    """Ben-Zaken and others 2022: every bias is trained, nothing else."""
    for name in w.body:
        if name.endswith("bias") and w.values[name].ndim == 1:
            w.values[name] = w.normal(w.values[name].shape, 0.3)


def keep_largest(scores: dict, fraction: float) -> dict:
    """Masks of the largest scores over all tensors together."""
    everything = numpy.concatenate([score.ravel() for score in scores.values()])
    count = max(1, int(fraction * everything.size))
    threshold = numpy.partition(everything, -count)[-count]
    return {name: score >= threshold for name, score in scores.items()}


def diff_pruning(w: Weights) -> None:
    """Guo and others 2021: theta = theta_0 + z w. z is a hard concrete gate, times one of its group (a tensor here);
    after training the largest differences are kept and the rest set to zero."""
    gamma, zeta = HARD_CONCRETE
    differences = {}
    for name in w.body:
        shape = w.values[name].shape

        def gate(size):
            alpha, u = w.normal(size), w.random.uniform(0.05, 0.95, size)
            sigma = 1 / (1 + numpy.exp(-(numpy.log(u) - numpy.log(1 - u) + alpha)))
            return numpy.clip(sigma * (zeta - gamma) + gamma, 0, 1)

        differences[name] = gate(shape) * gate(()) * w.normal(shape)
    masks = keep_largest({name: numpy.abs(value) for name, value in differences.items()}, SPARSE_FRACTION)
    for name, value in differences.items():
        w.values[name] += numpy.where(masks[name], value, 0)


def fish_mask(w: Weights, fisher: dict) -> None:
    """Sung and others 2021: the parameters of the largest empirical Fisher information are trained."""
    for name, mask in keep_largest({name: fisher[name] for name in w.body}, SPARSE_FRACTION).items():
        w.values[name] += numpy.where(mask, w.normal(mask.shape, 0.7), 0)


def far(w: Weights) -> None:
    """Vucetic and others 2022: some nodes of each feed-forward network are trained: their incoming weights with the
    bias, and their outgoing weights."""
    chosen = {}
    for name in w.linears(FFN_UP) + w.linears(FFN_DOWN):
        is_up = name in w.linears(FFN_UP)
        value = w.values[name].T if name in w.transposed else w.values[name]  # (out, in)
        count = value.shape[0 if is_up else 1]
        key = (layer_of(name), "decoder" in name, count)
        if key not in chosen:
            chosen[key] = w.random.permutation(count)[:max(1, int(NODE_FRACTION * count))]
        nodes = (chosen[key], slice(None)) if is_up else (slice(None), chosen[key])
        value[nodes] = w.normal(value[nodes].shape, 1.2 / math.sqrt(value.shape[1]))  # a view of the parameter
        bias = name.removesuffix("weight") + "bias"
        if is_up and bias in w.values:
            w.values[bias][chosen[key]] = w.normal(len(chosen[key]), 0.3)


def hadamard(x: numpy.ndarray) -> numpy.ndarray:
    """The Walsh-Hadamard transform, not normalised."""
    half = 1
    while half < x.size:
        pairs = x.reshape(-1, 2, half)
        x = numpy.stack((pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]), axis=1).reshape(-1)
        half *= 2
    return x


def fastfood(theta: numpy.ndarray, size: int, random: numpy.random.Generator) -> numpy.ndarray:
    """Le and others 2013 as Aghajanyan and others 2020 use it: H G P H B theta, cut to size and normalised."""
    length = 1 << max(size - 1, theta.size - 1, 1).bit_length()
    signs = random.choice([-1.0, 1.0], length)
    order = random.permutation(length)
    gauss = random.standard_normal(length)
    padded = numpy.zeros(length)
    padded[:theta.size] = theta
    mixed = hadamard(gauss * hadamard(signs * padded)[order])
    return mixed[:size] / (math.sqrt(length * (gauss ** 2).sum()) * math.sqrt(size / length))


def said(w: Weights) -> None:
    """Structure-aware intrinsic dimension: theta = theta_0 + lambda P(theta_d), one lambda a layer; the lambdas are
    part of the d trained numbers."""
    theta = w.normal(INTRINSIC_DIMENSION - w.n_layers)
    scales = 0.15 * (1 + w.normal(w.n_layers + 1, 0.2))
    for name in w.body:
        value = w.values[name]
        value += scales[layer_of(name)] * fastfood(theta, value.size, w.random).reshape(value.shape)


def low_rank(w: Weights, name: str, keep: float = 1.0) -> None:
    """A merged LoRA whose matrices keep only their largest entries."""
    value = w.values[name].T if name in w.transposed else w.values[name]
    down = w.normal((LOW_RANK, value.shape[1]), 1 / math.sqrt(value.shape[1]))
    up = w.normal((value.shape[0], LOW_RANK), 1 / math.sqrt(LOW_RANK))
    saliency = {"down": numpy.abs(down * w.normal(down.shape)), "up": numpy.abs(up * w.normal(up.shape))}
    masks = keep_largest(saliency, keep)
    value += ALPHA / LOW_RANK * (up * masks["up"]) @ (down * masks["down"])


def sparse_adapter(w: Weights) -> None:
    """He and others 2022: the matrices of the adapter are masked at the start by |weight x gradient| (SNIP); here LoRA
    at 40 in 100, merged."""
    for name in w.linears(QUERY_VALUE):
        low_rank(w, name, 0.4)


def s4(w: Weights) -> None:
    """Chen and others 2023: layers in groups, each with its own set of methods: here BitFit below, then LoRA, then
    both."""
    for name in w.body:
        group = layer_of(name) % 3
        if group != 1 and layer_of(name) >= 0 and name.endswith("bias") and w.values[name].ndim == 1:
            w.values[name] = w.normal(w.values[name].shape, 0.3)
    for name in w.linears(QUERY_VALUE):
        if layer_of(name) % 3 != 0:
            low_rank(w, name)


def lora_merged(w: Weights) -> None:
    for name in w.linears(QUERY_VALUE):
        low_rank(w, name)


def fisher_of(cell: Cell, model: torch.nn.Module) -> dict:
    """The mean squared gradient of the log-probability of the label that the model gives, over a few inputs."""
    fisher = {name: numpy.zeros(tuple(p.shape)) for name, p in model.named_parameters()}
    for shift in range(4):
        case = probe_of(cell)
        case["tokens"][:8] = [token + shift for token in case["tokens"][:8]]
        model.zero_grad()
        with torch.enable_grad():
            logits = scores_of(cell, model, case)
            torch.log_softmax(logits, -1).max().backward()
        for name, parameter in model.named_parameters():
            fisher[name] += parameter.grad.double().numpy() ** 2 if parameter.grad is not None else 0
    return fisher


def scores_of(cell: Cell, model: torch.nn.Module, case: dict) -> torch.Tensor:
    batch = {"input_ids": torch.tensor([case["tokens"]])}
    if cell.family.is_seq2seq and cell.kind == "generation":
        batch["decoder_input_ids"] = torch.tensor([[cell.family.options["decoder_start_token_id"]]])
    return model(**batch).logits[0].reshape(-1, model(**batch).logits.shape[-1])[-1]


METHODS = {"bitfit": bitfit, "diff-pruning": diff_pruning, "fish-mask": fish_mask, "far": far, "said": said,
           "sparse-adapter": sparse_adapter, "s4": s4, "lora-merged": lora_merged}


def save_tuned(cell: Cell, seed: int, model: torch.nn.Module, folder: Path) -> torch.nn.Module:
    weights = Weights(model, seed)
    if cell.kind != "generation":
        train_head(weights)
    extra = [fisher_of(cell, model)] if cell.name == "fish-mask" else []
    METHODS[cell.name](weights, *extra)
    before = expected(cell, model, probe_of(cell))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(weights.values[name]))
    if difference(before, expected(cell, model, probe_of(cell))) < LEAST_EFFECT:
        raise Impossible("the method has nothing to change in this family")
    model.save_pretrained(folder.parent / "tuned")
    (folder.parent / "tuned" / "generation_config.json").unlink(missing_ok=True)
    return model


def load_tuned(cell: Cell, model: torch.nn.Module, folder: Path) -> torch.nn.Module:
    name = CLASSES.get(cell.kind) or ("AutoModelForSeq2SeqLM" if cell.family.is_seq2seq else "AutoModelForCausalLM")
    return getattr(transformers, name).from_pretrained(folder.parent / "tuned", dtype=torch.float32,
                                                       attn_implementation="eager")


def cells_of(family: Family, seed: int) -> list:
    """Generation where the family has it, classification otherwise."""
    kind = family.main_kind
    cells = []
    for number, name in enumerate(METHODS):
        cell = Cell(family, "diff", name, kind, name)
        cell.save = functools.partial(save_tuned, cell, seed * 1000 + number)
        cell.load = functools.partial(load_tuned, cell)
        cells.append(cell)
    return cells


if __name__ == "__main__":
    given = parse_arguments(__doc__)
    for family_name in given.family:
        make_cells(cells_of(families()[family_name], given.seed), Bases(), {"numpy": numpy.__version__}, given)
