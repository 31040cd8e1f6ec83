"""--weights-cache: the second start maps what the first one made, and answers do not depend on where weights come from."""

import os
import re
import tempfile
import unittest

from tests.integration.server import Server, adapter_files, golden
from tests.integration.test_lifecycle import call
from tests.integration.test_store import heed_permissions, limit_files

CELLS = {"lora": "bert-cls-peft-lora-dora", "dense": "bert-cls-peft-loha", "rotated": "bert-cls-peft-oft"}
TOKENS = golden("bert-cls-peft-loha")["cases"][0]["tokens"]


def answers(server):
    """What the base and tasks say, one of them also on merged weights: every digit."""
    got = {"base": server.infer({"task": "base", "input": {"tokens": TOKENS}})}
    for task, cell in CELLS.items():
        put = server.put(task, adapter_files(cell))
        if put.status not in (200, 201):
            raise AssertionError(put.body)
        got[task] = server.infer({"task": task, "input": {"tokens": TOKENS}, "parameters": {"logits": True}})
    merge = call(server, "POST", "lora/merge")
    if merge.json["state"] != "merged":
        raise AssertionError(merge.body)
    got["merged"] = server.infer({"task": "lora", "input": {"tokens": TOKENS}, "parameters": {"logits": True}})
    got["base again"] = server.infer({"task": "base", "input": {"tokens": TOKENS}})
    for name, answer in got.items():
        if answer.status != 200:
            raise AssertionError((name, answer.body))
    return {name: answer.json["output"] for name, answer in got.items()}


class WeightsCache(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with Server("bert-cls") as s:
            cls.want = answers(s)
            assert "event=weights_cache" not in s.log_text()

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="peftd-test-")
        self.addCleanup(folder.cleanup)
        self.cache = os.path.join(folder.name, "cache")

    def start(self, *args, **kwargs):
        return Server("bert-cls", "--weights-cache", self.cache, *args, **kwargs)

    def check(self, server, state):
        """The line that says where weights come from, and that they are the right ones."""
        events = re.findall(r"event=(weights_cache\S*)(?: state=(\w+))?", server.log_text())
        self.assertEqual([" ".join(filter(None, event)) for event in events], state, server.log_text())
        self.assertEqual(answers(server), self.want)

    def file(self):
        names = os.listdir(self.cache)
        self.assertEqual(len(names), 1, names)
        return os.path.join(self.cache, names[0])

    def test_the_second_start_maps_what_the_first_made(self):
        with self.start() as first, self.start() as second:
            self.check(first, ["weights_cache made"])
            self.check(second, ["weights_cache found"])
            for s in (first, second):
                with open(f"/proc/{s.process.pid}/maps", encoding="utf-8") as f:
                    modes = [line.split()[1] for line in f if line.rstrip().endswith(self.file())]
                self.assertEqual(modes, ["r--p"])
        self.assertEqual(os.stat(self.file()).st_mode & 0o777, 0o600)
        self.assertRegex(os.path.basename(self.file()), r"^[0-9a-f]{16}-(panels|rows)-exact\.weights$")

    def test_each_precision_has_a_file_of_its_own(self):
        for precision in ("exact", "int8"):
            with self.start("--precision", precision) as s:
                self.assertIn("event=weights_cache state=made", s.log_text())
        self.assertEqual(len(os.listdir(self.cache)), 2)

    def test_a_damaged_file_is_made_again(self):
        with self.start() as s:
            self.check(s, ["weights_cache made"])
        size = os.path.getsize(self.file())
        for at, reason in ((0, "of another form or another machine"), (60, "its head or table is damaged"),
                           (4096 + 50, "its weight 0 is damaged"), (size - 9, "its head or table is damaged")):
            with open(self.file(), "r+b") as f:
                f.seek(at)
                byte = f.read(1)[0]
                f.seek(at)
                f.write(bytes([byte ^ 0x10]))
            with self.start() as s:
                self.assertIn(f'reason="{reason}"', s.log_text())
                self.check(s, ["weights_cache_refused", "weights_cache made"])
        os.truncate(self.file(), size - 4096)
        with self.start() as s:
            self.check(s, ["weights_cache_refused", "weights_cache made"])
        with self.start() as s:
            self.check(s, ["weights_cache found"])

    def test_a_folder_that_may_not_be_written_is_a_warning(self):
        os.mkdir(self.cache, 0o550)
        with self.start(preexec_fn=heed_permissions) as s:
            self.assertIn("Permission denied", s.log_text())
            self.check(s, ["weights_cache_failed"])
        os.chmod(self.cache, 0o750)
        with self.start() as s:
            self.check(s, ["weights_cache made"])
        os.chmod(self.cache, 0o550)
        with self.start(preexec_fn=heed_permissions) as s:
            self.check(s, ["weights_cache found"])
        os.chmod(self.cache, 0o750)

    def test_a_full_disk_is_a_warning_and_leaves_nothing(self):
        with self.start(preexec_fn=limit_files) as s:
            self.assertRegex(s.log_text(), "event=weights_cache_failed .*File too large")
            self.assertEqual(s.infer({"task": "base", "input": {"tokens": TOKENS}}).json["output"], self.want["base"])
        self.assertEqual(os.listdir(self.cache), [])
