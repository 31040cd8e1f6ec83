/* core/delta/delta_ops.c - operations, held against the model's sites. The only place
 * that decides what may attach where and which shapes it must have. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/delta/delta_builder.h"

struct delta__op *delta__push_op(struct delta_builder *b, enum delta_op_kind kind, site_id site)
{
    if (b->n_ops == b->cap_ops) {
        const size_t cap = b->cap_ops ? 2 * b->cap_ops : 32;
        size_t n_bytes;
        struct delta__op *op = NULL;

        if (core_mul_size(cap, sizeof(*op), &n_bytes))
            op = core_realloc(b->op, n_bytes);
        if (!op) {
            core_err_nomem(b->err, "adapter");
            return NULL;
        }
        b->op = op;
        b->cap_ops = cap;
    }
    b->op[b->n_ops] = (struct delta__op){.kind = kind, .site = site, .order = (uint32_t)b->n_ops};
    return &b->op[b->n_ops++];
}

/* `other` is a second class where the operation may stand, or the same again. */
static int check_class(struct delta_builder *b, const struct delta__place *p,
                       enum delta_op_kind kind, enum site_class cls, enum site_class other)
{
    const enum site_class got = site_kind_class(site_kind_of(p->site));
    char path[160];

    if (got == cls || got == other)
        return 0;
    return core_err_set_param(
        b->err, CORE_E_ADAPTER_UNSUPPORTED, p->t->name, "tensor %s: %s is not computed at %s",
        p->t->name, delta_op_text(kind), model_site_path(b->m, p->site, path, sizeof(path)));
}

int delta__check_linear(struct delta_builder *b, const struct delta__place *p,
                        enum delta_op_kind kind)
{
    return check_class(b, p, kind, SITE_CLASS_LINEAR, SITE_CLASS_LINEAR);
}

static bool is_embed(const struct delta__place *p)
{
    return site_kind_class(site_kind_of(p->site)) == SITE_CLASS_EMBED;
}

/* A vector of n values from a 1-dimensional tensor, or NULL if there is none. */
static int vector_may(struct delta_builder *b, const struct tensor *t, size_t n, const float **out)
{
    int rc;

    *out = NULL;
    if (!t)
        return 0;
    rc = delta__expect(b, t, 1, n, 0);
    return rc < 0 ? rc : delta__floats(b, t, out);
}

/* The scratch memory of every batch grows with the largest rank that is loaded. */
int delta__check_rank(struct delta_builder *b, const struct delta__place *p, const struct tensor *t,
                      size_t rank)
{
    enum { RANK_PER_WIDTH = 8 };
    const size_t width = p->n_in > p->n_out ? p->n_in : p->n_out;

    if (rank == 0 || (rank - 1) / RANK_PER_WIDTH < width)
        return 0;
    return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, t->name,
                              "tensor %s: got rank %zu, expected at most %d times the module's "
                              "width, %zu",
                              t->name, rank, (int)RANK_PER_WIDTH, width);
}

/* up's columns of part i of a module: rows of the file. */
static struct delta_mat up_of_part(struct delta_builder *b, const struct delta__place *p,
                                   unsigned i, const struct delta_mat *up)
{
    const size_t row = up->n_rows * tensor_type_block_bytes(up->type);
    struct delta_mat part = *up;
    size_t n_in, n_out;

    assert(up->is_turned);
    model_site_dims(b->m, p->mod.site[i], &n_in, &n_out);
    part.data = (const unsigned char *)up->data + p->mod.row0[i] * row;
    part.n_cols = (uint32_t)n_out;
    return part;
}

