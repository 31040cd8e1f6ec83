/* core/delta/delta_arena.c - the finished delta: operations in order, everything that
 * they point to behind them, one allocation.
 *
 *   struct delta | ops | site_first | label pointers | strings | data, op by op
 *
 * One function walks over all pointers of an operation (op_blocks), another over those
 * of the head; sizing and copying are two visits of the same walk, so they cannot
 * disagree. */
#include <stdlib.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/delta/delta_builder.h"

/* A walk: base NULL counts, else copies to base + at. */
struct arena {
    unsigned char *base;
    size_t at;
    bool is_full; /* the sum overflowed */
};

static void *arena_take(struct arena *a, size_t n_bytes, size_t align)
{
    const size_t start = (a->at + align - 1) & ~(align - 1);

    if (start < a->at || !core_add_size(start, n_bytes, &a->at)) {
        a->is_full = true;
        return NULL;
    }
    return a->base ? a->base + start : NULL;
}

static void move_block(struct arena *a, const void **p, size_t n_bytes, size_t align)
{
    void *to;

    if (!*p)
        return;
    to = arena_take(a, n_bytes, align);
    if (to) {
        if (n_bytes)
            memcpy(to, *p, n_bytes);
        *p = to;
    }
}

static void move_mat(struct arena *a, struct delta_mat *m)
{
    size_t n;

    if (!core_mul_size(m->n_rows, m->n_cols, &n) ||
        !core_mul_size(n, tensor_type_block_bytes(m->type), &n))
        a->is_full = true;
    else
        move_block(a, &m->data, n, 64);
}

static void move_floats(struct arena *a, const float **p, size_t n)
{
    const void *v = *p;

    move_block(a, &v, n * sizeof(float), 16);
    *p = v;
}

static void move_ints(struct arena *a, const uint32_t **p, size_t n)
{
    const void *v = *p;

    move_block(a, &v, n * sizeof(uint32_t), 16);
    *p = v;
}

/* A join belongs to one operation, so it moves with it. */
static void move_join(struct arena *a, const struct delta_join **p, size_t d)
{
    struct delta_join *j;

    if (!*p)
        return;
    j = arena_take(a, sizeof(*j), _Alignof(struct delta_join));
    struct delta_join copy = **p;
    move_floats(a, &copy.ln_before_gamma, d);
    move_floats(a, &copy.ln_before_beta, d);
    move_floats(a, &copy.ln_after_gamma, d);
    move_floats(a, &copy.ln_after_beta, d);
    if (j) {
        *j = copy;
        *p = j;
    }
}

static void op_blocks(struct arena *a, struct delta_op *op, size_t n_in, size_t n_out)
{
    const size_t start = a->at;
    size_t n;

    switch (op->kind) {
    case DELTA_LOWRANK:
        move_mat(a, &op->lowrank.down);
        move_mat(a, &op->lowrank.up);
        move_floats(a, &op->lowrank.down_bias, op->lowrank.down.n_rows);
        move_floats(a, &op->lowrank.up_bias, n_out);
        move_floats(a, &op->lowrank.scale_vec, n_out);
        move_join(a, &op->lowrank.join, n_out);
        break;
    case DELTA_BIAS:
        move_floats(a, &op->bias.vec, n_out);
        break;
    case DELTA_SCALE:
        move_floats(a, &op->scale.vec, op->scale.at == DELTA_SCALE_IN ? n_in : n_out);
        break;
    case DELTA_SPARSE:
        n = site_kind_class(site_kind_of(op->site)) == SITE_CLASS_EMBED ? n_in : n_out;
        move_ints(a, &op->sparse.row_ptr, n + 1);
        move_ints(a, &op->sparse.col, op->sparse.n_values);
        move_floats(a, &op->sparse.val, op->sparse.n_values);
        break;
    case DELTA_NORM:
        move_floats(a, &op->norm.gamma, n_out);
        move_floats(a, &op->norm.beta, n_out);
        break;
    case DELTA_KV_PREFIX:
        n = op->kv_prefix.n_tokens * n_out;
        move_floats(a, &op->kv_prefix.k, n);
        move_floats(a, &op->kv_prefix.v, n);
        break;
    default:
        break; /* the builder makes no other kind */
    }
    op->n_bytes = a->at - start;
}

static void move_str(struct arena *a, const char **s)
{
    const void *v = *s;

    move_block(a, &v, *s ? strlen(*s) + 1 : 0, 1);
    *s = v;
}

static void head_blocks(struct arena *a, struct delta_head *h)
{
    const char **label = NULL;

    if (h->label) {
        label = arena_take(a, h->n_labels * sizeof(*label), _Alignof(char *));
        for (unsigned i = 0; i < h->n_labels; i++) {
            const char *s = h->label[i];

            move_str(a, &s);
            if (label)
                label[i] = s;
        }
        if (label)
            h->label = label;
    }
    for (unsigned i = 0; i < h->n_steps; i++) {
        struct delta_head_step *s = &h->step[i];

        move_mat(a, &s->w);
        move_floats(a, &s->bias, s->w.n_rows);
        move_floats(a, &s->gamma, s->w.n_rows);
        move_floats(a, &s->beta, s->w.n_rows);
    }
}

