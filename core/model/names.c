/* core/model/names.c - the name table: module paths to sites and back, and what a loaded
 * model says of a site. */
#include <stdio.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/model/arch.h"

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

size_t model__dim(const struct model_config *c, const struct arch_site *s, enum arch_dim d)
{
    switch (d) {
    case ARCH_NONE:
        return 0;
    case ARCH_D:
        return c->d_model;
    case ARCH_EMBED:
        return c->d_embed;
    case ARCH_NARROW:
        return c->d_embed == c->d_model ? 0 : c->d_embed;
    case ARCH_Q:
        return (size_t)c->n_heads * c->d_head;
    case ARCH_KV:
        return (size_t)c->n_kv_heads * c->d_head;
    case ARCH_HEAD:
        return c->d_head;
    case ARCH_FF:
        return c->stack[s->stack].d_ff;
    case ARCH_VOCAB:
        return c->n_vocab;
    case ARCH_POSITIONS:
        return c->position.has_no_table ? 0 : (size_t)c->n_positions + c->position.first;
    case ARCH_TYPES:
        return c->n_token_types;
    case ARCH_REL_ROWS:
        return 2 * (size_t)c->relative.span;
    case ARCH_REL_NORM:
        return c->relative.has_norm ? c->d_model : 0;
    case ARCH_REL_Q:
        return c->relative.has_own && c->relative.has_p2c ? (size_t)c->n_heads * c->d_head : 0;
    case ARCH_REL_K:
        return c->relative.has_own && c->relative.has_c2p ? (size_t)c->n_heads * c->d_head : 0;
    case ARCH_CONV:
        return (size_t)c->n_conv_kernel * c->d_model;
    case ARCH_CONV_D:
        return c->n_conv_kernel ? c->d_model : 0;
    }
    return 0;
}

/* ---- fused modules ---------------------------------------------------------- */

static bool is_part_of(const struct arch_site *a, const struct arch_site *b)
{
    return a->hf && b->hf && strcmp(a->hf, b->hf) == 0 &&
           site_kind_class(a->kind) == SITE_CLASS_LINEAR &&
           site_kind_class(b->kind) == SITE_CLASS_LINEAR;
}

size_t model__row0(const struct model *m, const struct arch_site *s)
{
    size_t n = 0;

    for (const struct arch_site *a = m->arch->site; a < s; a++)
        if (is_part_of(a, s))
            n += model__dim(&m->config, a, a->out);
    return n;
}

size_t model__module_rows(const struct model *m, const struct arch_site *s)
{
    const struct arch_site *end = m->arch->site + m->arch->n_sites;
    size_t n = 0;

    for (const struct arch_site *a = m->arch->site; a < end; a++)
        if (is_part_of(a, s))
            n += model__dim(&m->config, a, a->out);
    return n;
}

/* ---- paths -------------------------------------------------------------------- */

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

/* The path behind a base prefix; false if it does not begin with it. */
static bool strip(const char *prefix, const char **path, size_t *n)
{
    const size_t n_prefix = prefix ? strlen(prefix) : 0;

    if (!prefix || *n <= n_prefix || strncmp(*path, prefix, n_prefix) != 0)
        return false;
    *path += n_prefix;
    *n -= n_prefix;
    return true;
}

/* By what names a path calls its site. */
enum naming { BY_MODULE, BY_JOIN, BY_GGUF };

static const char *pattern_of(const struct arch_site *s, enum naming by)
{
    const bool joins = site_kind_class(s->kind) == SITE_CLASS_JOIN;

    if (by == BY_GGUF)
        return s->gguf;
    return joins == (by == BY_JOIN) ? s->hf : NULL;
}

/* The parts that the path names, without the base prefix. */
static void match(const struct model *m, const char *path, size_t n, enum naming by,
                  struct model_module *out)
{
    unsigned layer;

    for (size_t i = 0; i < m->arch->n_sites && out->n_parts < MODEL_PARTS_MAX; i++) {
        const struct arch_site *s = &m->arch->site[i];
        const struct model_stack *stack = &m->config.stack[s->stack];
        const char *pattern = pattern_of(s, by);

        if (!pattern || !path_matches(pattern, path, n, &layer) || layer >= stack->n_layers)
            continue;
        out->site[out->n_parts] = site_make(stack->first_layer + layer, s->kind);
        out->row0[out->n_parts++] = model__row0(m, s);
        out->n_in = model__dim(&m->config, s, s->in);
        out->n_out = site_kind_class(s->kind) == SITE_CLASS_LINEAR
                         ? model__module_rows(m, s)
                         : model__dim(&m->config, s, s->out);
        out->is_transposed = s->flags & ARCH_TRANSPOSED;
    }
}

