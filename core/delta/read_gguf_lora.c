/* core/delta/read_gguf_lora.c - llama.cpp's LoRA: one GGUF file, as its convert_lora_to_gguf.py
 * writes it.
 *
 * Pairs NAME.weight.lora_a [rank, n_in] and NAME.weight.lora_b [n_out, rank], NAME being the
 * base's tensor in GGUF; of token_embd, lora_a is [vocabulary, rank]. The scale is
 * alpha / rank, and 1 where alpha is 0 or absent, as llama.cpp has it.
 *
 * Where the family's GGUF interleaves the rows of q and k, so does lora_b. The base stands in
 * Hugging Face's order here, whatever its file was (core/model/load.c): they are put back. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/delta/delta_internal.h"
#include "core/weights/weights.h"

#define FILE_NAME DELTA__GGUF_LORA
#define ALORA "adapter.alora.invocation_tokens"

static bool is_text(const struct gguf_str *s, const char *text)
{
    return s->n == strlen(text) && memcmp(s->p, text, s->n) == 0;
}

/* CORE_E_ADAPTER_UNSUPPORTED unless the key holds this text. */
static int expect_text(struct delta_builder *b, const struct gguf *g, const char *key,
                       const char *text, const char *hint)
{
    struct gguf_str s = {"nothing", 7};

    if (gguf_get_str(g, key, &s) && is_text(&s, text))
        return 0;
    return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, key,
                              FILE_NAME ": %s is %.*s, expected %s%s", key,
                              s.n > 60 ? 60 : (int)s.n, s.p, text, hint);
}

static int check_architecture(struct delta_builder *b, const struct gguf *g)
{
    const char *ours = model_gguf_name(b->m);
    struct gguf_str s = {"nothing", 7};

    if (!ours)
        return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, "general.architecture",
                                  FILE_NAME ": of bases of type %s no GGUF is read",
                                  model_config(b->m)->arch);
    if (gguf_get_str(g, "general.architecture", &s) && is_text(&s, ours))
        return 0;
    return core_err_set_param(b->err, CORE_E_ADAPTER_MISMATCH, "general.architecture",
                              FILE_NAME ": general.architecture is %.*s, this base's %s",
                              s.n > 60 ? 60 : (int)s.n, s.p, ours);
}

/* The tokens of an activated LoRA. */
static int read_invocation(struct delta_builder *b, const struct gguf *g)
{
    double value[DELTA_INVOCATION_MAX];
    size_t n = 0;
    bool is_list = gguf_get_array(g, ALORA, &n);

    for (size_t i = 0; is_list && i < n && i < DELTA_INVOCATION_MAX; i++)
        is_list = gguf_array_f64(g, ALORA, i, &value[i]);
    if (!is_list)
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, ALORA,
                                  FILE_NAME ": " ALORA ": expected a list of tokens");
    return delta__invocation(b, ALORA, value, n);
}

static int read_metadata(struct delta_builder *b, const struct gguf *g, double *alpha)
{
    int rc = expect_text(b, g, "general.type", "adapter",
                         ": a whole model is served with --model, it is no adapter");

    if (rc == 0)
        rc = expect_text(b, g, "adapter.type", "lora", "");
    if (rc == 0)
        rc = check_architecture(b, g);
    if (rc < 0)
        return rc;
    if (gguf_has(g, ALORA))
        rc = read_invocation(b, g);
    if (rc < 0)
        return rc;
    *alpha = 0.0;
    if (gguf_has(g, "adapter.lora.alpha") &&
        (!gguf_get_f64(g, "adapter.lora.alpha", alpha) || !isfinite(*alpha)))
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "adapter.lora.alpha",
                                  FILE_NAME ": adapter.lora.alpha: expected a finite float");
    return 0;
}

/* ---- tensors --------------------------------------------------------------------------- */

static int find_place(struct delta_builder *b, const struct tensor *t, size_t n,
                      struct delta__place *out)
{
    struct delta__place p = {.t = t};

    model_gguf_module(b->m, t->name, n, &p.mod);
    if (p.mod.n_parts == 0)
        return core_err_set_param(b->err, CORE_E_ADAPTER_MISMATCH, t->name,
                                  "tensor %s: this base has no %.*s.weight in GGUF", t->name,
                                  (int)(n < 200 ? n : 200), t->name);
    p.site = p.mod.site[0];
    p.n_in = p.mod.n_in;
    p.n_out = p.mod.n_out;
    *out = p;
    return 0;
}

/* *t, a matrix, in a type that is computed with. */
static int plain(struct delta_builder *b, const struct tensor **t)
{
    const struct tensor *made;
    float *value;

    delta__take(b, *t);
    if (!tensor_type_is_quantised((*t)->type))
        return 0;
    made = delta__computed(b, *t, (*t)->dim[0], (*t)->dim[1], &value);
    if (!made)
        return CORE_E_NOMEM;
    tensor_to_f32(*t, 0, tensor_n_values(*t), value);
    *t = made;
    return 0;
}

