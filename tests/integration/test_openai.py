"""OpenAI's routes over plain HTTP: models, completions, chat, embeddings, streams and refusals. tests/clients has the real clients."""

import base64
import json
import os
import shutil
import struct
import tempfile
import unittest

from tests.integration.server import ENDLESS, GOLDEN, Server, adapter_files


def post(server, path, body, **headers):
    return server.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **headers})


def events(answer):
    parts = answer.body.decode().split("\n\n")
    assert parts.pop() == "" and parts.pop() == "data: [DONE]", answer.body
    return [json.loads(part.removeprefix("data: ")) for part in parts]


class ChatBase:
    """The small decoder with a ChatML template, in a folder of its own; its served name is the folder's."""

    def __init__(self, name="tiny-chat"):
        self.dir = tempfile.TemporaryDirectory(prefix="peftd-base-")
        self.path = os.path.join(self.dir.name, name)
        shutil.copytree(os.path.join(GOLDEN, "bases", "llama"), self.path)
        with open(os.path.join(GOLDEN, "chat", "chatml.jinja"), encoding="utf-8") as f:
            template = f.read()
        config = os.path.join(self.path, "tokenizer_config.json")
        with open(config, encoding="utf-8") as f:
            said = json.load(f)
        with open(config, "w", encoding="utf-8") as f:
            json.dump({**said, "chat_template": template}, f)


