/* core/fwd/head.c - from final hidden rows to answers: pooling, the base's LM head
 * and pooler (sites like any other), and each task's own steps. */
#include <math.h>
#include <string.h>

#include "core/fwd/fwd_internal.h"

/* ---- plan (engine thread) ------------------------------------------------------- */

static enum fwd_head_class class_of(const struct delta_head *h)
{
    if (h->uses_base_lm_head)
        return FWD_HEAD_LM;
    return h->passes_pooler ? FWD_HEAD_POOLER : FWD_HEAD_PLAIN;
}

/* Virtual tokens among the rows due that the head does not count: on encoders, whose input
 * is whole in one step. */
static uint32_t n_inside(const struct fwd_seq *q)
{
    return q->delta->soft_at ? fwd__n_skipped(q) : 0;
}

/* Outputs of this sequence's head in this step. */
static uint32_t n_outputs(const struct fwd *f, uint32_t s)
{
    const struct fwd_seq *q = &f->batch.seq[s];
    uint32_t first, n;

    fwd__due(q, &first, &n);
    switch (q->delta->head.pool) {
    case DELTA_POOL_MEAN:
        return q->is_last;
    case DELTA_POOL_TOKENS:
        return n - n_inside(q);
    default:
        return n;
    }
}

static void add_items(struct fwd *f, enum fwd_head_class cls, uint32_t row0, uint32_t n)
{
    const uint32_t chunk = cls == FWD_HEAD_LM ? 1 : FWD_JOIN_ROWS;

    for (uint32_t i = 0; i < n; i += chunk)
        f->head_item[f->n_head_items++] =
            (struct fwd_head_item){.row0 = row0 + i, .n_rows = n - i < chunk ? n - i : chunk};
}

static void plan_class(struct fwd *f, enum fwd_head_class cls)
{
    struct fwd_rows *v = &f->head[cls];
    const uint32_t first = f->head_first[cls];

    v->n_rows = v->n_segments = 0;
    for (uint32_t s = f->due.seq0; s < f->batch.n_seqs; s++) {
        const struct fwd_seq *q = &f->batch.seq[s];
        const uint32_t n = class_of(&q->delta->head) == cls ? n_outputs(f, s) : 0;
        struct fwd_segment *last = v->n_segments ? &v->segment[v->n_segments - 1] : NULL;

        if (n == 0)
            continue;
        for (uint32_t i = 0; i < n; i++)
            f->head_row[first + v->n_rows + i] = (struct fwd_head_row){
                .seq = s, .token = i < q->delta->soft_at ? i : i + n_inside(q)};
        if (last && last->delta == q->delta)
            last->n_rows += n;
        else
            v->segment[v->n_segments++] =
                (struct fwd_segment){.delta = q->delta, .row0 = v->n_rows, .n_rows = n};
        v->n_rows += n;
    }
    for (uint32_t i = 0; i < v->n_segments; i++)
        add_items(f, cls, first + v->segment[i].row0, v->segment[i].n_rows);
    f->head_first[cls + 1] = first + v->n_rows;
}

void fwd__head_plan(struct fwd *f)
{
    f->n_head_items = 0;
    f->head_first[0] = 0;
    for (int cls = 0; cls < FWD_N_HEAD_CLASSES; cls++)
        plan_class(f, (enum fwd_head_class)cls);
}

/* ---- pooling --------------------------------------------------------------------- */

/* Adds a chunk's rows to the sequence's sum, which begins with the first chunk: a sequence
 * that was put back begins again. The mean is due with the last chunk. */
static void add_to_mean(const struct fwd *f, size_t part)
{
    const struct fwd_part *p = &f->due.part[part];
    const struct fwd_seq *s = &f->batch.seq[f->due.seq0 + part];
    const size_t d = f->c->d_model;

    if (s->delta->head.pool != DELTA_POOL_MEAN)
        return;
    if (s->pos0 == 0)
        memset(s->mean, 0, d * sizeof(float));
    for (uint32_t i = 0; i < p->n; i++)
        if (i < s->delta->soft_at || i >= s->delta->soft_at + n_inside(s))
            f->k->add(d, f->h + (p->row0 + i) * d, s->mean);
}

