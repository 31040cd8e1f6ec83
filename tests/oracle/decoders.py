"""Makes small decoders whose configurations differ in one fact: `decoders.py --seed N --out DIR [--only TEXT]`.

Writes DIR/bases/NAME (a Hugging Face folder) or DIR/bases/NAME.gguf, and DIR/cells/NAME-base with what transformers
generates from it: rotary scalings in the keys of transformers 4 and 5, windows and sequences that outgrow them, fused
projections, soft caps, and for GGUF the names, keys and tensor orders of llama.cpp's converter. Runs under requirements-peft.
A GGUF file holds the numbers of a folder, so its expected answers are those of the folder's model.
"""

import argparse
import json
import math
import tempfile
from pathlib import Path

import gguf
import numpy
import torch
import transformers

from common import fresh_folder, seed_everything, stir_base

VOCAB, NEW_TOKENS = 43, 12
LENGTHS = (1, 9, 40)
LONGER = 15  # tokens behind the last prompt make one more: it begins like the other, and may be long where that one is not
SIZES = dict(vocab_size=VOCAB, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=28,
             max_position_embeddings=128, pad_token_id=0, bos_token_id=1, eos_token_id=2)
HEAD = dict(head_dim=8)
GEMMA = SIZES | HEAD | dict(sliding_window=6, query_pre_attn_scalar=8, final_logit_softcapping=5.0)
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0, 1.1, 1.3], "long_factor": [1.5, 2.5, 6.0]}
PHI = SIZES | dict(hidden_size=32, sliding_window=30, partial_rotary_factor=0.75, original_max_position_embeddings=48)
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}

# name: (model_type, arguments of the configuration, keys of config.json that are replaced; None takes one away)
FOLDERS = {
    "llama-linear": ("llama", SIZES | HEAD, {"rope_scaling": {"type": "linear", "factor": 3.0}, "rope_theta": 500.0}),
    "llama-dynamic": ("llama", SIZES | HEAD, {"rope_scaling": {"type": "dynamic", "factor": 2.0}}),
    "llama-yarn": ("llama", SIZES | HEAD, {"rope_scaling": YARN | {"truncate": False, "mscale": 1.2, "mscale_all_dim": 0.7}, "rope_theta": 10.0}),
    "mistral-no-window": ("mistral", SIZES, {"sliding_window": None}),
    "qwen2-late-windows": ("qwen2", SIZES | dict(use_sliding_window=True, sliding_window=5, max_window_layers=1),
                           {"rope_scaling": YARN, "layer_types": ()}),
    "phi3-longrope": ("phi3", PHI, {"rope_scaling": LONGROPE}),
    "phi3-su": ("phi3", PHI | dict(partial_rotary_factor=1.0), {
        "rope_scaling": {"type": "su", "original_max_position_embeddings": 48, "short_factor": [1.0] * 4, "long_factor": [1.0, 2.0, 3.0, 4.0]}}),
    "gemma2-bf16": ("gemma2", GEMMA | dict(query_pre_attn_scalar=12, attn_logit_softcapping=2.0), {"layer_types": ()}),
    "gemma3-linear": ("gemma3_text", GEMMA | dict(num_hidden_layers=3, layer_types=["sliding_attention", "full_attention", "sliding_attention"]), {
        "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "rope_theta": 1000000.0, "rope_local_base_freq": 100.0}),
    "gemma3-nested": ("gemma3_text", GEMMA | dict(num_hidden_layers=3, layer_types=["full_attention", "sliding_attention", "sliding_attention"]), {
        "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 9000.0},
                            "sliding_attention": {"rope_type": "default", "rope_theta": 70.0}}}),
}
# name: (architecture in GGUF, model_type, arguments, replaced keys)
FILES = {
    "llama-biases.gguf": ("llama", "llama", SIZES | HEAD | dict(attention_bias=True), {
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 32}}),
    "qwen2-yarn.gguf": ("qwen2", "qwen2", SIZES | dict(tie_word_embeddings=True), {"rope_scaling": YARN}),
    "qwen3.gguf": ("qwen3", "qwen3", SIZES | HEAD, {}),
    "phi3-longrope.gguf": ("phi3", "phi3", PHI, {"rope_scaling": LONGROPE}),
    "gemma2.gguf": ("gemma2", "gemma2", GEMMA | dict(attn_logit_softcapping=2.0), {}),
    "gemma3.gguf": ("gemma3", "gemma3_text", GEMMA | dict(num_hidden_layers=6, final_logit_softcapping=None), {
        "rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
    "gpt2.gguf": ("gpt2", "gpt2", dict(vocab_size=VOCAB, n_embd=24, n_layer=2, n_head=4, n_inner=28, n_positions=128, pad_token_id=0,
                                       bos_token_id=1, eos_token_id=2), {}),
}


def save_folder(folder: Path, model_type: str, arguments: dict, replaced: dict, dtype=torch.float32) -> None:
    """A random model, and its config.json with the keys replaced: the file decides, not the class that wrote it."""
    config = transformers.AutoConfig.for_model(model_type, **arguments)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    stir_base(model)
    model.to(dtype).save_pretrained(folder)
    said = json.loads((folder / "config.json").read_text())
    if "rope_scaling" in replaced:
        said.pop("rope_parameters", None)
        said.setdefault("rope_theta", 10000.0)
    for key, value in replaced.items():
        said.pop(key, None)
        if value != ():  # an empty tuple takes the key away
            said[key] = value
    if "partial_rotary_factor" in arguments:
        said["partial_rotary_factor"] = arguments["partial_rotary_factor"]
    (folder / "config.json").write_text(json.dumps(said, indent=2) + "\n")


def load(folder: Path) -> torch.nn.Module:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()


def cases(model: torch.nn.Module, generator: torch.Generator) -> list:
    """Greedy generations that are the same with a cache and without one, and the logits of their first step."""
    made = []
    with torch.no_grad():
        for length in (*LENGTHS, LENGTHS[-1] + LONGER):
            begin = torch.tensor([made[-1]["tokens"] if length > LENGTHS[-1] else []], dtype=torch.long)
            for _ in range(50):
                tokens = torch.cat([begin, torch.randint(3, VOCAB, (1, length - begin.shape[1]), generator=generator)], dim=1)
                ids = tokens
                gap = math.inf
                for _ in range(NEW_TOKENS):
                    row = model(ids, use_cache=False).logits[0, -1].float()
                    best = row.topk(2).values
                    gap = min(gap, float(best[0] - best[1]) / max(1.0, float(row.abs().max())))
                    ids = torch.cat([ids, row.argmax().reshape(1, 1)], dim=1)
                if gap > 2e-3:
                    break
            else:
                raise SystemExit(f"no clear generation from {length} tokens")
            cached = model.generate(tokens, max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0)
            assert cached.tolist() == ids.tolist(), "the library's cache changes its answer"
            logits = model(tokens, use_cache=False).logits[0, -1].float()
            made.append({"tokens": tokens[0].tolist(), "generated": ids[0, length:].tolist(), "max_tokens": NEW_TOKENS,
                         "ignore_eos": True, "logits": [float(f"{x:.8g}") for x in logits]})
    return made


def write_cell(out: Path, name: str, seed: int, made: list) -> None:
    golden = {"base": name, "reader": "base", "method": "base", "kind": "generation",
              "versions": {"torch": torch.__version__, "transformers": transformers.__version__}, "seed": seed}
    lines = json.dumps(golden, indent=2)[:-2]
    rows = ",\n".join("    " + json.dumps(case, separators=(",", ":")) for case in made)
    (fresh_folder(out / "cells" / f"{name}-base") / "golden.json").write_text(f'{lines},\n  "cases": [\n{rows}\n  ]\n}}\n')


# ---- GGUF, as llama.cpp's convert_hf_to_gguf.py writes it ------------------------------------------------------------


def permute(weights, n_heads: int):
    """Rows of a head as pairs: what the converter does to q and k of Llama."""
    return weights.reshape(n_heads, 2, weights.shape[0] // n_heads // 2, *weights.shape[1:]).swapaxes(1, 2).reshape(weights.shape)


def convert(arch: str, name: str, tensor: torch.Tensor, config) -> numpy.ndarray:
    values = tensor.float().numpy()
    if arch == "llama" and ".q_proj." in name:
        return permute(values, config.num_attention_heads)
    if arch == "llama" and ".k_proj." in name:
        return permute(values, config.num_key_value_heads)
    if arch in ("gemma2", "gemma3") and name.endswith("norm.weight"):
        return values + 1
    if arch == "gpt2" and name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
        return values.T.copy()
    return values


def write_sizes(writer: gguf.GGUFWriter, arch: str, config) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    if arch == "gpt2":
        writer.add_feed_forward_length(config.n_inner)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        return
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_head_count_kv(config.num_key_value_heads)
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)


def write_rotation(writer: gguf.GGUFWriter, arch: str, config) -> None:
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    n_dims = int(head * rope.get("partial_rotary_factor", 1.0))
    writer.add_rope_freq_base(rope["rope_theta"])
    if arch in ("llama", "phi3"):
        writer.add_rope_dimension_count(n_dims)
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] in ("yarn", "longrope"):
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if rope["rope_type"] == "longrope":
        scale, original = config.max_position_embeddings / config.original_max_position_embeddings, config.original_max_position_embeddings
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(original)))
        for kind in ("long", "short"):
            writer.add_tensor(f"rope_factors_{kind}.weight", torch.tensor(rope[f"{kind}_factor"]).numpy())
    if rope["rope_type"] == "llama3":
        plain = 1.0 / rope["rope_theta"] ** (torch.arange(0, n_dims, 2).float() / n_dims)
        scaled, _ = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
        writer.add_tensor("rope_freqs.weight", (plain / scaled).numpy())


