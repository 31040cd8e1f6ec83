"""docs/openapi.yaml and docs/api.md against the server's own tables: routes, query, parameters.

The standard library reads no YAML, so this reads the file by its lines: a path has two spaces in front, a method four, a
parameter is one line with `in: query`.
"""

import os
import re
import unittest

from tests.integration.server import ROOT


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as f:
        return f.read()


def server_routes():
    """{(method, path): {names of its query}} of server/routes.c."""
    rows = re.findall(r'\{"([A-Z]+)", "([^"]+)", \w+,\s+(?:NULL|"([^"]*)"),', read("server", "routes.c"))
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
        self.assertEqual(wanted, there)


class Reading(unittest.TestCase):
    def test_a_described_route_is_read_with_its_query(self):
        text = ("\npaths:\n  /a/{task}:\n    parameters:\n    get:\n      parameters:\n"
                "        - {name: limit, in: query, schema: {}}\n    put:\n\ncomponents:\n  /b:\n    get:\n")
        self.assertEqual(described_routes(text), {("GET", "/a/{task}"): {"limit"}, ("PUT", "/a/{task}"): set()})


if __name__ == "__main__":
    unittest.main()
