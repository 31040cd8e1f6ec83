/* core/delta/delta_text.c - a program in words: names of kinds, and the lines that
 * `peftd check` and the API show. Operations that differ only in their layer or site
 * are one line. */
#include <stdio.h>
#include <string.h>

#include "core/delta/delta.h"

const char *delta_op_text(enum delta_op_kind kind)
{
    static const char *const text[] = {
#define X(name, t, now) t,
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
static bool is_alike(const struct delta_op *a, const struct delta_op *b)
{
    if (a->kind != b->kind)
        return false;
    switch (a->kind) {
    case DELTA_LOWRANK:
        return a->lowrank.up.n_rows == b->lowrank.up.n_rows &&
               a->lowrank.down.type == b->lowrank.down.type &&
               a->lowrank.scale == b->lowrank.scale && a->lowrank.act == b->lowrank.act &&
               !a->lowrank.join == !b->lowrank.join;
    case DELTA_BIAS:
        return a->bias.is_add == b->bias.is_add;
    case DELTA_SCALE:
        return a->scale.at == b->scale.at;
    case DELTA_KV_PREFIX:
        return a->kv_prefix.n_tokens == b->kv_prefix.n_tokens;
    default:
        return true;
    }
}

static void lowrank_detail(const struct delta_op *op, char *out, size_t n)
{
    const char *type =
        op->lowrank.down.type == TENSOR_F32 ? "" : tensor_type_text(op->lowrank.down.type);
    const char *comma = *type ? ", " : "";

    if (op->lowrank.join)
        snprintf(out, n, "%s, width %u, %s, scale %g%s%s%s",
                 op->lowrank.join->is_parallel ? "parallel" : "sequential", op->lowrank.up.n_rows,
                 act_text(op->lowrank.act), (double)op->lowrank.scale,
                 op->lowrank.scale_vec ? " x vector" : "", comma, type);
    else
        snprintf(out, n, "rank %u, scale %g%s%s", op->lowrank.up.n_rows, (double)op->lowrank.scale,
                 comma, type);
}

static void op_detail(const struct delta_op *op, size_t n_values, char *out, size_t n)
{
    static const char *const at[] = {
        [DELTA_SCALE_IN] = "input",
        [DELTA_SCALE_PRE] = "output before the bias",
        [DELTA_SCALE_OUT] = "output",
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
    case DELTA_SPARSE:
        snprintf(out, n, "%zu values", n_values);
        break;
    case DELTA_KV_PREFIX:
        snprintf(out, n, "%u tokens", op->kv_prefix.n_tokens);
        break;
    default:
        snprintf(out, n, "replaced");
    }
}

/* Sums the operations from i on that are like op[i]; op[i] is the first of them. */
static void fill_line(const struct delta *d, uint32_t i, struct delta_line *line)
{
    bool has_kind[SITE_N_KINDS] = {0};
    size_t n_values = 0, at = 0;

    *line = (struct delta_line){.kind = d->op[i].kind};
    for (uint32_t k = i; k < d->n_ops; k++) {
        if (!is_alike(&d->op[i], &d->op[k]))
            continue;
        line->count++;
        line->n_bytes += d->op[k].n_bytes;
        has_kind[site_kind_of(d->op[k].site)] = true;
        if (d->op[k].kind == DELTA_SPARSE)
            n_values += d->op[k].sparse.n_values;
    }
    for (unsigned k = 0; k < SITE_N_KINDS && at < sizeof(line->sites); k++)
        if (has_kind[k])
            at += (size_t)snprintf(line->sites + at, sizeof(line->sites) - at, "%s%s",
                                   at ? ", " : "", site_kind_text((enum site_kind)k));
    op_detail(&d->op[i], n_values, line->detail, sizeof(line->detail));
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

    *line = (struct delta_line){.kind = DELTA_HEAD, .count = 1};
    snprintf(line->sites, sizeof(line->sites), "%s", pool[h->pool]);
    for (unsigned i = 0; i < h->n_steps; i++) {
        const struct delta_mat *w = &h->step[i].w;

        line->n_bytes += (size_t)w->n_rows * w->n_cols * tensor_type_block_bytes(w->type);
        line->n_bytes += (h->step[i].bias ? w->n_rows : 0) * sizeof(float);
        line->n_bytes += (h->step[i].gamma ? w->n_rows : 0) * sizeof(float);
        line->n_bytes += (h->step[i].beta ? w->n_rows : 0) * sizeof(float);
    }
    if (h->kind == DELTA_EMBEDDING)
        snprintf(line->detail, sizeof(line->detail), "%s, %u values%s", kind, h->n_labels,
                 h->is_normalized ? ", normalized" : "");
    else if (h->kind == DELTA_GENERATION)
        snprintf(line->detail, sizeof(line->detail), "%s, %s LM head", kind,
                 h->uses_base_lm_head ? "the base's" : "own");
    else
        snprintf(line->detail, sizeof(line->detail), "%s, %u label%s, %u layer%s", kind,
                 h->n_labels, h->n_labels == 1 ? "" : "s", h->n_steps, h->n_steps == 1 ? "" : "s");
}

/* True if no operation before i stands in the same line. */
static bool begins_line(const struct delta *d, uint32_t i)
{
    for (uint32_t k = 0; k < i; k++)
        if (is_alike(&d->op[k], &d->op[i]))
            return false;
    return true;
}

size_t delta_lines(const struct delta *d, struct delta_line *line, size_t max)
{
    struct delta_line rest; /* lines that the caller has no room for are only counted */
    size_t n = 0;

    for (uint32_t i = 0; i < d->n_ops; i++)
        if (begins_line(d, i)) {
            fill_line(d, i, n < max ? &line[n] : &rest);
            n++;
        }
    head_line(d, n < max ? &line[n] : &rest);
    return n + 1;
}
