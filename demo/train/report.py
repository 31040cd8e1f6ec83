#!/usr/bin/env python3
"""Write the table of scores into demo/README.md, between its two markers, from the metrics file."""

import argparse

import metrics
import tasks

BEGIN, END = "<!-- scores: begin -->\n", "<!-- scores: end -->\n"
NAMES = {
    "lora": "LoRA", "houlsby": "Houlsby adapter", "pfeiffer": "Pfeiffer adapter", "prefix": "prefix tuning", "ia3": "(IA)³",
    "bitfit": "BitFit", "diff": "sparse difference (FISH mask)",
}
MAKERS = {"peft": "peft", "adapters": "AdapterHub", "peftd": "ours"}


def baselines(entry):
    return ", ".join(f"{name} {score:.3f}" for name, score in entry["baselines"].items())


def row(task, entry):
    cells = (
        f"`{task.name}`", f"{NAMES[task.method]} ({MAKERS[task.made_with]})", f"{entry['metric']} **{entry['score']:.3f}**",
        f"{entry['served']:.3f}", baselines(entry), f"{entry['train']} / {entry['heldout']}", f"{entry['bytes'] / 1000:.0f} kB")
    return f"| {' | '.join(cells)} |\n"


def table(recorded):
    head = ("| task | method | held out | by peftd | baselines, same examples | trained / held out | size |\n"
            "|---|---|---|---|---|---|---|\n")
    return head + "".join(row(task, recorded[task.name]) for task in tasks.ALL)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--metrics", required=True)
    parser.add_argument("--readme", required=True)
    arguments = parser.parse_args()

    with open(arguments.readme, encoding="utf-8") as file:
        before, rest = file.read().split(BEGIN)
    after = rest.split(END)[1]
    with open(arguments.readme, "w", encoding="utf-8") as file:
        file.write(before + BEGIN + table(metrics.read(arguments.metrics)) + END + after)


if __name__ == "__main__":
    main()
