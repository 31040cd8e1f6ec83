"""Clients that exist, as their users call them, against peftd: no special casing. `make clients` installs and runs them; a
client that is not installed is skipped with that reason.
"""

import importlib
import json
import math
import os
import unittest
import urllib.request

from tests.integration.server import Server
from tests.integration.test_openai import ChatBase

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # nothing is fetched


def package(name):
    try:
        return importlib.import_module(name)
    except ImportError as e:
        raise unittest.SkipTest(f"{name} is not installed: make clients") from e


class Servers(unittest.TestCase):
    """A decoder with a chat template and an encoder, each with a task."""

    @classmethod
    def setUpClass(cls):
        base = ChatBase()
        cls.addClassCleanup(base.dir.cleanup)
        cls.decoder, cls.encoder = Server(base.path), Server("bert")
        for server, tasks in ((cls.decoder, (("good", "llama-peft-lora"),)),
                              (cls.encoder, (("embed", "bert-peft-lora-embed"), ("rate", "bert-peft-lora")))):
            cls.addClassCleanup(server.__exit__, None, None, None)
            for task, cell in tasks:
                assert server.put_cell(task, cell).status == 201

    def url(self, server, path="/v1"):
        return f"http://127.0.0.1:{server.port}{path}"

    def answer(self, value, **params):
        got = self.decoder.infer({"task": "good", "input": value, "parameters": {"max_tokens": 6, **params}})
        self.assertEqual(got.status, 200, got.body)
        return got.json["output"]


class OpenAI(Servers):
    def setUp(self):
        self.openai = package("openai")
        self.chat = self.openai.OpenAI(base_url=self.url(self.decoder), api_key="none", max_retries=0)
        self.embed = self.openai.OpenAI(base_url=self.url(self.encoder), api_key="none", max_retries=0)
        self.addCleanup(self.chat.close)
        self.addCleanup(self.embed.close)
        self.messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]

    def test_models(self):
        self.assertEqual([m.id for m in self.chat.models.list()], ["tiny-chat", "good"])
        self.assertEqual(self.chat.models.retrieve("good").owned_by, "peftd")
        with self.assertRaises(self.openai.NotFoundError):
            self.chat.models.retrieve("none")

    def test_chat(self):
        got = self.chat.chat.completions.create(model="good", messages=self.messages, max_tokens=6, temperature=0)
        want = self.answer({"messages": self.messages})
        self.assertEqual((got.choices[0].message.content, got.choices[0].finish_reason), (want["text"], want["finish_reason"]))
        self.assertEqual(got.usage.total_tokens, got.usage.prompt_tokens + got.usage.completion_tokens)

    def test_chat_stream_with_usage_and_logprobs(self):
        stream = self.chat.chat.completions.create(model="good", messages=self.messages, max_tokens=6, temperature=0, stream=True,
                                                   logprobs=True, top_logprobs=2, stream_options={"include_usage": True})
        chunks = list(stream)
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        self.assertEqual(text, self.answer({"messages": self.messages})["text"])
        self.assertIsNotNone(chunks[-1].usage)
        tokens = [t for c in chunks if c.choices and c.choices[0].logprobs for t in c.choices[0].logprobs.content]
        self.assertEqual(len(tokens), chunks[-1].usage.completion_tokens)
        self.assertTrue(all(len(t.top_logprobs) == 2 for t in tokens))

    def test_the_helper_for_streams(self):
        with self.chat.chat.completions.stream(model="good", messages=self.messages, max_tokens=6, temperature=0) as stream:
            for _ in stream:
                pass
            final = stream.current_completion_snapshot
        self.assertEqual(final.choices[0].message.content, self.answer({"messages": self.messages})["text"])

    def test_completions(self):
        got = self.chat.completions.create(model="good", prompt=["a b", "c"], max_tokens=6, temperature=0, logprobs=1, n=1)
        self.assertEqual([c.text for c in got.choices], [self.answer("a b")["text"], self.answer("c")["text"]])
        parts = self.chat.completions.create(model="good", prompt="a b", max_tokens=6, temperature=0, stream=True)
        self.assertEqual("".join(p.choices[0].text for p in parts), self.answer("a b")["text"])
        extra = self.chat.completions.create(model="good", prompt="a b", max_tokens=6, extra_body={"top_k": 1})
        self.assertEqual(extra.choices[0].text, self.answer("a b")["text"])

    def test_embeddings_by_default_as_base64(self):
        want = self.encoder.infer({"task": "embed", "inputs": ["a b", "c"]}).json["outputs"]
        for more in ({}, {"encoding_format": "float"}):
            got = self.embed.embeddings.create(model="embed", input=["a b", "c"], **more)
            for g, w in zip(got.data, want):
                self.assertTrue(all(math.isclose(x, y, rel_tol=1e-6) for x, y in zip(g.embedding, w["embedding"])))

    def test_errors_have_their_classes(self):
        create = self.chat.chat.completions.create
        for kind, more, code, param in ((self.openai.NotFoundError, {"model": "none"}, "unknown_task", "model"),
                                        (self.openai.BadRequestError, {"presence_penalty": 1}, "bad_field", "presence_penalty"),
                                        (self.openai.BadRequestError, {"tools": [{"type": "function", "function": {"name": "f"}}]},
                                         "bad_field", "tools"),
                                        (self.openai.UnprocessableEntityError, {"max_tokens": 10 ** 6}, "input_too_long", "max_tokens")):
            with self.assertRaises(kind) as caught:
                create(**{"model": "good", "messages": self.messages, **more})
            self.assertEqual((caught.exception.code, caught.exception.param), (code, param))


