/* core/delta/read_peft_adalora.c - PEFT's AdaLoRA (Zhang et al. 2023): lora_A (r, in),
 * lora_B (out, r) and singular values lora_E (r, 1), already cut to the ranks that are left.
 *
 * y += alpha / (init_r + 1e-5) B (E (*) A x): the divisor is the rank before the cut. */
#include "core/delta/delta_internal.h"

static int read_module(struct delta_builder *b, const struct delta__module *m, const void *scale)
{
    const struct tensor *B, *E;
    struct delta__lowrank in = {.scale = *(const float *)scale};
    const float *a, *e;
    size_t rank;
    float *down;
    int rc = delta__beside_must(b, m, ".lora_B", &B);

    if (rc == 0)
        rc = delta__beside_must(b, m, ".lora_E", &E);
    if (rc < 0)
        return rc;
    if (m->p.t->n_dims != 2 || m->p.t->dim[1] != m->p.n_in)
        return delta__misfit(b, m->p.t, "[rank, inputs]");
    rank = m->p.t->dim[0];
    rc = delta__expect(b, E, 2, rank, 1);
    if (rc == 0)
        rc = delta__expect(b, B, 2, m->p.n_out, rank);
    if (rc == 0)
        rc = delta__floats(b, m->p.t, &a);
    if (rc == 0)
        rc = delta__floats(b, E, &e);
    if (rc < 0)
        return rc;
    delta__take(b, B);
    if (rank == 0)
        return 0; /* all of it was cut */
    in.down = delta__computed(b, m->p.t, rank, m->p.n_in, &down);
    in.up = B;
    if (!in.down)
        return CORE_E_NOMEM;
    for (size_t i = 0; i < rank * m->p.n_in; i++)
        down[i] = e[i / m->p.n_in] * a[i];
    return delta__add_lowrank(b, &m->p, &in);
}

int delta__peft_adalora(struct delta_builder *b, const json_t *config)
{
    double alpha, init_r;
    float scale;
    int rc = delta__json_number(b, config, "lora_alpha", 8, &alpha);

    if (rc == 0)
        rc = delta__json_number(b, config, "init_r", 12, &init_r);
    if (rc < 0)
        return rc;
    scale = (float)((alpha > 0.0 ? alpha : init_r) / (init_r + 1e-5));
    return delta__each_module(b, ".lora_A", read_module, &scale);
}
