/* core/tok/tok.c - a tokenizer's life, its lookups, and the path of an encode.
 *
 * The order of the stages is the library's: added tokens that match the text as
 * it is, the normaliser on what is left, added tokens that match the normalised
 * text, the pre-tokenizer, the model on every piece, then tok_post.c.
 * Files become tokenizers in tok_json.c, tok_files.c and tok_gguf.c. */
#include "core/tok/tok.h"

#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/base/utf8.h"
#include "core/tok/tok_internal.h"

bool tok__str_set(struct tok__str *s, const char *p, size_t n)
{
    s->p = core_strndup(p, n);
    s->n = n;
    return s->p != NULL;
}

/* ---- life ----------------------------------------------------------------- */

int tok__new(struct tok **out, struct core_err *err)
{
    *out = core_calloc(1, sizeof(**out));
    return *out ? 0 : core_err_nomem(err, "tokenizer");
}

int tok__finish(struct tok *tok, struct core_err *err)
{
    const int rc = tok__added_finish(tok, err);

    return rc == 0 ? tok__post_finish(&tok->post, err) : rc;
}

void tok_close(struct tok **p)
{
    struct tok *tok = *p;

    if (!tok)
        return;
    *p = NULL;
    if (tok->model.ops)
        tok->model.ops->free(tok->model.self);
    tok__vocab_release(&tok->model.vocab);
    tok__added_release(&tok->added);
    tok__stages_release(&tok->normalizer);
    tok__stages_release(&tok->pretokenizer);
    tok__post_release(&tok->post);
    tok__decoders_release(&tok->decoder);
    core_free(tok);
}

/* ---- lookups -------------------------------------------------------------- */

size_t tok_n_vocab(const struct tok *tok)
{
    const size_t n = tok->model.vocab.n_ids;

    return tok->added.names.n_ids > n ? tok->added.names.n_ids : n;
}

bool tok_token_id(const struct tok *tok, const char *text, int32_t *id)
{
    const size_t n = strlen(text);
    int32_t found = tok__vocab_id(&tok->added.names, text, n);

    if (found < 0)
        found = tok__vocab_id(&tok->model.vocab, text, n);
    if (found >= 0)
        *id = found;
    return found >= 0;
}

const char *tok_token_text(const struct tok *tok, int32_t id)
{
    const struct tok__added_token *t = tok__added_by_id(&tok->added, id);
    size_t n;

    return t ? t->text.p : tok__vocab_text(&tok->model.vocab, id, &n);
}

bool tok_is_special(const struct tok *tok, int32_t id)
{
    const struct tok__added_token *t = tok__added_by_id(&tok->added, id);

    return t && t->is_special;
}

/* ---- encoding ------------------------------------------------------------- */

/* Makes `s` the text of w: one split, every byte from its own code point. */
static int work_load(struct tok__work *w, const char *s, size_t n, struct core_err *err)
{
    uint32_t cp = 0;

    w->text.n = w->list.n = 0;
    w->text.n_max = TOK__GROWTH_MAX * n + 65536;
    w->is_ascii = true;
    if (n == 0)
        return 0;
    if (!tok__text_reserve(&w->text, n))
        return core_err_nomem(err, "tokens of a text");
    memcpy(w->text.p, s, n);
    w->text.n = n;
    for (size_t i = 0, len; i < n; cp++) {
        len = (unsigned char)s[i] < 0x80 ? 1 : core_utf8_len(s + i, n - i);
        if (len == 0)
            return core_err_set(err, CORE_E_BAD_FIELD, "the text is not UTF-8 at byte %zu", i);
        if (len > 1)
            w->is_ascii = false;
        for (const size_t end = i + len; i < end; i++)
            w->text.at[i] = cp;
    }
    tok__split_add(&w->list, 0, (uint32_t)n, -1);
    return tok__work_check(w, err);
}

