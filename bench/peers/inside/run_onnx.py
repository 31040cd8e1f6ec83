"""OpenVINO and ONNX Runtime as peers: runs in an interpreter that has them, numpy and tokenizers.

    run_onnx.py MODEL.onnx TOKENIZER.json THREADS

A question is {"texts": [...], "how": "openvino/f32" | "openvino/bf16" | "onnxruntime"}, its answer {"seconds": s, "logits":
[[...], ...]}. Texts go shortest first, 16 at a time, padded to the longest of the 16; tokenising is inside the clock.
"""
import sys
import time

import talk
import numpy as np
import onnxruntime
import openvino
from tokenizers import Tokenizer

NAMES = ("input_ids", "attention_mask", "token_type_ids")


def openvino_model(path, threads, precision):
    model = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": threads,
                                                        "PERFORMANCE_HINT": "LATENCY"})
    request = model.create_infer_request()
    return lambda inputs: request.infer(inputs)[0]


def onnx_model(path, threads):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(None, inputs)[0]


class Peer:
    def __init__(self, model, tokenizer, threads):
        self.tokenizer = Tokenizer.from_file(tokenizer)
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()
        self.models = {"openvino/f32": openvino_model(model, threads, "f32"), "openvino/bf16": openvino_model(model, threads, "bf16"),
                       "onnxruntime": onnx_model(model, threads)}

    def batch(self, encoded):
        longest = max(len(e.ids) for e in encoded)
        ids, mask = (np.zeros((len(encoded), longest), np.int64) for _ in range(2))
        for row, e in enumerate(encoded):
            ids[row, :len(e.ids)] = e.ids
            mask[row, :len(e.ids)] = 1
        return dict(zip(NAMES, (ids, mask, ids * 0)))

    def answer(self, texts, how):
        begin = time.perf_counter()
        encoded = self.tokenizer.encode_batch(texts)
        order = sorted(range(len(texts)), key=lambda i: len(encoded[i].ids))
        rows = [np.array(self.models[how](self.batch([encoded[i] for i in order[k:k + 16]]))) for k in range(0, len(order), 16)]
        seconds = time.perf_counter() - begin
        logits = [None] * len(texts)
        for i, row in zip(order, np.concatenate(rows).tolist()):
            logits[i] = row
        return {"seconds": seconds, "logits": logits}


peer = Peer(sys.argv[1], sys.argv[2], int(sys.argv[3]))
talk.serve({"openvino": openvino.__version__, "onnxruntime": onnxruntime.__version__}, peer.answer)
