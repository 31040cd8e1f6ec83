#!/usr/bin/env python3
"""Writes random adapters in the files that the libraries save, with the standard
library only, so that benchmarks need no torch.

    bench/adapters.py --base {minilm,smollm2,llama-1b,llama-7b} --method METHOD --count N --out DIR [--rank R]

METHOD is lora, ia3, prefix, houlsby, bitfit, diff, or of PEFT's that change all linears
vera (of 32 R), hra, loha, lokr, oft (blocks of 4 R), boft (of 4) or road (groups of 64);
each adapter gets a folder DIR/METHOD-NNNN. Values are small and random: the arithmetic is that of trained ones.
"""
import argparse
import array
import functools
import json
import math
import random
import struct
from pathlib import Path

RANK = 8
BASES = {
    "minilm": {"layers": 6, "d": 384, "kv": 384, "ff": 1536, "heads": 12, "labels": 4},
    "smollm2": {"layers": 30, "d": 576, "kv": 192, "ff": 1536, "heads": 3, "labels": 0},
    "llama-1b": {"layers": 16, "d": 2048, "kv": 512, "ff": 8192, "heads": 8, "labels": 0},
    "llama-7b": {"layers": 32, "d": 4096, "kv": 4096, "ff": 11008, "heads": 32, "labels": 0},
}


def write_safetensors(path, tensors):
    """tensors: name -> (dtype, shape, bytes)."""
    header, at = {}, 0
    for name in sorted(tensors):
        dtype, shape, data = tensors[name]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name in sorted(tensors):
            f.write(tensors[name][2])


@functools.lru_cache
def noise(scale):
    """One long run of normal values, made once: a thousand adapters must not take minutes.
    Its length is prime, which keeps rows unlike."""
    rng = random.Random(scale)
    return array.array("f", [rng.gauss(0, scale) for _ in range(99991)])


@functools.lru_cache
def noise_f16(scale):
    """The same in f16: its bits."""
    run = noise(scale)
    return array.array("H", struct.pack(f"<{len(run)}e", *run))


