/* core/delta/read_adapterhub_setup.c - several adapters of AdapterHub in one task, as
 * save_adapter_setup() writes them: adapter_setup.json with a tree of Stack, Average and
 * Fuse, and a folder for each adapter, each fusion and the head. The folders are numbered:
 * a file is called "3.adapter_config.json", and configurations say of what they are.
 *
 * A tree becomes steps, one after the other: a single adapter, an average or a fusion of
 * several. Each adapter is then read as one that stands alone; what the step does with
 * several of them is in struct delta_join, or folded into the operation. */
#include <stdio.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/delta/delta_internal.h"
#include "core/weights/weights.h"

enum { ADAPTERS_MAX = 12, FOLDERS_MAX = 3 * ADAPTERS_MAX };

struct step {
    const char *name[ADAPTERS_MAX], *folder[ADAPTERS_MAX];
    double weight[ADAPTERS_MAX];
    unsigned n;
    bool is_fusion;
    const char *fusion_name, *fusion_folder;
};

struct setup {
    struct step step[ADAPTERS_MAX];
    unsigned n, n_adapters;
    const char *top; /* the tree's own type */
};

static int unsupported(struct delta_builder *b, const char *what, const char *name)
{
    return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, "adapter_setup.json",
                              "adapter_setup.json: %s%.60s is not computed", what, name);
}

/* ---- the tree ------------------------------------------------------------------------ */

/* The name of a leaf, or NULL. */
static const char *single_name(const json_t *node)
{
    const char *type = json_string_value(json_object_get(node, "type"));

    if (!type || strcmp(type, "single") != 0)
        return NULL;
    return json_string_value(json_array_get(json_object_get(node, "children"), 0));
}

static int add_name(struct delta_builder *b, struct setup *s, struct step *t, const char *name,
                    double weight)
{
    if (s->n_adapters == ADAPTERS_MAX)
        return unsupported(b, "a setup of so many adapters", "");
    s->n_adapters++;
    t->name[t->n] = name;
    t->weight[t->n++] = weight;
    return 0;
}

/* An average or a fusion of single adapters. */
static int read_mix(struct delta_builder *b, const json_t *node, struct setup *s)
{
    const json_t *children = json_object_get(node, "children"), *child;
    const json_t *kwargs = json_object_get(node, "kwargs");
    const json_t *weights = json_object_get(kwargs, "weights");
    const bool is_fusion = strcmp(json_string_value(json_object_get(node, "type")), "Fuse") == 0;
    struct step *t = &s->step[s->n];
    double sum = 0;
    size_t i;
    int rc = 0;

    *t = (struct step){.is_fusion = is_fusion};
    json_array_foreach(children, i, child)
    {
        const json_t *w = json_array_get(weights, i);

        if (!single_name(child))
            return unsupported(b, "a block inside ", is_fusion ? "Fuse" : "Average");
        if (rc == 0)
            rc = add_name(b, s, t, single_name(child), w ? json_number_value(w) : 1.0);
    }
    for (unsigned k = 0; k < t->n; k++)
        sum += t->weight[k];
    if (rc == 0 && (t->n == 0 || !(sum > 0 || sum < 0) || sum != sum ||
                    (weights && json_array_size(weights) != t->n)))
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "adapter_setup.json",
                                  "adapter_setup.json: no children, or no weight for each");
    /* the library normalises weights when it reads them */
    for (unsigned k = 0; rc == 0 && k < t->n; k++)
        t->weight[k] = json_is_false(json_object_get(kwargs, "normalize_weights"))
                           ? t->weight[k]
                           : t->weight[k] / sum;
    s->n++;
    return rc;
}

