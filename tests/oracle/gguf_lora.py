"""Makes a cell with llama.cpp's LoRA of a cell with PEFT's: `gguf_lora.py --golden DIR --cell NAME --to NAME [--type f16]`.

DIR/cells/NAME is PEFT's LoRA on a base in DIR/bases. The new cell has the same numbers in adapter.gguf, named and ordered as
llama.cpp's convert_lora_to_gguf.py does: NAME.weight.lora_a and .lora_b, rows of q and k interleaved where the base's
converter interleaves them, lora_a of the token embedding transposed. The expected answers are those that PEFT gave: in f32 ours must be
the same as those of PEFT's files bit for bit. Runs under requirements-peft.
"""

import argparse
import json
from pathlib import Path

import gguf
import numpy
from safetensors.numpy import load_file

ARCHITECTURE = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "phi3": "phi3", "gpt2": "gpt2",
                "gemma2": "gemma2", "gemma3_text": "gemma3"}
TYPE = {"f32": gguf.GGMLQuantizationType.F32, "f16": gguf.GGMLQuantizationType.F16, "q8_0": gguf.GGMLQuantizationType.Q8_0}


def interleaved(rows: numpy.ndarray, n_heads: int) -> numpy.ndarray:
    """The first half of each head's rows and the second, by turns."""
    return rows.reshape(n_heads, 2, -1, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def pairs(tensors: dict) -> dict:
    """{module: (A, B)} without PEFT's prefix."""
    found = {}
    for name, a in tensors.items():
        for mark in (".lora_A.weight", ".lora_embedding_A"):
            if name.endswith(mark):
                module = name.removeprefix("base_model.model.").removesuffix(mark)
                found[module] = (a, tensors[name.replace("_A", "_B")])
    own = [name for name in tensors if not name.endswith(".base_layer.weight")]  # a copy of the base's
    assert 2 * len(found) == len(own), "more than pairs"
    return found


def write(path: Path, base: dict, adapter: dict, tensors: dict, kind: str) -> None:
    architecture = ARCHITECTURE[base["model_type"]]
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], base["num_hidden_layers"])
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", adapter["lora_alpha"])
    for module, (a, b) in pairs(tensors).items():
        name = names.get_name(f"{module}.weight", try_suffixes=(".weight",))
        if architecture == "llama" and module.endswith(("q_proj", "k_proj")):
            b = interleaved(b, base["num_attention_heads" if module.endswith("q_proj") else "num_key_value_heads"])
        if name == "token_embd.weight":
            a = a.T
        for part, value in (("lora_a", a), ("lora_b", b)):
            whole = numpy.ascontiguousarray(value, dtype=numpy.float32)
            stored = TYPE[kind] if whole.shape[1] % 32 == 0 or kind != "q8_0" else TYPE["f32"]
            writer.add_tensor(f"{name}.{part}", gguf.quants.quantize(whole, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--golden", type=Path, required=True)
    parser.add_argument("--cell", required=True)
    parser.add_argument("--to", required=True)
    parser.add_argument("--type", choices=TYPE, default="f32")
    arguments = parser.parse_args()
    cell = arguments.golden / "cells" / arguments.cell
    made = arguments.golden / "cells" / arguments.to
    golden = (cell / "golden.json").read_text()
    base = json.loads((arguments.golden / "bases" / json.loads(golden)["base"] / "config.json").read_text())
    adapter = json.loads((cell / "adapter" / "adapter_config.json").read_text())
    (made / "adapter").mkdir(parents=True, exist_ok=True)
    write(made / "adapter" / "adapter.gguf", base, adapter, load_file(cell / "adapter" / "adapter_model.safetensors"), arguments.type)
    (made / "golden.json").write_text(golden.replace('"reader": "peft"', '"reader": "gguf"', 1))


if __name__ == "__main__":
    main()
