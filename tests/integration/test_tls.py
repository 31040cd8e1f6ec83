"""TLS: what is offered, certificates that change, clients that need one, and what is no TLS at all."""

import http.client
import json
import os
import random
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import warnings
from concurrent.futures import ThreadPoolExecutor

from tests.integration.server import PEFTD, ROOT, Server, adapter_files
from tests.integration.tls import Authority, TlsServer, context

BASE = "bert"
CELL = "bert-peft-lora"
GOOD = ("AES256-GCM-SHA384", "CHACHA20-POLY1305", "AES128-GCM-SHA256")
GOOD_13 = {"TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256"}
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


def read_all(c):
    """Until the other side closes, whichever way."""
    out = b""
    try:
        while piece := c.recv(65536):
            out += piece
    except OSError:
        pass
    return out


class Made(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        warnings.simplefilter("ignore", DeprecationWarning)  # we ask for old versions on purpose
        cls.authority = Authority()
        cls.files = cls.authority.issue("one")


class OfferTest(Made):
    def accepts(self, s, how):
        """What was agreed on, or None if the server ended the handshake."""
        try:
            with s.wrap(how) as c:
                c.sendall(HEALTH)
                self.assertTrue(c.recv(12).startswith(b"HTTP/1.1 200"))
                return c.version(), c.cipher()[0]
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionResetError):  # what this side lacks is another error
            return None

    def test_protocols_are_tls_1_2_and_1_3_and_no_others(self):
        with TlsServer(BASE, self.authority, self.files) as s:
            for version in ("TLSv1", "TLSv1_1", "TLSv1_2", "TLSv1_3"):
                got = self.accepts(s, context(self.authority, version=ssl.TLSVersion[version], ciphers="ALL:@SECLEVEL=0"))
                if version in ("TLSv1", "TLSv1_1"):
                    self.assertIsNone(got, version)
                else:
                    self.assertEqual(got[0], version.replace("_", "."))

    def test_ciphers_are_ephemeral_and_authenticated_and_no_others(self):
        names = {c["name"] for c in context(self.authority, ciphers="ALL:COMPLEMENTOFALL:!PSK:!SRP:@SECLEVEL=0").get_ciphers()
                 if c["protocol"] != "TLSv1.3"}
        self.assertGreater(len(names), 50)
        for kind, prefix in (("ec", "ECDHE-ECDSA-"), ("rsa", "ECDHE-RSA-")):
            with TlsServer(BASE, self.authority, self.authority.issue("cipher-" + kind, kind=kind)) as s:
                good = {name for name in names if self.accepts(s, context(
                    self.authority, version=ssl.TLSVersion.TLSv1_2, ciphers=name + ":@SECLEVEL=0"))}
                self.assertEqual(good, {prefix + end for end in GOOD})

    def test_the_ciphers_of_tls_1_3(self):
        with TlsServer(BASE, self.authority, self.files) as s:
            for name in sorted(GOOD_13 | {"TLS_AES_128_CCM_SHA256", "TLS_AES_128_CCM_8_SHA256"}):
                r = subprocess.run(["openssl", "s_client", "-connect", f"127.0.0.1:{s.port}", "-tls1_3", "-ciphersuites", name],
                                   input=b"", capture_output=True, check=False, timeout=60)
                self.assertEqual(b"Cipher is " + name.encode() in r.stdout, name in GOOD_13, (name, r.stdout))


    def test_the_table_of_the_offer_is_what_it_should_be(self):
        with TlsServer(BASE, self.authority, self.files) as s:
            done = subprocess.run([sys.executable, os.path.join(ROOT, "tools", "tls_table.py"), f"127.0.0.1:{s.port}"], capture_output=True,
                                  text=True, check=True, timeout=300)
        rows = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in done.stdout.strip().split("\n")[2:]]
        self.assertEqual([row[:2] for row in rows], [("TLS 1.0", "not offered"), ("TLS 1.1", "not offered"), *(
            ("TLS 1.2", "ECDHE-ECDSA-" + end) for end in GOOD), *(("TLS 1.3", "TLS_" + end) for end in (
                "AES_256_GCM_SHA384", "CHACHA20_POLY1305_SHA256", "AES_128_GCM_SHA256"))])
        self.assertTrue({row[2] for row in rows[2:]} <= {"X25519", "prime256v1", "secp384r1", "secp521r1"}, rows)


