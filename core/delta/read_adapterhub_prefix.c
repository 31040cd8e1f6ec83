/* core/delta/read_adapterhub_prefix.c - AdapterHub's prefixes: an embedding and a
 * two-layer MLP, or one flat vector. The MLP's output does not depend on the input, so it
 * is computed here, once, in f32.
 *
 * Every layer holds a reference to the pool of prefixes, and .bin files store each: the
 * same tensors come once for the model and once for each layer. */
#include <stdio.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/delta/delta_internal.h"

enum { LAYERS_MAX = 4096, TOKENS_MAX = 1024 };

/* The first tensor of the prefix called `part`, the model's own before the layers'; its
 * copies, which must be equal, are taken. NULL if there is none. */
static int find_once(struct delta_builder *b, const char *name, const char *part,
                     const struct tensor **out)
{
    const struct tensor *first = NULL;
    const char *rest;

    for (int copies = 0; copies < 2; copies++)
        for (size_t i = 0; i < b->tensors.n; i++) {
            const struct tensor *t = &b->tensors.t[i];
            const char *mark = delta__ah_mark(t->name, "prefix_tunings", name, &rest);
            bool is_copy;

            if (!mark || strcmp(rest, part) != 0)
                continue;
            is_copy = mark - t->name >= 5 && strncmp(mark - 5, "pool.", 5) == 0;
            if (is_copy != (copies == 1))
                continue;
            if (!first) {
                first = t;
                continue;
            }
            if (!delta__is_copy(t, first))
                return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, t->name,
                                          "tensor %s differs from %s, of which it is a copy",
                                          t->name, first->name);
            delta__take(b, t);
        }
    *out = first;
    return 0;
}

/* One of the prefixes that an adapter has: of its name, at one kind of attention. */
struct which {
    const char *name, *place; /* place: "self_prefix" */
};

static int find_part(struct delta_builder *b, const struct which *which, const char *part,
                     const struct tensor **out)
{
    char full[96], only[96];
    int rc;

    snprintf(full, sizeof(full), "%s.%s", which->place, part);
    rc = find_once(b, which->name, full, out);
    /* "self" where a model has no other attention */
    if (rc == 0 && !*out && strcmp(which->place, "self_prefix") == 0) {
        snprintf(only, sizeof(only), "self.%s", part);
        rc = find_once(b, which->name, only, out);
    }
    if (rc < 0 || *out)
        return rc;
    return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, part,
                              "tensor %s of prefix %.100s is missing", full, which->name);
}

/* y [n_tokens, n_out] = x W^T + bias, y in scratch memory. */
static int dense(struct delta_builder *b, const struct tensor *w, const struct tensor *bias,
                 const float *x, size_t n_tokens, float **out)
{
    const size_t n_in = w->dim[1], n_out = w->dim[0];
    struct delta_mat m;
    const float *add;
    size_t n;
    float *y;
    int rc = delta__matrix(b, w, n_out, n_in, &m);

    if (rc == 0)
        rc = delta__expect(b, bias, 1, n_out, 0);
    if (rc == 0)
        rc = delta__floats(b, bias, &add);
    if (rc < 0)
        return rc;
    if (!core_mul_size(n_tokens, n_out, &n))
        return core_err_nomem(b->err, w->name);
    y = delta__scratch(b, n, sizeof(*y));
    if (!y)
        return CORE_E_NOMEM;
    model_kern(b->m)->dots(n_tokens, n_out, n_in, x, n_in, m.type, m.data, n_in, y, n_out);
    for (size_t i = 0; i < n_tokens; i++)
        for (size_t j = 0; j < n_out; j++)
            y[i * n_out + j] += add[j];
    *out = y;
    return 0;
}

/* Columns that the keys and values of the layers have. */
static size_t n_columns(const struct delta_builder *b, const struct delta__prefix *p)
{
    size_t n_in, width = 0;

    if (!model_site_dims(b->m, site_make(p->layer[0], p->kind), &n_in, &width))
        return 0;
    return 2 * width * p->n_layers;
}