static int read_lowrank(struct delta_builder *b, const struct delta__place *p,
                        const struct delta__lowrank *in, size_t rank, struct delta_lowrank *a)
{
    int rc;

    *a = (struct delta_lowrank){.scale = in->scale,
                                .act = in->act,
                                .rank_scale = in->rank_scale,
                                .is_invoked = in->is_invoked};
    rc = is_embed(p) ? delta__matrix_transposed(b, in->down, p->n_in, rank, &a->down)
                     : delta__matrix(b, in->down, rank, p->n_in, &a->down);
    if (rc == 0)
        rc = delta__matrix_transposed(b, in->up, rank, p->n_out, &a->up);
    if (rc == 0)
        rc = vector_may(b, in->down_bias, rank, &a->down_bias);
    if (rc == 0)
        rc = vector_may(b, in->up_bias, p->n_out, &a->up_bias);
    if (rc == 0)
        rc = vector_may(b, in->scale_vec, p->n_out, &a->scale_vec);
    if (rc == 0 && in->gate_w)
        rc = delta__gate(b, in->gate_w, in->gate_b, 0, 1, p->n_in, &a->gate);
    return rc;
}

int delta__gate(struct delta_builder *b, const struct tensor *w, const struct tensor *bias,
                size_t row, size_t n_rows, size_t n_in, struct delta_gate *out)
{
    const float *value, *add;
    int rc = delta__expect(b, w, 2, n_rows, n_in);

    if (rc == 0)
        rc = delta__expect(b, bias, 1, n_rows, 0);
    if (rc == 0)
        rc = delta__floats(b, w, &value);
    if (rc == 0)
        rc = delta__floats(b, bias, &add);
    if (rc == 0)
        *out = (struct delta_gate){.w = value + row * n_in, .b = add[row], .at = b->n_gates++};
    return rc;
}

/* For a gate relative distances are an input of their own, whose rows are always the whole
 * table. */
static int gate_of_distances(struct delta_builder *b, struct delta_gate *gate)
{
    const struct model_config *c = model_config(b->m);
    const struct kern_table *k = model_kern(b->m);
    const site_id table = site_make(0, SITE_REL_EMBED), norm = site_make(0, SITE_REL_NORM);
    const unsigned n = 2 * c->relative.span;
    float *x = delta__scratch(b, c->d_model, sizeof(*x)), sum = 0.0f;

    if (!x)
        return CORE_E_NOMEM;
    for (unsigned i = 0; i < n; i++) {
        float z;

        model_weight_row(b->m, table, i, x);
        if (c->relative.has_norm)
            k->layer_norm(c->d_model, x, model_norm_gamma(b->m, norm), model_norm_beta(b->m, norm),
                          c->norm_eps, x);
        z = k->dot(c->d_model, gate->w, x) + gate->b;
        k->act(KERN_ACT_SIGMOID, 1, &z, &z);
        sum += z;
    }
    gate->of_distances = sum / (float)n;
    return 0;
}

/* Queries or keys of relative distances come from this linear too. */
static bool is_of_distances(const struct model_config *c, site_id site)
{
    const struct model_relative *r = &c->relative;

    return r->span && !r->has_own &&
           ((r->has_p2c && site_kind_of(site) == SITE_Q) ||
            (r->has_c2p && site_kind_of(site) == SITE_K));
}

int delta__invocation(struct delta_builder *b, const char *key, const double *value, size_t n)
{
    const unsigned most = model_config(b->m)->n_vocab + DELTA_OWN_IDS_MAX;
    int32_t *id = NULL;

    if (n == 0 || n > DELTA_INVOCATION_MAX)
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, key,
                                  "%s: expected 1 to %d tokens, got %zu", key, DELTA_INVOCATION_MAX,
                                  n);
    id = delta__scratch(b, n, sizeof(*id));
    if (!id)
        return CORE_E_NOMEM;
    for (size_t i = 0; i < n; i++) {
        if (!(value[i] >= 0.0 && value[i] < most) || value[i] != floor(value[i]))
            return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, key,
                                      "%s: number %zu is not an id of this vocabulary (%u)", key, i,
                                      model_config(b->m)->n_vocab);
        id[i] = (int32_t)value[i];
    }
    b->invocation = id;
    b->n_invocation = (uint32_t)n;
    return 0;
}

