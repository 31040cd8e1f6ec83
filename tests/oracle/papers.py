"""Methods that no library saves, from the formulas of their papers: `papers.py --seed N --out DIR [BASE/METHOD...]`.

Writes DIR/bases and DIR/cells for tests/parity/parity.py. A method that ends as other values of the base's parameters
is a full tuned checkpoint, which `peftd diff` makes a delta of; a method that adds modules is written as the files of
AdapterHub that say the same. What is expected is computed in numpy by papers_models.py from the method's own numbers
(a mask and values, theta and its projection, two matrices), never from those files. No torch.
"""

import argparse
import json
import math
import shutil
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

import numpy
from papers_files import adapterhub_files, write_golden, write_json, write_safetensors
from papers_models import Bert, Bottleneck, Gate, Gpt2, HeadAdapters, Lora, Model, Prefix, Task, difference_quotients

LENGTHS = (4, 11, 23)
MAX_TOKENS = 4
MARGIN = 1e-3  # of the scale, between the two best logits of a greedy step
LEAST_EFFECT = 1e-2
LABELS = 3
KEPT = 0.005  # of diff pruning and FishMask, at these sizes some hundred numbers
NODES = 0.15  # of FAR
HARD_CONCRETE = (-1.5, 1.5)  # gamma, zeta
INTRINSIC_DIMENSION = 40
RANK, ALPHA, WIDTH, PREFIX, MLP = 3, 7, 5, 4, 6
UNMASKED = 0.4  # of SparseAdapter

BERT = {"architectures": ["BertForSequenceClassification"], "model_type": "bert", "hidden_act": "gelu",
        "hidden_size": 20, "intermediate_size": 28, "layer_norm_eps": 1e-12, "max_position_embeddings": 40,
        "num_attention_heads": 2, "num_hidden_layers": 4, "pad_token_id": 0, "type_vocab_size": 2, "vocab_size": 61}
GPT2 = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new",
        "bos_token_id": 2, "eos_token_id": 2, "layer_norm_epsilon": 1e-5, "n_embd": 20, "n_head": 2, "n_inner": 28,
        "n_layer": 4, "n_positions": 48, "tie_word_embeddings": True, "vocab_size": 61}
BERT_UP, BERT_DOWN = "intermediate.dense.weight", ".output.dense.weight"
GPT2_UP, GPT2_DOWN = "mlp.c_fc.weight", "mlp.c_proj.weight"


def bert_shapes(c: dict) -> dict:
    d, inner, shapes = c["hidden_size"], c["intermediate_size"], {}
    for name, rows in (("word", "vocab_size"), ("position", "max_position_embeddings"), ("token_type", "type_vocab_size")):
        shapes[f"bert.embeddings.{name}_embeddings.weight"] = (c[rows], d)
    norms, linears = ["bert.embeddings.LayerNorm"], {"bert.pooler.dense": (d, d), "classifier": (LABELS, d)}
    for i in range(c["num_hidden_layers"]):
        path = f"bert.encoder.layer.{i}"
        linears |= {f"{path}.attention.self.{name}": (d, d) for name in ("query", "key", "value")}
        linears |= {f"{path}.attention.output.dense": (d, d), f"{path}.intermediate.dense": (inner, d),
                    f"{path}.output.dense": (d, inner)}
        norms += [f"{path}.attention.output.LayerNorm", f"{path}.output.LayerNorm"]
    return with_biases(shapes, norms, linears, d, 0)


def gpt2_shapes(c: dict) -> dict:
    d, inner = c["n_embd"], c["n_inner"]
    shapes = {"transformer.wte.weight": (c["vocab_size"], d), "transformer.wpe.weight": (c["n_positions"], d)}
    norms, linears = ["transformer.ln_f"], {}
    for i in range(c["n_layer"]):
        path = f"transformer.h.{i}"
        linears |= {f"{path}.attn.c_attn": (d, 3 * d), f"{path}.attn.c_proj": (d, d), f"{path}.mlp.c_fc": (d, inner),
                    f"{path}.mlp.c_proj": (inner, d)}
        norms += [f"{path}.ln_1", f"{path}.ln_2"]
    return with_biases(shapes, norms, linears, d, 1)


def with_biases(shapes: dict, norms: list, linears: dict, width: int, out: int) -> dict:
    for name, shape in linears.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": (shape[out],)}
    for name in norms:
        shapes |= {f"{name}.weight": (width,), f"{name}.bias": (width,)}
    return shapes