static int read_node(struct delta_builder *b, const json_t *node, bool is_top, struct setup *s)
{
    const char *type = json_string_value(json_object_get(node, "type"));
    const json_t *child;
    size_t i;
    int rc = 0;

    if (!type)
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "adapter_setup.json",
                                  "adapter_setup.json: a block without its type");
    if (s->n == ADAPTERS_MAX)
        return unsupported(b, "a setup of so many adapters", "");
    if (single_name(node)) {
        s->step[s->n] = (struct step){0};
        return add_name(b, s, &s->step[s->n++], single_name(node), 1.0);
    }
    if (strcmp(type, "Average") == 0 || strcmp(type, "Fuse") == 0)
        return read_mix(b, node, s);
    if (strcmp(type, "Stack") != 0 || !is_top)
        return unsupported(b, "", type);
    json_array_foreach(json_object_get(node, "children"), i, child)
    {
        rc = read_node(b, child, false, s);
        if (rc < 0)
            break;
    }
    return rc;
}

/* A fusion's name: its own, or its children's. */
static int name_fusions(struct delta_builder *b, struct setup *s)
{
    for (unsigned i = 0; i < s->n; i++) {
        struct step *t = &s->step[i];
        size_t size = 1, at = 0;
        char *name;

        if (!t->is_fusion)
            continue;
        for (unsigned k = 0; k < t->n; k++)
            size += strlen(t->name[k]) + 1;
        name = delta__scratch(b, size, 1);
        if (!name)
            return CORE_E_NOMEM;
        for (unsigned k = 0; k < t->n; k++)
            at += (size_t)snprintf(name + at, size - at, "%s%s", k ? "," : "", t->name[k]);
        t->fusion_name = name;
    }
    return 0;
}

/* ---- files ---------------------------------------------------------------------------- */

/* "NUMBER.FILE" of the folder whose `config` file says this name; NULL with the error set. */
static const char *folder_of(struct delta_builder *b, const char *config, const char *name)
{
    const size_t size = strlen(config) + 16;
    char *path = delta__scratch(b, size, 1);

    for (unsigned i = 0; path && i < FOLDERS_MAX; i++) {
        json_t *j = NULL;
        const char *own;
        bool is_it;

        snprintf(path, size, "%u.%s", i, config);
        if (delta__json_file(b, path, &j) < 0)
            return NULL;
        own = json_string_value(json_object_get(j, "name"));
        is_it = own && strcmp(own, name) == 0;
        json_decref(j);
        if (is_it) {
            path[strlen(path) - strlen(config)] = 0; /* "NUMBER." */
            return path;
        }
    }
    if (path)
        core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "adapter_setup.json",
                           "adapter_setup.json: %s of '%.100s' is not among the files", config,
                           name);
    return NULL;
}

static const char *path_of(struct delta_builder *b, const char *folder, const char *file)
{
    const size_t n = strlen(folder) + strlen(file) + 1;
    char *path = delta__scratch(b, n, 1);

    if (path)
        snprintf(path, n, "%s%s", folder, file);
    return path;
}

static int load_one_of(struct delta_builder *b, const char *folder, const char *safetensors,
                       const char *bin, bool *is_found)
{
    const char *first = path_of(b, folder, safetensors), *second = path_of(b, folder, bin);

    return first && second ? delta__ah_load_one_of(b, first, second, is_found) : CORE_E_NOMEM;
}

static int missing(struct delta_builder *b, const char *folder, const char *what)
{
    return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "adapter_setup.json",
                              "adapter_setup.json: %s of '%.100s' are not among the files", what,
                              folder);
}

static int find_folders(struct delta_builder *b, struct setup *s)
{
    for (unsigned i = 0; i < s->n; i++) {
        struct step *t = &s->step[i];

        for (unsigned k = 0; k < t->n; k++) {
            t->folder[k] = folder_of(b, "adapter_config.json", t->name[k]);
            if (!t->folder[k])
                return b->err->code;
        }
        if (!t->is_fusion)
            continue;
        t->fusion_folder = folder_of(b, "adapter_fusion_config.json", t->fusion_name);
        if (!t->fusion_folder)
            return b->err->code;
    }
    return 0;
}

/* Static model classes save the one head of the model with every adapter: of these the
 * first counts, and the others must be the same. */