int delta__add_lowrank(struct delta_builder *b, const struct delta__place *p,
                       const struct delta__lowrank *in)
{
    const size_t rank = in->down->n_dims == 2 ? in->down->dim[0] : 0;
    struct delta_lowrank all;
    int rc = in->join ? check_class(b, p, DELTA_LOWRANK, SITE_CLASS_JOIN, SITE_CLASS_JOIN)
                      : check_class(b, p, DELTA_LOWRANK, SITE_CLASS_LINEAR, SITE_CLASS_EMBED);

    if (rc < 0)
        return rc;
    if (rank == 0)
        return delta__misfit(b, in->down, "[rank, inputs] with a rank of 1 or more");
    if (site_kind_of(p->site) == SITE_REL_EMBED)
        return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, p->t->name,
                                  "tensor %s: the library reads this table without it", p->t->name);
    if (in->is_invoked && site_kind_class(site_kind_of(p->site)) != SITE_CLASS_LINEAR)
        return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, p->t->name,
                                  "tensor %s: the library activates only linears", p->t->name);
    if (in->rank_scale && site_kind_class(site_kind_of(p->site)) != SITE_CLASS_LINEAR)
        return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, p->t->name,
                                  "tensor %s: the library has such vectors at linears only",
                                  p->t->name);
    rc = delta__check_rank(b, p, in->down, rank);
    if (rc == 0)
        rc = read_lowrank(b, p, in, rank, &all);
    if (rc == 0 && in->gate_w && is_of_distances(model_config(b->m), p->site))
        rc = gate_of_distances(b, &all.gate);
    for (unsigned i = 0; rc == 0 && i < p->mod.n_parts; i++) {
        struct delta__op *op = delta__push_op(b, DELTA_LOWRANK, p->mod.site[i]);

        if (!op)
            return CORE_E_NOMEM;
        op->lowrank.a = all;
        op->lowrank.join = in->join;
        op->lowrank.step = b->step;
        op->lowrank.member = b->member;
        op->lowrank.a.up_bias = all.up_bias ? all.up_bias + p->mod.row0[i] : NULL;
        op->lowrank.a.scale_vec = all.scale_vec ? all.scale_vec + p->mod.row0[i] : NULL;
        op->lowrank.a.up = up_of_part(b, p, i, &all.up);
    }
    return rc;
}

int delta__add_bias(struct delta_builder *b, const struct delta__place *p, const float *vec,
                    bool is_add)
{
    int rc = check_class(b, p, DELTA_BIAS, SITE_CLASS_LINEAR, SITE_CLASS_LINEAR);

    if (rc == 0 && !vec)
        rc = vector_may(b, p->t, p->n_out, &vec);
    for (unsigned i = 0; rc == 0 && i < p->mod.n_parts; i++) {
        struct delta__op *op = delta__push_op(b, DELTA_BIAS, p->mod.site[i]);

        if (!op)
            return CORE_E_NOMEM;
        op->bias.vec = vec + p->mod.row0[i];
        op->bias.is_add = is_add;
    }
    return rc;
}

int delta__add_scale(struct delta_builder *b, const struct delta__place *p, const float *vec,
                     enum delta__scale_at at)
{
    const int rc = check_class(b, p, DELTA_SCALE, SITE_CLASS_LINEAR,
                               at == DELTA__SCALE_PRE ? SITE_CLASS_EMBED : SITE_CLASS_LINEAR);

    for (unsigned i = 0; rc == 0 && i < p->mod.n_parts; i++) {
        struct delta__op *op = delta__push_op(b, DELTA_SCALE, p->mod.site[i]);

        if (!op)
            return CORE_E_NOMEM;
        op->scale.vec = at == DELTA__SCALE_IN ? vec : vec + p->mod.row0[i];
        op->scale.at = at;
    }
    return rc;
}

/* p->t as what a norm multiplies by: files hold it without the family's offset. */
static int read_gain(struct delta_builder *b, const struct delta__place *p, const float **vec)
{
    const float offset = model_config(b->m)->gain_offset;
    float *gain = delta__scratch(b, p->n_out, sizeof(*gain));
    int rc = gain ? vector_may(b, p->t, p->n_out, vec) : CORE_E_NOMEM;

    for (size_t i = 0; rc == 0 && i < p->n_out; i++)
        gain[i] = offset + (*vec)[i];
    *vec = gain;
    return rc;
}

/* The NORM of a site, made at the first of its two parameters. */
static struct delta__op *norm_op(struct delta_builder *b, site_id site)
{
    for (size_t i = 0; i < b->n_ops; i++)
        if (b->op[i].kind == DELTA_NORM && b->op[i].site == site)
            return &b->op[i];
    return delta__push_op(b, DELTA_NORM, site);
}

