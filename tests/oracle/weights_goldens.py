"""Makes tests/golden/weights: small files as torch, safetensors, gguf and adapters write them.

Beside each readable file `x` stands `x.expected.safetensors`: every tensor as the library reads it back, in float32.
Run with each Python that has some of the libraries; what cannot be imported is skipped and stays as it is:

    python tests/oracle/weights_goldens.py [folder]
"""

import importlib.util
import io
import os
import sys
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy
import torch
from safetensors.torch import save_file

SEED = 20240229


def save_expected(path: Path, tensors: dict) -> None:
    """Clones, because safetensors refuses tensors that share memory."""
    plain = {name: t.detach().to(torch.float32).contiguous().clone() for name, t in tensors.items()}
    save_file(plain, path.with_name(path.name + ".expected.safetensors"))


def one_of_each_type() -> dict:
    values = torch.tensor([[0.0, -1.0, 3.0], [7.0, 100.0, -128.0]])
    tensors = {
        "f32": torch.randn(2, 3),
        "f16": torch.randn(3, 5).to(torch.float16),
        "bf16": torch.randn(4, 3).to(torch.bfloat16),
        "f64": torch.randn(2, 2, dtype=torch.float64),
        "bool": torch.tensor([True, False, True]),
        "u8": torch.tensor([0, 1, 255], dtype=torch.uint8),
        "scalar": torch.tensor(-2.5),
        "empty": torch.zeros(0, 4),
    }
    for name in ("int8", "int16", "int32", "int64"):
        tensors["i" + name[3:]] = values.to(getattr(torch, name))
    return tensors


def safetensors_files(folder: Path) -> None:
    path = folder / "types.safetensors"
    tensors = one_of_each_type()
    save_file(tensors, path, metadata={"format": "pt"})
    save_expected(path, tensors)


class Evil:
    def __reduce__(self):
        return os.system, ("true",)


def torch_files(folder: Path) -> None:
    base = torch.randn(4, 6)
    views = {
        "whole": base,
        "transposed": base.t(),
        "columns": base[:, 1:4],
        "one_column": base[:, 2:3],
        "rows": base[1:3],
        "strided": base[::2, ::3],
        "expanded": torch.randn(1, 3).expand(4, 3),
        "permuted": torch.randn(2, 3, 4).permute(2, 0, 1),
        "permuted4": torch.randn(2, 3, 2, 2).permute(3, 1, 0, 2),
        "parameter": torch.nn.Parameter(torch.randn(3)),
        "frozen": torch.nn.Parameter(torch.randn(2, 2).t(), requires_grad=False),
        "twice": base,
    }
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4), torch.nn.BatchNorm1d(4))
    readable = {
        "types.bin": one_of_each_type(),
        "views.bin": views,
        "module.bin": module.state_dict(),
        "ordered.bin": OrderedDict(sorted(views.items())),
        "many.bin": {f"t{i}": pair for i, pair in enumerate(torch.arange(600.0).split(2))},  # one storage
    }
    for name, tensors in readable.items():
        torch.save(tensors, folder / name)
        save_expected(folder / name, tensors)
    for protocol in (3, 4, 5):
        path = folder / f"protocol{protocol}.bin"
        torch.save(views, path, pickle_protocol=protocol)
        save_expected(path, views)
    deflate(folder / "views.bin", folder / "deflated.bin")
    save_expected(folder / "deflated.bin", views)

    torch.save({"w": torch.ones(2), "x": Evil()}, folder / "evil.bin")
    legacy_files(folder, readable, views)
    torch.save({"state_dict": {"w": torch.ones(2)}}, folder / "nested.bin")
    torch.save({"w": torch.ones(2), "epoch": 3}, folder / "epoch.bin")
    torch.save({"w": torch.ones(2), "names": ["a", "b"]}, folder / "list.bin")
    torch.save({"w": torch.ones(1, 1, 1, 1, 1)}, folder / "dims5.bin")
    torch.save({"w": torch.ones(2, dtype=torch.complex64)}, folder / "complex.bin")


def save_legacy(path: Path, tensors: dict, **options) -> None:
    """As torch before 1.6. Storages are called by their addresses, so the bytes differ from run to run."""
    torch.save(tensors, path, _use_new_zipfile_serialization=False, **options)


def legacy_files(folder: Path, readable: dict, views: dict) -> None:
    """The same dicts again: what is expected stands beside the files of today. A few have no such file."""
    half = {name: t.detach().to(torch.float16) if t.is_floating_point() else t for name, t in views.items()}
    for name, tensors in readable.items():
        save_legacy(folder / f"legacy_{name}", tensors)
    for protocol in (3, 4, 5):
        save_legacy(folder / f"legacy_protocol{protocol}.bin", views, pickle_protocol=protocol)
    for name, tensors in {"half": half, "empty": {}}.items():
        save_legacy(folder / f"legacy_{name}.bin", tensors)
        save_expected(folder / f"legacy_{name}.bin", tensors)
    save_legacy(folder / "legacy_evil.bin", {"w": torch.ones(2), "x": Evil()})


def legacy_adapter(folder: Path) -> None:
    """The files of a cell of AdapterHub, a bottleneck and a static head, as adapter-transformers 1 wrote them."""
    cell = folder.parent / "cells" / "bert-ah-static" / "adapter"
    for name in ("pytorch_adapter", "pytorch_model_head"):
        save_legacy(folder / f"legacy_{name}.bin", torch.load(cell / f"{name}.bin", weights_only=True))


def deflate(source: Path, target: Path) -> None:
    with zipfile.ZipFile(source) as stored, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as packed:
        for info in stored.infolist():
            member = zipfile.ZipInfo(info.filename, (1980, 1, 1, 0, 0, 0))
            member.compress_type = zipfile.ZIP_DEFLATED
            packed.writestr(member, stored.read(info.filename))


