/* core/delta/delta_builder.c - tensors and places for the readers: finding, checking,
 * converting. The operations are in delta_ops.c, the final memory in delta_arena.c.
 *
 * Scratch memory is a list of blocks that dies with the builder. A matrix that needs no
 * conversion stays where it is in the file until delta__finish() copies it once. */
#include "core/delta/delta_builder.h"

#include <stdio.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/weights/weights.h"

struct delta__block {
    struct delta__block *next;
    _Alignas(16) unsigned char bytes[];
};

void delta__builder_release(struct delta_builder *b)
{
    while (b->scratch) {
        struct delta__block *next = b->scratch->next;

        core_free(b->scratch);
        b->scratch = next;
    }
    for (size_t i = 0; i < b->n_ops; i++)
        if (b->op[i].kind == DELTA_DENSE)
            gemm_weight_free(b->op[i].dense);
    tensor_list_release(&b->tensors);
    core_free(b->is_taken);
    core_free(b->op);
    for (unsigned i = 0; i < b->n_owned; i++)
        core_free(b->owned[i]);
}

void *delta__scratch(struct delta_builder *b, size_t n, size_t size)
{
    struct delta__block *block = NULL;
    size_t n_bytes;

    if (core_mul_size(n, size, &n_bytes) && core_add_size(n_bytes, sizeof(*block), &n_bytes))
        block = core_calloc(1, n_bytes);
    if (!block) {
        core_err_nomem(b->err, "adapter");
        return NULL;
    }
    block->next = b->scratch;
    b->scratch = block;
    return block->bytes;
}

char *delta__scratch_str(struct delta_builder *b, const char *s)
{
    const size_t n = strlen(s) + 1;
    char *p = delta__scratch(b, n, 1);

    return p ? memcpy(p, s, n) : NULL;
}

/* ---- tensors ---------------------------------------------------------------- */

int delta__load(struct delta_builder *b, const char *safetensors, const char *bin, bool *is_found)
{
    const struct core_file *f = core_file_find(b->file, b->n_files, safetensors);
    size_t inflate_max;
    void *owned = NULL;
    int rc;

    *is_found = true;
    if (f)
        return safetensors_read(f->bytes, f->n_bytes, &b->tensors, b->err);
    f = bin ? core_file_find(b->file, b->n_files, bin) : NULL;
    if (!f) {
        *is_found = false;
        return 0;
    }
    /* torch stores without compression; what was zipped again may be a bit larger. */
    if (!core_mul_size(f->n_bytes, 4, &inflate_max) ||
        !core_add_size(inflate_max, 16u << 20, &inflate_max))
        return core_err_nomem(b->err, bin);
    if (b->n_owned == sizeof(b->owned) / sizeof(b->owned[0]))
        return core_err_set(b->err, CORE_E_ADAPTER_UNSUPPORTED, "the adapter has too many files");
    rc = torch_pickle_read(f->bytes, f->n_bytes, inflate_max, &b->tensors, &owned, b->err);
    if (rc == 0)
        b->owned[b->n_owned++] = owned;
    return rc;
}

int delta__tensors_ready(struct delta_builder *b)
{
    int rc = weights_names_today(&b->tensors, b->err);

    /* beside static heads of models whose adapters stand outside the base's own part,
     * AdapterHub saves the adapters once more */
    if (rc == 0)
        tensor_list_drop_copies(&b->tensors);
    if (rc == 0)
        rc = tensor_list_sort(&b->tensors, b->err);
    if (rc < 0)
        return rc;
    if (b->tensors.n == 0)
        return core_err_set(b->err, CORE_E_ADAPTER_INVALID, "the adapter holds no tensor");
    b->is_taken = core_calloc(b->tensors.n, sizeof(*b->is_taken));
    return b->is_taken ? 0 : core_err_nomem(b->err, "adapter");
}

const struct tensor *delta__find(const struct delta_builder *b, const char *path, size_t n_path,
                                 const char *suffix)
{
    char name[1024]; /* a longer name is never found, and then left over by name */
    const int n = n_path < sizeof(name)
                      ? snprintf(name, sizeof(name), "%.*s%s", (int)n_path, path, suffix)
                      : -1;

    return n >= 0 && (size_t)n < sizeof(name) ? tensor_list_find(&b->tensors, name) : NULL;
}

void delta__take(struct delta_builder *b, const struct tensor *t)
{
    /* a head may use tensors of the base's checkpoint too */
    if (t >= b->tensors.t && t < b->tensors.t + b->tensors.n)
        b->is_taken[t - b->tensors.t] = true;
}

