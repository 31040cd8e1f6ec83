/* core/delta/delta_slots.c - from the builder's list of operations to a slot for each
 * site: the one place that knows which field an operation fills, and that refuses two
 * of what a site can have once. */
#include <stdlib.h>

#include "core/delta/delta_builder.h"

/* The tables that are being filled; all in scratch memory. */
struct tables {
    uint16_t *slot;
    struct delta_linear *linear;
    struct delta_norm *norm;
    struct delta_join *join;
    struct delta_embed *embed;
    struct delta_prefix *prefix;
};

/* By site, then as the reader added them. */
static int compare(const void *pa, const void *pb)
{
    const struct delta__op *a = pa, *b = pb;

    if (a->site != b->site)
        return a->site < b->site ? -1 : 1;
    return a->order < b->order ? -1 : 1;
}

static int twice(struct delta_builder *b, const struct delta__op *op)
{
    char path[160];

    return core_err_set(b->err, CORE_E_ADAPTER_INVALID, "the adapter has two %s for %s",
                        delta_op_text(op->kind),
                        model_site_path(b->m, op->site, path, sizeof(path)));
}

static int set(struct delta_builder *b, const struct delta__op *op, const float **field,
               const float *vec)
{
    if (*field)
        return twice(b, op);
    *field = vec;
    return 0;
}

/* The LOWRANKs of one site stand together: op[0] is the first of them. Adds one to the
 * list, which has room for all of them. */
static int add_lowrank(struct delta_builder *b, const struct delta__op *op,
                       const struct delta_lowrank **list, uint32_t *n)
{
    struct delta_lowrank *to = (struct delta_lowrank *)*list;

    if (!to) {
        size_t n_max = 0;

        for (const struct delta__op *o = op; o < b->op + b->n_ops && o->site == op->site; o++)
            n_max += o->kind == DELTA_LOWRANK;
        *list = to = delta__scratch(b, n_max, sizeof(*to));
        if (!to)
            return CORE_E_NOMEM;
    }
    to[(*n)++] = op->lowrank.a;
    return 0;
}

static int fill_linear(struct delta_builder *b, const struct delta__op *op, struct delta_linear *l)
{
    switch (op->kind) {
    case DELTA_LOWRANK:
        return add_lowrank(b, op, &l->lowrank, &l->n_lowrank);
    case DELTA_BIAS:
        l->keeps_bias = op->bias.is_add;
        return set(b, op, &l->bias, op->bias.vec);
    case DELTA_SCALE:
        return set(b, op,
                   op->scale.at == DELTA__SCALE_IN    ? &l->scale_in
                   : op->scale.at == DELTA__SCALE_PRE ? &l->scale_pre
                                                      : &l->scale_out,
                   op->scale.vec);
    case DELTA_TURN:
        if (op->turn.out.own ? l->turn_out != NULL : l->turn_in != NULL)
            return twice(b, op);
        if (op->turn.out.own)
            l->turn_out = &op->turn.out;
        else
            l->turn_in = &op->turn.in;
        return 0;
    case DELTA_DENSE:
        if (l->w)
            return twice(b, op);
        l->w = op->dense;
        return 0;
    case DELTA_ROWSET:
        if (l->rowset)
            return twice(b, op);
        l->rowset = &op->rowset;
        return 0;
    default: /* SPARSE: delta_ops.c lets nothing else stand here */
        if (l->sparse)
            return twice(b, op);
        l->sparse = &op->sparse.cells;
        return 0;
    }
}

static int fill_embed(struct delta_builder *b, const struct delta__op *op, struct delta_embed *e)
{
    switch (op->kind) {
    case DELTA_LOWRANK:
        return add_lowrank(b, op, &e->lowrank, &e->n_lowrank);
    case DELTA_SCALE:
        return set(b, op, &e->scale, op->scale.vec);
    case DELTA_ROWSET:
        if (e->rowset)
            return twice(b, op);
        e->rowset = &op->rowset;
        return 0;
    case DELTA_SOFT_ROWS:
        if (e->soft)
            return twice(b, op);
        e->soft = op->soft.row;
        e->n_soft = op->soft.n;
        return 0;
    case DELTA_COUPLING:
        if (e->coupling)
            return twice(b, op);
        e->coupling = &op->coupling;
        return 0;
    default: /* SPARSE */
        if (e->sparse)
            return twice(b, op);
        e->sparse = &op->sparse.rows;
        return 0;
    }
}

