"""Makes the random bases: `bases.py --seed N --out DIR NAME...` writes DIR/bases/NAME.

The library version decides the form of config.json, so make.py runs `bert` and `llama-untied` under transformers 5
(rope_parameters) and `llama` under transformers 4 (rope_theta and rope_scaling).
"""

import argparse
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from common import fresh_folder, seed_everything, stir_base, write_json

WORDPIECE_SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDPIECE_WORDS = ["the", "server", "runs", "many", "tasks", "from", "one", "base", "in", "each", "batch", "task"]
WORDPIECE_PIECES = ["##es", "##ing", "##ed", "##er"]
BPE_SPECIALS = ["<pad>", "<s>", "</s>"]
BPE_VOCAB = 301
BPE_CORPUS = [
    "the server runs many tasks from one frozen base in one batch",
    "each task is a small delta, loaded from a store and chosen per request",
    "The quick brown fox jumps over the lazy dog; 1234567890 times",
    "for (int i = 0; i < n; i++) sum += x[i] * y[i];",
] * 4


def make_bert(folder: Path) -> None:
    tokenizer = wordpiece_tokenizer()
    config = transformers.BertConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=40, num_hidden_layers=3, num_attention_heads=4,
        intermediate_size=90, max_position_embeddings=64, type_vocab_size=2, hidden_act="gelu", pad_token_id=0,
    )
    save_model(transformers.BertModel(config), folder)
    save_tokenizer(tokenizer, folder, {
        "tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 64, "unk_token": "[UNK]",
        "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]",
    })
    vocab = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word, _ in vocab), encoding="utf-8")


def make_llama(folder: Path) -> None:
    config = transformers.LlamaConfig(
        vocab_size=BPE_VOCAB, hidden_size=56, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=100, max_position_embeddings=256, tie_word_embeddings=True, rms_norm_eps=1e-5,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, rope_theta=10000.0,
        rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                      "original_max_position_embeddings": 32},
    )
    save_model(transformers.LlamaForCausalLM(config), folder)
    save_tokenizer(byte_level_tokenizer(), folder, {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 256, "pad_token": "<pad>",
        "bos_token": "<s>", "eos_token": "</s>",
    })


def make_llama_untied(folder: Path) -> None:
    config = transformers.LlamaConfig(
        vocab_size=131, hidden_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=1, head_dim=20,
        intermediate_size=72, max_position_embeddings=256, tie_word_embeddings=False, attention_bias=False,
        mlp_bias=False, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
    )
    save_model(transformers.LlamaForCausalLM(config), folder, dtype=torch.bfloat16, max_shard_size="100KB")


def save_model(model: torch.nn.Module, folder: Path, dtype=torch.float32, **options) -> None:
    stir_base(model)
    model.to(dtype).save_pretrained(folder, **options)


def save_tokenizer(tokenizer: Tokenizer, folder: Path, config: dict) -> None:
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", config)


def wordpiece_tokenizer() -> Tokenizer:
    letters = "abcdefghijklmnopqrstuvwxyz"
    characters = letters + "0123456789"
    vocab = WORDPIECE_SPECIALS + list(characters + ".,;:!?'-()") + ["##" + c for c in characters]
    vocab += WORDPIECE_WORDS + WORDPIECE_PIECES + ["é", "##é", "中"]
    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(vocab)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.add_special_tokens(WORDPIECE_SPECIALS)
    return tokenizer


def byte_level_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(BPE_CORPUS, trainers.BpeTrainer(
        vocab_size=BPE_VOCAB, special_tokens=BPE_SPECIALS, show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)])
    return tokenizer


MAKERS = {"bert": make_bert, "llama": make_llama, "llama-untied": make_llama_untied}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("names", nargs="+", choices=sorted(MAKERS))
    arguments = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    for name in arguments.names:
        seed_everything(arguments.seed, f"base/{name}")
        MAKERS[name](fresh_folder(arguments.out / "bases" / name))


if __name__ == "__main__":
    main()
