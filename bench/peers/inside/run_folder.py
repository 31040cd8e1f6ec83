"""Runs in an interpreter that has torch, transformers and gguf: run_folder.py MODEL.gguf OUT

The GGUF file of a Llama as a Hugging Face folder in bf16. A model that was read from GGUF refuses to be saved, so its
state goes into a fresh one of the same config, which must not say any more that it comes from there.
"""
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

path, out = Path(sys.argv[1]).resolve(), sys.argv[2]
read = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
config = read.config
if hasattr(config, "quantization_config"):
    del config.quantization_config
fresh = type(read)(config).to(torch.bfloat16)
fresh.load_state_dict(read.state_dict())
fresh.save_pretrained(out)
AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).save_pretrained(out)
