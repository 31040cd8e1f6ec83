"""What a run prints, and the CSV files."""
import csv
import statistics

from bench.floors import GROUP_LEFT_OUT

FORM = {"ms": ".2f", "ratio": ".3f", "absolute": ".1e"}


def print_group(results):
    print(f"\n{results.title}\n{'':<66}{'median':>10}  {'unit':<9} least .. most")
    for case in results.cases.values():
        form = FORM.get(case.unit, ".1f")
        low, middle, high = (format(f(case.values), form) for f in (min, statistics.median, max))
        print(f"  {case.who:<9}{case.what:<55}{middle:>10}  {case.unit:<9} {low} .. {high}")
    for peer in results.missing:
        print(f"  {peer:<9}not installed: bench/README.md tells how")
    print(end="", flush=True)


def print_floors(verdicts):
    print(f"\n{'Floors':<68}{'measured':>9}  {'floor':>8}")
    left_out = dict.fromkeys(v.floor.group for v in verdicts if v.why == GROUP_LEFT_OUT)
    for v in verdicts:
        if v.floor.group in left_out:
            continue
        value = "-" if v.value is None else f"{v.value:.3f}"
        sign = ">=" if v.floor.at_least else "<="
        print(f"  {v.floor.group:<9}{v.floor.what:<57}{value:>9}  {sign} {v.needed or v.floor.floor:<5.3g} {v.word}")
    counts = {word: sum(v.word.startswith(word) for v in verdicts) for word in ("PASS", "FAIL", "not measured")}
    if left_out:
        print(f"  groups left out: {', '.join(left_out)}")
    print("\n" + ", ".join(f"{n} {word}" for word, n in counts.items()))


def write_csv(folder, groups, verdicts, facts):
    rates = [[g.group, g.date, c.name, c.who, c.what, c.unit, c.median(), min(c.values), max(c.values), len(c.values)]
             for g in groups.values() for c in g.cases.values()]
    floors = [[v.floor.group, v.floor.what, v.floor.above, v.floor.below, v.value, v.floor.floor, v.needed, v.word] for v in verdicts]
    tables = {"rates": (["group", "date", "case", "who", "what", "unit", "median", "least", "most", "rounds"], rates),
              "floors": (["group", "what", "above", "below", "measured", "floor", "counts", "verdict"], floors),
              "machine": (["fact", "value"], facts.items())}
    for name, (head, rows) in tables.items():
        with open(folder / f"{name}.csv", "w", newline="") as f:
            csv.writer(f).writerows([head, *rows])
