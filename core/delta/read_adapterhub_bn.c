/* core/delta/read_adapterhub_bn.c - AdapterHub's bottlenecks: one LOWRANK with a join
 * at each place that has an adapter_up.weight.
 *
 * The configuration gives the switches of struct delta_bottleneck (all places alike), the
 * tensors give places and widths; reduction factors and left-out layers follow. */
#include <stdio.h>
#include <string.h>

#include "core/delta/delta_internal.h"

/* torch.nn.LayerNorm's own default, which the library leaves as it is. */
static const float join_norm_eps = 1e-5f;

struct bottleneck {
    struct delta_bottleneck join;
    bool ln_before, ln_after;
    enum kern_act act;
    float scale;
    const char *scaling; /* "learned", "channel" or NULL: `scale` */
    const json_t *config, *interface;
    bool has_mh, has_output, has_cross, has_gate;
    struct delta__ah_phm phm;
};

/* The norm that a plug-in model hands to all places of a kind: the library looks it up when
 * a layer runs, by a name that its loop over the layers has left at the last one. 0: none. */
static site_id plugged_norm(const struct delta_builder *b, const struct bottleneck *o,
                            enum site_kind join)
{
    const bool is_attn = join == SITE_ATTN_JOIN;
    const site_id site = site_make(model_config(b->m)->n_layers - 1,
                                   is_attn ? SITE_ATTN_POST_NORM : SITE_FFN_POST_NORM);
    const json_t *names = json_object_get(o->interface, "interface");

    return model_norm_gamma(b->m, site) &&
                   json_is_string(json_object_get(names, is_attn ? "layer_ln_1" : "layer_ln_2"))
               ? site
               : 0;
}

static int read_residual(struct delta_builder *b, const json_t *config, struct bottleneck *o)
{
    const json_t *v = json_object_get(config, "residual_before_ln");
    const char *text = json_string_value(v);

    o->join.residual_before_ln = DELTA_RES_BEFORE;
    if (!v || json_is_null(v) || json_is_true(v))
        return 0;
    if (json_is_false(v)) {
        o->join.residual_before_ln = DELTA_RES_AFTER;
        return 0;
    }
    /* The library computes "post_add" only where a norm follows the addition. */
    if (text && strcmp(text, "post_add") == 0 && o->join.original_ln_before &&
        (model_last_stack(model_config(b->m))->is_post_norm ||
         plugged_norm(b, o, SITE_ATTN_JOIN))) {
        o->join.residual_before_ln = DELTA_RES_POST_ADD;
        return 0;
    }
    return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, "residual_before_ln",
                              "residual_before_ln: this value is not computed here");
}

static int read_scaling(struct delta_builder *b, const json_t *config, struct bottleneck *o)
{
    const json_t *v = json_object_get(config, "scaling");
    const char *text = json_string_value(v);
    const bool is_tensor = text && (strcmp(text, "learned") == 0 || strcmp(text, "channel") == 0);
    double scale = 1.0;
    int rc = 0;

    if (is_tensor)
        o->scaling = text;
    else
        rc = delta__json_number(b, config, "scaling", 1.0, &scale);
    o->scale = (float)scale;
    if (rc == 0 && !(scale >= -1e30 && scale <= 1e30))
        rc =
            core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "scaling", "scaling: got %g", scale);
    return rc;
}

/* Version 1 of the library wrote the option (at first as an object, "invertible_adapter")
 * into task adapters, which did not have them: there it means nothing unless their tensors
 * are in the file, as the library decides too. */
static bool wants_invertible(const struct delta_builder *b, const struct delta__ah *ah)
{
    static const char *const kind[] = {"invertible_adapters", "invertible_lang_adapters"};
    const char *rest;
    bool is_there = !ah->is_text_task;

    for (size_t i = 0; !is_there && i < b->tensors.n; i++)
        for (size_t k = 0; k < sizeof(kind) / sizeof(kind[0]); k++)
            is_there |= delta__ah_mark(b->tensors.t[i].name, kind[k], ah->name, &rest) != NULL;
    return is_there;
}

static void drop_invertible(struct delta_builder *b, const struct delta__ah *ah)
{
    const char *rest;

    for (size_t i = 0; i < b->tensors.n; i++)
        if (delta__ah_mark(b->tensors.t[i].name, "invertible_adapters", ah->name, &rest))
            delta__take(b, &b->tensors.t[i]);
}

