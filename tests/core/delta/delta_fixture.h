/* tests/core/delta/delta_fixture.h - a small base, adapters read from folders or made
 * from lists of tensors, and the asserts that all tests of readers share. Header only:
 * each test file has its own copy. Paths are relative to the repository root. */
#ifndef TESTS_CORE_DELTA_DELTA_FIXTURE_H
#define TESTS_CORE_DELTA_DELTA_FIXTURE_H

#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/base/file.h"
#include "core/delta/delta.h"
#include "core/model/model.h"

#define MAYBE_UNUSED __attribute__((unused))

/* ---- bases: opened once per process, closed by the teardown ---------------------- */

/* bert: d 40, ff 90, 3 layers, 4 heads. llama: d 56, kv 28, ff 100, 3 layers. */
static struct model *fixture_model;

MAYBE_UNUSED static struct model *open_base(const char *name)
{
    struct core_err err = {0};
    struct model *m = NULL;
    char path[200];

    snprintf(path, sizeof(path), "tests/golden/bases/%s", name);
    ck_assert_msg(model_open(&m, path, NULL, &err) == 0, "%s: %s", path, err.msg);
    return m;
}

MAYBE_UNUSED static void open_bert(void)
{
    fixture_model = open_base("bert");
}

MAYBE_UNUSED static void open_llama(void)
{
    fixture_model = open_base("llama");
}

MAYBE_UNUSED static void close_model(void)
{
    model_close(&fixture_model);
}

/* ---- adapters ------------------------------------------------------------------- */

enum { FILES_MAX = 32 };
struct adapter {
    struct core_file file[FILES_MAX];
    size_t n;
};

/* Adds, or replaces, a file with a copy of the bytes. */
MAYBE_UNUSED static void put_file(struct adapter *a, const char *name, const void *bytes, size_t n)
{
    struct core_file *f = NULL;
    void *copy = malloc(n + 1);

    for (size_t i = 0; i < a->n; i++)
        if (strcmp(a->file[i].name, name) == 0)
            f = &a->file[i];
    if (f) {
        free((void *)f->bytes);
    } else {
        ck_assert_uint_lt(a->n, FILES_MAX);
        f = &a->file[a->n++];
        f->name = strdup(name);
    }
    ck_assert_ptr_nonnull(copy);
    memcpy(copy, bytes, n);
    f->bytes = copy;
    f->n_bytes = n;
}

MAYBE_UNUSED static void put_text(struct adapter *a, const char *name, const char *text)
{
    put_file(a, name, text, strlen(text));
}

MAYBE_UNUSED static void drop_adapter(struct adapter *a)
{
    for (size_t i = 0; i < a->n; i++) {
        free((void *)a->file[i].name);
        free((void *)a->file[i].bytes);
    }
    a->n = 0;
}

/* Files of a folder in the order of their names; of folders in it under a number, as
 * versions keep a setup of AdapterHub (adapters_store/ads_pick.h). */
MAYBE_UNUSED static bool load_folder(struct adapter *a, const char *dir, const char *prefix)
{
    struct dirent **entry;
    const int n = scandir(dir, &entry, NULL, alphasort);
    unsigned n_folders = 0;

    for (int i = 0; i < n; i++) {
        struct core_map map = {0};
        char path[600], name[300];

        snprintf(path, sizeof(path), "%s/%s", dir, entry[i]->d_name);
        if (entry[i]->d_name[0] == '.') {
            ;
        } else if (entry[i]->d_type == DT_DIR) {
            snprintf(name, sizeof(name), "%u.", n_folders++);
            load_folder(a, path, name);
        } else {
            snprintf(name, sizeof(name), "%s%s", prefix, entry[i]->d_name);
            ck_assert_int_eq(core_map_open(&map, path, NULL), 0);
            put_file(a, name, map.bytes, map.n_bytes);
            core_map_release(&map);
        }
        free(entry[i]);
    }
    if (n >= 0)
        free(entry);
    return n >= 0;
}

/* All files of tests/golden/cells/<cell>/adapter; false if there is no such folder. */
MAYBE_UNUSED static bool load_cell(struct adapter *a, const char *cell)
{
    char path[600];

    snprintf(path, sizeof(path), "tests/golden/cells/%s/adapter", cell);
    return load_folder(a, path, "");
}

