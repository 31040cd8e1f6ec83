"""The floors, as one table, and the judgement of each.

A row divides one case by another, round by round, and holds the median against its floor. `bound` names the case
that says what the machine could do for the case above: where the floor lies beyond it, SHARE of that limit counts
instead. A row whose case below is itself a bound is a share of the machine's peak; what the form of the numbers
leaves of the peak (8-bit values with scales) is the case `form`, and bounds that share.
"""
import statistics
from dataclasses import dataclass

from bench.measure import ratios

SHARE = 0.85
GROUP_LEFT_OUT = "group left out"


@dataclass(frozen=True)
class Floor:
    group: str
    what: str
    above: str  # several with a space between: the one with the best median
    below: str  # the same; "" if the case above is a ratio already
    floor: float
    bound: str = ""
    at_least: bool = True


def decoder_rows():
    like = {"f16": ("exact", "bf16"), "q8_0": ("int8",), "q4_0": ("int8",), "q4_k_m": ("int8",)}
    floors = {"one": {"f16": 1.3, "q8_0": 1.4, "q4_0": 1.3, "q4_k_m": 1.3},
              "many": {"f16": 1.5, "q8_0": 1.5, "q4_0": 1.4, "q4_k_m": 1.4}}
    for name, what in (("one", "one stream"), ("many", "16 streams")):
        for file, floor in floors[name].items():
            for p in like[file]:
                case = f"{name}/{file}/{p}"
                yield Floor("decoder", f"{what}, {file}: {p} / llama-server", case, f"{name}/{file}/llama", floor, case + "/bound")
    for file, p, floor in (("f16", "exact", 0.9), ("q8_0", "int8", 0.9), ("q4_0", "int8", 0.75)):
        yield Floor("decoder", f"one stream, {file} {p}: share of reading", f"read/{file}/{p}", f"read/{file}/{p}/bound", floor)


def prompt_rows():
    for n, shown in ((512, "512"), (4096, "4,096")):
        for file, p, floor in (("f16", "exact", 1.3), ("f16", "bf16", 1.3), ("q8_0", "int8", 1.5), ("q4_0", "int8", 1.5),
                               ("q4_k_m", "int8", 1.5)):
            case = f"{n}/{file}/{p}"
            yield Floor("prompts", f"{shown} tokens, {file}: {p} / llama-bench", case, f"{n}/{file}/llama", floor, case + "/bound")
    for file, p in (("f16", "exact"), ("f16", "bf16"), ("q8_0", "int8")):
        yield Floor("prompts", f"512 tokens, {file} {p}: share of the peak", f"512/{file}/{p}", f"512/{file}/{p}/bound", 0.85,
                    f"512/{file}/{p}/form")


def lora_rows():
    yield Floor("loras", "16 streams, 16 LoRAs: exact / llama-server f16", "each/exact", "each/llama", 5.5, "bound/exact")
    yield Floor("loras", "the same: the better of bf16 and int8 / llama-server", "each/bf16 each/int8", "each/llama", 9,
                "bound/bf16 bound/int8")
    yield Floor("loras", "the same: bf16 / vLLM on CPU, bf16", "each/bf16", "each/vLLM", 7, "bound/bf16")
    for p in ("exact", "bf16", "int8"):
        yield Floor("loras", f"with 16 LoRAs / without any, {p}", f"each/{p}", f"none/{p}", 0.92)
    yield Floor("loras", "five methods mixed / LoRA only, exact", "mix/exact", "each/exact", 0.95)
    yield Floor("loras", "16 tasks / one, exact", "each/exact", "same/exact", 0.98)


