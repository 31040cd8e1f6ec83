#!/usr/bin/env python3
"""A PEFT LoRA of a Llama model as llama.cpp's adapter file, with the standard library only.

    bench/gguf_lora.py PEFT_FOLDER OUT.gguf

Weights become f16, if they are not, as `convert_lora_to_gguf.py --outtype f16` writes them; the two agree
bit for bit. One trap: llama.cpp keeps the rows of q_proj and k_proj in another order
(pairs of a rotation lie side by side), so the rows of their lora_B move too.
"""
import array
import json
import struct
import sys
from pathlib import Path

if __package__ is None:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from bench import adapters  # noqa: E402

NAMES = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output",
         "gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down"}
STRING, F32_VALUE, F16_TENSOR, ALIGN = 8, 6, 1, 32


def read_safetensors(path):
    """name -> (shape, array of f32, or of the bits of f16)."""
    data = Path(path).read_bytes()
    n = struct.unpack_from("<Q", data)[0]
    out = {}
    for name, t in json.loads(data[8:8 + n]).items():
        if name != "__metadata__":
            begin, end = t["data_offsets"]
            kind = {"F32": "f", "F16": "H"}[t["dtype"]]
            out[name] = t["shape"], array.array(kind, data[8 + n + begin:8 + n + end])
    return out


def rotary_rows(values, n_heads, width):
    """Rows [head][half][j] become [head][j][half]."""
    half = len(values) // width // n_heads // 2
    rows = [values[i * width:(i + 1) * width] for i in range(len(values) // width)]
    out = array.array(values.typecode)
    for h in range(n_heads):
        for j in range(half):
            out += rows[h * 2 * half + j] + rows[h * 2 * half + half + j]
    return out


def tensors(folder, heads):
    """(GGUF name, shape, f16 bytes) of every lora_A and lora_B. heads: of the rows that rotate."""
    for name, (shape, values) in read_safetensors(folder / "adapter_model.safetensors").items():
        # base_model.model.model.layers.<i>.self_attn.q_proj.lora_A.weight
        layer, _, linear, side = name.split(".")[4:8]
        if side == "lora_B" and linear in heads:
            values = rotary_rows(values, heads[linear], shape[1])
        yield (f"blk.{layer}.{NAMES[linear]}.weight.{side.lower()}", shape,
               values.tobytes() if values.typecode == "H" else struct.pack(f"<{len(values)}e", *values))


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def convert(folder, out):
    config = json.loads((folder / "adapter_config.json").read_text())
    fields = [("general.type", STRING, text("adapter")), ("general.architecture", STRING, text("llama")),
              ("adapter.type", STRING, text("lora")),
              ("adapter.lora.alpha", F32_VALUE, struct.pack("<f", config["lora_alpha"]))]
    base = adapters.BASES[config["base_model_name_or_path"]]
    heads = {"q_proj": base["d"] * base["heads"] // base["kv"], "k_proj": base["heads"]}
    items = list(tensors(folder, heads))
    head = b"GGUF" + struct.pack("<IQQ", 3, len(items), len(fields))
    for key, kind, value in fields:
        head += text(key) + struct.pack("<I", kind) + value
    body = bytearray()
    for name, shape, data in items:
        head += text(name) + struct.pack("<I", len(shape))
        head += struct.pack(f"<{len(shape)}Q", *reversed(shape)) + struct.pack("<IQ", F16_TENSOR, len(body))
        body += data + bytes(-len(data) % ALIGN)
    out.write_bytes(head + bytes(-len(head) % ALIGN) + body)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
