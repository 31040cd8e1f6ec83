/* core/tok/tok_json_stages.c - normaliser, pre-tokenizer, post-processor and
 * decoder of tokenizer.json, compiled to the stages of tok_internal.h. A type that
 * no table below names is refused by its name. */
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/utf8.h"
#include "core/tok/tok_internal.h"
#include "core/tok/tok_json.h"
#include "core/tok/tok_pattern.h"
#include "core/tok/tok_unicode.h"

enum { NESTING_MAX = 8 };

static int invalid(const json_t *o, const char *what, struct core_err *err)
{
    return core_err_set(err, CORE_E_ADAPTER_INVALID, "tokenizer.json: %s: %s", tok__json_type(o),
                        what);
}

/* One kind of stage: its types, and where a Sequence keeps its members. */
struct reader {
    const char *what;    /* for messages */
    const char *members; /* "normalizers" ... */
    const struct row {
        const char *type;
        int (*read)(struct tok *tok, const json_t *o, struct core_err *err);
    } * rows;
    size_t n_rows;
};

static int read_one(const struct reader *r, struct tok *tok, const json_t *o, int depth,
                    struct core_err *err)
{
    const json_t *list;
    int rc = 0;

    if (!o || json_is_null(o))
        return 0;
    if (depth > NESTING_MAX)
        return invalid(o, "nested too deep", err);
    for (size_t i = 0; i < r->n_rows; i++)
        if (strcmp(tok__json_type(o), r->rows[i].type) == 0)
            return r->rows[i].read(tok, o, err);
    if (strcmp(tok__json_type(o), "Sequence") != 0)
        return tok__json_unsupported(r->what, o, err);
    list = json_object_get(o, r->members);
    if (!json_is_array(list))
        return invalid(o, "without a list of members", err);
    for (size_t i = 0; i < json_array_size(list) && rc == 0; i++)
        rc = read_one(r, tok, json_array_get(list, i), depth + 1, err);
    return rc;
}

/* "pattern": {"String": s} or {"Regex": s} */
static int read_pattern(const json_t *o, struct tok__pattern *pat, struct core_err *err)
{
    const json_t *p = json_object_get(o, "pattern");
    const json_t *string = json_object_get(p, "String"), *regex = json_object_get(p, "Regex");

    if (json_is_string(string) && json_string_length(string) > 0) {
        pat->kind = TOK__BY_STRING;
        return tok__str_set(&pat->str, json_string_value(string), json_string_length(string))
                   ? 0
                   : core_err_nomem(err, "tokenizer");
    }
    if (!json_is_string(regex))
        return invalid(o, "\"pattern\" is neither a String nor a Regex", err);
    pat->kind = TOK__BY_REGEX;
    return tok__regex_new(&pat->re, json_string_value(regex), json_string_length(regex), err);
}

static int set_arg(const json_t *o, const char *key, struct tok__str *arg, struct core_err *err)
{
    const json_t *v = json_object_get(o, key);

    if (!json_is_string(v))
        return invalid(o, "a text is missing", err);
    return tok__str_set(arg, json_string_value(v), json_string_length(v))
               ? 0
               : core_err_nomem(err, "tokenizer");
}

static int add(struct tok__stages *s, enum tok__stage_kind kind, struct tok__stage **out,
               struct core_err *err)
{
    *out = tok__stage_add(s, kind);
    return *out ? 0 : core_err_nomem(err, "tokenizer");
}

/* ---- normalisers ---------------------------------------------------------- */

static int norm_bert(struct tok *tok, const json_t *o, struct core_err *err)
{
    bool clean, cjk, lower, accents;
    int rc = tok__json_bool(o, "clean_text", true, &clean, err);

    if (rc == 0)
        rc = tok__json_bool(o, "handle_chinese_chars", true, &cjk, err);
    if (rc == 0)
        rc = tok__json_bool(o, "lowercase", true, &lower, err);
    if (rc == 0)
        rc = tok__json_bool(o, "strip_accents", lower, &accents, err);
    return rc == 0 ? tok__build_bert(&tok->normalizer, clean, cjk, accents, lower, err) : rc;
}

