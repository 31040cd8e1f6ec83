"""Writes tests/golden/tok/: small tokenizers of every kind that core/tok reads, and what the
`tokenizers` library makes of about 300 texts with each.

    python tests/oracle/tok_goldens.py tests/golden/tok [families]

`families` makes those of the tokenizer classes only (tok_families.py; needs ORACLE_ADAPTERS).

Texts are made here: sentences from word lists of three languages, and strings of characters that
Unicode 14 assigns. The tokenizers of the two real models that tools/models.sh fetches get results too,
if MODELS says where the models are; the test compares them where they are there.

The library's trainers do not give the same vocabulary twice when continuations have a prefix, so those
two vocabularies are made here.
"""
import json
import os
import random
import shutil
import sys
import tempfile
import unicodedata
from collections import Counter
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers import decoders as D
from tokenizers import models
from tokenizers import normalizers as N
from tokenizers import pre_tokenizers as P
from tokenizers import processors as X
from tokenizers import trainers

import tok_families

WORDS = """the a an of and to in is are that with for from one two three many task tasks model
adapter adapters frozen server batch token tokens unbelievable don't it's we'll I've they're you'd John's
configuration transformer attention prefix 2024 3.14 1,000 42nd x86-64 foo_bar C++ e-mail
der die das und ist nicht mit für über Größe Straße Müßiggang Änderung Österreich Übung wird können
Schaltfläche Donaudampfschiffahrt größer heißt weiß äußerst
le la les des un une est où déjà élève naïve cœur garçon forêt été être ça aujourd'hui l'eau
qu'il français Noël août bibliothèque logiciel données réseau""".split()
ENDS = [".", "!", "?", "...", ";", ":", " -", ",", "…", "»", ")", "\n", "\r\n", "\n\n", "\t", "  ", "   "]
PIECES = list(" \t\n\r'\"#-_.,!?0123456789aAbBeEsStTİıßſﬀΣσς") + [
    "\u00a0", "\u200b", "\u180e", "\u2028", "\ufffd", "\u0085", "\x1c", "\x0b", "\u3000", "\u0301", "\u0344",
    "\u0f71", "\u0f73", "\u1100", "\u1161", "\u11a8", "각", "漢字", "ひらがな", "日本", "👩\u200d👩\u200d👧", "🇩🇪", "½", "²",
    "e\u0301", "A\u030a", "\u0323\u0307", "'S", "'LL", "'\u017f", "<|endoftext|>", "[MASK]", " [SEP] ", "<s>", "<tool>",
    "ﬁ", "①", "Ⅷ", "\U0001d7d8", "שלום", "Привет", "γειά", "สวัสดี", "\u0928\u093f", "ẛ̣",
]
ORACLE_ADAPTERS = os.environ.get("ORACLE_ADAPTERS")
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
BERT_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def sentence(rng):
    out = []
    for _ in range(rng.randint(2, 9)):
        word = rng.choice(WORDS)
        out.append(rng.choice((word, word, word, word.capitalize(), word.upper())))
        if rng.random() < 0.25:
            out[-1] += rng.choice(ENDS)
    return " ".join(out)


