"""PEFT as a peer: runs in an interpreter that has torch, transformers and peft.

    run_peft.py MODEL_FOLDER THREADS ADAPTER_FOLDER...

A question is {"texts": [...], "tasks": [index, ...], "how": ...}, its answer {"seconds": s, "logits": [[...], ...]} in the
order of the texts. Tokenising is inside the clock. `how`:

    padded     one batch of all texts, padded to the longest, adapter_names mixed
    by_length  padded batches of 16, shortest texts first, adapter_names mixed
    by_task    one set_adapter and one padded batch for each task
"""
import os
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "true"
import talk  # noqa: E402
import torch  # noqa: E402
from peft import PeftModel  # noqa: E402
from transformers import AutoModelForSequenceClassification, AutoTokenizer  # noqa: E402


class Peer:
    def __init__(self, model, threads, adapters):
        torch.set_num_threads(threads)
        self.tokenizer = AutoTokenizer.from_pretrained(model)
        base = AutoModelForSequenceClassification.from_pretrained(model, num_labels=4, dtype=torch.float32)
        self.model = PeftModel.from_pretrained(base, adapters[0], adapter_name="t0")
        for i, folder in enumerate(adapters[1:], 1):
            self.model.load_adapter(folder, adapter_name=f"t{i}")
        self.model.eval()

    def forward(self, texts, **kwargs):
        batch = self.tokenizer(texts, padding=True, return_tensors="pt")
        return self.model(**batch, **kwargs).logits

    def padded(self, texts, tasks, order):
        return self.forward([texts[i] for i in order], adapter_names=[f"t{tasks[i]}" for i in order])

    def by_length(self, texts, tasks, order):
        order.sort(key=lambda i: texts[i].count(" "))
        return torch.cat([self.padded(texts, tasks, order[k:k + 16]) for k in range(0, len(order), 16)])

    def by_task(self, texts, tasks, order):
        order.sort(key=lambda i: tasks[i])
        parts = []
        for task in sorted(set(tasks)):
            self.model.set_adapter(f"t{task}")
            parts.append(self.forward([texts[i] for i in order if tasks[i] == task]))
        return torch.cat(parts)

    def answer(self, texts, tasks, how):
        order = list(range(len(texts)))
        begin = time.perf_counter()
        with torch.inference_mode():
            rows = getattr(self, how)(texts, tasks, order).tolist()
        seconds = time.perf_counter() - begin
        logits = [None] * len(texts)
        for i, row in zip(order, rows):
            logits[i] = row
        return {"seconds": seconds, "logits": logits}


peer = Peer(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
talk.serve({"version": torch.__version__}, peer.answer)
