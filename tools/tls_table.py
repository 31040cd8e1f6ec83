#!/usr/bin/env python3
"""What a TLS port offers: tools/tls_table.py HOST:PORT

Tries each protocol and each cipher that the openssl command here knows, one handshake each, and prints those that the server agrees to, in
the order of the server's choice within a protocol. Certificates are not verified: this is about the offer alone.
"""

import re
import subprocess
import sys

PROTOCOLS = (("TLS 1.0", "-tls1"), ("TLS 1.1", "-tls1_1"), ("TLS 1.2", "-tls1_2"), ("TLS 1.3", "-tls1_3"))
CIPHERS_13 = ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256", "TLS_AES_128_CCM_SHA256",
              "TLS_AES_128_CCM_8_SHA256")


def client(address, *args, sent=b""):
    done = subprocess.run(["openssl", "s_client", "-connect", address, *args], input=sent, capture_output=True, check=False, timeout=60)
    return (done.stdout + done.stderr).decode(errors="replace")


def agreed(address, flag, ciphers):
    """(cipher, key exchange) of a handshake with these ciphers, or None."""
    how = ("-ciphersuites", ":".join(ciphers)) if flag == "-tls1_3" else ("-cipher", ":".join(ciphers) + ":@SECLEVEL=0")
    text = client(address, flag, *how)
    cipher = re.search(r"Cipher is (\S+)", text)
    key = re.search(r"(?:Server Temp Key|Negotiated TLS1.3 group): (?:ECDH, )?([^\n,]+)", text)
    return (cipher[1], key[1] if key else "") if cipher and cipher[1] != "(NONE)" else None


def known(flag):
    if flag == "-tls1_3":
        return list(CIPHERS_13)
    text = subprocess.run(["openssl", "ciphers", "ALL:COMPLEMENTOFALL:!PSK:!SRP:@SECLEVEL=0"], capture_output=True, check=True).stdout.decode()
    return [name for name in text.strip().split(":") if not name.startswith("TLS_")]


def offered(address, flag):
    """Each cipher that is agreed to, and its key exchange, the server's favourite first: what it chose is left out, and it is asked again."""
    left, found = known(flag), []
    while left and (got := agreed(address, flag, left)):
        found.append(got)
        left.remove(got[0])
    return found


def table(address):
    rows = []
    for name, flag in PROTOCOLS:
        ciphers = offered(address, flag)
        rows += [(name, cipher, key) for cipher, key in ciphers] or [(name, "not offered", "")]
    return rows


def main():
    if len(sys.argv) != 2 or ":" not in sys.argv[1]:
        sys.exit(__doc__)
    print("| protocol | cipher | key exchange |\n|---|---|---|")
    for row in table(sys.argv[1]):
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
