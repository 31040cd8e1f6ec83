"""What `make install` and `make deb` put where, and how far the unit locks the service down. No root, no network; what needs a
tool that is not there is skipped with its name.
"""

import gzip
import json
import os
import re
import shutil
import stat
import subprocess
import tempfile
import unittest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
DOCS = sorted(os.listdir(os.path.join(ROOT, "docs")))


def run(*command, **more):
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, **more)
    if done.returncode:
        raise AssertionError(f"{' '.join(command)}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def need(tool):
    if not shutil.which(tool):
        raise unittest.SkipTest(f"no {tool}")


def tree(top):
    """{path: mode} of the files below a folder."""
    return {os.path.relpath(os.path.join(at, name), top): stat.S_IMODE(os.stat(os.path.join(at, name)).st_mode)
            for at, _, names in os.walk(top) for name in names}


class Install(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="peftd-install-")
        self.addCleanup(holder.cleanup)
        self.top = holder.name

    def make(self, what, *args):
        return run("make", "-s", what, f"DESTDIR={self.top}", *args)

    def read(self, path):
        with open(os.path.join(self.top, path), encoding="utf-8") as f:
            return f.read()

    def test_the_tree_is_as_declared_and_uninstall_leaves_the_configuration(self):
        for args, prefix, unit in (((), "usr/local", "usr/local/lib"), (("PREFIX=/opt/p", "UNITDIR=/lib/systemd/system"), "opt/p", "lib")):
            self.make("install", *args)
            share = f"{prefix}/share"
            want = {f"{prefix}/bin/peftd": 0o755, "etc/peftd/peftd.json": 0o644, f"{unit}/systemd/system/peftd.service": 0o644,
                    f"{share}/man/man1/peftd.1": 0o644, f"{share}/bash-completion/completions/peftd": 0o644,
                    f"{share}/doc/peftd/LICENSE": 0o644, f"{share}/doc/peftd/README.md": 0o644,
                    **{f"{share}/doc/peftd/docs/{name}": 0o644 for name in DOCS}}
            self.assertEqual(tree(self.top), want)
            text = self.read(f"{unit}/systemd/system/peftd.service")
            self.assertIn(f"ExecStart=/{prefix}/bin/peftd serve --config /etc/peftd/peftd.json\n", text)
            self.assertNotRegex(text, r"@[A-Z]+@")
            self.make("uninstall", *args)
            self.assertEqual(tree(self.top), {"etc/peftd/peftd.json": 0o644})
            self.assertFalse(os.path.exists(os.path.join(self.top, share, "doc", "peftd")))

    def test_a_configuration_that_is_there_is_kept(self):
        os.makedirs(os.path.join(self.top, "etc/peftd"))
        with open(os.path.join(self.top, "etc/peftd/peftd.json"), "w", encoding="utf-8") as f:
            f.write("mine")
        self.make("install")
        self.assertEqual(self.read("etc/peftd/peftd.json"), "mine")

    def test_the_configuration_is_one_that_the_program_reads(self):
        self.make("install")
        config = os.path.join(self.top, "etc/peftd/peftd.json")
        program = os.path.join(self.top, "usr/local/bin/peftd")
        done = subprocess.run([program, "serve", "--config", config], capture_output=True, text=True, check=False, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (1, "peftd serve: --model /srv/peftd/model: No such file or directory\n"))
        self.assertEqual(json.loads(self.read("etc/peftd/peftd.json"))["store"], "/var/lib/peftd/store")

    def test_the_unit_is_locked_down(self):
        need("systemd-analyze")
        self.make("install")
        unit = os.path.join(self.top, "usr/local/lib/systemd/system/peftd.service")
        out = run("systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=30", unit)
        said = float(re.search(r"exposure level for peftd.service: ([\d.]+)", out).group(1))
        text = self.read("usr/local/lib/systemd/system/peftd.service")
        self.assertLessEqual(said, 3.0)  # other versions of systemd count a little differently
        self.assertIn("StateDirectory=peftd\n", text)
        self.assertIn("User=peftd\n", text)
        bare = os.path.join(self.top, "bare.service")
        with open(bare, "w", encoding="utf-8") as f:
            f.write("[Service]\nExecStart=/bin/true\n")
        with self.assertRaises(AssertionError):  # the threshold can fail
            run("systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=30", bare)

    def test_the_unit_is_one_that_systemd_understands(self):
        need("systemd-analyze")
        self.make("install")
        unit = os.path.join(self.top, "peftd.service")
        text = self.read("usr/local/lib/systemd/system/peftd.service").replace("/usr/local/bin/peftd", "/bin/true")
        with open(unit, "w", encoding="utf-8") as f:
            f.write(text)
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))


