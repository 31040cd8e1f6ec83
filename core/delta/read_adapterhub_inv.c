/* core/delta/read_adapterhub_inv.c - AdapterHub's invertible adapters (NICECouplingBlock):
 * `invertible_adapters.NAME.F.` and `.G.`, two small networks over halves of a row. */
#include <stdio.h>
#include <string.h>

#include "core/delta/delta_internal.h"

/* The parameter `part` of the adapter, and where it would stand. */
static int find_part(struct delta_builder *b, const char *name, const char *part,
                     const struct tensor **out)
{
    /* The second is a name of old files. */
    static const char *const kind[] = {"invertible_adapters", "invertible_lang_adapters"};
    const char *rest;

    for (size_t i = 0; i < b->tensors.n; i++)
        for (size_t k = 0; k < sizeof(kind) / sizeof(kind[0]); k++)
            if (delta__ah_mark(b->tensors.t[i].name, kind[k], name, &rest) &&
                strcmp(rest, part) == 0) {
                *out = &b->tensors.t[i];
                return 0;
            }
    return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, part,
                              "tensor invertible_adapters.%.100s.%s is missing", name, part);
}

/* Linear, activation, linear from n_in to n_out values. */
static int read_subnet(struct delta_builder *b, const char *name, char which, size_t n_in,
                       size_t n_out, struct delta_lowrank *out)
{
    static const char *const suffix[] = {"0.weight", "0.bias", "2.weight", "2.bias"};
    const struct tensor *t[4];
    char part[32];
    size_t rank;
    int rc = 0;

    for (int i = 0; rc == 0 && i < 4; i++) {
        snprintf(part, sizeof(part), "%c.%s", which, suffix[i]);
        rc = find_part(b, name, part, &t[i]);
    }
    if (rc < 0)
        return rc;
    rank = t[0]->n_dims == 2 ? t[0]->dim[0] : 0;
    if (rank == 0 || rank > 8 * n_in)
        return delta__misfit(b, t[0], "[width, half of a row], at most 8 times as wide");
    rc = delta__matrix(b, t[0], rank, n_in, &out->down);
    if (rc == 0)
        rc = delta__matrix_transposed(b, t[2], rank, n_out, &out->up);
    if (rc == 0)
        rc = delta__expect(b, t[1], 1, rank, 0);
    if (rc == 0)
        rc = delta__floats(b, t[1], &out->down_bias);
    if (rc == 0)
        rc = delta__expect(b, t[3], 1, n_out, 0);
    return rc < 0 ? rc : delta__floats(b, t[3], &out->up_bias);
}

int delta__ah_invertible(struct delta_builder *b, const char *kind, enum kern_act act,
                         const struct delta__ah *ah)
{
    const struct model_config *m = model_config(b->m);
    const size_t d = m->d_embed, half = d / 2;
    struct delta_coupling c = {.f = {.scale = 1.0f, .act = act},
                               .g = {.scale = 1.0f, .act = act},
                               .row_scale =
                                   ah->interface && m->scales_behind_table ? m->embed_scale : 1.0f};
    int rc;

    /* The library's own GLOW blocks stop with an error at their first input. */
    if (strcmp(kind, "nice") != 0)
        return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, "inv_adapter",
                                  "inv_adapter %.60s is not computed", kind);
    rc = read_subnet(b, ah->name, 'F', d - half, half, &c.f);
    if (rc == 0)
        rc = read_subnet(b, ah->name, 'G', half, d - half, &c.g);
    return rc < 0 ? rc : delta__add_coupling(b, &c);
}
