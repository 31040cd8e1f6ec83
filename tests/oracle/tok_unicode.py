"""Writes core/tok/tok_unicode_data.c: character classes as the `tokenizers`
library has them, found by asking the library about every code point.

The library mixes crates of different ages: its punctuation and mark tables are
those of Unicode 8, its normaliser those of Unicode 9, its white space those of
the compiler. Equality needs those tables, not newer and better ones.

    python tests/oracle/tok_unicode.py > core/tok/tok_unicode_data.c
"""
import sys
import unicodedata

from tokenizers import normalizers as N
from tokenizers import pre_tokenizers as P

SPACE, CONTROL, PUNCT, NUMERIC, WORD, MN, MARK, NORM = (1 << i for i in range(8))
BLOCK = 128


def scalars():
    for c in range(0x110000):
        if not 0xD800 <= c < 0xE000:
            yield c


def classes():
    clean = N.BertNormalizer(
        clean_text=True, handle_chinese_chars=False, strip_accents=False, lowercase=False
    )
    accents = N.BertNormalizer(
        clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=False
    )
    marks = N.StripAccents()
    nfkd = N.NFKD()
    space, punct = P.WhitespaceSplit(), P.Punctuation()
    numeric, word = P.Digits(individual_digits=True), P.Whitespace()
    flags = [0] * 0x110000
    for c in scalars():
        ch = chr(c)
        s = "a" + ch + "a"
        f = 0
        if len(space.pre_tokenize_str(s)) == 2:
            f |= SPACE
        if clean.normalize_str(ch) == "":
            f |= CONTROL
        if len(punct.pre_tokenize_str(s)) == 3:
            f |= PUNCT
        if len(numeric.pre_tokenize_str(s)) == 3:
            f |= NUMERIC
        if len(word.pre_tokenize_str(s)) == 1:
            f |= WORD
        if accents.normalize_str("x" + ch) == "x":
            f |= MN
        if marks.normalize_str(ch) == "":
            f |= MARK
        if nfkd.normalize_str(ch) != ch or combining(nfkd, ch):
            f |= NORM
        flags[c] = f
    for c in seconds(flags):
        flags[c] |= NORM
    return flags


def combining(nfkd, ch):
    """True if the library gives ch a canonical combining class."""
    ours = unicodedata.combining(ch)
    if ours == 0:
        return False
    # U+0345 has class 240, the highest; U+0334 has 1, the lowest.
    probe = "a\u0345" + ch if ours < 240 else "a" + ch + "\u0334"
    moved = nfkd.normalize_str(probe) != probe
    if moved:
        for other in ("\u0334", "\u093c", "\u0327", "\u0323", "\u0301", "\u0345"):
            for s in ("a" + other + ch, "a" + ch + other):
                assert nfkd.normalize_str(s) == unicodedata.normalize("NFKD", s), hex(ord(ch))
    return moved


def seconds(flags):
    """Characters that canonical composition may join to the one before."""
    yield from range(0x1161, 0x1176)
    yield from range(0x11A8, 0x11C3)
    for c in scalars():
        d = unicodedata.decomposition(chr(c)).split()
        if len(d) == 2 and not d[0].startswith("<") and flags[c] & NORM:
            yield int(d[1], 16)


def check_forms():
    """Where the library decomposes at all, it agrees with Unicode 14."""
    for form in ("NFD", "NFKD"):
        lib = getattr(N, form)()
        for c in scalars():
            got = lib.normalize_str(chr(c))
            assert got in (chr(c), unicodedata.normalize(form, chr(c))), (form, hex(c))


def strings(text):
    return "\n".join('    "%s"' % text[i : i + 92] for i in range(0, len(text), 92)) + ";\n"


def rows(values):
    line = ""
    for v in values:
        if len(line) > 90:
            yield "    " + line
            line = ""
        line += "%d," % v
    yield "    " + line


def main():
    check_forms()
    flags = classes()
    kinds = sorted(set(flags))
    assert len(kinds) <= 58
    letter = {f: chr(ord("A") + i + (i > 26)) for i, f in enumerate(kinds)}  # no backslash
    text = "".join(letter[f] for f in flags)
    blocks, index = {}, []
    for i in range(0, 0x110000, BLOCK):
        index.append(blocks.setdefault(text[i : i + BLOCK], len(blocks)))
    assert len(blocks) < 256
    table = [0] * 64
    for f, c in letter.items():
        table[ord(c) - ord("A")] = f
    out = sys.stdout
    out.write(
        "/* core/tok/tok_unicode_data.c - made by tests/oracle/tok_unicode.py; do not edit.\n"
        " * Character classes of every code point as the `tokenizers` library has them: an\n"
        " * index of %d-character blocks, the distinct blocks with one letter a character,\n"
        " * and the bits (tok_unicode.h) that each letter stands for. */\n"
        '#include "core/tok/tok_unicode.h"\n\n' % BLOCK
    )
    out.write("/* clang-format off */\n")
    out.write("const uint8_t tok__class_bits[64] = {\n" + "\n".join(rows(table)) + "\n};\n\n")
    out.write("const uint8_t tok__class_index[TOK__N_BLOCKS] = {\n")
    out.write("\n".join(rows(index)) + "\n};\n\n")
    out.write("const char tok__class_block[] =\n" + strings("".join(blocks)))


if __name__ == "__main__":
    main()