def quantised_blocks(kind, random: numpy.random.Generator, n_rows: int, n_blocks: int) -> numpy.ndarray:
    """Random bytes, with finite scales: NaN would compare equal to nothing."""
    import gguf

    size = gguf.GGML_QUANT_SIZES[kind][1]
    blocks = random.integers(0, 256, (n_rows, n_blocks, size), dtype=numpy.uint8)
    kinds = gguf.GGMLQuantizationType
    halves = {kinds.Q4_1: (0, 2), kinds.Q5_1: (0, 2), kinds.Q4_K: (0, 2), kinds.Q5_K: (0, 2), kinds.Q6_K: (208,)}
    for at in halves.get(kind, (0,)):
        scale = random.standard_normal((n_rows, n_blocks, 1)).astype(numpy.float16)
        blocks[:, :, at : at + 2] = scale.view(numpy.uint8)
    return blocks.reshape(n_rows, n_blocks * size)


def gguf_files(folder: Path) -> None:
    import gguf

    random = numpy.random.default_rng(SEED)
    kinds = gguf.GGMLQuantizationType
    path = folder / "types.gguf"
    writer = gguf.GGUFWriter(path, "golden")
    writer.add_uint8("t.u8", 200)
    writer.add_int8("t.i8", -100)
    writer.add_uint16("t.u16", 60000)
    writer.add_int16("t.i16", -30000)
    writer.add_uint32("t.u32", 4000000000)
    writer.add_int32("t.i32", -2000000000)
    writer.add_uint64("t.u64", 2**63 + 5)
    writer.add_int64("t.i64", -(2**62))
    writer.add_float32("t.f32", 0.1)
    writer.add_float64("t.f64", 0.1)
    writer.add_bool("t.true", True)
    writer.add_bool("t.false", False)
    writer.add_string("t.text", "grüße")
    writer.add_array("t.strings", ["", "a", "zwei", "dreißig"])
    writer.add_array("t.ints", [1, -2, 3])
    writer.add_array("t.floats", [0.5, -1.25])
    writer.add_array("t.bools", [True, False])
    expected = {}
    for kind in (kinds.Q8_0, kinds.Q4_0, kinds.Q4_1, kinds.Q5_0, kinds.Q5_1, kinds.Q4_K, kinds.Q5_K, kinds.Q6_K):
        blocks = quantised_blocks(kind, random, 2, 3)
        writer.add_tensor(kind.name, blocks, raw_dtype=kind)
        expected[kind.name] = torch.from_numpy(gguf.quants.dequantize(blocks, kind))
    for kind in (kinds.Q8_0, kinds.Q4_0, kinds.Q4_1, kinds.Q5_0, kinds.Q5_1):  # the ones gguf can make
        blocks = gguf.quants.quantize(random.standard_normal((3, 64)).astype(numpy.float32), kind)
        writer.add_tensor(f"real_{kind.name}", blocks, raw_dtype=kind)
        expected[f"real_{kind.name}"] = torch.from_numpy(gguf.quants.dequantize(blocks, kind))
    for name, dtype in (("f32", numpy.float32), ("f16", numpy.float16)):
        values = random.standard_normal((3, 5)).astype(dtype)
        writer.add_tensor(name, values)
        expected[name] = torch.from_numpy(values)
    values = torch.from_numpy(random.standard_normal((3, 5)).astype(numpy.float32)).to(torch.bfloat16)
    writer.add_tensor("bf16", values.view(torch.uint8).numpy(), raw_dtype=kinds.BF16)
    expected["bf16"] = values
    write_gguf(writer)
    save_expected(path, expected)

    path = folder / "aligned.gguf"
    writer = gguf.GGUFWriter(path, "golden")
    writer.add_custom_alignment(64)
    expected = {name: torch.randn(2, 3) for name in ("b", "a")}
    for name, values in expected.items():
        writer.add_tensor(name, values.numpy())
    write_gguf(writer)
    save_expected(path, expected)

    writer = gguf.GGUFWriter(folder / "q2k.gguf", "golden")
    writer.add_tensor("blk.0.w", quantised_blocks(kinds.Q2_K, random, 1, 1), raw_dtype=kinds.Q2_K)
    write_gguf(writer)

    writer = gguf.GGUFWriter(folder / "vocabulary.gguf", "golden")
    writer.add_array("tokenizer.ggml.tokens", [f"token{i}" for i in range(100)])
    write_gguf(writer)


def write_gguf(writer) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def adapters_files(folder: Path) -> None:
    """pytorch_adapter.bin of a bottleneck adapter and of a prefix, whose pool every layer names again."""
    import tempfile

    import adapters
    from transformers import BertConfig

    config = BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=16,
    )  # fmt: skip
    model = adapters.BertAdapterModel(config)
    model.add_adapter("bottleneck", config=adapters.SeqBnConfig(reduction_factor=4))
    model.add_adapter("prefix", config=adapters.PrefixTuningConfig(flat=True, prefix_length=2))
    for name in ("bottleneck", "prefix"):
        with tempfile.TemporaryDirectory() as saved:
            model.save_adapter(saved, name, with_head=False)
            data = (Path(saved) / "pytorch_adapter.bin").read_bytes()
        path = folder / f"adapters_{name}.bin"
        path.write_bytes(data)
        save_expected(path, torch.load(io.BytesIO(data), weights_only=True))


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "tests/golden/weights")
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(SEED)
    if importlib.util.find_spec("gguf"):
        safetensors_files(folder)
        torch_files(folder)
        gguf_files(folder)
    if importlib.util.find_spec("adapters"):
        adapters_files(folder)
    legacy_adapter(folder)


if __name__ == "__main__":
    main()
