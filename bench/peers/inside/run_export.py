"""Runs in an interpreter that has torch and transformers: run_export.py MODEL_FOLDER OUT.onnx

An encoder with a head of four labels, dynamic batch and length, for ONNX Runtime and OpenVINO.
"""
import sys

import torch
from transformers import AutoModelForSequenceClassification

torch.manual_seed(0)
model = AutoModelForSequenceClassification.from_pretrained(sys.argv[1], num_labels=4, dtype=torch.float32, attn_implementation="eager")
names, axes = ["input_ids", "attention_mask", "token_type_ids"], {0: "batch", 1: "length"}
ids = torch.ones(2, 9, dtype=torch.long)
with torch.inference_mode():
    torch.onnx.export(model.eval(), (ids, ids, ids * 0), sys.argv[2], input_names=names, output_names=["logits"],
                      dynamic_axes={**dict.fromkeys(names, axes), "logits": {0: "batch"}}, dynamo=False)