class ServeTest(Made):
    def test_everything_is_served_as_without_tls(self):
        with TlsServer(BASE, self.authority, self.files, "--admin-listen", "127.0.0.1:0") as s:
            self.assertIn(f"listening on https://127.0.0.1:{s.port}\n", s.log_text())
            self.assertRegex(s.log_text(), r'event=tls file=\S+one\.pem until=20\d\d-\d\d-\d\d client_certificates=off')
            self.assertRegex(s.log_text(), r" tls_cert=\S+one\.pem tls_key=\S+one\.key ")
            self.assertEqual(s.put_cell("a", CELL).status, 201)
            files = s.request("GET", "/v1/adapters/a/files")
            self.assertEqual(files.status, 200)
            self.assertGreater(len(files.body), 10000)
            one = {"task": "a", "input": {"tokens": [2, 5, 3]}}
            expected = s.infer(one)
            self.assertEqual(expected.status, 200)
            connection = s.connect()
            for _ in range(20):  # one connection, and bodies over several records
                connection.request("POST", "/v1/infer", json.dumps(one) + " " * 100000)
                a = connection.getresponse()
                self.assertEqual(json.loads(a.read())["output"], expected.json["output"])
            connection.close()
            admin = int(s.wait_for_log(rb"admin on http://[^:]+:(\d+)").group(1))  # stays plain
            plain = http.client.HTTPConnection("127.0.0.1", admin, timeout=30)
            plain.request("GET", "/healthz")
            self.assertEqual(plain.getresponse().status, 200)
            plain.close()

    def test_a_stream_arrives_token_by_token(self):
        with TlsServer("llama", self.authority, self.files, "--context-max", "100000", "--kv-bytes", "1GiB") as s:
            connection = s.connect()
            one = {"task": "base", "input": {"tokens": [5]}, "parameters": {"max_tokens": 200, "ignore_eos": True}}
            connection.request("POST", "/v1/infer", json.dumps({**one, "stream": True}))
            a = connection.getresponse()
            events = [e.removeprefix("data: ") for e in a.read().decode().split("\n\n") if e]
            self.assertEqual((a.status, events[-1]), (200, "[DONE]"))
            text = "".join(json.loads(e).get("delta", "") for e in events[:-1])
            self.assertEqual(text, s.infer(one).json["output"]["text"])
            connection.close()

    def test_what_was_answered_early_still_gets_its_answer(self):
        with TlsServer(BASE, self.authority, self.files, "--max-upload-bytes", "1MiB") as s:
            with s.raw() as c:
                c.sendall(b"PUT /v1/adapters/a HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-tar\r\n"
                          b"Content-Length: 9000000\r\n\r\n")
                try:
                    for _ in range(90):
                        c.sendall(b"x" * 100000)
                except OSError:
                    pass
                self.assertTrue(read_all(c).startswith(b"HTTP/1.1 413 "))


