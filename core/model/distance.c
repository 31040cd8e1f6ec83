/* core/model/distance.c - what attention adds for how far apart two tokens stand: numbers of
 * buckets in the checkpoint, here one for each distance. */
#include <math.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/model/arch.h"

/* As transformers' _relative_position_bucket(), in f32: distance = query - key. */
static unsigned bucket_of(const struct model_distances *d, long distance, bool is_causal)
{
    const unsigned n = is_causal ? d->n_buckets : d->n_buckets / 2, exact = n / 2;
    const unsigned first = !is_causal && distance < 0 ? n : 0;
    const unsigned far = (unsigned)(distance < 0 ? is_causal ? 0 : -distance : distance);
    unsigned at;

    if (far < exact)
        return first + far;
    at = exact + (unsigned)(logf((float)far / (float)exact) /
                            (float)log((double)d->max / (double)exact) * (float)(n - exact));
    return first + (at < n ? at : n - 1);
}

void model_spread_distances(const struct model *m, unsigned stack, const float *bucket, float *out)
{
    const struct model_config *c = &m->config;
    const struct model_distances *d = &c->distances;
    const size_t n = 2 * (size_t)d->max + 1;

    for (size_t i = 0; i < n; i++) {
        const unsigned b = bucket_of(d, (long)i - (long)d->max, c->stack[stack].is_causal);

        for (size_t h = 0; h < c->n_heads; h++)
            out[h * n + i] = bucket[(size_t)b * c->n_heads + h];
    }
}

static int load_stack(struct model *m, unsigned k, struct core_err *err)
{
    const struct model_config *c = &m->config;
    const struct model_distances *d = &c->distances;
    const size_t n = 2 * (size_t)d->max + 1, n_stored = (size_t)d->n_buckets * c->n_heads;
    const struct tensor *t = model_tensor(m, m->arch->distances[k]);
    struct tensor flat;
    float *stored = NULL;
    int rc;

    if (!t)
        return core_err_set_param(err, CORE_E_ADAPTER_INVALID, m->arch->distances[k],
                                  "tensor %s is missing", m->arch->distances[k]);
    if (!tensor_is(t, 2, d->n_buckets, c->n_heads))
        return core_err_set_param(err, CORE_E_ADAPTER_MISMATCH, t->name,
                                  "tensor %s: expected [%u, %u]", t->name, d->n_buckets,
                                  c->n_heads);
    flat = *t;
    flat.n_dims = 1;
    flat.dim[0] = n_stored;
    rc = model__load_vector(m, &flat, 0, n_stored, n_stored, &stored, err);
    if (rc == 0 && !(m->distance[k] = core_calloc(n * c->n_heads, sizeof(float))))
        rc = core_err_nomem(err, t->name);
    if (rc == 0)
        model_spread_distances(m, k, stored, m->distance[k]);
    core_free(stored);
    m->n_bytes += n * c->n_heads * sizeof(float);
    return rc;
}

int model__load_distances(struct model *m, struct core_err *err)
{
    int rc = 0;

    for (unsigned k = 0; rc == 0 && m->arch->distances && k < m->config.n_stacks; k++)
        rc = load_stack(m, k, err);
    return rc;
}

const struct tensor *model_distances(const struct model *m, const char *name, unsigned *stack)
{
    const char *prefix = m->arch->base_prefix;
    const size_t n = strlen(prefix);

    if (strncmp(name, prefix, n) == 0)
        name += n;
    for (unsigned k = 0; m->arch->distances && k < m->config.n_stacks; k++)
        if (strcmp(name, m->arch->distances[k]) == 0) {
            *stack = k;
            return model_tensor(m, name);
        }
    return NULL;
}
