/* core/delta/delta_arena.c - the finished delta: its tables and everything that they
 * point to, in one allocation.
 *
 *   struct delta | slots | tables | lines | labels | strings | data, entry by entry
 *
 * delta_slots.c has made the tables in scratch memory. Here one function for each kind
 * of entry walks over its pointers; sizing and copying are two visits of the same walk,
 * so they cannot disagree. */
#include <stdatomic.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/delta/delta_builder.h"

/* Of a value of any form, what fills up a panel included: 32 outputs of two bytes for one, and a
 * second rank. */
enum { MAT_VALUE_BYTES_MAX = 128 };

/* Parts of shared matrices that are kept once; of more each operation has its own. VeRA's pair has
 * one for each width of the family's linears and their parts, some ten. */
enum { MOVED_MAX = 64 };

/* A walk: base NULL counts, else copies to base + at. */
struct arena {
    const struct delta_builder *b;
    unsigned char *base;
    size_t at;
    struct {
        struct delta_mat from;
        const void *to; /* where it has been copied to; of a counting walk nowhere */
    } moved[MOVED_MAX];
    unsigned n_moved;
    void *rows; /* of a matrix that is transposed before it is packed: [n_rows_bytes], the most */
    size_t n_rows_bytes;
    bool is_full; /* the sum overflowed */
};

static void *arena_take(struct arena *a, size_t n_bytes, size_t align)
{
    const size_t from = a->at, start = (from + align - 1) & ~(align - 1);

    if (start < from || !core_add_size(start, n_bytes, &a->at)) {
        a->is_full = true;
        return NULL;
    }
    if (!a->base)
        return NULL;
    memset(a->base + from, 0, start - from); /* the caller writes the rest */
    return a->base + start;
}

/* Copies n_bytes and lets *p point to the copy; in a counting walk *p stays. */
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

/* A typed pointer through move_block(). */
#define MOVE(a, p, n)                                                          \
    do {                                                                       \
        const void *v_ = (p);                                                  \
        move_block(a, &v_, (size_t)(n) * sizeof(*(p)), _Alignof(max_align_t)); \
        (p) = v_;                                                              \
    } while (0)

/* Rows are aligned and, if the file has them turned, transposed on the way, or packed
 * (delta_factors.c). */
static void move_values(struct arena *a, struct delta_mat *m)
{
    const bool is_packed = m->form != GEMM_FACTOR_ROWS, is_two = is_packed && m->is_turned;
    struct gemm_factor rows = delta_factor(m);
    void *to = m->data ? arena_take(a, delta_mat_bytes(m), 64) : NULL;
    size_t n_bytes;

    rows.form = GEMM_FACTOR_ROWS;
    n_bytes = gemm_factor_bytes(&rows);
    if (is_two && n_bytes > a->n_rows_bytes)
        a->n_rows_bytes = n_bytes;
    if (!to)
        return;
    if (is_two) {
        delta__rows(m, a->rows);
        rows.data = a->rows;
    }
    if (is_packed)
        gemm_factor_pack(model_kern(a->b->m), &rows, m->form, to);
    else
        delta__rows(m, to);
    m->data = to;
    m->is_turned = false;
}

/* Whether two are the same part of a shared matrix, in one form. */
static bool is_same(const struct delta_mat *a, const struct delta_mat *b)
{
    return a->data == b->data && a->n_rows == b->n_rows && a->n_cols == b->n_cols &&
           a->form == b->form && a->type == b->type && a->is_turned == b->is_turned;
}

static void move_mat(struct arena *a, struct delta_mat *m)
{
    const struct delta_mat from = *m;
    const bool is_shared = delta__is_shared(a->b, m);
    size_t n;

    for (unsigned i = 0; is_shared && i < a->n_moved; i++)
        if (is_same(&a->moved[i].from, m)) {
            m->data = a->moved[i].to;
            m->is_turned = false;
            return;
        }
    if (!core_mul_size(m->n_rows, m->n_cols, &n) || n > SIZE_MAX / MAT_VALUE_BYTES_MAX)
        a->is_full = true;
    else
        move_values(a, m);
    if (is_shared && a->n_moved < MOVED_MAX) {
        a->moved[a->n_moved].from = from;
        a->moved[a->n_moved++].to = m->data;
    }
}