@dataclass
class Base:
    """A random base. `up` and `down` end the names of the feed-forward network's weights, `adapted` of LoRA's."""

    name: str
    config: dict
    shapes: Callable
    model: type
    up: str
    down: str
    adapted: tuple
    kind: str

    def draw(self, random: numpy.random.Generator) -> dict:
        values = {}
        for name, shape in self.shapes(self.config).items():
            noise = random.standard_normal(shape)
            fan_in = shape[0] if self.model.is_transposed and ".h." in name else shape[-1]
            is_norm = ("LayerNorm" in name or "ln_" in name) and name.endswith("weight")
            scale = 0.2 if len(shape) == 1 else 1.2 / math.sqrt(fan_in)
            values[name] = (is_norm + scale * noise).astype(numpy.float32)
        return values


BASES = {base.name: base for base in (
    Base("papers-bert", BERT, bert_shapes, Bert, BERT_UP, BERT_DOWN, (".query.weight", ".value.weight"),
         "classification"),
    Base("papers-gpt2", GPT2, gpt2_shapes, Gpt2, GPT2_UP, GPT2_DOWN, ("attn.c_attn.weight",), "generation"))}


class Draw:
    """The base's numbers for a method, and where its own come from."""

    def __init__(self, base: Base, model: Model, random: numpy.random.Generator):
        self.base, self.model, self.random = base, model, random
        self.n_layers, self.width = model.n_layers, len(next(iter(model.parameters.values()))[0])
        self.body = [name for name in model.parameters if not name.startswith("classifier")]

    def normal(self, *shape, scale: float = 1.0) -> numpy.ndarray:
        # Rounded to what a file holds, so that the formula and the file begin with the same numbers.
        return (scale * self.random.standard_normal(shape)).astype(numpy.float32).astype(numpy.float64)

    def matrix(self, rows: int, columns: int) -> numpy.ndarray:
        return self.normal(rows, columns, scale=1 / math.sqrt(columns))

    def weights(self, *endings: str) -> list:
        return [name for name in self.body if name.endswith(endings) and "attention.output" not in name]

    def classifier(self) -> dict:
        """The head that a method trains beside its own numbers; a generating model has none."""
        names = [name for name in self.model.parameters if name.startswith("classifier")]
        return {name: self.normal(*self.model.parameters[name].shape, scale=0.4) for name in names}

    def with_head(self, task: Task) -> Task:
        """The same for files of AdapterHub: a linear of the first row."""
        task.head = (self.matrix(LABELS, self.width), self.normal(LABELS, scale=0.3))
        return task


# ---- methods that end as other values of the base's parameters ----


def is_bias(name: str) -> bool:
    return name.endswith(".bias")


def layer_of(name: str) -> int:
    return next((int(part) for part in name.split(".") if part.isdigit()), -1)


def bitfit(draw: Draw) -> Task:
    """Ben Zaken and others 2022: all biases, nothing else."""
    biases = {name: draw.normal(*draw.model.parameters[name].shape, scale=0.3) for name in draw.body if is_bias(name)}
    return Task(parameters=biases | draw.classifier())


def largest(scores: dict, fraction: float) -> dict:
    """Masks of the largest scores over all tensors together."""
    everything = numpy.concatenate([score.ravel() for score in scores.values()])
    count = max(1, int(fraction * everything.size))
    threshold = numpy.partition(everything, -count)[-count]
    return {name: score >= threshold for name, score in scores.items()}


def diff_pruning(draw: Draw) -> Task:
    """Guo and others 2021: theta_0 + z (*) w. A gate is a stretched, clipped concrete variable times that of its group
    (a tensor); then the largest differences stay."""
    gamma, zeta = HARD_CONCRETE
    differences = {}

    def gate(shape: tuple) -> numpy.ndarray:
        u = draw.random.uniform(0.05, 0.95, shape)
        s = 1 / (1 + numpy.exp(-(numpy.log(u) - numpy.log(1 - u) + draw.random.standard_normal(shape))))
        return numpy.clip(s * (zeta - gamma) + gamma, 0, 1)

    for name in draw.body:
        shape = draw.model.parameters[name].shape
        differences[name] = gate(shape) * gate(()) * draw.normal(*shape)
    masks = largest({name: numpy.abs(value) for name, value in differences.items()}, KEPT)
    return Task(parameters={name: draw.model.parameters[name] + masks[name] * value
                            for name, value in differences.items()} | draw.classifier())


