"""What every golden maker shares: seeds, lively tensors, cases, the padded check, golden files."""

import argparse
import json
import math
import os
import shutil
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

import numpy
import torch
import transformers

LENGTHS = (1, 7, 16, 33)
MAX_NEW_TOKENS = 8
MARGIN = 1e-3  # the least gap between the two best logits of a greedy step, relative to the row's scale
PADDED_TOLERANCE = 2e-5

torch.set_num_threads(1)  # the matrices are tiny, and one thread sums in the same order everywhere


# A head that pools the last token of a sequence looks for padding in the tokens, wherever it stands: inside, at the
# end, at both. All padding is an input of its own, which AdapterHub pools at the last row of the whole batch.
SEQUENCE_KINDS = ("classification", "multi_label", "regression")
PADDED_TOKENS = ([5, 0, 9, 11], [7, 6, 8, 0, 0], [0, 0, 12, 0])
ALL_PADDING = [0, 0, 0]


@dataclass
class Reference:
    """How one task is computed by its library.

    forward takes a batch (input_ids, attention_mask, token_type_ids for BERT) and returns what `kind` needs:
    [batch, labels] logits, or [batch, tokens, width] logits or hidden states.
    """

    kind: str
    forward: Callable[[dict], torch.Tensor]
    vocab: range
    token_types: bool = False
    pooling: str = "mean"
    normalize: bool = True
    inputs: tuple = ()  # cases to compute besides the random ones: text, tokens, token_types
    pad_id: int = 0


@dataclass
class Library:
    """A source of cells: who reads them, how one is saved, and how one is computed from its saved files.

    A cell has folder_name, base, kind, method and notes; save and reference take (cell, adapter folder).
    """

    reader: str
    versions: dict
    save: Callable
    reference: Callable


def seed_everything(seed: int, name: str) -> torch.Generator:
    """Seeds torch from the run's seed and the name of what is made, so that cells do not depend on their order."""
    mixed = zlib.crc32(f"{seed}/{name}".encode())
    torch.manual_seed(mixed)
    return torch.Generator().manual_seed(mixed)


def stir_base(model: torch.nn.Module) -> None:
    """Gives a base lively weights: matrices of about 1.2 / sqrt(fan_in), norms off 1, biases off 0."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            if parameter.dim() >= 2:
                parameter.copy_(noise * 1.2 / math.sqrt(parameter.shape[-1]))
            elif "norm" in name.lower() and name.endswith("weight"):
                parameter.copy_(1 + 0.2 * noise)
            else:
                parameter.copy_(0.2 * noise)


def stir_delta(parameters) -> None:
    """Gives every trained tensor of a delta random values; those whose neutral value is 1 stay around 1."""
    with torch.no_grad():
        for name, parameter in parameters:
            noise = torch.randn_like(parameter)
            if is_one_centred(name, parameter):
                parameter.copy_(1 + 0.3 * noise)
            elif is_embedding(name, parameter):
                parameter.copy_(0.7 * noise)
            elif parameter.dim() >= 2:
                parameter.copy_(noise / math.sqrt(parameter.shape[-1]))
            else:
                parameter.copy_(0.3 * noise)


def is_one_centred(name: str, parameter: torch.Tensor) -> bool:
    """Norm weights, scalings, PEFT's ia3_l and AdapterHub's IA3, which is a lora_B of one column."""
    is_norm_weight = parameter.dim() == 1 and name.endswith("weight")
    is_scale_column = "loras." in name and name.endswith("lora_B") and parameter.shape[-1] == 1
    return is_norm_weight or is_scale_column or "ia3_l" in name or name.endswith("scaling")


def is_embedding(name: str, parameter: torch.Tensor) -> bool:
    """Prefixes, and rows that are looked up rather than multiplied."""
    is_flat_prefix = name.endswith("control_trans") and parameter.dim() == 1
    return is_flat_prefix or ".wte." in name or "embedding" in name


def padded_inputs(kind: str, base: str, all_padding: bool) -> tuple:
    """Inputs with pad ids in them, for the heads that look for them: sequence heads of decoders."""
    if kind not in SEQUENCE_KINDS or not base.startswith("llama"):
        return ()
    return tuple({"tokens": list(tokens)} for tokens in (*PADDED_TOKENS, *([ALL_PADDING] if all_padding else ())))


def draw_tokens(reference: Reference, length: int, generator: torch.Generator) -> list:
    span = reference.vocab
    return torch.randint(span.start, span.stop, (length,), generator=generator).tolist()


def draw_token_types(length: int) -> list:
    """The second half of a longer input is its second segment."""
    first = length if length < 8 else length // 2
    return [0] * first + [1] * (length - first)


def batch_of(reference: Reference, cases: list) -> dict:
    """A right-padded batch of the cases, with its attention mask."""
    width = max(len(case["tokens"]) for case in cases)

    def padded(rows, fill):
        return torch.tensor([row + [fill] * (width - len(row)) for row in rows])

    batch = {
        "input_ids": padded([case["tokens"] for case in cases], reference.pad_id),
        "attention_mask": padded([[1] * len(case["tokens"]) for case in cases], 0),
    }
    if reference.token_types:
        batch["token_type_ids"] = padded([case["token_types"] for case in cases], 0)
    return batch


def pool(reference: Reference, hidden: torch.Tensor) -> torch.Tensor:
    """One embedding from the hidden states [tokens, width] of one input."""
    pooled = {"cls": hidden[0], "mean": hidden.mean(0), "last": hidden[-1]}[reference.pooling]
    return torch.nn.functional.normalize(pooled, dim=0) if reference.normalize else pooled


def expected_of(reference: Reference, output: torch.Tensor, length: int) -> torch.Tensor:
    """What the kind answers, from the forward output of one row of a batch."""
    if reference.kind == "generation":
        return output[length - 1]
    if reference.kind == "tagging":
        return output[:length]
    if reference.kind == "embedding":
        return pool(reference, output[:length])
    return output


def expected_key(kind: str) -> str:
    return "embedding" if kind == "embedding" else "logits"


def run_one(reference: Reference, case: dict) -> torch.Tensor:
    with torch.no_grad():
        output = reference.forward(batch_of(reference, [case]))
    return expected_of(reference, output[0], len(case["tokens"]))


def greedy(reference: Reference, case: dict) -> list | None:
    """Greedy tokens by full recomputation, or None when a step's choice is too close to call."""
    running = dict(case)
    generated = []
    for _ in range(MAX_NEW_TOKENS):
        row = run_one(reference, running)
        best, second = row.topk(2).values.tolist()
        if best - second < MARGIN * max(1.0, row.abs().max().item()):
            return None
        generated.append(int(row.argmax()))
        running = {**running, "tokens": running["tokens"] + generated[-1:]}
    return generated


