"""What the `tokenizers` library makes of texts, and whether another program agrees.

    tokenizers_oracle.py encode MODEL < texts.jsonl > expected.jsonl
    tokenizers_oracle.py compare texts.jsonl expected.jsonl got.jsonl

texts.jsonl has a JSON string a line, or [text, pair]. MODEL is a tokenizer.json, a folder with one, or a GGUF file.
A line of the results is {"ids", "offsets" in code points, "type_ids", "text" of all ids, "clean": without special tokens},
special tokens added, nothing cut and nothing padded. compare needs the ids and offsets of every line, the others where
got.jsonl has them; it exits 1 if a line differs.
"""

import argparse
import json
import sys
from itertools import zip_longest
from pathlib import Path

CHUNK = 1000
SHOWN = 10
KEYS = ("ids", "offsets", "type_ids", "text", "clean")


def load_tokenizer(model: Path):
    """A tokenizers.Tokenizer that neither truncates nor pads."""
    from tokenizers import Tokenizer

    if model.suffix == ".gguf":
        tokenizer = gguf_tokenizer(model)
    else:
        tokenizer = Tokenizer.from_file(str(model / "tokenizer.json" if model.is_dir() else model))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def gguf_tokenizer(file: Path):
    """The tokenizer that transformers makes of a GGUF file, with the pre-tokenizer that the file names.

    transformers 5 gives every byte-level vocabulary GPT-2's pre-tokenizer; the smollm kind parts digits first.
    """
    from gguf import GGUFReader
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name).backend_tokenizer
    kind = GGUFReader(str(file)).fields["tokenizer.ggml.pre"].contents()
    pre_tokenizers = {"gpt-2": ByteLevel(add_prefix_space=False),
                      "smollm": Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])}
    if kind not in pre_tokenizers:
        sys.exit(f"unknown pre-tokenizer {kind!r}")
    tokenizer.pre_tokenizer = pre_tokenizers[kind]
    return tokenizer


def read_texts(lines) -> list:
    texts = (json.loads(line) for line in lines)
    return [tuple(text) if isinstance(text, list) else text for text in texts]


def encode(arguments) -> int:
    tokenizer = load_tokenizer(arguments.model)
    texts = read_texts(sys.stdin)
    for start in range(0, len(texts), CHUNK):
        encodings = tokenizer.encode_batch(texts[start:start + CHUNK])
        ids = [encoding.ids for encoding in encodings]
        decoded = [tokenizer.decode_batch(ids, skip_special_tokens=skip) for skip in (False, True)]
        for encoding, text, clean in zip(encodings, *decoded):
            line = {"ids": encoding.ids, "offsets": encoding.offsets, "type_ids": encoding.type_ids, "text": text, "clean": clean}
            print(json.dumps(line, separators=(",", ":")))
    return 0


def first_difference(expected: dict, got: dict) -> str | None:
    """Where two results part, or None."""
    for key in KEYS:
        if key not in ("ids", "offsets") and key not in got:
            continue
        other = got.get(key, [])
        for position, (left, right) in enumerate(zip_longest(expected[key], other)):
            if left != right:
                return f"{key}[{position}]: expected {left}, got {right}"
    return None


def compare(arguments) -> int:
    lines = [path.read_text(encoding="utf-8").split("\n")[:-1]
             for path in (arguments.texts, arguments.expected, arguments.got)]
    differences = 0
    for number, (text, expected, got) in enumerate(zip_longest(*lines), start=1):
        found = first_difference(json.loads(expected), json.loads(got)) if expected and got else "a line is missing"
        if found:
            differences += 1
            if differences <= SHOWN:
                print(f"line {number}: {found}\n    {text}")
    print(f"{len(lines[0])} texts, {differences} differ")
    return 1 if differences or not lines[0] else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    encoder = commands.add_parser("encode")
    encoder.add_argument("model", type=Path)
    encoder.set_defaults(run=encode)
    comparer = commands.add_parser("compare")
    for name in ("texts", "expected", "got"):
        comparer.add_argument(name, type=Path)
    comparer.set_defaults(run=compare)
    arguments = parser.parse_args()
    return arguments.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