class Image(unittest.TestCase):
    def test_it_has_the_libraries_that_the_program_needs(self):
        with open(os.path.join(ROOT, "Dockerfile"), encoding="utf-8") as f:
            installed = set(re.findall(r"\b(?:lib[a-z0-9.-]+|zlib1g)\b", f.read()))
        need("dpkg-query")
        for path in re.findall(r"=> (/\S+)", run("ldd", "build/peftd")):
            real = os.path.realpath(path)
            found = subprocess.run(["dpkg-query", "-S", real], capture_output=True, text=True, check=False).stdout or \
                subprocess.run(["dpkg-query", "-S", real.removeprefix("/usr")], capture_output=True, text=True, check=False).stdout
            package = found.split(":")[0]
            direct = os.path.basename(path) in run("readelf", "-d", "build/peftd")
            if direct and package not in ("libc6", "libgcc-s1"):
                self.assertIn(package, installed, path)

    def test_its_check_of_health_reads_its_settings(self):
        with open(os.path.join(ROOT, "Dockerfile"), encoding="utf-8") as f:
            text = f.read()
        env = dict(re.findall(r"(PEFTD_[A-Z]+)=(\S+)", text))
        self.assertEqual(set(env), {"PEFTD_LISTEN", "PEFTD_STORE", "PEFTD_MODEL"})
        command = json.loads(re.search(r"(?m)^HEALTHCHECK .* CMD (\[.*\])$", text).group(1))
        done = subprocess.run(["build/" + command[0], *command[1:]], capture_output=True, text=True, check=False, timeout=60, cwd=ROOT,
                              env={**env, "PEFTD_LISTEN": "0.0.0.0:1"})
        self.assertEqual((done.returncode, done.stderr), (1, "peftd health: 0.0.0.0:1: Connection refused\n"))


class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        for tool in ("dpkg-buildpackage", "dh"):
            need(tool)
        cls.deb = run("tools/deb.sh").strip().split("\n")[-1]

    def test_its_files_are_those_of_install(self):
        listing = {}
        for line in run("dpkg-deb", "-c", self.deb).splitlines():
            mode, owner, _, _, _, path = line.split(None, 5)
            if not path.endswith("/"):
                listing[path.removeprefix("./")] = mode
                self.assertEqual(owner, "root/root", path)
        doc = "usr/share/doc/peftd"
        self.assertEqual({path.removesuffix(".gz") for path in listing}, {
            "usr/bin/peftd", "etc/peftd/peftd.json", "lib/systemd/system/peftd.service", "usr/share/man/man1/peftd.1",
            "usr/share/bash-completion/completions/peftd", f"{doc}/README.md", f"{doc}/changelog", f"{doc}/copyright",
            *(f"{doc}/docs/{name}" for name in DOCS)})
        self.assertEqual(listing["usr/bin/peftd"], "-rwxr-xr-x")

    def test_what_it_says_of_itself(self):
        version = run("build/peftd", "version").split()[1]
        fields = run("dpkg-deb", "-f", self.deb)
        self.assertIn(f"\nVersion: {version}\n", fields)
        for library in ("libmicrohttpd12", "libopenblas0", "libuv1", "libssl3", "adduser"):
            self.assertIn(library, re.search(r"(?m)^Depends: (.*)$", fields).group(1))
        with tempfile.TemporaryDirectory() as top:
            run("dpkg-deb", "-R", self.deb, top)
            with open(os.path.join(top, "DEBIAN/conffiles"), encoding="utf-8") as f:
                self.assertEqual(f.read(), "/etc/peftd/peftd.json\n")
            with gzip.open(os.path.join(top, "usr/share/man/man1/peftd.1.gz"), "rt", encoding="utf-8") as f:
                self.assertEqual(f.read(), run("build/peftd", "help", "--man"))
            for script in ("postinst", "prerm", "postrm"):
                run("sh", "-n", os.path.join(top, "DEBIAN", script))

    def test_lintian_finds_no_error(self):
        need("lintian")
        run("lintian", "--fail-on", "error", "--allow-root", self.deb)


if __name__ == "__main__":
    unittest.main()
