"""What the makers of the cross product share: bases in memory, one input through a model, cases, cells, failures.

It differs from common.py in what it knows: encoder-decoder models, spans, answers that hold virtual tokens, and cells
that the library cannot make. A cell is saved on one copy of the base and computed on another whose fresh heads differ,
so a file that misses a tensor shows.
"""

import argparse
import copy
import json
import os
import shutil
import sys
import time
import traceback
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Callable

import torch
import transformers
from tokenizers import Tokenizer

from common import MARGIN, draw_token_types, fresh_folder, seed_everything, write_golden
from families import Family, families

LENGTHS = (1, 12, 27)
MAX_NEW_TOKENS = 6
RELOAD_TOLERANCE = 2e-5
AGREE_TOLERANCE = 1e-5
LEAST_EFFECT = 1e-3
ROUNDINGS = 8
SUSPECT_ROUNDING = 2e-6  # one run that is off by more is reason to look at several
LEAST_ROUNDING = 1e-5
MOST_ROUNDING = 1e-2  # beyond, it is no rounding but another computation
TRIES = 40
LABELS = {"classification": 3, "tagging": 5, "multi_label": 4, "regression": 1, "multiple_choice": 1}
CLASSES = {
    "classification": "AutoModelForSequenceClassification",
    "multi_label": "AutoModelForSequenceClassification",
    "regression": "AutoModelForSequenceClassification",
    "tagging": "AutoModelForTokenClassification",
    "span": "AutoModelForQuestionAnswering",
    "multiple_choice": "AutoModelForMultipleChoice",
    "embedding": "AutoModel",
}
SEQUENCE_KINDS = ("classification", "multi_label", "regression")
TEXTS = [("The server runs many tasks.", None), ("one base, many tasks", "in each batch!")]
CHOICES = [("the server runs", ["many tasks", "one base in each batch", "a task"]), ("one base", ["in a batch", "from"])]
PADDED_TOKENS = ([5, 0, 9, 11], [7, 6, 8, 0, 0], [0, 0, 12, 0])


class Impossible(Exception):
    """The library cannot make this cell; the text says why."""


@dataclass
class Cell:
    """One cell. `row` is its line in the table of methods; save and load do what the library does.

    save(model, folder) returns the model that was trained, load(model, folder) the one read back. run, when given,
    replaces the plain call of the model.
    """

    family: Family
    library: str
    name: str
    kind: str
    method: str
    save: Callable | None = None
    load: Callable | None = None
    run: Callable | None = None
    muted: Callable | None = None  # a context in which the model has its head but not its adapter
    flex: bool = False  # a model class of AdapterHub, whose heads come with the adapter
    labels: int | None = None
    task: dict = field(default_factory=dict)
    notes: list = field(default_factory=list)
    inputs: tuple = ()
    pooling: str = "mean"
    normalize: bool = True
    max_tokens: int = MAX_NEW_TOKENS
    lossy: bool = False  # the library reads back something else than it saved; the files count
    row: str = ""
    files: bool = True
    lengths: tuple = LENGTHS
    is_large: bool = False  # float64 takes too much memory
    is_split: bool = False  # virtual tokens stand behind the first real one, else in front of all

    @property
    def folder_name(self) -> str:
        infix = {"peft": "-peft", "adapterhub": "-ah", "base": "", "delta": "-delta", "diff": "-diff"}[self.library]
        return f"{self.family.name}{infix}-{self.name}"

    @property
    def base(self) -> str:
        return self.family.name


class Bases:
    """Models of one family in memory, two copies of each class: to save with and to load into."""

    def __init__(self, load_flex: Callable | None = None):
        self.models = {}
        self.load_flex = load_flex

    def fresh(self, cell: Cell, copy_number: int) -> torch.nn.Module:
        labels = cell.labels or LABELS.get(cell.kind)
        key = ("flex",) if cell.flex else (cell.kind, labels)
        if (*key, copy_number) not in self.models:
            torch.manual_seed(1000 + copy_number)
            self.models[(*key, copy_number)] = self.load(cell, labels)
        return copy.deepcopy(self.models[(*key, copy_number)])

    def load(self, cell: Cell, labels: int | None) -> torch.nn.Module:
        path = f"bases/{cell.family.name}"
        options = {"dtype": torch.float32, "attn_implementation": "eager"}
        if cell.flex:
            return self.load_flex(path, **options)
        if labels and cell.kind != "multiple_choice":
            options["num_labels"] = labels
        name = CLASSES.get(cell.kind)
        if cell.kind == "generation":
            name = "AutoModelForSeq2SeqLM" if cell.family.is_seq2seq else "AutoModelForCausalLM"
        # A head of another size replaces the one of the checkpoint.
        options["ignore_mismatched_sizes"] = True
        model = getattr(transformers, name).from_pretrained(path, **options)
        if cell.kind == "span" and hasattr(model, "transformer") and cell.family.adds_transformer:
            # These classes call their body `transformer`, so they find nothing of it in a language model's checkpoint.
            model.transformer = transformers.AutoModel.from_pretrained(path, **options)
        return model.eval()