static int norm_form(struct tok *tok, const json_t *o, struct core_err *err)
{
    const char *type = tok__json_type(o);

    return tok__build_form(&tok->normalizer, type[2] == 'K', type[strlen(type) - 1] == 'C', err);
}

static int norm_lower(struct tok *tok, const json_t *o, struct core_err *err)
{
    struct tok__stage *s;

    (void)o;
    return add(&tok->normalizer, TOK__LOWER, &s, err);
}

static int norm_accents(struct tok *tok, const json_t *o, struct core_err *err)
{
    struct tok__stage *s;
    const int rc = add(&tok->normalizer, TOK__DROP, &s, err);

    (void)o;
    if (rc == 0)
        s->mask = TOK__MARK;
    return rc;
}

static int norm_strip(struct tok *tok, const json_t *o, struct core_err *err)
{
    struct tok__stage *s;
    int rc = add(&tok->normalizer, TOK__STRIP, &s, err);

    if (rc == 0)
        rc = tok__json_bool(o, "strip_left", true, &s->left, err);
    return rc == 0 ? tok__json_bool(o, "strip_right", true, &s->right, err) : rc;
}

static int norm_prepend(struct tok *tok, const json_t *o, struct core_err *err)
{
    struct tok__stage *s;
    const int rc = add(&tok->normalizer, TOK__PREPEND, &s, err);

    return rc == 0 ? set_arg(o, "prepend", &s->arg, err) : rc;
}

static int norm_replace(struct tok *tok, const json_t *o, struct core_err *err)
{
    struct tok__stage *s;
    int rc = add(&tok->normalizer, TOK__REPLACE, &s, err);

    if (rc == 0)
        rc = read_pattern(o, &s->pat, err);
    return rc == 0 ? set_arg(o, "content", &s->arg, err) : rc;
}

static int norm_bytes(struct tok *tok, const json_t *o, struct core_err *err)
{
    struct tok__stage *s;

    (void)o;
    return add(&tok->normalizer, TOK__BYTES, &s, err);
}

static int norm_nmt(struct tok *tok, const json_t *o, struct core_err *err)
{
    struct tok__stage *s;

    (void)o;
    return add(&tok->normalizer, TOK__NMT, &s, err);
}

static int base64_value(char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *hit = c ? strchr(digits, c) : NULL;

    return hit ? (int)(hit - digits) : -1;
}

/* RFC 4648 with its padding; false if the text is something else. */
static bool base64_decode(const char *s, size_t n, struct core_buf *out)
{
    const size_t n_pad = n < 2 || s[n - 1] != '=' ? 0 : s[n - 2] != '=' ? 1 : 2;
    uint32_t bits = 0;

    if (n % 4 != 0)
        return false;
    for (size_t i = 0; i < n; i++) {
        const int value = i + n_pad >= n ? 0 : base64_value(s[i]);

        if (value < 0)
            return false;
        bits = bits << 6 | (uint32_t)value;
        if (i % 4 == 3) {
            const char three[3] = {(char)(bits >> 16), (char)(bits >> 8), (char)bits};

            core_buf_add(out, three, i + 1 == n ? 3 - n_pad : 3);
        }
    }
    return true;
}

static int norm_charsmap(struct tok *tok, const json_t *o, struct core_err *err)
{
    const json_t *text = json_object_get(o, "precompiled_charsmap");
    struct core_buf bytes = {0};
    struct tok__stage *s;
    int rc = add(&tok->normalizer, TOK__CHARSMAP, &s, err);

    if (rc == 0 && (!json_is_string(text) ||
                    !base64_decode(json_string_value(text), json_string_length(text), &bytes)))
        rc = invalid(o, "\"precompiled_charsmap\" is not base64", err);
    if (rc == 0 && bytes.is_short)
        rc = core_err_nomem(err, "tokenizer");
    if (rc == 0)
        rc = tok__charsmap_new(&s->map, bytes.p, bytes.n, err);
    core_buf_release(&bytes);
    return rc;
}