bool delta__is_taken(const struct delta_builder *b, const struct tensor *t)
{
    return b->is_taken[t - b->tensors.t];
}

const struct tensor *delta__made(struct delta_builder *b, const char *name, const float *value,
                                 size_t n_rows, size_t n_cols)
{
    struct tensor *t = delta__scratch(b, 1, sizeof(*t));

    if (t)
        *t = (struct tensor){.name = name,
                             .type = TENSOR_F32,
                             .n_dims = 2,
                             .dim = {n_rows, n_cols},
                             .data = value,
                             .n_bytes = n_rows * n_cols * sizeof(*value)};
    return t;
}

bool delta__is_copy(const struct tensor *a, const struct tensor *b)
{
    return tensor_is_copy(a, b);
}

int delta__all_taken(struct delta_builder *b)
{
    for (size_t i = 0; i < b->tensors.n; i++)
        if (!b->is_taken[i])
            return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, b->tensors.t[i].name,
                                      "tensor %s is left over: nothing here computes it",
                                      b->tensors.t[i].name);
    return 0;
}

int delta__misfit(struct delta_builder *b, const struct tensor *t, const char *expected)
{
    char got[96];

    return core_err_set_param(b->err, CORE_E_ADAPTER_MISMATCH, t->name,
                              "tensor %s: got %s, expected %s", t->name,
                              tensor_shape_text(t, got, sizeof(got)), expected);
}

int delta__expect(struct delta_builder *b, const struct tensor *t, unsigned n_dims, size_t d0,
                  size_t d1)
{
    const struct tensor want = {.n_dims = n_dims, .dim = {d0, d1}};
    char text[96];

    if (tensor_is(t, n_dims, d0, d1))
        return 0;
    return delta__misfit(b, t, tensor_shape_text(&want, text, sizeof(text)));
}

static int check_type(struct delta_builder *b, const struct tensor *t)
{
    if (tensor_type_is_float(t->type))
        return 0;
    return core_err_set_param(b->err, CORE_E_ADAPTER_UNSUPPORTED, t->name,
                              "tensor %s: type %s is not computed in an adapter", t->name,
                              tensor_type_text(t->type));
}

/* The bit 31: one of n floats, in memory that need not be aligned, is not finite. An exponent of
 * all ones, infinite or not a number, carries into the sign's bit: no branch, for a load looks at
 * every value of an adapter. */
static inline __attribute__((always_inline)) uint32_t not_finite(size_t n, const unsigned char *x)
{
    static const uint32_t exponent = 0x7f800000, one = 0x00800000;
    uint32_t found = 0, bits;

    for (size_t i = 0; i < n; i++) {
        memcpy(&bits, x + i * sizeof(bits), sizeof(bits));
        found |= (bits & exponent) + one;
    }
    return found;
}

static int check_finite(struct delta_builder *b, const struct tensor *t, const void *x, size_t n)
{
    enum { RUN = 64 }; /* a constant number: then the compiler makes vectors of it */
    const unsigned char *at = x;
    uint32_t found = 0;

    for (; n >= RUN; n -= RUN, at += RUN * sizeof(float))
        found |= not_finite(RUN, at);
    found |= not_finite(n, at);
    if (found >> 31)
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, t->name,
                                  "tensor %s holds a value that is not finite", t->name);
    return 0;
}

int delta__floats(struct delta_builder *b, const struct tensor *t, const float **out)
{
    const size_t n = tensor_n_values(t);
    float *x;
    int rc = check_type(b, t);

    if (rc < 0)
        return rc;
    x = delta__scratch(b, n, sizeof(*x));
    if (!x)
        return CORE_E_NOMEM;
    tensor_to_f32(t, 0, n, x);
    rc = check_finite(b, t, x, n);
    if (rc < 0)
        return rc;
    delta__take(b, t);
    *out = x;
    return 0;
}

int delta__matrix(struct delta_builder *b, const struct tensor *t, size_t n_rows, size_t n_cols,
                  struct delta_mat *out)
{
    const size_t n = tensor_n_values(t);
    float part[256];
    const float *x;
    int rc = delta__expect(b, t, 2, n_rows, n_cols);

