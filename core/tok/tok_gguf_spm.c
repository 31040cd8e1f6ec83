/* core/tok/tok_gguf_spm.c - SentencePiece vocabularies in GGUF metadata: "llama" (BPE
 * with scores and byte fallback) and "t5" (Unigram, with its map of characters).
 *
 * The stages are those of the models' own tokenizer.json: for "llama" Llama 2's, a
 * mark in front unless add_space_prefix is false (Gemma); for "t5" T5's, and XLM-R's
 * template if texts begin with a token. GGUF keeps no flags of added tokens: those of
 * Phi 3 and of the masks are known, others are none. */
#include <math.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/tok/tok_gguf.h"
#include "core/tok/tok_internal.h"
#include "core/tok/tok_spm.h"
#include "core/weights/weights.h"

struct pieces {
    struct tok__spm_piece *v;
    char *marks; /* runs of marks */
    char *unk;   /* the unknown token */
    uint64_t unk_id;
};

static void pieces_release(struct pieces *p)
{
    core_free(p->v);
    core_free(p->marks);
    core_free(p->unk);
}

static int invalid(const char *what, size_t i, struct core_err *err)
{
    return core_err_set(err, CORE_E_ADAPTER_INVALID, "GGUF: token %zu: %s", i, what);
}

/* Two or more spaces: converters of GGUF write so what the model has as marks. */
static bool is_spaces(const struct gguf_str *s)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->p[i] != ' ')
            return false;
    return s->n >= 2 && s->n <= 128;
}

static int read_piece(struct pieces *p, const struct gguf *g, size_t i, struct core_err *err)
{
    struct tok__spm_piece *v = &p->v[i];
    struct gguf_str s;
    int rc = tok__gguf_token(g, i, &s, err);

    if (rc != 0)
        return rc;
    v->type = tok__gguf_type(g, i);
    if (!gguf_array_f64(g, "tokenizer.ggml.scores", i, &v->score) || !isfinite(v->score))
        return invalid("no score in tokenizer.ggml.scores", i, err);
    if (v->type == TOK__PIECE_UNUSED) { /* fills the matrix up; no text becomes it */
        *v = (struct tok__spm_piece){.type = TOK__PIECE_UNUSED};
        return 0;
    }
    if (s.n == 0 || memchr(s.p, 0, s.n))
        return invalid("the text is empty or has a zero byte", i, err);
    if (v->type == TOK__PIECE_UNKNOWN && p->unk_id == UINT64_MAX)
        p->unk_id = i;
    v->text = is_spaces(&s) ? p->marks : s.p;
    v->n = is_spaces(&s) ? 3 * s.n : s.n;
    return 0;
}

static int read_pieces(struct pieces *p, const struct gguf *g, size_t n, struct core_err *err)
{
    enum { MARKS = 128 };
    int rc = 0;

    p->unk_id = UINT64_MAX;
    gguf_get_u64(g, "tokenizer.ggml.unknown_token_id", &p->unk_id);
    p->v = core_calloc(n ? n : 1, sizeof(*p->v));
    p->marks = core_malloc(3 * MARKS);
    if (!p->v || !p->marks)
        return core_err_nomem(err, "tokenizer");
    for (int i = 0; i < MARKS; i++)
        memcpy(p->marks + 3 * i, tok__mark, 3);
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = read_piece(p, g, i, err);
    if (rc == 0 && p->unk_id != UINT64_MAX && (p->unk_id >= n || !p->v[p->unk_id].text))
        rc = invalid("tokenizer.ggml.unknown_token_id is not in the vocabulary", p->unk_id, err);
    if (rc == 0 && p->unk_id != UINT64_MAX) {
        p->unk = core_strndup(p->v[p->unk_id].text, p->v[p->unk_id].n);
        rc = p->unk ? 0 : core_err_nomem(err, "tokenizer");
    }
    return rc;
}

/* ---- llama ---------------------------------------------------------------- */

