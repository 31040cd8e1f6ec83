/* core/model/model.c - opening and closing a base model, and its name table. The
 * forward pass is fwd.h's; reading order: model.h, bert.c, sites.c. */
#include "core/model/model.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/model/arch.h"
#include "core/tok/tok.h"

const char *site_kind_text(enum site_kind kind)
{
    static const char *const text[] = {
#define X(name, cls, t) t,
        SITE_MAP(X)
#undef X
    };

    return text[kind];
}

enum site_class site_kind_class(enum site_kind kind)
{
    static const enum site_class cls[] = {
#define X(name, c, t) SITE_CLASS_##c,
        SITE_MAP(X)
#undef X
    };

    return cls[kind];
}

static int open_config(struct model *m, const char *path, struct core_err *err)
{
    const struct gguf *g = weights_gguf(m->weights);

    return g ? model__config_gguf(&m->config, &m->arch, g, &m->chat_template, err)
             : model__config_folder(&m->config, &m->arch, path, &m->chat_template, err);
}

/* A model without a tokenizer is served for token inputs; one with a tokenizer that
 * we cannot follow is an error. */
static int open_tokenizer(struct model *m, const char *path, struct core_err *err)
{
    struct core_err why = {0};
    const int rc = tok_open_path(&m->tok, path, weights_gguf(m->weights), &why);

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
    rc = weights_open(&m->weights, path, err);
    if (rc == 0)
        rc = open_config(m, path, err);
    if (rc == 0)
        rc = model__load(m, err);
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
    core_free(m->inv_freq);
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

size_t model_bytes(const struct model *m)
{
    return m->n_bytes;
}

/* ---- the name table -------------------------------------------------------- */

/* Matches path[0..n) against a pattern with at most one %u; *layer receives it. */
static bool path_matches(const char *pattern, const char *path, size_t n, unsigned *layer)
{
    size_t i = 0;

    *layer = 0;
    for (const char *p = pattern; *p; p++) {
        if (p[0] == '%' && p[1] == 'u') {
            unsigned v = 0;
            const size_t from = i;

            while (i < n && path[i] >= '0' && path[i] <= '9' && i - from < 6)
                v = v * 10 + (unsigned)(path[i++] - '0');
            if (i == from)
                return false;
            *layer = v;
            p++;
        } else if (i < n && path[i] == *p) {
            i++;
        } else {
            return false;
        }
    }
    return i == n;
}

static site_id find_site(const struct model *m, const char *path, size_t n, bool is_join)
{
    const size_t n_prefix = strlen(m->arch->base_prefix);
    unsigned layer;

    for (int stripped = 0; stripped < 2; stripped++) {
        for (size_t i = 0; i < m->arch->n_sites; i++) {
            const struct arch_site *s = &m->arch->site[i];
            const bool joins = site_kind_class(s->kind) == SITE_CLASS_JOIN;

            if (joins == is_join && s->hf && path_matches(s->hf, path, n, &layer) &&
                layer < m->config.n_layers)
                return site_make(layer, s->kind);
        }
        if (n <= n_prefix || strncmp(path, m->arch->base_prefix, n_prefix) != 0)
            break;
        path += n_prefix;
        n -= n_prefix;
    }
    return SITE_NONE;
}

site_id model_site(const struct model *m, const char *module_path, size_t n)
{
    return find_site(m, module_path, n, false);
}

site_id model_join_site(const struct model *m, const char *path, size_t n)
{
    return find_site(m, path, n, true);
}

bool model_site_dims(const struct model *m, site_id s, size_t *n_in, size_t *n_out)
{
    if (s >= m->n_sites || m->site[s].n_out == 0)
        return false;
    *n_in = m->site[s].n_in;
    *n_out = m->site[s].n_out;
    return true;
}

const struct tensor *model_site_weight(const struct model *m, site_id s)
{
    return m->site[s].stored;
}

const float *model_site_bias(const struct model *m, site_id s)
{
    return m->site[s].bias;
}

const float *model_norm_gamma(const struct model *m, site_id s)
{
    return m->site[s].gamma;
}

const float *model_norm_beta(const struct model *m, site_id s)
{
    return m->site[s].beta;
}

const char *model_site_path(const struct model *m, site_id s, char *out, size_t n)
{
    snprintf(out, n, "%s", site_kind_text(site_kind_of(s)));
    for (size_t i = 0; i < m->arch->n_sites; i++) {
        const struct arch_site *a = &m->arch->site[i];
        const char *mark = a->hf ? strstr(a->hf, "%u") : NULL;

        if (a->kind != site_kind_of(s) || !a->hf)
            continue;
        if (mark)
            snprintf(out, n, "%.*s%u%s", (int)(mark - a->hf), a->hf, site_layer_of(s), mark + 2);
        else
            snprintf(out, n, "%s", a->hf);
        break;
    }
    return out;
}
