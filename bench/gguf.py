"""What of a GGUF file a benchmark must know: bytes that a token reads, multiplications that it needs.

Standard library only.
"""
import math
import struct
from dataclasses import dataclass

STRING, ARRAY = 8, 9
SIMPLE = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
# Tensor type: values of a block, bytes of a block.
BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 10: (256, 84), 11: (256, 110),
          12: (256, 144), 13: (256, 176), 14: (256, 210), 30: (1, 2)}


@dataclass
class Facts:
    """Of a decoder whose every matrix but the embedding table takes part in every token."""
    bytes_of_token: int  # of weights, read once for a token of one stream
    flop_of_layers: int  # of the linears of all layers, for a token
    flop_of_head: int
    flop_of_pair: int  # scores and values of one token that sees one other, all layers

    def flop_of_prompt(self, n, n_factors=0):
        """The head reads the last token only. n_factors: values of a LoRA, of which each token needs a multiplication."""
        return n * (self.flop_of_layers + 2 * n_factors) + self.flop_of_head + n * (n + 1) // 2 * self.flop_of_pair

    def flop_of_token(self, n_before, n_factors=0):
        return self.flop_of_layers + 2 * n_factors + self.flop_of_head + n_before * self.flop_of_pair

    def most(self, n_streams, n_in, n_out, n_factors=0):
        """A function of the peak and of reading (1e9 a second) that gives the tokens a second that a machine could do: prompts
        at the peak; a step reads all weights once, and a LoRA of n_factors values of 16 bits for each stream, or multiplies at the
        peak, whichever takes longer."""
        prompts = n_streams * self.flop_of_prompt(n_in, n_factors) * 1e-9
        token = n_streams * self.flop_of_token(n_in + n_out // 2, n_factors) * 1e-9
        gigabytes = (self.bytes_of_token + n_streams * 2 * n_factors) * 1e-9

        def tokens_a_second(peak, read):
            return n_streams * n_out / (prompts / peak + n_out * max(gigabytes / read, token / peak))
        return tokens_a_second


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, form):
        values = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return values[0]

    def text(self):
        n = self.take("Q")
        self.at += n
        return bytes(self.data[self.at - n:self.at])

    def value(self, kind):
        if kind == STRING:
            return self.text()
        if kind != ARRAY:
            return self.take(SIMPLE[kind])
        kind, n = self.take("I"), self.take("Q")
        if kind == STRING:
            for _ in range(n):
                self.text()
        else:
            self.at += n * struct.calcsize("<" + SIMPLE[kind])
        return n


def header(path, n_bytes=32 << 20):
    """The keys (of arrays their length) and the tensors, {name: (dimensions, type)}."""
    with open(path, "rb") as f:
        r = Reader(f.read(n_bytes))
    if r.take("4s") != b"GGUF" or r.take("I") not in (2, 3):
        raise ValueError(f"{path}: not a GGUF file of version 2 or 3")
    n_tensors, n_keys, keys, tensors = r.take("Q"), r.take("Q"), {}, {}
    for _ in range(n_keys):
        name = r.text().decode()
        keys[name] = r.value(r.take("I"))
    for _ in range(n_tensors):
        name = r.text().decode()
        dims = [r.take("Q") for _ in range(r.take("I"))]
        tensors[name] = dims, r.take("I")
        r.take("Q")
    return keys, tensors


def facts(path):
    keys, tensors = header(path)
    family = keys["general.architecture"].decode()
    is_tied = "output.weight" not in tensors
    n_bytes = layers = head = 0
    for name, (dims, kind) in tensors.items():
        n = math.prod(dims)
        if name != "token_embd.weight" or is_tied:
            n_bytes += n // BLOCKS[kind][0] * BLOCKS[kind][1]
        if name == ("token_embd.weight" if is_tied else "output.weight"):
            head += 2 * n
        elif len(dims) == 2 and name != "token_embd.weight":
            layers += 2 * n
    pair = 2 * 2 * keys[f"{family}.block_count"] * keys[f"{family}.embedding_length"]
    return Facts(n_bytes, layers, head, pair)
