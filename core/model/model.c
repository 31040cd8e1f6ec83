/* core/model/model.c - opening and closing a base model. Its names: names.c. */
#include "core/model/model.h"

#include <stdio.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/model/arch.h"
#include "core/model/packed.h"
#include "core/tok/tok.h"

static void set_file(struct model_config *c, const char *path)
{
    const char *end = path + strlen(path), *from;

    while (end > path && end[-1] == '/')
        end--;
    from = end;
    while (from > path && from[-1] != '/')
        from--;
    snprintf(c->file, sizeof(c->file), "%.*s", (int)(end - from), from);
}

static int open_config(struct model *m, const char *path, struct core_err *err)
{
    const struct gguf *g = weights_gguf(m->weights);

    set_file(&m->config, path);
    return g ? model__config_gguf(&m->config, &m->arch, g, &m->chat_template, err)
             : model__config_folder(&m->config, &m->arch, path, &m->chat_template, err);
}

/* Of one model all 8-bit x is alike: quantised weights take it as it is, and beside them so do
 * floats; but for those that take what floats have by themselves, too. */
static enum gemm_precision precision_for(const struct weights *w, const struct kern_table *k,
                                         enum gemm_precision asked)
{
    const struct tensor_list *l = weights_tensors(w);
    const enum gemm_precision own = gemm_int8_at(k);

    for (size_t i = 0; i < l->n; i++)
        if (tensor_type_is_quantised(l->t[i].type) && !gemm_takes(k, own, l->t[i].type))
            return asked;
    return asked == GEMM_INT8 ? own : asked;
}

/* A model without a tokenizer is served for token inputs; one with a tokenizer that
 * we cannot follow is an error. */
static int open_tokenizer(struct model *m, const char *path, struct core_err *err)
{
    struct core_err why = {0};
    const int rc =
        tok_open_path(&m->tok, path, weights_gguf(m->weights), &m->arch->tokenizer, &why);

    if (rc == 0 || rc == CORE_E_NO_TOKENIZER)
        return 0;
    return core_err_set_param(err, rc, why.param, "%s", why.msg);
}

int model_open(struct model **out, const char *path, const struct model_options *opt,
               struct core_err *err)
{
    struct model *m = core_calloc(1, sizeof(*m));
    int rc;

    if (!m)
        return core_err_nomem(err, "model");
    kern_table_init(&m->kern, opt ? opt->levels : 0);
    m->precision = opt ? opt->precision : GEMM_EXACT;
    rc = weights_open(&m->weights, path, err);
    if (rc == 0) {
        m->precision = precision_for(m->weights, &m->kern, m->precision);
        rc = open_config(m, path, err);
    }
    if (rc == 0)
        rc = model__load(m, opt, err);
    if (rc == 0)
        rc = model__load_dense(m, path, err);
    if (rc == 0)
        rc = open_tokenizer(m, path, err);
    if (rc == 0) {
        *out = m;
        m = NULL;
    }
    model_close(&m);
    return rc;
}

void model_close(struct model **mp)
{
    struct model *m = *mp;

    if (!m)
        return;
    for (size_t i = 0; m->site && i < m->n_sites; i++) {
        gemm_weight_free(m->site[i].w);
        core_free(m->site[i].bias);
        core_free(m->site[i].gamma);
        core_free(m->site[i].beta);
    }
    core_free(m->site);
    core_room_free(&m->room);
    model__cache_close(m);
    for (unsigned i = 0; i < 2; i++)
        packed_close(&m->packed[i]);
    for (unsigned i = 0; i < MODEL_ROPES_MAX; i++)
        for (unsigned k = 0; k < 2; k++)
            core_free(m->inv_freq[i][k]);
    for (unsigned i = 0; i < MODEL_STACKS_MAX; i++)
        core_free(m->distance[i]);
    for (unsigned i = 0; i < MODEL_DENSE_MAX; i++)
        weights_close(&m->dense_weights[i]);
    core_free(m->chat_template);
    tok_close(&m->tok);
    weights_close(&m->weights);
    core_free(m);
    *mp = NULL;
}

const struct model_config *model_config(const struct model *m)
{
    return &m->config;
}

enum gemm_precision model_precision(const struct model *m)
{
    return m->precision;
}

const struct kern_table *model_kern(const struct model *m)
{
    return &m->kern;
}

const struct tok *model_tok(const struct model *m)
{
    return m->tok;
}

const char *model_chat_template(const struct model *m)
{
    return m->chat_template;
}

const char *model_hash(const struct model *m)
{
    return m->hash;
}

const struct model_cache *model_cache(const struct model *m)
{
    return &m->cache;
}

size_t model_bytes(const struct model *m)
{
    return m->n_bytes;
}