static void move_lowrank(struct arena *a, struct delta_lowrank *l, size_t n_in)
{
    MOVE(a, l->gate.w, n_in);
    move_mat(a, &l->down);
    move_mat(a, &l->up);
    move_mat(a, &l->left);
    MOVE(a, l->down_bias, l->up.n_rows);
    MOVE(a, l->up_bias, l->up.n_cols);
    MOVE(a, l->rank_scale, l->up.n_rows);
    MOVE(a, l->scale_vec, l->up.n_cols);
}

/* The entries of a table that is in the arena may be changed; those of a counting walk
 * are the builder's and are copied for the visit. */
static void move_lowranks(struct arena *a, const struct delta_lowrank **list, uint32_t n,
                          size_t n_in)
{
    MOVE(a, *list, n);
    for (uint32_t i = 0; i < n; i++) {
        struct delta_lowrank copy = (*list)[i];

        move_lowrank(a, &copy, n_in);
        if (a->base)
            ((struct delta_lowrank *)*list)[i] = copy;
    }
}

static void move_sparse(struct arena *a, const struct delta_sparse **s, size_t n_rows)
{
    struct delta_sparse copy;

    if (!*s)
        return;
    MOVE(a, *s, 1);
    copy = **s;
    MOVE(a, copy.row_ptr, n_rows + 1);
    MOVE(a, copy.col, copy.n_values);
    MOVE(a, copy.val, copy.n_values);
    if (a->base)
        *(struct delta_sparse *)*s = copy;
}

static void move_cells(struct arena *a, const struct gemm_sparse **s, size_t n_out)
{
    struct gemm_sparse copy;
    size_t n_cells, n_values;

    if (!*s)
        return;
    MOVE(a, *s, 1);
    copy = **s;
    n_cells = gemm_sparse_cells(copy.n_in, n_out);
    n_values = copy.begin[n_cells];
    MOVE(a, copy.begin, n_cells + 1);
    MOVE(a, copy.place, n_values);
    MOVE(a, copy.value, n_values);
    if (a->base)
        *(struct gemm_sparse *)*s = copy;
}

static void move_rowset(struct arena *a, const struct delta_rowset **s, size_t width)
{
    struct delta_rowset copy;

    if (!*s)
        return;
    MOVE(a, *s, 1);
    copy = **s;
    MOVE(a, copy.id, copy.n);
    MOVE(a, copy.row, copy.n * width);
    if (a->base)
        *(struct delta_rowset *)*s = copy;
}

static void move_turns(struct arena *a, struct delta_linear *l, size_t n_out)
{
    struct delta_blocks in;
    struct delta_pairs out;

    if (l->turn_in) {
        MOVE(a, l->turn_in, 1);
        in = *l->turn_in;
        move_mat(a, &in.change);
        if (a->base)
            *(struct delta_blocks *)l->turn_in = in;
    }
    if (l->turn_out) {
        MOVE(a, l->turn_out, 1);
        out = *l->turn_out;
        MOVE(a, out.own, n_out);
        MOVE(a, out.other, n_out);
        if (a->base)
            *(struct delta_pairs *)l->turn_out = out;
    }
}

static void move_linear(struct arena *a, struct delta_linear *l, size_t n_in, size_t n_out)
{
    move_turns(a, l, n_out);
    MOVE(a, l->scale_in, n_in);
    move_rowset(a, &l->rowset, n_in);
    move_cells(a, &l->sparse, n_out);
    MOVE(a, l->scale_pre, n_out);
    MOVE(a, l->bias, n_out);
    move_lowranks(a, &l->lowrank, l->n_lowrank, n_in);
    MOVE(a, l->scale_out, n_out);
}

static void move_bottleneck(struct arena *a, struct delta_bottleneck *b, size_t d)
{
    move_lowrank(a, &b->a, d);
    MOVE(a, b->ln_before_gamma, d);
    MOVE(a, b->ln_before_beta, d);
    MOVE(a, b->ln_after_gamma, d);
    MOVE(a, b->ln_after_beta, d);
}

