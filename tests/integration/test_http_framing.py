"""Where a request ends: bytes that can be read in two ways never run as a request of their own, plain or within TLS."""

import json
import unittest

from tests.integration.server import Server
from tests.integration.tls import Authority, TlsServer

BODY = json.dumps({"task": "base", "input": "x"}).encode()
# What an attacker hides behind a questionable head. It must not run.
HIDDEN = b"DELETE /v1/adapters/victim HTTP/1.1\r\nHost: x\r\n\r\n"


def post(*lines):
    return b"\r\n".join((b"POST /v1/infer HTTP/1.1", b"Host: x", *lines)) + b"\r\n\r\n"


class Framing(unittest.TestCase):
    @classmethod
    def start(cls):
        return Server("bert")

    @classmethod
    def setUpClass(cls):
        cls.s = cls.start()
        cls.s.put_cell("victim", "bert-peft-lora")

    @classmethod
    def tearDownClass(cls):
        cls.s.__exit__(None, None, None)

    def refuse(self, head, param=None):
        """The head alone, then behind a request that is in order: one 400, and that is the last."""
        for before in (b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"):
            answer = self.s.talk(before + head + HIDDEN)
            answers = answer.split(b"HTTP/1.1 ")[1:]
            self.assertEqual(len(answers), 1 + bool(before), (head, answer))
            self.assertTrue(answers[-1].startswith(b"400 "), (head, answer))
            self.assertIn(b"\r\nConnection: close\r\n", answers[-1], head)
            self.assertIn(b"\r\nX-Request-Id: req-", answers[-1], head)
            error = json.loads(answers[-1].partition(b"\r\n\r\n")[2])["error"]
            self.assertEqual((error["code"], error["param"]), ("bad_field", param), head)
        self.assertEqual(self.s.request("GET", "/v1/adapters/victim").status, 200, head)

    def test_a_content_length_that_is_no_plain_number(self):
        for value in (b"\r\n 44", b" 4\r\n 1", b" 4\r\n\t1", b" +4", b" 0x4", b" 4,4", b" 4 4", b" 4 ", b"", b" -1", b" 4.0",
                      b" 99999999999999999999"):
            folded = b"\r\n" in value and value[:2] != b"\r\n"
            self.refuse(post(b"Content-Length:" + value), None if folded else "Content-Length")

    def test_several_content_lengths(self):
        for second in (b"Content-Length: 5", b"Content-Length: 4", b"content-length: 0"):
            self.refuse(post(b"Content-Length: 4", second), "Content-Length")

    def test_a_transfer_encoding_that_is_not_exactly_chunked(self):
        for value in (b"\r\n chunked", b" gzip, chunked", b" chunked, chunked", b" xchunked", b" chunkedx", b" identity",
                      b" chunked;q=1", b" \"chunked\"", b" chunked ", b""):
            self.refuse(post(b"Transfer-Encoding:" + value), "Transfer-Encoding")
        self.refuse(post(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"), "Transfer-Encoding")
        self.refuse(post(b"Transfer-Encoding: chunked\r\n , gzip"))

    def test_both_framings_at_once(self):
        self.refuse(post(b"Content-Length: 4", b"Transfer-Encoding: chunked"), "Transfer-Encoding")
        self.refuse(post(b"Transfer-Encoding: chunked", b"Content-Length: 4"), "Transfer-Encoding")

    def test_any_folded_header(self):
        self.refuse(post(b"X-A: b\r\n c"))
        self.refuse(b"GET /healthz HTTP/1.1\r\n X: y\r\nHost: x\r\n\r\n")

    def test_a_line_that_ends_in_lf_alone(self):
        for head in (b"GET /healthz HTTP/1.1\nHost: x\r\n\r\n", b"GET /healthz HTTP/1.1\r\nHost: x\n\r\n",
                     b"GET /healthz HTTP/1.1\r\nHost: x\r\n\n", b"GET /healthz HTTP/1.1\nHost: x\n\n",
                     b"GET /healthz HTTP/1.1\r\nHost: x\rX: y\r\n\r\n"):
            self.refuse(head)

    def test_a_nul_or_another_control_character(self):
        for c in (b"\0", b"\x01", b"\x0b", b"\x7f"):
            self.refuse(post(b"X-A: b" + c + b"c"))
            self.refuse(post(b"X-A" + c + b": b"))
            self.refuse(b"GET /healthz" + c + b" HTTP/1.1\r\nHost: x\r\n\r\n")

    def test_names_that_are_none(self):
        for line in (b"Content-Length : 4", b": x", b"no colon", b"a b: c", b"(x): y"):
            self.refuse(post(line))

    def test_a_first_line_that_is_none(self):
        for line in (b"GET", b"GET /", b"GET  / HTTP/1.1", b"GET / HTTP/1.1 ", b"GET / HTTP/2.0", b"GET healthz HTTP/1.1",
                     b"GET http://a@h/healthz HTTP/1.1", b"GET ftp://h/healthz HTTP/1.1"):
            self.refuse(line + b"\r\nHost: x\r\n\r\n")

    def test_where_the_network_cuts_does_not_matter(self):
        head = post(b"Content-Length: 4\r\n 1") + HIDDEN
        with self.s.raw(30) as c:
            for i in range(len(head)):
                try:
                    c.sendall(head[i:i + 1])
                except OSError:
                    break
            answer = b""
            try:
                while piece := c.recv(65536):
                    answer += piece
            except ConnectionResetError:
                pass
        self.assertEqual(answer.count(b"HTTP/1.1 "), 1, answer)
        self.assertTrue(answer.startswith(b"HTTP/1.1 400 "), answer)

    def test_a_head_that_is_too_large_is_answered_like_any_other_error(self):
        """libmicrohttpd's own page of HTML is never seen: at the limits of the guard its memory has room for all of it."""
        line = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
        kib = 1024
        for code, status, fits, head in (
                ("head_too_large", b"431", 31 * kib, lambda n: line + b"X-A: " + b"a" * n + b"\r\n\r\n"),
                ("head_too_large", b"431", 98, lambda n: line + b"X: y\r\n" * n + b"\r\n"),
                ("head_too_large", b"431", 15 * kib, lambda n: line + b"Cookie: a=" + b"a" * n + b"\r\n\r\n"),
                ("head_too_large", b"431", 97, lambda n: line + b"Cookie: " + b"a=" + b"x" * 150 + b"; a=1" * n + b"\r\n\r\n"),
                ("head_too_large", b"431", 150,
                 lambda n: line + b"".join(b"X-%d: %b\r\n" % (i, b"v" * n) for i in range(60)) + b"Cookie: " + b"a=b;" * 30 + b"\r\n\r\n"),
                ("target_too_long", b"414", 31 * kib, lambda n: b"GET /healthz/" + b"a" * n + b" HTTP/1.1\r\nHost: x\r\n\r\n"),
                ("target_too_long", b"414", 97, lambda n: b"GET /v1/adapters?" + b"a&" * n + b" HTTP/1.1\r\nHost: x\r\n\r\n")):
            answer = self.s.talk(head(fits)[:-2] + b"Connection: close\r\n\r\n")
            self.assertRegex(answer, rb"^HTTP/1.1 (200|404|400) ", (status, fits))
            self.assertIn(b"X-Request-Id: req-", answer)
            for n in (fits * 5, fits * 50):
                try:
                    answer = self.s.talk(head(n) + HIDDEN)
                except ConnectionResetError: # sent while the server had closed already
                    continue
                self.assertEqual(answer.count(b"HTTP/1.1 "), 1, answer)
                self.assertTrue(answer.startswith(b"HTTP/1.1 " + status), answer)
                self.assertEqual(json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"], code)
                self.assertIn(b"X-Request-Id: req-", answer)
        self.assertEqual(self.s.request("GET", "/v1/adapters/victim").status, 200)

    def test_a_damaged_chunk_ends_the_connection(self):
        for chunk in (b"zz\r\n", b"1\nx\r\n0\r\n\r\n", b"1 \r\nx\r\n", b"1\r\nxy\r\n", b"-1\r\n", b"1;a\nb\r\nx\r\n0\r\n\r\n",
                      b"0\r\nContent-Length: 5\r\n\r\n"):
            with self.s.raw(30) as c:
                c.sendall(post(b"Transfer-Encoding: chunked") + chunk + HIDDEN)
                try:
                    answer = b"".join(iter(lambda: c.recv(65536), b""))
                except ConnectionResetError:
                    answer = b""
            self.assertNotIn(b"HTTP/1.1 2", answer, chunk)
        self.assertEqual(self.s.request("GET", "/v1/adapters/victim").status, 200)

    def test_absolute_targets_are_valid(self):
        for target, status in ((b"http://x/healthz", b"200"), (b"HTTP://example.org:8080/healthz", b"200"),
                               (b"https://[::1]/readyz", b"200"), (b"http://x", b"404"),
                               (b"http://x/v1/adapters?limit=1", b"200"), (b"http://x/v1/adapters?limt=1", b"400"),
                               (b"http://x/http://x/healthz", b"404")):
            answer = self.s.talk(b"GET " + target + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            self.assertEqual(answer[9:12], status, (target, answer))

    def test_what_is_in_order_is_served_request_after_request(self):
        chunks = b"".join(b"%x;note=1\r\n%b\r\n" % (1, BODY[i:i + 1]) for i in range(len(BODY))) + b"0\r\nX-T: 1\r\n\r\n"
        stream = b""
        for _ in range(3):
            stream += post(b"Content-Length: %d" % len(BODY)) + BODY
            stream += post(b"transfer-encoding:\tChunked") + chunks
            stream += b"\r\nGET /healthz HTTP/1.1\r\nHost: x\r\nX-Empty:\r\nX-Utf8: \xc3\xa9\r\n\r\n"
        stream += b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        answer = self.s.talk(stream)
        self.assertEqual(answer.count(b"HTTP/1.1 200 "), 10, answer)
        self.assertEqual(answer.count(b"HTTP/1.1 "), 10, answer)


class FramingWithinTls(Framing):
    @classmethod
    def start(cls):
        cls.authority = Authority()
        return TlsServer("bert", cls.authority, cls.authority.issue("server"))


if __name__ == "__main__":
    unittest.main()
