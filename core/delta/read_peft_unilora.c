/* core/delta/read_peft_unilora.c - PEFT's Uni-LoRA: every number of A and B is one of a single
 * trained vector, `base_model.unilora_theta_d` [d], times a fixed scale.
 * Which one it is stands in the file with save_indices. Otherwise the file has only the vector,
 * and the library deals its numbers out by numpy's generator from proj_seed: each equally often,
 * some once more, all of them shuffled, and taken A by B by module in their order of
 * registration; the scale is 1 / sqrt(how often). */
#include <math.h>

#include "core/base/numpy_random.h"
#include "core/delta/delta_internal.h"

struct theta {
    const float *value; /* [n] */
    size_t n;
};

/* out [d0, d1] = theta[indices] * scales; the names end in 'A' or 'B'. */
static int read_factor(struct delta_builder *b, const struct delta__module *m,
                       const struct theta *theta, const char *indices, const char *scales,
                       const size_t *dim, const struct tensor **out)
{
    const size_t n = dim[0] * dim[1];
    const struct tensor *t;
    const float *scale;
    int64_t *number;
    float *value;
    int rc = delta__beside_must(b, m, indices, &t);

    if (rc == 0)
        rc = delta__values(b, m, scales, dim, 2, &scale);
    if (rc < 0)
        return rc;
    number = delta__scratch(b, n, sizeof(*number));
    if (!number)
        return CORE_E_NOMEM;
    if (t->n_dims != 2 || t->dim[0] != dim[0] || t->dim[1] != dim[1] ||
        !tensor_to_i64(t, 0, n, number))
        return delta__misfit(b, t, "whole numbers, one for each of the factor's");
    *out = delta__computed(b, t, dim[0], dim[1], &value);
    if (!*out)
        return CORE_E_NOMEM;
    for (size_t i = 0; i < n; i++) {
        if (number[i] < 0 || (uint64_t)number[i] >= theta->n)
            return delta__misfit(b, t, "numbers of unilora_theta_d");
        value[i] = theta->value[number[i]] * scale[i];
    }
    delta__take(b, t);
    return 0;
}

static int read_module(struct delta_builder *b, const struct delta__module *m, const void *arg)
{
    const size_t rank = m->p.t->n_dims == 2 ? m->p.t->dim[0] : 0;
    struct delta__lowrank pair = {.scale = 1.0f};
    int rc;

    if (rank == 0 || rank > m->p.n_in)
        return delta__misfit(b, m->p.t, "[rank, inputs]");
    rc = read_factor(b, m, arg, ".unilora_indices_A", ".unilora_scales_A",
                     (size_t[]){rank, m->p.n_in}, &pair.down);
    if (rc == 0)
        rc = read_factor(b, m, arg, ".unilora_indices_B", ".unilora_scales_B",
                         (size_t[]){m->p.n_out, rank}, &pair.up);
    return rc < 0 ? rc : delta__add_lowrank(b, &m->p, &pair);
}

/* ---- from a seed ------------------------------------------------------------------------- */

/* Numbers of theta for n places. */
static int deal(struct delta_builder *b, uint64_t seed, uint32_t n_theta, uint32_t n,
                uint32_t **out)
{
    const uint32_t each = n / n_theta, rest = n % n_theta;
    uint32_t *number = delta__scratch(b, n, sizeof(*number));
    struct core_numpy_random g;

    if (!number)
        return CORE_E_NOMEM;
    core_numpy_seed(&g, seed);
    for (uint32_t i = 0; i < n - rest; i++)
        number[i] = i / each;
    if (rest && core_numpy_choice(&g, n_theta, number + (n - rest), rest) < 0)
        return core_err_nomem(b->err, "unilora_indices");
    core_numpy_shuffle(&g, number, n);
    *out = number;
    return 0;
}

/* times [n_theta] = 1 / sqrt(how often each number stands among number [n]). */
static void count(const uint32_t *number, size_t n, float *times, size_t n_theta)
{
    for (size_t i = 0; i < n; i++)
        times[number[i]] += 1.0f;
    for (size_t i = 0; i < n_theta; i++)
        times[i] = times[i] > 0.0f ? 1.0f / sqrtf(times[i]) : 0.0f;
}