class Decoder(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.base = ChatBase()
        cls.addClassCleanup(cls.base.dir.cleanup)
        cls.s = Server(cls.base.path)
        cls.addClassCleanup(cls.s.__exit__, None, None, None)
        answer = cls.s.put_cell("good", "llama-peft-lora")
        assert answer.status == 201, answer.body
        cls.version = answer.json["version"]

    def complete(self, **body):
        return post(self.s, "/v1/completions", {"model": "good", "prompt": "a b", "max_tokens": 4, "temperature": 0, **body})

    def chat(self, **body):
        return post(self.s, "/v1/chat/completions", {"model": "good", "messages": [{"role": "user", "content": "hi"}],
                                                     "max_tokens": 6, "temperature": 0, **body})

    def ours(self, value, **params):
        answer = self.s.infer({"task": "good", "input": value, "parameters": {"max_tokens": 4, **params}})
        self.assertEqual(answer.status, 200, answer.body)
        return answer.json["output"]

    def test_models_are_the_base_and_every_task(self):
        models = self.s.request("GET", "/v1/models").json
        self.assertEqual(models["object"], "list")
        cards = {card["id"]: card for card in models["data"]}
        self.assertEqual(list(cards), ["tiny-chat", "good"])
        self.assertEqual((cards["good"]["parent"], cards["good"]["root"], cards["good"]["version"]),
                         ("tiny-chat", "good", self.version))
        self.assertIsNone(cards["tiny-chat"]["parent"])
        for name, card in (("good", "good"), ("good@" + self.version[:8], "good"), ("tiny-chat", "tiny-chat"), ("base", "tiny-chat")):
            self.assertEqual(self.s.request("GET", "/v1/models/" + name).json["id"], card)
        for name, code in (("none", "unknown_task"), ("good@00000000", "unknown_version")):
            self.assertEqual(self.s.request("GET", "/v1/models/" + name).error, (404, code, "model"))
        self.assertEqual(self.s.request("GET", "/v1/models/good@x").error, (400, "bad_field", "model"))

    def test_a_completion_is_what_infer_gives(self):
        answer = self.complete()
        self.assertEqual(answer.status, 200, answer.body)
        got, want = answer.json, self.ours("a b")
        self.assertEqual(got["object"], "text_completion")
        self.assertEqual(got["choices"], [{"index": 0, "text": want["text"], "logprobs": None,
                                           "finish_reason": want["finish_reason"]}])
        self.assertEqual(got["usage"]["total_tokens"], got["usage"]["prompt_tokens"] + got["usage"]["completion_tokens"])
        self.assertEqual(got["id"], "cmpl-" + answer.headers["X-Request-Id"])
        self.assertEqual(answer.headers["X-Peftd-Version"], self.version)

    def test_the_base_answers_by_its_served_name(self):
        want = self.s.infer({"task": "base", "input": "a b", "parameters": {"max_tokens": 4}}).json["output"]["text"]
        for model in ("base", "tiny-chat"):
            self.assertEqual(self.complete(model=model).json["choices"][0]["text"], want)

    def test_a_version_answers_for_itself(self):
        answer = self.complete(model="good@" + self.version[:10])
        self.assertEqual((answer.status, answer.json["model"]), (200, "good@" + self.version[:10]))

    def test_prompts_are_texts_or_tokens_one_or_several(self):
        tokens = [5, 6, 7]
        both = self.complete(prompt=[tokens, [9, 8]]).json["choices"]
        self.assertEqual([c["index"] for c in both], [0, 1])
        self.assertEqual(both[0]["text"], self.complete(prompt=tokens).json["choices"][0]["text"])
        self.assertEqual(both[0]["text"], self.ours({"tokens": tokens})["text"])
        texts = self.complete(prompt=["a b", "c"]).json
        self.assertEqual([c["text"] for c in texts["choices"]], [self.ours("a b")["text"], self.ours("c")["text"]])

    def test_n_completions_of_each_prompt_in_order(self):
        got = self.complete(prompt=["a b", "c"], n=2, seed=3, temperature=1).json
        self.assertEqual([c["index"] for c in got["choices"]], [0, 1, 2, 3])
        for i, prompt in enumerate(("a b", "c")):
            for k in range(2):
                alone = self.complete(prompt=prompt, seed=3 + k, temperature=1).json["choices"][0]["text"]
                self.assertEqual(got["choices"][2 * i + k]["text"], alone)

    def test_defaults_are_openais(self):
        body = {"model": "good", "prompt": "a b", "seed": 11, "ignore_eos": True}
        got = post(self.s, "/v1/completions", body).json
        self.assertEqual(got["usage"]["completion_tokens"], 16)
        self.assertEqual(got["choices"][0]["text"], self.ours("a b", max_tokens=16, temperature=1, seed=11, ignore_eos=True)["text"])
        chat = post(self.s, "/v1/chat/completions", {"model": "good", "seed": 1, "ignore_eos": True,
                                                     "messages": [{"role": "user", "content": "x"}]}).json
        self.assertEqual(chat["usage"]["total_tokens"], 256)  # the context

    def test_logprobs_of_completions(self):
        got = self.complete(logprobs=2, max_tokens=3).json["choices"][0]["logprobs"]
        want = self.ours("a b", max_tokens=3, logprobs=2)["logprobs"]
        self.assertEqual(got["tokens"], [t["token"] for t in want])
        self.assertEqual(got["token_logprobs"], [t["logprob"] for t in want])
        for top, token in zip(got["top_logprobs"], want):
            self.assertEqual(max(top.values()), token["logprob"])
        self.assertEqual(got["text_offset"][0], 0)
        self.assertEqual(got["text_offset"][1], len(got["tokens"][0]))
        only = self.complete(logprobs=0).json["choices"][0]["logprobs"]
        self.assertTrue(all(len(top) == 1 for top in only["top_logprobs"]))

    def test_chat_is_what_infer_gives_for_messages(self):
        answer = self.chat()
        self.assertEqual(answer.status, 200, answer.body)
        want = self.ours({"messages": [{"role": "user", "content": "hi"}]}, max_tokens=6)
        choice = answer.json["choices"][0]
        self.assertEqual(choice["message"], {"role": "assistant", "content": want["text"], "refusal": None})
        self.assertEqual((answer.json["object"], choice["finish_reason"]), ("chat.completion", want["finish_reason"]))

    def test_content_may_be_parts_of_text_and_names_for_max_tokens_are_two(self):
        parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
        joined = [{"role": "user", "content": "a\nb"}]
        self.assertEqual(self.chat(messages=parts).json["choices"], self.chat(messages=joined).json["choices"])
        got = self.chat(max_tokens=None, max_completion_tokens=2, ignore_eos=True).json
        self.assertEqual(got["usage"]["completion_tokens"], 2)

    def test_logprobs_of_chat(self):
        got = self.chat(logprobs=True, top_logprobs=2).json["choices"][0]["logprobs"]["content"]
        self.assertTrue(all(len(t["top_logprobs"]) == 2 for t in got))
        for t in got:
            if t["bytes"] is not None:
                self.assertEqual(bytes(t["bytes"]).decode(), t["token"])
        bare = self.chat(logprobs=True).json["choices"][0]["logprobs"]["content"]
        self.assertEqual([(t["logprob"], t["top_logprobs"]) for t in bare], [(t["logprob"], []) for t in got])

    def test_a_chat_stream_put_together_is_the_answer(self):
        whole = self.chat(n=2, seed=1, temperature=1, logprobs=True).json
        chunks = events(self.chat(n=2, seed=1, temperature=1, logprobs=True, stream=True, stream_options={"include_usage": True}))
        self.assertEqual(chunks[-1]["usage"], whole["usage"])
        self.assertEqual(chunks[-1]["choices"], [])
        for chunk in chunks[:-1]:
            self.assertEqual((chunk["object"], chunk["usage"], chunk["id"]), ("chat.completion.chunk", None, chunks[0]["id"]))
        for choice in whole["choices"]:
            mine = [c["choices"][0] for c in chunks[:-1] if c["choices"][0]["index"] == choice["index"]]
            self.assertEqual(mine[0]["delta"], {"role": "assistant", "content": ""})
            self.assertEqual("".join(c["delta"].get("content", "") for c in mine), choice["message"]["content"])
            self.assertEqual([c["finish_reason"] for c in mine], [None] * (len(mine) - 1) + [choice["finish_reason"]])
            self.assertEqual(mine[-1]["delta"], {})
            tokens = [t for c in mine if c["logprobs"] for t in c["logprobs"]["content"]]
            self.assertEqual(tokens, choice["logprobs"]["content"])

    def test_a_completion_stream_put_together_is_the_answer(self):
        body = {"prompt": ["a b", "c"], "n": 2, "seed": 1, "temperature": 1, "logprobs": 1}
        whole, chunks = self.complete(**body).json, events(self.complete(**body, stream=True))
        for choice in whole["choices"]:
            mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == choice["index"]]
            self.assertEqual("".join(c["text"] for c in mine), choice["text"])
            self.assertEqual(mine[-1]["finish_reason"], choice["finish_reason"])
            for name, want in choice["logprobs"].items():
                self.assertEqual([x for c in mine for x in c["logprobs"][name]], want, name)
        self.assertTrue(all("usage" not in c for c in chunks))

    def test_a_stop_text_ends_before_it(self):
        text = self.complete(max_tokens=8).json["choices"][0]["text"]
        stop = text[2:4]
        got = self.complete(max_tokens=8, stop=[stop]).json["choices"][0]
        self.assertEqual((got["text"], got["finish_reason"]), (text[:text.index(stop)], "stop"))

    def test_an_error_in_a_stream_is_its_last_event(self):
        with Server("llama", "--context-max", "100000") as s:
            answer = post(s, "/v1/completions", {"model": "base", "prompt": "x", "max_tokens": ENDLESS, "ignore_eos": True,
                                                 "stream": True, "timeout": 0.3})
            self.assertEqual(answer.status, 200)
            got = events(answer)
            self.assertEqual(got[-1]["error"]["code"], "timeout")
            self.assertTrue(all("choices" in chunk for chunk in got[:-1]))

    def test_what_is_not_there_is_refused_by_name(self):
        for field, value in (("presence_penalty", 0.5), ("frequency_penalty", -1), ("logit_bias", {"5": 1}), ("best_of", 3),
                             ("echo", True), ("suffix", "x")):
            self.assertEqual(self.complete(**{field: value}).error, (400, "bad_field", field))
        for field, value in (("tools", [{"type": "function"}]), ("response_format", {"type": "json_object"}),
                             ("modalities", ["audio"]), ("tool_choice", "auto"), ("top_logprobs", 3), ("store", True),
                             ("stream_options", {"include_usage": True}), ("n", 0), ("n", 65), ("temperature", -1),
                             ("max_completion_tokens", 0), ("messages", []), ("messages", "x")):
            self.assertEqual(self.chat(**{field: value}).error, (400, "bad_field", field))
        for field in ("reasoning_effort", "audio", "prediction", "web_search_options", "verbosity"):
            self.assertEqual(self.chat(**{field: "low"}).error, (400, "unknown_field", field))
        for message, code, param in (({"role": "user"}, "missing_field", "messages[0].content"),
                                     ({"role": "user", "content": "x", "name": "y"}, "unknown_field", "messages[0].name"),
                                     ({"role": "user", "content": [{"type": "image_url"}]}, "bad_field", "messages[0].content"),
                                     ({"role": "tool", "content": "x"}, "bad_field", "messages[0].role")):
            self.assertEqual(self.chat(messages=[message]).error, (400, code, param))
        self.assertEqual(self.chat(stream=True, stream_options={"x": 1}).error, (400, "unknown_field", "stream_options.x"))

    def test_what_is_so_anyway_may_be_said(self):
        self.assertEqual(self.chat(presence_penalty=0, frequency_penalty=0.0, logit_bias={}, tools=[], response_format={"type": "text"},
                                   user="me", store=False, parallel_tool_calls=True).status, 200)
        self.assertEqual(self.complete(echo=False, best_of=1, suffix="", user="me").status, 200)

    def test_what_vllms_clients_say_is_understood_or_so_anyway(self):
        want = self.complete().json["choices"]
        got = self.complete(top_k=-1, use_beam_search=False, length_penalty=1.0, min_tokens=0, stop_token_ids=[], bad_words=[],
                            include_stop_str_in_output=False, skip_special_tokens=True, spaces_between_special_tokens=True,
                            add_special_tokens=True, return_token_ids=False, prompt_cache_key="x")
        self.assertEqual((got.status, got.json["choices"]), (200, want))
        self.assertEqual(self.complete(temperature=5, seed=1, top_k=1).json["choices"], want)
        self.assertNotEqual(self.complete(temperature=5, seed=1, top_k=-1).json["choices"], want)
        self.assertEqual(self.chat(add_generation_prompt=True, continue_final_message=False).status, 200)
        for field, value in (("use_beam_search", True), ("min_tokens", 2), ("stop_token_ids", [5]), ("skip_special_tokens", False),
                             ("top_k", -2), ("truncate_prompt_tokens", 5), ("truncate_prompt_tokens", True), ("prompt_cache_key", 1)):
            self.assertEqual(self.complete(**{field: value}).error, (400, "bad_field", field))
        long = "b " * 20000
        self.assertEqual(self.complete(prompt=long).status, 422)
        got, want = (self.complete(prompt=long, **how) for how in ({"truncate_prompt_tokens": -1}, {"truncate": True}))
        self.assertEqual((got.status, got.json["choices"], got.json["usage"]), (200, want.json["choices"], want.json["usage"]))

    def test_a_message_of_an_answer_may_be_sent_back_as_it_came(self):
        said = self.chat().json["choices"][0]["message"]
        ask = [{"role": "user", "content": "hi"}, said, {"role": "user", "content": "b"}]
        plain = [{"role": m["role"], "content": m["content"]} for m in ask]
        more = [ask[0], {**said, "tool_calls": [], "function_call": None, "annotations": [], "audio": None}, ask[2]]
        want = self.chat(messages=plain).json["choices"]
        for messages in (ask, more):
            got = self.chat(messages=messages)
            self.assertEqual((got.status, got.json.get("choices")), (200, want), got.body)
        for field, value in (("refusal", "no"), ("tool_calls", [{"id": "x"}]), ("audio", {"id": "x"})):
            self.assertEqual(self.chat(messages=[ask[0], {**said, field: value}]).error, (400, "bad_field", f"messages[1].{field}"))

    def test_errors_name_what_the_request_has(self):
        for body, error in (({"model": "none"}, (404, "unknown_task", "model")),
                            ({"model": None}, (400, "missing_field", "model")),
                            ({"model": "good@12345678"}, (404, "unknown_version", "model")),
                            ({"prompt": None}, (400, "missing_field", "prompt")),
                            ({"prompt": []}, (400, "bad_field", "prompt")),
                            ({"prompt": ["a", 5]}, (400, "bad_field", "prompt[1]")),
                            ({"prompt": ["a", "b " * 400]}, (422, "input_too_long", "prompt[1]")),
                            ({"prompt": [[5, 100000]]}, (400, "bad_field", "prompt[0]")),
                            ({"prompt": [5, 100000]}, (400, "bad_field", "prompt")),
                            ({"prompt": "x", "max_tokens": ENDLESS}, (422, "input_too_long", "max_tokens"))):
            self.assertEqual(self.complete(**body).error, error, body)
        self.assertEqual(post(self.s, "/v1/embeddings", {"model": "good", "input": "x"}).error, (422, "wrong_kind", "model"))

    def test_a_task_json_stands_between_openais_defaults_and_the_request(self):
        files = {**adapter_files("llama-peft-lora"), "task.json": b'{"parameters": {"max_tokens": 3, "temperature": 0, "n": 4}}'}
        self.assertEqual(self.s.put("short", files).status, 201)
        body = {"model": "short", "prompt": "a b", "ignore_eos": True}
        got = post(self.s, "/v1/completions", body).json
        self.assertEqual((got["usage"]["completion_tokens"], len(got["choices"])), (3, 1))
        self.assertEqual(got["choices"], post(self.s, "/v1/completions", body).json["choices"])  # greedy
        self.assertEqual(post(self.s, "/v1/completions", {**body, "max_tokens": 5}).json["usage"]["completion_tokens"], 5)
        self.assertEqual(self.s.request("DELETE", "/v1/adapters/short").status, 204)

    def test_calls_are_counted_as_those_of_infer(self):
        name = 'peftd_requests_total{task="good",code="200"}'
        before = self.s.metrics().get(name, 0)
        self.complete()
        self.s.wait_until(lambda: self.s.metrics()[name] == before + 1, 5)