static void pool_row(const struct fwd *f, struct fwd_worker *me, uint32_t row)
{
    const struct fwd_head_row *hr = &f->head_row[row];
    const struct fwd_seq *s = &f->batch.seq[hr->seq];
    const struct delta_embed *embed = delta_embed(s->delta, site_make(0, SITE_EMBED_TOKENS));
    const size_t d = f->c->d_model;
    float *to = f->pooled + row * d;

    if (s->delta->head.pool == DELTA_POOL_MEAN) {
        memcpy(to, s->mean, d * sizeof(float));
        f->k->scale(d, 1.0f / (float)(s->pos0 + s->n_rows - fwd__n_skipped(s)), to);
    } else {
        const struct fwd_part *p = &f->due.part[hr->seq - f->due.seq0];
        uint32_t first, n;

        fwd__due(s, &first, &n); /* the part may hold more */
        memcpy(to, f->h + (p->row0 + (first - p->first) + hr->token) * d, d * sizeof(float));
    }
    if (s->delta->head.input_scale != 0.0f)
        f->k->scale(d, s->delta->head.input_scale, to);
    if (s->delta->head.uses_base_lm_head && s->delta->head.uncouples)
        fwd__uncouple(f, me, embed->coupling, to);
}

/* ---- a task's own steps ------------------------------------------------------------ */

/* y [n, n_out] = one step of x [n, n_in]; y must not be x. */
static void run_step(const struct fwd *f, const struct delta_head_step *st, size_t n,
                     const float *x, float *y)
{
    const size_t n_out = st->w.n_rows;

    f->k->dots(n, n_out, st->w.n_cols, x, st->w.n_cols, st->w.type, st->w.data, st->w.n_cols, y,
               n_out);
    for (size_t i = 0; i < n; i++) {
        float *row = y + i * n_out;

        if (st->bias)
            f->k->add(n_out, st->bias, row);
        if (st->act != KERN_ACT_NONE)
            f->k->act(st->act, n_out, row, row);
        if (st->gamma)
            f->k->layer_norm(n_out, row, st->gamma, st->beta, st->eps, row);
    }
}

static void normalise(const struct fwd *f, size_t n, float *x)
{
    const float norm = sqrtf(f->k->dot(n, x, x));

    f->k->scale(n, 1.0f / (norm > 1e-12f ? norm : 1e-12f), x);
}

/* Where the outputs of a head row go: [n_labels]. Logits of own LM heads stand behind
 * the max_seqs rows of the base's. */
static float *destination(const struct fwd *f, const struct fwd_head_row *hr)
{
    const struct fwd_seq *s = &f->batch.seq[hr->seq];
    const struct delta_head *h = &s->delta->head;

    if (h->kind == DELTA_GENERATION)
        return f->logits + (size_t)f->opt.max_seqs * f->c->n_vocab +
               hr->seq * ((size_t)f->c->n_vocab + DELTA_OWN_IDS_MAX);
    if (h->pool == DELTA_POOL_TOKENS) {
        const size_t at = (size_t)s->pos0 + f->due.part[hr->seq - f->due.seq0].first + hr->token;

        return s->out + (at - (at < s->delta->soft_at ? 0 : fwd__n_skipped(s))) * h->n_labels;
    }
    return s->out;
}

/* Hands the logits of a sequence over, as the model's class gives them. */
static void give_logits(struct fwd *f, const struct fwd_seq *s, float *logits, unsigned w)
{
    const float cap = f->c->logits_softcap;
    const size_t n = s->delta->head.n_labels;

    if (cap > 0.0f) {
        f->k->scale(n, 1.0f / cap, logits);
        f->k->act(KERN_ACT_TANH, n, logits, logits);
        f->k->scale(n, cap, logits);
    }
    f->batch.on_logits(f->batch.on_logits_arg, s->owner, logits, w);
}

static void finish_row(struct fwd *f, const struct fwd_head_row *hr, unsigned w)
{
    const struct fwd_seq *s = &f->batch.seq[hr->seq];
    float *out = destination(f, hr);

    if (s->delta->head.kind == DELTA_GENERATION)
        give_logits(f, s, out, w);
    else if (s->delta->head.is_normalized)
        normalise(f, s->delta->head.n_labels, out);
}

