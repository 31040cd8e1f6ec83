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

static int find_part(struct delta_builder *b, const char *name, const char *part,
                     const struct tensor **out)
{
    const int rc = find_once(b, name, part, out);

    if (rc < 0 || *out)
        return rc;
    return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, part,
                              "tensor %s of prefix %.100s is missing", part, name);
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

/* Columns that n layers' keys and values have. */
static size_t n_columns(const struct delta_builder *b, const unsigned *layer, unsigned n)
{
    size_t n_in, width = 0;

    if (n == 0 || !model_site_dims(b->m, site_make(layer[0], SITE_ATTN), &n_in, &width))
        return 0;
    return 2 * width * n;
}

static int fold_mlp(struct delta_builder *b, const char *name, enum kern_act act,
                    struct delta__prefix *p)
{
    const struct tensor *wte, *w1, *b1, *w2, *b2;
    const size_t n_cols = n_columns(b, p->layer, p->n_layers);
    const float *x;
    float *hidden, *kv;
    int rc = find_part(b, name, "self_prefix.wte.weight", &wte);

    if (rc == 0)
        rc = find_part(b, name, "self_prefix.control_trans.0.weight", &w1);
    if (rc == 0)
        rc = find_part(b, name, "self_prefix.control_trans.0.bias", &b1);
    if (rc == 0)
        rc = find_part(b, name, "self_prefix.control_trans.2.weight", &w2);
    if (rc == 0)
        rc = find_part(b, name, "self_prefix.control_trans.2.bias", &b2);
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

static int read_flat(struct delta_builder *b, const char *name, struct delta__prefix *p)
{
    const struct tensor *t;
    int rc = find_part(b, name, "self_prefix.control_trans", &t);

    if (rc < 0)
        return rc;
    p->t = t;
    p->n_cols = n_columns(b, p->layer, p->n_layers);
    if (t->n_dims != 1 || p->n_cols == 0 || t->dim[0] % p->n_cols != 0)
        return delta__misfit(b, t, "[tokens x 2 x layers x width]");
    p->n_tokens = t->dim[0] / p->n_cols;
    return delta__floats(b, t, &p->kv);
}

/* The layers that have the prefix: all but `leave_out`. */
static int list_layers(struct delta_builder *b, const json_t *config, unsigned *layer, unsigned *n)
{
    const unsigned n_layers = model_config(b->m)->n_layers;

    *n = 0;
    for (unsigned i = 0; i < n_layers && i < LAYERS_MAX; i++)
        if (delta__ah_has_layer(config, i))
            layer[(*n)++] = i;
    if (*n)
        return 0;
    return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "leave_out",
                              "leave_out leaves no layer for the prefix");
}

int delta__ah_prefix(struct delta_builder *b, const json_t *config, const struct delta__ah *ah)
{
    static const char *const option[] = {"use_gating", NULL};
    unsigned layer[LAYERS_MAX];
    struct delta__prefix p = {.layer = layer};
    enum kern_act act;
    const char *text;
    double n_tokens;
    bool is_flat;
    int rc = delta__json_refuse(b, config, option);

    if (rc == 0)
        rc = delta__json_bool(b, config, "flat", false, &is_flat);
    if (rc == 0)
        rc = delta__json_number(b, config, "prefix_length", 0, &n_tokens);
    if (rc == 0)
        rc = delta__json_str(b, config, "non_linearity", "tanh", &text);
    if (rc == 0)
        rc = delta__ah_act(b, text, ah->has_old_gelu, &act);
    if (rc == 0)
        rc = list_layers(b, config, layer, &p.n_layers);
    if (rc == 0)
        rc = is_flat ? read_flat(b, ah->name, &p) : fold_mlp(b, ah->name, act, &p);
    if (rc < 0)
        return rc;
    if (n_tokens != 0.0 && n_tokens != (double)p.n_tokens)
        return delta__misfit(b, p.t, "prefix_length tokens, and layers less leave_out");
    snprintf(b->method, sizeof(b->method), "prefix");
    return delta__add_prefix(b, &p);
}