def make_case(reference: Reference, inputs: dict) -> dict | None:
    """The inputs with what is expected of them, or None when a greedy step is too close to call."""
    case = dict(inputs)
    if reference.token_types:
        case.setdefault("token_types", draw_token_types(len(case["tokens"])))
    if reference.kind == "generation":
        generated = greedy(reference, case)
        if generated is None:
            return None
        case.update(generated=generated, max_tokens=MAX_NEW_TOKENS, ignore_eos=True)
    return {**case, expected_key(reference.kind): run_one(reference, case)}


def make_random_case(reference: Reference, length: int, generator: torch.Generator) -> dict:
    case = None
    while case is None:
        case = make_case(reference, {"tokens": draw_tokens(reference, length, generator)})
    return case


def make_cases(reference: Reference, generator: torch.Generator) -> list:
    drawn = [make_random_case(reference, length, generator) for length in LENGTHS]
    given = [make_case(reference, inputs) for inputs in reference.inputs]
    return drawn + [case for case in given if case]


def padded_difference(reference: Reference, cases: list) -> float:
    """The largest difference, relative to a row's scale, between alone and in one padded batch."""
    with torch.no_grad():
        output = reference.forward(batch_of(reference, cases))
    worst = 0.0
    for row, case in zip(output, cases):
        alone = case[expected_key(reference.kind)]
        padded = expected_of(reference, row, len(case["tokens"]))
        scale = max(1.0, alone.abs().max().item())
        worst = max(worst, (padded - alone).abs().max().item() / scale)
    return worst


def check_padded(name: str, reference: Reference, cases: list) -> None:
    difference = padded_difference(reference, cases)
    if difference > PADDED_TOLERANCE:
        raise SystemExit(f"{name}: the library's padded batch differs by {difference:.2e} from single inputs")


def make_cell(library: Library, cell, seed: int) -> None:
    generator = seed_everything(seed, cell.folder_name)
    folder = fresh_folder(Path("cells") / cell.folder_name)
    library.save(cell, folder / "adapter")
    reference = library.reference(cell, folder / "adapter")
    cases = make_cases(reference, generator)
    check_padded(cell.folder_name, reference, cases)
    write_golden(folder / "golden.json", header_of(library, cell, seed), cases)


def header_of(library: Library, cell, seed: int) -> dict:
    versions = {"torch": torch.__version__, "transformers": transformers.__version__, **library.versions}
    header = {"base": cell.base, "reader": library.reader, "method": cell.method, "kind": cell.kind,
              "versions": versions, "seed": seed}
    return {**header, "notes": cell.notes} if cell.notes else header


def make_cells(description: str, library: Library, cells: list) -> None:
    """The main program of a maker of cells. It works inside --out, so that saved files name bases by short paths."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="make only cells whose name contains this")
    arguments = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    os.chdir(arguments.out)
    for cell in cells:
        if arguments.only in cell.folder_name:
            make_cell(library, cell, arguments.seed)


def shortest(value):
    """Nested lists of floats whose JSON text is the shortest that reads back as the same float32."""
    if isinstance(value, torch.Tensor):
        return shortest(value.tolist())
    if isinstance(value, list):
        return [shortest(item) for item in value]
    if isinstance(value, dict):
        return {key: shortest(item) for key, item in value.items()}
    return float(str(numpy.float32(value))) if isinstance(value, float) else value


def write_golden(path: Path, header: dict, cases: list) -> None:
    """Writes golden.json with one case a line."""
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}," for key, value in header.items()]
    rows = [json.dumps({key: shortest(value) for key, value in case.items()}, separators=(",", ":")) for case in cases]
    text = "{\n" + "\n".join(lines) + '\n  "cases": [\n    ' + ",\n    ".join(rows) + "\n  ]\n}\n"
    path.write_text(text, encoding="utf-8")


def fresh_folder(path: Path) -> Path:
    if path.exists():
        shutil.rmtree(path)
    path.mkdir(parents=True)
    return path


def write_json(path: Path, value) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
