/* core/delta/read_peft_tokens.c - PEFT's trainable tokens: rows of an embedding that were
 * trained, `<module>.trainable_tokens_delta` (tokens, width). They replace the base's,
 * whatever their name says, and an output head that is tied to the table follows. Which
 * tokens they are stands in the configuration only. */
#include <stdlib.h>
#include <string.h>

#include "core/delta/delta_internal.h"

/* Where a row stands in the file. */
struct place {
    uint32_t id, row;
};

static int compare(const void *pa, const void *pb)
{
    const struct place *a = pa, *b = pb;

    return a->id < b->id ? -1 : a->id > b->id;
}

static int read_ids(struct delta_builder *b, const json_t *list, size_t n_rows, struct place *out)
{
    size_t i;
    json_t *v;

    json_array_foreach(list, i, v)
    {
        const json_int_t id = json_integer_value(v);

        if (!json_is_integer(v) || id < 0 || (uint64_t)id >= n_rows)
            return core_err_set_param(b->err, CORE_E_ADAPTER_MISMATCH, "token_indices",
                                      "token_indices[%zu]: expected a number of one of %zu tokens",
                                      i, n_rows);
        out[i] = (struct place){(uint32_t)id, (uint32_t)i};
    }
    qsort(out, i, sizeof(*out), compare);
    for (size_t k = 1; k < i; k++)
        if (out[k].id == out[k - 1].id)
            return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "token_indices",
                                      "token_indices: token %u stands twice", out[k].id);
    return 0;
}

/* The file has rows of the output head too. */
static bool has_head_rows(const struct delta_builder *b, const char *suffix)
{
    for (size_t i = 0; i < b->tensors.n; i++) {
        const char *name = b->tensors.t[i].name, *at = strstr(name, suffix);
        struct model_module mod;

        if (!at || at[strlen(suffix)] != '\0' || strncmp(name, "base_model.model.", 17) != 0)
            continue;
        model_module(b->m, name + 17, (size_t)(at - name) - 17, &mod);
        if (mod.n_parts && site_kind_of(mod.site[0]) == SITE_LM_HEAD)
            return true;
    }
    return false;
}

/* Adds the rows, whose numbers are sorted, to the head that is tied to the table, unless the
 * file has the head's own. */
static int add_tied(struct delta_builder *b, const struct delta__module *m, const uint32_t *id,
                    const float *row, size_t n)
{
    struct delta__place head;

    if (!model_config(b->m)->is_tied || site_kind_of(m->p.site) != SITE_EMBED_TOKENS ||
        has_head_rows(b, m->path + m->n_path) ||
        !delta__place_at(b, m->p.t, site_make(0, SITE_LM_HEAD), &head))
        return 0;
    return delta__add_rowset(b, &head, id, row, n);
}

int delta__token_rows(struct delta_builder *b, const struct delta__module *m, const json_t *id)
{
    const bool is_table = site_kind_class(site_kind_of(m->p.site)) == SITE_CLASS_EMBED;
    const size_t n = json_array_size(id), width = is_table ? m->p.n_out : m->p.n_in;
    struct place *at = delta__scratch(b, n, sizeof(*at));
    uint32_t *ids = delta__scratch(b, n, sizeof(*ids));
    const float *values;
    float *row;
    int rc = delta__expect(b, m->p.t, 2, n, width);

    if (rc == 0)
        rc = delta__floats(b, m->p.t, &values);
    if (rc < 0)
        return rc;
    if (!at || !ids || !delta__computed(b, m->p.t, n, width, &row))
        return CORE_E_NOMEM;
    rc = read_ids(b, id, is_table ? m->p.n_in : m->p.n_out, at);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < n; i++) {
        ids[i] = at[i].id;
        memcpy(row + i * width, values + at[i].row * width, width * sizeof(*row));
    }
    rc = delta__add_rowset(b, &m->p, ids, row, n);
    return rc < 0 ? rc : add_tied(b, m, ids, row, n);
}

static int read_rows(struct delta_builder *b, const struct delta__module *m, const void *config)
{
    const json_t *id = json_object_get(config, "token_indices");

    if (!json_is_array(id))
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "token_indices",
                                  "token_indices: expected a list");
    return delta__token_rows(b, m, id);
}

int delta__peft_trainable_tokens(struct delta_builder *b, const json_t *config)
{
    return delta__each_module(b, ".trainable_tokens_delta", read_rows, config);
}
