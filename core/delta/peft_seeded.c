/* core/delta/peft_seeded.c - what PEFT draws from projection_prng_key when it loads an adapter
 * that was saved without its random matrices. */
#include <math.h>

#include "core/base/torch_random.h"
#include "core/delta/delta_internal.h"

int delta__seeded(struct delta_builder *b, const json_t *config, bool *is_seeded,
                  struct core_torch_random *g)
{
    static const char key[] = "projection_prng_key";
    bool has_matrices;
    double seed = 0.0;
    int rc = delta__json_bool(b, config, "save_projection", true, &has_matrices);

    if (rc == 0)
        rc = delta__json_number(b, config, key, 0, &seed);
    if (rc < 0)
        return rc;
    *is_seeded = !has_matrices;
    if (has_matrices)
        return 0;
    if (seed != floor(seed) || fabs(seed) > 0x1p53)
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, key,
                                  "%s: expected a whole number of at most 53 bits", key);
    core_torch_seed(g, (uint64_t)(int64_t)seed);
    return 0;
}

static int widen(struct delta_builder *b, const struct delta__module *m, const void *arg)
{
    struct delta__widths *w = *(struct delta__widths *const *)arg;

    w->t = w->t ? w->t : m->p.t;
    w->n_in = m->p.n_in > w->n_in ? m->p.n_in : w->n_in;
    w->n_out = m->p.n_out > w->n_out ? m->p.n_out : w->n_out;
    return delta__check_rank(b, &m->p, m->p.t, w->rank);
}

int delta__widest(struct delta_builder *b, const char *suffix, struct delta__widths *w)
{
    int rc = delta__each_module(b, suffix, widen, &w);

    if (rc < 0 || w->t)
        return rc;
    return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, suffix,
                              "the adapter has no tensor that ends in %s", suffix);
}

int delta__rank(struct delta_builder *b, const json_t *config, double dflt, size_t *out)
{
    double r;
    int rc = delta__json_number(b, config, "r", dflt, &r);

    if (rc < 0)
        return rc;
    if (!(r >= 1.0) || r > 1e9 || r != floor(r))
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "r",
                                  "r: expected a whole number of at least 1");
    *out = (size_t)r;
    return 0;
}