def make_texts(rng):
    assigned = [chr(c) for c in range(1, 0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]
    texts = ["", " ", "a", "\n", "\u0301", "aujourd'hui", "x" * 101, "x" * 100, "ä" * 101, "ß" * 100, "\x00a\x00", "I'll call Will"]
    texts += [sentence(rng) for _ in range(150)]
    texts += ["".join(rng.choice(PIECES) for _ in range(rng.randint(1, 16))) for _ in range(80)]
    texts += ["".join(rng.choice(assigned) for _ in range(rng.randint(1, 10))) for _ in range(30)]
    pairs = [[sentence(rng), sentence(rng)] for _ in range(25)]
    return texts + pairs + [["", "a"], ["a", ""], ["", ""], ["a b c d e f g", "h"], ["a", "b c d e f g h"]]


# ---- tokenizers ---------------------------------------------------------------


def count_words(corpus, normalizer, pre):
    return Counter(w for text in corpus for w, _ in pre.pre_tokenize_str(normalizer.normalize_str(text)))


def wordpiece_vocab(corpus, normalizer, pre, size=500):
    """All characters, then the most frequent beginnings and ends of words."""
    words, parts = count_words(corpus, normalizer, pre), Counter()
    for w, n in words.items():
        for i in range(2, len(w) + 1):
            parts[w[:i]] += n * i
            parts["##" + w[len(w) - i :]] += n * i
    chars = sorted(set("".join(words)))
    best = sorted(parts, key=lambda p: (-parts[p], p))
    texts = BERT_SPECIAL + chars + ["##" + c for c in chars] + best
    return {s: i for i, s in enumerate(dict.fromkeys(texts[:size]))}


def marked_merges(corpus, normalizer, pre, prefix, suffix, n_merges=250):
    """BPE with marked continuations and ends: the vocabulary and the merges."""
    words = {
        tuple((prefix if i else "") + c + (suffix if i + 1 == len(w) else "") for i, c in enumerate(w)): n
        for w, n in count_words(corpus, normalizer, pre).items()
    }
    vocab, merges = sorted({s for w in words for s in w}), []
    for _ in range(n_merges):
        pairs = Counter()
        for w, n in words.items():
            for pair in zip(w, w[1:]):
                pairs[pair] += n
        a, b = max(pairs, key=lambda p: (pairs[p], p))
        joined = a + b[len(prefix) :]
        merges.append((a, b))
        vocab.append(joined)
        merged = {}
        for w, n in words.items():
            out = []
            for s in w:
                if out and out[-1] == a and s == b:
                    out[-1] = joined
                else:
                    out.append(s)
            merged[tuple(out)] = n
        words = merged
    return {s: i for i, s in enumerate(["[u]"] + list(dict.fromkeys(vocab)))}, merges


def wordpiece(corpus, normalizer, pre, post=True, added=()):
    t = Tokenizer(models.WordPiece(wordpiece_vocab(corpus, normalizer, pre), unk_token="[UNK]"))
    t.normalizer, t.pre_tokenizer = normalizer, pre
    t.add_special_tokens(BERT_SPECIAL)
    ids = {s: t.token_to_id(s) for s in ("[CLS]", "[SEP]")}
    if post:
        t.post_processor = X.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=list(ids.items())
        )
    else:
        t.post_processor = X.BertProcessing(("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"]))
    t.decoder = D.WordPiece()
    t.add_tokens(list(added))
    return t


def bpe(corpus, pre, normalizer=None, added=(), size=600, trainer=None, **model):
    t = Tokenizer(models.BPE(**model))
    t.pre_tokenizer = pre
    if normalizer:
        t.normalizer = normalizer
    t.decoder = D.ByteLevel()
    options = {"initial_alphabet": P.ByteLevel.alphabet(), "special_tokens": ["<|endoftext|>"]} | (trainer or {})
    t.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=size, show_progress=False, **options))
    t.add_tokens(list(added))
    return t


def special(text, **flags):
    return AddedToken(text, special=True, normalized=False, **flags)


def split_bytes(pattern):
    return P.Sequence([P.Split(Regex(pattern), "isolated"), P.ByteLevel(add_prefix_space=False, use_regex=False)])


def llama3(corpus):
    t = bpe(corpus, split_bytes(LLAMA3), ignore_merges=True, added=[special("<|begin_of_text|>")])
    bos = "<|begin_of_text|>"
    t.post_processor = X.Sequence([
        X.ByteLevel(trim_offsets=True),
        X.TemplateProcessing(single=f"{bos} $A", pair=f"{bos} $A {bos}:1 $B:1", special_tokens=[(bos, t.token_to_id(bos))]),
    ])
    return t


def qwen2(corpus):
    t = bpe(corpus, split_bytes(QWEN2), N.NFC(), added=[special("<|im_start|>"), AddedToken("<tool>", normalized=False)])
    t.add_tokens([AddedToken("Cafe\u0301")])
    t.post_processor = X.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    return t


def smollm(corpus):
    pre = P.Sequence([P.Digits(individual_digits=True), P.ByteLevel(add_prefix_space=False)])
    return bpe(corpus, pre, added=[special("<|im_start|>"), special("<|im_end|>")])


def roberta(corpus):
    t = bpe(corpus, P.ByteLevel(add_prefix_space=True), added=[special("<s>"), special("</s>"), special("[MASK]", lstrip=True)])
    t.post_processor = X.RobertaProcessing(("</s>", t.token_to_id("</s>")), ("<s>", t.token_to_id("<s>")))
    return t