def fish_mask(draw: Draw) -> Task:
    """Sung and others 2021: the numbers of the largest empirical Fisher information, the mean over inputs of the
    squared gradient of the log-probability of the label, are trained."""
    inputs = [draw.random.integers(3, 61, 5).tolist() for _ in range(2)]
    fisher = {name: 0.0 for name in draw.body}
    for tokens in inputs:
        label = int(draw.model.logits(Task(), tokens).argmax())

        def log_probability() -> float:
            row = draw.model.logits(Task(), tokens)  # noqa: B023 - called before the next round
            return float(row[label] - row.max() - math.log(numpy.exp(row - row.max()).sum()))  # noqa: B023

        for name, gradient in difference_quotients(draw.model, log_probability, draw.body).items():
            fisher[name] = fisher[name] + gradient ** 2 / len(inputs)
    masks = largest(fisher, KEPT)
    return Task(parameters={name: draw.model.parameters[name] + mask * draw.normal(*mask.shape, scale=0.7)
                            for name, mask in masks.items()} | draw.classifier())


def far(draw: Draw) -> Task:
    """Vucetic and others 2022: of each feed-forward network some nodes are trained, with their incoming and outgoing
    weights."""
    is_transposed, changed = draw.model.is_transposed, {}
    for up in draw.weights(draw.base.up):
        down = up.replace(draw.base.up.removeprefix("."), draw.base.down.removeprefix("."))
        bias = up.removesuffix("weight") + "bias"
        values = {name: draw.model.parameters[name].copy() for name in (up, down, bias)}
        nodes = draw.random.permutation(values[bias].size)[:max(1, int(NODES * values[bias].size))]
        rows = (slice(None), nodes) if is_transposed else (nodes, slice(None))
        values[up][rows] = draw.normal(*values[up][rows].shape, scale=0.4)
        values[down][rows[::-1]] = draw.normal(*values[down][rows[::-1]].shape, scale=0.4)
        values[bias][nodes] = draw.normal(len(nodes), scale=0.3)
        changed |= values
    return Task(parameters=changed | draw.classifier())


def hadamard(x: numpy.ndarray) -> numpy.ndarray:
    """The Walsh-Hadamard transform, not normalised."""
    half = 1
    while half < x.size:
        pairs = x.reshape(-1, 2, half)
        x = numpy.stack((pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]), axis=1).reshape(-1)
        half *= 2
    return x


def said(draw: Draw) -> Task:
    """Aghajanyan and others 2021: theta_0 + lambda_i P(theta_d), P Le's Fastfood transform H G Pi H B, one lambda a
    layer; the lambdas are part of the d numbers."""
    theta = draw.normal(INTRINSIC_DIMENSION - draw.n_layers - 1)
    scales = 0.15 * (1 + draw.normal(draw.n_layers + 1, scale=0.2))
    parameters = {}
    for name in draw.body:
        value = draw.model.parameters[name]
        length = 1 << max(value.size - 1, theta.size - 1).bit_length()
        signs, order = draw.random.choice([-1.0, 1.0], length), draw.random.permutation(length)
        gauss, padded = draw.random.standard_normal(length), numpy.zeros(length)
        padded[:theta.size] = theta
        projected = hadamard(gauss * hadamard(signs * padded)[order])[:value.size]
        projected /= math.sqrt(length * (gauss ** 2).sum()) * math.sqrt(value.size / length)
        parameters[name] = value + scales[layer_of(name)] * projected.reshape(value.shape)
    return Task(parameters=parameters | draw.classifier())


def lora(draw: Draw, name: str, kept: float = 1.0) -> Lora:
    shape = draw.model.parameters[name].shape
    n_out, n_in = shape[::-1] if draw.model.is_transposed else shape
    a, b = draw.matrix(RANK, n_in), draw.matrix(n_out, RANK)
    masks = largest({"a": numpy.abs(a * draw.normal(*a.shape)), "b": numpy.abs(b * draw.normal(*b.shape))}, kept)
    return Lora(a * masks["a"], b * masks["b"], ALPHA / RANK)


def sparse_lora(draw: Draw) -> Task:
    """He and others 2022 (SparseAdapter): the matrices of the adapter under masks of the largest |weight x gradient|
    (SNIP), here of LoRA."""
    return Task(parameters=draw.classifier(), loras={
        name.removesuffix(".weight"): lora(draw, name, UNMASKED) for name in draw.weights(*draw.base.adapted)})