/* At most about n_enough tokens, the first ones; more than that only where a word has them. */
static int run(const struct tok *tok, struct tok__work *w, const char *s, size_t n, size_t n_enough,
               struct core_err *err)
{
    int rc;

    if (n >= TOK__INPUT_MAX)
        return core_err_set(err, CORE_E_INPUT_TOO_LONG, "a text of %zu bytes", n);
    rc = work_load(w, s, n, err);
    if (rc != 0)
        return rc;
    tok__added_cut(&tok->added.raw, w);
    rc = tok__stages_run(&tok->normalizer, w, err);
    if (rc != 0)
        return rc;
    tok__added_cut(&tok->added.normalized, w);
    rc = tok__work_check(w, err);
    if (rc == 0)
        rc = tok__stages_run(&tok->pretokenizer, w, err);
    for (size_t i = 0; i < w->list.n && rc == 0 && w->out->n < n_enough; i++) {
        const struct tok__split *v = &w->list.v[i];

        if (v->id >= 0)
            tok__emit(w, v->id, v->start, v->end, w->text.p + v->start, v->end - v->start);
        else if (v->start < v->end)
            rc = tok->model.ops->cut(tok->model.self, w, v->start, v->end, err);
        if (rc == 0)
            rc = tok__work_stopped(w, v->end - v->start, err);
    }
    return rc == 0 ? tok__work_check(w, err) : rc;
}

/* How many tokens of each text decide what truncation to opt->n_max leaves. The words are
 * cut from left to right, each by itself, so the first tokens do not depend on the rest. Of
 * a pair, truncation compares the lengths only where one text is at most the limit, or
 * where both are longer and one of them gets the odd token: then all have to be counted.
 * Where only the second is cut, the first is counted to its end or to the limit. */
static size_t enough(const struct tok__post *post, const struct tok_encode_options *opt,
                     bool has_pair)
{
    const size_t n_added = opt->no_special ? 0 : post->tmpl[has_pair].n_added;

    if (opt->n_max == 0 || opt->n_max < n_added ||
        (has_pair && !opt->keeps_text && (opt->n_max - n_added) % 2 != 0))
        return SIZE_MAX;
    return opt->n_max - n_added + 1;
}

int tok_encode(const struct tok *tok, const char *text, size_t n_text, const char *pair,
               size_t n_pair, const struct tok_encode_options *opt, struct tok_encoding *out,
               struct core_err *err)
{
    static const struct tok_encode_options none;
    struct tok__work w = {.trims = tok->post.n_trims > 0};
    struct tok__tokens seq[2] = {0};
    size_t n_enough;
    int rc;

    opt = opt ? opt : &none;
    n_enough = enough(&tok->post, opt, pair != NULL);
    w.opt = opt;
    w.out = &seq[0];
    rc = run(tok, &w, text, n_text, n_enough, err);
    w.out = &seq[1];
    if (rc == 0 && pair)
        rc = run(tok, &w, pair, n_pair, n_enough, err);
    if (rc == 0)
        rc = tok__post_run(&tok->post, seq, pair != NULL, opt, out, err);
    tok__work_release(&w);
    core_free(seq[0].v);
    core_free(seq[1].v);
    return rc;
}

int tok__normalize_alone(const struct tok *tok, const char *s, size_t n, struct tok__str *out,
                         struct core_err *err)
{
    struct tok__work w = {0};
    int rc = work_load(&w, s, n, err);

    if (rc == 0)
        rc = tok__stages_run(&tok->normalizer, &w, err);
    if (rc == 0 && !tok__str_set(out, w.text.p ? w.text.p : "", w.text.n))
        rc = core_err_nomem(err, "added tokens");
    tok__work_release(&w);
    return rc;
}

void tok_encoding_release(struct tok_encoding *e)
{
    core_free(e->ids);
    core_free(e->type_ids);
    core_free(e->start);
    core_free(e->end);
    core_free(e->seq);
    *e = (struct tok_encoding){0};
}