/* ---- order -------------------------------------------------------------------- */

/* The order of application within a site (delta.h). */
static int op_rank(const struct delta_op *op)
{
    switch (op->kind) {
    case DELTA_SPARSE:
        return 1;
    case DELTA_BIAS:
        return 3;
    case DELTA_LOWRANK:
        return 4;
    case DELTA_SCALE:
        return op->scale.at == DELTA_SCALE_IN ? 0 : op->scale.at == DELTA_SCALE_PRE ? 2 : 5;
    default:
        return 6;
    }
}

static int op_compare(const void *pa, const void *pb)
{
    const struct delta_op *a = pa, *b = pb;

    if (a->site != b->site)
        return a->site < b->site ? -1 : 1;
    return op_rank(a) - op_rank(b);
}

/* No site has two operations of one rank, so the order is total. */
static int sort_ops(struct delta_builder *b)
{
    char path[160];

    if (b->n_ops)
        qsort(b->op, b->n_ops, sizeof(*b->op), op_compare);
    for (size_t i = 1; i < b->n_ops; i++)
        if (op_compare(&b->op[i - 1], &b->op[i]) == 0)
            return core_err_set(b->err, CORE_E_ADAPTER_INVALID, "the adapter has two %s for %s",
                                delta_op_text(b->op[i].kind),
                                model_site_path(b->m, b->op[i].site, path, sizeof(path)));
    return 0;
}

static unsigned first_layer(const struct delta_builder *b, unsigned n_layers)
{
    unsigned first = n_layers;

    for (size_t i = 0; i < b->n_ops; i++) {
        const enum site_kind kind = site_kind_of(b->op[i].site);

        if (kind == SITE_FINAL_NORM || kind == SITE_POOLER || kind == SITE_LM_HEAD)
            continue; /* after the layers */
        if (site_layer_of(b->op[i].site) < first)
            first = site_layer_of(b->op[i].site);
    }
    return first;
}

/* ---- the delta ------------------------------------------------------------------ */

/* Lays the delta out; into a->base when that is set. */
static void lay_out(struct delta_builder *b, struct arena *a, struct delta *d, uint32_t n_sites)
{
    struct delta_op *op;
    uint32_t *first;

    arena_take(a, sizeof(*d), 64);
    op = arena_take(a, b->n_ops * sizeof(*op), _Alignof(struct delta_op));
    first = arena_take(a, (n_sites + 1u) * sizeof(*first), sizeof(*first));
    if (op && b->n_ops)
        memcpy(op, b->op, b->n_ops * sizeof(*op));
    head_blocks(a, &d->head);
    move_str(a, &d->task.prompt);
    move_str(a, &d->task.parameters_json);
    for (size_t i = 0; i < b->n_ops; i++) {
        struct delta_op *o = op ? &op[i] : &b->op[i];
        size_t n_in, n_out;

        if (model_site_dims(b->m, o->site, &n_in, &n_out))
            op_blocks(a, o, n_in, n_out);
    }
    for (size_t s = 0, i = 0; first && s <= n_sites; s++) {
        while (i < b->n_ops && op[i].site < s)
            i++;
        first[s] = (uint32_t)i;
    }
    d->op = op;
    d->site_first = first;
}

int delta__finish(struct delta_builder *b, struct delta **out)
{
    const unsigned n_layers = model_config(b->m)->n_layers;
    struct delta d = {
        .n_ops = (uint32_t)b->n_ops,
        .n_sites = (n_layers ? n_layers : 1) * SITE_N_KINDS,
        .position_shift = b->position_shift,
        .ignores_token_types = b->ignores_token_types,
        .head = b->head,
        .task = b->task,
    };
    struct arena a = {0};
    int rc = sort_ops(b);

    if (rc < 0)
        return rc;
    memcpy(d.method, b->method, sizeof(d.method));
    d.first_layer = first_layer(b, n_layers);
    for (size_t i = 0; i < b->n_ops; i++)
        if (b->op[i].kind == DELTA_KV_PREFIX && b->op[i].kv_prefix.n_tokens > d.n_prefix_max)
            d.n_prefix_max = b->op[i].kv_prefix.n_tokens;
    lay_out(b, &a, &d, d.n_sites);
    d.n_bytes = a.at;
    if (!a.is_full)
        a.base = core_alloc_aligned(a.at);
    if (!a.base)
        return core_err_nomem(b->err, "adapter");
    a.at = 0;
    lay_out(b, &a, &d, d.n_sites);
    memcpy(a.base, &d, sizeof(d));
    *out = (struct delta *)a.base;
    return 0;
}