def encoder_rows():
    peft = "each/by_length each/padded each/by_task"
    yield Floor("encoder", "16 LoRA tasks: exact / PEFT at its best of three", "each/exact", peft, 5.5, "each/exact/bound")
    yield Floor("encoder", "16 LoRA tasks: bf16 / PEFT at its best of three", "each/bf16", peft, 9, "each/bf16/bound")
    yield Floor("encoder", "exact with tasks / OpenVINO f32 without", "each/exact", "openvino/f32", 1.8, "each/exact/bound")
    yield Floor("encoder", "bf16 with tasks / OpenVINO bf16 without", "each/bf16", "openvino/bf16", 1.6, "each/bf16/bound")
    yield Floor("encoder", "one text a call, 16 clients / one call of 64, exact", "clients/exact", "each/exact", 0.9)
    yield Floor("encoder", "a lone request: p50 / its arithmetic at the peak", "lone/exact", "lone/exact/bound", 2.5, at_least=False)
    yield Floor("encoder", "five methods mixed / LoRA only, exact", "mix/exact", "each/exact", 0.95)
    yield Floor("encoder", "16 tasks / one, exact", "each/exact", "same/exact", 0.98)
    for p in ("exact", "bf16", "int8"):
        yield Floor("encoder", f"no adapter, {p}: share of the peak", f"base/{p}", f"base/{p}/bound", 0.85, f"base/{p}/form")


def big_rows():
    for shape in ("llama-1b", "llama-7b"):
        for kind in ("q8_0", "q4_k_m"):
            label = f"{shape}-{kind}"  # without a space, which parts names
            yield Floor("big", f"{label}, one stream: int8 / llama-server", f"one/{label}/peftd", f"one/{label}/llama", 1.3,
                        f"one/{label}/bound")
            yield Floor("big", f"{label}, 8 streams, 8 LoRAs: int8 / llama-server", f"loras/{label}/peftd", f"loras/{label}/llama", 4,
                        f"loras/{label}/bound")
            yield Floor("big", f"{label}: resident memory / file", f"memory/{label}", f"file/{label}", 1.1, at_least=False)


OTHER_ROWS = (
    Floor("tasks", "200 tasks in a call / one", "call/200", "call/1", 0.98),
    Floor("tasks", "2,000 tasks loaded and asked / 5", "loaded/many", "loaded/few", 0.97),
    Floor("tasks", "ranks 4 to 64 mixed / rank 16", "rank/mixed", "rank/16", 0.97),
    Floor("tasks", "first answer of a task not in memory / the next", "first", "next", 1.3, at_least=False),
    Floor("streams", "p99 between tokens, long prompts beside / without, exact", "beside/exact", "alone/exact", 2, at_least=False),
    Floor("streams", "p99 between tokens, long prompts beside / without, int8", "beside/int8", "alone/int8", 2, at_least=False),
    *(Floor("shapes", f"{shape}, f32: exact / PyTorch", f"{shape}/peftd", f"{shape}/torch", 2, f"{shape}/bound")
      for shape in ("roberta-base", "bart-large", "gpt2-medium")),
)

FLOORS = (*decoder_rows(), *prompt_rows(), *lora_rows(), *encoder_rows(), *OTHER_ROWS, *big_rows())


@dataclass
class Verdict:
    floor: Floor
    value: float = None
    needed: float = None  # the floor, or what counts instead
    why: str = ""  # not measured: why; or that the machine's limit counts

    @property
    def word(self):
        if self.value is None:
            return f"not measured ({self.why})"
        holds = self.value >= self.needed if self.floor.at_least else self.value <= self.needed
        return ("PASS" if holds else "FAIL") + (f", {self.why}" if self.why else "")

    @property
    def is_failed(self):
        return self.word.startswith("FAIL")


def best(results, names):
    """The case with the best median among those that were measured."""
    found = [results.cases[n] for n in names.split() if n in results.cases and results.cases[n].values]
    return max(found, key=lambda c: c.median(), default=None)


def judge(floor, results):
    """results: of the floor's group, or None if the group was left out."""
    if results is None:
        return Verdict(floor, why=GROUP_LEFT_OUT)
    above, below = best(results, floor.above), best(results, floor.below)
    if above is None or (floor.below and below is None):
        return Verdict(floor, why=f"peer missing: {', '.join(results.missing)}" if results.missing else "not in this run")
    values = ratios(above, below) if below else above.values
    out = Verdict(floor, statistics.median(values), floor.floor)
    bound = best(results, floor.bound)
    if bound and below:
        most = statistics.median(ratios(bound, below))
        if floor.floor > most:
            out.needed, out.why = SHARE * most, f"{SHARE} of the machine's limit, {most:.3g}, for {floor.floor:g} is beyond it"
    return out


def judge_all(results_of):
    return [judge(floor, results_of.get(floor.group)) for floor in FLOORS]
