#!/usr/bin/env python3
"""`make image-test`: every line of the Dockerfile, run where there is no daemon for containers. Needs root and a network (or MIRROR).

A stage is a root made by debootstrap, which is what debian:12-slim is but for documentation; RUN is a shell in it, COPY takes what
.dockerignore leaves of the files that git knows. An instruction that this script does not know is an error, so a new one is not passed over.
The image then starts as its user, with its ENTRYPOINT and environment, in a network of its own, until its HEALTHCHECK says so.
"""

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request

from tests.integration.server import GOLDEN, ROOT

MIRROR = os.environ.get("MIRROR", "http://deb.debian.org/debian")
WORK = os.path.join(ROOT, "build", "image-test")
BASES = {"debian:12-slim": "bookworm"}
NOTED = ("LABEL", "VOLUME", "EXPOSE", "STOPSIGNAL")  # nothing to run
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def run(*command, **more):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **more)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.returncode}\n{done.stdout[-4000:]}")
    return done.stdout


def promise(what, is_kept):
    print(f"{'ok' if is_kept else 'BROKEN'}: {what}", flush=True)
    if not is_kept:
        sys.exit(1)


def instructions(text):
    """(NAME, rest) of each, with lines joined and comments left out."""
    lines = "\n".join(line for line in text.split("\n") if not line.lstrip().startswith("#"))
    for line in re.sub(r"\\\n\s*", " ", lines).split("\n"):
        if line.strip():
            name, _, rest = line.strip().partition(" ")
            yield name, rest.strip()


def context():
    """What `COPY . .` takes: .dockerignore's "*" and what stands behind the "!"."""
    with open(os.path.join(ROOT, ".dockerignore"), encoding="utf-8") as f:
        rules = [line.strip() for line in f if line.strip() and not line.startswith("#")]
    kept = [rule[1:] for rule in rules if rule.startswith("!")]
    if "*" not in rules or any(fnmatch.filter(["*"], rule) for rule in kept):
        sys.exit(".dockerignore has another form than this script knows")
    names = run("git", "-C", ROOT, "ls-files", *kept).split()
    return [name for name in names if "__pycache__" not in name]


class Stage:
    def __init__(self, top, image, args):
        if image not in BASES:
            sys.exit(f"no root for FROM {image}")
        self.top, self.args, self.env, self.user, self.workdir = top, dict(args), {}, None, "/"
        self.found = {}
        base = os.path.join(WORK, BASES[image] + ".tar")
        if not os.path.exists(base):
            run("debootstrap", "--variant=minbase", BASES[image], top, MIRROR)
            run("tar", "-C", top, "-cf", base, ".")
        else:
            run("tar", "-C", top, "-xpf", base)
        os.chmod(top, 0o755)

    def value(self, text):
        return re.sub(r"\$\{?(\w+)\}?", lambda m: {**self.args, **self.env}.get(m[1], m[0]), text).strip('"')

    def inside(self, path):
        return os.path.join(self.top, os.path.join(self.workdir, path).lstrip("/"))

    def copy(self, rest, stages):
        words = rest.split()
        source = next((w.removeprefix("--from=") for w in words if w.startswith("--from=")), None)
        what, to = [w for w in words if not w.startswith("--")]
        names = context() if what == "." else [what]
        for name in names:
            begin = os.path.join(stages[source].top, name.lstrip("/")) if source else os.path.join(ROOT, name)
            end = os.path.join(self.inside(to), name) if what == "." else self.inside(to)
            os.makedirs(os.path.dirname(end), exist_ok=True)
            shutil.copy2(begin, end)

    def shell(self, text):
        run("chroot", self.top, "sh", "-c", f"cd {self.workdir} && {text}", env={"PATH": PATH, **self.args, **self.env})

    def do(self, name, rest, stages):
        if name == "ARG":
            key, _, value = rest.partition("=")
            self.args.setdefault(key, value)
        elif name == "ENV":
            self.env.update((k, v.strip('"')) for k, v in re.findall(r'(\w+)=("[^"]*"|\S+)', rest))
        elif name == "WORKDIR":
            self.workdir = rest
            os.makedirs(self.inside("."), exist_ok=True)
        elif name == "COPY":
            self.copy(rest, stages)
        elif name == "RUN":
            self.shell(rest)
        elif name == "USER":
            self.user = rest
        elif name in ("HEALTHCHECK", "ENTRYPOINT"):
            self.found[name] = json.loads(rest[rest.index("["):])
        elif name in NOTED:
            self.found[name] = self.value(rest)
        else:
            sys.exit(f"no way to run {name}")