def batch_of(cell: Cell, case: dict) -> dict:
    if "choices" in case:
        return choices_batch(cell, case)
    tokens = torch.tensor([case["tokens"]])
    batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    if cell.family.token_types:
        batch["token_type_ids"] = torch.tensor([case["token_types"]])
    if cell.family.is_seq2seq and cell.kind == "generation":
        start = cell.family.options["decoder_start_token_id"]
        batch["decoder_input_ids"] = torch.tensor([[start, *case.get("answer", [])]])
    return batch


def choices_batch(cell: Cell, case: dict) -> dict:
    """Each choice as the pair of the text, padded to one width."""
    tokenizer = Tokenizer.from_file(f"bases/{cell.base}/tokenizer.json")
    rows = [tokenizer.encode(case["text"], choice) for choice in case["choices"]]
    width = max(len(row.ids) for row in rows)
    pad = cell.family.pad_id
    batch = {"input_ids": torch.tensor([[row.ids + [pad] * (width - len(row.ids)) for row in rows]]),
             "attention_mask": torch.tensor([[[1] * len(row.ids) + [0] * (width - len(row.ids)) for row in rows]])}
    if cell.family.token_types:
        batch["token_type_ids"] = torch.tensor([[row.type_ids + [0] * (width - len(row.ids)) for row in rows]])
    return batch


def output_of(cell: Cell, model: torch.nn.Module, case: dict):
    batch = batch_of(cell, case)
    with torch.no_grad():
        return cell.run(model, batch) if cell.run else model(**batch)


def real_rows(cell: Cell, case: dict, rows: torch.Tensor) -> torch.Tensor:
    """Without those of virtual tokens."""
    behind = len(case["tokens"]) - cell.is_split
    return torch.cat([rows[:len(case["tokens"]) - behind], rows[len(rows) - behind:]])


def expected(cell: Cell, model: torch.nn.Module, case: dict):
    """What the kind answers. Rows of virtual tokens are cut off."""
    output = output_of(cell, model, case)
    if cell.kind == "span":
        return {"start": real_rows(cell, case, output.start_logits[0]),
                "end": real_rows(cell, case, output.end_logits[0])}
    if cell.kind == "embedding":
        rows = real_rows(cell, case, output[0][0])
        pooled = {"cls": rows[0], "mean": rows.mean(0), "last": rows[-1]}[cell.pooling]
        return torch.nn.functional.normalize(pooled, dim=0) if cell.normalize else pooled
    logits = output.logits[0]
    if cell.kind == "generation":
        return logits[-1]
    return real_rows(cell, case, logits) if cell.kind == "tagging" else logits


def is_close_call(row: torch.Tensor) -> bool:
    best, second = row.topk(2).values.tolist()
    return best - second < MARGIN * max(1.0, row.abs().max().item())


def generate(cell: Cell, model: torch.nn.Module, case: dict) -> dict | None:
    """The case with its greedy tokens by full recomputation, or None when a step is too close to call."""
    answer, first = [], None
    for _ in range(cell.max_tokens):
        grown = {**case, "answer": answer}
        if not cell.family.is_seq2seq:
            grown["tokens"] = case["tokens"] + answer
            if cell.family.token_types:
                grown["token_types"] = [*case["token_types"], *([0] * len(answer))]
        row = expected(cell, model, grown)
        first = row if first is None else first
        if is_close_call(row):
            return None
        answer = [*answer, int(row.argmax())]
    return {**case, "generated": answer, "max_tokens": cell.max_tokens, "ignore_eos": True, "logits": first}


def make_case(cell: Cell, model: torch.nn.Module, inputs: dict) -> dict | None:
    case = dict(inputs)
    if cell.family.token_types and "tokens" in case:
        case.setdefault("token_types", draw_token_types(len(case["tokens"])))
    if cell.kind == "generation":
        return generate(cell, model, case)
    return {**case, "embedding" if cell.kind == "embedding" else "logits": expected(cell, model, case)}


def draw_inputs(cell: Cell, length: int, generator: torch.Generator) -> dict:
    first, count = cell.family.first_token, cell.family.options["vocab_size"]
    tokens = torch.randint(first, count, (length,), generator=generator).tolist()
    if cell.family.eos_ends is not None and cell.kind in SEQUENCE_KINDS:
        tokens[-1] = cell.family.eos_ends
    return {"tokens": tokens}


