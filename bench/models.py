"""Files that the benchmarks make from the demo's models, in build/bench: weights of other types, folders, adapters.

And how much arithmetic an encoder's text is; gguf.py says it of decoders."""
import json
import subprocess

from bench import adapters

N_TASKS = 16
# The fifth method of the mix is a vector or a sparse change of every linear, in turn.
MIX = ("lora", "houlsby", "prefix", "ia3", "bitfit", "lora", "houlsby", "prefix", "ia3", "diff",
       "lora", "houlsby", "prefix", "ia3", "bitfit", "lora")
# Types of llama-quantize, and in which precisions of ours a file of each is measured. What llama.cpp does with a
# quantised file is what `int8` does; with f16 it multiplies in f16 or f32, so `exact` and `bf16` stand beside it.
TYPES = {"f16": ("exact", "bf16"), "q8_0": ("exact", "int8"), "q4_0": ("exact", "int8"), "q4_k_m": ("exact", "int8")}

PEAK_OF = {"exact": "f32", "bf16": "bf16", "int8": "int8"}  # the machine's limit for a precision
# What its form leaves of that: 8-bit values come in groups with a scale each; floats made so, only those of x.
FORM_OF = {**PEAK_OF, "int8": "int8_groups"}
FORM_OF_FLOATS = {**PEAK_OF, "int8": "int8_long"}


def form_of(kind, cpu_level):
    """With tiles a file of Q8_0 is multiplied as floats are."""
    return FORM_OF_FLOATS if kind == "q8_0" and cpu_level == "amx" else FORM_OF


def quantised(bench, kind):
    """SmolLM2 with weights of a type, made once; None if llama-quantize is not there."""
    return quantise(bench, bench.smollm2, bench.out / f"smollm2-{kind}.gguf", kind)


def quantise(bench, source, path, kind):
    if path.exists():
        return path
    if not bench.llama:
        return None
    new = path.with_suffix(".new")
    subprocess.run([bench.llama / "llama-quantize", "--allow-requantize", source, new, kind.upper()], check=True, capture_output=True)
    new.rename(path)
    return path


def folders(base, work, methods, prefix, rank=adapters.RANK):
    """An adapter folder for each entry of methods, each unlike the others."""
    return [adapters.make(base, m, work / f"{prefix}{i:04d}-{m}", i, rank) for i, m in enumerate(methods)]


def flop_of_encoder(folder, n_tokens, is_class=False, rank=0):
    """Of one text; no pooler, no head, of deltas a LoRA of all linears, if rank is not 0. A class needs the last layer's keys and
    values, but one row of the rest."""
    c = json.loads((folder / "config.json").read_text())
    d, ff, layers = c["hidden_size"], c["intermediate_size"], c["num_hidden_layers"]

    def linear(n_in, n_out):
        return 2 * (n_in * n_out + rank * (n_in + n_out))
    row = 2 * linear(d, d) + 2 * linear(d, ff) + 2 * 2 * n_tokens * d
    last = 1 if is_class else n_tokens
    return layers * n_tokens * 2 * linear(d, d) + ((layers - 1) * n_tokens + last) * row