/* Sites of the family: one that need not be there may not be. */
static void find_any(const struct model *m, const char *path, size_t n, enum naming by,
                     struct model_module *out)
{
    *out = (struct model_module){0};
    match(m, path, n, by, out);
    if (!out->n_parts && by != BY_GGUF &&
        (strip(m->arch->base_prefix, &path, &n) || strip(m->arch->span_prefix, &path, &n)))
        match(m, path, n, by, out);
}

static void find(const struct model *m, const char *path, size_t n, enum naming by,
                 struct model_module *out)
{
    find_any(m, path, n, by, out);
    for (unsigned i = 0; i < out->n_parts; i++)
        if (m->site[out->site[i]].n_out == 0)
            out->n_parts = 0; /* a site that need not be there, and is not */
}

bool model_lacks_pooler(const struct model *m, const char *path, size_t n)
{
    struct model_module mod;

    find_any(m, path, n, BY_MODULE, &mod);
    return mod.n_parts && site_kind_of(mod.site[0]) == SITE_POOLER && !m->config.has_pooler;
}

void model_module(const struct model *m, const char *path, size_t n, struct model_module *out)
{
    find(m, path, n, BY_MODULE, out);
}

void model_join(const struct model *m, const char *path, size_t n, struct model_module *out)
{
    find(m, path, n, BY_JOIN, out);
}

void model_gguf_module(const struct model *m, const char *name, size_t n, struct model_module *out)
{
    find(m, name, n, BY_GGUF, out);
}

const char *model_gguf_name(const struct model *m)
{
    return m->arch->gguf ? m->arch->gguf : m->arch->gguf_of;
}

static bool is_named(const char *known, const char *path, size_t n)
{
    return strlen(known) == n && strncmp(known, path, n) == 0;
}

/* A row whose weight is the one token embedding. */
static bool is_tied_row(const struct model *m, const struct arch_site *s)
{
    return s->kind == SITE_EMBED_TOKENS || (s->kind == SITE_LM_HEAD && m->config.is_tied);
}

static bool is_tied_name(const struct model *m, const char *path, size_t n)
{
    for (size_t i = 0; i < m->arch->n_sites; i++) {
        const struct arch_site *s = &m->arch->site[i];

        if (!is_tied_row(m, s))
            continue;
        if (is_named(s->hf, path, n))
            return true;
        for (const char *const *also = s->also; also && *also; also++)
            if (is_named(*also, path, n))
                return true;
    }
    return false;
}

unsigned model_tied(const struct model *m, const char *path, size_t n, site_id site[MODEL_TIED_MAX])
{
    bool is_name = is_tied_name(m, path, n);
    unsigned k = 0;

    if (!is_name && strip(m->arch->base_prefix, &path, &n))
        is_name = is_tied_name(m, path, n);
    for (size_t i = 0; is_name && i < m->arch->n_sites && k < MODEL_TIED_MAX; i++) {
        const struct arch_site *s = &m->arch->site[i];

        if (is_tied_row(m, s))
            site[k++] = site_make(m->config.stack[s->stack].first_layer, s->kind);
    }
    return k;
}

const char *model_site_path(const struct model *m, site_id s, char *out, size_t n)
{
    const struct arch_site *row = s < m->n_sites ? m->site[s].row : NULL;
    const char *mark = row && row->hf ? strstr(row->hf, "%u") : NULL;

    if (!row || !row->hf)
        snprintf(out, n, "%s", site_kind_text(site_kind_of(s)));
    else if (mark)
        snprintf(out, n, "%.*s%u%s", (int)(mark - row->hf), row->hf,
                 site_layer_of(s) - m->config.stack[row->stack].first_layer, mark + 2);
    else
        snprintf(out, n, "%s", row->hf);
    return out;
}

/* ---- sites ---------------------------------------------------------------------- */

uint64_t model_registered(const struct model *m, site_id s)
{
    const struct arch_site *row = m->site[s].row, *run = row;
    const unsigned layer = site_layer_of(s) - m->config.stack[row->stack].first_layer;

    while (run > m->arch->site && row->flags & run[-1].flags & ARCH_LAYERED)
        run--;
    return (uint64_t)(run - m->arch->site) << 32 | layer << 16 | (unsigned)(row - m->arch->site);
}