def draw_case(cell: Cell, model: torch.nn.Module, length: int, generator: torch.Generator) -> dict:
    for _ in range(TRIES):
        case = make_case(cell, model, draw_inputs(cell, length, generator))
        if case:
            return case
    raise Impossible(f"no greedy answer with a margin in {TRIES} tries")


def text_inputs(cell: Cell) -> list:
    """Texts with their tokens, for bases that have a tokenizer."""
    tokenizer = Tokenizer.from_file(f"bases/{cell.base}/tokenizer.json")
    cases = []
    for text, pair in TEXTS:
        encoding = tokenizer.encode(text, pair)
        case = {"text": text, "text_pair": pair} if pair else {"text": text}
        case["tokens"] = encoding.ids
        cases.append({**case, "token_types": encoding.type_ids} if cell.family.token_types else case)
    return cases


def make_cases(cell: Cell, model: torch.nn.Module, generator: torch.Generator) -> list:
    if cell.kind == "multiple_choice":
        # A head of AdapterHub has a fixed number of choices.
        return [make_case(cell, model, {"text": text, "choices": choices}) for text, choices in CHOICES
                if len(choices) == len(CHOICES[0][1]) or not cell.flex]
    cases = [draw_case(cell, model, length, generator) for length in cell.lengths]
    given = list(cell.inputs)
    if cell.library == "base" and cell.family.tokenizer:
        given += text_inputs(cell)
    if cell.family.is_decoder and cell.kind == "classification" and cell.name.startswith(("lora", "seq_bn")):
        given += [{"tokens": list(tokens)} for tokens in PADDED_TOKENS]
    return cases + [case for case in (make_case(cell, model, inputs) for inputs in given) if case]


def difference(one, other) -> float:
    if isinstance(one, dict):
        return max(difference(one[key], other[key]) for key in one)
    return ((one - other).abs().max() / max(1.0, one.abs().max())).item()


def probe_of(cell: Cell) -> dict:
    """An input that is no case: the same for every cell of a kind."""
    if cell.kind == "multiple_choice":
        return {"text": CHOICES[0][0], "choices": CHOICES[0][1]}
    probe = {"tokens": [cell.family.first_token + 2 + 3 * i for i in range(9)]}
    if cell.family.eos_ends is not None and cell.kind in SEQUENCE_KINDS:
        probe["tokens"].append(cell.family.eos_ends)
    if cell.family.token_types:
        probe["token_types"] = draw_token_types(len(probe["tokens"]))
    return probe


def check_lively(cell: Cell, model: torch.nn.Module) -> None:
    """A cell that changes nothing shows nothing. The head stays, because it would hide that."""
    if not cell.muted:
        return
    lively = expected(cell, model, probe_of(cell))
    with cell.muted(model) as plain:
        still = expected(replace(cell, run=None) if cell.library == "peft" else cell, plain, probe_of(cell))
    if difference(still, lively) < LEAST_EFFECT:
        raise Impossible("the library's adapter changes nothing")
    check_prompt(cell, model, lively)


def check_prompt(cell: Cell, model: torch.nn.Module, lively) -> None:
    """PEFT's class for the task may run another part of the model, which never sees what stands in front."""
    prompt = list(getattr(model, "prompt_encoder", torch.nn.Module()).parameters())
    with torch.no_grad():
        for parameter in prompt:
            parameter.mul_(2.0)
        still = expected(cell, model, probe_of(cell)) if prompt else None
        for parameter in prompt:
            parameter.mul_(0.5)
    if prompt and difference(still, lively) < LEAST_EFFECT:
        raise Impossible("the library's answer does not depend on its virtual tokens")


def check_reload(cell: Cell, trained: torch.nn.Module, loaded: torch.nn.Module) -> None:
    """The files give back what was trained; otherwise the cell says that they do not."""
    probe = probe_of(cell)
    got = difference(expected(cell, trained.eval(), probe), expected(cell, loaded, probe))
    if not got <= RELOAD_TOLERANCE:
        if not cell.lossy:
            raise Impossible(f"the library reads back something else than it saved (differs by {got:.1e} of scale)")
        cell.notes.append(f"read back, it differs by {got:.1e} of scale from what was saved; the files count")


def inputs_of(case: dict) -> dict:
    return {key: value for key, value in case.items() if key not in ("logits", "embedding", "generated")}


def move_weights(model: torch.nn.Module, weights: list) -> None:
    """Each weight by at most a unit in its last place: the f32 answer is rounded otherwise, and means the same."""
    for parameter, weight in zip(model.parameters(), weights):
        noise = 2 * torch.rand(weight.shape, dtype=torch.float64) - 1
        parameter.copy_(weight.double() * (1 + torch.finfo(torch.float32).eps * noise))


