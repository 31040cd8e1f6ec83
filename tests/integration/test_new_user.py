"""A new user's first hour: what people send before they have read anything, and what they are told. The table stands in
docs/troubleshooting.md; each of its rows is tried here, and nothing else is. `python3 -m tests.integration.test_new_user` prints
the table as the server answers it.
"""

import gzip
import json
import os
import re
import unittest

from tests.integration.server import GOLDEN, ROOT, Server, adapter_files, tar, zipped

TRAINER = {"optimizer.pt": b"PK", "scheduler.pt": b"PK", "rng_state.pth": b"PK", "trainer_state.json": b"{}", "training_args.bin": b"PK"}
HUB = {"README.md": b"# a model card", ".gitattributes": b"*.bin filter=lfs"}
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 1234567\n"


def lora(cell="bert-peft-lora"):
    """What PEFT saves, without the golden's own files."""
    return {name: data for name, data in adapter_files(cell).items() if name.startswith("adapter_")}


def below(folder, files):
    return {f"{folder}/{name}": data for name, data in files.items()}


def checkpoint(step, files=None):
    return below(f"out/checkpoint-{step}", {**(files or lora()), **TRAINER, **HUB})


def config(cell="bert-peft-lora", **changes):
    files = lora(cell)
    return {**files, "adapter_config.json": json.dumps({**json.loads(files["adapter_config.json"]), **changes}).encode()}


def whole_model(base="bert"):
    top = os.path.join(GOLDEN, "bases", base)
    found = {}
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        path = os.path.join(top, name)
        if os.path.exists(path):
            with open(path, "rb") as f:
                found[name] = f.read()
    return found


def whole_gguf():
    with open(os.path.join(GOLDEN, "bases", "gpt2.gguf"), "rb") as f:
        return {"gpt2.gguf": f.read()}


def without(files, *names):
    return {name: data for name, data in files.items() if name not in names}


def cases(s):
    """{what was sent: how it is sent}."""
    def form(files, task="mine"):
        return lambda: s.put(task, files)

    def body(data, task="mine", kind="application/octet-stream"):
        return lambda: s.request("PUT", f"/v1/adapters/{task}", data, {"Content-Type": kind})
    return {
        "PEFT: the two files of `save_pretrained()`, as a form": form(lora()),
        "the same with README.md, .gitattributes and the Trainer's files": form({**lora(), **HUB, **TRAINER}),
        "PEFT, `adapter_model.bin` instead of safetensors": form(lora("bert-peft-lora-bin")),
        "PEFT without a classifier in the files (no `task_type`, no `modules_to_save`)": form(config("bert-peft-lora-embed", task_type=None)),
        "AdapterHub: the folder of `save_adapter(with_head=True)`": form(adapter_files("bert-ah-pfeiffer")),
        "a Trainer's whole output: the adapter and two checkpoints, tar.gz": body(gzip.compress(tar(
            {**below("out", {**lora(), **HUB, "training_args.bin": b"PK"}), **checkpoint(500), **checkpoint(1000)}))),
        "a Trainer's output with one checkpoint and no final adapter": body(tar(checkpoint(500))),
        "a Trainer's output with two checkpoints and no final adapter": body(tar(
            {**checkpoint(500), **checkpoint(1000, lora("bert-peft-lora-bin"))})),
        "a Trainer's checkpoint of a full fine-tuning": body(tar(below("out/checkpoint-500", {**whole_model(), **TRAINER}))),
        "a zip of the folder, as the body": body(zipped(below("adapter", lora())), kind="application/zip"),
        "a zip of the folder, as a file of a form": form({"adapter.zip": zipped(lora())}),
        "two adapters in one tar": body(tar({**below("a", lora()), **below("b", lora("bert-peft-lora-bin"))})),
        "a merged or full checkpoint: `config.json`, `model.safetensors`": form(whole_model()),
        "llama.cpp's LoRA, one `.gguf`, to BERT": form({"lora.gguf": adapter_files("llama-gguf-lora")["adapter.gguf"]}),
        "a whole model as GGUF": form(whole_gguf()),
        "`adapter_config.json` alone": form(without(lora(), "adapter_model.safetensors")),
        "`adapter_model.safetensors` alone": form(without(lora(), "adapter_config.json")),
        "weights cut off in the middle of a download": form({**lora(), "adapter_model.safetensors": lora()["adapter_model.safetensors"][:5000]}),
        "a pointer of git-lfs instead of the weights": form({**lora(), "adapter_model.safetensors": POINTER}),
        "an adapter of another architecture (a Llama's, to BERT)": form(lora("llama-peft-lora")),
        "an adapter of a wider base of the same family": form(wider()),
        "a method that is not computed (`X-LoRA`)": form(config(peft_type="XLORA")),
        "a rank in the config that the weights do not have": form(config(r=16)),
        "`task.json` with labels for another head": form({**lora(), "task.json": b'{"labels": ["good", "bad", "ugly", "other"]}'}),
        "`task.json` with a misspelt field": form({**lora(), "task.json": b'{"label": ["good", "bad"]}'}),
        "the weights as the body (`curl -T adapter_model.safetensors`)": body(lora()["adapter_model.safetensors"]),
        "JSON with a path of the client's": body(b'{"path": "/home/me/adapter"}', kind="application/json"),
        "a form with no file": form({}),
        "a task called `base`": form(lora(), "base"),
        "a task with a space in its name": form(lora(), "my%20task"),
        "POST instead of PUT": lambda: s.request("POST", "/v1/adapters/mine", b"x"),
        "a question to a task that is not there": lambda: s.infer({"task": "sst3", "input": "x"}),
        "OpenAI's chat with an encoder's task": lambda: s.request(
            "POST", "/v1/chat/completions", json.dumps({"model": "seen", "messages": [{"role": "user", "content": "hi"}]})),
        "`text` instead of `input`": lambda: s.infer({"task": "seen", "text": "x"}),
        "`max_tokens` beside `task`, not in `parameters`": lambda: s.infer({"task": "seen", "input": "x", "max_tokens": 5}),
        "JSON with a comma too many": lambda: s.infer(b'{"task": "seen", "input": "x",}'),
    }


