"""Small vocabularies of every tokenizer class that core/tok knows without a tokenizer.json, and the tokenizer.json that
transformers makes of each.

    tok_families.py make DIR [--corpus FILE] [--size N] [--small-maps]
    tok_families.py convert DIR

make trains with the sentencepiece library on the corpus (a line a text), writes DIR/NAME/ as a model's folder has them and
then, through `convert` under ORACLE_ADAPTERS (transformers 4, whose conversion the published files were made with), the
backend of the fast tokenizer to DIR/json/NAME.json. Some vocabularies come as metadata of DIR/gguf/NAME.gguf too. --small-maps trains with a handful of normalisation rules instead of
nmt_nfkc and nmt_nfkc_cf, whose maps have a quarter of a megabyte, in all folders but xlmr's.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

RULES = [
    *((chr(0xFF21 + i), chr(0x41 + i)) for i in range(6)), *((chr(0xFF41 + i), chr(0x61 + i)) for i in range(6)),
    ("ﬁ", "fi"), ("½", "1⁄2"), ("①", "1"), ("Ⅷ", "VIII"), ("ſ", "s"), ("\u00a0", " "), ("\u3000", " "), ("\t", " "),
    ("\n", " "), ("\r", " "), ("\u200b", " "), ("\u00ad", ""), ("\x1c", ""), ("\x0b", ""), ("e\u0301", "é"),
    ("a\u0308", "ä"), ("A\u030a", "Å"), ("ẛ̣", "ṩ"), ("\u0344", "\u0308\u0301"), ("\u1100\u1161", "가"), ("\ufdfa", "صلى الله"),
    ("™", "TM"), ("漢", "汉"), ("各\u0301", "x"),
]
BERT = {"pad_id": 0, "pad_piece": "[PAD]", "bos_id": 1, "bos_piece": "[CLS]", "eos_id": 2, "eos_piece": "[SEP]",
        "unk_id": 3, "unk_piece": "[UNK]"}
BYTES = {"model_type": "bpe", "normalization_rule_name": "identity", "byte_fallback": True, "split_digits": True,
         "remove_extra_whitespaces": False, "character_coverage": 0.99}
GEMMA = {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3, "eos_piece": "<eos>", "bos_piece": "<bos>",
         "add_dummy_prefix": False, "user_defined_symbols": ["<mask>", "<start_of_turn>", "<end_of_turn>", "\n\n", "\t"]}
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def added(content, special=True, **flags):
    return {"content": content, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
            "special": special} | flags


# name: class, the file and how it is trained, tokenizer_config.json, other files
SENTENCEPIECE = {
    "xlmr": ("XLMRobertaTokenizer", "sentencepiece.bpe.model", {"normalization_rule_name": "nmt_nfkc"}, {}, {}),
    "mbart": ("MBartTokenizer", "sentencepiece.bpe.model", {"normalization_rule_name": "nmt_nfkc"},
              {"src_lang": "de_DE", "additional_special_tokens": ["<tool>"]}, {}),
    "t5": ("T5Tokenizer", "spiece.model",
           {"normalization_rule_name": "nmt_nfkc", "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}, {"extra_ids": 12}, {}),
    "t5-new": ("T5TokenizerFast", "spiece.model",
               {"normalization_rule_name": "nmt_nfkc", "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
               {"legacy": False, "extra_ids": 3}, {}),
    "deberta": ("DebertaV2Tokenizer", "spm.model", {"normalization_rule_name": "nmt_nfkc"} | BERT,
                {"do_lower_case": False, "vocab_type": "spm"}, {}),
    "deberta-cf": ("DebertaV2Tokenizer", "spm.model", {"normalization_rule_name": "nmt_nfkc_cf"} | BERT,
                   {"do_lower_case": True, "split_by_punct": True}, {"added_tokens": {"[MASK]": "next"}}),
    "llama": ("LlamaTokenizer", "tokenizer.model", BYTES, {}, {
        "special_tokens_map": {"bos_token": added("<s>", normalized=True), "eos_token": "</s>", "unk_token": "<unk>",
                               "pad_token": "<pad>"},
        "added_tokens": {"<pad>": "next"}}),
    "llama-new": ("LlamaTokenizerFast", "tokenizer.model", BYTES, {
        "legacy": False, "add_eos_token": True, "added_tokens_decoder": {
            "0": added("<unk>"), "1": added("<s>"), "2": added("</s>", rstrip=True), "next": added("<tool>", rstrip=True),
            "next2": added("the model", special=False, single_word=True)}}, {}),
    "llama-plain": ("LlamaTokenizer", "tokenizer.model", BYTES, {}, {}),
    "phi3": ("LlamaTokenizer", "tokenizer.model", BYTES, {"add_bos_token": False, "added_tokens_decoder": {
        "0": added("<unk>"), "1": added("<s>"), "2": added("</s>", rstrip=True), "next": added("<|user|>", rstrip=True),
        "next2": added("<|end|>", rstrip=True)}}, {}),
    "gemma": ("GemmaTokenizer", "tokenizer.model", BYTES | GEMMA, {}, {}),
}
# name: general.architecture, tokenizer.ggml.model, what else GGUF says
GGUF = {
    "llama-plain": ("llama", "llama", {}),
    "phi3": ("phi3", "llama", {"add_bos_token": False}),
    "gemma": ("gemma", "llama", {"add_space_prefix": False}),
    "t5": ("t5", "t5", {"add_eos_token": True}),
    "xlmr": ("bert", "t5", {"add_bos_token": True, "add_eos_token": True}),
}
BYTE_LEVEL = {
    "gpt2-bos": ("GPT2Tokenizer", [], {"add_bos_token": True, "pad_token": "<pad>"}),
    "roberta-prefix": ("RobertaTokenizer", SPECIAL, {"add_prefix_space": True}),
    "bart": ("BartTokenizer", SPECIAL, {}),
    "qwen2-folder": ("Qwen2Tokenizer", [], {"eos_token": "<|im_end|>", "unk_token": None, "added_tokens_decoder": {
        "next": added("<|im_start|>"), "next2": added("<|im_end|>")}}),
}
NAMES = [*SENTENCEPIECE, *BYTE_LEVEL]


def resolve(value, size):
    """Puts ids in the place of "next" and "next2"."""
    ids = {"next": size, "next2": size + 1}
    if isinstance(value, dict):
        return {str(ids.get(k, k)): resolve(v, size) for k, v in value.items()}
    return ids.get(value, value) if isinstance(value, str) else value


def write_json(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False) + "\n", encoding="utf-8")


def train(folder, corpus, size, name, options):
    """The model keeps the names of its files, so they are the same ones each time."""
    options = {"model_type": "unigram", "vocab_size": size} | options
    with tempfile.TemporaryDirectory() as scratch:
        if options["normalization_rule_name"] == "small":
            Path(scratch, "rules.tsv").write_text("".join(
                " ".join(f"{ord(c):X}" for c in old) + "\t" + " ".join(f"{ord(c):X}" for c in new) + "\n"
                for old, new in RULES))
            options.pop("normalization_rule_name")
            options["normalization_rule_tsv"] = "rules.tsv"
        shutil.copy(corpus, Path(scratch, "corpus"))
        options |= {"input": "corpus", "model_prefix": "m", "hard_vocab_limit": False, "minloglevel": 2, "num_threads": 1}
        program = "import json, sys, sentencepiece; sentencepiece.SentencePieceTrainer.train(**json.loads(sys.argv[1]))"
        subprocess.run([sys.executable, "-c", program, json.dumps(options)], check=True, cwd=scratch)
        shutil.copy(Path(scratch, "m.model"), folder / name)


def read_model(file):
    from transformers.utils import sentencepiece_model_pb2_new as pb

    model = pb.ModelProto()
    model.ParseFromString(file.read_bytes())
    return model


def make_byte_level(out, corpus, size):
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.train([str(corpus)], trainers.BpeTrainer(vocab_size=max(size, 400), show_progress=False,
                                               initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                               special_tokens=["<|endoftext|>"]))
    model = json.loads(t.to_str())["model"]
    for name, (kind, extra, config) in BYTE_LEVEL.items():
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        vocab = model["vocab"] | {s: len(model["vocab"]) + i for i, s in enumerate(extra)}
        write_json(folder / "vocab.json", vocab)
        lines = [" ".join(pair) for pair in model["merges"]]
        (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(lines) + "\n")
        write_json(folder / "tokenizer_config.json", {"tokenizer_class": kind} | resolve(config, len(vocab)))


def make_gguf(out, name):
    """What the converters of llama.cpp write: pieces by id, added tokens with a score far below, a filled-up end."""
    from gguf import GGUFWriter
    from tokenizers import Tokenizer

    arch, kind, flags = GGUF[name]
    model = read_model(out / name / SENTENCEPIECE[name][1])
    t = Tokenizer.from_file(str(out / "json" / f"{name}.json"))
    pieces = {p.piece: p for p in model.pieces}
    texts = [t.id_to_token(i) for i in range(t.get_vocab_size())]
    special = {i: a.special for i, a in t.get_added_tokens_decoder().items()}
    types, scores = [], []
    for i, text in enumerate(texts):
        piece = pieces.get(text)
        kind_of = piece.type if piece else 4
        types.append(3 if kind_of == 4 and special.get(i) else kind_of)
        scores.append(piece.score if piece else -1000.0)
    (out / "gguf").mkdir(exist_ok=True)
    w = GGUFWriter(str(out / "gguf" / f"{name}.gguf"), arch)
    w.add_tokenizer_model(kind)
    w.add_tokenizer_pre("default")
    fill = 3
    w.add_token_list([*texts, *(f"[PAD{i}]" for i in range(fill))])
    w.add_token_scores([*scores, *[-10000.0] * fill])
    w.add_token_types([*types, *[5] * fill])
    for key in ("bos", "eos", "unk"):
        token = {"bos": ("<s>", "<bos>"), "eos": ("</s>", "<eos>"), "unk": ("<unk>",)}[key]
        for text in token:
            if text in texts:
                getattr(w, f"add_{key}_token_id")(texts.index(text))
    for key, value in flags.items():
        w.add_bool(f"tokenizer.ggml.{key}", value)
    if model.normalizer_spec.precompiled_charsmap:
        w.add_precompiled_charsmap(model.normalizer_spec.precompiled_charsmap)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def make(out, corpus, size, small_maps):
    trained = {}  # options: a file that was made with them
    for name, (kind, file, options, config, files) in SENTENCEPIECE.items():
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        if small_maps and name != "xlmr" and options["normalization_rule_name"] != "identity":
            options = options | {"normalization_rule_name": "small"}
        key = json.dumps(options)
        if key in trained:
            shutil.copy(trained[key], folder / file)
        else:
            train(folder, corpus, size * 2 if "byte_fallback" in options else size, file, options)
        trained[key] = folder / file
        n = len(read_model(folder / file).pieces)
        write_json(folder / "tokenizer_config.json", {"tokenizer_class": kind} | resolve(config, n))
        for other, value in files.items():
            write_json(folder / f"{other}.json", resolve(value, n))
    make_byte_level(out, corpus, size)
    python = os.environ.get("ORACLE_ADAPTERS") or sys.exit("ORACLE_ADAPTERS: see tests/oracle/README.md")
    subprocess.run([python, "-W", "ignore", __file__, "convert", str(out)], check=True, stderr=subprocess.DEVNULL)
    for name in GGUF:
        make_gguf(out, name)


def convert(out):
    from transformers import AutoTokenizer, __version__

    if not __version__.startswith("4."):
        sys.exit(f"transformers {__version__} converts in another way")
    (out / "json").mkdir(exist_ok=True)
    for name in NAMES:
        tokenizer = AutoTokenizer.from_pretrained(str(out / name), use_fast=True)
        tokenizer.backend_tokenizer.save(str(out / "json" / f"{name}.json"), pretty=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["make", "convert"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--size", type=int, default=300)
    parser.add_argument("--small-maps", action="store_true")
    a = parser.parse_args()
    if a.command == "make":
        make(a.out, a.corpus, a.size, a.small_maps)
    else:
        convert(a.out)


if __name__ == "__main__":
    main()