/* y = rows x with the task's coupling undone. */
static const float *uncoupled(struct fwd *f, const struct fwd_head_item *it, const float *x,
                              float *y, unsigned w)
{
    const struct delta *d = f->batch.seq[f->head_row[it->row0].seq].delta;
    const struct delta_embed *embed = delta_embed(d, site_make(0, SITE_EMBED_TOKENS));
    const size_t width = f->c->d_model;

    memcpy(y, x, it->n_rows * width * sizeof(float));
    for (uint32_t r = 0; r < it->n_rows; r++)
        fwd__uncouple(f, &f->worker[w], embed->coupling, y + r * width);
    return y;
}

/* Head rows of one task through its steps; the last step's rows go to their places. */
static void run_plain(struct fwd *f, const struct fwd_head_item *it, const float *x, unsigned w)
{
    const struct delta_head *h = &f->batch.seq[f->head_row[it->row0].seq].delta->head;
    float *buf[2] = {f->worker[w].head, f->worker[w].head + FWD_JOIN_ROWS * f->head_width_max};
    size_t width = f->c->d_model;

    for (unsigned i = 0; i < h->n_steps; i++) {
        width = h->step[i].w.n_rows;
        if (i + 1 == h->n_steps && h->uncouples)
            x = uncoupled(f, it, x, buf[i % 2], w);
        if (i + 1 < h->n_steps) {
            run_step(f, &h->step[i], it->n_rows, x, buf[i % 2]);
            x = buf[i % 2];
            continue;
        }
        for (uint32_t r = 0; r < it->n_rows; r++)
            run_step(f, &h->step[i], 1, x + r * h->step[i].w.n_cols,
                     destination(f, &f->head_row[it->row0 + r]));
    }
    for (uint32_t r = 0; r < it->n_rows; r++) {
        const struct fwd_head_row *hr = &f->head_row[it->row0 + r];

        if (h->n_steps == 0)
            memcpy(destination(f, hr), x + r * width, width * sizeof(float));
        finish_row(f, hr, w);
    }
}

static void run_head_item(struct fwd *f, const struct fwd_head_item *it, unsigned w)
{
    const size_t d = f->c->d_model;

    if (it->row0 < f->head_first[FWD_HEAD_POOLER])
        give_logits(f, &f->batch.seq[f->head_row[it->row0].seq],
                    f->logits + (size_t)it->row0 * f->c->n_vocab, w);
    else if (it->row0 < f->head_first[FWD_HEAD_PLAIN])
        run_plain(f, it, f->pooler + (it->row0 - f->head_first[FWD_HEAD_POOLER]) * d, w);
    else
        run_plain(f, it, f->pooled + it->row0 * d, w);
}

/* A site of the base over the rows of one class: the LM head or the pooler, whose norm
 * follows it if it has one. */
static void run_site(struct fwd_walk *w, enum fwd_head_class cls, const struct fwd_linear *lin)
{
    struct fwd *f = w->f;

    w->rows = &f->head[cls];
    if (w->rows->n_rows)
        fwd_linears(w, model_last_stack(f->c)->first_layer,
                    f->pooled + f->head_first[cls] * f->c->d_model, lin, 1);
    if (cls == FWD_HEAD_POOLER && f->m->site[site_make(0, SITE_POOLER_NORM)].n_out)
        fwd_norm(w, 0, SITE_POOLER_NORM, f->pooler, f->pooler);
}

void fwd__heads(struct fwd_walk *w)
{
    struct fwd *f = w->f;
    const struct fwd_linear lm = {SITE_LM_HEAD, f->logits, KERN_ACT_NONE};
    const struct fwd_linear pooler = {SITE_POOLER, f->pooler, f->c->pooler_act};
    const uint32_t n_rows = f->head_first[FWD_N_HEAD_CLASSES];
    size_t i;

    fwd__copies_end(w);
    pool_barrier(f->pool);
    while ((i = pool_claim(f->pool, f->due.n_parts)) < f->due.n_parts)
        add_to_mean(f, i);
    pool_barrier(f->pool);
    while ((i = pool_claim(f->pool, n_rows)) < n_rows)
        pool_row(f, &f->worker[w->worker], (uint32_t)i);
    run_site(w, FWD_HEAD_LM, &lm);
    run_site(w, FWD_HEAD_POOLER, &pooler);
    pool_barrier(f->pool);
    while ((i = pool_claim(f->pool, f->n_head_items)) < f->n_head_items)
        run_head_item(f, &f->head_item[i], w->worker);
    if (f->k->rest) /* a step ends with the heads, whichever way it is computed */
        f->k->rest();
}
