/* core/tok/tok_grapheme.c - where a grapheme ends, by the rules of Unicode's UAX #29
 * (extended grapheme clusters) and the library's own classes.
 *
 * Regional indicators count as any other character: what two of them join has 8
 * bytes, and nobody here asks beyond 5. Next: tok_charsmap.c, which asks. */
#include "core/tok/tok_internal.h"
#include "core/tok/tok_unicode.h"

/* As tests/oracle/tok_grapheme.py numbers them. */
enum class {
    OTHER,
    CR,
    LF,
    CONTROL,
    EXTEND,
    ZWJ,
    SPACING,
    PREPEND,
    HANGUL_L,
    HANGUL_V,
    HANGUL_T,
    HANGUL_LV,
    HANGUL_LVT,
    PICT,
    CONSONANT, /* Indic */
    LINKER,    /* extends, and joins the next consonant */
    INCB,      /* extends, and may stand between consonant and linker */
};

static enum class class_of(uint32_t cp) {
    const unsigned block = tok__grapheme_index[cp / TOK__BLOCK];

    return (enum class)(tok__grapheme_block[block * TOK__BLOCK + cp % TOK__BLOCK] - 'A');
}

struct state {
    enum class prev;
    int pict;  /* 1: a pictograph and extenders, 2: then a ZWJ */
    int indic; /* 1: a consonant, 2: and a linker */
};

static bool hangul_joins(enum class a, enum class b)
{
    if (a == HANGUL_L)
        return b == HANGUL_L || b == HANGUL_V || b == HANGUL_LV || b == HANGUL_LVT;
    if (a == HANGUL_LV || a == HANGUL_V)
        return b == HANGUL_V || b == HANGUL_T;
    return (a == HANGUL_LVT || a == HANGUL_T) && b == HANGUL_T;
}

static bool extends(enum class c)
{
    return c == EXTEND || c == LINKER || c == INCB;
}

static bool joins(const struct state *s, enum class c)
{
    if (s->prev == CR && c == LF)
        return true;
    if (s->prev == CR || s->prev == LF || s->prev == CONTROL || c == CR || c == LF || c == CONTROL)
        return false;
    if (extends(c) || c == ZWJ || c == SPACING || s->prev == PREPEND)
        return true;
    return hangul_joins(s->prev, c) || (c == PICT && s->pict == 2) ||
           (c == CONSONANT && s->indic == 2);
}

static void step(struct state *s, enum class c)
{
    s->pict = c == PICT ? 1 : c == ZWJ && s->pict == 1 ? 2 : extends(c) && s->pict == 1 ? 1 : 0;
    if (c == CONSONANT)
        s->indic = 1;
    else if (c == LINKER && s->indic > 0)
        s->indic = 2;
    else if (c != INCB && c != ZWJ)
        s->indic = 0;
    s->prev = c;
}

uint32_t tok__grapheme_end(const char *s, uint32_t i, uint32_t end)
{
    struct state state = {0};
    uint32_t cp;

    i += (uint32_t)tok__get(s + i, &cp);
    step(&state, class_of(cp));
    while (i < end) {
        const uint32_t len = (uint32_t)tok__get(s + i, &cp);
        const enum class c = class_of(cp);

        if (!joins(&state, c))
            break;
        step(&state, c);
        i += len;
    }
    return i;
}