int delta__add_norm(struct delta_builder *b, const struct delta__place *p, enum site_part part,
                    const float *vec)
{
    const float **slot;
    struct delta__op *op;
    int rc = check_class(b, p, DELTA_NORM, SITE_CLASS_NORM, SITE_CLASS_NORM);

    if (rc == 0 && !vec)
        rc = part == SITE_PART_BIAS ? vector_may(b, p->t, p->n_out, &vec) : read_gain(b, p, &vec);
    if (rc < 0)
        return rc;
    if (part == SITE_PART_BIAS && !model_norm_beta(b->m, p->site))
        return core_err_set_param(b->err, CORE_E_ADAPTER_MISMATCH, p->t->name,
                                  "tensor %s: this norm of the base has no bias", p->t->name);
    op = norm_op(b, p->site);
    if (!op)
        return CORE_E_NOMEM;
    slot = part == SITE_PART_BIAS ? &op->norm.beta : &op->norm.gamma;
    if (*slot)
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, p->t->name,
                                  "tensor %s: this parameter is given twice", p->t->name);
    *slot = vec;
    return 0;
}

/* ---- sparse ------------------------------------------------------------------- */

int delta__sparse_pair(struct delta_builder *b, const struct tensor *idx, const struct tensor *val,
                       size_t n, const uint64_t **at, const float **value)
{
    const size_t n_values = idx->n_dims == 1 ? idx->dim[0] : 0;
    int64_t last = -1;
    int64_t *x;
    int rc;

    if (idx->n_dims != 1 || n_values > UINT32_MAX)
        return delta__misfit(b, idx, "[values], fewer than 2^32");
    rc = delta__expect(b, val, 1, n_values, 0);
    if (rc < 0)
        return rc;
    x = delta__scratch(b, n_values, sizeof(*x));
    if (!x)
        return CORE_E_NOMEM;
    if (!tensor_to_i64(idx, 0, n_values, x))
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, idx->name,
                                  "tensor %s: positions must be whole numbers, got %s", idx->name,
                                  tensor_type_text(idx->type));
    for (size_t i = 0; i < n_values; last = x[i++]) {
        if (x[i] <= last)
            return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, idx->name,
                                      "tensor %s: positions must be 0 or more and ascend; "
                                      "number %zu does not",
                                      idx->name, i);
        if ((uint64_t)x[i] >= n)
            return core_err_set_param(b->err, CORE_E_ADAPTER_MISMATCH, idx->name,
                                      "tensor %s: got position %lld, expected less than %zu",
                                      idx->name, (long long)x[i], n);
    }
    delta__take(b, idx);
    *at = (const uint64_t *)x;
    return delta__floats(b, val, value);
}

/* The values of part i of a module as CSR; at: positions in the stored parameter. An
 * entry (r, c) of the part stands at r * n_cols + c of a stored [rows, cols], or the
 * other way round in a transposed module. */
static int sparse_part(struct delta_builder *b, const struct delta__place *p, unsigned i,
                       const uint64_t *at, const float *value, size_t n, struct delta_sparse *out)
{
    const bool is_table = is_embed(p);
    const size_t n_cols = p->mod.is_transposed || is_table ? p->n_out : p->n_in;
    size_t n_in, n_out, n_rows, n_part = 0;
    uint32_t *row_ptr, *col, *next;
    float *val;

    model_site_dims(b->m, p->mod.site[i], &n_in, &n_out);
    n_rows = is_table ? n_in : n_out;
    row_ptr = delta__scratch(b, n_rows + 1, sizeof(*row_ptr));
    next = delta__scratch(b, n_rows, sizeof(*next));
    col = delta__scratch(b, n, sizeof(*col));
    val = delta__scratch(b, n, sizeof(*val));
    if (!row_ptr || !next || !col || !val)
        return CORE_E_NOMEM;
    for (int is_fill = 0; is_fill < 2; is_fill++) {
        for (size_t k = 0; k < n; k++) {
            const uint64_t hi = at[k] / n_cols, lo = at[k] % n_cols;
            const uint64_t row = (p->mod.is_transposed ? lo : hi) - p->mod.row0[i];

            if (row >= n_rows)
                continue; /* another part's */
            if (!is_fill) {
                row_ptr[row + 1]++;
                n_part++;
                continue;
            }
            col[next[row]] = (uint32_t)(p->mod.is_transposed ? hi : lo);
            val[next[row]++] = value[k];
        }
        for (size_t r = 0; !is_fill && r < n_rows; r++) {
            row_ptr[r + 1] += row_ptr[r];
            next[r] = row_ptr[r];
        }
    }
    *out = (struct delta_sparse){row_ptr, col, val, (uint32_t)n_part};
    return 0;
}

