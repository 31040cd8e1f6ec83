/* core/tok/tok_gguf.c - tokenizers from GGUF metadata.
 *
 * GGUF keeps vocabulary, merges and a name for the pre-tokenizer; the pipeline
 * behind each name is rebuilt here as the model's own tokenizer.json has it. A
 * name that is not in the table is refused, since a wrong pattern would tokenize
 * almost right. Next: tok_gguf_spm.c, SentencePiece's vocabularies. */
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/base/utf8.h"
#include "core/tok/tok_gguf.h"
#include "core/tok/tok_internal.h"
#include "core/tok/tok_pattern.h"
#include "core/tok/tok_spm.h"
#include "core/tok/tok_unicode.h"
#include "core/weights/weights.h"

bool tok__gguf_is(const struct gguf_str *s, const char *text)
{
    return s->n == strlen(text) && memcmp(s->p, text, s->n) == 0;
}

static int invalid(const char *what, struct core_err *err)
{
    return core_err_set(err, CORE_E_ADAPTER_INVALID, "GGUF: %s", what);
}

int tok__gguf_token(const struct gguf *g, size_t i, struct gguf_str *s, struct core_err *err)
{
    if (!gguf_array_str(g, "tokenizer.ggml.tokens", i, s) || !core_utf8_valid(s->p, s->n))
        return core_err_set(err, CORE_E_ADAPTER_INVALID, "GGUF: token %zu is not UTF-8", i);
    return 0;
}

int tok__gguf_type(const struct gguf *g, size_t i)
{
    double type;

    if (!gguf_array_f64(g, "tokenizer.ggml.token_type", i, &type) || !(type >= 0 && type < 100))
        return TOK__PIECE_NORMAL;
    return (int)type;
}

/* ---- byte-level BPE ------------------------------------------------------- */

static int read_vocab(struct tok *tok, const struct gguf *g, size_t n, struct core_err *err)
{
    struct gguf_str s;
    int rc = tok__vocab_init(&tok->model.vocab, n, err);

    for (size_t i = 0; i < n && rc == 0; i++) {
        rc = tok__gguf_token(g, i, &s, err);
        if (rc == 0)
            rc = tok__vocab_add(&tok->model.vocab, s.p, s.n, (int64_t)i, err);
    }
    return rc;
}

static int read_merges(struct tok *tok, const struct gguf *g, bool ignore_merges,
                       struct core_err *err)
{
    struct tok__bpe_options opt = {.ignore_merges = ignore_merges};
    struct gguf_str s;
    int rc;

    if (!gguf_get_array(g, "tokenizer.ggml.merges", &opt.n_merges))
        return invalid("there is no tokenizer.ggml.merges", err);
    rc = tok__bpe_new(&tok->model, &opt, err);
    for (size_t i = 0; i < opt.n_merges && rc == 0; i++)
        rc = gguf_array_str(g, "tokenizer.ggml.merges", i, &s)
                 ? tok__bpe_add_merge_line(&tok->model, s.p, s.n, err)
                 : invalid("tokenizer.ggml.merges holds no texts", err);
    return rc;
}

static bool is_rstrip(const struct tok_defaults *dflt, const struct gguf_str *s)
{
    const char *const *keeps = dflt ? dflt->gguf_keep_space : NULL;

    if (!keeps)
        return false;
    while (*keeps && !tok__gguf_is(s, *keeps))
        keeps++;
    return !*keeps;
}

/* XLM-R's and RoBERTa's mask swallows white space before it. */
static bool is_lstrip(const struct gguf *g, const struct gguf_str *s)
{
    struct gguf_str v;

    return tok__gguf_is(s, "<mask>") &&
           ((gguf_get_str(g, "tokenizer.ggml.model", &v) && tok__gguf_is(&v, "t5")) ||
            (gguf_get_str(g, "tokenizer.ggml.pre", &v) && tok__gguf_is(&v, "roberta-bpe")));
}

int tok__gguf_added(struct tok *tok, const struct gguf *g, size_t n,
                    const struct tok_defaults *dflt, struct core_err *err)
{
    struct gguf_str s;
    int rc = tok__added_init(tok, n, err);

    for (size_t i = 0; i < n && rc == 0; i++) {
        const int type = tok__gguf_type(g, i);
        struct tok__added_token t = {.is_special = type != TOK__PIECE_USER};

        if (type != TOK__PIECE_CONTROL && type != TOK__PIECE_USER && type != TOK__PIECE_UNKNOWN)
            continue;
        rc = tok__gguf_token(g, i, &s, err);
        t.rstrip = rc == 0 && is_rstrip(dflt, &s);
        t.lstrip = rc == 0 && is_lstrip(g, &s);
        if (rc == 0)
            rc = tok__added_add(tok, &t, s.p, s.n, err);
    }
    return rc;
}