    if (rc < 0)
        return rc;
    if (n_rows > UINT32_MAX || n_cols > UINT32_MAX)
        return delta__misfit(b, t, "less than 2^32 rows and columns");
    *out = (struct delta_mat){t->data, t->type, (uint32_t)n_rows, (uint32_t)n_cols};
    if (t->type == TENSOR_F64) {
        rc = delta__floats(b, t, &x);
        out->data = x;
        out->type = TENSOR_F32;
        return rc;
    }
    rc = check_type(b, t);
    if (t->type == TENSOR_F32)
        rc = check_finite(b, t, t->data, n);
    for (size_t at = 0; rc == 0 && t->type != TENSOR_F32 && at < n;
         at += sizeof(part) / sizeof(part[0])) {
        const size_t some = n - at < 256 ? n - at : 256;

        tensor_to_f32(t, at, some, part);
        rc = check_finite(b, t, part, some);
    }
    if (rc == 0)
        delta__take(b, t);
    return rc;
}

/* to[c, r] = from[r, c] for values of `size` bytes, a constant of the caller: with a size that
 * is known only when it runs each value would be a call of memcpy(). A run of rows at a time: it
 * fills whole cache lines of `to`, each once. */
static inline __attribute__((always_inline)) void transpose_run(size_t n_run, size_t n_rows,
                                                                size_t n_cols, size_t size,
                                                                const unsigned char *from,
                                                                unsigned char *to)
{
    for (size_t c = 0; c < n_cols; c++)
        for (size_t r = 0; r < n_run; r++)
            memcpy(to + (c * n_rows + r) * size, from + (r * n_cols + c) * size, size);
}

static inline __attribute__((always_inline)) void transpose_sized(size_t n_rows, size_t n_cols,
                                                                  size_t size,
                                                                  const unsigned char *from,
                                                                  unsigned char *to)
{
    enum { RUN = 16 };
    size_t r = 0;

    for (; r + RUN <= n_rows; r += RUN)
        transpose_run(RUN, n_rows, n_cols, size, from + r * n_cols * size, to + r * size);
    transpose_run(n_rows - r, n_rows, n_cols, size, from + r * n_cols * size, to + r * size);
}

void delta__rows(const struct delta_mat *m, void *to)
{
    const size_t size = tensor_type_block_bytes(m->type);

    if (!m->is_turned)
        memcpy(to, m->data, (size_t)m->n_rows * m->n_cols * size);
    else if (size == 4)
        transpose_sized(m->n_cols, m->n_rows, 4, m->data, to);
    else
        transpose_sized(m->n_cols, m->n_rows, 2, m->data, to);
}

int delta__unturn(struct delta_builder *b, struct delta_mat *m)
{
    void *to;

    if (!m->is_turned)
        return 0;
    to = delta__scratch(b, (size_t)m->n_rows * m->n_cols, tensor_type_block_bytes(m->type));
    if (!to)
        return CORE_E_NOMEM;
    delta__rows(m, to);
    m->data = to;
    m->is_turned = false;
    return 0;
}

int delta__matrix_transposed(struct delta_builder *b, const struct tensor *t, size_t n_rows,
                             size_t n_cols, struct delta_mat *out)
{
    const int rc = delta__matrix(b, t, n_cols, n_rows, out);

    if (rc < 0)
        return rc;
    out->n_rows = (uint32_t)n_rows;
    out->n_cols = (uint32_t)n_cols;
    out->is_turned = true;
    return 0;
}

const struct tensor *delta__computed(struct delta_builder *b, const struct tensor *t, size_t n_rows,
                                     size_t n_cols, float **data)
{
    struct tensor *made = delta__scratch(b, 1, sizeof(*made));
    size_t n;

    if (!made)
        return NULL;
    if (!core_mul_size(n_rows, n_cols, &n) || !core_mul_size(n, sizeof(float), &made->n_bytes)) {
        core_err_nomem(b->err, t->name);
        return NULL;
    }
    *data = delta__scratch(b, n, sizeof(float));
    *made = (struct tensor){.name = t->name,
                            .type = TENSOR_F32,
                            .n_dims = 2,
                            .dim = {n_rows, n_cols},
                            .data = *data,
                            .n_bytes = n * sizeof(float)};
    return *data ? made : NULL;
}

void delta__share(struct delta_builder *b, const struct tensor *t)
{
    if (b->n_shared < DELTA__SHARED_MAX)
        b->shared[b->n_shared++] = t;
}

bool delta__is_shared(const struct delta_builder *b, const struct delta_mat *m)
{
    for (unsigned i = 0; i < b->n_shared; i++) {
        const unsigned char *from = b->shared[i]->data, *at = m->data;

        if (at >= from && at < from + b->shared[i]->n_bytes)
            return true;
    }
    return false;
}