def drawn(rng, dtype, run, shape):
    n, start = math.prod(shape), rng.randrange(len(run))
    return dtype, list(shape), (run[start:] + run * (n // len(run) + 1))[:n].tobytes()


def f32(rng, *shape, scale=0.02):
    return drawn(rng, "F32", noise(scale), shape)


def f16(rng, *shape, scale=0.02):
    return drawn(rng, "F16", noise_f16(scale), shape)


def linears(base, b):
    """(module path, n_out, n_in) of every linear, by layer."""
    for i in range(b["layers"]):
        if base == "minilm":
            p = f"bert.encoder.layer.{i}."
            yield from ((p + "attention.self.query", b["d"], b["d"]), (p + "attention.self.key", b["d"], b["d"]),
                        (p + "attention.self.value", b["d"], b["d"]), (p + "attention.output.dense", b["d"], b["d"]),
                        (p + "intermediate.dense", b["ff"], b["d"]), (p + "output.dense", b["d"], b["ff"]))
        else:
            p = f"model.layers.{i}."
            yield from ((p + "self_attn.q_proj", b["d"], b["d"]), (p + "self_attn.k_proj", b["kv"], b["d"]),
                        (p + "self_attn.v_proj", b["kv"], b["d"]), (p + "self_attn.o_proj", b["d"], b["d"]),
                        (p + "mlp.gate_proj", b["ff"], b["d"]), (p + "mlp.up_proj", b["ff"], b["d"]),
                        (p + "mlp.down_proj", b["d"], b["ff"]))


def n_factors(base, rank=RANK):
    """Values of a LoRA's factors: so many multiplications of a token."""
    return rank * sum(n_out + n_in for _, n_out, n_in in linears(base, BASES[base]))


def classifier(rng, b, prefix="base_model.model."):
    if not b["labels"]:
        return {}
    return {prefix + "classifier.weight": f32(rng, b["labels"], b["d"], scale=0.3),
            prefix + "classifier.bias": f32(rng, b["labels"])}


def peft_config(base, b, peft_type, **extra):
    task = "SEQ_CLS" if b["labels"] else "CAUSAL_LM"
    return {"peft_type": peft_type, "task_type": task, "inference_mode": True,
            "base_model_name_or_path": base, "modules_to_save": None, **extra}


def save_peft(out, config, tensors):
    (out / "adapter_config.json").write_text(json.dumps(config))
    write_safetensors(out / "adapter_model.safetensors", tensors)


def lora(base, b, rng, out, rank):
    """A decoder's in f16, as llama.cpp's converter writes them, so that all programs read the same bytes."""
    t, draw = classifier(rng, b), f32 if base == "minilm" else f16
    for path, n_out, n_in in linears(base, b):
        t[f"base_model.model.{path}.lora_A.weight"] = draw(rng, rank, n_in)
        t[f"base_model.model.{path}.lora_B.weight"] = draw(rng, n_out, rank)
    # Two names deep: "dense" alone would make PEFT put a LoRA on BERT's pooler too.
    targets = sorted({".".join(p.split(".")[-2:]) for p, _, _ in linears(base, b)})
    save_peft(out, peft_config(base, b, "LORA", r=rank, lora_alpha=2 * rank, target_modules=targets,
                               bias="none", use_rslora=False, use_dora=False), t)


def ia3(base, b, rng, out, rank):
    t = classifier(rng, b)
    down = "output.dense" if base == "minilm" else "down_proj"
    wanted = ("self.key", "self.value", down) if base == "minilm" else ("k_proj", "v_proj", down)
    for path, n_out, n_in in linears(base, b):
        if path.endswith(wanted):
            shape = (1, n_in) if path.endswith(down) else (n_out, 1)
            t[f"base_model.model.{path}.ia3_l"] = f32(rng, *shape, scale=0.5)
    save_peft(out, peft_config(base, b, "IA3", target_modules=list(wanted), feedforward_modules=[down]), t)


def prefix(base, b, rng, out, rank):
    t = {k.replace("base_model.model.", "base_model."): v for k, v in classifier(rng, b).items()}
    t["prompt_embeddings"] = f32(rng, 10, 2 * b["layers"] * b["kv"], scale=0.5)
    save_peft(out, peft_config(base, b, "PREFIX_TUNING", num_virtual_tokens=10, num_layers=b["layers"],
                               num_attention_heads=b["heads"], token_dim=b["kv"],
                               num_transformer_submodules=1, prefix_projection=False,
                               encoder_hidden_size=b["d"]), t)


def houlsby(base, b, rng, out, rank):
    config = {"mh_adapter": True, "output_adapter": True, "reduction_factor": 16, "non_linearity": "swish",
              "original_ln_before": False, "original_ln_after": True, "ln_before": False, "ln_after": False,
              "is_parallel": False, "scaling": 1.0, "use_gating": False, "residual_before_ln": True,
              "adapter_residual_before_ln": False, "inv_adapter": None, "cross_adapter": False,
              "leave_out": [], "phm_layer": False, "architecture": None}
    width, t = b["d"] // 16, {}
    for i in range(b["layers"]):
        sites = ((f"bert.encoder.layer.{i}.attention.output", f"bert.encoder.layer.{i}.output")
                 if base == "minilm" else (f"model.layers.{i}.attention_adapters", f"model.layers.{i}.output_adapters"))
        for site in sites:
            p = f"{site}.adapters.bench."
            t[p + "adapter_down.0.weight"] = f32(rng, width, b["d"])
            t[p + "adapter_down.0.bias"] = f32(rng, width)
            t[p + "adapter_up.weight"] = f32(rng, b["d"], width)
            t[p + "adapter_up.bias"] = f32(rng, b["d"])
    meta = {"config": config, "hidden_size": b["d"], "name": "bench", "version": "adapters.1.3.0",
            "model_type": "bert" if b["labels"] else "llama", "model_name": base,
            "model_class": "BertAdapterModel" if b["labels"] else "LlamaAdapterModel"}
    (out / "adapter_config.json").write_text(json.dumps(meta))
    write_safetensors(out / "adapter.safetensors", t)
    if b["labels"]:
        head = {"head_type": "classification", "num_labels": b["labels"], "layers": 1, "use_pooler": False,
                "activation_function": "tanh", "bias": True, "dropout_prob": None,
                "label2id": {f"LABEL_{i}": i for i in range(b["labels"])}}
        (out / "head_config.json").write_text(json.dumps({**meta, "config": head}))
        write_safetensors(out / "model_head.safetensors",
                          {"heads.bench.1.weight": f32(rng, b["labels"], b["d"], scale=0.3),
                           "heads.bench.1.bias": f32(rng, b["labels"])})


def own(method, base, b, rng, out, tensors):
    (out / "delta.json").write_text(json.dumps({"method": method, "base": base,
                                                **({"add": True} if method == "bitfit" and not b["labels"] else {})}))
    write_safetensors(out / "delta.safetensors", {**tensors, **classifier(rng, b, "")})


def bitfit(base, b, rng, out, rank):
    own("bitfit", base, b, rng, out, {f"{p}.bias": f32(rng, n) for p, n, _ in linears(base, b)})


def diff(base, b, rng, out, rank):
    t = {}
    for path, n_out, n_in in linears(base, b):
        n = n_out * n_in // 200  # 0.5 %
        at = sorted(rng.sample(range(n_out * n_in), n))
        t[f"{path}.weight#idx"] = "I32", [n], array.array("i", at).tobytes()
        t[f"{path}.weight#val"] = f32(rng, n)
    own("diff", base, b, rng, out, t)


def ones(*shape):
    return "F32", list(shape), array.array("f", [1.0] * math.prod(shape)).tobytes()


def near_square(n):
    """The two factors of n next to each other, the smaller one first: PEFT's for LoKr."""
    small = max(k for k in range(1, math.isqrt(n) + 1) if n % k == 0)
    return small, n // small


def kronecker(rng, n_out, n_in, rank):
    (out1, out2), (in1, in2) = near_square(n_out), near_square(n_in)
    return {"lokr_w1": f32(rng, out1, in1), "lokr_w2_a": f32(rng, out2, rank), "lokr_w2_b": f32(rng, rank, in2)}


# PEFT's type, its configuration for a rank, and the tensors of a linear
ON_LINEARS = {
    "vera": ("VERA", lambda r: {"r": 32 * r, "save_projection": True},
             lambda rng, n_out, n_in, r: {"vera_lambda_b": f32(rng, n_out), "vera_lambda_d": f32(rng, 32 * r)}),
    "hra": ("HRA", lambda r: {"r": r}, lambda rng, n_out, n_in, r: {"hra_u": f32(rng, n_in, r)}),
    "loha": ("LOHA", lambda r: {"r": r, "alpha": r}, lambda rng, n_out, n_in, r: {
        "hada_w1_a": f32(rng, n_out, r), "hada_w1_b": f32(rng, r, n_in), "hada_w2_a": f32(rng, n_out, r),
        "hada_w2_b": f32(rng, r, n_in)}),
    "lokr": ("LOKR", lambda r: {"r": r, "alpha": r}, kronecker),
    "oft": ("OFT", lambda r: {"oft_block_size": 4 * r, "use_cayley_neumann": True, "num_cayley_neumann_terms": 5},
            lambda rng, n_out, n_in, r: {"oft_R.weight": f32(rng, n_in // (4 * r), 2 * r * (4 * r - 1))}),
    "boft": ("BOFT", lambda r: {"boft_block_size": 4, "boft_n_butterfly_factor": 1},
             lambda rng, n_out, n_in, r: {"boft_R": f32(rng, 1, n_in // 4, 4, 4), "boft_s": ones(n_out, 1)}),
    "road": ("ROAD", lambda r: {"variant": "road_1", "group_size": 64},
             lambda rng, n_out, n_in, r: {"road_theta": f32(rng, n_out // 2), "road_alpha": ones(n_out // 2)}),
}


def on_linears(method, base, b, rng, out, rank):
    peft_type, config, tensors = ON_LINEARS[method]
    t = classifier(rng, b)
    if method == "vera":
        t["base_model.vera_A"] = f32(rng, 32 * rank, b["ff"])
        t["base_model.vera_B"] = f32(rng, b["ff"], 32 * rank)
    for path, n_out, n_in in linears(base, b):
        for name, tensor in tensors(rng, n_out, n_in, rank).items():
            t[f"base_model.model.{path}.{name}"] = tensor
    targets = sorted({".".join(p.split(".")[-2:]) for p, _, _ in linears(base, b)})
    save_peft(out, peft_config(base, b, peft_type, target_modules=targets, **config(rank)), t)


METHODS = {**{method: functools.partial(on_linears, method) for method in ON_LINEARS}, "lora": lora, "ia3": ia3, "prefix": prefix, "houlsby": houlsby, "bitfit": bitfit, "diff": diff}


def make(base, method, out, seed, rank=RANK):
    out.mkdir(parents=True, exist_ok=True)
    METHODS[method](base, BASES[base], random.Random(seed), out, rank)
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--base", choices=BASES, required=True)
    p.add_argument("--method", choices=METHODS, required=True)
    p.add_argument("--count", type=int, default=1)
    p.add_argument("--rank", type=int, default=RANK)
    p.add_argument("--out", type=Path, required=True)
    a = p.parse_args()
    for i in range(a.count):
        make(a.base, a.method, a.out / f"{a.method}-{i:04d}", i, a.rank)


if __name__ == "__main__":
    main()