def build(top):
    with open(os.path.join(ROOT, "Dockerfile"), encoding="utf-8") as f:
        text = f.read()
    stages, stage = {}, None
    for name, rest in instructions(text):
        begin = time.monotonic()
        if name == "FROM":
            image, _, alias = rest.partition(" AS ")
            alias = alias or "image"
            stage = stages[alias] = Stage(tempfile.mkdtemp(prefix=alias + "-", dir=top), image, {"COMMIT": "0123456789ab"})
        else:
            stage.do(name, rest, stages)
        print(f"{name} {rest[:90]} ({time.monotonic() - begin:.0f} s)", flush=True)
    return stages["image"]


def start(image):
    """The image as a container would run it; we are in a network of our own."""
    run("ip", "link", "set", "lo", "up")
    how = {"env": {"PATH": PATH, **image["env"]}, "cwd": "/"}
    enter = ["chroot", f"--userspec={image['user']}", image["top"]]
    with subprocess.Popen([*enter, *image["ENTRYPOINT"]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **how) as server:
        try:
            healthy = False
            for _ in range(100):
                healthy = subprocess.run([*enter, *image["HEALTHCHECK"]], capture_output=True, check=False, **how).returncode == 0
                if healthy or server.poll() is not None:
                    break
                time.sleep(0.2)
            promise("HEALTHCHECK says that it lives", healthy)
            with open(f"/proc/{server.pid}/status", encoding="ascii") as f:
                promise("it runs as the number of its user", f"Uid:\t{image['user'].split(':')[0]}\t" in f.read())
            body = {"task": "base", "input": "a b"}
            url = f"http://127.0.0.1:{image['EXPOSE']}"
            for _ in range(100):
                try:
                    with urllib.request.urlopen(url + "/readyz", timeout=10):
                        break
                except OSError:
                    time.sleep(0.2)
            with urllib.request.urlopen(url + "/v1/infer", json.dumps(body).encode(), timeout=30) as f:
                promise("it answers at the port that it exposes", json.load(f)["kind"] == "embedding")
        finally:
            server.terminate()  # STOPSIGNAL
            text = server.communicate(timeout=60)[0]
    promise("its signal ends it with 0", server.returncode == 0 or print(text))


def main():
    if os.geteuid() != 0:
        sys.exit("make image-test needs root: it makes roots of its own")
    if sys.argv[1:2] == ["--start"]:
        start(json.loads(sys.argv[2]))
        return
    os.makedirs(WORK, exist_ok=True)
    top = tempfile.mkdtemp(prefix="peftd-image-test-", dir="/var/tmp")
    os.chmod(top, 0o755)
    try:
        image = build(top)
        programs = image.inside("/usr/local/bin")
        promise("the user is a number, not root", re.fullmatch(r"[1-9]\d*:[1-9]\d*", image.user))
        promise("it has labels, a volume, a port and a signal", set(NOTED) <= set(image.found) and "0123456789ab" in image.found["LABEL"])
        promise("no compiler is in it, and one program of ours", not os.path.exists(image.inside("/usr/bin/gcc")) and os.listdir(programs) == ["peftd"])
        shutil.copytree(os.path.join(GOLDEN, "bases", "bert"), image.inside("/models/base"))
        said = json.dumps({"top": image.top, "env": image.env, "user": image.user, **image.found})
        if subprocess.run(["unshare", "--net", sys.executable, "-m", "tests.deploy.image", "--start", said], cwd=ROOT, check=False).returncode:
            sys.exit(1)
        print("image-test: ok")
    finally:
        shutil.rmtree(top)


if __name__ == "__main__":
    main()
