/* core/delta/delta_text.c - a program in words: names of kinds, and the lines that
 * `peftd check` and the API show, made once at compile. Operations that differ only in
 * their layer or site are one line. */
#include <stdio.h>
#include <string.h>

#include "core/delta/delta_builder.h"

const char *delta_op_text(enum delta_op_kind kind)
{
    static const char *const text[] = {
#define X(name, t) t,
        DELTA_OP_MAP(X)
#undef X
    };

    return text[kind];
}

const char *delta_kind_text(enum delta_kind kind)
{
    static const char *const text[] = {
        [DELTA_CLASSIFICATION] = "classification",
        [DELTA_MULTI_LABEL] = "multi_label",
        [DELTA_REGRESSION] = "regression",
        [DELTA_TAGGING] = "tagging",
        [DELTA_SPAN] = "span",
        [DELTA_MULTIPLE_CHOICE] = "multiple_choice",
        [DELTA_EMBEDDING] = "embedding",
        [DELTA_GENERATION] = "generation",
    };

    return text[kind];
}

static const char *act_text(enum kern_act act)
{
    static const char *const text[] = {
        [KERN_ACT_NONE] = "linear",
        [KERN_ACT_RELU] = "relu",
        [KERN_ACT_GELU] = "gelu",
        [KERN_ACT_GELU_NEW] = "gelu_new",
        [KERN_ACT_QUICK_GELU] = "quick_gelu",
        [KERN_ACT_SILU] = "silu",
        [KERN_ACT_TANH] = "tanh",
        [KERN_ACT_SIGMOID] = "sigmoid",
        [KERN_ACT_LEAKY_RELU] = "leaky_relu",
    };

    return text[act];
}

/* Whether two operations stand in one line. */
static bool is_alike(const struct delta__op *a, const struct delta__op *b)
{
    if (a->kind != b->kind)
        return false;
    switch (a->kind) {
    case DELTA_LOWRANK:
        return a->lowrank.a.up.n_rows == b->lowrank.a.up.n_rows &&
               a->lowrank.a.down.type == b->lowrank.a.down.type &&
               a->lowrank.a.left.n_rows == b->lowrank.a.left.n_rows &&
               a->lowrank.a.left.n_cols == b->lowrank.a.left.n_cols &&
               a->lowrank.a.scale == b->lowrank.a.scale && a->lowrank.a.act == b->lowrank.a.act &&
               !a->lowrank.join == !b->lowrank.join &&
               !a->lowrank.a.gate.w == !b->lowrank.a.gate.w &&
               a->lowrank.a.is_invoked == b->lowrank.a.is_invoked;
    case DELTA_BIAS:
        return a->bias.is_add == b->bias.is_add;
    case DELTA_SCALE:
        return a->scale.at == b->scale.at;
    case DELTA_TURN:
        return a->turn.in.change.n_cols == b->turn.in.change.n_cols &&
               a->turn.out.group == b->turn.out.group;
    case DELTA_KV_PREFIX:
        return a->prefix.n_tokens == b->prefix.n_tokens;
    case DELTA_ROWSET:
        return a->rowset.n == b->rowset.n;
    default:
        return true;
    }
}

static void lowrank_detail(const struct delta__op *op, char *out, size_t n)
{
    const struct delta_lowrank *a = &op->lowrank.a;
    const char *type = a->down.type == TENSOR_F32 ? "" : tensor_type_text(a->down.type);
    const char *comma = *type ? ", " : "", *gate = a->gate.w ? ", gated" : "";

    if (op->lowrank.join)
        snprintf(out, n, "%s, width %u, %s, scale %g%s%s%s%s",
                 op->lowrank.join->is_parallel ? "parallel" : "sequential", a->up.n_rows,
                 act_text(a->act), (double)a->scale, a->scale_vec ? " x vector" : "", comma, type,
                 gate);
    else if (a->left.data)
        snprintf(out, n, "blocks of %u, %u by %u, scale %g%s%s", a->up.n_rows, a->left.n_rows,
                 a->left.n_cols, (double)a->scale, comma, type);
    else
        snprintf(out, n, "rank %u, scale %g%s%s%s%s%s", a->up.n_rows, (double)a->scale,
                 a->rank_scale ? " x vectors" : "", comma, type, gate,
                 a->is_invoked ? ", from its invocation on" : "");
}

