"""Cases that run in turn, and what they gave. Standard library only.

A case is a function that returns a figure: a rate, a time, a limit of the machine. In a round every case of a
group runs once, peers between peftd's own, after one round to warm up; a figure is the median of the rounds, a
ratio the median of the rounds' ratios. So what disturbs the machine disturbs both sides. A limit of the machine is taken
several times in a round, between the other cases, and its figure is the mean: a host that gives and takes half of its
cores within seconds gives a case of some seconds the mean, too.
"""
import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass, field


@dataclass
class Case:
    name: str  # what floors.py calls it
    who: str  # whose figure it is: peftd, llama, PEFT, machine ...
    what: str
    unit: str
    run: object = field(repr=False, default=None)
    values: list = field(default_factory=list)
    is_limit: bool = False

    def __post_init__(self):
        if " " in self.name:
            raise ValueError(f"case {self.name!r}: floors name several cases with spaces between")

    def median(self):
        return statistics.median(self.values)


LIMITS_EVERY = 3  # a round takes the limits before every third of its other cases, and at its end


def show_progress(line):
    if sys.stderr.isatty():
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)


def one_round(cases, before, show):
    """The figure of each case, by its name."""
    found = {c.name: [] for c in cases}
    limits, others = [c for c in cases if c.is_limit], [c for c in cases if not c.is_limit]

    def take(some):
        for case in some:
            show(case)
            before()
            found[case.name].append(case.run())
    for i, case in enumerate(others):
        take([*(limits if i % LIMITS_EVERY == 0 else ()), case])
    take(limits)
    return {name: statistics.mean(values) for name, values in found.items()}


def in_turn(cases, n_rounds, seconds, before=lambda: None):
    """Runs them, each after before(). A slow machine leaves out all rounds but two after `seconds`."""
    end = time.monotonic() + seconds
    for k in range(n_rounds + 1):
        if k > 2 and time.monotonic() > end:
            break
        figures = one_round(cases, before, lambda case, k=k: show_progress(f"  round {k} of {n_rounds}: {case.name}"))
        for case in cases if k else ():
            case.values.append(figures[case.name])
    show_progress("")
    return cases


class Results:
    """The cases of one group, and why some are missing."""

    def __init__(self, group, title):
        self.group, self.title = group, title
        self.cases, self.missing = {}, []
        self.date = time.strftime("%Y-%m-%d %H:%M", time.gmtime())

    def add(self, cases):
        for case in cases:
            if case.name in self.cases:
                raise ValueError(f"two cases are called {case.name}")
            self.cases[case.name] = case

    def derive(self, name, who, what, unit, function, *of):
        """A case whose values come from the values of others, round by round."""
        if all(n in self.cases for n in of):
            values = [function(*v) for v in zip(*(self.cases[n].values for n in of))]
            self.add([Case(name, who, what, unit, None, values)])

    def files(self):
        """Files that a group measures one after the other, each beside limits of its own: limit/FILE/WHAT. A group may have none."""
        return {name.split("/")[1] for name in self.cases if name.startswith("limit/") and name.count("/") == 2}

    def keep(self, old):
        """Cases of an earlier run, of files that this one did not measure: all cases of a file are of one run, peers' too."""
        files = old.files() - self.files()
        self.add(case for name, case in old.cases.items() if files.intersection(name.split("/")[1:2]))

    def lacks(self, peer):
        """Notes that cases of this peer could not be measured."""
        if peer not in self.missing:
            self.missing.append(peer)

    def save(self, path, facts):
        rows = [{k: v for k, v in asdict(c).items() if k != "run"} for c in
                (Case(c.name, c.who, c.what, c.unit, None, c.values) for c in self.cases.values())]
        path.write_text(json.dumps({"group": self.group, "title": self.title, "date": self.date, "machine": facts,
                                    "missing": self.missing, "cases": rows}, indent=1))

    @classmethod
    def read(cls, path):
        data = json.loads(path.read_text())
        out = cls(data["group"], data["title"])
        out.date, out.missing = data["date"], data["missing"]
        out.add(Case(**row) for row in data["cases"])
        return out


def ratios(above, below):
    """The rounds' ratios of two cases; of figures that were taken once, their ratio."""
    n = min(len(above.values), len(below.values))
    return [a / b for a, b in zip(above.values[:n], below.values[:n])]