def wider():
    """bert-peft-lora's tensors for a hidden size that is twice as large: the same names, other shapes."""
    data = lora()["adapter_model.safetensors"]
    n = int.from_bytes(data[:8], "little")
    header, at = {}, 0
    for name, tensor in json.loads(data[8:8 + n]).items():
        if name != "__metadata__":
            shape = [2 * d if d >= 32 else d for d in tensor["shape"]]
            size = 4
            for d in shape:
                size *= d
            header[name], at = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}, at + size
    text = json.dumps(header).encode()
    return {**lora(), "adapter_model.safetensors": len(text).to_bytes(8, "little") + text + bytes(at)}


def say(answer):
    """One answer as a cell of the table."""
    j = answer.json
    if answer.status >= 400:
        return f"{answer.status} `{j['error']['code']}`: {j['error']['message']}".replace("|", "\\|")
    ignored = j["ignored"] if len(j["ignored"]) < 5 else [*j["ignored"][:2], f"and {len(j['ignored']) - 2} more"]
    more = "".join((f"; ignored: {', '.join(ignored)}" if ignored else "",
                    f"; warning: {' '.join(j['warnings'])}" if j["warnings"] else ""))
    return f"{answer.status}, kind `{j['kind']}`, method `{j['method']}`{more}"


def tried():
    with Server("bert") as s:
        assert s.put_cell("seen", "bert-peft-ia3").status == 201
        found = {}
        for sent, send in cases(s).items():
            found[sent] = say(send())
            s.request("DELETE", "/v1/adapters/mine")
        return found


def document(name):
    with open(os.path.join(ROOT, "docs", name), encoding="utf-8") as f:
        return f.read()


class Codes(unittest.TestCase):
    def test_every_code_of_the_source_is_explained_and_no_other(self):
        with open(os.path.join(ROOT, "core", "base", "err.h"), encoding="utf-8") as f:
            source = set(re.findall(r'^ +X\([A-Z_]+, "([a-z_]+)"\)', f.read(), re.M))
        self.assertGreater(len(source), 25)
        rows = re.findall(r"(?m)^\| `([a-z_]+)` \| (\d+) \| .+ \| .+ \|$", document("troubleshooting.md").split("## A new user")[0])
        self.assertEqual(len(rows), len(source))
        self.assertEqual({code for code, _ in rows}, source)
        status = {}
        for numbers, codes in re.findall(r"(?m)^\| ([\d, ]+) \| [a-z_, ]*_error[a-z_, ]* \| (.+) \|$", document("api.md").split("## Errors")[1]):
            for code in re.findall(r"`([a-z_]+)`", codes):
                status[code] = numbers.split(", ")
        for code, number in rows:
            self.assertIn(number, status[code], code)


class NewUser(unittest.TestCase):
    def test_the_table_says_what_the_server_says(self):
        text = document("troubleshooting.md").split("| sent | answer |\n|---|---|\n")[1].split("\n\n")[0]
        table = dict(re.fullmatch(r"\| (.*?) \| (.*) \|", row).groups() for row in text.strip().split("\n"))
        self.assertEqual(tried(), table)


if __name__ == "__main__":
    for row in tried().items():
        print("| {} | {} |".format(*row))