static void op_detail(const struct delta__op *op, size_t n_values, char *out, size_t n)
{
    static const char *const at[] = {
        [DELTA__SCALE_IN] = "input",
        [DELTA__SCALE_PRE] = "output before the bias",
        [DELTA__SCALE_OUT] = "output",
    };

    switch (op->kind) {
    case DELTA_LOWRANK:
        lowrank_detail(op, out, n);
        break;
    case DELTA_BIAS:
        snprintf(out, n, "%s", op->bias.is_add ? "added" : "replaced");
        break;
    case DELTA_SCALE:
        snprintf(out, n, "%s", at[op->scale.at]);
        break;
    case DELTA_TURN:
        if (op->turn.out.own)
            snprintf(out, n, "output, pairs in groups of %u", op->turn.out.group);
        else
            snprintf(out, n, "input, blocks of %u", op->turn.in.change.n_cols);
        break;
    case DELTA_SPARSE:
        snprintf(out, n, "%zu values", n_values);
        break;
    case DELTA_DENSE:
        snprintf(out, n, "own weight");
        break;
    case DELTA_ROWSET:
        snprintf(out, n, "%u rows replaced", op->rowset.n);
        break;
    case DELTA_SOFT_ROWS:
        snprintf(out, n, "%u virtual tokens%s%s", op->soft.n,
                 op->soft.is_late ? ", embedded already" : "",
                 op->soft.at ? ", behind the first token" : "");
        break;
    case DELTA_KV_PREFIX:
        snprintf(out, n, "%u tokens%s", op->prefix.n_tokens, op->prefix.gate[0].w ? ", gated" : "");
        break;
    case DELTA_DISTANCES:
        snprintf(out, n, "replaced");
        break;
    case DELTA_FUSION:
        snprintf(out, n, "%s", op->fusion.f.value.data ? "query, key, value" : "query, key");
        break;
    case DELTA_REFT:
        snprintf(out, n, "rank %u, first %u and last %u tokens", op->reft.unit[0].source.n_rows,
                 op->reft.n_prefix, op->reft.n_suffix);
        break;
    case DELTA_COUPLING:
        snprintf(out, n, "invertible, width %u, %s", op->coupling.f.up.n_rows,
                 act_text(op->coupling.f.act));
        break;
    default:
        snprintf(out, n, "replaced");
    }
}

static size_t reft_bytes(const struct delta_reft *r)
{
    size_t n = 0;

    for (int i = 0; i < 2; i++)
        n += delta_mat_bytes(&r->unit[i].source) + delta_mat_bytes(&r->unit[i].projection) +
             r->unit[i].source.n_rows * sizeof(float);
    return n;
}

/* Weights and biases; a matrix that several operations share is none's own. */
static size_t lowrank_bytes(const struct delta_builder *b, const struct delta_lowrank *a)
{
    const size_t n = (a->down_bias ? a->up.n_rows : 0) + (a->up_bias ? a->up.n_cols : 0) +
                     (a->rank_scale ? a->up.n_rows : 0) + (a->scale_vec ? a->up.n_cols : 0);

    return (delta__is_shared(b, &a->down) ? 0 : delta_mat_bytes(&a->down)) +
           (delta__is_shared(b, &a->up) ? 0 : delta_mat_bytes(&a->up)) + delta_mat_bytes(&a->left) +
           n * sizeof(float);
}

/* Of an operation's own data. */
static size_t op_bytes(const struct delta_builder *b, const struct delta__op *op)
{
    size_t n_in = 0, n_out = 0, n = 0;

    model_site_dims(b->m, op->site, &n_in, &n_out);
    switch (op->kind) {
    case DELTA_LOWRANK:
        if (op->lowrank.join)
            n = (op->lowrank.join->ln_before_gamma ? 2 * n_out : 0) +
                (op->lowrank.join->ln_after_gamma ? 2 * n_out : 0);
        n += op->lowrank.a.gate.w ? n_in : 0;
        return lowrank_bytes(b, &op->lowrank.a) + n * sizeof(float);
    case DELTA_BIAS:
        return n_out * sizeof(float);
    case DELTA_SCALE:
        return (op->scale.at == DELTA__SCALE_IN ? n_in : n_out) * sizeof(float);
    case DELTA_TURN:
        return op->turn.out.own ? 2 * n_out * sizeof(float) : delta_mat_bytes(&op->turn.in.change);
    case DELTA_SPARSE:
        n = site_kind_class(site_kind_of(op->site)) == SITE_CLASS_EMBED ? sizeof(uint32_t)
                                                                        : sizeof(uint16_t);
        return op->sparse.rows.n_values * (n + sizeof(float));
    case DELTA_DENSE:
        return gemm_weight_bytes(op->dense);
    case DELTA_ROWSET:
        n = site_kind_class(site_kind_of(op->site)) == SITE_CLASS_EMBED ? n_out : n_in;
        return op->rowset.n * (n * sizeof(float) + sizeof(uint32_t));
    case DELTA_SOFT_ROWS:
        return op->soft.n * n_out * sizeof(float);
    case DELTA_NORM:
        return ((op->norm.gamma ? n_out : 0) + (op->norm.beta ? n_out : 0)) * sizeof(float);
    case DELTA_KV_PREFIX:
        return 2 * op->prefix.n_tokens * n_out * sizeof(float);
    case DELTA_DISTANCES:
        return op->distances.n * sizeof(float);
    case DELTA_FUSION:
        return delta_mat_bytes(&op->fusion.f.query) + delta_mat_bytes(&op->fusion.f.key) +
               delta_mat_bytes(&op->fusion.f.value);
    case DELTA_REFT:
        return reft_bytes(&op->reft);
    case DELTA_COUPLING:
        return lowrank_bytes(b, &op->coupling.f) + lowrank_bytes(b, &op->coupling.g);
    default:
        return 0;
    }
}

