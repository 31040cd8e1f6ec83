/* core/delta/read_peft_vectors.c - methods of PEFT whose parameters are vectors.
 *
 *   IA3        `<module>.ia3_l`: (out, 1) multiplies the output, (1, in) the input
 *   BEFT       `<module>.beft_bias` (1, out), added to the output
 *   LN_TUNING  `<norm>.ln_tuning_layers.weight` and `.bias`: the norm's new parameters */
#include <stdio.h>

#include "core/delta/delta_internal.h"

static int read_ia3(struct delta_builder *b, const struct delta__module *m, const void *arg)
{
    const struct delta__place *p = &m->p;
    enum delta__scale_at at = DELTA__SCALE_OUT;
    const float *vec;
    char want[96];
    int rc;

    (void)arg;
    if (tensor_is(p->t, 2, 1, p->n_in)) {
        at = DELTA__SCALE_IN;
    } else if (!tensor_is(p->t, 2, p->n_out, 1)) {
        snprintf(want, sizeof(want), "[%zu, 1] or [1, %zu]", p->n_out, p->n_in);
        return delta__misfit(b, p->t, want);
    }
    rc = delta__floats(b, p->t, &vec);
    return rc < 0 ? rc : delta__add_scale(b, p, vec, at);
}

int delta__peft_ia3(struct delta_builder *b, const json_t *config)
{
    (void)config;
    return delta__each_module(b, ".ia3_l", read_ia3, NULL);
}

static int read_beft(struct delta_builder *b, const struct delta__module *m, const void *arg)
{
    const float *vec;
    const int rc = delta__values(b, m, ".beft_bias", (size_t[]){1, m->p.n_out}, 2, &vec);

    (void)arg;
    return rc < 0 ? rc : delta__add_bias(b, &m->p, vec, true);
}

int delta__peft_beft(struct delta_builder *b, const json_t *config)
{
    (void)config;
    return delta__each_module(b, ".beft_bias", read_beft, NULL);
}

static int read_norm(struct delta_builder *b, const struct delta__module *m, const void *arg)
{
    return delta__add_norm(b, &m->p, *(const enum site_part *)arg, NULL);
}

int delta__peft_ln(struct delta_builder *b, const json_t *config)
{
    static const enum site_part weight = SITE_PART_WEIGHT, bias = SITE_PART_BIAS;
    int rc = delta__each_module(b, ".ln_tuning_layers.weight", read_norm, &weight);

    (void)config;
    return rc < 0 ? rc : delta__each_module(b, ".ln_tuning_layers.bias", read_norm, &bias);
}