/* The values of a linear as products read them. */
static int sparse_cells(struct delta_builder *b, site_id site, const struct delta_sparse *rows,
                        struct gemm_sparse *out)
{
    size_t n_in, n_out;
    uint32_t *begin;
    uint16_t *place;
    float *value;

    model_site_dims(b->m, site, &n_in, &n_out);
    begin = delta__scratch(b, gemm_sparse_cells(n_in, n_out) + 1, sizeof(*begin));
    place = delta__scratch(b, rows->n_values, sizeof(*place));
    value = delta__scratch(b, rows->n_values, sizeof(*value));
    if (!begin || !place || !value)
        return CORE_E_NOMEM;
    gemm_sparse_pack(n_in, n_out, rows->row_ptr, rows->col, rows->val, begin, place, value);
    *out = (struct gemm_sparse){begin, place, value, n_in};
    return 0;
}

int delta__add_sparse(struct delta_builder *b, const struct delta__place *p,
                      const struct tensor *idx, const struct tensor *val)
{
    const uint64_t *at;
    const float *value;
    size_t n_flat;
    int rc = check_class(b, p, DELTA_SPARSE, SITE_CLASS_LINEAR, SITE_CLASS_EMBED);

    if (rc < 0)
        return rc;
    if (!core_mul_size(p->n_in, p->n_out, &n_flat))
        return core_err_nomem(b->err, idx->name);
    rc = delta__sparse_pair(b, idx, val, n_flat, &at, &value);
    for (unsigned i = 0; rc == 0 && i < p->mod.n_parts; i++) {
        struct delta__op *op = delta__push_op(b, DELTA_SPARSE, p->mod.site[i]);

        if (!op)
            return CORE_E_NOMEM;
        rc = sparse_part(b, p, i, at, value, idx->dim[0], &op->sparse.rows);
        if (rc == 0 && !is_embed(p))
            rc = sparse_cells(b, p->mod.site[i], &op->sparse.rows, &op->sparse.cells);
    }
    return rc;
}

/* ---- rows ---------------------------------------------------------------------- */

int delta__add_rowset(struct delta_builder *b, const struct delta__place *p, const uint32_t *id,
                      const float *row, size_t n)
{
    const bool is_head = site_kind_of(p->site) == SITE_LM_HEAD;
    const int rc = check_class(b, p, DELTA_ROWSET, SITE_CLASS_EMBED,
                               is_head ? SITE_CLASS_LINEAR : SITE_CLASS_EMBED);
    struct delta__op *op = rc == 0 ? delta__push_op(b, DELTA_ROWSET, p->site) : NULL;

    if (rc < 0)
        return rc;
    if (!op)
        return CORE_E_NOMEM;
    op->rowset = (struct delta_rowset){id, row, (uint32_t)n};
    return 0;
}

int delta__add_soft(struct delta_builder *b, const struct delta__soft *in)
{
    const size_t n_positions = model_config(b->m)->n_positions;
    struct delta__op *op;
    char want[64];

    if (in->n == 0 || in->n >= n_positions) {
        snprintf(want, sizeof(want), "1 to %zu virtual tokens", n_positions - 1);
        return delta__misfit(b, in->t, want);
    }
    op = delta__push_op(b, DELTA_SOFT_ROWS, site_make(0, SITE_EMBED_TOKENS));
    if (!op)
        return CORE_E_NOMEM;
    op->soft.row = in->row;
    op->soft.n = (uint32_t)in->n;
    op->soft.at = in->at;
    op->soft.is_late = in->is_late;
    return 0;
}

