/* core/delta/peft_targets.c - which modules a configuration's target_modules names, where the
 * file has no tensors of theirs. PEFT matches the names of all linears of a class: the whole
 * name or its end. What a class has outside its layers differs (heads, a pooler), so a list that
 * names such a module is refused. */
#include <stdlib.h>
#include <string.h>

#include "core/delta/delta_internal.h"

enum { TARGETS_MAX = 4096 };

struct target {
    const char *text;
    site_id site; /* of the module of that whole name, or SITE_NONE */
};

struct targets {
    struct target *target;
    size_t n;
};

static int refuse(struct delta_builder *b, const char *key, const char *why)
{
    return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, key,
                              "%s: %s, and the file does not say which modules it changes", key,
                              why);
}

/* Path is the target, or ends with it as a name. */
static bool ends_with(const char *path, const char *target)
{
    const size_t n = strlen(path), n_end = strlen(target);

    return n >= n_end && strcmp(path + n - n_end, target) == 0 &&
           (n == n_end || path[n - n_end - 1] == '.');
}

static bool is_named(const struct targets *t, const char *path, site_id site)
{
    for (size_t i = 0; i < t->n; i++)
        if (ends_with(path, t->target[i].text) || (site != SITE_NONE && t->target[i].site == site))
            return true;
    return false;
}

static int read_list(struct delta_builder *b, const json_t *config, struct targets *out)
{
    static const char key[] = "target_modules";
    static const char *const narrower[] = {"layers_to_transform", "exclude_modules"};
    const json_t *list = json_object_get(config, key), *v;
    size_t i;

    for (i = 0; i < sizeof(narrower) / sizeof(narrower[0]); i++) {
        v = json_object_get(config, narrower[i]);
        if (v && !json_is_null(v) && !(json_is_array(v) && json_array_size(v) == 0))
            return refuse(b, narrower[i], "it is not computed here");
    }
    if (!json_is_array(list) || json_array_size(list) > TARGETS_MAX)
        return refuse(b, key, "a pattern, or no list of names");
    out->target = delta__scratch(b, json_array_size(list), sizeof(*out->target));
    if (!out->target)
        return CORE_E_NOMEM;
    json_array_foreach(list, i, v)
    {
        struct target *t = &out->target[out->n++];
        struct model_module m;

        t->text = json_string_value(v);
        if (!t->text)
            return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, key,
                                      "%s: expected a list of names", key);
        model_module(b->m, t->text, strlen(t->text), &m);
        t->site = m.n_parts ? m.site[0] : SITE_NONE;
    }
    return 0;
}

static int refuse_heads(struct delta_builder *b, const struct targets *t)
{
    static const enum model_form form[] = {MODEL_FORM_SEQUENCE, MODEL_FORM_TOKENS, MODEL_FORM_SPAN,
                                           MODEL_FORM_CHOICE};

    for (size_t i = 0; i < sizeof(form) / sizeof(form[0]); i++) {
        const struct model_head *h = model_head(b->m, form[i]);

        for (unsigned k = 0; h && k < MODEL_HEAD_LAYERS_MAX && h->layer[k].path; k++)
            if (is_named(t, h->layer[k].path, SITE_NONE))
                return refuse(b, "target_modules", "it names a layer of a head");
    }
    return 0;
}

static bool is_outside_layers(enum site_kind kind)
{
    return kind == SITE_EMBED_PROJ || kind == SITE_CONV || kind == SITE_POOLER ||
           kind == SITE_LM_HEAD;
}

struct found {
    uint64_t registered;
    struct delta__place p;
};

static int compare(const void *a, const void *b)
{
    const uint64_t x = ((const struct found *)a)->registered;
    const uint64_t y = ((const struct found *)b)->registered;

    return (x > y) - (x < y);
}

/* The site's module, if it is the first of its parts and the list names it. */
static int find_at(struct delta_builder *b, const struct tensor *as, const struct targets *t,
                   site_id s, struct found *out, size_t *n)
{
    struct delta__place p;
    size_t n_in, n_out;
    char path[256];
    int rc;

    if (site_kind_class(site_kind_of(s)) != SITE_CLASS_LINEAR ||
        !model_site_dims(b->m, s, &n_in, &n_out))
        return 0;
    model_site_path(b->m, s, path, sizeof(path));
    if (!is_named(t, path, s))
        return 0;
    if (is_outside_layers(site_kind_of(s)))
        return refuse(b, "target_modules", "it names a module outside the layers");
    rc = delta__place(b, as, path, strlen(path), false, &p);
    if (rc == 0 && p.site == s)
        out[(*n)++] = (struct found){model_registered(b->m, s), p};
    return rc;
}

int delta__peft_targets(struct delta_builder *b, const json_t *config, const struct tensor *as,
                        struct delta__place **out, size_t *n)
{
    const size_t n_sites = (size_t)model_config(b->m)->n_layers * SITE_N_KINDS;
    struct targets t = {0};
    struct found *found;
    int rc = read_list(b, config, &t);

    if (rc == 0)
        rc = refuse_heads(b, &t);
    if (rc < 0)
        return rc;
    found = delta__scratch(b, n_sites, sizeof(*found));
    *out = delta__scratch(b, n_sites, sizeof(**out));
    if (!found || !*out)
        return CORE_E_NOMEM;
    *n = 0;
    for (size_t s = 0; rc == 0 && s < n_sites; s++)
        rc = find_at(b, as, &t, (site_id)s, found, n);
    if (rc == 0 && *n == 0)
        rc = core_err_set_param(b->err, CORE_E_ADAPTER_MISMATCH, "target_modules",
                                "target_modules: this base has none of these modules");
    if (rc < 0)
        return rc;
    qsort(found, *n, sizeof(*found), compare);
    for (size_t i = 0; i < *n; i++)
        (*out)[i] = found[i].p;
    return 0;
}
