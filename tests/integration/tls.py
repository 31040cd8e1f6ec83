"""Certificates made with the openssl command, and a server that speaks TLS."""

import http.client
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import weakref

from tests.integration.server import Server


def openssl(*args, stdin=None):
    return subprocess.run(["openssl", *args], input=stdin, capture_output=True, check=True).stdout


class Authority:
    """Signs certificates; files stay in a folder of its own as long as it lives."""

    def __init__(self, name="tests"):
        self.dir = tempfile.mkdtemp(prefix="peftd-tls-")
        weakref.finalize(self, shutil.rmtree, self.dir, ignore_errors=True)
        self.cert, self.key = self.path("ca.pem"), self.path("ca.key")
        self.make_key(self.key)
        openssl("req", "-x509", "-key", self.key, "-out", self.cert, "-days", "30", "-subj", f"/CN={name}")

    def path(self, name):
        return os.path.join(self.dir, name)

    def make_key(self, path, kind="ec"):
        how = ("-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048") if kind == "rsa" else (
            "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256")
        openssl("genpkey", *how, "-out", path)
        os.chmod(path, 0o600)

    def issue(self, name, purpose="serverAuth", days=30, kind="ec"):
        """(certificate, key): paths."""
        cert, key, request, more = (self.path(name + end) for end in (".pem", ".key", ".csr", ".ext"))
        self.make_key(key, kind)
        openssl("req", "-new", "-key", key, "-out", request, "-subj", f"/CN={name}")
        with open(more, "w", encoding="ascii") as f:
            f.write(f"subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage={purpose}\n")
        openssl("x509", "-req", "-in", request, "-CA", self.cert, "-CAkey", self.key, "-CAcreateserial", "-out", cert,
                "-days", str(days), "-extfile", more)
        return cert, key


def context(authority, client=None, version=None, ciphers=None):
    """What a client that trusts the authority uses; `client`: its own (certificate, key)."""
    c = ssl.create_default_context(cafile=authority.cert)
    if ciphers:
        c.set_ciphers(ciphers)
    if version:
        c.minimum_version = c.maximum_version = version
    if client:
        c.load_cert_chain(*client)
    return c


class TlsServer(Server):
    """`files`: certificate and key."""

    def __init__(self, base, authority, files, *args, client=None, **kwargs):
        self.context = context(authority, client)
        super().__init__(base, "--tls-cert", files[0], "--tls-key", files[1], *args, **kwargs)

    def connect(self, timeout=60):
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=timeout, context=self.context)

    def plain(self, timeout=60):
        return socket.create_connection(("127.0.0.1", self.port), timeout)

    def raw(self, timeout=60):
        return self.wrap(self.context, timeout)

    def wrap(self, how, timeout=60):
        plain = self.plain(timeout)
        try:
            return how.wrap_socket(plain, server_hostname="127.0.0.1")
        except BaseException:
            plain.close()
            raise
