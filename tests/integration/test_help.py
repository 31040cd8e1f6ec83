"""peftd help, the manual page and the completion of bash: made from the same tables, and usable by what reads them."""

import http.server
import re
import shutil
import socket
import subprocess
import threading
import unittest

from tests.integration.server import PEFTD, Server

FLAG = re.compile(r"--[a-z][a-z-]+")


def peftd(*args):
    return subprocess.run([PEFTD, *args], capture_output=True, text=True, timeout=60, check=False)


def rows(text):
    """The flags that a help lists as rows of its own."""
    return re.findall(r"(?m)^  (--[a-z-]+)", text)


class Help(unittest.TestCase):
    def test_every_command_has_its_help(self):
        commands = re.findall(r"(?m)^  peftd ([a-z]+)", peftd("help").stdout)
        self.assertEqual(commands, ["serve", "check", "diff", "store", "key", "health", "version", "help"])
        for command in commands:
            one = peftd("help", command)
            self.assertEqual((one.returncode, one.stderr), (0, ""))
            self.assertTrue(one.stdout.startswith(f"usage: peftd {command}"), one.stdout)
            self.assertEqual(peftd(command, "--help").stdout, one.stdout)
            self.assertEqual(peftd(command, "-h", "x").stdout, one.stdout)
            for flag in rows(one.stdout):  # what help shows is taken
                self.assertNotRegex(peftd(command, flag).stderr, "unknown|what is this|there is no", f"{command} {flag}")

    def test_what_cannot_be_helped(self):
        for args in (("help", "nothing"), ("help", "serve", "check"), ("nothing",)):
            done = peftd(*args)
            self.assertEqual((done.returncode, done.stdout), (2, ""), args)
            self.assertIn("usage: peftd ", done.stderr)
        self.assertEqual(peftd().returncode, 2)
        self.assertEqual(peftd("--help").stdout, peftd("help").stdout)
        self.assertEqual(peftd("--version").stdout, peftd("version").stdout)

    def test_the_manual_page_has_what_help_has(self):
        text = peftd("help", "--man").stdout.replace("\\-", "-").replace("\\:", "")
        for flag, value, default in re.findall(r"(?m)^  (--[a-z-]+) (\S+) .*?(?: \[(.*)\])?$", peftd("help").stdout):
            head, body = re.search(rf"(?m)^\.TP\n\\fB{flag}\\fR( .*)\n(.*)$", text).groups()
            self.assertEqual(head, f" \\fI{value}\\fR")
            self.assertEqual("(default " in body, bool(default), body)
            self.assertIn(default and f"(default {default})", body)

    def test_the_manual_page_is_without_warnings(self):
        if not shutil.which("man"):
            self.skipTest("no man")
        done = subprocess.run(["man", "--warnings=w", "--encoding=utf8", "-l", "-"], input=peftd("help", "--man").stdout,
                              capture_output=True, text=True, timeout=60, check=False, env={"MANWIDTH": "100", "PATH": "/usr/bin:/bin"})
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("--max-batch-tokens N", done.stdout)


class Health(unittest.TestCase):
    def health(self, *args):
        done = peftd("health", *args)
        self.assertEqual(bool(done.stderr), done.returncode != 0, done.stderr)
        return done.returncode

    def test_of_a_server_that_is_there(self):
        with Server("bert", "--admin-listen", "127.0.0.1:0") as s:
            admin = s.wait_for_log(rb"admin on http://([^\s]+)").group(1).decode()
            for args in (("--listen", f"127.0.0.1:{s.port}"), ("--listen", f"0.0.0.0:{s.port}"), ("--listen", f":{s.port}"),
                         ("--listen", f"localhost:{s.port}"), ("--listen", "127.0.0.1:1", "--admin-listen", admin)):
                self.assertEqual((self.health(*args), self.health("live", *args), self.health("ready", *args)), (0, 0, 0), args)

    def test_of_none(self):
        with socket.create_server(("127.0.0.1", 0)) as door:
            at = f"127.0.0.1:{door.getsockname()[1]}"
            def greet():
                with door.accept()[0] as c:
                    c.sendall(b"SSH-2.0-no\r\n")
            listener = threading.Thread(target=greet, daemon=True)
            listener.start()
            self.assertEqual(self.health("--listen", at), 1)
            listener.join()
        self.assertEqual(self.health("--listen", at), 1)
        self.assertEqual(self.health("--listen", "nowhere"), 1)
        self.assertEqual(self.health("dead"), 2)
        self.assertEqual(self.health("--tls-cert", "x"), 2)  # it would speak to a port that wants a handshake

    def test_of_one_that_is_not_ready(self):
        with http.server.HTTPServer(("127.0.0.1", 0), Unready) as other:
            thread = threading.Thread(target=other.serve_forever, daemon=True)
            thread.start()
            at = f"127.0.0.1:{other.server_port}"
            self.assertEqual((self.health("--listen", at), self.health("ready", "--listen", at)), (0, 1))
            other.shutdown()
            thread.join()


class Unready(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(503 if self.path == "/readyz" else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


class Completion(unittest.TestCase):
    def complete(self, *words):
        """What bash offers for the last word."""
        script = peftd("help", "--bash").stdout + '\nCOMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _peftd; printf "%s\\n" "${COMPREPLY[@]}"'
        done = subprocess.run(["bash", "-uc", "compopt() { :; }\n" + script, "bash", "peftd", *words], capture_output=True, text=True,
                              timeout=60, check=False, cwd="/")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.split()

    def test_commands_flags_and_words(self):
        self.assertEqual(self.complete("ser"), ["serve"])
        self.assertEqual(self.complete("serve", "--log"), ["--log-level", "--log-format"])
        self.assertEqual(self.complete("serve", "--log-format", ""), ["text", "json"])
        self.assertEqual(self.complete("store", "v"), ["verify"])
        self.assertEqual(self.complete("help", "ch"), ["check"])
        self.assertEqual(self.complete("diff", "--t"), ["--tuned"])
        self.assertEqual(self.complete("serve", "--max-queue", ""), [])

    def test_paths(self):
        self.assertIn("etc", self.complete("serve", "--store", "et"))
        self.assertIn("etc", self.complete("check", "et"))
        self.assertEqual(self.complete("store", "--listen"), [])

    def test_a_command_offers_the_flags_of_its_help(self):
        for command in ("serve", "check", "store", "diff", "help", "key"):
            offered = [w for w in self.complete(command, "--") if FLAG.fullmatch(w)]
            self.assertEqual(offered, rows(peftd("help", command).stdout))


if __name__ == "__main__":
    unittest.main()