class ResumeTest(Made):
    def talk(self, s, how, session=None):
        """(the session for later, was it resumed)"""
        with how.wrap_socket(s.plain(), server_hostname="127.0.0.1", session=session) as c:
            c.sendall(HEALTH)
            self.assertTrue(c.recv(100).startswith(b"HTTP/1.1 200 "))  # with 1.3 the ticket has come by now
            return c.session, c.session_reused

    def test_a_session_is_resumed_until_the_certificates_are_read_again(self):
        with TlsServer(BASE, self.authority, self.files) as s:
            for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
                how = context(self.authority, version=version)
                session, resumed = self.talk(s, how)
                self.assertFalse(resumed)
                for _ in range(3):
                    session, resumed = self.talk(s, how, session)
                    self.assertTrue(resumed, version)
                before = s.log_text().count("info event=tls file=")
                s.process.send_signal(signal.SIGHUP)
                s.wait_until(lambda n=before: s.log_text().count("info event=tls file=") > n)
                session, resumed = self.talk(s, how, session)
                self.assertFalse(resumed, version)
                self.assertTrue(self.talk(s, how, session)[1], version)

    def test_no_early_data_is_taken(self):
        with TlsServer(BASE, self.authority, self.files) as s:
            r = subprocess.run(["openssl", "s_client", "-connect", f"127.0.0.1:{s.port}", "-tls1_3", "-ign_eof"],
                               input=b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", capture_output=True, check=False, timeout=60)
            self.assertIn(b"Max Early Data: 0", r.stdout)

    def test_a_client_with_a_certificate_shows_it_each_time(self):
        clients = Authority("clients")
        good = clients.issue("good", "clientAuth")
        with TlsServer(BASE, self.authority, self.files, "--tls-client-ca", clients.cert, client=good) as s:
            for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
                how = context(self.authority, good, version)
                session, resumed = self.talk(s, how)
                self.assertFalse(resumed)
                try:
                    session, resumed = self.talk(s, how, session)
                except ValueError:  # no ticket: there is no session to resume
                    resumed = False
                self.assertFalse(resumed, version)


class FilesTest(Made):
    def start(self, *args):
        """(exit status, standard error) of a server that must not start."""
        with tempfile.TemporaryDirectory() as store:
            r = subprocess.run([PEFTD, "serve", "--model", os.path.join(ROOT, "tests/golden/bases", BASE), "--listen",
                                "127.0.0.1:0", "--store", store, *args], capture_output=True, text=True, timeout=60, check=False)
        return r.returncode, r.stderr

    def test_a_server_with_damaged_files_does_not_start(self):
        other_key = self.authority.issue("other")[1]
        text = self.authority.path("text")
        with open(text, "w", encoding="ascii") as f:
            f.write("no certificate\n")
        big = self.authority.path("big")
        with open(big, "wb") as f:
            f.truncate(2 << 20)
        cert, key = self.files
        for args, status, words in (
                (("--tls-cert", cert), 2, ("--tls-key",)),
                (("--tls-key", key), 2, ("--tls-cert",)),
                (("--tls-client-ca", self.authority.cert), 2, ("--tls-cert",)),
                (("--tls-cert", cert + "x", "--tls-key", key), 1, ("--tls-cert", cert + "x", "No such file")),
                (("--tls-cert", cert, "--tls-key", other_key), 1, ("--tls-key", other_key, "not the key of --tls-cert")),
                (("--tls-cert", text, "--tls-key", key), 1, ("--tls-cert", text)),
                (("--tls-cert", big, "--tls-key", key), 1, ("--tls-cert", big, "large")),
                (("--tls-cert", "/dev/zero", "--tls-key", key), 1, ("--tls-cert", "/dev/zero", "large")),
                (("--tls-cert", cert, "--tls-key", text), 1, ("--tls-key", text)),
                (("--tls-cert", cert, "--tls-key", self.authority.dir), 1, ("--tls-key", "directory")),
                (("--tls-cert", cert, "--tls-key", key, "--tls-client-ca", text), 1, ("--tls-client-ca", text))):
            got = self.start(*args)
            self.assertEqual(got[0], status, (args, got))
            for word in words:
                self.assertIn(word, got[1].splitlines()[0] if status == 2 else got[1], args)

    def test_check_reads_the_files(self):
        cert, key = self.files
        how = [PEFTD, "check", "--tls-cert", cert, "--tls-key"]
        r = subprocess.run([*how, key], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual((r.returncode, r.stderr), (0, ""))
        self.assertRegex(r.stdout, r'^tls: \S+one\.pem, valid until 20\d\d-\d\d-\d\d, client certificates off\n$')
        r = subprocess.run([*how, cert], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(r.returncode, 1)
        self.assertIn(f"--tls-key {cert}: ", r.stderr)

    def test_a_key_that_everybody_may_read_and_an_expired_certificate_are_said(self):
        cert, key = self.authority.issue("open")
        old = self.authority.issue("old", days=-1)
        os.chmod(key, 0o644)
        with TlsServer(BASE, self.authority, (cert, key)) as s:
            self.assertRegex(s.log_text(), r'warn event=tls warning="everybody may read the key" file=\S+open\.key')
            self.assertNotIn("not valid today", s.log_text())
            shutil.copy(old[0], cert)
            shutil.copy(old[1], key)
            s.process.send_signal(signal.SIGHUP)
            s.wait_for_log(rb'warn event=tls warning="the certificate is not valid today"')
        with TlsServer(BASE, self.authority, self.files) as s:
            self.assertNotIn("warn", s.log_text())


class ChangeTest(Made):
    def setUp(self):
        self.pairs = [self.authority.issue(name) for name in ("first", "second")]
        self.dir = tempfile.TemporaryDirectory(prefix="peftd-tls-")
        self.addCleanup(self.dir.cleanup)
        self.files = [os.path.join(self.dir.name, name) for name in ("cert.pem", "key.pem")]

    def put(self, cert, key):
        for source, path in zip((cert, key), self.files):
            shutil.copy(source, path + ".new")
            os.rename(path + ".new", path)

    def reload(self, s, line):
        before = s.log_text().count(line)
        s.process.send_signal(signal.SIGHUP)
        s.wait_until(lambda: s.log_text().count(line) > before, what=line)

    def shown(self, s):
        """Whose certificate a new connection sees."""
        with s.raw() as c:
            return dict(pair[0] for pair in c.getpeercert()["subject"])["commonName"]

    def test_what_does_not_read_or_match_leaves_the_old_one_in_force(self):
        self.put(*self.pairs[0])
        with TlsServer(BASE, self.authority, self.files) as s:
            self.put(self.pairs[1][0], self.pairs[0][1])
            self.reload(s, f'error event=tls error="--tls-key {self.files[1]}: not the key of --tls-cert"')
            self.assertEqual(self.shown(s), "first")
            os.unlink(self.files[0])
            self.reload(s, f'error event=tls error="--tls-cert {self.files[0]}: No such file or directory"')
            self.assertEqual(self.shown(s), "first")
            self.put(*self.pairs[1])
            self.assertEqual(self.shown(s), "first")  # not before the signal
            self.reload(s, "info event=tls file=")
            self.assertEqual(self.shown(s), "second")

    def test_certificates_change_under_load_without_a_failed_request(self):
        self.put(*self.pairs[0])
        failures, seen, n, done = [], set(), [0], threading.Event()

        def ask(keeps):
            connection = None
            while not done.is_set():
                try:
                    if not connection:
                        connection = s.connect()
                        connection.connect()
                        seen.add(connection.sock.getpeercert()["serialNumber"])
                    connection.request("POST", "/v1/infer", json.dumps({"task": "base", "input": {"tokens": [2, 5, 3]}}))
                    a = connection.getresponse()
                    a.read()
                    if a.status != 200:
                        failures.append(a.status)
                    n[0] += 1
                    if not keeps:
                        connection.close()
                        connection = None
                except OSError as e:
                    failures.append(repr(e))
                    connection = None
            if connection:
                connection.close()

        with TlsServer(BASE, self.authority, self.files) as s:
            threads = [threading.Thread(target=ask, args=(i % 2,)) for i in range(6)]
            for t in threads:
                t.start()
            for i in range(30):
                self.put(*self.pairs[(i + 1) % 2])
                self.reload(s, "info event=tls file=")
            done.set()
            for t in threads:
                t.join()
        self.assertEqual(failures, [])
        self.assertEqual(len(seen), 2)
        self.assertGreater(n[0], 30)


class ClientTest(Made):
    def refused(self, s, client, version, reason):
        """The handshake, or with 1.3 the first read after it, ends with the alert."""
        with self.assertRaises(ssl.SSLError) as caught:
            with s.wrap(context(self.authority, client, version)) as c:
                c.recv(100)  # nothing is sent: what the server leaves unread may cost the alert
        self.assertIn(reason, str(caught.exception).upper().replace(" ", "_"))

    def test_a_client_shows_a_certificate_of_the_authority_or_is_refused_in_the_handshake(self):
        clients, others = Authority("clients"), Authority("clients")
        good = clients.issue("good", "clientAuth")
        with TlsServer(BASE, self.authority, self.files, "--tls-client-ca", clients.cert, client=good) as s:
            self.assertIn("client_certificates=required", s.log_text())
            self.assertEqual(s.put_cell("a", CELL).status, 201)
            for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
                is_13 = version == ssl.TLSVersion.TLSv1_3
                with s.wrap(context(self.authority, good, version)) as c:
                    c.sendall(HEALTH)
                    self.assertTrue(c.recv(100).startswith(b"HTTP/1.1 200 "))
                for client, reason in ((None, "CERTIFICATE_REQUIRED" if is_13 else "HANDSHAKE_FAILURE"),
                                       (others.issue("stranger", "clientAuth"), "UNKNOWN_CA"),
                                       (self.authority.issue("known", "clientAuth"), "UNKNOWN_CA"),
                                       (clients.issue("old", "clientAuth", days=-1), "CERTIFICATE_EXPIRED"),
                                       (clients.issue("a-server", "serverAuth"), "BAD_CERTIFICATE")):
                    self.refused(s, client, version, reason)
            self.assertEqual(s.log_text().count("event=tls refused=client reason="), 10)

    def test_the_authority_changes_with_the_signal(self):
        before, after = Authority("before"), Authority("after")
        ca = self.authority.path("clients.pem")
        shutil.copy(before.cert, ca)
        with TlsServer(BASE, self.authority, self.files, "--tls-client-ca", ca, client=before.issue("a", "clientAuth")) as s:
            newcomer = context(self.authority, after.issue("b", "clientAuth"))
            shutil.copy(after.cert, ca)
            stays = s.raw()
            s.process.send_signal(signal.SIGHUP)
            s.wait_until(lambda: s.log_text().count("info event=tls file=") > 1)
            with s.wrap(newcomer) as c:
                c.sendall(HEALTH)
                self.assertTrue(c.recv(100).startswith(b"HTTP/1.1 200 "))
            stays.sendall(HEALTH)  # it came in before
            self.assertTrue(stays.recv(100).startswith(b"HTTP/1.1 200 "))
            stays.close()
            self.refused(s, before.issue("c", "clientAuth"), None, "UNKNOWN_CA")
            s.context = newcomer


class NoTlsTest(Made):
    def test_plain_http_and_garbage_end_and_hurt_nobody(self):
        rng, hello = random.Random(7), client_hello()

        def answer_to(data):
            with s.plain(30) as c:
                try:
                    c.sendall(data)
                except OSError:
                    pass
                return read_all(c)

        with TlsServer(BASE, self.authority, self.files, "--client-timeout", "1") as s, ThreadPoolExecutor(32) as pool:
            for answer in pool.map(answer_to, (
                    HEALTH, b"\0" * 5000, b"\x16\x03\x01\xff\xff" + b"\1" * 70000, hello[:5] + bytes(len(hello) - 5),
                    b"\x80\x2e\x01\0\2" + bytes(60), hello + HEALTH,
                    *(rng.randbytes(rng.randrange(1, 2000)) for _ in range(60)),
                    *(bytes(b ^ (rng.random() < 0.02) * rng.randrange(256) for b in hello) for _ in range(120)))):
                self.assertNotIn(b"HTTP/1.1", answer)
            self.assertEqual(s.request("GET", "/healthz").status, 200)

    def test_a_handshake_that_stops_or_drips_is_cut(self):
        with TlsServer(BASE, self.authority, self.files, "--client-timeout", "1") as s:
            hello = client_hello()
            for sent in (b"", hello[:1], hello[:50], hello):
                begin = time.monotonic()
                with s.plain(30) as c:
                    c.sendall(sent)
                    read_all(c)
                self.assertLess(time.monotonic() - begin, 8, len(sent))
            begin = time.monotonic()
            with s.plain(30) as c:
                try:
                    while time.monotonic() - begin < 20:
                        for byte in hello:
                            c.sendall(bytes([byte]))
                            time.sleep(0.05)
                except OSError:
                    pass
            self.assertLess(time.monotonic() - begin, 10)

    def test_handshakes_that_wait_hold_neither_threads_nor_the_last_connection(self):
        with TlsServer(BASE, self.authority, self.files, "--http-threads", "1", "--max-connections", "16", "--client-timeout",
                       "600") as s:
            hello = client_hello()
            waiting = [s.plain() for _ in range(40)]
            for i, c in enumerate(waiting):
                try:
                    c.sendall(hello[:i * 7])
                except OSError:
                    pass
            for _ in range(5):
                self.assertEqual(s.request("GET", "/healthz").status, 200)
            for c in waiting:
                c.close()


def client_hello():
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    how = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        how.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()


class PlainTest(unittest.TestCase):
    def test_without_a_certificate_nothing_has_changed(self):
        with Server(BASE) as s:
            self.assertNotIn("event=tls", s.log_text())
            self.assertIn("listening on http://", s.log_text())
            self.assertEqual(s.put("a", adapter_files(CELL)).status, 201)


if __name__ == "__main__":
    unittest.main()