/* One factor; returns the numbers behind its own. */
static const uint32_t *fill(const struct theta *theta, const float *times, const uint32_t *number,
                            float *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = theta->value[number[i]] * times[number[i]];
    return number + n;
}

static int add_drawn(struct delta_builder *b, const struct theta *theta,
                     const struct delta__place *p, size_t rank, const uint32_t **number,
                     const float *times)
{
    struct delta__lowrank pair = {.scale = 1.0f};
    float *A, *B;

    pair.down = delta__computed(b, p->t, rank, p->n_in, &A);
    pair.up = delta__computed(b, p->t, p->n_out, rank, &B);
    if (!pair.down || !pair.up)
        return CORE_E_NOMEM;
    *number = fill(theta, times, *number, A, rank * p->n_in);
    *number = fill(theta, times, *number, B, rank * p->n_out);
    return delta__add_lowrank(b, p, &pair);
}

/* How many numbers the modules need: they are held, and as the file holds so few, bounded. */
static int count_places(struct delta_builder *b, const struct delta__place *p, size_t n_modules,
                        size_t rank, uint32_t *out)
{
    const size_t most = model_bytes(b->m) / 2 / sizeof(float);
    size_t n = 0;

    for (size_t i = 0; i < n_modules; i++) {
        const int rc = delta__check_rank(b, &p[i], p[i].t, rank);

        if (rc < 0)
            return rc;
        n += rank * (p[i].n_in + p[i].n_out);
        if (n > most || n > UINT32_MAX)
            return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, "r",
                                      "r: %zu makes more than half of the base", rank);
    }
    *out = (uint32_t)n;
    return 0;
}

static int read_drawn(struct delta_builder *b, const json_t *config, const struct tensor *t,
                      const struct theta *theta)
{
    struct delta__place *p = NULL;
    const uint32_t *next;
    uint32_t *number = NULL, n = 0;
    size_t rank, n_modules = 0;
    double seed;
    float *times;
    int rc = delta__rank(b, config, 4, &rank);

    if (rc == 0)
        rc = delta__json_number(b, config, "proj_seed", 42, &seed);
    if (rc == 0 && !(seed >= 0.0 && seed <= 0x1p53 && seed == floor(seed)))
        rc = core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "proj_seed",
                                "proj_seed: expected a whole number from 0 to 2^53");
    if (rc == 0)
        rc = delta__peft_targets(b, config, t, &p, &n_modules);
    if (rc == 0)
        rc = count_places(b, p, n_modules, rank, &n);
    if (rc == 0)
        rc = deal(b, (uint64_t)seed, (uint32_t)theta->n, n, &number);
    if (rc < 0)
        return rc;
    times = delta__scratch(b, theta->n, sizeof(*times));
    if (!times)
        return CORE_E_NOMEM;
    count(number, n, times, theta->n);
    next = number;
    for (size_t i = 0; rc == 0 && i < n_modules; i++)
        rc = add_drawn(b, theta, &p[i], rank, &next, times);
    return rc;
}

int delta__peft_unilora(struct delta_builder *b, const json_t *config)
{
    static const char name[] = "base_model.unilora_theta_d";
    const struct tensor *t = delta__find(b, name, sizeof(name) - 1, "");
    struct theta theta;
    bool has_indices;
    double n;
    int rc = delta__json_bool(b, config, "save_indices", false, &has_indices);

    if (rc == 0)
        rc = delta__json_number(b, config, "theta_d_length", 256, &n);
    if (rc < 0)
        return rc;
    if (!t)
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, name,
                                  "the adapter has no tensor %s", name);
    if (t->n_dims != 1 || t->dim[0] == 0 || t->dim[0] > UINT32_MAX)
        return delta__misfit(b, t, "[numbers]");
    if ((double)t->dim[0] != n && !has_indices)
        return delta__misfit(b, t, "theta_d_length numbers");
    rc = delta__floats(b, t, &theta.value);
    if (rc < 0)
        return rc;
    theta.n = t->dim[0];
    if (!has_indices)
        return read_drawn(b, config, t, &theta);
    return delta__each_module(b, ".unilora_indices_A", read_module, &theta);
}
