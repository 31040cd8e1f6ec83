"""Every example of README.md and docs/*.md against the two real models with the demo's adapters (`make models`).

An example is an indented paragraph that begins with a command; the paragraphs after it that begin with `{` or `data:` are
its answer. What the answer shows is compared exactly, in order; a number counts within its printed digits, and `…` stands
for any text, any value, or any number of members.
"""

import glob
import json
import os
import re
import subprocess
import unittest
from dataclasses import dataclass

from tests.integration.server import PEFTD, ROOT, Server
from tests.support.peftd import files_of

MODELS = os.environ.get("MODELS", os.path.join(ROOT, "build", "models"))
ADAPTERS = os.path.join(ROOT, "demo", "adapters")
# The ports that the documents use, and what answers there.
SERVED = {
    8080: ("minilm", ("section", "role", "interface", "language", "purpose")),
    8081: ("smollm2/*.gguf", ("synopsis", "french", "german")),
}
COMMAND = re.compile(r"(\$ )?(curl|tar|cd)\s")
PROGRAM = re.compile(r"(\$ )?(build/)?peftd\s")
GAP = object()


@dataclass
class Number:
    """A number as it is printed."""

    text: str

    def is_near(self, got) -> bool:
        if isinstance(got, bool) or not isinstance(got, (int, float)):
            return False
        if "." not in self.text:
            return got == int(self.text)
        half = 0.5 * 10.0 ** -len(self.text.partition(".")[2])
        return abs(got - float(self.text)) <= half + 1e-6  # of a CPU level to another


class Reader:
    """JSON with gaps: `…` becomes GAP, an object a list of (key, value), a number a Number."""

    TOKEN = re.compile(r'\s*(?:("(?:[^"\\]|\\.)*")|(-?\d+(?:\.\d+)?)|(true|false|null)|([][{}:,…]))')

    def __init__(self, text):
        self.text, self.at = text, 0

    def next(self):
        m = self.TOKEN.match(self.text, self.at)
        if not m:
            raise ValueError(f"not JSON: {self.text[self.at:self.at + 40]!r}")
        self.at = m.end()
        return m

    def members(self, end, read):
        out = []
        while True:
            mark = self.at
            m = self.next()
            if m.group(4) == end:
                return out
            if m.group(4) == ",":
                continue
            self.at = mark
            out.append(read())

    def pair(self):
        m = self.next()
        if m.group(4) == "…":
            return GAP
        if self.next().group(4) != ":":
            raise ValueError(f"no colon after {m.group(1)}")
        return json.loads(m.group(1)), self.value()

    def value(self):
        text, number, word, mark = self.next().groups()
        if text is not None:
            return json.loads(text)
        if number is not None:
            return Number(number)
        if word is not None:
            return json.loads(word)
        if mark == "…":
            return GAP
        if mark == "[":
            return self.members("]", self.value)
        if mark == "{":
            return {"members": self.members("}", self.pair)}
        raise ValueError(f"unexpected {mark}")


def fits_members(expected, got, fits_one) -> bool:
    """`expected` may hold gaps; `got` is a list."""
    if not expected:
        return not got
    if expected[0] is GAP:
        return any(fits_members(expected[1:], got[i:], fits_one) for i in range(len(got) + 1))
    return bool(got) and fits_one(expected[0], got[0]) and fits_members(expected[1:], got[1:], fits_one)


def fits(expected, got) -> bool:
    if expected is GAP:
        return True
    if isinstance(expected, Number):
        return expected.is_near(got)
    if isinstance(expected, str):
        pattern = ".*".join(map(re.escape, expected.split("…")))
        return isinstance(got, str) and re.fullmatch(pattern, got, re.S) is not None
    if isinstance(expected, list):
        return isinstance(got, list) and fits_members(expected, got, fits)
    if isinstance(expected, dict):
        return isinstance(got, dict) and fits_members(
            expected["members"], list(got.items()), lambda e, g: e[0] == g[0] and fits(e[1], g[1]))
    return expected is got


def fits_text(expected: str, got: str) -> bool:
    return fits(Reader(expected).value(), json.loads(got))


