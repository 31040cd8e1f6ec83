/* core/tok/tok_pattern.c - Oniguruma patterns rewritten for PCRE2.
 *
 * tokenizer.json's patterns are written for Oniguruma in Ruby syntax, which reads
 * some constructs differently: \s without U+180E, \h as a hex digit, ^ and $ at
 * every line, a{1,3}+ as a repeat. The rewriter passes on what means the same,
 * spells out what does not, and refuses the rest by name, so that no pattern is
 * ever run with another meaning. Next: tok_regex.c, which compiles the result. */
#include <stdio.h>
#include <string.h>

#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/tok/tok_pattern.h"
#include "core/tok/tok_unicode.h"

const char tok__pattern_gpt2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
const char tok__pattern_llama3[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const char tok__pattern_qwen2[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

#define SPACES                                                                     \
    "\\x09-\\x0d\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}" \
    "\\x{202f}\\x{205f}\\x{3000}"
#define WORDS "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
/* Oniguruma's \w outside of [...] asks a table that adds superscripts and fractions. */
#define WORDS_ALONE WORDS "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"

enum { DEPTH_MAX = 64, NAME_MAX = 32 };

struct rewrite {
    const char *s;
    size_t n, i;
    struct core_buf *out;
    bool icase[DEPTH_MAX]; /* ignoring case, by depth of groups */
    unsigned depth;
    bool in_class;
    char last; /* the literal ASCII letter just before, or 0 */
    struct core_err *err;
};

static int refuse(struct rewrite *r, const char *what)
{
    return core_err_set(r->err, CORE_E_ADAPTER_UNSUPPORTED, "pattern \"%.*s\": %s is not supported",
                        r->n > 120 ? 120 : (int)r->n, r->s, what);
}

static char peek(const struct rewrite *r, size_t ahead)
{
    return r->i + ahead < r->n ? r->s[r->i + ahead] : 0;
}

/* Scripts that patterns in use name; \p{Han} itself means Script_Extensions to
 * PCRE2 and Script to Oniguruma. */
static bool is_script(const char *name)
{
    static const char *const known[] = {
        "Arabic",   "Armenian", "Bengali",  "Cyrillic", "Devanagari", "Ethiopic",
        "Georgian", "Greek",    "Gujarati", "Hangul",   "Han",        "Hebrew",
        "Hiragana", "Katakana", "Khmer",    "Lao",      "Latin",      "Myanmar",
        "Tamil",    "Telugu",   "Thai",     "Tibetan"};

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(name, known[i]) == 0)
            return true;
    return false;
}

static bool is_category(const char *name)
{
    static const char subs[] = "CcCfCnCoLlLmLoLtLuMcMeMnNdNlNoPcPdPePfPiPoPsScSkSmSoZlZpZs";

    if (strlen(name) == 1)
        return strchr("CLMNPSZ", name[0]) != NULL;
    for (size_t i = 0; strlen(name) == 2 && subs[i]; i += 2)
        if (memcmp(name, subs + i, 2) == 0)
            return true;
    return false;
}

/* \p{Name}, \P{Name}, \p{^Name}; r->i is at the p. */
static int rewrite_property(struct rewrite *r)
{
    const bool negated = r->s[r->i] == 'P';
    const bool caret = peek(r, 2) == '^';
    char name[NAME_MAX];
    size_t k = 0;

    if (peek(r, 1) != '{')
        return refuse(r, "\\p without braces");
    r->i += caret ? 3 : 2;
    while (r->i < r->n && r->s[r->i] != '}' && k + 1 < sizeof(name))
        name[k++] = r->s[r->i++];
    name[k] = 0;
    if (peek(r, 0) != '}')
        return refuse(r, "an unfinished \\p{");
    r->i++;
    if (r->icase[r->depth])
        return refuse(r, "a property that ignores case");
    if (!is_category(name) && !is_script(name))
        return refuse(r, "the property of a \\p{...}");
    core_buf_printf(r->out, "\\%c{%s%s}", negated != caret ? 'P' : 'p',
                    is_script(name) ? "sc:" : "", name);
    return 0;
}

/* The classes \s \S \w \W \d \D; true if r->i was at one. */
static bool rewrite_shorthand(struct rewrite *r)
{
    const char *in = NULL, *inside = NULL;
    bool negated = false;

    switch (r->s[r->i]) {
    case 's':
        in = inside = SPACES;
        break;
    case 'S': /* PCRE2's \S lacks U+180E, which is a space to it alone */
        in = SPACES;
        inside = "\\S\\x{180e}";
        negated = true;
        break;
    case 'w':
        in = WORDS_ALONE;
        inside = WORDS;
        break;
    case 'W':
        in = WORDS_ALONE;
        negated = true;
        break;
    case 'd':
        in = inside = "\\p{Nd}";
        break;
    case 'D':
        in = inside = "\\P{Nd}";
        break;
    default:
        return false;
    }
    if (r->in_class && !inside)
        return false; /* [\W] would need an intersection */
    if (r->in_class)
        core_buf_str(r->out, inside);
    else
        core_buf_printf(r->out, "[%s%s]", negated ? "^" : "", in);
    r->i++;
    return true;
}

/* \xHH, \x{H..} and \uHHHH; r->i is at the x or u. */
static int rewrite_hex(struct rewrite *r)
{
    const bool braces = r->s[r->i] == 'x' && peek(r, 1) == '{';
    const size_t n_max = braces ? 6 : r->s[r->i] == 'u' ? 4 : 2;
    char digits[8];
    size_t k = 0;

    r->i += braces ? 2 : 1;
    while (k < n_max && r->i < r->n && strchr("0123456789abcdefABCDEF", r->s[r->i]))
        digits[k++] = r->s[r->i++];
    digits[k] = 0;
    if (k == 0 || (!braces && k < n_max) || (braces && peek(r, 0) != '}'))
        return refuse(r, "such a character number");
    if (braces)
        r->i++;
    core_buf_printf(r->out, "\\x{%s}", digits);
    return 0;
}

static int rewrite_escape(struct rewrite *r)
{
    char what[24];
    char c;

    r->last = 0;
    r->i++;
    if (r->i >= r->n)
        return refuse(r, "a final backslash");
    c = r->s[r->i];
    if (c == 'p' || c == 'P')
        return rewrite_property(r);
    if (c == 'x' || c == 'u')
        return rewrite_hex(r);
    if (rewrite_shorthand(r))
        return 0;
    if (strchr("rntfae", c) || ((c == 'A' || c == 'z') && !r->in_class)) {
        core_buf_printf(r->out, "\\%c", c);
    } else if (c == 'v') { /* one character to Oniguruma, a class to PCRE2 */
        core_buf_str(r->out, "\\x0b");
    } else if (c > 0 && c < 0x7f && (tok__class((uint32_t)c) & TOK__PUNCT)) {
        core_buf_printf(r->out, "\\%c", c);
    } else if (c == ' ') {
        core_buf_str(r->out, "\\x20");
    } else {
        snprintf(what, sizeof(what), "\\%c", c);
        return refuse(r, what);
    }
    r->i++;
    return 0;
}

/* What follows "(": ?: ?= ?! ?<= ?<! ?> ?i: ?-i: ?i) or a plain group. */
static int rewrite_open(struct rewrite *r)
{
    static const char *const plain[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    const char *rest = r->s + r->i;
    const size_t n = r->n - r->i;

    if (r->depth + 1 >= DEPTH_MAX)
        return refuse(r, "such deep nesting");
    if (r->i == 0 && n >= 4 && memcmp(rest, "(?i)", 4) == 0) { /* elsewhere | differs */
        r->icase[0] = true;
        core_buf_str(r->out, "(?i)");
        r->i += 4;
        return 0;
    }
    r->icase[r->depth + 1] = r->icase[r->depth];
    r->depth++;
    if (n >= 4 && memcmp(rest, "(?i:", 4) == 0) {
        r->icase[r->depth] = true;
        core_buf_str(r->out, "(?i:");
        r->i += 4;
        return 0;
    }
    for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]); i++) {
        const size_t len = strlen(plain[i]);

        if (n >= len && memcmp(rest, plain[i], len) == 0) {
            core_buf_add(r->out, rest, len);
            r->i += len;
            return 0;
        }
    }
    if (n >= 2 && (rest[1] == '?' || rest[1] == '*'))
        return refuse(r, "such a group");
    core_buf_str(r->out, "(");
    r->i++;
    return 0;
}