const char *model_site_role(const struct model *m, site_id s)
{
    return m->site[s].row ? m->site[s].row->role : NULL;
}

bool model_site_dims(const struct model *m, site_id s, size_t *n_in, size_t *n_out)
{
    if (s >= m->n_sites || m->site[s].n_out == 0)
        return false;
    *n_in = m->site[s].n_in;
    *n_out = m->site[s].n_out;
    return true;
}

double model_keys_per_row(const struct model *m)
{
    const struct model_config *c = model_config(m);
    const unsigned layer = model_last_stack(c)->first_layer;
    double n_weights = 0.0;

    for (unsigned kind = 0; kind < SITE_N_KINDS; kind++) {
        size_t n_in, n_out;

        if (kind != SITE_LM_HEAD && site_kind_class((enum site_kind)kind) == SITE_CLASS_LINEAR &&
            model_site_dims(m, site_make(layer, (enum site_kind)kind), &n_in, &n_out))
            n_weights += (double)n_in * (double)n_out;
    }
    return n_weights / (2.0 * c->n_heads * c->d_head); /* scores and values */
}

bool model_has_weight(const struct model *m, site_id s)
{
    return s < m->n_sites && m->site[s].stored != NULL;
}

enum gemm_precision model_site_precision(const struct model *m, site_id s)
{
    return s < m->n_sites && m->site[s].w ? gemm_precision(m->site[s].w) : GEMM_EXACT;
}

bool model__is_permuted(const struct model *m, enum site_kind kind)
{
    return m->arch->is_permuted && weights_gguf(m->weights) && (kind == SITE_Q || kind == SITE_K);
}

/* GGUF stores the rows of each permuted head as (0, d/2, 1, d/2 + 1, ...): where row `row`
 * of Hugging Face's order stands. */
static size_t permuted(const struct model_config *c, size_t row)
{
    const size_t d = c->d_head, i = row % d;

    return row - i + (i < d / 2 ? 2 * i : 2 * (i - d / 2) + 1);
}

size_t model_gguf_row(const struct model *m, site_id s, size_t row)
{
    const enum site_kind kind = site_kind_of(s);

    if (!m->arch->is_permuted || m->config.d_head % 2 || (kind != SITE_Q && kind != SITE_K))
        return row;
    return permuted(&m->config, row);
}

void model_weight_row(const struct model *m, site_id s, size_t row, float *out)
{
    const struct model_site *site = &m->site[s];
    const struct tensor *t = site->stored;
    const bool is_gguf = weights_gguf(m->weights) != NULL;
    const size_t n = site->row->flags & ARCH_KERNEL ? site->n_in : t->dim[1];

    if (site->row->flags & ARCH_TRANSPOSED && !is_gguf) {
        for (size_t k = 0; k < t->dim[0]; k++)
            tensor_to_f32(t, k * n + site->row0 + row, 1, &out[k]);
        return;
    }
    if (model__is_permuted(m, site->row->kind))
        row = permuted(&m->config, row);
    tensor_to_f32(t, (site->row0 + row) * n, n, out);
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

/* ---- heads ------------------------------------------------------------------------ */

const struct model_head *model_head(const struct model *m, enum model_form form)
{
    for (size_t i = 0; i < m->arch->n_heads; i++)
        if (m->arch->head[i].form == form)
            return &m->arch->head[i];
    return NULL;
}

enum model_head_pool model_flexible_pool(const struct model *m)
{
    return m->arch->flexible_pool;
}

static bool is_path(const char *known, const char *path, size_t n)
{
    return known && strlen(known) == n && strncmp(known, path, n) == 0;
}

bool model_is_head_path(const struct model *m, const char *path, size_t n)
{
    for (size_t i = 0; i < m->arch->n_heads; i++)
        for (size_t k = 0; k < MODEL_HEAD_LAYERS_MAX; k++)
            if (is_path(m->arch->head[i].layer[k].path, path, n))
                return true;
    return false;
}

const struct tensor *model_tensor(const struct model *m, const char *name)
{
    const struct tensor_list *list = weights_tensors(m->weights);
    const struct tensor *t;
    char full[512];

    if (weights_gguf(m->weights))
        return NULL;
    t = tensor_list_find(list, name);
    if (t)
        return t;
    snprintf(full, sizeof(full), "%s%s", m->arch->base_prefix, name);
    t = tensor_list_find(list, full);
    if (t || !m->arch->span_prefix)
        return t;
    snprintf(full, sizeof(full), "%s%s", m->arch->span_prefix, name);
    return tensor_list_find(list, full);
}