@dataclass
class Example:
    place: str
    command: str
    answers: list


def deltas_together(events) -> list:
    """A stream's events with one for all pieces of text: how many come at once depends on who reads how fast."""
    text, others = "", []
    for event in filter(None, events):
        if event.startswith('data: {"delta":'):
            text += json.loads(event.removeprefix("data: "))["delta"]
        else:
            others.append(event)
    return ([f'data: {{"delta": {json.dumps(text)}}}'] if text else []) + others


def paragraphs(text):
    """(line number, indented paragraph without its indent)."""
    lines = text.split("\n") + [""]
    start = None
    for i, line in enumerate(lines):
        if line.startswith("    ") and (start is not None or i == 0 or not lines[i - 1].strip()):
            start = i if start is None else start
        elif start is not None:
            yield start + 1, "\n".join(part[4:] for part in lines[start:i])
            start = None


def documents():
    for path in [os.path.join(ROOT, "README.md"), *sorted(glob.glob(os.path.join(ROOT, "docs", "*.md")))]:
        with open(path, encoding="utf-8") as f:
            yield os.path.relpath(path, ROOT), f.read()


def examples(name, text):
    found = []
    for line, paragraph in paragraphs(text):
        if COMMAND.match(paragraph):
            found.append(Example(f"{name}:{line}", paragraph.removeprefix("$ "), []))
        elif paragraph.startswith(("{", "data:")):
            if not found:
                raise ValueError(f"{name}:{line}: an answer without a command")
            found[-1].answers.append(paragraph)
    return found


class Documents(unittest.TestCase):
    servers = {}

    @classmethod
    def setUpClass(cls):
        with open(PEFTD, "rb") as f:
            if re.search(rb"__[at]san_init", f.read()):
                raise unittest.SkipTest("real models take minutes under a sanitizer; the plain build runs the examples")
        for port, (model, tasks) in SERVED.items():
            path = glob.glob(os.path.join(MODELS, model))
            if not path:
                raise FileNotFoundError(f"no {model} in {MODELS}: make models")
            server = cls.servers[port] = Server(path[0])
            cls.addClassCleanup(server.__exit__, None, None, None)
            for task in tasks:
                answer = server.put(task, files_of(os.path.join(ADAPTERS, task)))
                if answer.status != 201:
                    raise AssertionError(f"{task}: {answer.body}")

    def run_command(self, example):
        command = re.sub(r"localhost:(\d+)", lambda m: f"127.0.0.1:{self.servers[int(m[1])].port}", example.command)
        done = subprocess.run(["bash", "-c", "set -o pipefail\n" + command], cwd=ROOT, capture_output=True, text=True,
                              timeout=120, check=False)
        self.assertEqual(done.returncode, 0, f"{example.place}: {done.stderr}")
        return done.stdout

    def test_every_example_gives_the_answer_that_is_printed(self):
        n = 0
        for name, text in documents():
            for example in examples(name, text):
                with self.subTest(example.place):
                    out = self.run_command(example)
                    got = deltas_together(out.split("\n\n")) if out.startswith("data:") else [out]
                    answers = deltas_together(example.answers)
                    for expected, part in zip(answers, got):
                        if expected != part:
                            self.assertTrue(fits_text(expected.removeprefix("data: "), part.removeprefix("data: ")),
                                            f"{example.place}\n{example.command}\nanswers\n{out}")
                    if answers:
                        self.assertEqual(len(got), len(answers), out)
                    elif out.startswith("{"):
                        self.assertNotIn("error", json.loads(out), example.place)
                    n += len(example.answers)
        self.assertGreaterEqual(n, 8)

    def test_every_form_of_input_is_taken_or_refused_as_the_table_says(self):
        text = dict(documents())["docs/api.md"]
        rows = re.findall(r"^\| `(.+)` \| (.+) \| (.+) \|$", text.split("An input is one of")[1].split("\n\n")[1], re.M)
        self.assertGreaterEqual(len(rows), 6)
        for form, *expected in rows:
            for port, task, says in zip(SERVED, ("section", "base"), expected):
                with self.subTest(form=form, task=task):
                    answer = self.servers[port].infer({"task": task, "input": json.loads(form)})
                    got = "yes" if answer.status == 200 else f"`{answer.json['error']['code']}`"
                    self.assertEqual(got, says, answer.body)

    def test_every_setting_exists(self):
        def flags(*command):
            return set(re.findall(r"--[a-z][a-z-]+", subprocess.run([PEFTD, "help", *command], capture_output=True, text=True, check=True).stdout))
        known = set().union(*map(flags, ("serve", "diff", "help")))
        for name, text in documents():
            for line, paragraph in paragraphs(text):
                if PROGRAM.match(paragraph):
                    self.assertLessEqual(set(re.findall(r"--[a-z][a-z-]+", paragraph)), known, f"{name}:{line}")
            if name == "docs/migrating.md":
                continue  # other servers' flags; ours are held by Migrating below
            for setting in re.findall(r"`(--[a-z][a-z-]+)[ `]", text):
                self.assertIn(setting, known | {"--help"}, name)


