/* core/delta/read_peft_unilora.c - PEFT's Uni-LoRA: every number of A and B is one of a single
 * trained vector, `base_model.unilora_theta_d` [d], times a fixed scale. Which one it is
 * stands in the file only with save_indices; otherwise numpy draws it from a seed. */
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

int delta__peft_unilora(struct delta_builder *b, const json_t *config)
{
    static const char name[] = "base_model.unilora_theta_d";
    const struct tensor *t = delta__find(b, name, sizeof(name) - 1, "");
    struct theta theta;
    bool has_indices;
    int rc = delta__json_bool(b, config, "save_indices", false, &has_indices);

    if (rc < 0)
        return rc;
    if (!has_indices)
        return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, "save_indices",
                                  "Uni-LoRA's indices are not in the file: save the adapter "
                                  "with save_indices");
    if (!t)
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, name,
                                  "the adapter has no tensor %s", name);
    if (t->n_dims != 1 || t->dim[0] == 0)
        return delta__misfit(b, t, "[numbers]");
    rc = delta__floats(b, t, &theta.value);
    if (rc < 0)
        return rc;
    theta.n = t->dim[0];
    return delta__each_module(b, ".unilora_indices_A", read_module, &theta);
}
