/* core/model/cache.c - the file of packed weights (packed.h) of a model that is being loaded.
 *
 * While load.c binds linears, each takes its weight from the file that is there, or is packed. If
 * not all came from the file, it is written from the weights in memory, whichever way they came,
 * and mapped, and their own memory is given back. Nothing here makes a load fail: m->cache says
 * what was not to be had. */
#include <stdio.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/base/sum.h"
#include "core/model/arch.h"
#include "core/model/packed.h"

/* The linears in the order in which they were bound, which is the order of the file. */
struct model_loading {
    struct packed_place place;
    struct packed *packed;      /* the file that was there; NULL: none, or no more */
    struct model_site **linear; /* [n_sites] at most */
    size_t n_linears, n_taken;
};

static void set_place(const struct model *m, const char *dir, struct packed_place *out)
{
    static const char *const precision[] = {[GEMM_EXACT] = "exact",
                                            [GEMM_BF16] = "bf16",
                                            [GEMM_INT8] = "int8",
                                            [GEMM_INT8_ROTATED] = "int8-rotated",
                                            [GEMM_INT8_WHOLE] = "int8-whole",
                                            [GEMM_BF16_WEIGHTS] = "bf16-weights"};
    const char *const form = gemm_form(&m->kern), *const p = precision[m->precision];

    *out = (struct packed_place){.dir = dir, .stamp = weights_stamp(m->weights)};
    snprintf(out->name, sizeof(out->name), "%.16s-%s-%s%s", m->hash, form, p, PACKED_SUFFIX);
    snprintf(out->key, sizeof(out->key), "layout %u, %s, %s, model %s", gemm_layout(), form, p,
             m->hash);
}

void model__cache_open(struct model *m, const char *dir)
{
    struct model_loading *l;

    if (!dir || !dir[0])
        return;
    m->loading = l = core_calloc(1, sizeof(*l));
    if (l)
        l->linear = core_calloc(m->n_sites, sizeof(struct model_site *));
    if (!l || !l->linear) {
        core_err_nomem(&m->cache.failed, "the cache of weights");
        model__cache_close(m);
        return;
    }
    set_place(m, dir, &l->place);
    snprintf(m->cache.file, sizeof(m->cache.file), "%s", l->place.name);
    packed_open(&l->packed, &l->place, &m->cache.refused);
}

void model__cache_close(struct model *m)
{
    if (!m->loading)
        return;
    packed_close(&m->loading->packed);
    core_free(m->loading->linear);
    core_free(m->loading);
    m->loading = NULL;
}

/* All that decides a weight's bytes beside the key. */
static uint64_t what_of(const struct model *m, const struct model_site *site)
{
    const struct tensor *t = site->stored;
    const unsigned d = model__is_permuted(m, site->row->kind) ? m->config.d_head : 0;
    char text[512], shape[80];
    const int n = snprintf(
        text, sizeof(text), "%.300s %s %s, rows %zu + %zu, %zu inputs, heads %u, columns %u",
        t->name, tensor_type_text(t->type), tensor_shape_text(t, shape, sizeof(shape)), site->row0,
        site->n_out, site->n_in, d, site->row->flags & ARCH_TRANSPOSED);

    return core_sum(text, (size_t)n);
}

/* The i-th linear's weight over the file's bytes. */
static int map_weight(const struct model *m, const struct packed *p, size_t i,
                      struct gemm_weight **out, struct core_err *err)
{
    struct model_site *site = m->loading->linear[i];
    const struct tensor *stored = site->stored;
    const struct tensor t = {
        .name = stored->name, .type = stored->type, .n_dims = 2, .dim = {site->n_out, site->n_in}};
    struct packed_item item;
    int rc =
        packed_find(p, m->pool, i, site->packed_what, stored->data, stored->n_bytes, &item, err);

    if (rc == 0)
        rc = gemm_new_over(out, &m->kern, m->precision, &t, item.bytes, item.n_bytes, err);
    if (rc == 0)
        site->packed_source = item.source;
    return rc;
}

bool model__cache_take(struct model *m, struct model_site *site)
{
    struct model_loading *l = m->loading;
    const size_t i = l ? l->n_linears : 0;

    if (!l)
        return false;
    site->packed_what = what_of(m, site);
    l->linear[l->n_linears++] = site;
    if (!l->packed || map_weight(m, l->packed, i, &site->w, &m->cache.refused) < 0)
        return false;
    l->n_taken++;
    return true;
}

void model__cache_packed(struct model *m, struct model_site *site)
{
    if (m->loading)
        site->packed_source = packed_sum(m->pool, site->stored->data, site->stored->n_bytes);
}

static void list_items(const struct model_loading *l, struct packed_item *item)
{
    for (size_t i = 0; i < l->n_linears; i++) {
        const struct model_site *site = l->linear[i];

        item[i] = (struct packed_item){.what = site->packed_what, .source = site->packed_source};
        item[i].bytes = gemm_data(site->w, &item[i].n_bytes);
    }
}

/* The file, newly written, in place of each weight's own memory and of the file before, one after
 * the other: memory never holds both forms of all. */
static int move(struct model *m, struct core_err *err)
{
    const struct model_loading *l = m->loading;
    int rc = packed_open(&m->packed[1], &l->place, err);

    if (rc == 1)
        rc = core_err_set(err, CORE_E_STORE_UNAVAILABLE, "%s: it has gone", l->place.name);
    for (size_t i = 0; rc == 0 && i < l->n_linears; i++) {
        struct gemm_weight *w = NULL;

        rc = map_weight(m, m->packed[1], i, &w, err);
        if (rc == 0) {
            gemm_weight_free(l->linear[i]->w);
            l->linear[i]->w = w;
        }
    }
    return rc;
}

static int make(struct model *m, struct core_err *err)
{
    const struct model_loading *l = m->loading;
    struct packed_item *item = core_calloc(l->n_linears, sizeof(*item));
    int rc;

    if (!item)
        return core_err_nomem(err, l->place.name);
    list_items(l, item);
    rc = packed_write(&l->place, m->pool, item, l->n_linears, err);
    core_free(item);
    return rc < 0 ? rc : move(m, err);
}

void model__cache_settle(struct model *m)
{
    struct model_loading *l = m->loading;
    struct model_cache *c = &m->cache;

    if (!l)
        return;
    c->is_mapped = l->n_taken == l->n_linears;
    if (!c->is_mapped) {
        c->is_made = make(m, &c->failed) == 0;
        c->is_mapped = c->is_made;
    }
    if (!c->is_made) { /* weights that were taken are still there */
        m->packed[0] = l->packed;
        l->packed = NULL;
    }
    if (c->is_mapped)
        c->n_bytes = packed_n_bytes(m->packed[c->is_made]);
    model__cache_close(m);
}