/* The invertible adapter, if there is one. */
static int read_invertible(struct delta_builder *b, const json_t *config,
                           const struct delta__ah *ah, enum kern_act act)
{
    const json_t *old = json_object_get(config, "invertible_adapter");
    const char *kind;
    int rc;

    if (ah->place == DELTA__AH_LATER) { /* the library computes the first adapter's only */
        drop_invertible(b, ah);
        return 0;
    }
    if (!wants_invertible(b, ah))
        return 0;
    rc = delta__json_str(b, config, "inv_adapter", NULL, &kind);
    if (rc == 0 && !kind && json_is_object(old)) {
        const char *name;

        rc = delta__json_str(b, old, "block_type", NULL, &kind);
        if (rc == 0)
            rc = delta__json_str(b, old, "nonlinearity", NULL, &name);
        if (rc == 0 && name)
            rc = delta__ah_act(b, name, ah->has_old_gelu, &act);
    }
    return rc < 0 || !kind ? rc : delta__ah_invertible(b, kind, act, ah);
}

static int read_switches(struct delta_builder *b, const json_t *config, const struct delta__ah *ah,
                         struct bottleneck *o)
{
    const struct {
        const char *key;
        bool dflt, *out;
    } flag[] = {
        {"is_parallel", false, &o->join.is_parallel},
        {"original_ln_before", false, &o->join.original_ln_before},
        {"original_ln_after", true, &o->join.original_ln_after},
        {"adapter_residual_before_ln", false, &o->join.adapter_residual_before_ln},
        {"ln_before", false, &o->ln_before},
        {"ln_after", false, &o->ln_after},
        {"mh_adapter", false, &o->has_mh},
        {"output_adapter", true, &o->has_output},
        {"cross_adapter", false, &o->has_cross},
        {"use_gating", false, &o->has_gate},
    };
    const char *act;
    int rc = delta__ah_phm_read(b, config, ah, &o->phm);

    for (size_t i = 0; rc == 0 && i < sizeof(flag) / sizeof(flag[0]); i++)
        rc = delta__json_bool(b, config, flag[i].key, flag[i].dflt, flag[i].out);
    if (rc == 0)
        rc = read_residual(b, config, o);
    if (rc == 0)
        rc = read_scaling(b, config, o);
    if (rc == 0)
        rc = delta__json_str(b, config, "non_linearity", "relu", &act);
    if (rc == 0)
        rc = delta__ah_act(b, act, ah->has_old_gelu, &o->act);
    if (rc == 0)
        rc = read_invertible(b, config, ah, o->act);
    if (rc == 0 && o->join.is_parallel) { /* these switches mean nothing there */
        o->join.original_ln_before = o->join.adapter_residual_before_ln = false;
        o->join.residual_before_ln = DELTA_RES_BEFORE;
    }
    o->join.ln_eps = join_norm_eps;
    o->join.weight = ah->weight;
    return rc;
}

/* The tensor `suffix` of the place name[0..n), which must be there. */
static int find_part(struct delta_builder *b, const struct tensor *up, size_t n, const char *suffix,
                     const struct tensor **out)
{
    *out = delta__find(b, up->name, n, suffix);
    if (*out)
        return 0;
    return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, up->name, "tensor %.*s%s is missing",
                              n < 300 ? (int)n : 300, up->name, suffix);
}

/* A norm's vector of d values. */
static int norm_vector(struct delta_builder *b, const struct tensor *up, size_t n,
                       const char *suffix, size_t d, const float **out)
{
    const struct tensor *t;
    int rc = find_part(b, up, n, suffix, &t);

    if (rc == 0)
        rc = delta__expect(b, t, 1, d, 0);
    return rc < 0 ? rc : delta__floats(b, t, out);
}

/* With ln_before the norm is stored twice, as a member of its own and as the first of
 * the sequence. */
static int take_norm_copy(struct delta_builder *b, const struct tensor *up, size_t n,
                          const char *suffix, const char *of)
{
    const struct tensor *copy = delta__find(b, up->name, n, suffix);
    const struct tensor *t = delta__find(b, up->name, n, of);

    if (!copy || !t)
        return 0;
    if (!delta__is_copy(copy, t))
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, copy->name,
                                  "tensor %s differs from %s, of which it is a copy", copy->name,
                                  t->name);
    delta__take(b, copy);
    return 0;
}