/* ---- places ------------------------------------------------------------------- */

int delta__place(struct delta_builder *b, const struct tensor *t, const char *path, size_t n_path,
                 bool is_join, struct delta__place *out)
{
    struct delta__place p = {.t = t};

    if (is_join)
        model_join(b->m, path, n_path, &p.mod);
    else
        model_module(b->m, path, n_path, &p.mod);
    if (p.mod.n_parts == 0)
        return core_err_set_param(b->err, CORE_E_ADAPTER_MISMATCH, t->name,
                                  "tensor %s: this base has no %s '%.*s'", t->name,
                                  is_join ? "place for an adapter" : "module",
                                  (int)(n_path < 200 ? n_path : 200), path);
    p.site = p.mod.site[0];
    p.n_in = p.mod.n_in;
    p.n_out = p.mod.n_out;
    *out = p;
    return 0;
}

bool delta__place_at(struct delta_builder *b, const struct tensor *t, site_id site,
                     struct delta__place *out)
{
    struct delta__place p = {.mod = {.n_parts = 1, .site = {site}}, .site = site, .t = t};

    if (!model_site_dims(b->m, site, &p.n_in, &p.n_out))
        return false;
    p.mod.n_in = p.n_in;
    p.mod.n_out = p.n_out;
    *out = p;
    return true;
}

void delta__base_row(const struct delta_builder *b, const struct delta__place *p, size_t o,
                     float *out)
{
    unsigned i = p->mod.n_parts - 1;

    while (p->mod.row0[i] > o)
        i--;
    model_weight_row(b->m, p->mod.site[i], o - p->mod.row0[i], out);
}

const float *delta__base_bias(struct delta_builder *b, const struct delta__place *p)
{
    float *bias =
        model_site_bias(b->m, p->site) ? delta__scratch(b, p->n_out, sizeof(*bias)) : NULL;
    size_t n_in, n_out;

    for (unsigned i = 0; bias && i < p->mod.n_parts; i++)
        if (model_site_dims(b->m, p->mod.site[i], &n_in, &n_out))
            memcpy(bias + p->mod.row0[i], model_site_bias(b->m, p->mod.site[i]),
                   n_out * sizeof(*bias));
    return bias;
}

/* Row `row` of part i of a stored module, as f32. */
static void stored_row(const struct delta__place *p, unsigned i, size_t row, float *out)
{
    const size_t n = p->t->dim[1], at = p->mod.row0[i] + row;

    if (!p->mod.is_transposed) {
        tensor_to_f32(p->t, at * n, n, out);
        return;
    }
    for (size_t k = 0; k < p->t->dim[0]; k++)
        tensor_to_f32(p->t, k * n + at, 1, &out[k]);
}

static bool is_part_of_base(const struct delta_builder *b, const struct delta__place *p, unsigned i,
                            float *x, float *y)
{
    const bool is_table = site_kind_class(site_kind_of(p->site)) == SITE_CLASS_EMBED;
    size_t n_in, n_out, n;

    if (!model_has_weight(b->m, p->mod.site[i]) ||
        !model_site_dims(b->m, p->mod.site[i], &n_in, &n_out))
        return false;
    n = is_table ? n_out : n_in; /* of a row */
    for (size_t r = 0; r < (is_table ? n_in : n_out); r++) {
        stored_row(p, i, r, x);
        model_weight_row(b->m, p->mod.site[i], r, y);
        for (size_t k = 0; k < n; k++)
            if (!(x[k] == y[k]))
                return false;
    }
    return true;
}

bool delta__is_base_weight(const struct delta_builder *b, const struct delta__place *p)
{
    const bool is_table = site_kind_class(site_kind_of(p->site)) == SITE_CLASS_EMBED;
    const bool is_wide = is_table || p->mod.is_transposed; /* [n_in, n_out] */
    const size_t n = p->n_in > p->n_out ? p->n_in : p->n_out;
    float *x;
    bool is_base = true;

    if (!tensor_type_is_float(p->t->type) || p->t->n_dims != 2 ||
        !tensor_is(p->t, 2, is_wide ? p->n_in : p->n_out, is_wide ? p->n_out : p->n_in))
        return false;
    x = core_calloc(2 * n, sizeof(*x));
    for (unsigned i = 0; x && is_base && i < p->mod.n_parts; i++)
        is_base = is_part_of_base(b, p, i, x, x + n);
    core_free(x);
    return x && is_base;
}