static void move_fusion(struct arena *a, const struct delta_fusion **f, size_t d)
{
    struct delta_fusion copy;

    if (!*f)
        return;
    MOVE(a, *f, 1);
    copy = **f;
    move_mat(a, &copy.query);
    move_mat(a, &copy.key);
    move_mat(a, &copy.value);
    MOVE(a, copy.query_bias, d);
    MOVE(a, copy.key_bias, d);
    if (a->base)
        *(struct delta_fusion *)*f = copy;
}

static void move_reft(struct arena *a, const struct delta_reft **r)
{
    struct delta_reft copy;

    if (!*r)
        return;
    MOVE(a, *r, 1);
    copy = **r;
    for (int i = 0; i < 2; i++) {
        move_mat(a, &copy.unit[i].source);
        move_mat(a, &copy.unit[i].projection);
        MOVE(a, copy.unit[i].bias, copy.unit[i].source.n_rows);
    }
    if (a->base)
        *(struct delta_reft *)*r = copy;
}

static void move_coupling(struct arena *a, const struct delta_coupling **c)
{
    struct delta_coupling copy;

    if (!*c)
        return;
    MOVE(a, *c, 1);
    copy = **c;
    move_lowrank(a, &copy.f, 0);
    move_lowrank(a, &copy.g, 0);
    if (a->base)
        *(struct delta_coupling *)*c = copy;
}

static void move_join(struct arena *a, struct delta_join *j, size_t d)
{
    MOVE(a, j->adapter, j->n_adapters);
    for (uint32_t i = 0; i < j->n_adapters; i++) {
        struct delta_bottleneck copy = j->adapter[i];

        move_bottleneck(a, &copy, d);
        if (a->base)
            ((struct delta_bottleneck *)j->adapter)[i] = copy;
    }
    MOVE(a, j->step, j->n_steps);
    for (uint32_t i = 0; i < j->n_steps; i++) {
        const struct delta_fusion *f = j->step[i].fusion;

        move_fusion(a, &f, d);
        if (a->base)
            ((struct delta_join_step *)j->step)[i].fusion = f;
    }
    move_reft(a, &j->reft);
}

static void move_str(struct arena *a, const char **s)
{
    const void *v = *s;

    move_block(a, &v, *s ? strlen(*s) + 1 : 0, 1);
    *s = v;
}

static void move_head(struct arena *a, struct delta_head *h)
{
    MOVE(a, h->label, h->n_labels);
    for (unsigned i = 0; h->label && i < h->n_labels; i++) {
        const char *s = h->label[i];

        move_str(a, &s);
        if (a->base)
            ((const char **)h->label)[i] = s;
    }
    for (unsigned i = 0; i < h->n_steps; i++) {
        struct delta_head_step *s = &h->step[i];

        move_mat(a, &s->w);
        MOVE(a, s->bias, s->w.n_rows);
        MOVE(a, s->gamma, s->w.n_rows);
        MOVE(a, s->beta, s->w.n_rows);
    }
}

/* The entry of a site in its table, and all that it points to. */
static void move_entry(const struct delta_builder *b, struct arena *a, struct delta *d,
                       site_id site)
{
    const uint32_t i = d->slot[site] - 1u;
    size_t n_in, n_out;
    union {
        struct delta_linear linear;
        struct delta_norm norm;
        struct delta_join join;
        struct delta_embed embed;
        struct delta_prefix prefix;
    } u;

    if (!model_site_dims(b->m, site, &n_in, &n_out))
        return;
    switch (site_kind_class(site_kind_of(site))) {
    case SITE_CLASS_LINEAR:
        u.linear = d->linear[i];
        move_linear(a, &u.linear, n_in, n_out);
        if (a->base)
            ((struct delta_linear *)d->linear)[i] = u.linear;
        break;
    case SITE_CLASS_NORM:
        u.norm = d->norm[i];
        MOVE(a, u.norm.gamma, n_out);
        MOVE(a, u.norm.beta, n_out);
        if (a->base)
            ((struct delta_norm *)d->norm)[i] = u.norm;
        break;
    case SITE_CLASS_JOIN:
        u.join = d->join[i];
        move_join(a, &u.join, n_out);
        if (a->base)
            ((struct delta_join *)d->join)[i] = u.join;
        break;
    case SITE_CLASS_EMBED:
        u.embed = d->embed[i];
        move_lowranks(a, &u.embed.lowrank, u.embed.n_lowrank, n_in);
        move_coupling(a, &u.embed.coupling);
        move_sparse(a, &u.embed.sparse, n_in);
        move_rowset(a, &u.embed.rowset, n_out);
        MOVE(a, u.embed.scale, n_out);
        MOVE(a, u.embed.soft, u.embed.n_soft * n_out);
        if (a->base)
            ((struct delta_embed *)d->embed)[i] = u.embed;
        break;
    case SITE_CLASS_ATTN:
        u.prefix = d->prefix[i];
        MOVE(a, u.prefix.k, u.prefix.n_tokens * n_out);
        MOVE(a, u.prefix.v, u.prefix.n_tokens * n_out);
        for (int k = 0; k < 2; k++)
            MOVE(a, u.prefix.gate[k].w, model_config(b->m)->d_model);
        if (a->base)
            ((struct delta_prefix *)d->prefix)[i] = u.prefix;
        break;
    }
}