/* ---- prefix ------------------------------------------------------------------- */

static int check_prefix(struct delta_builder *b, const struct delta__prefix *p, size_t *width)
{
    const size_t n_positions = model_config(b->m)->n_positions;
    char want[128];
    size_t n_in;

    *width = 0;
    for (unsigned j = 0; j < p->n_layers; j++)
        if (!model_site_dims(b->m, site_make(p->layer[j], p->kind), &n_in, width))
            return core_err_set_param(b->err, CORE_E_ADAPTER_MISMATCH, p->t->name,
                                      "tensor %s: layer %u of this base takes no prefix",
                                      p->t->name, p->layer[j]);
    if (*width == 0 || p->n_cols != 2 * *width * p->n_layers) {
        snprintf(want, sizeof(want),
                 "2 (keys, values) x %u layers x %zu = %zu columns for each token", p->n_layers,
                 *width, 2 * *width * p->n_layers);
        return delta__misfit(b, p->t, want);
    }
    if (p->n_tokens == 0 || p->n_tokens >= n_positions) {
        snprintf(want, sizeof(want), "1 to %zu prefix tokens", n_positions - 1);
        return delta__misfit(b, p->t, want);
    }
    return 0;
}

/* Layer j's keys and values, in front of those that it has already: queries see both. */
static int add_layer_prefix(struct delta_builder *b, const struct delta__prefix *p, unsigned j,
                            size_t width)
{
    const site_id site = site_make(p->layer[j], p->kind);
    const size_t n = p->n_tokens, slot = p->slot ? p->slot[j] : j;
    struct delta__op *op = NULL;
    size_t n_old = 0;
    float *k, *v;

    for (size_t i = 0; p->is_stacked && i < b->n_ops; i++)
        if (b->op[i].kind == DELTA_KV_PREFIX && b->op[i].site == site)
            op = &b->op[i];
    if (op) {
        n_old = op->prefix.n_tokens;
        b->n_folded++;
    } else {
        op = delta__push_op(b, DELTA_KV_PREFIX, site);
    }
    k = delta__scratch(b, (n + n_old) * width, sizeof(*k));
    v = delta__scratch(b, (n + n_old) * width, sizeof(*v));
    if (!op || !k || !v)
        return CORE_E_NOMEM;
    for (size_t i = 0; i < n; i++) {
        const float *row = p->kv + i * p->n_cols + 2 * slot * width;

        memcpy(k + i * width, row, width * sizeof(*k));
        memcpy(v + i * width, row + width, width * sizeof(*v));
    }
    if (n_old) {
        memcpy(k + n * width, op->prefix.k, n_old * width * sizeof(*k));
        memcpy(v + n * width, op->prefix.v, n_old * width * sizeof(*v));
    }
    op->prefix.k = k;
    op->prefix.v = v;
    op->prefix.n_tokens = (uint32_t)(n + n_old);
    op->prefix.is_pinned = p->is_pinned;
    if (p->gate)
        memcpy(op->prefix.gate, p->gate[j], sizeof(op->prefix.gate));
    return 0;
}

int delta__add_prefix(struct delta_builder *b, const struct delta__prefix *p)
{
    size_t width;
    int rc = check_prefix(b, p, &width);

    for (unsigned j = 0; rc == 0 && j < p->n_layers; j++)
        rc = add_layer_prefix(b, p, j, width);
    return rc;
}

/* ---- what stands once at its place ------------------------------------------------- */

int delta__add_fusion(struct delta_builder *b, const struct delta__place *p,
                      const struct delta_fusion *fusion)
{
    struct delta__op *op;
    int rc = check_class(b, p, DELTA_FUSION, SITE_CLASS_JOIN, SITE_CLASS_JOIN);

    if (rc < 0)
        return rc;
    op = delta__push_op(b, DELTA_FUSION, p->site);
    if (!op)
        return CORE_E_NOMEM;
    op->fusion.f = *fusion;
    op->fusion.step = b->step;
    return 0;
}