int tok__json_normalizer(struct tok *tok, const json_t *o, struct core_err *err)
{
    static const struct row rows[] = {{"BertNormalizer", norm_bert},
                                      {"NFC", norm_form},
                                      {"NFD", norm_form},
                                      {"NFKC", norm_form},
                                      {"NFKD", norm_form},
                                      {"Lowercase", norm_lower},
                                      {"StripAccents", norm_accents},
                                      {"Strip", norm_strip},
                                      {"Prepend", norm_prepend},
                                      {"Replace", norm_replace},
                                      {"ByteLevel", norm_bytes},
                                      {"Nmt", norm_nmt},
                                      {"Precompiled", norm_charsmap}};
    static const struct reader r = {"a normalizer", "normalizers", rows,
                                    sizeof(rows) / sizeof(rows[0])};

    return read_one(&r, tok, o, 0, err);
}

/* ---- pre-tokenizers ------------------------------------------------------- */

static int read_behavior(const json_t *o, const char *otherwise, enum tok__behavior *out,
                         struct core_err *err)
{
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    const char *name;
    const int rc = tok__json_str(o, "behavior", otherwise, &name, err);

    if (rc != 0)
        return rc;
    for (size_t i = 0; name && i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(name, names[i]) == 0) {
            *out = (enum tok__behavior)i;
            return 0;
        }
    }
    return invalid(o, "an unknown \"behavior\"", err);
}

static int cut_by_class(struct tok *tok, unsigned mask, enum tok__behavior behavior,
                        struct core_err *err)
{
    struct tok__stage *s;
    const int rc = add(&tok->pretokenizer, TOK__CUT, &s, err);

    if (rc != 0)
        return rc;
    s->pat.kind = TOK__BY_CLASS;
    s->pat.mask = mask;
    s->behavior = behavior;
    return 0;
}

static int pre_bert(struct tok *tok, const json_t *o, struct core_err *err)
{
    struct tok__stage *s;

    (void)o;
    return add(&tok->pretokenizer, TOK__CUT_BERT, &s, err);
}

static int pre_byte_level(struct tok *tok, const json_t *o, struct core_err *err)
{
    bool prefix, regex;
    int rc = tok__json_bool(o, "add_prefix_space", true, &prefix, err);

    if (rc == 0)
        rc = tok__json_bool(o, "use_regex", true, &regex, err);
    return rc == 0 ? tok__build_byte_level(&tok->pretokenizer, prefix, regex, err) : rc;
}

static int pre_split(struct tok *tok, const json_t *o, struct core_err *err)
{
    struct tok__stage *s;
    int rc = add(&tok->pretokenizer, TOK__CUT, &s, err);

    if (rc == 0)
        rc = read_pattern(o, &s->pat, err);
    if (rc == 0)
        rc = read_behavior(o, NULL, &s->behavior, err);
    return rc == 0 ? tok__json_bool(o, "invert", false, &s->invert, err) : rc;
}

static int pre_digits(struct tok *tok, const json_t *o, struct core_err *err)
{
    bool single;
    const int rc = tok__json_bool(o, "individual_digits", false, &single, err);

    return rc == 0 ? cut_by_class(tok, TOK__NUMERIC, single ? TOK__ISOLATED : TOK__CONTIGUOUS, err)
                   : rc;
}

static int pre_whitespace(struct tok *tok, const json_t *o, struct core_err *err)
{
    struct tok__stage *s;

    (void)o;
    return add(&tok->pretokenizer, TOK__CUT_WORDS, &s, err);
}

static int pre_whitespace_split(struct tok *tok, const json_t *o, struct core_err *err)
{
    (void)o;
    return cut_by_class(tok, TOK__SPACE, TOK__REMOVED, err);
}

