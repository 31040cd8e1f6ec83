"""vLLM's CPU backend in bf16, its OpenAI server. VLLM_PYTHON names the Python of its environment; the folder that it
serves is made once from the GGUF file with f16 weights, in the environment of PEFT."""
import os
import socket
import subprocess
from pathlib import Path

from tests.support.peftd import Process

NAME = "vLLM"
START_SECONDS = 400  # it compiles first


def folder(bench, gguf):
    """The Hugging Face folder in bf16, or None."""
    path = bench.out / "smollm2-bf16"
    if not path.exists() and bench.peft:
        new = path.with_suffix(".new")
        subprocess.run([bench.peft, "-W", "ignore", Path(__file__).parent / "inside/run_folder.py", gguf, new], check=True,
                       capture_output=True)
        new.rename(path)
    return path if path.exists() else None


class Server(Process):
    path = "/v1/completions"

    def __init__(self, bench, folder, work, streams, loras=()):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        lora = ["--enable-lora", "--max-loras", len(loras), "--max-lora-rank", 8,
                "--lora-modules", *(f"t{i}={path}" for i, path in enumerate(loras))] if loras else []
        cores = sorted(os.sched_getaffinity(0))[:bench.threads]
        env = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "4", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
               "VLLM_LOGGING_LEVEL": "WARNING", "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores))}
        super().__init__([bench.vllm, "-m", "vllm.entrypoints.openai.api_server", "--model", folder, "--served-model-name", "base",
                          "--dtype", "bfloat16", "--host", "127.0.0.1", "--port", port, "--max-model-len", 4096,
                          "--max-num-seqs", streams, "--no-enable-prefix-caching", *lora], work / "vllm.log", env)
        self.port = port
        self.wait_until(lambda: self.answers("/health"), START_SECONDS)

    @staticmethod
    def body(prompt, n_out, lora=None):
        return {"model": "base" if lora is None else f"t{lora}", "prompt": prompt, "max_tokens": n_out, "temperature": 0,
                "ignore_eos": True}

    @staticmethod
    def n_out(answer):
        return answer["usage"]["completion_tokens"]