int tok__gguf_llama(struct tok *tok, const struct gguf *g, size_t n,
                    const struct tok_defaults *dflt, struct core_err *err)
{
    struct tok__spm_model how = {.model_type = TOK__SPM_BPE, .byte_fallback = true};
    struct pieces p = {0};
    struct tok__stage *v;
    bool prefix = true;
    int rc = read_pieces(&p, g, n, err);

    gguf_get_bool(g, "tokenizer.ggml.add_space_prefix", &prefix);
    how.unk = p.unk;
    if (rc == 0)
        rc = tok__spm_model(tok, p.v, n, &how, err);
    if (rc == 0 && prefix) {
        v = tok__stage_add(&tok->normalizer, TOK__PREPEND);
        if (!v || !tok__str_set(&v->arg, tok__mark, strlen(tok__mark)))
            rc = core_err_nomem(err, "tokenizer");
    }
    if (rc == 0)
        rc = tok__build_replace(&tok->normalizer, " ", tok__mark, err);
    if (rc == 0)
        rc = tok__build_spm_decoder(tok, prefix, err);
    if (rc == 0)
        rc = tok__gguf_added(tok, g, n, dflt, err);
    if (rc == 0)
        rc = tok__gguf_template(tok, g, true, err);
    pieces_release(&p);
    return rc == 0 ? tok__finish(tok, err) : rc;
}

/* ---- t5 ------------------------------------------------------------------- */

static int add_charsmap(struct tok *tok, const struct gguf *g, struct core_err *err)
{
    static const char key[] = "tokenizer.ggml.precompiled_charsmap";
    struct tok__stage *v;
    unsigned char *bytes;
    size_t n = 0;
    double value;
    int rc = 0;

    if (!gguf_get_array(g, key, &n) || n == 0)
        return 0;
    bytes = core_malloc(n);
    v = tok__stage_add(&tok->normalizer, TOK__CHARSMAP);
    if (!bytes || !v)
        rc = core_err_nomem(err, "tokenizer");
    for (size_t i = 0; i < n && rc == 0; i++) {
        if (!gguf_array_f64(g, key, i, &value) || value < -128 || value > 255)
            rc = core_err_set(err, CORE_E_ADAPTER_INVALID, "GGUF: %s holds no bytes", key);
        else
            bytes[i] = (unsigned char)(int)value;
    }
    if (rc == 0)
        rc = tok__charsmap_new(&v->map, bytes, n, err);
    core_free(bytes);
    return rc;
}

static int t5_post(struct tok *tok, const struct gguf *g, struct core_err *err)
{
    bool on[2] = {false, true};
    int32_t id[2];
    int rc = tok__gguf_ends(tok, g, on, id, err);

    if (rc == 0 && on[0] && on[1])
        return tok__build_cls_sep(&tok->post, id[0], id[1], true, err);
    if (rc == 0 && on[0])
        return tok__gguf_template(tok, g, true, err);
    tok->post.has_template = true;
    for (int pair = 0; pair < 2; pair++) {
        for (int seq = 0; seq <= pair && rc == 0; seq++) {
            rc = tok__post_piece(&tok->post, pair, seq, 0, err);
            if (rc == 0 && on[1])
                rc = tok__post_special(&tok->post, pair, &id[1], 1, 0, err);
        }
    }
    return rc;
}

/* As transformers does it: a run of spaces is one mark, none at the end. */
static int t5_stages(struct tok *tok, const struct gguf *g, struct core_err *err)
{
    bool prefix = true;
    int rc = add_charsmap(tok, g, err);

    gguf_get_bool(g, "tokenizer.ggml.add_space_prefix", &prefix);
    if (rc == 0)
        rc = tok__build_spm_spaces(&tok->normalizer, err);
    if (rc == 0)
        rc = tok__build_metaspace(&tok->pretokenizer, tok__mark, prefix ? TOK__ALWAYS : TOK__NEVER,
                                  true, err);
    return rc == 0 ? tok__build_decoder(tok, TOK__DEC_METASPACE, tok__mark, prefix, err) : rc;
}

int tok__gguf_t5(struct tok *tok, const struct gguf *g, size_t n, const struct tok_defaults *dflt,
                 struct core_err *err)
{
    struct tok__spm_model how = {.model_type = TOK__SPM_UNIGRAM};
    struct pieces p = {0};
    int rc = read_pieces(&p, g, n, err);

    how.unk_id = p.unk_id == UINT64_MAX ? -1 : (int64_t)p.unk_id;
    /* Converters give added tokens a score far below; it would move that of unknown
     * characters, which depends on the lowest. */
    for (size_t i = 0; i < n && rc == 0; i++)
        if (p.v[i].type != TOK__PIECE_NORMAL && p.v[i].type != TOK__PIECE_BYTE)
            p.v[i].score = 0;
    if (rc == 0)
        rc = tok__spm_model(tok, p.v, n, &how, err);
    if (rc == 0)
        rc = t5_stages(tok, g, err);
    if (rc == 0)
        rc = tok__gguf_added(tok, g, n, dflt, err);
    if (rc == 0)
        rc = t5_post(tok, g, err);
    pieces_release(&p);
    return rc == 0 ? tok__finish(tok, err) : rc;
}
