"""BERT and GPT-2 in numpy and float64, with the places where methods of the literature change something.

A Task holds what was trained, as the papers define it and not as files store it: a LoRA stays two matrices, a prefix an
MLP, a mask a mask. Nothing here knows torch or a library of adapters.
"""

import math
from dataclasses import dataclass, field
from typing import Callable

import numpy

ERF = numpy.vectorize(math.erf, otypes=[float])
ACTIVATIONS = {
    "relu": lambda x: numpy.maximum(x, 0),
    "tanh": numpy.tanh,
    "swish": lambda x: x * sigmoid(x),
    "gelu": lambda x: 0.5 * x * (1 + ERF(x / math.sqrt(2))),
    "gelu_new": lambda x: 0.5 * x * (1 + numpy.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3))),
}


def sigmoid(x: numpy.ndarray) -> numpy.ndarray:
    return 1 / (1 + numpy.exp(-x))


def softmax(x: numpy.ndarray) -> numpy.ndarray:
    e = numpy.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@dataclass
class Gate:
    """UniPELT: the mean over the sequence of sigmoid(w x + b)."""

    weight: numpy.ndarray
    bias: numpy.ndarray

    def __call__(self, x: numpy.ndarray) -> float:
        return float(sigmoid(x @ self.weight[0] + self.bias[0]).mean())


@dataclass
class Lora:
    """y + s B A x; with a gate its value stands for s."""

    a: numpy.ndarray
    b: numpy.ndarray
    scale: float
    gate: Gate | None = None

    def __call__(self, x: numpy.ndarray) -> numpy.ndarray:
        return (self.gate(x) if self.gate else self.scale) * (x @ self.a.T @ self.b.T)


@dataclass
class Bottleneck:
    """up act(down x + b) + b', times a scale and a gate."""

    down: numpy.ndarray
    down_bias: numpy.ndarray
    up: numpy.ndarray
    up_bias: numpy.ndarray
    activation: str = "relu"
    scale: float = 1.0
    gate: Gate | None = None

    def __call__(self, x: numpy.ndarray) -> numpy.ndarray:
        inner = ACTIVATIONS[self.activation](x @ self.down.T + self.down_bias)
        return (self.gate(x) if self.gate else 1.0) * self.scale * (inner @ self.up.T + self.up_bias)


@dataclass
class Prefix:
    """Keys and values of virtual positions, made by an MLP from an embedding; a slot for each of its layers."""

    embedding: numpy.ndarray
    weights: tuple
    biases: tuple
    layers: list
    gates: dict = field(default_factory=dict)

    def keys_values(self, layer: int, x: numpy.ndarray) -> tuple:
        rows = numpy.tanh(self.embedding @ self.weights[0].T + self.biases[0]) @ self.weights[1].T + self.biases[1]
        width, slot = x.shape[1], self.layers.index(layer)
        gate = self.gates[layer](x) if layer in self.gates else 1.0
        return tuple(gate * rows[:, (2 * slot + i) * width:(2 * slot + i + 1) * width] for i in (0, 1))


@dataclass
class HeadAdapters:
    """He and others 2022, multi-head parallel adapters: head_i + s ReLU(x D_i + d_i) U_i, before the output matrix."""

    down: numpy.ndarray  # [heads, rank, width]
    bias: numpy.ndarray  # [heads, rank]
    up: numpy.ndarray  # [heads, head size, rank]
    scale: float

    def __call__(self, x: numpy.ndarray) -> numpy.ndarray:
        parts = [numpy.maximum(x @ d.T + b, 0) @ u.T for d, b, u in zip(self.down, self.bias, self.up)]
        return self.scale * numpy.concatenate(parts, axis=1)


@dataclass
class Task:
    """What a method changes: parameters by name, and parts by linear or by layer."""

    parameters: dict = field(default_factory=dict)
    loras: dict = field(default_factory=dict)
    prefix: Prefix | None = None
    heads: dict = field(default_factory=dict)
    after_attention: dict = field(default_factory=dict)  # Houlsby: h + A(h)
    after_ffn: dict = field(default_factory=dict)  # Houlsby
    behind_ffn: dict = field(default_factory=dict)  # Pfeiffer: h + A(LN(h + x))
    beside_ffn: dict = field(default_factory=dict)  # parallel: h + A(x)
    head: tuple | None = None  # a linear of the first row instead of the base's pooler and classifier


