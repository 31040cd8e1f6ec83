"""Writes texts to tokenize, one JSON string a line: `texts.py debian|random [--count N] [--seed N] > texts.jsonl`.

debian takes package descriptions in English, German and French from the lists that
`apt-get update -o Acquire::Languages=en,de,fr` leaves behind. random draws strings of characters that Unicode 14, the
version of Python 3.11's unicodedata, assigns: mixed scripts, combining marks, CJK, emoji, controls but NUL, and every
kind of space.
"""

import argparse
import json
import random
import subprocess
import sys
import unicodedata
from pathlib import Path

LANGUAGES = ("en", "de", "fr")
APT_HELPER = "/usr/lib/apt/apt-helper"  # decompresses whatever compression apt chose for its lists
LONGEST_RUN = 12
MOST_RUNS = 8
POOLS = {
    "ascii": [(0x21, 0x7E)],
    "letters": [(0x41, 0x5A), (0x61, 0x7A)],
    "digits": [(0x30, 0x39), (0x660, 0x669), (0x966, 0x96F), (0xFF10, 0xFF19), (0x1D7CE, 0x1D7FF)],
    "latin": [(0xC0, 0x24F), (0x1E00, 0x1EFF)],
    "combining": [(0x300, 0x36F), (0x1AB0, 0x1AFF), (0x20D0, 0x20FF)],
    "greek and cyrillic": [(0x370, 0x52F)],
    "semitic": [(0x590, 0x6FF)],
    "indic": [(0x900, 0xDFF)],
    "south-east asian": [(0xE00, 0xEFF), (0x1000, 0x109F), (0x1780, 0x17FF)],
    "kana": [(0x3040, 0x30FF), (0xFF66, 0xFF9F)],
    "cjk": [(0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0xF900, 0xFAFF), (0x3000, 0x303F)],
    "hangul": [(0xAC00, 0xD7A3), (0x1100, 0x11FF)],
    "symbols": [(0xA1, 0xBF), (0x2010, 0x27BF), (0x2900, 0x2BFF)],
    "emoji": [(0x1F300, 0x1FAFF), (0x1F1E6, 0x1F1FF), (0x1F3FB, 0x1F3FF)],
    "joiners": [(0x200B, 0x200F), (0x2060, 0x2064), (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF), (0xAD, 0xAD)],
    "spaces": [(0x9, 0xD), (0x20, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A),
               (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)],
    "controls": [(0x1, 0x1F), (0x7F, 0x9F)],
    "anything": [(0x1, 0xD7FF), (0xE000, 0x1FBFF), (0x20000, 0x3134A), (0xE0001, 0xE01EF)],
}
FRAGMENTS = ("[CLS]", "[SEP]", "[MASK]", "<s>", "</s>", "<unk>", "<|endoftext|>", "<|im_start|>", "<pad>", "##ing",
             "don't", "I'LL", "\r\n", "   ", "e\u0301", "ﬁ", "İ", "ß", "Σς", "👩‍👩‍👧", "🇩🇪", "\u1100\u1161\u11a8")


def assigned_in(ranges: list) -> list:
    points = (chr(point) for first, last in ranges for point in range(first, last + 1))
    return [c for c in points if unicodedata.category(c) not in ("Cn", "Cs", "Co")]


def random_text(pools: list, source: random.Random) -> str:
    """Runs of one pool each, often parted by a space."""
    parts = []
    for _ in range(source.randint(1, MOST_RUNS)):
        if source.random() < 0.1:
            parts.append(source.choice(FRAGMENTS))
        else:
            parts.append("".join(source.choices(source.choice(pools), k=source.randint(1, LONGEST_RUN))))
        parts.append(" " if source.random() < 0.5 else "")
    return "".join(parts)


def random_texts(arguments) -> list:
    source = random.Random(arguments.seed)
    pools = [assigned_in(ranges) for ranges in POOLS.values()]
    return [random_text(pools, source) for _ in range(arguments.count)]


def description_file(lists: Path, language: str) -> str:
    files = sorted(lists.glob(f"*_main_i18n_Translation-{language}*"))
    if not files:
        sys.exit(f"no descriptions in {language}: run apt-get update -o Acquire::Languages={','.join(LANGUAGES)}")
    largest = max(files, key=lambda file: file.stat().st_size)
    return subprocess.run([APT_HELPER, "cat-file", str(largest)], capture_output=True, check=True).stdout.decode()


def descriptions(content: str, language: str) -> list:
    """Short descriptions, and long ones with their line breaks."""
    texts = []
    for paragraph in content.split("\n\n"):
        _, _, description = paragraph.partition(f"\nDescription-{language}: ")
        short, _, long = description.partition("\n")
        texts += [short, long.replace("\n .\n", "\n\n").replace("\n ", "\n").strip()]
    return [text for text in texts if text]


def debian_texts(arguments) -> list:
    source = random.Random(arguments.seed)
    texts = []
    for number, language in enumerate(LANGUAGES):
        found = sorted(set(descriptions(description_file(arguments.lists, language), language)))
        share = arguments.count * (number + 1) // len(LANGUAGES) - len(texts)
        texts += source.sample(found, min(share, len(found)))
    source.shuffle(texts)
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["debian", "random"])
    parser.add_argument("--count", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lists", type=Path, default=Path("/var/lib/apt/lists"), help="apt's lists")
    arguments = parser.parse_args()
    for text in {"debian": debian_texts, "random": random_texts}[arguments.kind](arguments):
        print(json.dumps(text))


if __name__ == "__main__":
    main()
