/* core/tok/tok_post.c - truncation, trimming of offsets, and the template that
 * puts special tokens around the texts.
 *
 * BertProcessing, RobertaProcessing and TemplateProcessing are one thing here: a
 * list of pieces for one text and one for a pair. */
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/tok/tok_internal.h"

void tok__post_release(struct tok__post *p)
{
    core_free(p->tmpl[0].v);
    core_free(p->tmpl[1].v);
    core_free(p->ids);
    *p = (struct tok__post){0};
}

static int add_piece(struct tok__template *t, struct tok__piece piece, struct core_err *err)
{
    if (!tok__grow(&t->v, &t->cap, t->n + 1, sizeof(*t->v)))
        return core_err_nomem(err, "post-processor");
    t->v[t->n++] = piece;
    return 0;
}

int tok__post_piece(struct tok__post *p, bool pair, int seq, int32_t type, struct core_err *err)
{
    return add_piece(&p->tmpl[pair], (struct tok__piece){.seq = seq, .type = type}, err);
}

int tok__post_special(struct tok__post *p, bool pair, const int32_t *ids, size_t n, int32_t type,
                      struct core_err *err)
{
    const struct tok__piece piece = {
        .seq = -1, .type = type, .first = (uint32_t)p->n_ids, .n = (uint32_t)n};

    if (n == 0)
        return 0;
    if (!tok__grow(&p->ids, &p->cap_ids, p->n_ids + n, sizeof(*p->ids)))
        return core_err_nomem(err, "post-processor");
    memcpy(p->ids + p->n_ids, ids, n * sizeof(*ids));
    p->n_ids += n;
    p->tmpl[pair].n_added += n;
    return add_piece(&p->tmpl[pair], piece, err);
}

int tok__post_finish(struct tok__post *p, struct core_err *err)
{
    int rc = 0;

    for (int pair = 0; pair < 2 && !p->has_template; pair++)
        for (int seq = 0; seq <= pair && rc == 0; seq++)
            rc = tok__post_piece(p, pair, seq, seq, err);
    p->has_template = true;
    return rc;
}

/* Both texts are cut so that together they have n_max tokens: the longer one
 * first, both to a half if that is not enough. */
static bool cut_longest(struct tok__tokens seq[2], size_t n_max)
{
    const size_t n0 = seq[0].n, n1 = seq[1].n;
    size_t low, high;

    if (n0 + n1 <= n_max)
        return false;
    low = n0 < n1 ? n0 : n1;
    high = low > n_max ? low : (low > n_max - low ? low : n_max - low);
    if (low + high > n_max) {
        low = n_max / 2;
        high = low + n_max % 2;
    }
    seq[0].n = n0 > n1 ? high : low;
    seq[1].n = n0 > n1 ? low : high;
    if (seq[0].n > n0)
        seq[0].n = n0;
    if (seq[1].n > n1)
        seq[1].n = n1;
    return true;
}

/* Cuts the texts to n_max tokens as opt says. */
static int truncate_to(struct tok__tokens seq[2], size_t n_max,
                       const struct tok_encode_options *opt, bool *is_truncated,
                       struct core_err *err)
{
    if (!opt->keeps_text) {
        *is_truncated = cut_longest(seq, n_max);
        return 0;
    }
    *is_truncated = seq[0].n + seq[1].n > n_max;
    if (!*is_truncated)
        return 0;
    if (seq[0].n >= n_max)
        return core_err_set(err, CORE_E_INPUT_TOO_LONG,
                            "the first text leaves no room for the second, the limit is %zu tokens",
                            opt->n_max);
    seq[1].n = n_max - seq[0].n;
    return 0;
}

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* White space that a token's text begins or ends with leaves its offsets. */
static void trim(struct tok__tokens *t, bool has_prefix)
{
    for (size_t i = 0; i < t->n; i++) {
        struct tok__token *v = &t->v[i];
        /* One leading space of the first token was put there by us. */
        const bool ours = has_prefix && v->lead == 1 && (i == 0 || v->start == 0);

        if (v->lead > 0 && !ours)
            v->start = (uint32_t)min_size((size_t)v->start + v->lead, v->end);
        if (v->trail > 0 && v->end >= v->trail)
            v->end = v->end - v->trail > v->start ? v->end - v->trail : v->start;
    }
}

/* Each array keeps its place in *out, so a failure leaves all of them freeable. */
static int reserve(struct tok_encoding *out, size_t n, struct core_err *err)
{
    struct {
        void *p;
        size_t size;
    } part[] = {{&out->ids, sizeof(*out->ids)},
                {&out->type_ids, sizeof(*out->type_ids)},
                {&out->start, sizeof(*out->start)},
                {&out->end, sizeof(*out->end)},
                {&out->seq, sizeof(*out->seq)}};
    size_t cap = out->cap;

    for (size_t i = 0; i < sizeof(part) / sizeof(part[0]); i++) {
        cap = out->cap;
        if (!tok__grow(part[i].p, &cap, n, part[i].size))
            return core_err_nomem(err, "encoding");
    }
    out->cap = cap;
    return 0;
}

static void put(struct tok_encoding *out, const struct tok__token *t, int32_t type, uint8_t seq)
{
    out->ids[out->n] = t->id;
    out->type_ids[out->n] = type;
    out->start[out->n] = t->start;
    out->end[out->n] = t->end;
    out->seq[out->n++] = seq;
}

int tok__post_run(const struct tok__post *p, struct tok__tokens seq[2], bool has_pair,
                  const struct tok_encode_options *opt, struct tok_encoding *out,
                  struct core_err *err)
{
    const struct tok__template *tmpl = &p->tmpl[has_pair];
    const size_t n_added = opt->no_special ? 0 : tmpl->n_added;
    size_t n = n_added;
    bool is_truncated = false;

    if (opt->n_max > 0 && opt->n_max < n_added)
        return core_err_set(err, CORE_E_BAD_FIELD, "%zu tokens are fewer than the %zu special ones",
                            opt->n_max, n_added);
    if (opt->n_max > 0 && truncate_to(seq, opt->n_max - n_added, opt, &is_truncated, err) != 0)
        return CORE_E_INPUT_TOO_LONG;
    for (size_t i = 0; i < p->n_trims; i++)
        for (int k = 0; k < 2; k++)
            trim(&seq[k], p->trim_has_prefix[i]);
    for (size_t i = 0; i < tmpl->n; i++)
        n += tmpl->v[i].seq >= 0 ? seq[tmpl->v[i].seq].n : 0;
    if (reserve(out, n, err) != 0)
        return CORE_E_NOMEM;
    out->n = 0;
    out->is_truncated = is_truncated;
    for (size_t i = 0; i < tmpl->n; i++) {
        const struct tok__piece *piece = &tmpl->v[i];

        for (size_t k = 0; piece->seq >= 0 && k < seq[piece->seq].n; k++)
            put(out, &seq[piece->seq].v[k], piece->type, (uint8_t)piece->seq);
        for (size_t k = 0; piece->seq < 0 && k < piece->n && !opt->no_special; k++)
            put(out, &(struct tok__token){.id = p->ids[piece->first + k]}, piece->type, 255);
    }
    return 0;
}