class Model:
    """What both models do: parameters by name, linears, norms, attention."""

    def __init__(self, parameters: dict, config: dict):
        self.parameters = {name: value.astype(numpy.float64) for name, value in parameters.items()}
        self.config = config

    def get(self, task: Task, name: str) -> numpy.ndarray:
        return task.parameters[name] if name in task.parameters else self.parameters[name]

    def linear(self, task: Task, name: str, x: numpy.ndarray) -> numpy.ndarray:
        weight = self.get(task, f"{name}.weight")
        y = x @ (weight if self.is_transposed else weight.T) + self.get(task, f"{name}.bias")
        return y + task.loras[name](x) if name in task.loras else y

    def norm(self, task: Task, name: str, x: numpy.ndarray) -> numpy.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / numpy.sqrt((centred ** 2).mean(-1, keepdims=True) + self.epsilon)
        return scaled * self.get(task, f"{name}.weight") + self.get(task, f"{name}.bias")

    def attend(self, q: numpy.ndarray, k: numpy.ndarray, v: numpy.ndarray, is_causal: bool) -> numpy.ndarray:
        n_heads, n_before = self.n_heads, len(k) - len(q)
        split = [x.reshape(len(x), n_heads, -1).transpose(1, 0, 2) for x in (q, k, v)]
        scores = split[0] @ split[1].transpose(0, 2, 1) / math.sqrt(q.shape[1] // n_heads)
        if is_causal:
            hidden = numpy.triu(numpy.ones((len(q), len(q)), bool), 1)
            scores[:, :, n_before:][:, hidden] = -numpy.inf
        return (softmax(scores) @ split[2]).transpose(1, 0, 2).reshape(len(q), -1)


class Bert(Model):
    """BertForSequenceClassification."""

    is_transposed = False

    def __init__(self, parameters: dict, config: dict):
        super().__init__(parameters, config)
        self.n_layers, self.n_heads = config["num_hidden_layers"], config["num_attention_heads"]
        self.epsilon = config["layer_norm_eps"]

    def attention(self, task: Task, layer: int, x: numpy.ndarray) -> numpy.ndarray:
        path = f"bert.encoder.layer.{layer}.attention"
        q, k, v = (self.linear(task, f"{path}.self.{name}", x) for name in ("query", "key", "value"))
        if task.prefix and layer in task.prefix.layers:
            before = task.prefix.keys_values(layer, x)
            k, v = numpy.concatenate((before[0], k)), numpy.concatenate((before[1], v))
        context = self.attend(q, k, v, False)
        if layer in task.heads:
            context = context + task.heads[layer](x)
        h = self.linear(task, f"{path}.output.dense", context)
        if layer in task.after_attention:
            h = h + task.after_attention[layer](h)
        return self.norm(task, f"{path}.output.LayerNorm", h + x)

    def feed_forward(self, task: Task, layer: int, x: numpy.ndarray) -> numpy.ndarray:
        path = f"bert.encoder.layer.{layer}"
        inner = ACTIVATIONS[self.config["hidden_act"]](self.linear(task, f"{path}.intermediate.dense", x))
        h = self.linear(task, f"{path}.output.dense", inner)
        norm = f"{path}.output.LayerNorm"
        if layer in task.after_ffn:
            h = h + task.after_ffn[layer](h)
        if layer in task.behind_ffn:
            h = h + task.behind_ffn[layer](self.norm(task, norm, h + x))
        if layer in task.beside_ffn:
            h = h + task.beside_ffn[layer](x)
        return self.norm(task, norm, h + x)

    def logits(self, task: Task, tokens: list) -> numpy.ndarray:
        path = "bert.embeddings"
        x = (self.get(task, f"{path}.word_embeddings.weight")[tokens]
             + self.get(task, f"{path}.position_embeddings.weight")[:len(tokens)]
             + self.get(task, f"{path}.token_type_embeddings.weight")[0])
        x = self.norm(task, f"{path}.LayerNorm", x)
        for layer in range(self.n_layers):
            x = self.feed_forward(task, layer, self.attention(task, layer, x))
        if task.head:
            return x[0] @ task.head[0].T + task.head[1]
        return self.linear(task, "classifier", numpy.tanh(self.linear(task, "bert.pooler.dense", x[0])))


class Gpt2(Model):
    """GPT2LMHeadModel: the rows of its logits, one a token."""

    is_transposed = True

    def __init__(self, parameters: dict, config: dict):
        super().__init__(parameters, config)
        self.n_layers, self.n_heads, self.epsilon = config["n_layer"], config["n_head"], config["layer_norm_epsilon"]

    def rows(self, task: Task, tokens: list) -> numpy.ndarray:
        table = self.get(task, "transformer.wte.weight")
        x = table[tokens] + self.get(task, "transformer.wpe.weight")[:len(tokens)]
        for layer in range(self.n_layers):
            path = f"transformer.h.{layer}"
            qkv = self.linear(task, f"{path}.attn.c_attn", self.norm(task, f"{path}.ln_1", x))
            x = x + self.linear(task, f"{path}.attn.c_proj", self.attend(*numpy.split(qkv, 3, axis=1), True))
            inner = self.linear(task, f"{path}.mlp.c_fc", self.norm(task, f"{path}.ln_2", x))
            x = x + self.linear(task, f"{path}.mlp.c_proj", ACTIVATIONS["gelu_new"](inner))
        return self.norm(task, "transformer.ln_f", x) @ table.T

    def logits(self, task: Task, tokens: list) -> numpy.ndarray:
        return self.rows(task, tokens)[-1]


def difference_quotients(model: Model, score: Callable, names: list, step: float = 1e-5) -> dict:
    """The gradient of score() for each number of the named parameters, by central differences."""
    gradients = {}
    for name in names:
        value = model.parameters[name].reshape(-1)
        gradient = numpy.zeros(value.size)
        for i in range(value.size):
            kept = value[i]
            value[i] = kept + step
            above = score()
            value[i] = kept - step
            gradient[i] = (above - score()) / (2 * step)
            value[i] = kept
        gradients[name] = gradient.reshape(model.parameters[name].shape)
    return gradients
