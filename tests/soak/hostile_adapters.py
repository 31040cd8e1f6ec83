"""Adapters that no client should send: each a (name, files, expected error code) on a BERT base.

Damaged is `adapter_invalid`; what some library might mean but is not computed here, code in a pickle included, is
`adapter_unsupported`; a good adapter of another model is `adapter_mismatch`.
"""

import array
import io
import json
import os
import pickle
import struct
import zipfile

from tests.integration.server import GOLDEN, adapter_files
from tests.soak.common import read_safetensors, write_safetensors

CELL, PICKLE_CELL, ADAPTERHUB_CELL = "bert-peft-lora", "bert-peft-lora-bin", "bert-ah-pfeiffer"
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
LORA_A = "base_model.model.bert.encoder.layer.0.attention.self.query.lora_A.weight"
LORA_B = LORA_A.replace("lora_A", "lora_B")
STEP = 64
HUGE = 1 << 62


def truncated():
    """Each file that is read, cut at every 64th byte. (A README is never read.)"""
    for cell in (CELL, PICKLE_CELL, ADAPTERHUB_CELL):
        files = adapter_files(cell)
        for name, data in files.items():
            if not name.endswith(".md"):
                for n in range(0, len(data), STEP):
                    yield f"{cell}/{name} cut at {n}", {**files, name: data[:n]}, "adapter_invalid"


class Tensors:
    """A safetensors file as a header and bytes, to be spoiled."""

    def __init__(self):
        self.files = adapter_files(CELL)
        self.header, start = read_safetensors(self.files[WEIGHTS])
        self.payload = bytearray(self.files[WEIGHTS][start:])

    def spoiled(self, **fields):
        """The files with fields of the first tensor's entry replaced."""
        header = {**self.header, LORA_A: {**self.header[LORA_A], **fields}}
        return self.whole(header)

    def whole(self, header, payload=None):
        return {**self.files, WEIGHTS: write_safetensors(header, bytes(self.payload if payload is None else payload))}

    def with_value(self, value: float):
        begin = self.header[LORA_A]["data_offsets"][0]
        payload = bytearray(self.payload)
        payload[begin + 40:begin + 44] = struct.pack("<f", value)
        return self.whole(self.header, payload)

    def without(self, name: str):
        return self.whole({k: v for k, v in self.header.items() if k != name})

    def with_more(self, name: str, values: list, shape: list):
        begin = len(self.payload)
        data = array.array("f", values).tobytes()
        entry = {"dtype": "F32", "shape": shape, "data_offsets": [begin, begin + len(data)]}
        return self.whole({**self.header, name: entry}, self.payload + data)

    def reshaped(self, shapes: dict):
        """Tensors of other sizes, all zero."""
        header, at = {}, 0
        for name, entry in self.header.items():
            if name != "__metadata__":
                shape, n = shapes.get(name, entry["shape"]), 4
                for d in shape:
                    n *= d
                entry, at = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + n]}, at + n
            header[name] = entry
        return self.whole(header, bytes(at))

    def raw(self, data: bytes):
        return {**self.files, WEIGHTS: data}


def shapes():
    t = Tensors()
    yield "A transposed", t.spoiled(shape=[40, 5]), "adapter_mismatch"
    yield "A and B wider than the base", t.reshaped({LORA_A: [5, 48], LORA_B: [48, 5]}), "adapter_mismatch"
    yield "A of another rank", t.reshaped({LORA_A: [4, 40]}), "adapter_mismatch"
    yield "one dimension", t.spoiled(shape=[200]), "adapter_mismatch"
    yield "three dimensions", t.spoiled(shape=[1, 5, 40]), "adapter_mismatch"
    yield "a head for another width", t.reshaped({"base_model.model.classifier.weight": [3, 48]}), "adapter_mismatch"
    yield "a head without rows", t.reshaped({"base_model.model.classifier.weight": [0, 40]}), "adapter_mismatch"
    for cell in ("llama-peft-lora", "llama-peft-prefix", "llama-ah-houlsby", "llama-delta-diff"):
        yield f"another base: {cell}", adapter_files(cell), "adapter_mismatch"
    for name in (LORA_A, LORA_B):
        t.header[name.replace("layer.0", "layer.7")] = t.header.pop(name)
    yield "a layer that is not there", t.whole(t.header), "adapter_mismatch"


def values():
    t = Tensors()
    for value in (float("nan"), float("inf"), float("-inf")):
        yield f"a value {value}", t.with_value(value), "adapter_invalid"
    yield "a tensor left over", t.with_more("base_model.model.extra", [1.0], [1]), "adapter_unsupported"
    yield "a long name left over", t.with_more("x" * 100000, [1.0], [1]), "adapter_unsupported"
    yield "A without B", t.without(LORA_B), "adapter_invalid"