int tok__gguf_ends(const struct tok *tok, const struct gguf *g, bool on[2], int32_t id[2],
                   struct core_err *err)
{
    static const char *const flags[] = {"tokenizer.ggml.add_bos_token",
                                        "tokenizer.ggml.add_eos_token"};
    static const char *const keys[] = {"tokenizer.ggml.bos_token_id",
                                       "tokenizer.ggml.eos_token_id"};
    uint64_t value = 0;

    for (int k = 0; k < 2; k++) {
        gguf_get_bool(g, flags[k], &on[k]);
        if (on[k] && (!gguf_get_u64(g, keys[k], &value) || value >= tok->model.vocab.n_ids))
            return core_err_set(err, CORE_E_ADAPTER_INVALID, "GGUF: no valid %s", keys[k]);
        id[k] = (int32_t)value;
    }
    return 0;
}

int tok__gguf_template(struct tok *tok, const struct gguf *g, bool bos_by_default,
                       struct core_err *err)
{
    bool on[2] = {bos_by_default, false};
    int32_t id[2];
    int rc = tok__gguf_ends(tok, g, on, id, err);

    tok->post.has_template = true;
    for (int pair = 0; pair < 2; pair++) {
        for (int seq = 0; seq <= pair && rc == 0; seq++) {
            if (on[0])
                rc = tok__post_special(&tok->post, pair, &id[0], 1, seq, err);
            if (rc == 0)
                rc = tok__post_piece(&tok->post, pair, seq, seq, err);
            if (rc == 0 && on[1])
                rc = tok__post_special(&tok->post, pair, &id[1], 1, seq, err);
        }
    }
    return rc;
}

/* RoBERTa's: <s> A </s></s> B </s>, and offsets without white space. */
static int roberta_post(struct tok *tok, const struct gguf *g, struct core_err *err)
{
    bool on[2] = {true, true};
    int32_t id[2];
    const int rc = tok__gguf_ends(tok, g, on, id, err);

    if (rc != 0)
        return rc;
    if (!on[0] || !on[1])
        return tok__gguf_template(tok, g, false, err);
    tok->post.trim_has_prefix[tok->post.n_trims++] = false;
    return tok__build_cls_sep(&tok->post, id[0], id[1], true, err);
}

static int add_digits(struct tok__stages *s, struct core_err *err)
{
    struct tok__stage *v = tok__stage_add(s, TOK__CUT);

    if (!v)
        return core_err_nomem(err, "tokenizer");
    v->pat = (struct tok__pattern){.kind = TOK__BY_CLASS, .mask = TOK__NUMERIC};
    v->behavior = TOK__ISOLATED;
    return 0;
}

/* What tokenizer.ggml.pre stands for. */
static const struct pre {
    const char *name;
    const char *pattern; /* NULL: GPT-2's, inside the byte-level stage */
    bool digits;         /* each digit alone, before all else */
    bool nfc;
    bool ignore_merges;
    bool bos; /* unless the file says otherwise */
    bool roberta;
} pres[] = {
    {"gpt-2", NULL, false, false, false, false, false},
    {"gpt2", NULL, false, false, false, false, false},
    {"default", NULL, false, false, false, false, false},
    {"smollm", NULL, true, false, false, false, false},
    {"llama-bpe", tok__pattern_llama3, false, false, true, true, false},
    {"llama3", tok__pattern_llama3, false, false, true, true, false},
    {"llama-v3", tok__pattern_llama3, false, false, true, true, false},
    {"qwen2", tok__pattern_qwen2, false, true, false, false, false},
    {"roberta-bpe", NULL, false, false, false, false, true},
};

static int find_pre(const struct gguf *g, const struct pre **out, struct core_err *err)
{
    struct gguf_str name = {.p = "default", .n = 7};

    gguf_get_str(g, "tokenizer.ggml.pre", &name);
    for (size_t i = 0; i < sizeof(pres) / sizeof(pres[0]); i++) {
        if (tok__gguf_is(&name, pres[i].name)) {
            *out = &pres[i];
            return 0;
        }
    }
    return core_err_set(err, CORE_E_ADAPTER_UNSUPPORTED,
                        "GGUF: the pre-tokenizer \"%.*s\" is not supported",
                        name.n > 60 ? 60 : (int)name.n, name.p);
}