int delta__add_reft(struct delta_builder *b, const struct delta__place *p,
                    const struct delta_reft *reft)
{
    struct delta__op *op;
    int rc = check_class(b, p, DELTA_REFT, SITE_CLASS_JOIN, SITE_CLASS_JOIN);

    if (rc < 0)
        return rc;
    op = delta__push_op(b, DELTA_REFT, p->site);
    if (!op)
        return CORE_E_NOMEM;
    op->reft = *reft;
    return 0;
}

int delta__add_coupling(struct delta_builder *b, const struct delta_coupling *coupling)
{
    struct delta__op *op = delta__push_op(b, DELTA_COUPLING, site_make(0, SITE_EMBED_TOKENS));

    if (!op)
        return CORE_E_NOMEM;
    op->coupling = *coupling;
    return 0;
}

/* ---- parameters under their own names -------------------------------------------- */

/* base + delta for a norm; the base's value where is_add. */
static int norm_sum(struct delta_builder *b, const struct delta__place *p, enum site_part part,
                    const float **vec)
{
    const float *base =
        part == SITE_PART_BIAS ? model_norm_beta(b->m, p->site) : model_norm_gamma(b->m, p->site);
    float *sum = delta__scratch(b, p->n_out, sizeof(*sum));
    int rc = sum ? vector_may(b, p->t, p->n_out, vec) : CORE_E_NOMEM;

    for (size_t i = 0; rc == 0 && i < p->n_out; i++)
        sum[i] = (base ? base[i] : 0.0f) + (*vec)[i];
    *vec = sum;
    return rc;
}

/* The base's own matrix, which libraries save beside adapters of it, is none of the
 * adapter's. Where it is tied, another one would change the token embedding too, unless
 * it is a matrix of its own: left over. */
static int add_lm_head(struct delta_builder *b, const struct delta__place *p)
{
    const bool is_resized = p->t->n_dims == 2 && p->t->dim[0] > p->n_out;
    const int rc = delta__expect(b, p->t, 2, is_resized ? p->t->dim[0] : p->n_out, p->n_in);

    if (rc == 0 && is_resized)
        b->plan.lm_head.w = p->t; /* with its table: check_vocabulary() of delta_head.c */
    else if (rc == 0 && delta__is_base_weight(b, p))
        delta__take(b, p->t);
    else if (b->has_own_lm_head || !model_config(b->m)->is_tied)
        b->plan.lm_head.w = p->t;
    return rc;
}

/* A token table with more rows than the base's, as libraries save it whole when a training
 * has added tokens: the rows that differ and those behind, at all tables that are one matrix
 * in the base. */
static int add_resized(struct delta_builder *b, const struct delta__place *p, const char *path,
                       size_t n_path)
{
    const size_t n = p->t->dim[0], width = p->n_out;
    site_id site[MODEL_TIED_MAX] = {p->site};
    unsigned n_sites = model_tied(b->m, path, n_path, site);
    uint32_t *id = delta__scratch(b, n, sizeof(*id));
    float *row, *base = delta__scratch(b, width, sizeof(*base));
    const float *value;
    size_t n_own = 0;
    int rc = delta__expect(b, p->t, 2, n, width);

    if (rc == 0 && n - p->n_in > DELTA_OWN_IDS_MAX)
        return delta__misfit(b, p->t, "at most 4096 rows more than the base's table");
    if (rc == 0)
        rc = delta__floats(b, p->t, &value);
    if (rc < 0)
        return rc;
    if (!id || !base || !delta__computed(b, p->t, n, width, &row))
        return CORE_E_NOMEM;
    for (size_t i = 0; i < n; i++) {
        if (i < p->n_in)
            model_weight_row(b->m, p->site, i, base);
        if (i < p->n_in && memcmp(base, value + i * width, width * sizeof(*base)) == 0)
            continue;
        memcpy(row + n_own * width, value + i * width, width * sizeof(*row));
        id[n_own++] = (uint32_t)i;
    }
    b->n_vocab = n;
    n_sites = n_sites ? n_sites : 1;
    for (unsigned i = 0; rc == 0 && i < n_sites; i++) {
        struct delta__place at;

        if (site_kind_of(site[i]) == SITE_EMBED_TOKENS && delta__place_at(b, p->t, site[i], &at))
            rc = delta__add_rowset(b, &at, id, row, n_own);
    }
    return rc;
}

