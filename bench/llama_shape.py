#!/usr/bin/env python3
"""A Llama of random weights in any of the common shapes and types, with the standard library only.

    bench/llama_shape.py SHAPE TYPE OUT.gguf [--tokenizer FILE.gguf] [--seed N]

SHAPE is 1b or 7b (or tiny, for tests), TYPE one of f16, bf16, q8_0, q4_0 and q4_k_m. The tokenizer is
copied from another GGUF file, so that the vocabulary has its size. Blocks are written as such, so no
quantiser is needed: speed and memory depend on shapes and types alone, and what the model says means
nothing. q4_k_m has the types that llama.cpp gives it: Q6_K for the output head, and for the values and
the last linear of those layers that it holds to matter most.
"""
import argparse
import os
import random
import struct
import sys
from pathlib import Path

#         layers  model  heads  KV heads  feed-forward
SHAPES = {"tiny": (2, 256, 4, 2, 512),
          "1b": (16, 2048, 32, 8, 8192),     # Llama 3.2 1B
          "7b": (32, 4096, 32, 32, 11008)}   # Llama 2 7B
#        id, values and bytes of a block
TYPES = {"f32": (0, 1, 4), "f16": (1, 1, 2), "q4_0": (2, 32, 18), "q8_0": (8, 32, 34),
         "q4_K": (12, 256, 144), "q6_K": (14, 256, 210), "bf16": (30, 1, 2)}
FILE_TYPES = {"f16": 1, "q4_0": 2, "q8_0": 7, "q4_k_m": 15, "bf16": 32}
U32, F32, STRING, ARRAY = 4, 6, 8, 9
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
ALIGN, POOL_VALUES = 32, 1 << 24


def value_end(data, at, kind):
    """Where a metadata value ends that begins at `at`."""
    if kind == STRING:
        return at + 8 + struct.unpack_from("<Q", data, at)[0]
    if kind != ARRAY:
        return at + SIZES[kind]
    of, n = struct.unpack_from("<IQ", data, at)
    at += 12
    if of in SIZES:
        return at + n * SIZES[of]
    for _ in range(n):
        at = value_end(data, at, of)
    return at


def tokenizer_of(path):
    """(keys with their values as bytes, entries of the vocabulary) of another file's tokenizer."""
    with open(path, "rb") as f:
        data = f.read(64 << 20)
    n_keys, at, out, n_tokens = struct.unpack_from("<Q", data, 16)[0], 24, [], 0
    for _ in range(n_keys):
        end = value_end(data, at, STRING)
        key, kind = data[at + 8:end].decode(), struct.unpack_from("<I", data, end)[0]
        at = value_end(data, end + 4, kind)
        if key.startswith("tokenizer."):
            out.append((key, kind, data[end + 4:at]))
        if key == "tokenizer.ggml.tokens":
            n_tokens = struct.unpack_from("<Q", data, end + 8)[0]
    return out, n_tokens


def fill(blocks, size, at, value):
    """Bytes `at` .. of every block become `value`."""
    n = len(blocks) // size
    for i, byte in enumerate(value):
        blocks[at + i::size] = bytes([byte]) * n