static int build_bpe(struct tok *tok, const struct gguf *g, size_t n,
                     const struct tok_defaults *dflt, struct core_err *err)
{
    const struct pre *pre = NULL;
    int rc = find_pre(g, &pre, err);

    if (rc == 0)
        rc = read_vocab(tok, g, n, err);
    if (rc == 0)
        rc = read_merges(tok, g, pre->ignore_merges, err);
    if (rc == 0 && pre->nfc)
        rc = tok__build_form(&tok->normalizer, false, true, err);
    if (rc == 0 && pre->digits)
        rc = add_digits(&tok->pretokenizer, err);
    if (rc == 0 && pre->pattern)
        rc = tok__build_split(&tok->pretokenizer, pre->pattern, strlen(pre->pattern), err);
    if (rc == 0)
        rc = tok__build_byte_level(&tok->pretokenizer, false, !pre->pattern, err);
    if (rc == 0 && pre->roberta)
        rc = roberta_post(tok, g, err);
    else if (rc == 0)
        rc = tok__gguf_template(tok, g, pre->bos, err);
    if (rc == 0)
        rc = tok__build_decoder(tok, TOK__DEC_BYTES, "", false, err);
    if (rc == 0)
        rc = tok__gguf_added(tok, g, n, dflt, err);
    return rc == 0 ? tok__finish(tok, err) : rc;
}

/* ---- WordPiece ------------------------------------------------------------ */

/* GGUF marks the beginning of a word with U+2581 instead of continuations with ##. */
static int add_wordpiece(struct tok *tok, const struct gguf_str *s, int type, int64_t id,
                         struct core_err *err)
{
    static const char mark[] = "\xe2\x96\x81";
    const bool bracketed = s->n >= 2 && s->p[0] == '[' && s->p[s->n - 1] == ']';
    char text[512];

    if (type == TOK__PIECE_CONTROL || type == TOK__PIECE_UNKNOWN || bracketed)
        return tok__vocab_add(&tok->model.vocab, s->p, s->n, id, err);
    if (s->n >= 3 && memcmp(s->p, mark, 3) == 0)
        return tok__vocab_add(&tok->model.vocab, s->p + 3, s->n - 3, id, err);
    if (s->n + 2 > sizeof(text))
        return core_err_set(err, CORE_E_ADAPTER_INVALID, "GGUF: token %lld has %zu bytes",
                            (long long)id, s->n);
    text[0] = text[1] = '#';
    memcpy(text + 2, s->p, s->n);
    return tok__vocab_add(&tok->model.vocab, text, s->n + 2, id, err);
}

/* The file does not say whether the model is cased; its vocabulary does. */
static int build_wordpiece(struct tok *tok, const struct gguf *g, size_t n, struct core_err *err)
{
    struct gguf_str s;
    bool cased = false;
    int rc = tok__vocab_init(&tok->model.vocab, n, err);

    for (size_t i = 0; i < n && rc == 0; i++) {
        rc = tok__gguf_token(g, i, &s, err);
        if (rc == 0)
            rc = add_wordpiece(tok, &s, tok__gguf_type(g, i), (int64_t)i, err);
        for (size_t k = 0; rc == 0 && k < s.n && s.p[0] != '['; k++)
            cased |= s.p[k] >= 'A' && s.p[k] <= 'Z';
    }
    return rc == 0 ? tok__build_wordpiece(tok, !cased, !cased, err) : rc;
}

int tok_open_gguf(struct tok **out, const struct gguf *g, const struct tok_defaults *dflt,
                  struct core_err *err)
{
    struct gguf_str model, json;
    struct tok *tok = NULL;
    size_t n;
    int rc;

    if (gguf_get_str(g, "tokenizer.huggingface.json", &json))
        return tok_open_json(out, json.p, json.n, err);
    if (!gguf_get_str(g, "tokenizer.ggml.model", &model) ||
        !gguf_get_array(g, "tokenizer.ggml.tokens", &n))
        return core_err_set(err, CORE_E_NO_TOKENIZER, "the GGUF file has no tokenizer");
    rc = tok__new(&tok, err);
    if (rc == 0 && tok__gguf_is(&model, "gpt2"))
        rc = build_bpe(tok, g, n, dflt, err);
    else if (rc == 0 && tok__gguf_is(&model, "bert"))
        rc = build_wordpiece(tok, g, n, err);
    else if (rc == 0 && tok__gguf_is(&model, "llama"))
        rc = tok__gguf_llama(tok, g, n, dflt, err);
    else if (rc == 0 && tok__gguf_is(&model, "t5"))
        rc = tok__gguf_t5(tok, g, n, dflt, err);
    else if (rc == 0)
        rc = core_err_set(err, CORE_E_ADAPTER_UNSUPPORTED,
                          "GGUF: the tokenizer model \"%.*s\" is not supported",
                          model.n > 60 ? 60 : (int)model.n, model.p);
    if (rc == 0)
        *out = tok;
    else
        tok_close(&tok);
    return rc;
}
