"""The log of a running server: every line can be parsed, and nothing that a client sends makes a line or a field."""

import json
import re
import subprocess
import unittest
from urllib.parse import quote

from tests.integration.server import PEFTD, Server

FORGED = "\n{\"event\":\"forged\"}\ntime=2026-01-01T00:00:00.000Z level=error event=forged x=\""
WORD = re.compile(r'([a-z_]+)=("(?:[^"\\\x00-\x1f]|\\["\\n]|\\u[0-9a-f]{4})*"|[!#-<>-\[\]-~]+)(?: |$)')


def fields(line):
    """A line of words as a dict; None if it is none."""
    found, at = {}, 0
    while at < len(line):
        m = WORD.match(line, at)
        if not m or m[1] in found:
            return None
        found[m[1]] = json.loads(m[2]) if m[2].startswith('"') else m[2]
        at = m.end()
    return found


def attack(s):
    """Puts the line to forge wherever the log shows something of a client's."""
    s.request("GET", "/" + quote(FORGED))
    s.request("GET", "/v1/adapters/" + quote(FORGED))
    s.request("GET", "/healthz?" + quote(FORGED) + "=1")
    s.request("GET", "/healthz", headers={"X-Request-Id": 'a" event="forged'})
    s.request("GET", "/" + "%0A" * 900)
    s.infer({"task": FORGED, "input": "x"})
    s.infer({"task": "base", "input": FORGED})
    s.put("x", {"adapter_config.json": b'{"peft_type": ' + json.dumps(FORGED).encode() + b'}',
                "adapter_model.safetensors": b"\0"})


class Log(unittest.TestCase):
    def parsed(self, s, parse):
        lines = [line for line in s.log_text().split("\n") if line and not line.startswith("listening on http")]
        found = [parse(line) for line in lines]
        for line, f in zip(lines, found):
            self.assertIsNotNone(f, line)
            self.assertRegex(f["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
            self.assertIn(f["level"], ("error", "warn", "info"))
            self.assertNotEqual(f["event"], "forged")
        return found

    def requests(self, s, parse):
        """Those of the test; the probes before the model was open are not."""
        return [f for f in self.parsed(s, parse) if f["event"] == "request" and f["path"] != "/readyz"]

    def test_words_cannot_be_forged(self):
        with Server("bert") as s:
            attack(s)
            s.wait_for_log(rb"route=/v1/adapters/.task. path=/v1/adapters/x ")
            lines = self.requests(s, fields)
            self.assertEqual(len(lines), 7, lines)
            self.assertEqual(lines[0]["path"], "/" + FORGED)
            self.assertEqual(lines[3]["path"], "/" + "\n" * 155 + "...")
            self.assertTrue(all(line["client"] == "127.0.0.1" for line in lines))

    def test_json_cannot_be_forged(self):
        with Server("bert", "--log-format", "json") as s:
            attack(s)
            s.wait_for_log(rb'"path":"/v1/adapters/x"')
            lines = [json.loads(line) for line in s.log_text().splitlines()]  # also where it listens
            self.assertEqual(lines[0]["message"], f"listening on http://127.0.0.1:{s.port}")
            asked = self.requests(s, json.loads)
            self.assertEqual(len(asked), 7, asked)
            self.assertTrue(all(isinstance(line["status"], int) and isinstance(line["ms"], float) for line in asked))
            settings = next(line for line in lines if line["event"] == "settings")
            self.assertEqual((settings["max_queue"], settings["log_format"], settings["auth"]), (4096, "json", ""))

    def test_a_request_says_who_what_and_how_it_ended(self):
        with Server("bert") as s:
            s.infer({"task": "base", "input": "x"}, **{"X-Request-Id": "one"})
            s.infer({"task": "none", "input": "x"}, **{"X-Request-Id": "two"})
            s.request("GET", "/nowhere?secret=1", headers={"X-Request-Id": "three"})
            s.wait_for_log(rb"id=three ")
            lines = {f["id"]: f for f in self.requests(s, fields)}
            for f in lines.values():
                for gone in ("time", "level", "event", "id", "ms", "client"):
                    del f[gone]
            infer = {"method": "POST", "route": "/v1/infer", "path": "/v1/infer"}
            self.assertEqual(lines, {"one": {**infer, "task": "base", "status": "200"},
                                     "two": {**infer, "task": "none", "status": "404", "code": "unknown_task"},
                                     "three": {"path": "/nowhere", "status": "404", "code": "unknown_route"}})

    def test_probes_that_succeed_are_logged_at_debug_only(self):
        probes = ("/healthz", "/readyz", "/health", "/metrics", "/v2/health/live", "/v2/health/ready", "/v2/models/base/ready")
        for level, n in (("info", 0), ("debug", 1)):
            with Server("bert", "--log-level", level) as s:
                for path in probes:
                    self.assertEqual(s.request("GET", path, headers={"X-Request-Id": "good"}).status, 200, path)
                self.assertEqual(s.request("GET", "/v2/models/none/ready", headers={"X-Request-Id": "bad"}).status, 404)
                s.wait_for_log(rb"id=bad ")
                self.assertEqual(s.log_text().count("id=good "), n * len(probes))

    def test_a_server_that_cannot_start_says_so_in_json_too(self):
        done = subprocess.run([PEFTD, "serve", "--model", "/nope", "--log-format", "json", "--listen", "127.0.0.1:0"],
                              capture_output=True, text=True, check=False, timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(json.loads(done.stderr)["event"], "failed")


if __name__ == "__main__":
    unittest.main()