class Migrating(unittest.TestCase):
    def test_the_tables_name_settings_and_routes_that_there_are(self):
        """In the column of ours; and what is said to be absent is."""
        text = dict(documents())["docs/migrating.md"]
        help_text = subprocess.run([PEFTD, "help", "serve"], capture_output=True, text=True, check=True).stdout
        known = set(re.findall(r"(?m)^  (--[a-z-]+)", help_text))
        n = 0
        with Server("bert") as s:
            routes = {(method.upper(), path) for path, item in s.request("GET", "/openapi.json").json["paths"].items() for method in item}

            def has(route):
                method, path = route.split(" ")
                return (method, path) in routes
            for theirs, ours in re.findall(r"(?m)^\| (.+?) \| (.+?) \| .*\|$", text):
                for setting in re.findall(r"`(--[a-z-]+)", ours):
                    self.assertIn(setting, known, theirs)
                    n += 1
                for route in re.findall(r"`((?:GET|POST|PUT) /[^`]*)`", theirs if ours == "the same" else ours):
                    self.assertTrue(has(route), route)
                    n += 1
            for absent in re.findall(r"(?ms)^Absent: (.*?)\n(?:\n|\Z)", text):
                for route in re.findall(r"(?<!\()`((?:GET|POST|PUT) /[^`]*)`(?! gives)", absent):
                    self.assertFalse(has(route), route)
        self.assertGreater(n, 60)


class Comparison(unittest.TestCase):
    """The comparison above can fail."""

    def test_numbers_count_within_their_digits(self):
        for expected, got, is_right in (("0.64", "0.639587641", True), ("0.63", "0.639587641", False), ("3", "3", True),
                                        ("3", "4", False), ("0.6396", "0.6397", False), ("1", "true", False)):
            self.assertEqual(fits_text(expected, got), is_right, (expected, got))

    def test_gaps_stand_for_text_values_and_members(self):
        for expected, got, is_right in (
                ('{"a": 1, …}', '{"a": 1, "b": 2}', True), ('{"a": 1}', '{"a": 1, "b": 2}', False),
                ('{…, "c": 3}', '{"a": 1, "b": 2, "c": 3}', True), ('{"b": 2, "a": 1}', '{"a": 1, "b": 2}', False),
                ('{"a": …}', '{"a": [1]}', True), ('{"a": …}', '{"b": 1}', False), ('["x", …]', '["x"]', True),
                ('["x", …]', '["y"]', False), ('"ab…"', '"abc"', True), ('"ab…"', '"acb"', False),
                ("null", "null", True), ("null", "0", False), ("[1, 2]", "[1]", False)):
            self.assertEqual(fits_text(expected, got), is_right, (expected, got))

    def test_examples_are_found_where_they_stand(self):
        text = "Text:\n\n    $ curl a -d '\n      {}'\n\n    {\"b\": 1}\n\nMore:\n\n    {\"c\": 1}\n"
        self.assertEqual(examples("x", text), [Example("x:3", "curl a -d '\n  {}'", ['{"b": 1}', '{"c": 1}'])])


if __name__ == "__main__":
    unittest.main()
