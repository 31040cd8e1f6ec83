"""llama.cpp: llama-server over HTTP, llama-bench for prompts. LLAMA_BIN names the folder of its programs."""
import json
import socket
import subprocess

from bench import gguf_lora
from bench.servers import START_SECONDS
from tests.support.peftd import Process

NAME = "llama.cpp"


class Server(Process):
    """llama-server with f16 adapters made from PEFT folders; `folders` may be empty."""

    def __init__(self, bench, model, work, streams, folders=(), context=16384):
        files = [work / f"{folder.name}.gguf" for folder in folders]
        for folder, file in zip(folders, files):
            if not file.exists():
                gguf_lora.convert(folder, file)
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        lora = ["--lora-init-without-apply", "--lora", ",".join(map(str, files))] if files else []
        # No cache of old prompts: every request computes its own.
        super().__init__([bench.llama / "llama-server", "-m", model, "--host", "127.0.0.1", "--port", port, "-t", bench.threads,
                          "-np", streams, "-c", context, "--cache-ram", "0", "--no-ui", *lora], work / f"llama-{port}.log")
        self.port, self.n_adapters = port, len(files)
        self.wait_until(lambda: self.answers("/health"), START_SECONDS)

    path = "/completion"

    def body(self, prompt, n_out, lora=None, sampling=None):
        """A request; lora: the index of its adapter, None for no adapter; sampling: parameters, None for greedy."""
        body = {"prompt": prompt, "n_predict": n_out, "ignore_eos": True, "cache_prompt": False, "return_tokens": True,
                **(sampling or {"temperature": 0, "samplers": ["temperature"]})}
        if self.n_adapters:
            # An empty list would mean the server's own scales, which are 1 for all adapters at once.
            body["lora"] = [{"id": 0, "scale": 0.0}] if lora is None else [{"id": lora, "scale": 1.0}]
        return body

    @staticmethod
    def n_out(answer):
        return answer["tokens_predicted"]


def prompt_rate(bench, model, n, n_prompts):
    """Tokens a second of n_prompts prompts of n tokens in turn: llama-bench's pp, after its own warm-up."""
    out = subprocess.run([bench.llama / "llama-bench", "-m", model, "-t", str(bench.threads), "-p", str(n), "-n", "0", "-r", str(n_prompts),
                          "-o", "json"], check=True, capture_output=True, text=True).stdout
    return json.loads(out)[0]["avg_ts"]