/* The bottlenecks of one site come step by step. Room for all that the site has is made
 * with the first. */
static int add_bottleneck(struct delta_builder *b, const struct delta__op *op, struct delta_join *j)
{
    struct delta_bottleneck *adapter = (struct delta_bottleneck *)j->adapter;
    struct delta_join_step *step = (struct delta_join_step *)j->step;

    if (!adapter) {
        size_t n = 0;

        for (const struct delta__op *o = op; o < b->op + b->n_ops && o->site == op->site; o++)
            n += o->kind == DELTA_LOWRANK;
        j->adapter = adapter = delta__scratch(b, n, sizeof(*adapter));
        j->step = step = delta__scratch(b, n, sizeof(*step));
        if (!adapter || !step)
            return CORE_E_NOMEM;
    } else if (op[-1].kind == DELTA_LOWRANK && op[-1].lowrank.step == op->lowrank.step &&
               op[-1].lowrank.member == op->lowrank.member) {
        return twice(b, op);
    }
    if (j->n_adapters == 0 || op[-1].kind != DELTA_LOWRANK ||
        op[-1].lowrank.step != op->lowrank.step)
        step[j->n_steps++] = (struct delta_join_step){.first = j->n_adapters};
    step[j->n_steps - 1].n++;
    adapter[j->n_adapters] = *op->lowrank.join;
    adapter[j->n_adapters++].a = op->lowrank.a;
    return 0;
}

static int fill_join(struct delta_builder *b, const struct delta__op *op, struct delta_join *j)
{
    switch (op->kind) {
    case DELTA_LOWRANK:
        return add_bottleneck(b, op, j);
    case DELTA_FUSION: /* of the bottlenecks that came before it */
        ((struct delta_join_step *)j->step)[j->n_steps - 1].fusion = &op->fusion.f;
        return 0;
    default:
        if (j->reft)
            return twice(b, op);
        j->reft = &op->reft;
        return 0;
    }
}

/* One operation into its site's entry, which is made with the first of them. */
static int place(struct delta_builder *b, const struct delta__op *op, struct tables *t,
                 struct delta *d)
{
    uint16_t *slot = &t->slot[op->site];

    switch (site_kind_class(site_kind_of(op->site))) {
    case SITE_CLASS_LINEAR:
        *slot = *slot ? *slot : (uint16_t)++d->n_linear;
        return fill_linear(b, op, &t->linear[*slot - 1]);
    case SITE_CLASS_EMBED:
        *slot = *slot ? *slot : (uint16_t)++d->n_embed;
        return fill_embed(b, op, &t->embed[*slot - 1]);
    case SITE_CLASS_JOIN:
        *slot = *slot ? *slot : (uint16_t)++d->n_join;
        return fill_join(b, op, &t->join[*slot - 1]);
    case SITE_CLASS_NORM: /* one operation for both parameters: delta_ops.c */
        *slot = (uint16_t)++d->n_norm;
        t->norm[*slot - 1] = op->norm;
        return 0;
    case SITE_CLASS_ATTN:
        if (op->kind == DELTA_DISTANCES)
            return set(b, op, &d->distance[op->distances.stack], op->distances.value);
        if (*slot)
            return twice(b, op);
        *slot = (uint16_t)++d->n_prefix;
        t->prefix[*slot - 1] = op->prefix;
        return 0;
    }
    return 0;
}

/* Ranks that an operation adds to those of its layer. */
static uint32_t rank_of(const struct delta__op *op)
{
    switch (op->kind) {
    case DELTA_LOWRANK:
        return (uint32_t)delta_lowrank_width(&op->lowrank.a);
    case DELTA_REFT:
        return 2 * op->reft.unit[0].source.n_rows;
    case DELTA_COUPLING:
        return op->coupling.f.up.n_rows + op->coupling.g.up.n_rows;
    default:
        return 0;
    }
}