class Others(Servers):
    def test_litellm(self):
        litellm = package("litellm")
        litellm.suppress_debug_info = True
        how = {"model": "openai/good", "api_base": self.url(self.decoder), "api_key": "none", "temperature": 0, "max_tokens": 6}
        messages = [{"role": "user", "content": "hi"}]
        want = self.answer({"messages": messages})["text"]
        self.assertEqual(litellm.completion(messages=messages, **how).choices[0].message.content, want)
        parts = litellm.completion(messages=messages, stream=True, **how)
        self.assertEqual("".join(p.choices[0].delta.content or "" for p in parts), want)
        got = litellm.embedding(model="openai/embed", input=["a b"], api_base=self.url(self.encoder), api_key="none", encoding_format="float")
        self.assertEqual(len(got.data), 1)

    def test_langchain(self):
        langchain = package("langchain_openai")
        chat = langchain.ChatOpenAI(model="good", base_url=self.url(self.decoder), api_key="none", temperature=0, max_tokens=6, max_retries=0)
        want = self.answer({"messages": [{"role": "user", "content": "hi"}]})["text"]
        self.assertEqual(chat.invoke("hi").content, want)
        self.assertEqual("".join(part.content for part in chat.stream("hi")), want)
        embed = langchain.OpenAIEmbeddings(model="embed", base_url=self.url(self.encoder), api_key="none", check_embedding_ctx_length=False)
        got = embed.embed_documents(["a b", "c"])
        want = self.encoder.infer({"task": "embed", "inputs": ["a b", "c"]}).json["outputs"]
        for g, w in zip(got, want):
            self.assertTrue(all(math.isclose(x, y, rel_tol=1e-6) for x, y in zip(g, w["embedding"])))

    def test_tritonclient(self):
        http, numpy = package("tritonclient.http"), package("numpy")
        client = http.InferenceServerClient(f"127.0.0.1:{self.encoder.port}")
        self.addCleanup(client.close)
        self.assertTrue(client.is_server_live() and client.is_server_ready() and client.is_model_ready("rate"))
        self.assertFalse(client.is_model_ready("none"))
        self.assertEqual(client.get_model_metadata("rate")["outputs"][0]["name"], "label")
        want = self.encoder.infer({"task": "rate", "inputs": ["a b", "c"]}).json["outputs"]
        for binary in (True, False):
            text = http.InferInput("text", [2], "BYTES")
            text.set_data_from_numpy(numpy.array(["a b", "c"], dtype=object), binary_data=binary)
            for outputs in (None, [http.InferRequestedOutput("scores", binary_data=binary)]):
                got = client.infer("rate", [text], outputs=outputs)
                scores = [list(w["scores"].values()) for w in want]
                self.assertTrue(numpy.allclose(got.as_numpy("scores"), scores, atol=1e-6))
                how = "parameters" if binary or outputs is None else "data"  # the client asks for bytes unless it is told otherwise
                self.assertIn(how, got.get_output("scores"))
            labels = client.infer("rate", [text]).as_numpy("label")
            self.assertEqual([label.decode() for label in labels], [w["label"] for w in want])
        with self.assertRaises(Exception) as caught:
            client.infer("none", [text])
        self.assertIn("there is no task none", str(caught.exception))

    def test_the_specification_is_valid(self):
        validator = package("openapi_spec_validator")
        with urllib.request.urlopen(self.url(self.decoder, "/openapi.json")) as f:
            validator.validate(json.load(f))


if __name__ == "__main__":
    unittest.main()