def pool_of(name, rng):
    """Random blocks of a type: values of about 0.02 with a mean near 0."""
    _, n_block, size = TYPES[name]
    blocks = bytearray(rng.randbytes(POOL_VALUES // n_block * size))
    half = lambda v: struct.pack("<e", v)
    if name == "f32":
        blocks = bytearray(struct.pack("<f", 1.0) * POOL_VALUES)
    elif name == "f16":   # sign, exponents of 2^-8 to 2^-6
        blocks[1::2] = blocks[1::2].translate(bytes(b & 0x83 | (7 + (b >> 2) % 3) << 2 for b in range(256)))
    elif name == "bf16":  # sign, exponents of 2^-7 and 2^-6
        blocks[1::2] = blocks[1::2].translate(bytes(b & 0x80 | 0x3C for b in range(256)))
    elif name == "q8_0":
        fill(blocks, size, 0, half(0.0003))
    elif name == "q4_0":
        fill(blocks, size, 0, half(0.004))
    elif name == "q4_K":  # (0 .. 15) * (0 .. 63) * d - (0 .. 63) * d_min
        fill(blocks, size, 0, half(0.0001) + half(0.00075))
    else:                 # (-32 .. 31) * (-128 .. 127) * d
        fill(blocks, size, 208, half(0.00001))
    return bytes(blocks)


def matters(layer, n_layers):
    """llama.cpp's use_more_bits(): the first and the last eighth, and each third between."""
    eighth = n_layers // 8
    return layer < eighth or layer >= 7 * n_layers // 8 or (layer - eighth) % 3 == 2


def tensors(shape, kind, n_tokens):
    """(name, GGUF's dimensions, type) in the order of the file."""
    n_layers, d, n_heads, n_kv, d_ff = SHAPES[shape]
    d_kv = d // n_heads * n_kv
    usual = "q4_K" if kind == "q4_k_m" else kind
    more = "q6_K" if kind == "q4_k_m" else kind
    yield "token_embd.weight", (d, n_tokens), usual
    for i in range(n_layers):
        better = more if matters(i, n_layers) else usual
        for name, dims, of in (("attn_norm", (d,), "f32"), ("attn_q", (d, d), usual),
                               ("attn_k", (d, d_kv), usual), ("attn_v", (d, d_kv), better),
                               ("attn_output", (d, d), usual), ("ffn_norm", (d,), "f32"),
                               ("ffn_gate", (d, d_ff), usual), ("ffn_up", (d, d_ff), usual),
                               ("ffn_down", (d_ff, d), better)):
            yield f"blk.{i}.{name}.weight", dims, of
    yield "output_norm.weight", (d,), "f32"
    yield "output.weight", (d, n_tokens), more


def n_bytes(dims, name):
    _, n_block, size = TYPES[name]
    n = dims[0] * (dims[1] if len(dims) > 1 else 1)
    return n // n_block * size


def text(s):
    return struct.pack("<Q", len(s.encode())) + s.encode()


def metadata(shape, kind, n_tokens):
    n_layers, d, n_heads, n_kv, d_ff = SHAPES[shape]
    number = lambda v: struct.pack("<I", v)
    return [("general.architecture", STRING, text("llama")), ("general.name", STRING, text(f"random {shape}")),
            ("general.file_type", U32, number(FILE_TYPES[kind])),
            ("llama.block_count", U32, number(n_layers)), ("llama.context_length", U32, number(8192)),
            ("llama.embedding_length", U32, number(d)), ("llama.feed_forward_length", U32, number(d_ff)),
            ("llama.attention.head_count", U32, number(n_heads)),
            ("llama.attention.head_count_kv", U32, number(n_kv)),
            ("llama.rope.dimension_count", U32, number(d // n_heads)),
            ("llama.rope.freq_base", F32, struct.pack("<f", 500000.0)),
            ("llama.attention.layer_norm_rms_epsilon", F32, struct.pack("<f", 1e-5)),
            ("llama.vocab_size", U32, number(n_tokens))]


def write(out, shape, kind, tokenizer, seed):
    keys, n_tokens = tokenizer_of(tokenizer)
    fields = metadata(shape, kind, n_tokens) + keys
    items = list(tensors(shape, kind, n_tokens))
    head = [b"GGUF" + struct.pack("<IQQ", 3, len(items), len(fields))]
    head += [text(key) + struct.pack("<I", of) + value for key, of, value in fields]
    at = 0
    for name, dims, of in items:
        head.append(text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, TYPES[of][0], at))
        at += -(-n_bytes(dims, of) // ALIGN) * ALIGN
    rng, pools = random.Random(seed), {}
    with open(out, "wb") as f:
        f.write(b"".join(head))
        f.write(bytes(-f.tell() % ALIGN))
        for name, dims, of in items:
            size, left = TYPES[of][2], n_bytes(dims, of)
            if of not in pools:
                pools[of] = pool_of(of, rng)
            pool = pools[of]
            begin = rng.randrange(len(pool) // size) * size
            while left:  # tensors begin at different blocks of the pool
                part = pool[begin:begin + left]
                f.write(part)
                left, begin = left - len(part), 0
            f.write(bytes(-f.tell() % ALIGN))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    models = Path(__file__).resolve().parent.parent / "build/models/smollm2"
    p.add_argument("shape", choices=SHAPES)
    p.add_argument("type", choices=FILE_TYPES)
    p.add_argument("out", type=Path)
    p.add_argument("--tokenizer", type=Path,
                   default=os.environ.get("SMOLLM2") or next(iter(models.glob("*.gguf")), None))
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    if not a.tokenizer:
        p.error("--tokenizer: no GGUF file to take one from")
    write(a.out, a.shape, a.type, a.tokenizer, a.seed)


if __name__ == "__main__":
    sys.exit(main())