static int read_join_norms(struct delta_builder *b, const struct bottleneck *o,
                           const struct tensor *up, size_t n, size_t d, struct delta_bottleneck *j)
{
    int rc = 0;

    if (o->ln_before) {
        rc = norm_vector(b, up, n, "adapter_down.0.weight", d, &j->ln_before_gamma);
        if (rc == 0)
            rc = norm_vector(b, up, n, "adapter_down.0.bias", d, &j->ln_before_beta);
        if (rc == 0)
            rc = take_norm_copy(b, up, n, "adapter_norm_before.weight", "adapter_down.0.weight");
        if (rc == 0)
            rc = take_norm_copy(b, up, n, "adapter_norm_before.bias", "adapter_down.0.bias");
    }
    if (rc == 0 && o->ln_after)
        rc = norm_vector(b, up, n, "adapter_norm_after.weight", d, &j->ln_after_gamma);
    if (rc == 0 && o->ln_after)
        rc = norm_vector(b, up, n, "adapter_norm_after.bias", d, &j->ln_after_beta);
    return rc;
}

static int read_scaling_tensor(struct delta_builder *b, const struct bottleneck *o,
                               const struct tensor *up, size_t n, struct delta__lowrank *in)
{
    const struct tensor *t;
    const float *value;
    int rc;

    in->scale = o->scale;
    if (!o->scaling)
        return 0;
    rc = find_part(b, up, n, "scaling", &t);
    if (rc < 0)
        return rc;
    if (strcmp(o->scaling, "channel") == 0) {
        in->scale_vec = t;
        return 0;
    }
    rc = delta__expect(b, t, 1, 1, 0);
    if (rc == 0)
        rc = delta__floats(b, t, &value);
    if (rc == 0)
        in->scale = value[0];
    return rc;
}

/* True if the configuration puts a bottleneck there; the library ignores others. */
static bool is_wanted(const struct bottleneck *o, const struct delta__place *p)
{
    const enum site_kind kind = site_kind_of(p->site);

    return ((kind == SITE_ATTN_JOIN && o->has_mh) || (kind == SITE_FFN_JOIN && o->has_output) ||
            (kind == SITE_CROSS_JOIN && o->has_cross)) &&
           delta__ah_has_layer(o->config, site_layer_of(p->site));
}

/* The layers down and up of the place name[0..n). */
static int read_layers(struct delta_builder *b, const struct bottleneck *o, const struct tensor *up,
                       size_t n, struct delta__lowrank *in)
{
    const char *down_w = o->ln_before ? "adapter_down.1.weight" : "adapter_down.0.weight";
    const char *down_b = o->ln_before ? "adapter_down.1.bias" : "adapter_down.0.bias";
    int rc = find_part(b, up, n, down_w, &in->down);

    in->up = up;
    if (rc == 0)
        rc = find_part(b, up, n, down_b, &in->down_bias);
    if (rc == 0)
        rc = find_part(b, up, n, "adapter_up.bias", &in->up_bias);
    return rc;
}

/* The same of a compacter, whose layers are not stored as they are. */
static int fold_layers(struct delta_builder *b, const struct bottleneck *o, const struct tensor *up,
                       size_t n, size_t d, struct delta__lowrank *in)
{
    struct delta__ah_phm_layer l = {.n_in = d, .position = "down"};
    char *path = delta__scratch(b, n + 32, 1);
    int rc;

    if (!path)
        return CORE_E_NOMEM;
    l.path = path;
    l.n = (size_t)snprintf(path, n + 32, "%.*sadapter_down.%d.", (int)n, up->name, o->ln_before);
    rc = delta__ah_phm_width(b, &o->phm, l.path, l.n, d, &l.n_out);
    if (rc == 0)
        rc = delta__ah_phm_fold(b, &o->phm, &l, &in->down, &in->down_bias);
    if (rc < 0)
        return rc;
    l = (struct delta__ah_phm_layer){
        .path = path, .position = "up", .n_in = l.n_out, .n_out = l.n_in};
    l.n = (size_t)snprintf(path, n + 32, "%.*sadapter_up.", (int)n, up->name);
    return delta__ah_phm_fold(b, &o->phm, &l, &in->up, &in->up_bias);
}

/* One place; `up` is its adapter_up.weight, name[0..n) all before that, and
 * name[0..n_path) the place. */