def headers():
    """Safetensors headers that contradict themselves."""
    t = Tensors()
    n = len(t.payload)
    good = t.header[LORA_A]
    text = json.dumps(t.header).encode()
    twice = b'{"' + LORA_A.encode() + b'": ' + json.dumps(good).encode() + b", " + text[1:]
    bad = {
        "offsets beyond the end": t.spoiled(data_offsets=[n, n + 800]),
        "offsets that overlap": t.spoiled(data_offsets=[400, 1200]),
        "offsets the wrong way round": t.spoiled(data_offsets=good["data_offsets"][::-1]),
        "offsets that are huge": t.spoiled(data_offsets=[HUGE, HUGE + 800]),
        "negative offsets": t.spoiled(data_offsets=[-800, 0]),
        "offsets that are no numbers": t.spoiled(data_offsets=["0", "800"]),
        "three offsets": t.spoiled(data_offsets=[0, 400, 800]),
        "a shape that overflows": t.spoiled(shape=[1 << 32, 1 << 32]),
        "a shape times four that overflows": t.spoiled(shape=[HUGE, 1]),
        "a negative shape": t.spoiled(shape=[-5, -40]),
        "a shape of fractions": t.spoiled(shape=[5.5, 40]),
        "a shape of text": t.spoiled(shape="5x40"),
        "a hole": t.whole(t.header, t.payload + b"more"),
        "no shape": t.whole({**t.header, LORA_A: {"dtype": "F32"}}),
        "an entry that is no object": t.whole({**t.header, LORA_A: 7}),
        "a name that stands twice": t.raw(struct.pack("<Q", len(twice)) + twice + t.payload),
        "a header that is an array": t.raw(struct.pack("<Q", 2) + b"[]" + t.payload),
        "a header that is not UTF-8": t.raw(struct.pack("<Q", 4) + b'{"\xff' + t.payload),
        "a header 10000 deep": t.raw(struct.pack("<Q", 50000) + b'{"a":' * 10000 + t.payload),
        "a header of 2^63 bytes": t.raw(struct.pack("<Q", 1 << 63) + text),
        "a header of 2^64 - 1 bytes": t.raw(struct.pack("<Q", (1 << 64) - 1) + text),
        "a header longer than the file": t.raw(struct.pack("<Q", len(text) + n + 1) + text + t.payload),
        "no tensors": t.whole({}, b""),
        "zeros": t.raw(bytes(1000)),
    }
    for name, files in bad.items():
        yield f"safetensors: {name}", files, "adapter_invalid"
    yield "safetensors: an unknown type", t.spoiled(dtype="F13"), "adapter_unsupported"
    yield "safetensors: whole numbers", t.spoiled(dtype="I32"), "adapter_unsupported"


def configs():
    files = adapter_files(CELL)
    config = json.loads(files[CONFIG])

    def changed(**fields):
        return {**files, CONFIG: json.dumps({**config, **fields}).encode()}

    def text(data):
        return {**files, CONFIG: data}

    whole = files[CONFIG].strip()
    bad = {
        "alpha text": changed(lora_alpha="much"), "alpha 1e308": changed(lora_alpha=1e308),
        "a pattern that is no expression": changed(alpha_pattern={"(": 1}),
        "a pattern without end": changed(alpha_pattern={"(a|a?)+" * 9 + "b": 1, "(.*)*" * 9 + "c": 1}),
        "not JSON": text(b"r = 5"), "an array": text(b"[]"), "not UTF-8": text(whole[:-1] + b', "x": "\xc3\x28"}'),
        "10000 deep": text(b'{"a":' * 10000 + b"1" + b"}" * 10000),
        "a number that is too large": text(whole[:-1] + b', "lora_alpha": 1e999}'),
        "DoRA without its vectors": changed(use_dora=True),
        "a NUL": text(whole + b"\0"),
    }
    for name, one in bad.items():
        yield f"config: {name}", one, "adapter_invalid"
    for name, one in {"a new method": changed(peft_type="TELEPATHY"), "QA-LoRA": changed(use_qalora=True)}.items():
        yield f"config: {name}", one, "adapter_unsupported"
    yield "no config", {WEIGHTS: files[WEIGHTS]}, "adapter_invalid"
    yield "no weights", {CONFIG: files[CONFIG]}, "adapter_invalid"


class Command:
    """Pickles to a call of os.system."""

    def __init__(self, command: str):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def torch_zip(content: bytes, compression=zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as z:
        z.writestr("archive/data.pkl", content)
        z.writestr("archive/byteorder", "little")
        z.writestr("archive/version", "3\n")
    return out.getvalue()


def pickles(marker: str):
    """Pickles that run a command (it would create `marker`), and bombs."""
    files = adapter_files(PICKLE_CELL)
    run = Command(f"touch {marker}")

    def holding(data):
        return {**files, "adapter_model.bin": data}

    for protocol in range(6):
        for name, value in (("alone", run), ("as a tensor", {"base_model.model.x": run})):
            yield (f"pickle: a command {name}, protocol {protocol}",
                   holding(torch_zip(pickle.dumps(value, protocol))), "adapter_unsupported")
    yield "pickle: a command, not zipped", holding(pickle.dumps(run, 2)), "adapter_invalid"
    bombs = {
        "marks": (b"(" * 1000000 + b".", "adapter_invalid"),
        "nested tuples": (b")" + b"\x85" * 1000000 + b".", "adapter_unsupported"),
        "doubled tuples": (b")" + b"2\x86" * 1000000 + b".", "adapter_unsupported"),
        "a text of 4 GiB": (b"X\xff\xff\xff\xff", "adapter_invalid"),
        "a memo of 2^32": (b"}r\xff\xff\xff\xff.", "adapter_invalid"),
        "an empty stack": (b".", "adapter_unsupported"),
        "no end": (b"}", "adapter_invalid"),
    }
    for name, (content, code) in bombs.items():
        yield f"pickle: {name}", holding(torch_zip(b"\x80\x02" + content)), code
    zeros = torch_zip(bytes(1 << 28), zipfile.ZIP_DEFLATED)
    yield "pickle: 256 MiB of zeros in a small zip", holding(zeros), "adapter_invalid"
    evil = os.path.join(GOLDEN, "weights", "evil.bin")
    with open(evil, "rb") as f:
        yield "pickle: the committed evil one", holding(f.read()), "adapter_unsupported"


def all_adapters(marker: str):
    for group in (truncated(), shapes(), values(), headers(), configs(), pickles(marker)):
        yield from group