static int load_heads(struct delta_builder *b, const struct setup *s, const char *head,
                      const char **folder)
{
    const struct core_file *first = NULL;

    *folder = NULL;
    if (head) {
        *folder = folder_of(b, "head_config.json", head);
        return *folder ? 0 : b->err->code;
    }
    for (unsigned i = 0; i < s->n; i++)
        for (unsigned k = 0; k < s->step[i].n; k++) {
            const char *path = path_of(b, s->step[i].folder[k], "pytorch_model_head.bin");
            const char *safe = path_of(b, s->step[i].folder[k], "model_head.safetensors");
            const struct core_file *f;

            if (!path || !safe)
                return CORE_E_NOMEM;
            f = core_file_find(b->file, b->n_files, path);
            f = f ? f : core_file_find(b->file, b->n_files, safe);
            if (f && !first) {
                first = f;
                *folder = s->step[i].folder[k];
            } else if (f && (f->n_bytes != first->n_bytes ||
                             memcmp(f->bytes, first->bytes, f->n_bytes) != 0)) {
                return unsupported(b, "a setup whose adapters have heads of their own", "");
            }
        }
    return 0;
}

static int load(struct delta_builder *b, const struct setup *s, const char *head,
                const char **head_folder)
{
    bool is_found;
    int rc = load_heads(b, s, head, head_folder);

    for (unsigned i = 0; i < s->n; i++) {
        const struct step *t = &s->step[i];

        for (unsigned k = 0; rc == 0 && k < t->n; k++) {
            rc = load_one_of(b, t->folder[k], "adapter.safetensors", "pytorch_adapter.bin",
                             &is_found);
            if (rc == 0 && !is_found)
                rc = missing(b, t->name[k], "the tensors");
        }
        if (rc < 0 || !t->is_fusion)
            continue;
        rc = load_one_of(b, t->fusion_folder, "model_adapter_fusion.safetensors",
                         "pytorch_model_adapter_fusion.bin", &is_found);
        if (rc == 0 && !is_found)
            rc = missing(b, t->fusion_name, "the tensors");
    }
    if (rc == 0 && *head_folder)
        rc = load_one_of(b, *head_folder, "model_head.safetensors", "pytorch_model_head.bin",
                         &is_found);
    return rc < 0 ? rc : delta__tensors_ready(b);
}

/* ---- adapters -------------------------------------------------------------------------- */

static int check_method(struct delta_builder *b, const json_t *config)
{
    static const char *const known[] = {"", "lora", "prefix_tuning"};
    const char *arch;
    int rc = delta__json_str(b, config, "architecture", "", &arch);

    for (size_t i = 0; rc == 0 && i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(known[i], arch) == 0)
            return 0;
    return rc < 0 ? rc : unsupported(b, "a composition of ", arch);
}

/* Adapter k of step i. */
static int read_adapter(struct delta_builder *b, const struct setup *s, unsigned i, unsigned k)
{
    const struct step *t = &s->step[i];
    const bool is_mix = t->n > 1;
    struct delta__ah ah = {.name = t->name[k],
                           .place = i == 0 && k == 0 ? DELTA__AH_FIRST : DELTA__AH_LATER,
                           .weight = (float)t->weight[k],
                           .n_mixed = t->n,
                           .is_fused = t->is_fusion,
                           .is_behind = i > 0 && !is_mix};
    const char *path = path_of(b, t->folder[k], "adapter_config.json"), *class_name;
    const char *hooks = path_of(b, t->folder[k], "adapter_interface.json");
    json_t *config = NULL, *interface = NULL, *method;
    int rc = path && hooks ? delta__json_file(b, path, &config) : CORE_E_NOMEM;

    if (rc == 0 && !config)
        rc = missing(b, t->name[k], "adapter_config.json and tensors");
    if (rc == 0)
        rc = delta__json_file(b, hooks, &interface);
    ah.interface = interface;
    if (rc == 0)
        rc = delta__json_str(b, config, "version", NULL, &ah.version);
    if (rc == 0)
        rc = delta__json_str(b, config, "model_class", NULL, &class_name);
    method = json_object_get(config, "config");
    ah.has_old_gelu = rc == 0 && ah.version == NULL;
    if (rc == 0)
        rc = check_method(b, method);
    b->step = i;
    b->member = b->member + 1;
    if (rc == 0) {
        b->plan.is_bare = delta__ah_is_bare(class_name);
        b->plan.uncouples |= interface != NULL;
        rc = delta__ah_method(b, method, &ah);
    }
    json_decref(interface);
    json_decref(config);
    return rc;
}

