"""The table of methods and bases: what is equal, what is refused, what the libraries cannot make."""

import json
import re
from pathlib import Path

REASON_LENGTH = 160
HEAD = """# Methods and bases

Written by `make parity`: every cell of the cross product of bases and methods that PEFT and AdapterHub can save,
computed by those libraries and by peftd in calls that mix all of them.

`=` every cell is equal (1e-4 of scale, or twice what the library's f32 is off its own float64; generated tokens the same); `rN` refused by name, for the reason N below; `iN`
the library itself cannot make, save or read it, reason N below; **wrong** is never expected. Several marks in one place
belong to several kinds of task (classification, tagging, span, embedding, generation). An empty place was not tried.

"""


def read_impossible(golden: Path) -> list:
    return [entry for path in sorted(golden.glob("impossible/*.json"))
            for entry in json.loads(path.read_text(encoding="utf-8"))]


class Reasons:
    """Numbered reasons; those that differ only in numbers are one."""

    def __init__(self, letter: str):
        self.letter = letter
        self.numbers = {}

    def mark(self, reason: str) -> str:
        short = re.sub(r"\d+", "N", " ".join(reason.split()))[:REASON_LENGTH]
        return f"{self.letter}{self.numbers.setdefault(short, len(self.numbers) + 1)}"

    def lines(self) -> list:
        return [f"- {self.letter}{number}. {reason.replace('|', '/')}" for reason, number in self.numbers.items()]


def places(cells: list, impossible: list, refused: Reasons, cannot: Reasons) -> dict:
    """{(library, row): {base: marks}} in the order in which they came."""
    table = {}

    def put(library: str, row: str, base: str, mark: str) -> None:
        marks = table.setdefault((library, row), {}).setdefault(base, [])
        if mark not in marks:
            marks.append(mark)

    for cell in cells:
        mark = {"equal": "=", "wrong": "**wrong**"}.get(cell.verdict) or refused.mark(cell.refusal)
        put(cell.library, cell.row, cell.base, mark)
    for entry in impossible:
        put(entry["reader"], entry["row"], entry["base"], cannot.mark(entry["reason"]))
    return table


def text(cells: list, impossible: list) -> str:
    refused, cannot = Reasons("r"), Reasons("i")
    table = places(cells, impossible, refused, cannot)
    bases = list(dict.fromkeys([cell.base for cell in cells] + [entry["base"] for entry in impossible]))
    count = {verdict: sum(cell.verdict == verdict for cell in cells) for verdict in ("equal", "refused", "wrong")}
    lines = [HEAD + f"{count['equal']} equal, {count['refused']} refused, {count['wrong']} wrong, "
             f"{len(impossible)} impossible.\n", f"| method | {' | '.join(bases)} |", f"|{'---|' * (len(bases) + 1)}"]
    for library, row in sorted(table, key=lambda key: key[0]):
        marks = table[library, row]
        lines.append(f"| {library} {row} | {' | '.join(' '.join(marks.get(base, [])) for base in bases)} |")
    for title, reasons in (("Refused by the server", refused), ("Impossible in the library", cannot)):
        if reasons.numbers:
            lines += ["", f"## {title}", "", *reasons.lines()]
    return "\n".join(lines) + "\n"