def note_rounding(cell: Cell, model: torch.nn.Module, cases: list) -> None:
    """What f32 leaves open of each answer: the most by which the library's own is off its float64 one.

    Random weights make some cells sensitive, so that every f32 computation has digits of its own there. Where the
    answer hints at that, a few more are taken, with weights moved within their rounding. A method that cannot compute in
    float64 is compared as if it were not sensitive.
    """
    key = "embedding" if cell.kind == "embedding" else "logits"
    torch.manual_seed(0)
    try:
        exact = [expected(cell, model.double(), inputs_of(case)) for case in cases]
    except Exception:  # casts to f32 within a method fail in every way
        return
    model.float()
    rounding = [difference(value, case[key]) for value, case in zip(exact, cases)]
    if not SUSPECT_ROUNDING < max(rounding) < MOST_ROUNDING:
        return
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    with torch.no_grad():
        for _ in range(ROUNDINGS):
            move_weights(model, weights)
            again = [difference(value, expected(cell, model, inputs_of(case))) for value, case in zip(exact, cases)]
            rounding = [max(pair) for pair in zip(rounding, again)]
    if max(rounding) > LEAST_ROUNDING:
        for case, value in zip(cases, rounding):
            case["rounding"] = value


def make_cell(cell: Cell, bases: Bases, versions: dict, seed: int) -> None:
    folder = fresh_folder(Path("cells") / cell.folder_name)
    source, model = bases.fresh(cell, 0), bases.fresh(cell, 1)
    generator = seed_everything(seed, cell.folder_name)  # after the bases, which seed when they are loaded
    if cell.save:
        trained = cell.save(source, folder / "adapter")
        model = cell.load(model, folder / "adapter").eval()
        check_reload(cell, trained, model)
        check_lively(cell, model)
    if cell.task:
        text = json.dumps(cell.task, indent=2) + "\n"
        (folder / "adapter" / "task.json").write_text(text, encoding="utf-8")
    header = {"base": cell.base, "reader": cell.library, "method": cell.method, "row": cell.row or cell.name,
              "kind": cell.kind,
              "versions": {"torch": torch.__version__, "transformers": transformers.__version__, **versions},
              "seed": seed}
    cases = make_cases(cell, model, generator)
    if not cell.is_large:
        note_rounding(cell, model, cases)
    write_golden(folder / "golden.json", {**header, "notes": cell.notes} if cell.notes else header, cases)


def one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]


def make_cells(cells: list, bases: Bases, versions: dict, arguments: argparse.Namespace) -> None:
    """Makes the cells; what the library refuses goes to impossible/, with its words."""
    impossible, started = [], time.monotonic()
    wanted = [cell for cell in cells if arguments.only in cell.folder_name]
    for cell in wanted:
        try:
            make_cell(cell, bases, versions, arguments.seed)
        except Exception as error:  # the library's own refusals are of every class
            if arguments.trace:
                traceback.print_exc()
            shutil.rmtree(Path("cells") / cell.folder_name, ignore_errors=True)
            reason = str(error) if isinstance(error, Impossible) else one_line(error)
            impossible.append({"base": cell.base, "reader": cell.library, "row": cell.row or cell.name,
                               "cell": cell.folder_name, "reason": reason})
    if not arguments.only and cells:
        folder = Path("impossible")
        folder.mkdir(exist_ok=True)
        path = folder / f"{cells[0].base}-{cells[0].library}.json"
        path.write_text(json.dumps(impossible, indent=1) + "\n", encoding="utf-8")
    for entry in impossible:
        print(f"impossible {entry['cell']}: {entry['reason']}")
    if wanted:
        print(f"{wanted[0].base} {wanted[-1].library}: {len(wanted) - len(impossible)} cells, {len(impossible)} "
              f"impossible, {time.monotonic() - started:.0f} s", flush=True)


def parse_arguments(description: str) -> argparse.Namespace:
    """A maker works inside --out, so that saved files name bases by short paths."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--family", required=True, nargs="+", choices=sorted(families()))
    parser.add_argument("--only", default="", help="make only cells whose name contains this")
    parser.add_argument("--trace", action="store_true", help="print where the library refuses")
    arguments = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    os.chdir(arguments.out)
    return arguments


def check_agreement(family: Family, bases: Bases) -> None:
    """Stops when this environment computes the base otherwise than the one that wrote its cells."""
    for path in sorted(Path("cells").glob(f"{family.name}-*/golden.json")):
        golden = json.loads(path.read_text(encoding="utf-8"))
        if golden["reader"] != "base" or golden["base"] != family.name:
            continue
        cell = Cell(family, "base", golden["row"], golden["kind"], "base")
        for case in golden["cases"]:
            key = "embedding" if cell.kind == "embedding" else "logits"
            case["answer"] = []
            got = difference(torch.tensor(case[key]), expected(cell, bases.fresh(cell, 0), case))
            if not got <= AGREE_TOLERANCE:
                sys.exit(f"{family.name}: transformers {transformers.__version__} differs by {got:.1e} of scale")
