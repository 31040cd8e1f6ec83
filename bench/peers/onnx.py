"""OpenVINO and ONNX Runtime, the base without tasks. ONNX_PYTHON names the Python of their environment, which has torch, too:
the model is exported there, once."""
import subprocess
import sys
from pathlib import Path

from bench.peers.child import Child

NAME = "OpenVINO, ONNX Runtime"
WAYS = {"openvino/f32": "OpenVINO", "openvino/bf16": "OpenVINO", "onnxruntime": "ONNX RT"}
PRECISION = {"openvino/f32": "f32", "openvino/bf16": "bf16", "onnxruntime": "f32"}


def model(bench):
    """The exported file, or None if it cannot be made."""
    path = bench.out / "minilm.onnx"
    if not path.exists():
        new = path.with_suffix(".new.onnx")
        done = subprocess.run([bench.onnx, "-W", "ignore", Path(__file__).parent / "inside/run_export.py", bench.minilm, new],
                              capture_output=True, text=True, errors="replace", check=False)
        if done.returncode:
            print(f"no model for {NAME}: {done.stderr[-2000:]}", file=sys.stderr)
            return None
        new.rename(path)
    return path


class Onnx(Child):
    def __init__(self, bench, path, work):
        super().__init__(bench.onnx, "run_onnx.py", work / "onnx.log", path, bench.minilm / "tokenizer.json", bench.threads)

    def rate(self, batch, how):
        return lambda: len(batch) / self.ask(texts=batch, how=how)["seconds"]
