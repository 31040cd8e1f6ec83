"""PyTorch as a peer for bases in real shapes with random weights: runs in an interpreter that has torch and transformers.

    run_torch.py SHAPE FOLDER THREADS

Writes the model into FOLDER if it is not there. A question is {"inputs": [[id, ...], ...], "n_out": n}, its answer
{"seconds": s}: an encoder computes mean-pooled rows, shortest inputs first, 16 at a time, padded to the longest of the
16; the others generate n tokens greedily for all inputs in one batch (inputs are equally long).
"""
import sys
import time
from pathlib import Path

import talk
import torch
import transformers

LARGE = {"d_model": 1024, "encoder_layers": 12, "decoder_layers": 12, "encoder_attention_heads": 16, "decoder_attention_heads": 16,
         "encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096, "max_position_embeddings": 1024, "vocab_size": 50265}
SHAPES = {
    "roberta-base": (transformers.RobertaConfig, transformers.RobertaModel,
                     {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}),
    "bart-large": (transformers.BartConfig, transformers.BartForConditionalGeneration, LARGE),
    "gpt2-medium": (transformers.GPT2Config, transformers.GPT2LMHeadModel, {"n_embd": 1024, "n_head": 16, "n_layer": 24}),
}


class Peer:
    def __init__(self, shape, folder, threads):
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        config, model, options = SHAPES[shape]
        if not folder.exists():
            model(config(**options)).save_pretrained(folder)
        self.model, self.is_encoder = model.from_pretrained(folder, dtype=torch.float32).eval(), shape == "roberta-base"

    def encode(self, inputs):
        longest = max(map(len, inputs))
        ids = torch.tensor([row + [1] * (longest - len(row)) for row in inputs])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in inputs])
        rows = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
        return ((rows * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)).tolist()

    def answer(self, inputs, n_out):
        begin = time.perf_counter()
        with torch.inference_mode():
            if self.is_encoder:
                inputs = sorted(inputs, key=len)
                for k in range(0, len(inputs), 16):
                    self.encode(inputs[k:k + 16])
            else:
                ids = torch.tensor(inputs)
                self.model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, num_beams=1, min_new_tokens=n_out,
                                    max_new_tokens=n_out, pad_token_id=1)
        return {"seconds": time.perf_counter() - begin}


peer = Peer(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
talk.serve({"version": torch.__version__}, peer.answer)
