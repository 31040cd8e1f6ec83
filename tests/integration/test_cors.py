"""Pages of other origins: what a browser asks in advance, and what it lets its page read."""

import unittest

from tests.integration.server import Server
from tests.integration.test_auth import Keys

PAGE = "https://app.example"
ASK = {"Origin": PAGE, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization, content-type"}


class CorsTest(unittest.TestCase):
    def test_a_page_may_call_if_its_origin_is_named(self):
        keys = Keys()
        keys.add("web", "infer,read")
        keys.write()
        with Server("bert", "--cors-origin", f"{PAGE},http://localhost:3000", "--auth", keys.path) as s:
            a = s.request("OPTIONS", "/v1/infer", headers=ASK)
            self.assertEqual((a.status, a.headers["Access-Control-Allow-Origin"], a.headers["Access-Control-Allow-Methods"]),
                             (204, PAGE, "POST"))
            self.assertIn("Authorization", a.headers["Access-Control-Allow-Headers"])
            a = s.infer({"task": "base", "input": {"tokens": [2, 5, 3]}}, Origin=PAGE, **keys.header["web"])
            self.assertEqual((a.status, a.headers["Access-Control-Allow-Origin"], a.headers["Vary"]), (200, PAGE, "Origin"))
            self.assertIn("Retry-After", a.headers["Access-Control-Expose-Headers"])
            refused = s.infer({"task": "base"}, Origin=PAGE)
            self.assertEqual((refused.status, refused.headers["Access-Control-Allow-Origin"]), (401, PAGE))
            other = s.request("OPTIONS", "/v1/infer", headers={**ASK, "Origin": "https://evil.example"})
            self.assertIsNone(other.headers["Access-Control-Allow-Origin"])
            self.assertIsNone(other.headers["Access-Control-Allow-Methods"])
            self.assertEqual(other.headers["Vary"], "Origin")
            self.assertEqual(s.request("OPTIONS", "/nothing", headers=ASK).status, 404)
            self.assertEqual(s.request("OPTIONS", "/v1/infer").status, 405)
            self.assertEqual(s.request("DELETE", "/v1/infer", headers=ASK).status, 405)

    def test_a_question_with_a_body_leaves_the_connection_in_order(self):
        with Server("bert", "--cors-origin", "*") as s:
            conn = s.connect()
            for _ in range(3):
                conn.request("OPTIONS", "/v1/infer", b"x" * 1000, ASK)
                r = conn.getresponse()
                r.read()
                self.assertEqual((r.status, r.headers["Access-Control-Allow-Origin"], r.headers["Vary"]), (204, "*", None))
            conn.request("GET", "/healthz")
            self.assertEqual(conn.getresponse().status, 200)
            conn.close()

    def test_without_the_setting_nothing_is_said(self):
        with Server("bert") as s:
            a = s.request("OPTIONS", "/v1/infer", headers=ASK)
            self.assertEqual((a.status, a.headers["Access-Control-Allow-Origin"], a.headers["Vary"]), (405, None, None))


if __name__ == "__main__":
    unittest.main()
