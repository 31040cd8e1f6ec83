"""Makes a cell as microsoft/LoRA saves it of AdapterHub's LoRA on GPT-2: `loralib_cell.py --golden DIR --cell NAME --to NAME`.

AdapterHub's c_attn is loralib's MergedLinear: A has the rows of each enabled part one after the other, B is the weight of a
grouped convolution. So the tensors are the same under other names, delta.bin is what torch.save(lora.lora_state_dict(model))
writes, and the expected answers are AdapterHub's. Before that the grouped product is computed in numpy, pair by pair, and
compared with the convolution that loralib calls. Runs under requirements-peft.
"""

import argparse
import json
from pathlib import Path

import numpy
import torch


def check(a: torch.Tensor, b: torch.Tensor, n_parts: int) -> None:
    grouped = torch.nn.functional.conv1d(a.unsqueeze(0), b.unsqueeze(-1), groups=n_parts).squeeze(0).numpy()
    products = [high.numpy() @ low.numpy() for low, high in zip(a.chunk(n_parts), b.chunk(n_parts))]
    assert numpy.allclose(grouped, numpy.concatenate(products), atol=1e-6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--golden", type=Path, required=True)
    parser.add_argument("--cell", required=True)
    parser.add_argument("--to", required=True)
    arguments = parser.parse_args()
    cell = arguments.golden / "cells" / arguments.cell
    made = arguments.golden / "cells" / arguments.to
    config = json.loads((cell / "adapter" / "adapter_config.json").read_text())
    method, name = config["config"], config["name"]
    enabled = [part in method["attn_matrices"] for part in "qkv"]
    tensors = torch.load(cell / "adapter" / "pytorch_adapter.bin", weights_only=True)
    saved = {key.replace(f".loras.{name}.", "."): value for key, value in tensors.items()}
    for key in saved:
        assert key.endswith((".attn.c_attn.lora_A", ".attn.c_attn.lora_B")), key
        if key.endswith("A"):
            check(saved[key], saved[key[:-1] + "B"], sum(enabled))
    (made / "adapter").mkdir(parents=True, exist_ok=True)
    torch.save(saved, made / "adapter" / "delta.bin")
    (made / "adapter" / "delta.json").write_text(json.dumps(
        {"method": "lora", "alpha": method["alpha"], "r": method["r"], "enable_lora": enabled}, indent=1) + "\n")
    golden = (cell / "golden.json").read_text()
    (made / "golden.json").write_text(golden.replace('"reader": "adapterhub"', '"reader": "delta"', 1))


if __name__ == "__main__":
    main()