def write_gguf(path: Path, arch: str, model: torch.nn.Module) -> None:
    config = model.config
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch.upper()], config.num_hidden_layers)
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name(path.stem)
    write_sizes(writer, arch, config)
    if arch != "gpt2":
        write_rotation(writer, arch, config)
    if arch in ("phi3", "gemma2", "gemma3"):
        writer.add_sliding_window(config.sliding_window)
    if arch == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    tied = config.tie_word_embeddings
    for name, tensor in model.state_dict().items():
        if tied and name == "lm_head.weight" or name.endswith((".attn.bias", ".attn.masked_bias")):
            continue
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), convert(arch, name, tensor, config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# ---- running -----------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    for name, row in {**FOLDERS, **FILES}.items():
        if arguments.only not in name:
            continue
        generator = seed_everything(arguments.seed, f"decoder/{name}")
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) if name in FILES else fresh_folder(arguments.out / "bases" / name)
            dtype = torch.bfloat16 if name.endswith("-bf16") else torch.float32
            save_folder(folder, *row[-3:], dtype)
            model = load(folder)
            if dtype == torch.bfloat16:
                model.float()  # the weights and the scale of embeddings as the file has them, the arithmetic in f32
                model.model.embed_tokens.embed_scale = model.model.embed_tokens.embed_scale.to(dtype).float()
            if name in FILES:
                (arguments.out / "bases").mkdir(parents=True, exist_ok=True)
                write_gguf(arguments.out / "bases" / name, row[0], model)
            write_cell(arguments.out, name, arguments.seed, cases(model, generator))
        print(name)


if __name__ == "__main__":
    main()
