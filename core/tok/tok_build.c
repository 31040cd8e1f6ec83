/* core/tok/tok_build.c - stages that more than one kind of file asks for. */
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/tok/tok_internal.h"
#include "core/tok/tok_pattern.h"
#include "core/tok/tok_unicode.h"

const char tok__mark[] = "\xe2\x96\x81";

static int add(struct tok__stages *s, enum tok__stage_kind kind, struct tok__stage **out,
               struct core_err *err)
{
    *out = tok__stage_add(s, kind);
    return *out ? 0 : core_err_nomem(err, "tokenizer");
}

int tok__build_form(struct tok__stages *s, bool is_compat, bool is_composed, struct core_err *err)
{
    struct tok__stage *v;
    const int rc = add(s, TOK__FORM, &v, err);

    if (rc == 0) {
        v->is_compat = is_compat;
        v->is_composed = is_composed;
    }
    return rc;
}

int tok__build_bert(struct tok__stages *s, bool clean, bool cjk, bool accents, bool lower,
                    struct core_err *err)
{
    struct tok__stage *v;
    int rc = clean ? add(s, TOK__CLEAN, &v, err) : 0;

    if (rc == 0 && cjk)
        rc = add(s, TOK__CJK, &v, err);
    if (rc == 0 && accents)
        rc = tok__build_form(s, false, false, err);
    if (rc == 0 && accents && (rc = add(s, TOK__DROP, &v, err)) == 0)
        v->mask = TOK__MN;
    if (rc == 0 && lower)
        rc = add(s, TOK__LOWER, &v, err);
    return rc;
}

int tok__build_split(struct tok__stages *s, const char *pattern, size_t n, struct core_err *err)
{
    struct tok__stage *v;
    int rc = add(s, TOK__CUT, &v, err);

    if (rc != 0)
        return rc;
    v->pat.kind = TOK__BY_REGEX;
    v->behavior = TOK__ISOLATED;
    return tok__regex_new(&v->pat.re, pattern, n, err);
}

int tok__build_prepend(struct tok__stages *s, const char *text, size_t n, bool only_first,
                       struct core_err *err)
{
    struct tok__stage *v;
    int rc = add(s, TOK__PREPEND, &v, err);

    if (rc != 0)
        return rc;
    v->unless_there = true;
    v->only_first = only_first;
    return tok__str_set(&v->arg, text, n) ? 0 : core_err_nomem(err, "tokenizer");
}

int tok__build_byte_level(struct tok__stages *s, bool prefix_space, bool use_regex,
                          struct core_err *err)
{
    struct tok__stage *v;
    int rc = prefix_space ? tok__build_prepend(s, " ", 1, false, err) : 0;

    if (rc == 0 && use_regex)
        rc = tok__build_split(s, tok__pattern_gpt2, strlen(tok__pattern_gpt2), err);
    return rc == 0 ? add(s, TOK__BYTES, &v, err) : rc;
}

int tok__build_metaspace(struct tok__stages *s, const char *mark, enum tok__scheme scheme,
                         bool split, struct core_err *err)
{
    struct tok__stage *v;
    int rc = tok__build_replace(s, " ", mark, err);

    if (rc == 0 && scheme != TOK__NEVER)
        rc = tok__build_prepend(s, mark, strlen(mark), scheme == TOK__FIRST, err);
    if (rc != 0 || !split)
        return rc;
    rc = add(s, TOK__CUT, &v, err);
    if (rc != 0)
        return rc;
    v->pat.kind = TOK__BY_STRING;
    v->behavior = TOK__MERGED_WITH_NEXT;
    return tok__str_set(&v->pat.str, mark, strlen(mark)) ? 0 : core_err_nomem(err, "tokenizer");
}

int tok__build_replace(struct tok__stages *s, const char *from, const char *to,
                       struct core_err *err)
{
    struct tok__stage *v;
    const int rc = add(s, TOK__REPLACE, &v, err);

    if (rc != 0)
        return rc;
    v->pat.kind = TOK__BY_STRING;
    return tok__str_set(&v->arg, to, strlen(to)) && tok__str_set(&v->pat.str, from, strlen(from))
               ? 0
               : core_err_nomem(err, "tokenizer");
}

int tok__build_strip(struct tok__stages *s, bool left, struct core_err *err)
{
    struct tok__stage *v;
    const int rc = add(s, TOK__STRIP, &v, err);

    if (rc == 0) {
        v->left = left;
        v->right = true;
    }
    return rc;
}