/* "{": an interval, or itself. */
static int rewrite_brace(struct rewrite *r)
{
    unsigned low = 0, high = 0;
    int n_low = 0, n_high = 0, n = -1;
    char text[24];
    size_t len = r->n - r->i < sizeof(text) - 1 ? r->n - r->i : sizeof(text) - 1;
    bool exact;

    memcpy(text, r->s + r->i, len);
    text[len] = 0;
    n_low = (int)strspn(text + 1, "0123456789");
    exact = text[1 + n_low] == '}';
    if (!exact && text[1 + n_low] == ',')
        n_high = (int)strspn(text + 2 + n_low, "0123456789");
    if (exact)
        n = n_low > 0 ? n_low + 2 : -1;
    else if (text[1 + n_low] == ',' && text[2 + n_low + n_high] == '}' && n_low + n_high > 0)
        n = n_low + n_high + 3;
    if (n < 0) {
        core_buf_str(r->out, "\\{");
        r->i++;
        return 0;
    }
    if (n_low > 4 || n_high > 4)
        return refuse(r, "such a large repeat");
    sscanf(text + 1, "%u", &low);
    if (n_high > 0)
        sscanf(text + 2 + n_low, "%u", &high);
    r->i += (size_t)n;
    if (peek(r, 0) == '+' || (exact && peek(r, 0) == '?'))
        return refuse(r, "a quantifier after {...}");
    if (exact)
        core_buf_printf(r->out, "{%u}", low);
    else if (n_high > 0)
        core_buf_printf(r->out, "{%u,%u}", low, high);
    else
        core_buf_printf(r->out, "{%u,}", low);
    return 0;
}