def sentencepiece(corpus, prune):
    specials = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)]
    t = bpe(
        corpus, None, N.Sequence([N.Prepend("▁"), N.Replace(" ", "▁")]), unk_token="<unk>", fuse_unk=True,
        byte_fallback=True, size=700,
        trainer={"initial_alphabet": [], "limit_alphabet": 60, "special_tokens": specials, "max_token_length": 8},
    )
    t.decoder = D.Sequence([D.Replace("▁", " "), D.ByteFallback(), D.Fuse(), D.Strip(" ", 1, 0)])
    j = json.loads(t.to_str())
    j["added_tokens"] = [a for a in j["added_tokens"] if not a["content"].startswith("<0x")]
    prune(j)
    return Tokenizer.from_str(json.dumps(j))


def unknown_runs(j):
    j["model"]["byte_fallback"] = False
    j["normalizer"] = None
    j["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}
    j["decoder"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}


def no_unknown(j):
    j["model"].update(byte_fallback=False, fuse_unk=False, unk_token=None)


def clip(corpus):
    normalizer, pre = N.BertNormalizer(), P.BertPreTokenizer()
    vocab, merges = marked_merges(corpus, normalizer, pre, "##", "</w>")
    t = Tokenizer(models.BPE(
        vocab, merges, unk_token="[u]", continuing_subword_prefix="##", end_of_word_suffix="</w>"))
    t.normalizer, t.pre_tokenizer, t.decoder = normalizer, pre, D.BPEDecoder("</w>")
    t.add_special_tokens(["[u]"])
    return t


def make_kinds(corpus):
    bert = N.BertNormalizer()
    odd = [
        AddedToken("naïve", normalized=True), AddedToken("The", normalized=True, single_word=True),
        AddedToken("model", normalized=False, lstrip=True, rstrip=True), AddedToken(" is", normalized=False),
        AddedToken("e", single_word=True), AddedToken("<s>", special=True, normalized=True),
    ]
    return {
        "wordpiece": wordpiece(corpus, bert, P.BertPreTokenizer()),
        "cased": wordpiece(corpus, N.BertNormalizer(lowercase=False), P.BertPreTokenizer(), post=False),
        "added": wordpiece(corpus, bert, P.BertPreTokenizer(), added=odd),
        "forms": wordpiece(
            corpus,
            N.Sequence([N.NFKD(), N.StripAccents(), N.Lowercase(), N.Strip(), N.Replace("e", "é"), N.Replace("ll", "l"),
                        N.Replace(Regex(r"\s{2,}"), " "), N.NFKC()]),
            P.Sequence([P.Punctuation("merged_with_previous"), P.Split(" ", "merged_with_next"),
                        P.Split(Regex(r"\w+|[^\w\s]+"), "removed", invert=True), P.Digits(False)]),
        ),
        "words": wordpiece(corpus, N.NFD(), P.Sequence([P.Whitespace(), P.Punctuation("contiguous")])),
        "gpt2": bpe(corpus, P.ByteLevel(add_prefix_space=False), added=[special("<|endoftext|>")]),
        "llama3": llama3(corpus),
        "qwen2": qwen2(corpus),
        "smollm": smollm(corpus),
        "roberta": roberta(corpus),
        "fallback": sentencepiece(corpus, lambda j: None),
        "unknown": sentencepiece(corpus, unknown_runs),
        "dropped": sentencepiece(corpus, no_unknown),
        "clip": clip(corpus),
    }


# ---- tokenizer classes, and tokenizer.json with Unigram ------------------------

# Clusters that the precompiled map sees as a whole, and texts that look like tokens.
CLUSTERS = PIECES + list("aeｅＡﾊ㎏①ﾞ½©®‼⌚가각कष") + [
    "\u1160", "\u11a8", "\u094d", "\u093f", "\u0301", "\u200d", "\u200c", "\u0600", "\u06dd", "\u0958", "\u0a33", "\ufe0f",
    "a\u0301", "ｅ\u0301", "©\u200d", "©\u200d©\u0301", "\u0600a", "각\u0301", "\u0915\u094d\u0937\u0301", "\r\n", "  ", "   ",
    "<mask>", " <mask> ", "<unk>", "</s>", "<s>a", "<extra_id_0>", "<extra_id_11> ", "[UNK]", "<start_of_turn>", "\n\n",
    "de_DE", "en_XX", "<|im_end|>", "<tool>  x", "the model", "▁", "<0x41>", "\ufdfa", "漢",
]


def make_family_texts(rng):
    texts = ["", " ", "  a", "a  ", "\n", "\x1c", "\u00ad", "\u00ada", "x" * 600, "漢" * 40, "▁a", " <mask>", "a" * 9 + "\u0301" * 9]
    texts += [sentence(rng) for _ in range(25)]
    texts += ["".join(rng.choice(CLUSTERS) for _ in range(rng.randint(1, 14))) for _ in range(70)]
    return texts + [[sentence(rng), sentence(rng)] for _ in range(8)] + [["", "a"], ["a", ""]]


def unigram(corpus, rng, normalizer, pre, decoder, byte_fallback):
    """A vocabulary made here, of the beginnings and the rest of words, with scores that often tie."""
    words = count_words(corpus, normalizer, pre)
    parts = Counter()
    for w, n in words.items():
        for i in range(1, len(w) + 1):
            parts[w[:i]] += n
            parts[w[i - 1 :]] += n
    best = sorted(parts, key=lambda p: (-parts[p] * len(p), p))[:300]
    bytes_ = ["<0x%02X>" % b for b in range(256)] if byte_fallback else []
    vocab = [("<pad>", 0.0), ("<unk>", 0.0)] + [(b, 0.0) for b in bytes_]
    vocab += [(p, -rng.randint(2, 24) / 2) for p in best if p not in ("<pad>", "<unk>")]
    t = Tokenizer(models.Unigram(vocab, unk_id=1, byte_fallback=byte_fallback))
    t.normalizer, t.pre_tokenizer, t.decoder = normalizer, pre, decoder
    t.add_special_tokens(["<pad>", AddedToken("<unk>", normalized=True), AddedToken("<mask>", lstrip=True)])
    return t


def modernbert(corpus):
    t = bpe(corpus, P.ByteLevel(add_prefix_space=False), N.NFC(), added=[special(s) for s in ("[UNK]", "[CLS]", "[SEP]", "[PAD]")])
    t.add_tokens([AddedToken(" " * n) for n in range(8, 1, -1)] + [special("[MASK]", lstrip=True)])
    t.post_processor = X.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[(s, t.token_to_id(s)) for s in ("[CLS]", "[SEP]")])
    return t


