"""The routes of vLLM, text-embeddings-inference, KServe v2 and llama-server over plain HTTP."""

import json
import math
import struct
import unittest

from tests.integration.server import Server
from tests.integration.test_openai import ChatBase, post


def near(a, b, tolerance=2e-6):
    return abs(a - b) <= tolerance * max(1, abs(b))


class Encoder(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = Server("bert")
        cls.addClassCleanup(cls.s.__exit__, None, None, None)
        cls.version = {}
        for task, cell in (("rate", "bert-peft-lora"), ("topics", "bert-peft-lora-multi-label"), ("price", "bert-peft-lora-regression"),
                           ("names", "bert-peft-lora-tagging"), ("embed", "bert-peft-lora-embed")):
            answer = cls.s.put_cell(task, cell)
            assert answer.status == 201, answer.body
            cls.version[task] = answer.json["version"]

    def ours(self, task, *inputs, **params):
        answer = self.s.infer({"task": task, "inputs": list(inputs), "parameters": params})
        self.assertEqual(answer.status, 200, answer.body)
        return answer.json["outputs"]

    def good(self, path, body):
        answer = post(self.s, path, body)
        self.assertEqual(answer.status, 200, answer.body)
        return answer.json

    # ---- vLLM

    def test_classify(self):
        got = self.good("/classify", {"model": "rate", "input": ["a b", "c"]})
        for data, want in zip(got["data"], self.ours("rate", "a b", "c")):
            self.assertEqual((data["label"], data["probs"], data["num_classes"]),
                             (want["label"], list(want["scores"].values()), 3))
        self.assertEqual(got["object"], "list")
        self.assertEqual(post(self.s, "/classify", {"model": "embed", "input": "x"}).error, (422, "wrong_kind", "model"))

    def test_pooling_of_each_kind(self):
        one = {"input": "a b"}
        got = self.good("/pooling", {"model": "embed", **one})["data"][0]
        self.assertEqual(got["data"], self.ours("embed", "a b")[0]["embedding"])
        self.assertEqual(self.good("/pooling", {"model": "rate", **one})["data"][0]["data"],
                         list(self.ours("rate", "a b")[0]["scores"].values()))
        rows = self.good("/pooling", {"model": "names", **one})["data"][0]["data"]
        self.assertEqual(len(rows), len(self.ours("names", "a b")[0]["tokens"]) + 2)
        self.assertTrue(all(near(sum(row), 1, 1e-5) for row in rows))
        self.assertIsInstance(self.good("/pooling", {"model": "embed", "encoding_format": "base64", **one})["data"][0]["data"], str)

    def price(self, a, b):
        out = self.ours("price", {"text": a, "text_pair": b})[0]
        return out["value"] if "value" in out else None

    def cosine(self, a, b):
        x, y = (o["embedding"] for o in self.ours("embed", a, b))
        return sum(p * q for p, q in zip(x, y)) / math.sqrt(sum(p * p for p in x) * sum(q * q for q in y))

    def test_an_embedding_scores_by_its_cosine(self):
        one = self.good("/score", {"model": "embed", "text_1": "a b", "text_2": ["x", "a b", "y z"]})
        for data, text in zip(one["data"], ("x", "a b", "y z"), strict=True):
            self.assertTrue(near(data["score"], self.cosine("a b", text)), data)
        self.assertEqual([d["index"] for d in one["data"]], [0, 1, 2])
        prompt = sum(self.s.infer({"task": "embed", "input": t}).json["usage"]["prompt_tokens"] for t in ("a b", "x", "a b", "y z"))
        self.assertEqual(one["usage"]["prompt_tokens"], prompt)
        pairs = self.good("/v1/score", {"model": "embed", "text_1": ["a", "b c"], "text_2": ["x", "y"]})["data"]
        self.assertEqual(len(pairs), 2)
        self.assertTrue(near(pairs[1]["score"], self.cosine("b c", "y")))
        base = self.good("/score", {"model": "bert", "text_1": "a", "text_2": "a"})["data"]
        self.assertTrue(near(base[0]["score"], 1))

    def test_an_embedding_ranks(self):
        documents = ["x", "a b", "y z", "hello there"]
        want = sorted(range(4), key=lambda i: -self.cosine("a b", documents[i]))
        got = self.good("/v1/rerank", {"model": "embed", "query": "a b", "documents": documents})["results"]
        self.assertEqual([r["index"] for r in got], want)
        self.assertEqual([r["document"]["text"] for r in got], [documents[i] for i in want])
        tei = self.good("/rerank", {"model": "embed", "query": "a b", "texts": documents, "return_text": True})
        self.assertEqual([(r["index"], r["text"]) for r in tei], [(i, documents[i]) for i in want])

    def test_scores_have_vllms_other_names_and_errors_use_them(self):
        want = self.good("/score", {"model": "embed", "text_1": "a", "text_2": ["x", "y"]})["data"]
        for first, second in (("queries", "documents"), ("queries", "items"), ("data_1", "data_2")):
            self.assertEqual(self.good("/score", {"model": "embed", first: "a", second: ["x", "y"]})["data"], want)
        long = "a " * 3000
        for body, status, code, param in (
                ({"queries": "a"}, 400, "bad_field", "queries"), ({"text_1": "a"}, 400, "missing_field", "text_2"),
                ({"text_1": "a", "documents": ["x"]}, 400, "bad_field", "text_1"),
                ({"queries": "a", "documents": ["x"], "data_1": "a"}, 400, "bad_field", "data_1"),
                ({"queries": "a", "documents": ["x", 1]}, 400, "bad_field", "documents[1]"),
                ({"queries": long, "documents": ["x", "y"]}, 422, "input_too_long", "queries"),
                ({"queries": ["a", long], "documents": ["x", "y"]}, 422, "input_too_long", "queries[1]"),
                ({"queries": "a", "documents": ["x", long]}, 422, "input_too_long", "documents[1]"),
                ({"queries": ["a"] * 3000, "documents": ["x"] * 3000}, 400, "bad_field", "documents"),
                ({"queries": "a", "documents": ["x"] * 100000}, 400, "bad_field", "documents")):
            answer = post(self.s, "/score", {"model": "embed", **body})
            self.assertEqual(answer.error, (status, code, param), str(body)[:80])

    def test_score_and_rerank_need_one_output(self):
        if self.price("a", "b") is None:
            for path, body in (("/score", {"text_1": "a", "text_2": "b"}), ("/rerank", {"query": "a", "documents": ["b"]})):
                self.assertEqual(post(self.s, path, {"model": "price", **body}).error, (422, "wrong_kind", "model"))
        for task in ("rate", "topics", "names"):  # several outputs: refused, as vLLM and TEI do
            self.assertEqual(post(self.s, "/score", {"model": task, "text_1": "a", "text_2": "b"}).error, (422, "wrong_kind", "model"))
            self.assertEqual(post(self.s, "/rerank", {"model": task, "query": "a", "texts": ["b"]}).error, (422, "wrong_kind", "model"))

    def test_pairs_are_refused_by_name(self):
        for path, body, error in (
                ("/score", {"text_1": ["a", "b"], "text_2": ["x", "y", "z"]}, (400, "bad_field", "text_1")),
                ("/score", {"text_1": "a"}, (400, "missing_field", "text_2")),
                ("/score", {"text_1": "a", "text_2": []}, (400, "bad_field", "text_2")),
                ("/score", {"text_1": "a", "text_2": ["x", 1]}, (400, "bad_field", "text_2[1]")),
                ("/rerank", {"query": "a"}, (400, "missing_field", "texts")),
                ("/rerank", {"query": "a", "documents": "b"}, (400, "bad_field", "documents")),
                ("/rerank", {"query": 1, "documents": ["b"]}, (400, "bad_field", "query")),
                ("/rerank", {"query": "a", "documents": ["b"], "top_n": -1}, (400, "bad_field", "top_n")),
                ("/v1/rerank", {"query": "a", "documents": ["b"], "texts": []}, (400, "unknown_field", "texts"))):
            self.assertEqual(post(self.s, path, {"model": "price", **body}).error, error)

    def test_tokenize_and_detokenize(self):
        got = self.good("/tokenize", {"model": "rate", "prompt": "a b", "return_token_strs": True})
        self.assertEqual(got["count"], len(got["tokens"]))
        self.assertEqual(len(got["token_strs"]), got["count"])
        bare = self.good("/tokenize", {"prompt": "a b", "add_special_tokens": False})
        self.assertEqual(bare["tokens"], got["tokens"][1:-1])
        self.assertIsNone(bare["token_strs"])
        self.assertEqual(self.good("/detokenize", {"tokens": bare["tokens"]}), {"prompt": "a b"})
        for path, body, error in (("/tokenize", {}, (400, "missing_field", "prompt")),
                                  ("/tokenize", {"prompt": "x", "model": "none"}, (404, "unknown_task", "model")),
                                  ("/tokenize", {"prompt": "x", "add_generation_prompt": False}, (400, "bad_field", "add_generation_prompt")),
                                  ("/tokenize", {"messages": [{"role": "user", "content": "x"}]}, (422, "wrong_kind", "messages")),
                                  ("/detokenize", {"tokens": [10 ** 8]}, (400, "bad_field", "tokens")),
                                  ("/detokenize", {"tokens": [-1]}, (400, "bad_field", "tokens[0]"))):
            self.assertEqual(post(self.s, path, body).error, error)

    def test_a_large_text_is_tokenized_beside_others(self):
        got = self.good("/tokenize", {"prompt": "a b " * 100000})
        self.assertEqual(got["count"], 200002)

    # ---- text-embeddings-inference

    def test_embed_is_normalised_unless_told_otherwise(self):
        want = self.ours("embed", "a b", "c")
        got = self.good("/embed", {"model": "embed", "inputs": ["a b", "c"], "normalize": False})
        self.assertEqual(got, [w["embedding"] for w in want])
        for unit, plain in zip(self.good("/embed", {"model": "embed", "inputs": ["a b", "c"]}), got):
            length = math.sqrt(sum(x * x for x in plain))
            self.assertTrue(all(near(u, p / length) for u, p in zip(unit, plain)))
        self.assertEqual(self.good("/embed", {"inputs": "a b", "normalize": False}), [self.ours("base", "a b")[0]["embedding"]])

    def test_predict_is_one_list_or_one_for_each(self):
        want = self.ours("rate", "a b")[0]
        got = self.good("/predict", {"model": "rate", "inputs": "a b"})
        self.assertEqual({p["label"]: p["score"] for p in got}, want["scores"])
        self.assertEqual([p["score"] for p in got], sorted((p["score"] for p in got), reverse=True))
        self.assertEqual(self.good("/predict", {"model": "rate", "inputs": [["a b"]]}), [got])
        pair = self.good("/predict", {"model": "rate", "inputs": ["a b", "c"]})
        self.assertEqual({p["label"]: p["score"] for p in pair}, self.ours("rate", {"text": "a b", "text_pair": "c"})[0]["scores"])
        self.assertEqual(self.good("/predict", {"model": "rate", "inputs": [["a b", "c"], ["a b"]]}), [pair, got])
        raw = self.good("/predict", {"model": "rate", "inputs": "a b", "raw_scores": True})
        self.assertEqual(sorted(p["score"] for p in raw), sorted(self.ours("rate", "a b", logits=True)[0]["logits"]))
        for inputs in ([], ["a", "b", "c"], [["a"], "b"], 5, [[]]):
            self.assertEqual(post(self.s, "/predict", {"model": "rate", "inputs": inputs}).error[:2], (400, "bad_field"))

    def test_info_names_the_base_and_limits(self):
        info = self.s.request("GET", "/info").json
        used = self.s.request("GET", "/v1/info").json["engine"]
        self.assertEqual((info["model_id"], info["max_client_batch_size"]), ("bert", 1024))
        self.assertEqual((info["max_batch_tokens"], info["max_batch_requests"]), (used["max_batch_tokens"], used["max_batch_jobs"]))
        self.assertGreater(used["max_batch_tokens"], 0)

    # ---- llama-server

    def test_health_and_the_list_of_adapters(self):
        self.assertEqual(self.s.request("GET", "/health").json, {"status": "ok"})
        got = self.s.request("GET", "/lora-adapters").json
        self.assertEqual([a["path"] for a in got], sorted(self.version))
        self.assertEqual([a["id"] for a in got], list(range(5)))

    # ---- KServe v2

    def v2(self, task, inputs, status=200, **more):
        answer = post(self.s, f"/v2/models/{task}/infer", {"inputs": inputs, **more})
        self.assertEqual(answer.status, status, answer.body)
        return answer.json

    def test_v2_says_what_it_is(self):
        self.assertEqual(self.s.request("GET", "/v2").json["name"], "peftd")
        for state in ("live", "ready"):
            self.assertEqual(self.s.request("GET", "/v2/health/" + state).json, {state: True})

    def test_v2_metadata_of_a_task_and_of_a_version(self):
        got = self.s.request("GET", "/v2/models/rate").json
        self.assertEqual((got["name"], got["versions"]), ("rate", [self.version["rate"]]))
        self.assertEqual([o["name"] for o in got["outputs"]], ["label", "scores"])
        self.assertEqual(got["inputs"], [{"name": "text", "datatype": "BYTES", "shape": [-1]}])
        version = self.version["rate"]
        self.assertEqual(self.s.request("GET", f"/v2/models/rate/versions/{version}").json, got)
        self.assertEqual(self.s.request("GET", f"/v2/models/rate/versions/{version}/ready").json, {"name": "rate", "ready": True})
        self.assertEqual(self.s.request("GET", "/v2/models/bert").json["outputs"][0]["name"], "embedding")
        for path, status in (("none", 404), ("none/ready", 404), ("rate/versions/00000000/ready", 404), ("rate/versions/x", 400)):
            answer = self.s.request("GET", "/v2/models/" + path)
            self.assertEqual(answer.status, status)
            self.assertIsInstance(answer.json["error"], str)

    def test_v2_infer_of_texts(self):
        got = self.v2("rate", [{"name": "text", "shape": [2], "datatype": "BYTES", "data": ["a b", "c"]}], id="x")
        self.assertEqual((got["model_name"], got["model_version"], got["id"]), ("rate", self.version["rate"], "x"))
        outputs = {o["name"]: o for o in got["outputs"]}
        want = self.ours("rate", "a b", "c")
        self.assertEqual((outputs["label"]["shape"], outputs["label"]["data"]), ([2], [w["label"] for w in want]))
        self.assertEqual((outputs["scores"]["shape"], outputs["scores"]["data"]),
                         ([2, 3], [x for w in want for x in w["scores"].values()]))

    def test_v2_infer_of_pairs_tokens_and_named_outputs(self):
        pair = self.v2("rate", [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]},
                                {"name": "text_pair", "shape": [1], "datatype": "BYTES", "data": ["b"]}], outputs=[{"name": "logits"}])
        self.assertEqual([o["name"] for o in pair["outputs"]], ["logits"])
        self.assertEqual(pair["outputs"][0]["data"], self.ours("rate", {"text": "a", "text_pair": "b"}, logits=True)[0]["logits"])
        for datatype, data in (("INT64", [[2, 5, 3]]), ("INT32", [2, 5, 3])):
            got = self.v2("embed", [{"name": "tokens", "shape": [1, 3], "datatype": datatype, "data": data}])
            self.assertEqual(got["outputs"][0]["data"], self.ours("embed", {"tokens": [2, 5, 3]})[0]["embedding"])
        tags = self.v2("names", [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a b"]}])["outputs"][0]
        self.assertEqual((tags["shape"][0], math.prod(tags["shape"])), (1, len(tags["data"])))

    def test_v2_infer_of_bytes_behind_the_json(self):
        raw = b"".join(struct.pack("<I", len(t)) + t for t in (b"a b", b"c"))
        head = json.dumps({"parameters": {"binary_data_output": False},
                           "inputs": [{"name": "text", "shape": [2], "datatype": "BYTES",
                                       "parameters": {"binary_data_size": len(raw)}}]}).encode()
        headers = {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"}
        answer = self.s.request("POST", "/v2/models/rate/infer", head + raw, headers)
        self.assertEqual(answer.status, 200, answer.body)
        self.assertEqual(answer.json["outputs"][0]["data"], [o["label"] for o in self.ours("rate", "a b", "c")])
        for body, length in ((head + raw[:-1], len(head)), (head + raw + b"x", len(head)), (head, len(head) + 9), (head + raw, -1)):
            answer = self.s.request("POST", "/v2/models/rate/infer", body, {**headers, "Inference-Header-Content-Length": str(length)})
            self.assertEqual((answer.status, answer.json["code"]), (400, "bad_field"), answer.body)
        raw = struct.pack("<I", 2 ** 32 - 1) + b"a"
        head = head.replace(b'"shape": [2]', b'"shape": [1]').replace(b": 12", b": 5")
        answer = self.s.request("POST", "/v2/models/rate/infer", head + raw, {**headers, "Inference-Header-Content-Length": str(len(head))})
        self.assertEqual(answer.status, 400)

    def v2_binary(self, server, task, text, **more):
        """{name: (shape, floats or texts)} of an answer with bytes, those without `bytes` as JSON; each byte is accounted for."""
        body = {"inputs": [{"name": "text", "shape": [len(text)], "datatype": "BYTES", "data": list(text)}], **more}
        answer = post(server, f"/v2/models/{task}/infer", body)
        self.assertEqual((answer.status, answer.headers["Content-Type"]), (200, "application/octet-stream"), answer.body)
        n = int(answer.headers["Inference-Header-Content-Length"])
        head, tail = json.loads(answer.body[:n]), answer.body[n:]
        found = {}
        for o in head["outputs"]:
            self.assertEqual(len({"data", "parameters"} & set(o)), 1)
            if "data" in o:
                found[o["name"]] = o["shape"], o["data"]
                continue
            mine, tail = tail[:o["parameters"]["binary_data_size"]], tail[o["parameters"]["binary_data_size"]:]
            if o["datatype"] == "FP32":
                found[o["name"]] = o["shape"], list(struct.unpack(f"<{math.prod(o['shape'])}f", mine))
                continue
            texts = []
            while mine:
                size = struct.unpack("<I", mine[:4])[0]
                self.assertLessEqual(4 + size, len(mine))
                texts.append(mine[4:4 + size].decode())
                mine = mine[4 + size:]
            self.assertEqual([len(texts)], o["shape"])
            found[o["name"]] = o["shape"], texts
        self.assertEqual(tail, b"")
        return found

    def test_v2_answers_in_bytes_where_it_is_asked_to(self):
        f32 = lambda v: [struct.unpack("<f", struct.pack("<f", x))[0] for x in v]
        want = self.ours("rate", "a b", "c", logits=True)
        labels, scores = [w["label"] for w in want], f32(x for w in want for x in w["scores"].values())
        everything = self.v2_binary(self.s, "rate", ["a b", "c"], parameters={"binary_data_output": True})
        self.assertEqual(everything, {"label": ([2], labels), "scores": ([2, 3], scores)})
        one = [{"name": "scores", "parameters": {"binary_data": True}}, {"name": "label"}]
        self.assertEqual(self.v2_binary(self.s, "rate", ["a b", "c"], outputs=one), everything)
        but = [{"name": "logits"}, {"name": "label", "parameters": {"binary_data": False}}]
        got = self.v2_binary(self.s, "rate", ["a b", "c"], outputs=but, parameters={"binary_data_output": True})
        self.assertEqual(got, {"label": ([2], labels), "logits": ([2, 3], f32(x for w in want for x in w["logits"]))})
        vector = self.v2_binary(self.s, "embed", ["a b"], parameters={"binary_data_output": True})["embedding"]
        self.assertEqual(vector[1], f32(self.ours("embed", "a b")[0]["embedding"]))
        tags = self.v2_binary(self.s, "names", ["a b"], parameters={"binary_data_output": True})["scores"]
        self.assertEqual((tags[0][0], math.prod(tags[0])), (1, len(tags[1])))
        version = self.version["rate"]
        self.assertEqual(self.v2_binary(self.s, f"rate/versions/{version[:8]}", ["a b", "c"], parameters={"binary_data_output": True}),
                         everything)
        for more, param in (({"parameters": {"binary_data_output": 1}}, "parameters.binary_data_output"),
                            ({"outputs": [{"name": "scores", "parameters": {"binary_data": "yes"}}]}, "outputs[0].parameters.binary_data"),
                            ({"outputs": [{"name": "scores", "parameters": 1}]}, "outputs[0].parameters")):
            text = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]}
            answer = post(self.s, "/v2/models/rate/infer", {"inputs": [text], **more})
            self.assertEqual((answer.status, answer.json["code"]), (400, "bad_field"))
            self.assertTrue(answer.json["error"].startswith(param + ":"), answer.json)

    def test_v2_refusals_are_sentences(self):
        text = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]}
        for task, body, status, code in (
                ("rate", {}, 400, "missing_field"), ("rate", {"inputs": [{**text, "name": "x"}]}, 400, "bad_field"),
                ("rate", {"inputs": [{**text, "shape": [2]}]}, 400, "bad_field"),
                ("rate", {"inputs": [{**text, "shape": [2147483647, 0], "name": "tokens", "datatype": "INT64"}]}, 400, "bad_field"),
                ("rate", {"inputs": [{**text, "shape": []}]}, 400, "bad_field"),
                ("rate", {"inputs": [{**text, "datatype": "FP32"}]}, 400, "bad_field"),
                ("rate", {"inputs": [{**text, "data": [[["a"]]]}]}, 400, "bad_field"),
                ("rate", {"inputs": [text], "outputs": [{"name": "embedding"}]}, 400, "bad_field"),
                ("rate", {"inputs": [text], "parameters": {"x": 1}}, 400, "unknown_field"),
                ("names", {"inputs": [{**text, "shape": [2], "data": ["a", "b"]}]}, 400, "bad_field"),
                ("none", {"inputs": [text]}, 404, "unknown_task"), ("rate/versions/00000000", {"inputs": [text]}, 404, "unknown_version")):
            answer = post(self.s, f"/v2/models/{task}/infer", body)
            self.assertEqual((answer.status, answer.json["code"]), (status, code), answer.body)
            self.assertIsInstance(answer.json["error"], str)