/* ---- fusion ----------------------------------------------------------------------------- */

/* A linear of the fusion whose tensors begin with path[0..n); absent unless `is_on`. */
static int read_linear(struct delta_builder *b, const struct tensor *t, size_t n, const char *name,
                       bool is_on, struct delta_mat *m, const float **bias)
{
    const size_t d = model_config(b->m)->d_model;
    const struct tensor *w, *add;
    char suffix[32];
    int rc;

    if (!is_on)
        return 0;
    snprintf(suffix, sizeof(suffix), "%s.weight", name);
    w = delta__find(b, t->name, n, suffix);
    snprintf(suffix, sizeof(suffix), "%s.bias", name);
    add = bias ? delta__find(b, t->name, n, suffix) : NULL;
    if (!w || (bias && !add))
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, t->name,
                                  "tensor %s stands without its %s", t->name, name);
    rc = delta__matrix(b, w, d, d, m);
    if (rc == 0 && add)
        rc = delta__expect(b, add, 1, d, 0);
    return rc < 0 || !add ? rc : delta__floats(b, add, bias);
}

struct fusion {
    struct delta_fusion all; /* of each place, without its matrices */
    bool has_query, has_key, has_value;
};

static int read_fusion_config(struct delta_builder *b, const struct step *t, struct fusion *f)
{
    static const char *const option[] = {"temperature", NULL}; /* falls with every call */
    const char *path = path_of(b, t->fusion_folder, "adapter_fusion_config.json");
    json_t *file = NULL;
    const json_t *config;
    const struct {
        const char *key;
        bool dflt, *out;
    } flag[] = {
        {"query", true, &f->has_query},
        {"key", true, &f->has_key},
        {"value", true, &f->has_value},
        {"query_before_ln", false, &f->all.query_before_ln},
        {"residual_before", false, &f->all.residual_before},
        {"value_before_softmax", true, &f->all.value_before_softmax},
    };
    int rc = path ? delta__json_file(b, path, &file) : CORE_E_NOMEM;

    config = json_object_get(file, "config");
    if (rc == 0 && !json_is_object(config))
        rc = missing(b, t->fusion_name, "adapter_fusion_config.json and tensors");
    if (rc == 0)
        rc = delta__json_refuse(b, config, option);
    for (size_t i = 0; rc == 0 && i < sizeof(flag) / sizeof(flag[0]); i++)
        rc = delta__json_bool(b, config, flag[i].key, flag[i].dflt, flag[i].out);
    if (rc == 0 && !f->has_query && !f->has_key && !f->has_value)
        rc = unsupported(b, "a fusion without query, key and value", "");
    json_decref(file);
    return rc;
}

static unsigned n_members(const struct delta_builder *b, site_id site, unsigned step)
{
    unsigned n = 0;

    for (size_t i = 0; i < b->n_ops; i++)
        n += b->op[i].kind == DELTA_LOWRANK && b->op[i].site == site && b->op[i].lowrank.join &&
             b->op[i].lowrank.step == step;
    return n;
}

/* One place; t->name[0..n) stands before the linears' names, name[0..n_path) is the place.
 * Where the adapters are left out, the fusion has nothing to do. */
static int add_fusion(struct delta_builder *b, const struct fusion *f, const struct tensor *t,
                      size_t n, size_t n_path)
{
    struct delta_fusion x = f->all;
    struct delta__place p;
    int rc = delta__place(b, t, t->name, n_path, true, &p);

    if (rc == 0)
        rc = read_linear(b, t, n, "query", f->has_query, &x.query, &x.query_bias);
    if (rc == 0)
        rc = read_linear(b, t, n, "key", f->has_key, &x.key, &x.key_bias);
    if (rc == 0)
        rc = read_linear(b, t, n, "value", f->has_value, &x.value, NULL);
    if (rc < 0 || n_members(b, p.site, b->step) == 0)
        return rc;
    return delta__add_fusion(b, &p, &x);
}