static int fold_mlp(struct delta_builder *b, const struct which *which, enum kern_act act,
                    struct delta__prefix *p)
{
    const struct tensor *wte, *w1, *b1, *w2, *b2;
    const size_t n_cols = n_columns(b, p);
    const float *x;
    float *hidden, *kv;
    int rc = find_part(b, which, "wte.weight", &wte);

    if (rc == 0)
        rc = find_part(b, which, "control_trans.0.weight", &w1);
    if (rc == 0)
        rc = find_part(b, which, "control_trans.0.bias", &b1);
    if (rc == 0)
        rc = find_part(b, which, "control_trans.2.weight", &w2);
    if (rc == 0)
        rc = find_part(b, which, "control_trans.2.bias", &b2);
    if (rc < 0)
        return rc;
    p->t = w2;
    p->n_cols = n_cols;
    if (wte->n_dims != 2 || wte->dim[0] > TOKENS_MAX)
        return delta__misfit(b, wte, "[tokens, width] with at most 1024 tokens");
    if (w1->n_dims != 2 || w1->dim[1] != wte->dim[1])
        return delta__misfit(b, w1, "[bottleneck, width of the prefix embedding]");
    rc = delta__expect(b, w2, 2, n_cols, w1->dim[0]);
    if (rc == 0)
        rc = delta__floats(b, wte, &x);
    if (rc < 0)
        return rc;
    p->n_tokens = wte->dim[0];
    rc = dense(b, w1, b1, x, p->n_tokens, &hidden);
    if (rc < 0)
        return rc;
    model_kern(b->m)->act(act, p->n_tokens * w1->dim[0], hidden, hidden);
    rc = dense(b, w2, b2, hidden, p->n_tokens, &kv);
    p->kv = kv;
    return rc;
}

static int read_flat(struct delta_builder *b, const struct which *which, struct delta__prefix *p)
{
    const struct tensor *t;
    int rc = find_part(b, which, "control_trans", &t);

    if (rc < 0)
        return rc;
    p->t = t;
    p->n_cols = n_columns(b, p);
    if (t->n_dims != 1 || p->n_cols == 0 || t->dim[0] % p->n_cols != 0)
        return delta__misfit(b, t, "[tokens x 2 x layers x width]");
    p->n_tokens = t->dim[0] / p->n_cols;
    return delta__floats(b, t, &p->kv);
}

/* The attentions of a stack that have the prefix: of all layers but `leave_out`. */
static unsigned list_layers(const struct model_stack *s, const json_t *config, unsigned *layer)
{
    unsigned n = 0;

    for (unsigned i = s->first_layer; i < s->first_layer + s->n_layers && n < LAYERS_MAX; i++)
        if (delta__ah_has_layer(config, i))
            layer[n++] = i;
    return n;
}

struct options {
    const struct delta__ah *ah;
    const json_t *config;
    enum kern_act act;
    double n_tokens;
    bool is_flat, is_gated, is_shared;
};

/* One or two gates of each layer, in the order of p->layer. */
static int read_gates(struct delta_builder *b, const char *name, bool is_shared,
                      struct delta__prefix *p)
{
    struct delta_gate(*gate)[2] = delta__scratch(b, p->n_layers, sizeof(*gate));
    const size_t d = model_config(b->m)->d_model, n = is_shared ? 1 : 2;
    const char *rest;
    int rc = 0;

    if (!gate)
        return CORE_E_NOMEM;
    for (size_t i = 0; rc == 0 && i < b->tensors.n; i++) {
        const struct tensor *w = &b->tensors.t[i], *bias;
        const char *mark = delta__ah_mark(w->name, "prefix_tuning.prefix_gates", name, &rest);
        struct delta__place place;
        unsigned j = 0;

        if (!mark || mark == w->name || strcmp(rest, "weight") != 0)
            continue;
        rc = delta__place(b, w, w->name, (size_t)(mark - w->name) - 1, false, &place);
        while (rc == 0 && j < p->n_layers && site_make(p->layer[j], p->kind) != place.site)
            j++;
        bias = delta__find(b, w->name, (size_t)(rest - w->name), "bias");
        if (rc < 0 || j == p->n_layers || !bias)
            continue; /* another place's, or left over by name */
        rc = delta__gate(b, w, bias, 0, n, d, &gate[j][0]);
        gate[j][1] = gate[j][0];
        if (rc == 0 && !is_shared)
            rc = delta__gate(b, w, bias, 1, n, d, &gate[j][1]);
    }
    for (unsigned j = 0; rc == 0 && j < p->n_layers; j++)
        if (!gate[j][0].w)
            rc = core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "use_gating",
                                    "use_gating is set, but layer %u has no prefix_gates",
                                    p->layer[j]);
    p->gate = (const struct delta_gate(*)[2])gate;
    return rc;
}