class Encoder(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = Server("bert")
        cls.addClassCleanup(cls.s.__exit__, None, None, None)
        for task, cell in (("embed", "bert-peft-lora-embed"), ("rate", "bert-peft-lora")):
            assert cls.s.put_cell(task, cell).status == 201

    def embed(self, **body):
        return post(self.s, "/v1/embeddings", {"model": "embed", "input": "a b", **body})

    def test_embeddings_are_what_infer_gives(self):
        want = self.s.infer({"task": "embed", "inputs": ["a b", "c"]}).json
        got = self.embed(input=["a b", "c"]).json
        self.assertEqual([d["embedding"] for d in got["data"]], [o["embedding"] for o in want["outputs"]])
        self.assertEqual([d["index"] for d in got["data"]], [0, 1])
        self.assertEqual(got["usage"], {"prompt_tokens": want["usage"]["prompt_tokens"],
                                        "total_tokens": want["usage"]["prompt_tokens"]})

    def test_base64_holds_the_same_floats(self):
        plain = self.embed().json["data"][0]["embedding"]
        raw = base64.b64decode(self.embed(encoding_format="base64").json["data"][0]["embedding"], validate=True)
        packed = struct.unpack(f"<{len(raw) // 4}f", raw)
        self.assertEqual(list(packed), [struct.unpack("<f", struct.pack("<f", x))[0] for x in plain])

    def test_tokens_are_taken_as_they_are(self):
        got = self.embed(input=[[2, 5, 3], [2, 3]]).json["data"]
        want = self.s.infer({"task": "embed", "inputs": [{"tokens": [2, 5, 3]}, {"tokens": [2, 3]}]}).json["outputs"]
        self.assertEqual([d["embedding"] for d in got], [o["embedding"] for o in want])

    def test_refusals(self):
        for body, error in (({"dimensions": 8}, (400, "bad_field", "dimensions")),
                            ({"encoding_format": "int8"}, (400, "bad_field", "encoding_format")),
                            ({"input": None}, (400, "missing_field", "input")),
                            ({"input": [["a"]]}, (400, "bad_field", "input[0][0]")),
                            ({"model": "rate"}, (422, "wrong_kind", "model")),
                            ({"stream": True}, (400, "unknown_field", "stream"))):
            self.assertEqual(self.embed(**body).error, error)
        self.assertEqual(post(self.s, "/v1/chat/completions", {"model": "base", "messages": [{"role": "user", "content": "x"}]}).error,
                         (422, "wrong_kind", "model"))


if __name__ == "__main__":
    unittest.main()