static int add_place(struct delta_builder *b, const struct bottleneck *o, const struct tensor *up,
                     size_t n, size_t n_path)
{
    struct delta_bottleneck *join = delta__scratch(b, 1, sizeof(*join));
    struct delta__lowrank in = {.act = o->act, .join = join};
    struct delta__place p;
    int rc;

    if (!join)
        return CORE_E_NOMEM;
    *join = o->join;
    rc = delta__place(b, up, up->name, n_path, true, &p);
    if (rc < 0 || !is_wanted(o, &p))
        return rc;
    join->original_ln = plugged_norm(b, o, site_kind_of(p.site));
    rc = o->phm.is_on ? fold_layers(b, o, up, n, p.n_out, &in) : read_layers(b, o, up, n, &in);
    if (rc == 0)
        rc = read_join_norms(b, o, up, n, p.n_out, join);
    if (rc == 0)
        rc = read_scaling_tensor(b, o, up, n, &in);
    if (rc == 0 && o->has_gate)
        rc = find_part(b, up, n, "gate.weight", &in.gate_w);
    if (rc == 0 && o->has_gate)
        rc = find_part(b, up, n, "gate.bias", &in.gate_b);
    return rc < 0 ? rc : delta__add_lowrank(b, &p, &in);
}

static bool has_bottleneck(const struct delta_builder *b, site_id site)
{
    for (size_t i = 0; i < b->n_ops; i++)
        if (b->op[i].site == site && b->op[i].kind == DELTA_LOWRANK &&
            b->op[i].lowrank.member == b->member)
            return true;
    return false;
}

/* Every place that the configuration promises: the library would fill a missing one with
 * random numbers. */
static int check_places(struct delta_builder *b, const struct bottleneck *o)
{
    static const struct {
        enum site_kind kind;
        const char *key;
    } place[] = {{SITE_ATTN_JOIN, "mh_adapter"},
                 {SITE_FFN_JOIN, "output_adapter"},
                 {SITE_CROSS_JOIN, "cross_adapter"}};
    char path[160];

    for (unsigned layer = 0; layer < model_config(b->m)->n_layers; layer++)
        for (size_t i = 0; i < sizeof(place) / sizeof(place[0]); i++) {
            struct delta__place p;

            if (!delta__place_at(b, NULL, site_make(layer, place[i].kind), &p))
                continue; /* an encoder has no cross attention */
            if (is_wanted(o, &p) && !has_bottleneck(b, p.site))
                return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, place[i].key,
                                          "%s is set, but the adapter of %s is missing",
                                          place[i].key,
                                          model_site_path(b->m, p.site, path, sizeof(path)));
        }
    return 0;
}

int delta__ah_bottleneck(struct delta_builder *b, const json_t *config, const struct delta__ah *ah)
{
    /* All but the first are names of old files. */
    static const char *const kind[] = {"adapters", "attention_text_task_adapters",
                                       "attention_text_lang_adapters", "layer_text_task_adapters",
                                       "layer_text_lang_adapters"};
    struct bottleneck o = {.scale = 1.0f, .config = config, .interface = ah->interface};
    const char *rest, *mark_of_place = "adapter_up.weight";
    int rc = read_switches(b, config, ah, &o);

    if (rc == 0)
        rc = delta__ah_check_hooks(b, ah);
    if (rc == 0 && ah->interface && !o.join.original_ln_after)
        rc = core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, "original_ln_after",
                                "original_ln_after false is not computed in a plug-in model");
    if (rc == 0 && o.phm.is_on)
        mark_of_place = delta__ah_phm_mark(&o.phm);
    for (size_t i = 0; rc == 0 && i < b->tensors.n; i++)
        for (size_t k = 0; rc == 0 && k < sizeof(kind) / sizeof(kind[0]); k++) {
            const struct tensor *t = &b->tensors.t[i];
            const char *mark = delta__ah_mark(t->name, kind[k], ah->name, &rest);

            if (mark && mark != t->name && strcmp(rest, mark_of_place) == 0)
                rc = add_place(b, &o, t, (size_t)(rest - t->name), (size_t)(mark - t->name) - 1);
        }
    if (rc == 0)
        rc = check_places(b, &o);
    if (rc == 0)
        snprintf(b->method, sizeof(b->method), "%s",
                 o.phm.is_on                ? "compacter"
                 : o.join.is_parallel       ? "parallel"
                 : o.has_mh && o.has_output ? "houlsby"
                                            : "pfeiffer");
    return rc;
}