/* The prefix of one kind of attention of one stack. *n counts those that have layers. */
static int add_place(struct delta_builder *b, const struct options *o, const char *place,
                     unsigned stack, enum site_kind kind, unsigned *n)
{
    const struct which which = {o->ah->name, place};
    unsigned layer[LAYERS_MAX];
    struct delta__prefix p = {
        .layer = layer, .kind = kind, .is_pinned = true, .is_stacked = o->ah->is_behind};
    int rc;

    p.n_layers = list_layers(&model_config(b->m)->stack[stack], o->config, layer);
    if (p.n_layers == 0)
        return 0;
    (*n)++;
    rc = o->is_flat ? read_flat(b, &which, &p) : fold_mlp(b, &which, o->act, &p);
    if (rc < 0)
        return rc;
    if (o->n_tokens != 0.0 && o->n_tokens != (double)p.n_tokens)
        return delta__misfit(b, p.t, "prefix_length tokens, and layers less leave_out");
    if (o->is_gated)
        rc = read_gates(b, o->ah->name, o->is_shared, &p);
    return rc < 0 ? rc : delta__add_prefix(b, &p);
}

/* Of an encoder-decoder three kinds of attention have prefixes of their own; the
 * configuration may leave out the encoder's or the cross attention's. */
static int add_places(struct delta_builder *b, const struct options *o)
{
    const bool has_two = model_config(b->m)->n_stacks > 1;
    bool has_encoder = true, has_cross = true;
    unsigned n = 0;
    int rc = 0;

    if (has_two) {
        rc = delta__json_bool(b, o->config, "encoder_prefix", true, &has_encoder);
        if (rc == 0)
            rc = delta__json_bool(b, o->config, "cross_prefix", true, &has_cross);
        if (rc == 0 && has_encoder)
            rc = add_place(b, o, "encoder_prefix", 0, SITE_ATTN, &n);
        if (rc == 0 && has_cross)
            rc = add_place(b, o, "cross_prefix", 1, SITE_CROSS_ATTN, &n);
    }
    if (rc == 0)
        rc = add_place(b, o, "self_prefix", has_two, SITE_ATTN, &n);
    if (rc == 0 && n == 0)
        rc = core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "leave_out",
                                "leave_out leaves no layer for the prefix");
    return rc;
}

int delta__ah_prefix(struct delta_builder *b, const json_t *config, const struct delta__ah *ah)
{
    struct options o = {.ah = ah, .config = config};
    const char *text;
    int rc = 0;

    if (ah->n_mixed > 1)
        rc = core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, "adapter_setup.json",
                                "adapter_setup.json: prefixes are not mixed");
    if (rc == 0)
        rc = delta__json_bool(b, config, "flat", false, &o.is_flat);
    if (rc == 0)
        rc = delta__json_bool(b, config, "use_gating", false, &o.is_gated);
    if (rc == 0)
        rc = delta__json_bool(b, config, "shared_gating", true, &o.is_shared);
    if (rc == 0)
        rc = delta__json_number(b, config, "prefix_length", 0, &o.n_tokens);
    if (rc == 0)
        rc = delta__json_str(b, config, "non_linearity", "tanh", &text);
    if (rc == 0)
        rc = delta__ah_act(b, text, ah->has_old_gelu, &o.act);
    if (rc == 0)
        rc = add_places(b, &o);
    snprintf(b->method, sizeof(b->method), "prefix");
    return rc;
}