/* A matrix of t's type, name and size, zeros; *bytes its data. */
static struct tensor *like(struct delta_builder *b, const struct tensor *t, unsigned char **bytes)
{
    struct tensor *made = delta__scratch(b, 1, sizeof(*made));

    *bytes = made ? delta__scratch(b, 1, t->n_bytes) : NULL;
    if (!*bytes)
        return NULL;
    *made = *t;
    made->data = *bytes;
    return made;
}

/* *down [vocabulary, rank] becomes [rank, vocabulary]. */
static int transpose(struct delta_builder *b, const struct tensor **down)
{
    const size_t n_rows = (*down)->dim[0], n_cols = (*down)->dim[1];
    const size_t size = tensor_type_block_bytes((*down)->type);
    const unsigned char *from = (*down)->data;
    unsigned char *to;
    struct tensor *made = like(b, *down, &to);

    if (!made)
        return CORE_E_NOMEM;
    for (size_t r = 0; r < n_rows; r++)
        for (size_t c = 0; c < n_cols; c++)
            memcpy(to + (c * n_rows + r) * size, from + (r * n_cols + c) * size, size);
    made->dim[0] = n_cols;
    made->dim[1] = n_rows;
    *down = made;
    return 0;
}

/* The rows of *up [n_out, rank] in Hugging Face's order. */
static int reorder(struct delta_builder *b, const struct delta__place *p, const struct tensor **up)
{
    const size_t size = (*up)->n_bytes / (*up)->dim[0];
    const unsigned char *from = (*up)->data;
    unsigned char *to;
    struct tensor *made = like(b, *up, &to);

    if (!made)
        return CORE_E_NOMEM;
    for (size_t r = 0; r < p->n_out; r++)
        memcpy(to + r * size, from + model_gguf_row(b->m, p->site, r) * size, size);
    *up = made;
    return 0;
}

/* The pair whose lora_a is t, named NAME[0..n).weight.lora_a. */
static int add_pair(struct delta_builder *b, const struct tensor *t, size_t n, double alpha)
{
    struct delta__lowrank in = {.down = t, .up = delta__find(b, t->name, n, ".weight.lora_b")};
    struct delta__place p;
    bool is_table;
    int rc = find_place(b, t, n, &p);

    if (rc < 0)
        return rc;
    if (!in.up)
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, t->name,
                                  "tensor %s stands without its lora_b", t->name);
    if (t->n_dims != 2 || t->dim[0] == 0 || t->dim[1] == 0)
        return delta__misfit(b, t, "a matrix");
    is_table = site_kind_class(site_kind_of(p.site)) == SITE_CLASS_EMBED;
    rc = is_table ? delta__expect(b, t, 2, p.n_in, t->dim[1])
                  : delta__expect(b, t, 2, t->dim[0], p.n_in);
    if (rc == 0)
        rc = delta__expect(b, in.up, 2, p.n_out, t->dim[is_table]);
    if (rc == 0)
        rc = plain(b, &in.down);
    if (rc == 0)
        rc = plain(b, &in.up);
    if (rc == 0 && is_table)
        rc = transpose(b, &in.down);
    if (rc == 0 && model_gguf_row(b->m, p.site, 1) != 1)
        rc = reorder(b, &p, &in.up);
    in.is_invoked = b->n_invocation > 0;
    in.scale = alpha != 0.0 ? (float)(alpha / (double)t->dim[is_table]) : 1.0f;
    return rc < 0 ? rc : delta__add_lowrank(b, &p, &in);
}

int delta__read_gguf_lora(struct delta_builder *b, const struct core_file *f)
{
    static const char suffix[] = ".weight.lora_a";
    const size_t n_suffix = sizeof(suffix) - 1;
    struct gguf *g = NULL;
    double alpha = 0.0;
    int rc = gguf_read(f->bytes, f->n_bytes, &g, b->err);

    if (rc == 0)
        rc = read_metadata(b, g, &alpha);
    for (size_t i = 0; rc == 0 && i < gguf_tensors(g)->n; i++)
        rc = tensor_list_add(&b->tensors, &gguf_tensors(g)->t[i], b->err);
    gguf_free(g); /* names are copied, data lies in the file */
    if (rc == 0)
        rc = delta__tensors_ready(b);
    for (size_t i = 0; rc == 0 && i < b->tensors.n; i++) {
        const struct tensor *t = &b->tensors.t[i];
        const size_t n = strlen(t->name);

        if (n > n_suffix && strcmp(t->name + n - n_suffix, suffix) == 0)
            rc = add_pair(b, t, n - n_suffix, alpha);
    }
    snprintf(b->method, sizeof(b->method), "lora");
    b->plan.form = DELTA__FORM_LM;
    return rc;
}
