"""PEFT on PyTorch. ORACLE_PEFT names the Python of its environment."""
from bench.peers.child import Child

NAME = "PEFT"
WAYS = {"by_length": "16 LoRA tasks mixed, sorted, 16 at a time", "padded": "16 LoRA tasks mixed, padded batch of 64",
        "by_task": "16 LoRA tasks, set_adapter for each"}


class Peft(Child):
    def __init__(self, bench, folders, work):
        super().__init__(bench.peft, "run_peft.py", work / "peft.log", bench.minilm, bench.threads, *folders)

    def rate(self, batch, tasks, how):
        return lambda: len(batch) / self.ask(texts=batch, tasks=tasks, how=how)["seconds"]