static int rewrite_class(struct rewrite *r)
{
    int rc = 0;

    r->last = 0;
    core_buf_str(r->out, "[");
    r->i++;
    if (peek(r, 0) == '^') {
        core_buf_str(r->out, "^");
        r->i++;
    }
    if (peek(r, 0) == ']')
        return refuse(r, "an empty class");
    r->in_class = true;
    while (rc == 0 && r->i < r->n && r->s[r->i] != ']') {
        const char c = r->s[r->i];

        if (c == '\\') {
            rc = rewrite_escape(r);
        } else if (c == '[' || (c == '&' && peek(r, 1) == '&')) {
            rc = refuse(r, "a class in a class");
        } else if (r->icase[r->depth] && (unsigned char)c >= 0x80) {
            rc = refuse(r, "a class beyond ASCII that ignores case");
        } else {
            core_buf_add(r->out, &c, 1);
            r->i++;
        }
    }
    if (rc != 0)
        return rc;
    if (r->i >= r->n)
        return refuse(r, "an unfinished class");
    r->in_class = false;
    core_buf_str(r->out, "]");
    r->i++;
    return 0;
}

/* Oniguruma lets one character match several when it ignores case (U+00DF and
 * "ss"); PCRE2 does not. ASCII pairs that fold from one character: */
static bool folds_together(char a, char b)
{
    static const char pairs[] = "ssfffiflst";

    for (size_t i = 0; pairs[i]; i += 2)
        if ((a | 0x20) == pairs[i] && (b | 0x20) == pairs[i + 1])
            return true;
    return false;
}

static int rewrite_literal(struct rewrite *r)
{
    const char c = r->s[r->i];

    if (r->icase[r->depth] && ((unsigned char)c >= 0x80 || folds_together(r->last, c)))
        return refuse(r, "such a text that ignores case");
    core_buf_add(r->out, &c, 1);
    r->last = c;
    r->i++;
    return 0;
}

static int rewrite_one(struct rewrite *r)
{
    switch (r->s[r->i]) {
    case '\\':
        return rewrite_escape(r);
    case '[':
        return rewrite_class(r);
    case '(':
        r->last = 0;
        return rewrite_open(r);
    case '{':
        return rewrite_brace(r);
    case ')':
        if (r->depth == 0)
            return refuse(r, "an unopened group");
        r->depth--;
        break;
    case '^':
    case '$':
        core_buf_printf(r->out, "(?m:%c)", r->s[r->i]);
        r->i++;
        return 0;
    case '|':
    case '*':
    case '+':
    case '?':
    case '.':
        break;
    default:
        return rewrite_literal(r);
    }
    core_buf_add(r->out, r->s + r->i, 1);
    r->last = 0;
    r->i++;
    return 0;
}

int tok__pattern_rewrite(const char *pattern, size_t n, struct core_buf *out, struct core_err *err)
{
    struct rewrite r = {.s = pattern, .n = n, .out = out, .err = err};
    int rc = 0;

    if (memchr(pattern, 0, n))
        return refuse(&r, "a zero byte");
    while (rc == 0 && r.i < n)
        rc = rewrite_one(&r);
    if (rc == 0 && r.depth > 0)
        rc = refuse(&r, "an unfinished group");
    if (rc == 0 && out->is_short)
        rc = core_err_nomem(err, "pattern");
    return rc;
}