static int pre_punctuation(struct tok *tok, const json_t *o, struct core_err *err)
{
    enum tok__behavior behavior = TOK__ISOLATED;
    const int rc = read_behavior(o, "Isolated", &behavior, err);

    return rc == 0 ? cut_by_class(tok, TOK__PUNCT, behavior, err) : rc;
}

/* One character, as a text. */
static int read_char(const json_t *o, const char *key, struct tok__str *out, struct core_err *err)
{
    int rc = set_arg(o, key, out, err);

    if (rc == 0 && core_utf8_count(out->p, out->n) != 1)
        rc = invalid(o, "a single character is needed", err);
    return rc;
}

static int pre_delimiter(struct tok *tok, const json_t *o, struct core_err *err)
{
    struct tok__stage *s;
    const int rc = add(&tok->pretokenizer, TOK__CUT, &s, err);

    if (rc != 0)
        return rc;
    s->pat.kind = TOK__BY_STRING;
    s->behavior = TOK__REMOVED;
    return read_char(o, "delimiter", &s->pat.str, err);
}

static int pre_metaspace(struct tok *tok, const json_t *o, struct core_err *err)
{
    static const char *const schemes[] = {"always", "first", "never"};
    struct tok__str mark = {0};
    const char *name;
    bool prefix, split;
    int scheme = 0, rc = tok__json_str(o, "prepend_scheme", "always", &name, err);

    if (rc == 0)
        rc = tok__json_bool(o, "add_prefix_space", true, &prefix, err);
    if (rc == 0)
        rc = tok__json_bool(o, "split", true, &split, err);
    while (rc == 0 && scheme < 3 && strcmp(name, schemes[scheme]) != 0)
        scheme++;
    if (rc == 0 && scheme == 3)
        rc = invalid(o, "an unknown \"prepend_scheme\"", err);
    else if (rc == 0 && !prefix && scheme != TOK__NEVER)
        rc = invalid(o, "\"add_prefix_space\" contradicts \"prepend_scheme\"", err);
    if (rc == 0)
        rc = read_char(o, "replacement", &mark, err);
    if (rc == 0)
        rc = tok__build_metaspace(&tok->pretokenizer, mark.p, (enum tok__scheme)scheme, split, err);
    core_free(mark.p);
    return rc;
}

int tok__json_pretokenizer(struct tok *tok, const json_t *o, struct core_err *err)
{
    static const struct row rows[] = {{"BertPreTokenizer", pre_bert},
                                      {"ByteLevel", pre_byte_level},
                                      {"Split", pre_split},
                                      {"Digits", pre_digits},
                                      {"Whitespace", pre_whitespace},
                                      {"WhitespaceSplit", pre_whitespace_split},
                                      {"Punctuation", pre_punctuation},
                                      {"CharDelimiterSplit", pre_delimiter},
                                      {"Metaspace", pre_metaspace}};
    static const struct reader r = {"a pre_tokenizer", "pretokenizers", rows,
                                    sizeof(rows) / sizeof(rows[0])};

    return read_one(&r, tok, o, 0, err);
}

/* ---- post-processors ------------------------------------------------------ */

static int post_trim(struct tok *tok, const json_t *o, struct core_err *err)
{
    struct tok__post *p = &tok->post;
    bool trims, prefix;
    int rc = tok__json_bool(o, "trim_offsets", true, &trims, err);

    if (rc == 0)
        rc = tok__json_bool(o, "add_prefix_space", true, &prefix, err);
    if (rc != 0 || !trims)
        return rc;
    if (p->is_fixed || p->n_trims == TOK__TRIMS_MAX)
        return core_err_set(err, CORE_E_ADAPTER_UNSUPPORTED,
                            "tokenizer.json: such a sequence of post-processors");
    p->trim_has_prefix[p->n_trims++] = prefix;
    return 0;
}

/* The id in ["[SEP]", 102]. */
static int read_pair_id(const json_t *o, const char *key, int32_t *id, struct core_err *err)
{
    const json_t *v = json_array_get(json_object_get(o, key), 1);
    const json_int_t n = json_integer_value(v);

    if (!json_is_integer(v) || n < 0 || n > INT32_MAX)
        return invalid(o, "a token and its id are missing", err);
    *id = (int32_t)n;
    return 0;
}

