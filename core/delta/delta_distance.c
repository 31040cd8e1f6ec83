/* core/delta/delta_distance.c - a task's own numbers of struct model_distances: what attention
 * adds for how far apart two tokens stand, in buckets as files hold them, here by distance. */
#include <string.h>

#include "core/delta/delta_builder.h"

static int add_base(struct delta_builder *b, const struct tensor *t, size_t n, float *bucket)
{
    float *base = delta__scratch(b, n, sizeof(*base));

    if (!base)
        return CORE_E_NOMEM;
    tensor_to_f32(t, 0, n, base);
    for (size_t i = 0; i < n; i++)
        bucket[i] += base[i];
    return 0;
}

int delta__add_distances(struct delta_builder *b, const struct tensor *t, const char *path,
                         bool is_add)
{
    const struct model_config *c = model_config(b->m);
    const size_t n_stored = (size_t)c->distances.n_buckets * c->n_heads;
    const size_t n = c->n_heads * (2 * (size_t)c->distances.max + 1);
    float *bucket, *all;
    const float *value;
    struct delta__op *op;
    unsigned stack;
    const struct tensor *base = model_distances(b->m, path, &stack);
    int rc;

    if (!base)
        return 0;
    rc = delta__expect(b, t, 2, c->distances.n_buckets, c->n_heads);
    if (rc == 0)
        rc = delta__floats(b, t, &value);
    if (rc < 0)
        return rc;
    bucket = delta__scratch(b, n_stored, sizeof(*bucket));
    all = delta__scratch(b, n, sizeof(*all));
    if (!bucket || !all)
        return CORE_E_NOMEM;
    memcpy(bucket, value, n_stored * sizeof(*bucket));
    if (is_add)
        rc = add_base(b, base, n_stored, bucket);
    op = rc == 0
             ? delta__push_op(b, DELTA_DISTANCES, site_make(c->stack[stack].first_layer, SITE_ATTN))
             : NULL;
    if (!op)
        return CORE_E_NOMEM;
    model_spread_distances(b->m, stack, bucket, all);
    op->distances.value = all;
    op->distances.n = n;
    op->distances.stack = stack;
    return 0;
}
