#!/usr/bin/env python3
"""A Llama with random weights as a GGUF file of type q8_0 or q4_k_m, in the shape of a real one, with the standard
library only.

    bench/random_llama.py {llama-1b,llama-7b} {q8_0,q4_k_m} SMOLLM2.gguf OUT.gguf

llama-1b has the layers of Llama-3.2-1B and llama-7b those of Mistral-7B; the tokenizer, and so the vocabulary, is that of
the GGUF file named (1.07 and 7.38 billion weights). Blocks of random bytes are weights: the scales are chosen so that
they have the variance 1 / n_in. q4_k_m has the types that llama-quantize would choose: Q6_K for output and, in the layers
where it spends more, for value and down projections.
"""
import math
import os
import struct
import sys
from pathlib import Path

if __package__ is None:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from bench import gguf  # noqa: E402

SHAPES = {"llama-1b": {"layers": 16, "d": 2048, "heads": 32, "kv_heads": 8, "ff": 8192, "is_tied": True},
          "llama-7b": {"layers": 32, "d": 4096, "heads": 32, "kv_heads": 8, "ff": 14336, "is_tied": False}}
F32, Q8_0, Q4_K, Q6_K, ALIGN = 0, 8, 12, 14, 32
FILE_TYPE = {"q8_0": 7, "q4_k_m": 15}
U32, FLOAT, TEXT = 4, 6, 8
N_KINDS = 4096  # unlike blocks, in random order


def blocks(kind, n_in):
    """N_KINDS blocks, their variance 1 / n_in; joined."""
    scale, out = 1 / math.sqrt(n_in), []
    noise = os.urandom(N_KINDS * 256)
    for i in range(N_KINDS):
        some = noise[256 * i:256 * (i + 1)]
        if kind == Q8_0:  # d, 32 of int8: uniform, deviation 74
            out.append(struct.pack("<e", scale / 74) + some[:32])
        elif kind == Q4_K:  # d, dmin, 8 scales and minima of 6 bits (all 32), 256 of 4 bits: deviation 4.6, mean 7.5
            scales = bytes([32 | 0x80] * 4 + [32 | 0x80] * 4 + [0] * 4)
            d = scale / (4.6 * 32)
            out.append(struct.pack("<ee", d, 7.5 * d) + scales + some[:128])
        else:  # Q6_K: 256 of 6 bits less 32 (deviation 18.5), 16 scales of int8 (all 32), d
            out.append(some[:192] + bytes([32] * 16) + struct.pack("<e", scale / (18.5 * 32)))
    return out


class Noise:
    """Blocks of a type for a width, in an order that is new for each tensor."""

    def __init__(self):
        self.made = {}

    def write(self, file, kind, dims):
        n_blocks = math.prod(dims) // gguf.BLOCKS[kind][0]
        key = kind, dims[0]
        if key not in self.made:
            self.made[key] = blocks(*key)
        some = self.made[key]
        step = 1 + 2 * (int.from_bytes(os.urandom(2), "little") % (N_KINDS // 2))
        run = b"".join(some[i * step % N_KINDS] for i in range(N_KINDS))
        for done in range(0, n_blocks, N_KINDS):
            file.write(run[:min(N_KINDS, n_blocks - done) * len(some[0])])


def uses_more(layer, layers):
    """Where q4_k_m spends Q6_K on value and down projections."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def tensors(shape, kind, n_vocab):
    """(name, dimensions, type), the first dimension is n_in."""
    d, kv, ff = shape["d"], shape["d"] // shape["heads"] * shape["kv_heads"], shape["ff"]
    usual, rich = (Q8_0, Q8_0) if kind == "q8_0" else (Q4_K, Q6_K)
    yield "token_embd.weight", (d, n_vocab), rich if shape["is_tied"] else usual
    yield "output_norm.weight", (d,), F32
    if not shape["is_tied"]:
        yield "output.weight", (d, n_vocab), rich
    for i in range(shape["layers"]):
        more = rich if uses_more(i, shape["layers"]) else usual
        for name, dims, t in (("attn_norm", (d,), F32), ("attn_q", (d, d), usual), ("attn_k", (d, kv), usual), ("attn_v", (d, kv), more),
                              ("attn_output", (d, d), usual), ("ffn_norm", (d,), F32), ("ffn_gate", (d, ff), usual),
                              ("ffn_up", (d, ff), usual), ("ffn_down", (ff, d), more)):
            yield f"blk.{i}.{name}.weight", dims, t


def text(s):
    data = s.encode()
    return struct.pack("<Q", len(data)) + data


def keys(shape, kind, n_vocab, tokenizer):
    """The keys, joined, and their number. tokenizer: (name, bytes) of the other file's keys."""
    numbers = {"block_count": shape["layers"], "context_length": 8192, "embedding_length": shape["d"], "feed_forward_length": shape["ff"],
               "attention.head_count": shape["heads"], "attention.head_count_kv": shape["kv_heads"], "vocab_size": n_vocab,
               "rope.dimension_count": shape["d"] // shape["heads"]}
    out = [text("general.architecture") + struct.pack("<I", TEXT) + text("llama"),
           text("general.file_type") + struct.pack("<II", U32, FILE_TYPE[kind])]
    out += [text("llama." + name) + struct.pack("<II", U32, n) for name, n in numbers.items()]
    out += [text("llama." + name) + struct.pack("<If", FLOAT, x) for name, x in (("attention.layer_norm_rms_epsilon", 1e-5),
                                                                                 ("rope.freq_base", 1e5))]
    out += [text(name) + data for name, data in tokenizer]
    return b"".join(out), len(out)


def write(shape_name, kind, source, out):
    shape, tokenizer, noise = SHAPES[shape_name], list(gguf.raw_keys(source, "tokenizer.")), Noise()
    n_vocab = gguf.header(source)[1]["token_embd.weight"][0][1]
    listed, head, n_bytes = list(tensors(shape, kind, n_vocab)), b"", 0
    for name, dims, t in listed:
        head += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, t, n_bytes)
        n_bytes += -(-math.prod(dims) // gguf.BLOCKS[t][0] * gguf.BLOCKS[t][1] // ALIGN) * ALIGN
    joined, n_keys = keys(shape, kind, n_vocab, tokenizer)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(listed), n_keys) + joined + head
    with open(out, "wb") as f:
        f.write(head + bytes(-len(head) % ALIGN))
        for _, dims, t in listed:
            if t == F32:
                f.write(struct.pack("<f", 1.0) * dims[0])
            else:
                noise.write(f, t, dims)
            f.write(bytes(-f.tell() % ALIGN))


if __name__ == "__main__":
    if len(sys.argv) != 5 or sys.argv[1] not in SHAPES or sys.argv[2] not in FILE_TYPE:
        sys.exit(__doc__)
    write(*sys.argv[1:3], Path(sys.argv[3]), Path(sys.argv[4]))
