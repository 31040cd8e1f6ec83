/* tests/core/weights/damage.h - what every reader of files must survive: being
 * cut at each byte, each byte changed, each allocation refused. A reader comes as
 * one function that reads, looks at every byte it was given, and frees. */
#ifndef TESTS_CORE_WEIGHTS_DAMAGE_H
#define TESTS_CORE_WEIGHTS_DAMAGE_H

#include <check.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/base/file.h"
#include "core/weights/tensor.h"

#define GOLDEN "tests/golden/weights/"

typedef int (*damage_reader)(const void *bytes, size_t n, struct core_err *err);

/* A golden file in memory of exactly its size, so that ASan guards both ends. */
static inline uint8_t *golden_bytes(const char *name, size_t *n)
{
    struct core_err err = {0};
    struct core_map map = {0};
    char path[512];
    uint8_t *p;

    snprintf(path, sizeof(path), GOLDEN "%s", name);
    ck_assert_msg(core_map_open(&map, path, &err) == 0, "%s", err.msg);
    *n = map.n_bytes;
    p = malloc(*n);
    memcpy(p, map.bytes, *n);
    core_map_release(&map);
    return p;
}

/* Reads all bytes of all tensors, so that ASan sees each that is not there. */
static inline void touch_tensors(const struct tensor_list *l)
{
    volatile uint8_t sink = 0;

    for (size_t i = 0; i < l->n; i++)
        for (size_t b = 0; b < l->t[i].n_bytes; b++)
            sink = (uint8_t)(sink + ((const uint8_t *)l->t[i].data)[b]);
}

/* Plain ifs, here and in readers: Check notes each of its assertions, and there
 * are ten thousands of them. */
static inline void assert_refused(int rc, const struct core_err *err, const char *what, size_t at)
{
    if (rc != CORE_E_ADAPTER_INVALID && rc != CORE_E_ADAPTER_UNSUPPORTED)
        ck_abort_msg("%s at %zu: rc %d", what, at, rc);
    if (err->code != rc || !err->msg[0])
        ck_abort_msg("%s at %zu: no message", what, at);
}

static inline void check_every_truncation(damage_reader read, const uint8_t *bytes, size_t n)
{
    for (size_t k = 0; k < n; k++) {
        struct core_err err = {0};
        uint8_t *cut = malloc(k ? k : 1);

        memcpy(cut, bytes, k);
        assert_refused(read(cut, k, &err), &err, "cut", k);
        free(cut);
    }
}

static inline void check_every_mutation(damage_reader read, const uint8_t *bytes, size_t n)
{
    static const uint8_t flip[] = {0x01, 0x02, 0x10, 0x80, 0xff};
    uint8_t *copy = malloc(n);

    memcpy(copy, bytes, n);
    for (size_t k = 0; k < n; k++) {
        for (size_t f = 0; f <= sizeof(flip); f++) {
            struct core_err err = {0};
            int rc;

            copy[k] = f < sizeof(flip) ? bytes[k] ^ flip[f] : 0;
            rc = read(copy, n, &err);
            if (rc != 0)
                assert_refused(rc, &err, "changed", k);
        }
        copy[k] = bytes[k];
    }
    free(copy);
}

static inline void check_allocations(damage_reader read, const uint8_t *bytes, size_t n,
                                     bool is_json_hooked)
{
    for (long k = 0;; k++) {
        struct core_err err = {0};
        int rc;

        ck_assert_int_lt(k, 5000);
        core__alloc_fail_at = k;
        rc = read(bytes, n, &err);
        core__alloc_fail_at = -1;
        if (rc == 0) {
            ck_assert_int_gt(k, 0);
            return;
        }
        ck_assert_int_eq(err.code, rc);
        /* jansson may call a failed allocation a syntax error. */
        ck_assert_msg(rc == CORE_E_NOMEM || (is_json_hooked && rc == CORE_E_ADAPTER_INVALID),
                      "allocation %ld: rc %d, %s", k, rc, err.msg);
    }
}

/* Ours, and then jansson's as well. */
static inline void check_every_allocation(damage_reader read, const uint8_t *bytes, size_t n)
{
    check_allocations(read, bytes, n, false);
    json_set_alloc_funcs(core_malloc, core_free);
    check_allocations(read, bytes, n, true);
    json_set_alloc_funcs(malloc, free);
}

#endif