/* Sums the operations from i on that are like op[i]; op[i] is the first of them. */
static void fill_line(const struct delta_builder *b, size_t i, struct delta_line *line)
{
    bool has_kind[SITE_N_KINDS] = {0};
    size_t n_values = 0, at = 0;

    *line = (struct delta_line){.kind = b->op[i].kind};
    for (size_t k = i; k < b->n_ops; k++) {
        if (!is_alike(&b->op[i], &b->op[k]))
            continue;
        line->count++;
        line->n_bytes += op_bytes(b, &b->op[k]);
        has_kind[site_kind_of(b->op[k].site)] = true;
        if (b->op[k].kind == DELTA_SPARSE)
            n_values += b->op[k].sparse.rows.n_values;
    }
    for (unsigned k = 0; k < SITE_N_KINDS && at < sizeof(line->sites); k++)
        if (has_kind[k])
            at += (size_t)snprintf(line->sites + at, sizeof(line->sites) - at, "%s%s",
                                   at ? ", " : "", site_kind_text((enum site_kind)k));
    op_detail(&b->op[i], n_values, line->detail, sizeof(line->detail));
}

static void head_line(const struct delta *d, struct delta_line *line)
{
    static const char *const pool[] = {
        [DELTA_POOL_CLS] = "first token",    [DELTA_POOL_MEAN] = "mean",
        [DELTA_POOL_LAST] = "last token",    [DELTA_POOL_POOLER] = "pooler",
        [DELTA_POOL_TOKENS] = "every token",
    };
    const struct delta_head *h = &d->head;
    const char *kind = delta_kind_text(h->kind);
    size_t n;

    *line = (struct delta_line){.kind = DELTA_HEAD, .count = 1};
    snprintf(line->sites, sizeof(line->sites), "%s", pool[h->pool]);
    for (unsigned i = 0; i < h->n_steps; i++) {
        const struct delta_mat *w = &h->step[i].w;

        line->n_bytes += delta_mat_bytes(w);
        line->n_bytes += (h->step[i].bias ? w->n_rows : 0) * sizeof(float);
        line->n_bytes += (h->step[i].gamma ? w->n_rows : 0) * sizeof(float);
        line->n_bytes += (h->step[i].beta ? w->n_rows : 0) * sizeof(float);
    }
    if (h->kind == DELTA_EMBEDDING)
        snprintf(line->detail, sizeof(line->detail), "%s, %u values%s%s", kind, h->n_labels,
                 h->is_normalized ? ", normalized" : "",
                 h->is_assumed ? ", " DELTA_ASSUMED_TEXT : "");
    else if (h->kind == DELTA_GENERATION)
        snprintf(line->detail, sizeof(line->detail), "%s, %s LM head", kind,
                 h->uses_base_lm_head ? "the base's" : "own");
    else
        snprintf(line->detail, sizeof(line->detail), "%s, %u label%s, %u layer%s", kind,
                 h->n_labels, h->n_labels == 1 ? "" : "s", h->n_steps, h->n_steps == 1 ? "" : "s");
    n = strlen(line->detail);
    if (d->made_for[0])
        snprintf(line->detail + n, sizeof(line->detail) - n, ", " DELTA_MADE_FOR_TEXT "%s",
                 d->made_for);
}

/* True if no operation before i stands in the same line. */
static bool begins_line(const struct delta_builder *b, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (is_alike(&b->op[k], &b->op[i]))
            return false;
    return true;
}

int delta__lines(struct delta_builder *b, struct delta *d)
{
    struct delta_line *line;
    uint32_t n = 1; /* HEAD */

    for (size_t i = 0; i < b->n_ops; i++)
        n += begins_line(b, i);
    line = delta__scratch(b, n, sizeof(*line));
    if (!line)
        return CORE_E_NOMEM;
    d->line = line;
    d->n_lines = n;
    for (size_t i = 0; i < b->n_ops; i++)
        if (begins_line(b, i))
            fill_line(b, i, line++);
    head_line(d, line);
    return 0;
}