static void move_all(const struct delta_builder *b, struct arena *a, struct delta *d)
{
    const struct model_config *c = model_config(b->m);
    const size_t n_distances = c->n_heads * (2 * (size_t)c->distances.max + 1);

    arena_take(a, sizeof(*d), 64);
    MOVE(a, d->slot, d->n_sites);
    MOVE(a, d->linear, d->n_linear);
    MOVE(a, d->norm, d->n_norm);
    MOVE(a, d->join, d->n_join);
    MOVE(a, d->embed, d->n_embed);
    MOVE(a, d->prefix, d->n_prefix);
    for (unsigned k = 0; k < MODEL_STACKS_MAX; k++)
        MOVE(a, d->distance[k], n_distances);
    MOVE(a, d->line, d->n_lines);
    move_head(a, &d->head);
    move_str(a, &d->task.prompt);
    move_str(a, &d->task.parameters_json);
    MOVE(a, d->invocation, d->n_invocation);
    for (uint32_t s = 0; s < d->n_sites; s++)
        if (d->slot[s])
            move_entry(b, a, d, (site_id)s);
}

/* The weights of DENSE change their owner. */
static void hand_over(struct delta_builder *b, struct delta *d)
{
    for (size_t i = 0; i < b->n_ops; i++) {
        if (b->op[i].kind != DELTA_DENSE)
            continue;
        d->n_bytes += gemm_weight_bytes(b->op[i].dense);
        b->op[i].dense = NULL;
    }
}

uint64_t delta__new_serial(void)
{
    static atomic_uint_fast64_t last;

    return atomic_fetch_add_explicit(&last, 1, memory_order_relaxed) + 1;
}

int delta__finish(struct delta_builder *b, struct delta **out)
{
    const unsigned n_layers = model_config(b->m)->n_layers;
    struct delta d = {
        .serial = delta__new_serial(),
        .n_sites = (n_layers ? n_layers : 1) * SITE_N_KINDS,
        .position_shift = b->position_shift,
        .ignores_token_types = b->ignores_token_types,
        .n_vocab = b->n_vocab ? (uint32_t)b->n_vocab : model_config(b->m)->n_vocab,
        .invocation = b->invocation,
        .n_invocation = b->n_invocation,
        .head = b->head,
        .task = b->task,
    };
    struct arena a = {.b = b};
    int rc = delta__lay_out_factors(b);

    if (rc == 0)
        rc = delta__settle(b, &d);
    memcpy(d.method, b->method, sizeof(d.method));
    memcpy(d.made_for, b->made_for, sizeof(d.made_for));
    if (rc == 0)
        rc = delta__lines(b, &d);
    if (rc < 0)
        return rc;
    move_all(b, &a, &d);
    d.n_bytes = a.at;
    a.rows = a.n_rows_bytes ? delta__scratch(b, a.n_rows_bytes, 1) : NULL;
    if (a.n_rows_bytes && !a.rows)
        return CORE_E_NOMEM;
    if (!a.is_full)
        a.base = core_malloc_large(a.at);
    if (!a.base)
        return core_err_nomem(b->err, "adapter");
    a.at = a.n_moved = 0;
    move_all(b, &a, &d);
    hand_over(b, &d);
    memcpy(a.base, &d, sizeof(d));
    *out = (struct delta *)a.base;
    return 0;
}