/* Replaces the first `from` in a text file of the adapter. */
MAYBE_UNUSED static void edit_text(struct adapter *a, const char *name, const char *from,
                                   const char *to)
{
    const struct core_file *f = core_file_find(a->file, a->n, name);
    char *text, *at, *out;
    size_t n;

    ck_assert_msg(f != NULL, "no %s", name);
    text = strndup(f->bytes, f->n_bytes);
    at = strstr(text, from);
    ck_assert_msg(at != NULL, "%s has no %s", name, from);
    n = strlen(text) - strlen(from) + strlen(to);
    out = malloc(n + 1);
    snprintf(out, n + 1, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    put_file(a, name, out, n);
    free(text);
    free(out);
}

/* ---- a writer of safetensors ------------------------------------------------------- */

/* Values are `base + i * 0.01` for the i-th value, or `value` when that is given. */
struct made {
    const char *name;
    size_t d0, d1, d2; /* 0: no such dimension */
    float base;
    const float *value;
    const int64_t *index; /* I64 tensor instead */
    bool is_f64, is_i8;
};

static size_t made_count(const struct made *t)
{
    return t->d0 * (t->d1 ? t->d1 : 1) * (t->d2 ? t->d2 : 1);
}

static float made_value(const struct made *t, size_t i)
{
    return t->value ? t->value[i] : t->base + 0.01f * (float)i;
}

static const char *made_type(const struct made *t, size_t *size)
{
    *size = t->index || t->is_f64 ? 8 : t->is_i8 ? 1 : 4;
    return t->index ? "I64" : t->is_f64 ? "F64" : t->is_i8 ? "I8" : "F32";
}

static void made_write(const struct made *t, char *out)
{
    for (size_t i = 0; i < made_count(t); i++) {
        const float f = made_value(t, i);
        const double d = (double)f;

        if (t->index)
            memcpy(out + 8 * i, &t->index[i], 8);
        else if (t->is_f64)
            memcpy(out + 8 * i, &d, 8);
        else if (t->is_i8)
            out[i] = 1;
        else
            memcpy(out + 4 * i, &f, 4);
    }
}

/* Writes the tensors up to the first without a name as file `name`. */
MAYBE_UNUSED static void put_tensors(struct adapter *a, const char *name, const struct made *t)
{
    struct core_buf head = {0}, data = {0};
    uint64_t n_head;
    size_t size;

    core_buf_add(&head, "{", 1);
    for (size_t i = 0; t[i].name; i++) {
        const size_t at = data.n, n = made_count(&t[i]);
        const char *type = made_type(&t[i], &size);
        char *bytes = calloc(n + 1, size);

        made_write(&t[i], bytes);
        core_buf_add(&data, bytes, n * size);
        free(bytes);
        core_buf_printf(&head, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%zu", i ? "," : "", t[i].name,
                        type, t[i].d0);
        if (t[i].d1)
            core_buf_printf(&head, ",%zu", t[i].d1);
        if (t[i].d2)
            core_buf_printf(&head, ",%zu", t[i].d2);
        core_buf_printf(&head, "],\"data_offsets\":[%zu,%zu]}", at, data.n);
    }
    core_buf_add(&head, "}", 1);
    while (head.n % 8)
        core_buf_add(&head, " ", 1);
    n_head = head.n;
    core_buf_add(&head, data.p ? data.p : "", data.n);
    char *all = malloc(8 + head.n);
    memcpy(all, &n_head, 8);
    memcpy(all + 8, head.p, head.n);
    put_file(a, name, all, 8 + head.n);
    free(all);
    core_buf_release(&head);
    core_buf_release(&data);
}

/* ---- compiling ---------------------------------------------------------------------- */

MAYBE_UNUSED static struct delta *compile(const struct adapter *a)
{
    struct core_err err = {0};
    struct delta *d = NULL;
    const int rc = delta_compile(&d, fixture_model, a->file, a->n, &err);

    ck_assert_msg(rc == 0, "%s: %s", core_code_text(rc), err.msg);
    ck_assert_int_eq(err.code, 0);
    return d;
}

/* The adapter is refused with this code and a message that holds `text`. */
MAYBE_UNUSED static void refused(const struct adapter *a, int code, const char *text)
{
    struct core_err err = {0};
    struct delta *d = NULL;
    const int rc = delta_compile(&d, fixture_model, a->file, a->n, &err);

    ck_assert_ptr_null(d);
    ck_assert_msg(rc == code && err.code == code, "got %s (%s), expected %s with '%s'",
                  core_code_text(rc), err.msg, core_code_text(code), text);
    ck_assert_msg(strstr(err.msg, text) != NULL, "got '%s', expected '%s' in it", err.msg, text);
}

/* What the delta does at a site, by the site's class; the test fails if it is nothing. */
#define SLOT_AT(type)                                                                             \
    MAYBE_UNUSED static const struct delta_##type *type##_at(const struct delta *d,               \
                                                             unsigned layer, enum site_kind kind) \
    {                                                                                             \
        const struct delta_##type *at = delta_##type(d, site_make(layer, kind));                  \
                                                                                                  \
        ck_assert_msg(at != NULL, "nothing at %s of layer %u", site_kind_text(kind), layer);      \
        return at;                                                                                \
    }
SLOT_AT(linear)
SLOT_AT(norm)
SLOT_AT(join)
SLOT_AT(embed)
SLOT_AT(prefix)

/* The only LOWRANK of a linear, an embedding or a join. */
MAYBE_UNUSED static const struct delta_lowrank *lowrank_at(const struct delta *d, unsigned layer,
                                                           enum site_kind kind)
{
    switch (site_kind_class(kind)) {
    case SITE_CLASS_JOIN:
        ck_assert_uint_eq(join_at(d, layer, kind)->n_adapters, 1);
        return &join_at(d, layer, kind)->adapter->a;
    case SITE_CLASS_EMBED:
        ck_assert_uint_eq(embed_at(d, layer, kind)->n_lowrank, 1);
        return embed_at(d, layer, kind)->lowrank;
    default:
        ck_assert_uint_eq(linear_at(d, layer, kind)->n_lowrank, 1);
        return linear_at(d, layer, kind)->lowrank;
    }
}

MAYBE_UNUSED static void same_floats(const float *got, const float *want, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ck_assert_msg(got[i] == want[i], "value %zu: got %g, expected %g", i, (double)got[i],
                      (double)want[i]);
}

#endif
