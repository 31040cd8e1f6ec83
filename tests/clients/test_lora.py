"""What vLLM's own tests ask of its LoRA routes and of its resolver, asked of ours with the same client and in the same order of events. Where
vLLM answers another status docs/migrating.md says so, and the test names ours.
"""

import asyncio
import json
import os
import shutil
import tempfile
import unittest

from tests.clients.test_clients import package
from tests.integration.server import GOLDEN, Server
from tests.integration.test_openai import ChatBase

PROMPTS = ["a b", "hello there"]


def cell(name):
    return os.path.join(GOLDEN, "cells", name, "adapter")


class Lora(unittest.IsolatedAsyncioTestCase):
    @classmethod
    def setUpClass(cls):
        cls.openai = package("openai")
        base = ChatBase()
        cls.addClassCleanup(base.dir.cleanup)
        cls.root = tempfile.mkdtemp(prefix="peftd-loras-")
        cls.addClassCleanup(shutil.rmtree, cls.root)
        for folder, name in (("good", "llama-peft-lora"), ("other", "llama-peft-lora-rslora"), ("third", "llama-peft-lora-patterns")):
            shutil.copytree(cell(name), os.path.join(cls.root, folder))
        cls.s = Server(base.path, "--import-root", cls.root, "--resolve", "on", "--resident-bytes", "64KiB")
        cls.addClassCleanup(cls.s.__exit__, None, None, None)
        answer = cls.s.put_cell("static", "llama-peft-lora")
        assert answer.status == 201, answer.body

    async def asyncSetUp(self):
        self.client = self.openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{self.s.port}/v1", api_key="none", max_retries=0)
        self.addAsyncCleanup(self.client.close)

    async def load(self, name, path, **more):
        body = {"lora_name": name, "lora_path": os.path.join(self.root, path), **more}
        return await self.client.post("load_lora_adapter", cast_to=str, body=body)

    async def unload(self, name):
        return await self.client.post("unload_lora_adapter", cast_to=str, body={"lora_name": name})

    async def texts(self, model):
        got = await self.client.completions.create(model=model, prompt=PROMPTS, max_tokens=5, temperature=0)
        return [c.text for c in got.choices]

    async def cards(self):
        return {m.id: m for m in (await self.client.models.list()).data}

    def changed(self, name, config=None, cut=False):
        """A copy of `good` with another configuration, or with weights that end too early; its folder below the root."""
        where = os.path.join(self.root, name)
        if not os.path.exists(where):
            shutil.copytree(os.path.join(self.root, "good"), where)
        path = os.path.join(where, "adapter_config.json")
        with open(path, encoding="utf-8") as f:
            said = json.load(f)
        with open(path, "w", encoding="utf-8") as f:
            f.write(config if isinstance(config, str) else json.dumps({**said, **(config or {})}))
        if cut:
            weights = os.path.join(where, "adapter_model.safetensors")
            os.truncate(weights, os.path.getsize(weights) // 2)
        return name

    async def test_lineage_of_what_was_there_and_of_what_is_loaded(self):
        models = (await self.client.models.list()).data
        base = models[0]
        self.assertEqual((base.id, base.root, base.parent), ("tiny-chat", "tiny-chat", None))
        self.assertIn("success", await self.load("lineage", "good"))
        cards = await self.cards()
        for name in ("static", "lineage"):
            self.assertEqual((cards[name].parent, cards[name].root, cards[name].object), (base.id, name, "model"))
        self.assertEqual((await self.client.models.retrieve("lineage")).parent, base.id)

    async def test_a_path_that_is_not_there(self):
        with self.assertRaises(self.openai.NotFoundError) as caught:
            await self.load("notfound", "not/an/adapter")
        self.assertEqual(caught.exception.code, "unknown_path")
        with self.assertRaises(self.openai.PermissionDeniedError):  # vLLM reads any path
            await self.load("notfound", "/not/an/adapter")
        self.assertNotIn("notfound", await self.cards())

    async def test_files_that_are_not_what_they_should_be(self):
        for name, how, says in (("no-json", {"config": "this is not json"}, "adapter_config.json"), ("cut", {"cut": True}, "safetensors"),
                                ("no-type", {"config": {"peft_type": "NOTHING"}}, "NOTHING"), ("no-rank", {"config": {"r": 0}}, "r"),
                                ("large-rank", {"config": {"r": 1024}}, "1024"),
                                ("dora", {"config": {"use_dora": True}}, "magnitude")):
            with self.subTest(name), self.assertRaises(self.openai.UnprocessableEntityError) as caught:  # vLLM: 500
                await self.load(name, self.changed(name, **how))
            self.assertIn(says, str(caught.exception))
            self.assertNotIn(name, await self.cards())
        for name, config in (("bias", {"bias": "all"}), ("saved", {"modules_to_save": ["lm_head"]})):  # the file has none: the base's stay
            self.assertIn("success", await self.load(name, self.changed(name, config)))

    async def test_names_that_cannot_be(self):
        for body, kind in (({"lora_path": "good"}, self.openai.BadRequestError), ({"lora_name": "x"}, self.openai.BadRequestError),
                           ({"lora_name": "", "lora_path": "good"}, self.openai.BadRequestError),
                           ({"lora_name": "tiny-chat", "lora_path": "good"}, self.openai.ConflictError),  # vLLM: 400
                           ({"lora_name": "x", "lora_path": "good", "is_3d_lora_weight": True}, self.openai.BadRequestError)):
            with self.assertRaises(kind):
                await self.client.post("load_lora_adapter", cast_to=str, body=body)

    async def test_a_name_that_is_loaded_already(self):
        self.assertIn("success", await self.load("again", "good"))
        good = await self.texts("again")
        self.assertIn("success", await self.load("again", "good"))  # vLLM: 400; here the same files are no change
        with self.assertRaises(self.openai.APIStatusError) as caught:
            await self.load("again", "other")
        self.assertEqual(caught.exception.status_code, 412)  # vLLM: 400
        self.assertIn("already been loaded", str(caught.exception))
        self.assertEqual(await self.texts("again"), good)
        self.assertIn("success", await self.load("again", "other", load_inplace=True))
        self.assertNotEqual(await self.texts("again"), good)
        with self.assertRaises(self.openai.UnprocessableEntityError):  # what does not load in place leaves what is there
            await self.load("again", self.changed("broken-in-place", cut=True), load_inplace=True)
        await self.load("beside", "other")
        self.assertEqual(await self.texts("again"), await self.texts("beside"))

    async def test_unloading(self):
        with self.assertRaises(self.openai.NotFoundError):
            await self.unload("never")
        await self.load("gone", "good")
        texts = await self.texts("gone")
        self.assertIn("removed", await self.unload("gone"))
        self.assertNotIn("gone", await self.cards())
        for call in (self.unload, self.texts):
            with self.assertRaises(self.openai.NotFoundError):
                await call("gone")
        await self.load("gone", "good")
        self.assertEqual(await self.texts("gone"), texts)

    async def test_many_adapters_at_once_through_little_memory(self):
        """Ten are loaded and asked at the same time, while fewer fit into --resident-bytes; each answers for itself. Where vLLM waits for room
        we answer 429, which the client repeats by itself."""
        self.client = self.client.with_options(max_retries=9)
        folders = ("good", "other", "third")
        for folder in folders:
            await self.load(f"alone-{folder}", folder)
        want = {folder: await self.texts(f"alone-{folder}") for folder in folders}
        self.assertEqual(len({tuple(texts) for texts in want.values()}), 3)

        async def load_and_run(i):
            await self.load(f"adapter-{i}", folders[i % 3])
            for _ in range(3):
                self.assertEqual(await self.texts(f"adapter-{i}"), want[folders[i % 3]])

        await asyncio.gather(*(load_and_run(i) for i in range(10)))
        names = [f"adapter-{i}" for i in range(10)] + ["tiny-chat", "static"]
        await asyncio.gather(*(self.texts(names[i % 12]) for i in range(48)))  # interleaved, in common steps

    async def test_the_same_name_loaded_by_many_at_once(self):
        answers = await asyncio.gather(*(self.load("race", "good") for _ in range(8)), return_exceptions=True)
        self.assertEqual([a for a in answers if isinstance(a, Exception)], [])
        answers = await asyncio.gather(*(self.load("race-2", ("good", "other")[i % 2]) for i in range(8)), return_exceptions=True)
        refused = [a for a in answers if isinstance(a, Exception)]
        self.assertTrue(refused and len(refused) < 8)
        self.assertEqual({a.status_code for a in refused}, {412})

    async def test_what_does_not_load_disturbs_nobody(self):
        self.changed("invalid", "this is not json")
        want, is_over = await self.texts("static"), asyncio.Event()

        async def run_good():
            n = 0
            while not is_over.is_set():
                self.assertEqual(await self.texts("static"), want)
                n += 1
            return n

        good = asyncio.create_task(run_good())
        for path, kind in (("not/an/adapter", self.openai.NotFoundError), ("invalid", self.openai.UnprocessableEntityError)):
            for _ in range(25):
                with self.assertRaises(kind):
                    await self.load("bad", path)
        is_over.set()
        self.assertGreater(await good, 0)
        await self.load("valid", "good")
        self.assertEqual(await self.texts("valid"), want)

    async def test_beam_search_is_refused_by_name(self):
        with self.assertRaises(self.openai.BadRequestError) as caught:
            await self.client.completions.create(model="static", prompt="x", max_tokens=5, extra_body={"use_beam_search": True})
        self.assertEqual(caught.exception.param, "use_beam_search")

    async def test_the_resolver_finds_loads_and_refuses(self):
        await self.load("by-hand", "third")
        shutil.copytree(os.path.join(self.root, "third"), os.path.join(self.root, "resolved"))
        self.assertNotIn("resolved", await self.cards())
        answers = await asyncio.gather(*(self.texts("resolved") for _ in range(6)))
        self.assertEqual(answers, [await self.texts("by-hand")] * 6)
        self.assertIn("resolved", await self.cards())
        with self.assertRaises(self.openai.NotFoundError) as caught:
            await self.texts("nowhere-to-be-found")
        self.assertIn("nowhere-to-be-found", str(caught.exception))
        self.changed("unreadable", "{")
        with self.assertRaises(self.openai.UnprocessableEntityError):  # vLLM: 400
            await self.texts("unreadable")
        self.assertNotIn("unreadable", await self.cards())

    async def test_without_the_settings_nothing_is_loaded(self):
        base = ChatBase()
        self.addCleanup(base.dir.cleanup)
        with Server(base.path) as s:
            client = self.openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{s.port}/v1", api_key="none", max_retries=0)
            with self.assertRaises(self.openai.PermissionDeniedError):  # vLLM: no such route
                await client.post("load_lora_adapter", cast_to=str, body={"lora_name": "x", "lora_path": os.path.join(self.root, "good")})
            with self.assertRaises(self.openai.NotFoundError):
                await client.completions.create(model="good", prompt="x")
            await client.close()


if __name__ == "__main__":
    unittest.main()