def s4_merged(draw: Draw) -> Task:
    """Chen and others 2023 (S4): groups of layers, each with its set of methods; here those that merge: biases in
    group 0 and 2, LoRA in 1 and 2, group 3 frozen."""
    biases = {name: draw.normal(*draw.model.parameters[name].shape, scale=0.3) for name in draw.body
              if is_bias(name) and layer_of(name) in (0, 2)}
    return Task(parameters=biases | draw.classifier(), loras={
        name.removesuffix(".weight"): lora(draw, name) for name in draw.weights(*draw.base.adapted)
        if layer_of(name) in (1, 2)})


# ---- methods that add modules: BERT only, whose files of AdapterHub say the same ----


def bottleneck(draw: Draw, **more) -> Bottleneck:
    return Bottleneck(draw.matrix(WIDTH, draw.width), draw.normal(WIDTH, scale=0.3), draw.matrix(draw.width, WIDTH),
                      draw.normal(draw.width, scale=0.3), **more)


def gate(draw: Draw) -> Gate:
    return Gate(draw.matrix(1, draw.width), draw.normal(1))


def prefix(draw: Draw, layers: list, is_gated: bool = False) -> Prefix:
    width = draw.width
    return Prefix(draw.normal(PREFIX, width, scale=0.7),
                  (draw.matrix(MLP, width), draw.matrix(2 * len(layers) * width, MLP)),
                  (draw.normal(MLP, scale=0.3), draw.normal(2 * len(layers) * width, scale=0.3)), layers,
                  {layer: gate(draw) for layer in layers} if is_gated else {})


def sparse_adapter(draw: Draw) -> Task:
    """SparseAdapter on Houlsby's adapter: down and up under masks chosen over both together."""
    def masked() -> Bottleneck:
        part = bottleneck(draw, activation="swish")
        masks = largest({name: numpy.abs(getattr(part, name) * draw.normal(*getattr(part, name).shape))
                         for name in ("down", "up")}, UNMASKED)
        part.down, part.up = part.down * masks["down"], part.up * masks["up"]
        return part

    layers = range(draw.n_layers)
    return draw.with_head(Task(after_attention={layer: masked() for layer in layers},
                               after_ffn={layer: masked() for layer in layers}))


def s4_groups(draw: Draw) -> Task:
    """S4's groups as its authors found them, {A, L}, {A, P}, {A, P}, {P, L}, without their biases."""
    return draw.with_head(Task(
        behind_ffn={layer: bottleneck(draw) for layer in (0, 1, 2)}, prefix=prefix(draw, [1, 2, 3]),
        loras={name.removesuffix(".weight"): lora(draw, name) for name in draw.weights(*draw.base.adapted)
               if layer_of(name) in (0, 3)}))


def multi_head_parallel(draw: Draw) -> Task:
    """He and others 2022 (Towards a unified view): an adapter beside each head."""
    n_heads = draw.model.n_heads
    size = draw.width // n_heads

    def heads() -> HeadAdapters:
        return HeadAdapters(numpy.stack([draw.matrix(RANK, draw.width) for _ in range(n_heads)]),
                            draw.normal(n_heads, RANK, scale=0.3),
                            numpy.stack([draw.matrix(size, RANK) for _ in range(n_heads)]), 2.0)

    return draw.with_head(Task(heads={layer: heads() for layer in range(draw.n_layers)}))


def mam(draw: Draw) -> Task:
    """He and others 2022: a prefix for the attention, a parallel adapter scaled by 4 for the feed-forward network."""
    layers = list(range(draw.n_layers))
    return draw.with_head(Task(prefix=prefix(draw, layers),
                               beside_ffn={layer: bottleneck(draw, scale=4.0) for layer in layers}))


def unipelt(draw: Draw) -> Task:
    """Mao and others 2022: prefix, Pfeiffer's adapter and LoRA on query and value, each under its gate."""
    layers = list(range(draw.n_layers))
    loras = {name.removesuffix(".weight"): lora(draw, name) for name in draw.weights(*draw.base.adapted)}
    for part in loras.values():
        part.gate = gate(draw)
    return draw.with_head(Task(prefix=prefix(draw, layers, True), loras=loras,
                               behind_ffn={layer: bottleneck(draw, gate=gate(draw)) for layer in layers}))


CHECKPOINTS = {"bitfit": bitfit, "diff-pruning": diff_pruning, "fish-mask": fish_mask, "far": far, "said": said,
               "sparse-adapter-lora": sparse_lora, "s4-merged": s4_merged}
