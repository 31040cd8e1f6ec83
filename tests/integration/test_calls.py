"""What one call may cost the server and its other clients: time, memory, and answers that are not its own."""

import json
import unittest

from tests.integration.server import Server, adapter_files


def with_task(files, **settings):
    return {**files, "task.json": json.dumps({**json.loads(files.get("task.json", b"{}")),
                                              **settings}).encode()}


class Adapters(unittest.TestCase):
    def test_files_without_a_head_come_with_a_warning(self):
        with Server("bert") as s:
            headless = adapter_files("bert-ah-embed")
            a = s.put("e", headless)
            self.assertEqual((a.status, a.json["kind"]), (201, "embedding"), a.body)
            self.assertEqual(len(a.json["warnings"]), 1)
            self.assertIn("head", a.json["warnings"][0])
            self.assertEqual(s.request("GET", "/v1/adapters/e").json["warnings"],
                             a.json["warnings"])
            a = s.put("said", with_task(headless, head="embedding"))
            self.assertEqual((a.json["kind"], a.json["warnings"]), ("embedding", []))
            self.assertEqual(s.put_cell("c", "bert-peft-lora").json["warnings"], [])

    def test_adapters_of_every_state_can_be_listed(self):
        with Server("bert") as s:
            s.put_cell("c", "bert-peft-lora")
            for state, n in (("resident", 1), ("stored", 0), ("merged", 0)):
                a = s.request("GET", f"/v1/adapters?state={state}")
                self.assertEqual((a.status, len(a.json["adapters"]), a.json["next"]),
                                 (200, n, None))


if __name__ == "__main__":
    unittest.main()
