"""The store from outside: one that may not be written, and the command line on it."""

import ctypes
import os
import resource
import signal
import subprocess
import tempfile
import unittest

from tests.integration.server import PEFTD, Server, own_files

CELL = "bert-peft-lora"
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2


def heed_permissions():
    """Root ignores permission bits by a capability: the process to come loses it."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
            if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
                raise OSError(ctypes.get_errno(), "prctl")


def chmod_all(root, directory, file):
    for folder, _, files in os.walk(root, topdown=False):
        for name in files:
            os.chmod(os.path.join(folder, name), file)
        os.chmod(folder, directory)


def listing(root):
    return sorted((os.path.join(folder, name), os.stat(os.path.join(folder, name)).st_mtime_ns)
                  for folder, names, files in os.walk(root) for name in names + files)


class ReadOnly(unittest.TestCase):
    def test_a_store_without_permission_to_write_is_served(self):
        with Server("bert") as s:
            s.put_cell("kept", CELL)
            want = s.infer({"task": "kept", "input": "x"}).json["output"]
            self.assertEqual(s.request("GET", "/v1/info").json["store"],
                             {"read_only": False, "reason": None})
            s.stop()
            chmod_all(s.store, 0o550, 0o440)
            before = listing(s.store)
            try:
                with Server("bert", "--store", s.store, preexec_fn=heed_permissions) as ro:
                    self.assertEqual(ro.request("GET", "/v1/info").json["store"],
                                     {"read_only": True, "reason": "Permission denied"})
                    self.assertRegex(ro.log_text(), 'event=store_read_only reason="Permission')
                    self.assertEqual(ro.infer({"task": "kept", "input": "x"}).json["output"], want)
                    self.assertEqual(ro.put_cell("new", CELL, query="?dry_run=true").status, 200)
                    for a in (ro.put_cell("new", CELL),
                              ro.request("DELETE", "/v1/adapters/kept")):
                        self.assertEqual(a.error[:2], (503, "store_unavailable"), a.body)
                        self.assertEqual(a.json["error"]["message"],
                                         "the store is read-only: Permission denied")
                    self.assertEqual(ro.infer({"task": "kept", "input": "x"}).status, 200)
                self.assertEqual(listing(s.store), before)
            finally:
                chmod_all(s.store, 0o750, 0o640)


def limit_files():
    """No file may grow beyond 8 KiB; exceeding that is an error and no signal."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))


class Full(unittest.TestCase):
    def test_a_limit_on_file_sizes_is_507_and_nothing_is_lost(self):
        with Server("bert") as s:
            for task in ("kept", "gone"):
                s.put_cell(task, CELL)
            s.stop()
            with Server("bert", "--store", s.store, preexec_fn=limit_files) as full:
                a = full.put("new", own_files(CELL, "new"))
                self.assertEqual(a.error[:2], (507, "store_full"), a.body)
                self.assertEqual(full.request("GET", "/v1/adapters/new").status, 404)
                self.assertEqual(full.infer({"task": "kept", "input": "x"}).status, 200)
                self.assertEqual(full.request("DELETE", "/v1/adapters/gone").status, 204)
                self.assertEqual(full.request("GET", "/v1/adapters/gone").status, 404)
            with Server("bert", "--store", s.store) as again:
                names = [a["task"] for a in again.request("GET", "/v1/adapters").json["adapters"]]
                self.assertEqual(names, ["kept"])
                self.assertEqual(again.infer({"task": "kept", "input": "x"}).status, 200)


class CommandLine(unittest.TestCase):
    def run_store(self, *args):
        return subprocess.run([PEFTD, "store", *args], capture_output=True, text=True, timeout=60,
                              check=False)

    def test_no_command_makes_a_store(self):
        with tempfile.TemporaryDirectory() as folder:
            missing = os.path.join(folder, "none")
            empty = os.path.join(folder, "empty")
            os.mkdir(empty)
            for command in ("ls", "verify", "gc"):
                for path in (missing, empty):
                    p = self.run_store(command, "--store", path)
                    self.assertEqual(p.returncode, 1, (command, path, p))
                    self.assertIn(path, p.stderr)
                    self.assertEqual(p.stdout, "")
            self.assertEqual(os.listdir(folder), ["empty"])
            self.assertEqual(os.listdir(empty), [])

    def test_ls_lists_and_changes_nothing(self):
        with Server("bert") as s:
            s.put_cell("one", CELL)
            s.put_cell("two", CELL)
            s.stop()
            os.mkdir(os.path.join(s.store, "tmp", "0123456789abcdef"))  # an upload cut off
            before = listing(s.store)
            p = self.run_store("ls", "--store", s.store)
            self.assertEqual((p.returncode, [line.split()[0] for line in p.stdout.splitlines()]),
                             (0, ["one", "two"]), p.stderr)
            self.assertEqual(listing(s.store), before)
            p = self.run_store("verify", "--store", s.store)
            self.assertEqual((p.returncode, p.stdout),
                             (0, "1 versions are good, 0 were damaged and set aside\n"))


if __name__ == "__main__":
    unittest.main()