def make_json_kinds(corpus, rng, charsmap):
    spm = D.Sequence([D.Replace("▁", " "), D.ByteFallback(), D.Fuse(), D.Strip(" ", 1, 0)])
    return {
        "unigram-bytes": unigram(
            corpus, rng, N.Sequence([N.Nmt(), N.NFKC(), N.Replace(Regex(" {2,}"), " ")]), P.Metaspace(), spm, True),
        "unigram-words": unigram(
            corpus, rng, N.Sequence([N.Precompiled(charsmap), N.NFKD(), N.StripAccents(), N.Lowercase(), N.Strip(), N.Prepend("_")]),
            P.Sequence([P.WhitespaceSplit(), P.Digits(True), P.Punctuation()]), D.Metaspace("_", "never"), False),
        "unigram-whole": unigram(
            corpus, rng, N.Sequence([N.Strip(left=True, right=False), N.Replace(" ", "▁")]), P.Metaspace(split=False, prepend_scheme="first"),
            D.Metaspace(prepend_scheme="first"), False),
        "modernbert": modernbert(corpus),
    }


def make_families(out, corpus):
    rng = random.Random(15)
    texts = make_family_texts(rng)
    lines = ",\n".join(json.dumps(t) for t in texts)
    (out / "texts-families.json").write_text(f"[\n{lines}\n]\n")
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch)
        (made / "corpus").write_text("".join(" ".join(t.split()) + "\n" for t in corpus))
        tok_families.make(made, made / "corpus", 240, small_maps=True)
        for name in tok_families.NAMES:
            shutil.copytree(made / name, out / "families" / name, dirs_exist_ok=True)
            t = Tokenizer.from_file(str(made / "json" / f"{name}.json"))
            write(out, f"family-{name}", f"families/{name}", run(t, texts), **{"from": "texts-families.json"})
        for name in tok_families.GGUF:
            if name != "xlmr":  # a quarter of a megabyte again
                (out / "gguf").mkdir(exist_ok=True)
                shutil.copy(made / "gguf" / f"{name}.gguf", out / "gguf")
        charsmap = tok_families.read_model(made / "t5" / "spiece.model").normalizer_spec.precompiled_charsmap
    for name, t in make_json_kinds(corpus, rng, charsmap).items():
        save(t, out / f"files/{name}.json")
        write(out, name, f"files/{name}.json", run(t, texts), **{"from": "texts-families.json"})


