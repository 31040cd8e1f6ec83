"""POST /v1/infer of tasks that answer a question from its context, and of those that choose one of several texts."""

import json
import math
import random
import struct
import unittest

from tests.integration.server import Server, golden

D_MODEL = 40
ANSWER_MAX = 15
CONTEXT = "the server 猫 runs many tasks on one base, in each batch, in Köln 𝄞 and the cat runs too"
QUESTION = "what runs in each batch?"


def head_files(name, n_outputs, seed, head):
    """An adapter of ours that is a head alone."""
    drawn = random.Random(seed)
    values = {f"{name}.weight": ([n_outputs, D_MODEL], [drawn.gauss(0, 1) for _ in range(n_outputs * D_MODEL)]),
              f"{name}.bias": ([n_outputs], [drawn.gauss(0, 1) for _ in range(n_outputs)])}
    header, data = {}, b""
    for key, (shape, numbers) in values.items():
        packed = struct.pack(f"<{len(numbers)}f", *numbers)
        header[key] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(packed)]}
        data += packed
    text = json.dumps(header).encode()
    return {"delta.json": b'{"method": "head"}', "task.json": json.dumps({"head": head}).encode(),
            "delta.safetensors": struct.pack("<Q", len(text)) + text + data}


def shares(logits, rows):
    """Softmax over some rows of a column of logits: {row: probability}."""
    exps = {row: math.exp(logits[row] - max(logits[r] for r in rows)) for row in rows}
    return {row: e / sum(exps.values()) for row, e in exps.items()}


def best_span(logits, rows, others=()):
    """(first, last, score) as transformers' select_starts_ends() with top_k = 1: `others` share the probability and
    answer nothing."""
    start, end = (shares(logits[column], [*rows, *others]) for column in ("start", "end"))
    return max(((i, k, start[i] * end[k]) for i in rows for k in rows if i <= k < i + ANSWER_MAX), key=lambda s: s[2])


