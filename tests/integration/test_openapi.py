"""docs/openapi.yaml and docs/api.md against the server's own tables: routes, query, parameters.

The standard library reads no YAML, so this reads the file by its lines: a path has two spaces in front, a method four, a
parameter is one line with `in: query`.
"""

import os
import re
import sys
import unittest

from tests.integration.server import ROOT, Server

sys.path.insert(0, os.path.join(ROOT, "tools"))
import yamlsubset  # noqa: E402  (a tool of the build, not a package)


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as f:
        return f.read()


def server_routes():
    """{(method, path): {names of its query}} of server/routes.c."""
    rows = re.findall(r'\{AUTH_\w+,\s+"([A-Z]+)", "([^"]+)", \w+,\s+(?:NULL|"([^"]*)"),', read("server", "routes.c"))
    return {(method, path): set(query.split()) for method, path, query in rows}


def described_routes(text):
    """The same of an OpenAPI file."""
    found, path, method = {}, None, None
    for line in text.partition("\npaths:\n")[2].partition("\ncomponents:\n")[0].split("\n"):
        if m := re.fullmatch(r"  (/\S*):", line):
            path = m[1]
        elif m := re.fullmatch(r"    (get|put|post|patch|delete|head|options):", line):
            method = m[1].upper()
            found[method, path] = set()
        elif m := re.search(r"\{name: ([\w-]+), in: query\b", line):
            found[method, path].add(m[1])
    return found


class OpenApi(unittest.TestCase):
    def setUp(self):
        self.text = read("docs", "openapi.yaml")

    def test_every_route_is_described_and_every_described_route_is_there(self):
        self.assertGreaterEqual(len(server_routes()), 9)
        self.assertEqual(described_routes(self.text), server_routes())

    def test_every_route_is_in_the_text(self):
        text = read("docs", "api.md")
        for method, path in server_routes():
            self.assertRegex(text, rf"{method} {re.escape(path)}[`?\n]")

    def test_every_parameter_is_described_and_every_described_one_is_there(self):
        table = read("server", "api", "infer_params.c").partition("params[] = {")[2].partition("};")[0]
        names = re.findall(r'\{"(\w+)", [A-Z]', table)
        self.assertGreaterEqual(len(names), 20)
        schema = self.text.partition("\n    Parameters:\n")[2].partition("\n    Call:\n")[0]
        self.assertEqual(sorted(re.findall(r"^        (\w+): \{", schema, re.M)), sorted(names))
        rows = read("docs", "api.md").partition("### Parameters")[2].partition("### ")[0]
        self.assertEqual(sorted(name for row in re.findall(r"^\| (`.+?) \|", rows, re.M)
                                for name in re.findall(r"`(\w+)`", row)), sorted(names))

    def test_every_reference_leads_somewhere(self):
        wanted = set(re.findall(r"#/components/(\w+)/(\w+)", self.text))
        components = self.text.partition("\ncomponents:\n")[2]
        there, section = set(), None
        for line in components.split("\n"):
            if m := re.fullmatch(r"  (\w+):", line):
                section = m[1]
            elif m := re.match(r"    (\w+):", line):
                there.add((section, m[1]))
        self.assertGreater(len(wanted), 5)
        self.assertEqual(wanted, {entry for entry in there if entry[0] != "securitySchemes"})  # those are named without a path


class Served(unittest.TestCase):
    def test_the_server_serves_this_file(self):
        with Server("bert") as s:
            answer = s.request("GET", "/openapi.json")
            self.assertEqual((answer.status, answer.headers["Content-Type"]), (200, "application/json"))
            self.assertEqual(answer.json, yamlsubset.load(read("docs", "openapi.yaml")))
            self.assertEqual({(m.upper(), path) for path, item in answer.json["paths"].items() for m in item if m != "parameters"},
                             set(server_routes()))
            page = s.request("GET", "/docs")
            self.assertEqual((page.status, page.headers["Content-Type"]), (200, "text/html; charset=utf-8"))
            self.assertEqual(re.findall(rb"(?:src|href)=\"([^\"]*)", page.body), [b"/openapi.json"])
            self.assertNotIn(b"http", page.body)


class Yaml(unittest.TestCase):
    """tools/yamlsubset.py: what it reads, and that it refuses the rest."""

    def test_what_the_file_uses_is_read(self):
        for text, value in (("a: 1\nb:\n  c: [x, 'y: z', {k: v}]\n", {"a": 1, "b": {"c": ["x", "y: z", {"k": "v"}]}}),
                            ("- {a: null, b: true, c: 'null'}\n- x y\n", [{"a": None, "b": True, "c": "null"}, "x y"]),
                            ("a:\n  - b: 1\n    c: 2\n  - d: it's\n", {"a": [{"b": 1, "c": 2}, {"d": "it's"}]}),
                            ("'200': {$ref: '#/a/b'}\nx: 0.5\ny: -3\n", {"200": {"$ref": "#/a/b"}, "x": 0.5, "y": -3}),
                            ("a:\nb: 'it''s'\n# a comment\n", {"a": None, "b": "it's"}), ("a: {}\nb: []\n", {"a": {}, "b": []})):
            self.assertEqual(yamlsubset.load(text), value, text)

    def test_what_it_does_not_know_is_an_error(self):
        for text in ("a: |\n  b\n", "a: &x 1\n", "a: *x\n", "a: 1\na: 2\n", "a: {b: 1, b: 2}\n", "a: [1\n", "a: {b: c} d\n", "a: b: c\n",
                     "a: 1\n  b: 2\n", "a: \"\\n\"\n", "a: x # y\n", "just text\n", "a:\n  b: 1\n c: 2\n", "a: !!int 1\n"):
            with self.assertRaises(yamlsubset.Unreadable, msg=text):
                yamlsubset.load(text)

    def test_it_agrees_with_a_whole_reader(self):
        try:
            import yaml
        except ImportError:
            self.skipTest("PyYAML is not installed")
        text = read("docs", "openapi.yaml")
        self.assertEqual(yamlsubset.load(text), yaml.safe_load(text))


class Reading(unittest.TestCase):
    def test_a_described_route_is_read_with_its_query(self):
        text = ("\npaths:\n  /a/{task}:\n    parameters:\n    get:\n      parameters:\n"
                "        - {name: limit, in: query, schema: {}}\n    put:\n\ncomponents:\n  /b:\n    get:\n")
        self.assertEqual(described_routes(text), {("GET", "/a/{task}"): {"limit"}, ("PUT", "/a/{task}"): set()})


if __name__ == "__main__":
    unittest.main()