class CrossEncoder(unittest.TestCase):
    """A regression of one value, on the goldens' base."""

    @classmethod
    def setUpClass(cls):
        cls.s = Server("bert")
        cls.addClassCleanup(cls.s.__exit__, None, None, None)
        answer = cls.s.put_cell("fit", "bert-ah-head-regression")
        assert answer.status == 201, answer.body

    def value(self, a, b):
        return self.s.infer({"task": "fit", "input": {"text": a, "text_pair": b}}).json["output"]["value"]

    def test_score(self):
        got = post(self.s, "/score", {"model": "fit", "text_1": "a", "text_2": ["x", "y z"]})
        self.assertEqual(got.status, 200, got.body)
        for data, b in zip(got.json["data"], ("x", "y z")):
            self.assertTrue(near(data["score"], 1 / (1 + math.exp(-self.value("a", b)))))
        pairs = post(self.s, "/v1/score", {"model": "fit", "text_1": ["a", "b"], "text_2": ["x", "y"]}).json["data"]
        self.assertTrue(near(pairs[1]["score"], 1 / (1 + math.exp(-self.value("b", "y")))))
        raw = post(self.s, "/score", {"model": "fit", "text_1": "a", "text_2": "x", "use_activation": False}).json["data"]
        self.assertTrue(near(raw[0]["score"], self.value("a", "x")))

    def test_rerank_has_the_best_first(self):
        documents = ["x", "y z", "hello there", "w"]
        want = sorted(range(4), key=lambda i: -self.value("a", documents[i]))
        got = post(self.s, "/rerank", {"model": "fit", "query": "a", "documents": documents, "top_n": 2})
        self.assertEqual(got.status, 200, got.body)
        self.assertEqual([x["index"] for x in got.json["results"]], want[:2])
        self.assertEqual(got.json["results"][0]["document"]["text"], documents[want[0]])
        tei = post(self.s, "/rerank", {"model": "fit", "query": "a", "texts": documents, "raw_scores": True}).json
        self.assertEqual([x["index"] for x in tei], want)
        self.assertTrue(near(tei[0]["score"], self.value("a", documents[want[0]])))
        self.assertNotIn("text", tei[0])
        self.assertEqual(post(self.s, "/rerank", {"model": "fit", "query": "a", "texts": ["x"], "return_text": True}).json[0]["text"], "x")


