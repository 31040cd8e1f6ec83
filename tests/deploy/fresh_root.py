#!/usr/bin/env python3
"""`make deb-test`: the package in a Debian that has nothing else, made by debootstrap under build/. Needs root, and a network (or
MIRROR) for the first root and for what the package depends on.

Installed, the server starts as its user without systemd, takes an adapter and answers; an upgrade keeps the store, the answer
and a configuration that was changed; so does removing, until a purge takes both. Prints a line a promise.
"""

import os
import shutil
import subprocess
import sys
import tempfile

from tests.integration.server import GOLDEN, ROOT, adapter_files
from tests.support.peftd import Client, Process

MIRROR = os.environ.get("MIRROR", "http://deb.debian.org/debian")
SUITE = "bookworm"
WORK = os.path.join(ROOT, "build", "deb-test")
BASE = os.path.join(WORK, "base.tar")
TOP = tempfile.mkdtemp(prefix="peftd-deb-test-", dir="/var/tmp")
CONFIG = os.path.join(TOP, "etc/peftd/peftd.json")
STORE = os.path.join(TOP, "var/lib/peftd/store")
REQUEST = {"task": "sst2", "input": "a b"}


def run(*command, **more):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **more)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.returncode}\n{done.stdout[-4000:]}")
    return done.stdout


def inside(*command):
    return run("chroot", TOP, *command, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"})


def promise(what, is_kept):
    print(f"{'ok' if is_kept else 'BROKEN'}: {what}", flush=True)
    if not is_kept:
        sys.exit(1)


def build(version):
    env = {**os.environ, **({"DEB_VERSION": version} if version else {})}
    path = run(os.path.join(ROOT, "tools", "deb.sh"), env=env).strip().split("\n")[-1]
    shutil.copy(path, os.path.join(TOP, "tmp"))
    return "/tmp/" + os.path.basename(path)


def make_root():
    os.makedirs(WORK, exist_ok=True)
    os.chmod(TOP, 0o755)
    if not os.path.exists(BASE):
        run("debootstrap", "--variant=minbase", SUITE, TOP, MIRROR)
        # Once, so that the package's own installation needs no network any more.
        inside("apt-get", "update", "-qq")
        inside("apt-get", "install", "-y", "-qq", "--download-only", "adduser", "libmicrohttpd12", "libopenblas0", "libjansson4", "libuv1",
               "libpcre2-8-0", "libutf8proc2", "libarchive13", "libssl3", "zlib1g")
        run("tar", "-C", TOP, "-cf", BASE, ".")
    else:
        run("tar", "-C", TOP, "-xpf", BASE)
    with open(os.path.join(TOP, "usr/sbin/policy-rc.d"), "w", encoding="utf-8") as f:
        f.write("#!/bin/sh\nexit 101\n")
    os.chmod(f.name, 0o755)
    shutil.copytree(os.path.join(GOLDEN, "bases", "bert"), os.path.join(TOP, "srv/peftd/model"))


class Installed(Process):
    """The installed program as its user, as a supervisor other than systemd would start it."""

    def __init__(self):
        super().__init__(["chroot", TOP, "setpriv", "--reuid=peftd", "--regid=peftd", "--clear-groups", "/usr/bin/peftd", "serve",
                          "--config", "/etc/peftd/peftd.json", "--listen", "127.0.0.1:0"], os.path.join(WORK, "log"))
        self.listen()
        self.wait_until(lambda: self.answers("/readyz"))

    def uid(self):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as f:
            return next(int(line.split()[1]) for line in f if line.startswith("Uid:"))


def ask(upload=False):
    """The answer of the task, by a server that lived for it; its user and its --max-queue."""
    with Installed() as server, Client(server.port) as client:
        if upload:
            status, body = client.put("sst2", adapter_files("bert-peft-lora"))
            promise("an adapter is taken", status == 201)
        status, body = client.infer(REQUEST)
        promise("the task answers", status == 200 and body["version"])
        limits = client.call("GET", "/v1/info")[1]["limits"]
        found = (body["version"], body["output"]), server.uid(), limits["max_queue"]
    promise("SIGTERM ends it with 0", server.process.returncode == 0)
    return found


def files(top):
    return sorted(os.path.join(at, name) for at, _, names in os.walk(top) for name in names)


def main():
    if os.geteuid() != 0:
        sys.exit("make deb-test needs root: it makes a root of its own")
    make_root()
    first = build(None)
    inside("apt-get", "install", "-y", "-qq", "--no-install-recommends", first)
    uid = int(inside("id", "-u", "peftd"))
    promise("there is a system user", 0 < uid < 1000)
    state = os.stat(os.path.dirname(STORE))
    promise("its directory is its own, and nobody else's", (state.st_uid, state.st_mode & 0o777) == (uid, 0o750))
    promise("the configuration is a conffile", "/etc/peftd/peftd.json" in inside("dpkg-query", "-W", "-f=${Conffiles}", "peftd"))
    promise("the unit is there, and starts nothing by itself", not any("peftd" in os.path.basename(path) for path in files(os.path.join(TOP, "etc/systemd")))
            and os.path.exists(os.path.join(TOP, "lib/systemd/system/peftd.service")))
    answer, runs_as, _ = ask(upload=True)
    promise("it runs as that user", runs_as == uid)
    with open(CONFIG, "w", encoding="utf-8") as f:
        f.write('{"model": "/srv/peftd/model", "store": "/var/lib/peftd/store", "max_queue": 77}\n')
    kept = files(STORE)

    second = build(inside("dpkg-query", "-W", "-f=${Version}", "peftd") + "+next1")
    inside("apt-get", "install", "-y", "-qq", second)
    promise("it is upgraded", inside("dpkg-query", "-W", "-f=${Version}", "peftd").endswith("+next1"))
    promise("an upgrade keeps the store", files(STORE) == kept)
    promise("an upgrade keeps the answer, the user and a changed configuration", ask() == (answer, uid, 77))

    inside("apt-get", "remove", "-y", "-qq", "peftd")
    promise("removing takes the program", not os.path.exists(os.path.join(TOP, "usr/bin/peftd")))
    promise("removing keeps the store and the configuration", files(STORE) == kept and os.path.exists(CONFIG))
    inside("apt-get", "install", "-y", "-qq", second)
    promise("installed again, it goes on where it was", ask() == (answer, uid, 77))

    inside("apt-get", "purge", "-y", "-qq", "peftd")
    left = [path for path in ("etc/peftd", "var/lib/peftd", "usr/share/doc/peftd", "lib/systemd/system/peftd.service")
            if os.path.exists(os.path.join(TOP, path))]
    promise("a purge takes the store and the configuration", not left)
    promise("and leaves the model alone", os.path.exists(os.path.join(TOP, "srv/peftd/model/config.json")))
    print("deb-test: ok")


if __name__ == "__main__":
    try:
        main()
    finally:
        shutil.rmtree(TOP)