class Spans(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = Server("bert")
        for seed in range(6):
            a = cls.s.put(f"qa{seed}", head_files("qa_outputs", 2, seed, "span"))
            assert a.status == 201, a.body
        assert cls.s.put_cell("names", "bert-peft-lora-tagging").status == 201

    @classmethod
    def tearDownClass(cls):
        cls.s.__exit__(None, None, None)

    def ask(self, task, given, **parameters):
        a = self.s.infer({"task": task, "input": given, "parameters": {"logits": True, **parameters}})
        self.assertEqual(a.status, 200, a.body)
        self.assertEqual(a.json["kind"], "span")
        return a.json["output"]

    def places(self, text, text_pair, **parameters):
        """Offsets of the second text's tokens, by row, as a tagger shows them."""
        a = self.s.infer({"task": "names", "input": {"text": text, "text_pair": text_pair},
                          "parameters": parameters}).json
        tokens = a["output"]["tokens"]
        n_text = sum("sequence" not in t for t in tokens)
        rows = {n_text + 2 + i: (t["start"], t["end"]) for i, t in enumerate(tokens[n_text:])}  # [CLS] ... [SEP]
        return rows, a["usage"]["prompt_tokens"]

    def check(self, out, places):
        """The answer is the best span of the context's rows, [CLS] sharing the probability."""
        first, last, score = best_span(out["logits"], sorted(places), [0])
        self.assertEqual((out["start"], out["end"]), (places[first][0], places[last][1]))
        self.assertLess(abs(out["score"] - score), 1e-6)

    def test_an_answer_is_the_contexts_best_span(self):
        places, n = self.places(QUESTION, CONTEXT)
        answers = set()
        for seed in range(6):
            out = self.ask(f"qa{seed}", {"question": QUESTION, "context": CONTEXT})
            self.assertEqual([len(out["logits"][c]) for c in ("start", "end")], [n, n])
            self.assertEqual(out["answer"], CONTEXT[out["start"]:out["end"]])
            self.check(out, places)
            answers.add(out["answer"])
        self.assertGreater(len(answers), 2)

    def test_logits_only_when_asked_for(self):
        out = self.s.infer({"task": "qa0", "input": {"question": QUESTION, "context": CONTEXT}}).json["output"]
        self.assertEqual(sorted(out), ["answer", "end", "score", "start"])

    def test_of_a_long_input_only_the_context_is_cut(self):
        given = {"question": QUESTION, "context": CONTEXT + " runs" * 100}
        a = self.s.infer({"task": "qa0", "input": given})
        self.assertEqual(a.error[:2], (422, "input_too_long"))
        out = self.ask("qa0", given, truncate=True)
        self.assertEqual(len(out["logits"]["start"]), 64)
        self.check(out, self.places(QUESTION, given["context"], truncate=True)[0])
        longest = {"question": "runs " * 50, "context": CONTEXT}  # where the longest first would be the question
        self.assertEqual(len(self.ask("qa0", longest, truncate=True)["logits"]["start"]), 64)
        a = self.s.infer({"task": "qa0", "input": {"question": "runs " * 100, "context": CONTEXT},
                          "parameters": {"truncate": True}})
        self.assertEqual(a.error[:2], (422, "input_too_long"))

    def test_a_context_without_tokens_has_no_answer(self):
        for context in ("", "  "):
            a = self.s.infer({"task": "qa0", "input": {"question": QUESTION, "context": context}})
            self.assertEqual(a.error, (400, "bad_field", "input.context"))

    def test_tokens_answer_with_their_places(self):
        out = self.ask("qa1", {"tokens": [2, *range(20, 45), 3]})
        first, last, score = best_span(out["logits"], range(27))
        self.assertEqual((out["answer"], out["start"], out["end"]), (None, first, last + 1))
        self.assertLess(abs(out["score"] - score), 1e-6)

    def test_other_inputs_are_the_wrong_kind(self):
        for given in ("text", {"text": "a", "text_pair": "b"}, {"text": "a", "choices": ["b"]}):
            self.assertEqual(self.s.infer({"task": "qa0", "input": given}).error, (422, "wrong_kind", "input"))
        a = self.s.infer({"tasks": ["names", "qa0"], "input": "text"})
        self.assertEqual(a.error[:2], (422, "wrong_kind"))

    def test_spans_beside_other_kinds_are_the_same_bits(self):
        given = {"question": QUESTION, "context": CONTEXT}
        requests = [{"task": f"qa{seed}", "input": given, "parameters": {"logits": True}} for seed in range(6)]
        alone = [self.s.infer(r).json["output"] for r in requests]
        mixed = self.s.infer({"requests": [r for q in requests for r in (q, {"task": "names", "input": "the cat"})]}).json
        self.assertEqual([r["output"] for r in mixed["responses"][::2]], alone)


class SpansOfADecoder(unittest.TestCase):
    def test_tokens_answer_as_the_golden_does(self):
        with Server("gpt2") as s:
            self.assertEqual(s.put_cell("qa", "gpt2-ah-seq_bn-span").status, 201)
            for case in golden("gpt2-ah-seq_bn-span")["cases"]:
                out = s.infer({"task": "qa", "input": {"tokens": case["tokens"]}, "parameters": {"logits": True}}).json["output"]
                first, last, score = best_span(case["logits"], range(len(case["tokens"])))
                self.assertEqual((out["start"], out["end"]), (first, last + 1))
                self.assertLess(abs(out["score"] - score), 1e-4)


class Choices(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = Server("bert", "--max-items", "12")
        a = cls.s.put("pick", head_files("classifier", 1, 1, "multiple_choice"))
        assert a.status == 201, a.body
        # The same head on one text: its value is what a choice's score is made of.
        files = head_files("classifier", 1, 1, "regression")
        assert cls.s.put("value", files).status == 201

    @classmethod
    def tearDownClass(cls):
        cls.s.__exit__(None, None, None)

    def value(self, text, choice):
        return self.s.infer({"task": "value", "input": {"text": text, "text_pair": choice}}).json["output"]["value"]

    def test_each_choice_has_a_score_and_the_best_is_chosen(self):
        choices = ["many tasks", "one base in each batch", "a task", "x" * 30]
        j = self.s.infer({"task": "pick", "input": {"text": "the server runs", "choices": choices},
                          "parameters": {"logits": True}}).json
        out = j["output"]
        self.assertEqual(j["kind"], "multiple_choice")
        self.assertEqual(out["logits"], [self.value("the server runs", c) for c in choices])
        exps = [math.exp(x) for x in out["logits"]]
        for got, e in zip(out["scores"], exps):
            self.assertLess(abs(got - e / sum(exps)), 1e-6)
        self.assertEqual(out["choice"], exps.index(max(exps)))
        self.assertNotIn("logits", self.s.infer({"task": "pick", "input": {"text": "a", "choices": choices}}).json["output"])

    def test_inputs_are_answered_in_order_whatever_their_number_of_choices(self):
        inputs = [{"text": "a", "choices": list("bcd")}, {"text": "the", "choices": ["cat"]},
                  {"text": "b", "choices": ["server", "task"]}]
        j = self.s.infer({"task": "pick", "inputs": inputs, "parameters": {"logits": True}}).json
        self.assertEqual([o["logits"] for o in j["outputs"]],
                         [[self.value(i["text"], c) for c in i["choices"]] for i in inputs])
        self.assertEqual(j["outputs"][1]["scores"], [1])

    def test_errors_name_the_input_as_it_was_sent(self):
        fine = {"text": "a", "choices": ["b", "c", "d"]}
        for bad, code, param in (
                ({"text": "a", "choices": ["b", "word " * 100]}, (422, "input_too_long"), "inputs[1]"),
                ({"text": "a", "choices": []}, (400, "bad_field"), "inputs[1].choices"),
                ({"text": "a", "choices": ["b", 7]}, (400, "bad_field"), "inputs[1].choices[1]"),
                ({"choices": ["b", "c"]}, (400, "missing_field"), "inputs[1].text"),
                ({"tokens": [1], "choices": ["b", "c"]}, (400, "unknown_field"), "inputs[1].choices"),
                ("text", (422, "wrong_kind"), "inputs[1]")):
            a = self.s.infer({"task": "pick", "inputs": [fine, bad]})
            self.assertEqual(a.error, (*code, param))

    def test_every_choice_counts_as_an_input(self):
        for n, status in ((12, 200), (13, 400)):
            a = self.s.infer({"task": "pick", "input": {"text": "a", "choices": ["b"] * n}})
            self.assertEqual(a.status, status)


if __name__ == "__main__":
    unittest.main()