class Decoder(unittest.TestCase):
    def test_v2_generates_and_tokenize_takes_messages(self):
        base = ChatBase()
        self.addCleanup(base.dir.cleanup)
        with Server(base.path) as s:
            want = s.infer({"task": "base", "input": "a b", "parameters": {"max_tokens": 4}}).json["output"]
            got = post(s, "/v2/models/tiny-chat/infer", {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a b"]}],
                                                         "parameters": {"max_tokens": 4},
                                                         "outputs": [{"name": "text"}, {"name": "finish_reason"}]})
            self.assertEqual(got.status, 200, got.body)
            self.assertEqual([o["data"] for o in got.json["outputs"]], [[want["text"]], [want["finish_reason"]]])
            got = Encoder.v2_binary(self, s, "base", ["a b", "c"], parameters={"max_tokens": 4, "binary_data_output": True})
            self.assertEqual((got["text"][0], got["text"][1][0]), ([2], want["text"]))
            messages = [{"role": "user", "content": "hi"}]
            tokens = post(s, "/tokenize", {"messages": messages}).json["tokens"]
            chat = s.infer({"task": "base", "input": {"messages": messages}, "parameters": {"max_tokens": 1}}).json
            self.assertEqual(len(tokens), chat["usage"]["prompt_tokens"])
            self.assertEqual(s.infer({"task": "base", "input": {"tokens": tokens}, "parameters": {"max_tokens": 1}}).json["output"],
                             chat["output"])


if __name__ == "__main__":
    unittest.main()
