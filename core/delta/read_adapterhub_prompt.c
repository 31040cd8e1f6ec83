/* core/delta/read_adapterhub_prompt.c - AdapterHub's prompt tuning: rows that enter behind the
 * complete embedding, in front of an input or behind its first token (Lester et al. 2021). They
 * have no type, position or norm, and the tokens have the positions that they have alone. */
#include <stdio.h>
#include <string.h>

#include "core/delta/delta_internal.h"

/* CORE_E_ADAPTER_UNSUPPORTED where the library's models have no such prompts, or stop with an
 * error at the first input. */
static int check_base(struct delta_builder *b, const struct delta__ah *ah)
{
    const struct model_config *c = model_config(b->m);
    const struct model_stack *s = model_last_stack(c);

    if (ah->interface || s->is_causal || s->has_cross || c->rope[0].theta != 0.0f)
        return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, "architecture",
                                  "prompt_tuning: the library has it on encoders of its own whose "
                                  "positions stand in the embedding only");
    if (c->n_conv_kernel)
        return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, "architecture",
                                  "prompt_tuning: the library does not compute it beside a "
                                  "convolution");
    return 0;
}

static int read_place(struct delta_builder *b, const json_t *config, unsigned *at)
{
    const char *combine;
    const int rc = delta__json_str(b, config, "combine", "prefix", &combine);

    if (rc < 0)
        return rc;
    *at = strcmp(combine, "prefix_after_bos") == 0;
    if (*at || strcmp(combine, "prefix") == 0)
        return 0;
    return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, "combine",
                              "combine %.60s is not computed", combine);
}

static const struct tensor *find_rows(const struct delta_builder *b, const char *name)
{
    const char *rest;

    for (size_t i = 0; i < b->tensors.n; i++)
        if (delta__ah_mark(b->tensors.t[i].name, "prompt_tunings", name, &rest) &&
            strcmp(rest, "prompt_embedding.weight") == 0)
            return &b->tensors.t[i];
    return NULL;
}

int delta__ah_prompt(struct delta_builder *b, const json_t *config, const struct delta__ah *ah)
{
    const size_t d = model_config(b->m)->d_embed;
    struct delta__soft soft = {.t = find_rows(b, ah->name), .is_late = true};
    size_t n_out = 0, n_in = 0;
    double n_said = 0;
    int rc = check_base(b, ah);

    if (rc == 0)
        rc = read_place(b, config, &soft.at);
    if (rc == 0)
        rc = delta__json_number(b, config, "prompt_length", 0, &n_said);
    if (rc < 0)
        return rc;
    if (!soft.t)
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "prompt_embedding.weight",
                                  "the adapter has no tensor prompt_tunings.%.100s."
                                  "prompt_embedding.weight",
                                  ah->name);
    if (model_site_dims(b->m, site_make(0, SITE_EMBED_NORM), &n_in, &n_out) && n_out != d)
        return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, soft.t->name,
                                  "prompt_tuning: this base's complete embedding has another "
                                  "width than its tables");
    soft.n = soft.t->dim[0];
    if (n_said != 0.0 && (soft.t->n_dims != 2 || n_said != (double)soft.n))
        return delta__misfit(b, soft.t, "[prompt_length, width of the embedding]");
    rc = delta__expect(b, soft.t, 2, soft.n, d);
    if (rc == 0)
        rc = delta__floats(b, soft.t, &soft.row);
    snprintf(b->method, sizeof(b->method), "prompt");
    return rc < 0 ? rc : delta__add_soft(b, &soft);
}
