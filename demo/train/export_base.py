#!/usr/bin/env python3
"""Write a GGUF model as a Hugging Face folder in float32: the weights that the server computes on, for the training scripts."""

import argparse
import json
import os

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def edit_json(path, change):
    with open(path, encoding="utf-8") as file:
        content = json.load(file)
    change(content)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=2)
        file.write("\n")


def add_rope_theta(config):
    """transformers 5 nests this value; 4.57, under the adapters library, would quietly take its default instead."""
    config["rope_theta"] = config["rope_parameters"]["rope_theta"]


def name_old_class(config):
    """A class that both versions know."""
    config["tokenizer_class"] = "PreTrainedTokenizerFast"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gguf", required=True)
    parser.add_argument("--out", required=True)
    arguments = parser.parse_args()

    folder, name = os.path.split(arguments.gguf)
    loaded = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(loaded.state_dict())
    model.save_pretrained(arguments.out)
    AutoTokenizer.from_pretrained(folder, gguf_file=name).save_pretrained(arguments.out)
    edit_json(os.path.join(arguments.out, "config.json"), add_rope_theta)
    edit_json(os.path.join(arguments.out, "tokenizer_config.json"), name_old_class)


if __name__ == "__main__":
    main()