int tok__build_squeeze(struct tok__stages *s, const char *to, struct core_err *err)
{
    struct tok__stage *v;
    const int rc = add(s, TOK__REPLACE, &v, err);

    if (rc != 0)
        return rc;
    if (!tok__str_set(&v->arg, to, strlen(to)))
        return core_err_nomem(err, "tokenizer");
    v->pat.kind = TOK__BY_REGEX;
    return tok__regex_new(&v->pat.re, " {2,}", 5, err);
}

int tok__build_spm_spaces(struct tok__stages *s, struct core_err *err)
{
    const int rc = tok__build_strip(s, false, err);

    return rc == 0 ? tok__build_squeeze(s, tok__mark, err) : rc;
}

int tok__build_spm_decoder(struct tok *tok, bool strips, struct core_err *err)
{
    struct tok__decoder *d;
    int rc = tok__build_decoder(tok, TOK__DEC_REPLACE, " ", false, err);

    if (rc != 0)
        return rc;
    d = &tok->decoder.v[tok->decoder.n - 1];
    d->pat.kind = TOK__BY_STRING;
    if (!tok__str_set(&d->pat.str, tok__mark, strlen(tok__mark)))
        return core_err_nomem(err, "decoder");
    rc = tok__build_decoder(tok, TOK__DEC_BYTE_FALLBACK, "", false, err);
    if (rc == 0)
        rc = tok__build_decoder(tok, TOK__DEC_FUSE, "", false, err);
    if (rc == 0 && strips)
        rc = tok__build_decoder(tok, TOK__DEC_STRIP, " ", false, err);
    if (rc == 0 && strips)
        tok->decoder.v[tok->decoder.n - 1].start = 1;
    return rc;
}

int tok__build_cls_sep(struct tok__post *p, int32_t cls, int32_t sep, bool is_roberta,
                       struct core_err *err)
{
    const int32_t type_b = is_roberta ? 0 : 1;
    int rc = 0;

    p->has_template = true;
    for (int pair = 0; pair < 2 && rc == 0; pair++) {
        rc = tok__post_special(p, pair, &cls, 1, 0, err);
        if (rc == 0)
            rc = tok__post_piece(p, pair, 0, 0, err);
        if (rc == 0)
            rc = tok__post_special(p, pair, &sep, 1, 0, err);
    }
    if (rc == 0 && is_roberta)
        rc = tok__post_special(p, true, &sep, 1, 0, err);
    if (rc == 0)
        rc = tok__post_piece(p, true, 1, type_b, err);
    return rc == 0 ? tok__post_special(p, true, &sep, 1, type_b, err) : rc;
}

int tok__build_added(struct tok *tok, const char *const *texts, size_t n, struct core_err *err)
{
    const struct tok__added_token special = {.is_special = true};
    int rc = tok__added_init(tok, n, err);

    for (size_t i = 0; i < n && rc == 0; i++)
        if (tok__vocab_id(&tok->model.vocab, texts[i], strlen(texts[i])) >= 0)
            rc = tok__added_add(tok, &special, texts[i], strlen(texts[i]), err);
    return rc;
}

int tok__build_decoder(struct tok *tok, enum tok__decoder_kind kind, const char *arg, bool flag,
                       struct core_err *err)
{
    struct tok__decoder *d = tok__decoder_add(&tok->decoder, kind);

    tok->has_decoder = true;
    if (!d || !tok__str_set(&d->arg, arg, strlen(arg)))
        return core_err_nomem(err, "decoder");
    d->flag = flag;
    return 0;
}

int tok__build_wordpiece(struct tok *tok, bool lowercase, bool strip_accents, struct core_err *err)
{
    static const char *const specials[] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
    const struct tok__wordpiece_options opt = {.unk = "[UNK]", .prefix = "##", .n_chars_max = 100};
    const int32_t cls = tok__vocab_id(&tok->model.vocab, "[CLS]", 5);
    const int32_t sep = tok__vocab_id(&tok->model.vocab, "[SEP]", 5);
    struct tok__stage *v;
    int rc;

    if (cls < 0 || sep < 0)
        return core_err_set(err, CORE_E_ADAPTER_INVALID,
                            "the vocabulary has no [CLS] or no [SEP] token");
    rc = tok__wordpiece_new(&tok->model, &opt, err);
    if (rc == 0)
        rc = tok__build_bert(&tok->normalizer, true, true, strip_accents, lowercase, err);
    if (rc == 0)
        rc = add(&tok->pretokenizer, TOK__CUT_BERT, &v, err);
    if (rc == 0)
        rc = tok__build_cls_sep(&tok->post, cls, sep, false, err);
    if (rc == 0)
        rc = tok__build_decoder(tok, TOK__DEC_WORDPIECE, "##", true, err);
    if (rc == 0)
        rc = tok__build_added(tok, specials, sizeof(specials) / sizeof(specials[0]), err);
    return rc == 0 ? tok__finish(tok, err) : rc;
}