static int read_fusion(struct delta_builder *b, const struct step *t)
{
    struct fusion f = {0};
    const char *rest, *first;
    int rc = read_fusion_config(b, t, &f);

    first = f.has_query ? "query.weight" : f.has_key ? "key.weight" : "value.weight";
    for (size_t i = 0; rc == 0 && i < b->tensors.n; i++) {
        const struct tensor *w = &b->tensors.t[i];
        const char *mark = delta__ah_mark(w->name, "adapter_fusion_layer", t->fusion_name, &rest);

        if (mark && mark != w->name && strcmp(rest, first) == 0)
            rc = add_fusion(b, &f, w, (size_t)(rest - w->name), (size_t)(mark - w->name) - 1);
    }
    return rc;
}

/* Where a step mixes, the library needs all of its adapters, and a fusion its linears. */
static int check_mixes(struct delta_builder *b, const struct setup *s)
{
    char path[160];

    for (size_t i = 0; i < b->n_ops; i++) {
        const struct delta__op *op = &b->op[i];
        unsigned n_fusions = 0;

        if (op->kind != DELTA_LOWRANK || !op->lowrank.join)
            continue;
        for (size_t k = 0; k < b->n_ops; k++)
            n_fusions += b->op[k].kind == DELTA_FUSION && b->op[k].site == op->site &&
                         b->op[k].fusion.step == op->lowrank.step;
        if (n_members(b, op->site, op->lowrank.step) != s->step[op->lowrank.step].n ||
            n_fusions != s->step[op->lowrank.step].is_fusion)
            return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "adapter_setup.json",
                                      "adapter_setup.json: an adapter or the fusion is missing at "
                                      "%s",
                                      model_site_path(b->m, op->site, path, sizeof(path)));
    }
    return 0;
}

static int read_all(struct delta_builder *b, const struct setup *s)
{
    bool is_fusion = false;
    int rc = 0;

    for (unsigned i = 0; rc == 0 && i < s->n; i++) {
        for (unsigned k = 0; rc == 0 && k < s->step[i].n; k++)
            rc = read_adapter(b, s, i, k);
        if (rc == 0 && s->step[i].is_fusion)
            rc = read_fusion(b, &s->step[i]);
        is_fusion |= s->step[i].is_fusion;
    }
    if (rc == 0 && b->n_gates)
        rc = unsupported(b, "use_gating in a composition", "");
    if (rc == 0)
        rc = check_mixes(b, s);
    snprintf(b->method, sizeof(b->method), "%s",
             is_fusion                        ? "fusion"
             : strcmp(s->top, "Average") == 0 ? "average"
                                              : "stack");
    return rc;
}

int delta__read_setup(struct delta_builder *b, const json_t *file)
{
    const json_t *tree = json_object_get(file, "adapter_setup");
    const json_t *head_setup = json_object_get(file, "head_setup");
    const char *head = json_string_value(head_setup), *folder = NULL, *path;
    struct setup *s = delta__scratch(b, 1, sizeof(*s));
    json_t *head_config = NULL;
    int rc = s ? read_node(b, tree, true, s) : CORE_E_NOMEM;

    if (rc == 0 && head_setup && !head && !json_is_null(head_setup) && !json_is_boolean(head_setup))
        rc = unsupported(b, "a head_setup of several heads", "");
    if (rc == 0 && s->n == 0)
        rc = core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "adapter_setup.json",
                                "adapter_setup.json: no adapters");
    if (rc < 0)
        return rc;
    s->top = json_string_value(json_object_get(tree, "type"));
    rc = name_fusions(b, s);
    if (rc == 0)
        rc = find_folders(b, s);
    if (rc == 0)
        rc = load(b, s, head, &folder);
    if (rc == 0)
        rc = read_all(b, s);
    if (rc < 0 || !folder)
        return rc;
    path = path_of(b, folder, "head_config.json");
    rc = path ? delta__json_file(b, path, &head_config) : CORE_E_NOMEM;
    if (rc == 0 && !head_config)
        rc = missing(b, folder, "head_config.json and tensors");
    if (rc == 0)
        rc = delta__ah_head(b, head_config);
    json_decref(head_config);
    return rc;
}