/* The place of a token table under that path, of which t has more rows. */
static bool is_resized(struct delta_builder *b, const struct tensor *t, const char *path, size_t n,
                       struct delta__place *out)
{
    site_id site[MODEL_TIED_MAX];
    struct model_module mod;
    bool is_table;

    model_module(b->m, path, n, &mod);
    if (mod.n_parts)
        site[0] = mod.site[0];
    else if (!model_tied(b->m, path, n, site))
        return false;
    is_table = site_kind_of(site[0]) == SITE_EMBED_TOKENS && delta__place_at(b, t, site[0], out);
    return is_table && t->n_dims == 2 && t->dim[0] > out->n_in;
}

static int add_at_site(struct delta_builder *b, const struct delta__place *p, enum site_part part,
                       bool is_add)
{
    struct delta__head *h = &b->plan;
    const enum site_kind kind = site_kind_of(p->site);
    const float *vec = NULL;
    int rc = 0;

    switch (site_kind_class(kind)) {
    case SITE_CLASS_NORM:
        if (is_add)
            rc = norm_sum(b, p, part, &vec);
        return rc < 0 ? rc : delta__add_norm(b, p, part, vec);
    case SITE_CLASS_LINEAR:
        if (part == SITE_PART_WEIGHT && kind == SITE_POOLER && !is_add)
            h->pooler.w = p->t;
        else if (part == SITE_PART_WEIGHT && kind == SITE_LM_HEAD && !is_add)
            return add_lm_head(b, p);
        else if (part == SITE_PART_BIAS && kind == SITE_POOLER && !is_add)
            h->pooler.b = p->t; /* a BIAS unless the weight comes too: delta_head.c */
        else if (part == SITE_PART_BIAS && kind == SITE_LM_HEAD && !is_add)
            h->lm_head.b = p->t;
        else if (part == SITE_PART_BIAS)
            return delta__add_bias(b, p, NULL, is_add);
        return 0;
    case SITE_CLASS_EMBED:
        if (part == SITE_PART_WEIGHT && !is_add && delta__is_base_weight(b, p))
            delta__take(b, p->t);
        return 0;
    default:
        return 0; /* left over */
    }
}

/* A parameter of a head: delta_head.c looks for it when the form is known. */
static void add_head_parameter(struct delta_builder *b, const struct tensor *t, const char *path)
{
    struct delta__head *h = &b->plan;

    for (unsigned i = 0; i < h->n_params; i++)
        if (strcmp(h->param[i].path, path) == 0)
            return; /* the first stays, the second is left over */
    if (h->n_params < DELTA__HEAD_PARAMS_MAX)
        h->param[h->n_params++] = (struct delta__head_param){path, t};
}

int delta__add_parameter(struct delta_builder *b, const struct tensor *t, const char *path,
                         bool is_add)
{
    const char *dot = strrchr(path, '.');
    struct delta__place p;
    enum site_part part;
    unsigned stack;
    size_t n;
    int rc;

    if (!dot || (strcmp(dot, ".weight") != 0 && strcmp(dot, ".bias") != 0))
        return 0;
    n = (size_t)(dot - path);
    part = strcmp(dot, ".bias") == 0 ? SITE_PART_BIAS : SITE_PART_WEIGHT;
    if (model_is_head_path(b->m, path, n)) {
        add_head_parameter(b, t, path);
        return 0;
    }
    if (model_distances(b->m, path, &stack))
        return delta__add_distances(b, t, path, is_add);
    if (!is_add && model_lacks_pooler(b->m, path, n)) {
        *(part == SITE_PART_BIAS ? &b->plan.pooler.b : &b->plan.pooler.w) = t;
        return 0;
    }
    if (part == SITE_PART_WEIGHT && !is_add && is_resized(b, t, path, n, &p))
        return add_resized(b, &p, path, n);
    rc = delta__place(b, t, path, n, false, &p);
    return rc < 0 ? rc : add_at_site(b, &p, part, is_add);
}