static int only_one(struct tok *tok, const json_t *o, struct core_err *err)
{
    return tok->post.has_template ? tok__json_unsupported("a second post-processor", o, err) : 0;
}

static int post_bert(struct tok *tok, const json_t *o, struct core_err *err)
{
    const bool is_roberta = tok__json_type(o)[0] == 'R';
    int32_t cls = 0, sep = 0;
    int rc = only_one(tok, o, err);

    if (rc == 0 && is_roberta)
        rc = post_trim(tok, o, err);
    if (rc == 0)
        rc = read_pair_id(o, "cls", &cls, err);
    if (rc == 0)
        rc = read_pair_id(o, "sep", &sep, err);
    tok->post.is_fixed = true;
    return rc == 0 ? tok__build_cls_sep(&tok->post, cls, sep, is_roberta, err) : rc;
}

/* {"SpecialToken": {"id": name, "type_id": 0}}: the ids are in special_tokens. */
static int read_special(struct tok *tok, const json_t *o, bool pair, const json_t *piece,
                        json_int_t type, struct core_err *err)
{
    const char *name = json_string_value(json_object_get(piece, "id"));
    const json_t *ids = json_object_get(
        json_object_get(json_object_get(o, "special_tokens"), name ? name : ""), "ids");
    int32_t id[16];
    size_t n = json_array_size(ids);

    if (!json_is_array(ids) || n > sizeof(id) / sizeof(id[0]))
        return invalid(o, "a special token has no ids", err);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(ids, i);

        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > INT32_MAX)
            return invalid(o, "an id of a special token is not a number", err);
        id[i] = (int32_t)json_integer_value(v);
    }
    return tok__post_special(&tok->post, pair, id, n, (int32_t)type, err);
}

static int read_piece(struct tok *tok, const json_t *o, bool pair, const json_t *piece,
                      struct core_err *err)
{
    const json_t *special = json_object_get(piece, "SpecialToken");
    const json_t *sequence = json_object_get(piece, "Sequence");
    const char *name = json_string_value(json_object_get(sequence, "id"));
    json_int_t type = 0;
    int rc = tok__json_int(special ? special : sequence, "type_id", 0, &type, err);

    if (rc == 0 && type > INT32_MAX)
        rc = invalid(o, "a \"type_id\" is too large", err);
    if (rc != 0)
        return rc;
    if (special)
        return read_special(tok, o, pair, special, type, err);
    if (name && strcmp(name, "A") == 0)
        return tok__post_piece(&tok->post, pair, 0, (int32_t)type, err);
    if (name && strcmp(name, "B") == 0 && pair)
        return tok__post_piece(&tok->post, pair, 1, (int32_t)type, err);
    return invalid(o, "a piece of the template is neither a sequence nor a special token", err);
}

static int post_template(struct tok *tok, const json_t *o, struct core_err *err)
{
    static const char *const names[] = {"single", "pair"};
    int rc = only_one(tok, o, err);

    tok->post.has_template = true;
    for (int pair = 0; pair < 2 && rc == 0; pair++) {
        const json_t *list = json_object_get(o, names[pair]);

        if (!json_is_array(list))
            return invalid(o, "without a list \"single\" or \"pair\"", err);
        for (size_t i = 0; i < json_array_size(list) && rc == 0; i++)
            rc = read_piece(tok, o, pair, json_array_get(list, i), err);
    }
    return rc;
}

int tok__json_post(struct tok *tok, const json_t *o, struct core_err *err)
{
    static const struct row rows[] = {{"ByteLevel", post_trim},
                                      {"TemplateProcessing", post_template},
                                      {"BertProcessing", post_bert},
                                      {"RobertaProcessing", post_bert}};
    static const struct reader r = {"a post_processor", "processors", rows,
                                    sizeof(rows) / sizeof(rows[0])};

    return read_one(&r, tok, o, 0, err);
}

