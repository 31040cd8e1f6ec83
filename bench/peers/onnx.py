"""OpenVINO and ONNX Runtime, the base without tasks. ONNX_PYTHON names the Python of their environment; the model is
exported once, in the environment of PEFT."""
import subprocess
from pathlib import Path

from bench.peers.child import Child

NAME = "OpenVINO, ONNX Runtime"
WAYS = {"openvino/f32": "OpenVINO", "openvino/bf16": "OpenVINO", "onnxruntime": "ONNX RT"}
PRECISION = {"openvino/f32": "f32", "openvino/bf16": "bf16", "onnxruntime": "f32"}


def model(bench):
    """The exported file, or None."""
    path = bench.out / "minilm.onnx"
    if not path.exists() and bench.peft:
        new = path.with_suffix(".new.onnx")
        subprocess.run([bench.peft, "-W", "ignore", Path(__file__).parent / "inside/run_export.py", bench.minilm, new], check=True,
                       capture_output=True)
        new.rename(path)
    return path if path.exists() else None


class Onnx(Child):
    def __init__(self, bench, path, work):
        super().__init__(bench.onnx, "run_onnx.py", work / "onnx.log", path, bench.minilm / "tokenizer.json", bench.threads)

    def rate(self, batch, how):
        return lambda: len(batch) / self.ask(texts=batch, how=how)["seconds"]
