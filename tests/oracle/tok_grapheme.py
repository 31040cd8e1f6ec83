"""Writes core/tok/tok_grapheme_data.c: the grapheme classes of every code point as the `tokenizers` library has them.

The library's Precompiled normaliser replaces a whole grapheme of less than 6 bytes by what the first match in its map
says. So a map of our own and a probe text tell whether two characters are one grapheme. Only what can change a result is
asked: joins that make a grapheme of 6 bytes or more in any case (regional indicators) are left out.

    python tests/oracle/tok_grapheme.py > core/tok/tok_grapheme_data.c
"""
import struct
import sys

from tokenizers import normalizers as N

OTHER, CR, LF, CONTROL, EXTEND, ZWJ, SPACING, PREPEND, L, V, T, LV, LVT, PICT, CONSONANT, LINKER, INCB = range(17)
BLOCK = 128
VALUE = 256  # the unit that all keys of a probe map share


def charsmap(keys, to="x"):
    """A SentencePiece map (Darts-clone trie and texts) that gives `to` for each key, no key a beginning of another."""
    root = {}
    for key in keys:
        node = root
        for byte in key.encode():
            node = node.setdefault(byte, {})
    units, stack = [0] * 512, [(root, 0, 0)]
    units[VALUE] = 1 << 31
    while stack:
        node, at, label = stack.pop()
        if not node:
            units[at] = label | 1 << 8 | (at ^ VALUE) << 10
            continue
        base = len(units)
        units += [0] * 256
        units[at] = label | (at ^ base) << 10
        assert at ^ base < 1 << 21
        for byte, child in node.items():
            stack.append((child, base ^ byte, byte))
    trie = struct.pack(f"<{len(units)}I", *units)
    return struct.pack("<I", len(trie)) + trie + to.encode() + b"\0"


def precompiled(keys):
    return N.Precompiled(charsmap(keys)).normalize_str


def scalars(plane):
    for c in range(plane << 16, (plane + 1) << 16):
        if c and not 0xD800 <= c < 0xE000:
            yield c


class Probes:
    def __init__(self):
        self.a, self.mark, self.pict = precompiled("a"), precompiled("\u0301"), precompiled("\u00a9")

    def extends(self, ch):
        """How ch joins what stands before it."""
        if self.a("a" + ch) != "x":
            return None
        if ch == "\u200d":
            return ZWJ
        if not self.pict("\u00a9" + ch + "\u200d\u00a9\u0301").endswith("\u0301"):
            return SPACING
        tail = "\u0937\u0301"
        every = precompiled(["\u0937"])
        if every("\u0915" + ch + tail).endswith("\u0301"):
            return LINKER
        return INCB if every("\u0915\u094d" + ch + tail).endswith("\u0301") else EXTEND

    def hangul(self, ch):
        tails = [precompiled([t])(ch + t + "\u0301").endswith("\u0301") for t in ("\u1100", "\u1160", "\u11a8")]
        if not any(tails):
            return None
        if tails[0]:
            return L
        every = precompiled([ch])
        if tails[1]:
            return V if ord(ch) > 0xFFFF or every("\u1160" + ch + "\u0301").endswith("\u0301") else LV
        return T if every("\u11a8" + ch + "\u0301").endswith("\u0301") else LVT


def classes():
    p, out = Probes(), [OTHER] * 0x110000
    for plane in (0, 1, 2, 3, 14):
        every = precompiled([chr(c) for c in scalars(plane) if c != 0x301])
        for c in scalars(plane):
            ch = chr(c)
            joined = p.extends(ch)
            if joined is not None:
                out[c] = joined
            elif p.mark(ch + "\u0301\u0301") == ch + "x":
                out[c] = CONTROL
            elif p.pict("\u00a9\u200d" + ch).startswith("x\u200d"):
                out[c] = PICT
            elif every(ch + "a") == "x":
                out[c] = PREPEND
            elif plane == 0 and every("\u0915\u094d" + ch + "\u0301").endswith("\u0301"):
                out[c] = CONSONANT
            elif 0x1100 <= c < 0xE000 or plane == 1:
                out[c] = p.hangul(ch) or OTHER
    out[0], out[13], out[10] = CONTROL, CR, LF
    return out


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
    text = "".join(chr(ord("A") + c) for c in classes())
    blocks, index = {}, []
    for i in range(0, 0x110000, BLOCK):
        index.append(blocks.setdefault(text[i : i + BLOCK], len(blocks)))
    assert len(blocks) < 256
    out = sys.stdout
    out.write(
        "/* core/tok/tok_grapheme_data.c - made by tests/oracle/tok_grapheme.py; do not edit.\n"
        " * Grapheme classes of every code point as the `tokenizers` library has them: an index\n"
        " * of %d-character blocks and the distinct blocks, one letter a character: 'A' and the\n"
        " * value of its class (tok_grapheme.c). */\n"
        '#include "core/tok/tok_unicode.h"\n\n' % BLOCK
    )
    out.write("/* clang-format off */\n")
    out.write("const uint8_t tok__grapheme_index[TOK__N_BLOCKS] = {\n" + "\n".join(rows(index)) + "\n};\n\n")
    out.write("const char tok__grapheme_block[] =\n" + strings("".join(blocks)))


if __name__ == "__main__":
    main()
