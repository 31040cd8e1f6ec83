/* tests/core/delta/even_base.h - the base bert with twice the identity as its first query's weight,
 * whose singular values are all 2. Header only, like delta_fixture.h. */
#ifndef TESTS_CORE_DELTA_EVEN_BASE_H
#define TESTS_CORE_DELTA_EVEN_BASE_H

#include <limits.h>
#include <unistd.h>

#include "tests/core/delta/delta_fixture.h"

/* The weights of bert with 40 by 40 other values. */
static void put_even_weights(const char *path)
{
    static const char name[] = "\"encoder.layer.0.attention.self.query.weight\"";
    struct core_map map = {0};
    unsigned long n_head = 0, from = 0, to = 0;
    const char *at;
    FILE *f;

    ck_assert_int_eq(core_map_open(&map, "tests/golden/bases/bert/model.safetensors", NULL), 0);
    memcpy(&n_head, map.bytes, 8);
    at = memmem(map.bytes, 8 + n_head, name, strlen(name));
    ck_assert_ptr_nonnull(at);
    at = strstr(at, "\"data_offsets\":");
    ck_assert_int_eq(sscanf(at + 15, "[%lu,%lu]", &from, &to), 2);
    ck_assert_uint_eq(to - from, 40 * 40 * sizeof(float));
    f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    fwrite(map.bytes, 1, 8 + n_head + from, f);
    for (size_t i = 0; i < 40 * 40; i++) {
        const float x = i % 41 == 0 ? 2.0f : 0.0f;

        fwrite(&x, sizeof(x), 1, f);
    }
    fwrite((const char *)map.bytes + 8 + n_head + to, 1, map.n_bytes - 8 - n_head - to, f);
    ck_assert_int_eq(fclose(f), 0);
    core_map_release(&map);
}

static void open_even_bert(void)
{
    static const char *const part[] = {"config.json", "tokenizer.json", "tokenizer_config.json",
                                       "vocab.txt", "model.safetensors"};
    char dir[] = "/tmp/peftd-even-XXXXXX", from[PATH_MAX], path[100], to[5][100];
    struct core_err err = {0};

    ck_assert_ptr_nonnull(mkdtemp(dir));
    for (size_t i = 0; i < 5; i++) {
        snprintf(to[i], sizeof(to[i]), "%s/%s", dir, part[i]);
        snprintf(path, sizeof(path), "tests/golden/bases/bert/%s", part[i]);
        ck_assert_ptr_nonnull(realpath(path, from));
        if (i < 4)
            ck_assert_int_eq(symlink(from, to[i]), 0);
        else
            put_even_weights(to[i]);
    }
    ck_assert_msg(model_open(&fixture_model, dir, NULL, &err) == 0, "%s", err.msg);
    for (size_t i = 0; i < 5; i++)
        unlink(to[i]);
    rmdir(dir);
}

#endif