/* ---- decoders ------------------------------------------------------------- */

static struct tok__decoder *add_decoder(struct tok *tok, enum tok__decoder_kind kind,
                                        struct core_err *err)
{
    struct tok__decoder *d = tok__decoder_add(&tok->decoder, kind);

    if (!d)
        core_err_nomem(err, "decoder");
    return d;
}

static int dec_plain(struct tok *tok, const json_t *o, struct core_err *err)
{
    static const struct {
        const char *type;
        enum tok__decoder_kind kind;
    } rows[] = {{"ByteLevel", TOK__DEC_BYTES},
                {"Fuse", TOK__DEC_FUSE},
                {"ByteFallback", TOK__DEC_BYTE_FALLBACK}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (strcmp(tok__json_type(o), rows[i].type) == 0)
            return add_decoder(tok, rows[i].kind, err) ? 0 : CORE_E_NOMEM;
    return tok__json_unsupported("a decoder", o, err);
}

static int dec_wordpiece(struct tok *tok, const json_t *o, struct core_err *err)
{
    struct tok__decoder *d = add_decoder(tok, TOK__DEC_WORDPIECE, err);
    int rc = d ? set_arg(o, "prefix", &d->arg, err) : CORE_E_NOMEM;

    return rc == 0 ? tok__json_bool(o, "cleanup", true, &d->flag, err) : rc;
}

static int dec_replace(struct tok *tok, const json_t *o, struct core_err *err)
{
    struct tok__decoder *d = add_decoder(tok, TOK__DEC_REPLACE, err);
    int rc = d ? read_pattern(o, &d->pat, err) : CORE_E_NOMEM;

    return rc == 0 ? set_arg(o, "content", &d->arg, err) : rc;
}

static int dec_strip(struct tok *tok, const json_t *o, struct core_err *err)
{
    struct tok__decoder *d = add_decoder(tok, TOK__DEC_STRIP, err);
    json_int_t start = 0, stop = 0;
    int rc = d ? read_char(o, "content", &d->arg, err) : CORE_E_NOMEM;

    if (rc == 0)
        rc = tok__json_int(o, "start", 0, &start, err);
    if (rc == 0)
        rc = tok__json_int(o, "stop", 0, &stop, err);
    if (rc == 0) {
        d->start = (size_t)start;
        d->stop = (size_t)stop;
    }
    return rc;
}

static int dec_metaspace(struct tok *tok, const json_t *o, struct core_err *err)
{
    struct tok__decoder *d = add_decoder(tok, TOK__DEC_METASPACE, err);
    const char *scheme = NULL;
    int rc = d ? read_char(o, "replacement", &d->arg, err) : CORE_E_NOMEM;

    if (rc == 0)
        rc = tok__json_str(o, "prepend_scheme", "always", &scheme, err);
    if (rc == 0)
        d->flag = strcmp(scheme, "never") != 0;
    return rc;
}

static int dec_suffix(struct tok *tok, const json_t *o, struct core_err *err)
{
    struct tok__decoder *d = add_decoder(tok, TOK__DEC_SUFFIX, err);
    int rc = d ? set_arg(o, "suffix", &d->arg, err) : CORE_E_NOMEM;

    return rc == 0 && d->arg.n == 0 ? invalid(o, "an empty \"suffix\"", err) : rc;
}

int tok__json_decoder(struct tok *tok, const json_t *o, struct core_err *err)
{
    static const struct row rows[] = {{"ByteLevel", dec_plain},     {"Fuse", dec_plain},
                                      {"ByteFallback", dec_plain},  {"WordPiece", dec_wordpiece},
                                      {"Replace", dec_replace},     {"Strip", dec_strip},
                                      {"Metaspace", dec_metaspace}, {"BPEDecoder", dec_suffix}};
    static const struct reader r = {"a decoder", "decoders", rows, sizeof(rows) / sizeof(rows[0])};

    tok->has_decoder = o && !json_is_null(o);
    return read_one(&r, tok, o, 0, err);
}
