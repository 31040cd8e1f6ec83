/* core/base/pyjson.c - see pyjson.h. One pass over the text finds, outside of strings,
 * the words that jansson would refuse and writes others in their place; a text without
 * any is parsed as it is. The pass judges nothing: what is no number of Python's stays,
 * and jansson refuses it with its line (no replacement holds a line end). */
#include "core/base/pyjson.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/buf.h"

enum {
    DIGITS_SURE = 18,   /* any integer of so many digits fits in 64 bits */
    REAL_SURE = 300,    /* no real of so many characters without exponent overflows */
    WORD_ON_STACK = 64, /* longer than any number that is written in earnest */
};

struct word {
    const char *p;
    size_t n;
};

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* What can stand in a number or in a bare word: a word is as long as it can be, so that
 * no part of a longer one is taken for a number. */
static bool is_of_word(char c)
{
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
           c == '+' || c == '.' || c == '_';
}

static bool is_word(struct word w, const char *text)
{
    return w.n == strlen(text) && memcmp(w.p, text, w.n) == 0;
}

static size_t skip_digits(struct word w, size_t at)
{
    while (at < w.n && is_digit(w.p[at]))
        at++;
    return at;
}

/* JSON's grammar of numbers: *is_integer without fraction and exponent. */
static bool is_number(struct word w, bool *is_integer, bool *has_exponent)
{
    size_t at = w.n && w.p[0] == '-', from = at;

    at = skip_digits(w, at);
    if (at == from || (w.p[from] == '0' && at > from + 1))
        return false;
    *is_integer = at == w.n;
    *has_exponent = false;
    if (at < w.n && w.p[at] == '.') {
        from = at + 1;
        at = skip_digits(w, from);
        if (at == from)
            return false;
    }
    if (at < w.n && (w.p[at] == 'e' || w.p[at] == 'E')) {
        from = at + 1;
        from += from < w.n && (w.p[from] == '+' || w.p[from] == '-');
        at = skip_digits(w, from);
        if (at == from)
            return false;
        *has_exponent = true;
    }
    return at == w.n;
}

static bool fits_in_64_bits(struct word w)
{
    static const char min[] = "9223372036854775808", max[] = "9223372036854775807";
    const bool is_negative = w.p[0] == '-';
    const size_t n = w.n - is_negative;

    if (n != sizeof(max) - 1)
        return n < sizeof(max) - 1;
    return memcmp(w.p + is_negative, is_negative ? min : max, n) <= 0;
}

/* True if the number overflows a double; *is_short if memory was short. */
static bool overflows(struct word w, bool *is_short)
{
    char small[WORD_ON_STACK], *text = small;
    bool is_infinite;

    if (w.n >= sizeof(small))
        text = core_malloc(w.n + 1);
    if (!text) {
        *is_short = true;
        return false;
    }
    memcpy(text, w.p, w.n);
    text[w.n] = 0;
    is_infinite = isinf(strtod(text, NULL));
    if (text != small)
        core_free(text);
    return is_infinite;
}

/* What stands for the word: `quoted`, the word itself with `tail` after it, or (both
 * NULL) the word as it is. */
struct change {
    const char *quoted, *tail;
};

static struct change change_of(struct word w, bool *is_short)
{
    static const struct {
        const char *word, *quoted;
    } bare[] = {
        {"NaN", "\"NaN\""},
        {"Infinity", "\"Infinity\""},
        {"-Infinity", "\"-Infinity\""},
    };
    bool is_integer, has_exponent;

    for (size_t i = 0; i < sizeof(bare) / sizeof(bare[0]); i++)
        if (is_word(w, bare[i].word))
            return (struct change){.quoted = bare[i].quoted};
    if (!is_number(w, &is_integer, &has_exponent))
        return (struct change){0};
    if (is_integer ? w.n <= DIGITS_SURE || fits_in_64_bits(w) : !has_exponent && w.n <= REAL_SURE)
        return (struct change){0};
    if (overflows(w, is_short))
        return (struct change){.quoted = w.p[0] == '-' ? bare[2].quoted : bare[1].quoted};
    return (struct change){.tail = is_integer ? ".0" : NULL};
}

/* The position after the string that begins at `at`, or the end. */
static size_t skip_string(const char *p, size_t n, size_t at)
{
    for (at++; at < n && p[at] != '"'; at++)
        if (p[at] == '\\')
            at++;
    return at < n ? at + 1 : n;
}

/* A bare word as a key is no JSON, and must not become one. */
static bool is_key(const char *p, size_t n, size_t after)
{
    while (after < n &&
           (p[after] == ' ' || p[after] == '\t' || p[after] == '\r' || p[after] == '\n'))
        after++;
    return after < n && p[after] == ':';
}

/* Writes the changed text to out; nothing if nothing changes. False: memory was short. */
static bool rewrite(const char *p, size_t n, struct core_buf *out)
{
    size_t at = 0, copied = 0;
    bool is_short = false;

    while (at < n) {
        struct word w = {.p = p + at};
        struct change c;

        if (p[at] == '"') {
            at = skip_string(p, n, at);
            continue;
        }
        while (at + w.n < n && is_of_word(p[at + w.n]))
            w.n++;
        if (w.n == 0) {
            at++;
            continue;
        }
        c = change_of(w, &is_short);
        at += w.n;
        if ((!c.quoted && !c.tail) || is_key(p, n, at))
            continue;
        core_buf_add(out, p + copied, at - copied - (c.quoted ? w.n : 0));
        core_buf_str(out, c.quoted ? c.quoted : c.tail);
        copied = at;
    }
    if (copied)
        core_buf_add(out, p + copied, n - copied);
    return !is_short && !out->is_short;
}

json_t *core_pyjson_load(const void *bytes, size_t n_bytes, json_error_t *why)
{
    struct core_buf changed = {0};
    json_t *j = NULL;

    *why = (json_error_t){.line = -1, .column = -1};
    if (!rewrite(bytes, n_bytes, &changed))
        why->text[JSON_ERROR_TEXT_LENGTH - 1] = (char)json_error_out_of_memory;
    else if (changed.n)
        j = json_loadb(changed.p, changed.n, 0, why);
    else
        j = json_loadb(n_bytes ? bytes : "", n_bytes, 0, why);
    if (!j && !why->text[0]) /* jansson is silent where it has no memory for a value */
        why->text[JSON_ERROR_TEXT_LENGTH - 1] = (char)json_error_out_of_memory;
    core_buf_release(&changed);
    return j;
}
