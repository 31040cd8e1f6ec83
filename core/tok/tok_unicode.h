/* core/tok/tok_unicode.h - character classes and case, as the `tokenizers`
 * library sees them.
 *
 * The library's crates carry tables of different Unicode versions (punctuation
 * and marks of 8, normalisation of 9), and equal ids need the same ones. So the
 * table is the library's own (tests/oracle/tok_unicode.py asks it about every
 * code point), and utf8proc serves only for what does not differ: mappings.
 */
#ifndef CORE_TOK_TOK_UNICODE_H
#define CORE_TOK_TOK_UNICODE_H

#include <stdbool.h>
#include <stdint.h>

enum tok__class {
    TOK__SPACE = 1,      /* White_Space */
    TOK__CONTROL = 2,    /* what BertNormalizer's clean_text removes */
    TOK__PUNCT = 4,      /* ASCII punctuation and categories P* */
    TOK__NUMERIC = 8,    /* categories N* */
    TOK__WORD = 16,      /* \w of a regular expression */
    TOK__MN = 32,        /* what BertNormalizer's strip_accents removes */
    TOK__MARK = 64,      /* what StripAccents removes */
    TOK__UNSTABLE = 128, /* may change, move or be joined under NFC/NFD/NFKC/NFKD */
};

enum { TOK__BLOCK = 128, TOK__N_BLOCKS = 0x110000 / TOK__BLOCK };

extern const uint8_t tok__class_bits[64];
extern const uint8_t tok__class_index[TOK__N_BLOCKS];
extern const char tok__class_block[];

/* The classes of a scalar value. */
static inline unsigned tok__class(uint32_t cp)
{
    const unsigned block = tok__class_index[cp / TOK__BLOCK];

    return tok__class_bits[tok__class_block[block * TOK__BLOCK + cp % TOK__BLOCK] - 'A'];
}

/* Classes for tok__grapheme_end() (tests/oracle/tok_grapheme.py): letters from 'A'. */
extern const uint8_t tok__grapheme_index[TOK__N_BLOCKS];
extern const char tok__grapheme_block[];

/* The CJK blocks that BertNormalizer puts spaces around. */
static inline bool tok__is_cjk(uint32_t cp)
{
    return cp >= 0x3400 &&
           ((cp >= 0x4e00 && cp <= 0x9fff) || cp <= 0x4dbf || (cp >= 0xf900 && cp <= 0xfaff) ||
            (cp >= 0x20000 && cp <= 0x2a6df) || (cp >= 0x2a700 && cp <= 0x2b81f) ||
            (cp >= 0x2b920 && cp <= 0x2ceaf) || (cp >= 0x2f800 && cp <= 0x2fa1f));
}

#endif