MODULES = {"sparse-adapter": sparse_adapter, "s4-groups": s4_groups, "mh-parallel": multi_head_parallel, "mam": mam,
           "unipelt": unipelt}


# ---- files and cases ----


def tuned_values(model: Model, task: Task) -> dict:
    """The checkpoint that training leaves behind; LoRA is merged into it."""
    values = {name: task.parameters.get(name, value) for name, value in model.parameters.items()}
    for name, part in task.loras.items():
        update = part.scale * part.b @ part.a
        values[f"{name}.weight"] = values[f"{name}.weight"] + (update.T if model.is_transposed else update)
    return {name: value.astype(numpy.float32) for name, value in values.items()}


def generate(model: Model, task: Task, tokens: list) -> list | None:
    """Greedy tokens while each is clearly the best; nothing if not even the first is."""
    tokens, made = list(tokens), []
    while len(made) < MAX_TOKENS:
        row = model.logits(task, tokens)
        second, best = numpy.sort(row)[-2:]
        if best - second < MARGIN * max(1, numpy.abs(row).max()):
            break
        made.append(int(row.argmax()))
        tokens.append(made[-1])
    return made or None


def cases_of(base: Base, model: Model, task: Task, random: numpy.random.Generator) -> list:
    cases = []
    while len(cases) < len(LENGTHS):
        tokens = random.integers(3, 61, LENGTHS[len(cases)]).tolist()
        case = {"tokens": tokens, "logits": model.logits(task, tokens).tolist()}
        if base.kind == "generation":
            case["generated"] = generate(model, task, tokens)
            case |= {"max_tokens": len(case["generated"] or []), "ignore_eos": True}
        if case.get("generated", True):
            cases.append(case)
    return cases


def effect(model: Model, task: Task) -> float:
    """How far the method moves the answer, its head aside; a method that changes nothing proves nothing."""
    tokens, parameters = list(range(3, 20)), {k: v for k, v in task.parameters.items() if "classifier" not in k}
    body = Task(**{**vars(task), "parameters": parameters})
    plain, changed = model.logits(Task(head=task.head), tokens), model.logits(body, tokens)
    return float(numpy.abs(changed - plain).max() / max(1, numpy.abs(plain).max()))


def make_cell(base: Base, model: Model, method: str, seed: int, out: Path) -> None:
    random = numpy.random.default_rng(zlib.crc32(f"{seed}/{base.name}/{method}".encode()))
    is_checkpoint = method in CHECKPOINTS
    task = (CHECKPOINTS if is_checkpoint else MODULES)[method](Draw(base, model, random))
    if effect(model, task) < LEAST_EFFECT:
        raise SystemExit(f"{base.name}, {method}: changes the answer by {effect(model, task):.1e} of scale only")
    folder = out / "cells" / f"{base.name}-{'diff' if is_checkpoint else 'ah'}-{method}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if is_checkpoint:
        write_safetensors(folder / "tuned" / "model.safetensors", tuned_values(model, task))
        write_json(folder / "tuned" / "config.json", base.config)
    else:
        adapterhub_files(folder / "adapter", base.config, model, task)
    write_golden(folder / "golden.json", {
        "base": base.name, "reader": "diff" if is_checkpoint else "adapterhub", "method": method, "row": method,
        "kind": base.kind, "versions": {"numpy": numpy.__version__}, "seed": seed,
        "notes": [task_note(base, method)]}, cases_of(base, model, task, random))


def task_note(base: Base, method: str) -> str:
    text = ({**CHECKPOINTS, **MODULES})[method].__doc__
    return " ".join(text.split())


def make_base(base: Base, seed: int, out: Path) -> Model:
    folder = out / "bases" / base.name
    values = base.draw(numpy.random.default_rng(zlib.crc32(f"{seed}/{base.name}".encode())))
    write_safetensors(folder / "model.safetensors", values)
    write_json(folder / "config.json", base.config)
    return base.model(values, base.config)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("only", nargs="*", metavar="BASE/METHOD")
    arguments = parser.parse_args()
    for base in BASES.values():
        methods = list(CHECKPOINTS) + (list(MODULES) if base.name == "papers-bert" else [])
        wanted = [m for m in methods if not arguments.only or f"{base.name}/{m}" in arguments.only]
        if wanted:
            model = make_base(base, arguments.seed, arguments.out)
            for method in wanted:
                make_cell(base, model, method, arguments.seed, arguments.out)


if __name__ == "__main__":
    main()