# ---- results ------------------------------------------------------------------


def run(t, texts, n_max=0, add_special=True):
    t.no_padding()
    t.no_truncation()
    if n_max:
        t.enable_truncation(n_max)
    rows = []
    for text in texts:
        e = t.encode(*text, add_special_tokens=add_special) if isinstance(text, list) else t.encode(
            text, add_special_tokens=add_special)
        starts, ends = [s for s, _ in e.offsets], [s for _, s in e.offsets]
        row = [e.ids, starts, ends, e.type_ids if any(e.type_ids) else [], t.decode(e.ids)]
        if not n_max:
            row[4:] = [t.decode(e.ids), t.decode(e.ids, skip_special_tokens=False)]
            row = row[:5] if row[4] == row[5] else row
        rows.append(row)
    return rows


def write(path, name, tokenizer, rows, **how):
    head = json.dumps({"tokenizer": tokenizer} | how)
    lines = ",\n".join(json.dumps(r, ensure_ascii=True, separators=(",", ":")) for r in rows)
    (path / f"{name}.json").write_text(f'{head[:-1]}, "rows": [\n{lines}\n]}}\n')


def save(t, path):
    path.write_text(json.dumps(json.loads(t.to_str()), ensure_ascii=False, separators=(",", ":")) + "\n")


def real(out, texts):
    folder = os.environ.get("MODELS")
    if not folder:
        return
    from gguf import GGUFReader

    chosen = list(range(0, len(texts), 4))
    texts = [texts[i] for i in chosen]
    which = {"real": True, "texts": chosen}
    t = Tokenizer.from_file(f"{folder}/minilm/tokenizer.json")
    write(out, "real-minilm", "minilm", run(t, texts), **which)
    gguf = "smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    f = GGUFReader(f"{folder}/{gguf}").fields
    tokens, types, merges = (
        f[f"tokenizer.ggml.{k}"].contents() for k in ("tokens", "token_type", "merges")
    )
    t = Tokenizer(models.BPE({s: i for i, s in enumerate(tokens)}, [tuple(m.split(" ")) for m in merges]))
    t.pre_tokenizer = P.Sequence([P.Digits(individual_digits=True), P.ByteLevel(add_prefix_space=False)])
    t.decoder = D.ByteLevel()
    t.add_tokens([special(s) for s, k in zip(tokens, types) if k != 1])
    write(out, "real-smollm2", gguf, run(t, texts), **which)


def main():
    out = Path(sys.argv[1])
    (out / "files").mkdir(parents=True, exist_ok=True)
    rng = random.Random(14)
    corpus = [sentence(rng) for _ in range(1500)]
    if ORACLE_ADAPTERS:
        make_families(out, corpus)
    if sys.argv[2:] == ["families"]:
        return
    texts = make_texts(rng)
    lines = ",\n".join(json.dumps(t) for t in texts)
    (out / "texts.json").write_text(f"[\n{lines}\n]\n")
    few = list(range(10)) + list(range(10, len(texts) - 30, 4)) + list(range(len(texts) - 30, len(texts)))
    for name, t in make_kinds(corpus).items():
        every = name in ("wordpiece", "gpt2", "llama3", "qwen2", "smollm")
        path = f"files/{name}.json"
        save(t, out / path)
        chosen = texts if every else [texts[i] for i in few]
        which = {} if every else {"texts": few}
        write(out, name, path, run(t, chosen), **which)
        if name in ("wordpiece", "llama3", "roberta"):
            chosen = texts[10:60] + texts[-30:]
            which = {"texts": list(range(10, 60)) + list(range(len(texts) - 30, len(texts)))}
            write(out, f"{name}-max9", path, run(t, chosen, n_max=9), max=9, **which)
            write(out, f"{name}-plain", path, run(t, chosen, add_special=False), no_special=True, **which)
        if name == "wordpiece":
            vocab = sorted(t.get_vocab(False).items(), key=lambda kv: kv[1])
            (out / "files" / "vocab").mkdir(exist_ok=True)
            (out / "files" / "vocab" / "vocab.txt").write_text("".join(s + "\n" for s, _ in vocab))
        if name == "gpt2":
            (out / "files" / "gpt2").mkdir(exist_ok=True)
            t.model.save(str(out / "files" / "gpt2"))
    real(out, texts)


if __name__ == "__main__":
    main()