/* True for what comes behind all layers, whose sites are numbered as layer 0's. */
static bool is_behind(enum site_kind kind)
{
    return kind == SITE_FINAL_NORM || kind == SITE_POOLER || kind == SITE_POOLER_NORM ||
           kind == SITE_LM_HEAD;
}

/* Layers whose rows are the base's. */
static void count_base_layers(const struct delta_builder *b, struct delta *d)
{
    const struct model_config *c = model_config(b->m);

    for (unsigned k = 0; k < c->n_stacks; k++)
        d->n_base_layers[k] = c->stack[k].n_layers;
    for (size_t i = 0; i < b->n_ops; i++) {
        const unsigned layer = site_layer_of(b->op[i].site);
        const unsigned stack = c->n_stacks > 1 && layer >= c->stack[1].first_layer;
        const uint32_t n = layer - c->stack[stack].first_layer;

        if (!is_behind(site_kind_of(b->op[i].site)) && n < d->n_base_layers[stack])
            d->n_base_layers[stack] = n;
        for (unsigned k = stack + 1; k < c->n_stacks; k++) /* it reads what this one makes */
            d->n_base_layers[k] = 0;
    }
}

/* What a step that has this task needs room for, and what its rows share with the base's. */
static void measure(const struct delta_builder *b, struct delta *d)
{
    unsigned layer = 0;
    uint32_t sum = 0;

    count_base_layers(b, d);
    for (size_t i = 0; i < b->n_ops; i++) {
        const struct delta__op *op = &b->op[i];

        if (site_layer_of(op->site) != layer) {
            layer = site_layer_of(op->site);
            sum = 0;
        }
        sum += rank_of(op);
        if (op->kind == DELTA_REFT) {
            d->n_suffix = op->reft.n_suffix;
            d->sees_prompt = true;
        }
        if (sum > d->rank_max)
            d->rank_max = sum;
        if (op->kind == DELTA_SOFT_ROWS) {
            d->n_soft = op->soft.n;
            d->soft_at = op->soft.at;
            d->soft_is_late = op->soft.is_late;
        }
    }
    for (uint32_t i = 0; i < d->n_linear; i++)
        if (d->linear[i].n_lowrank > d->n_lowrank_max)
            d->n_lowrank_max = d->linear[i].n_lowrank;
    for (uint32_t i = 0; i < d->n_join; i++)
        for (uint32_t k = 0; k < d->join[i].n_steps; k++)
            if (d->join[i].step[k].n > d->n_mix_max)
                d->n_mix_max = d->join[i].step[k].n;
    d->n_gates = b->n_gates;
    d->sees_prompt |= d->n_gates > 0;
}

int delta__settle(struct delta_builder *b, struct delta *d)
{
    const size_t n = b->n_ops; /* of each table at most */
    struct tables t = {
        .slot = delta__scratch(b, d->n_sites, sizeof(*t.slot)),
        .linear = delta__scratch(b, n, sizeof(*t.linear)),
        .norm = delta__scratch(b, n, sizeof(*t.norm)),
        .join = delta__scratch(b, n, sizeof(*t.join)),
        .embed = delta__scratch(b, n, sizeof(*t.embed)),
        .prefix = delta__scratch(b, n, sizeof(*t.prefix)),
    };

    if (!t.slot || !t.linear || !t.norm || !t.join || !t.embed || !t.prefix)
        return CORE_E_NOMEM;
    if (n)
        qsort(b->op, n, sizeof(*b->op), compare);
    for (size_t i = 0; i < n; i++) {
        const int rc = place(b, &b->op[i], &t, d);

        if (rc < 0)
            return rc;
    }
    d->slot = t.slot;
    d->linear = t.linear;
    d->norm = t.norm;
    d->join = t.join;
    d->embed = t.embed;
    d->prefix = t.prefix;
    measure(b, d);
    return 0;
}
