/* tests/core/tok/tok_test.h - opening golden tokenizers and comparing encodings. */
#ifndef TESTS_CORE_TOK_TOK_TEST_H
#define TESTS_CORE_TOK_TOK_TEST_H

#include <check.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/base/utf8.h"
#include "core/tok/tok.h"

#define TOK_GOLDEN "tests/golden/tok/"

static inline struct tok *open_tok_of(const char *path, const struct tok_defaults *dflt)
{
    struct core_err err = {0};
    struct tok *tok = NULL;

    if (tok_open_path(&tok, path, NULL, dflt, &err) != 0)
        ck_abort_msg("%s: %s", path, err.msg);
    return tok;
}

static inline struct tok *open_tok(const char *path)
{
    return open_tok_of(path, NULL);
}

/* A tokenizer.json in memory. */
static inline int open_text(struct tok **tok, const char *json, struct core_err *err)
{
    return tok_open_json(tok, json, strlen(json), err);
}

static inline struct tok *must_open_text(const char *json)
{
    struct core_err err = {0};
    struct tok *tok = NULL;

    if (open_text(&tok, json, &err) != 0)
        ck_abort_msg("%s", err.msg);
    return tok;
}

static inline json_t *load_json(const char *path)
{
    json_error_t why;
    json_t *root = json_load_file(path, JSON_ALLOW_NUL, &why);

    if (!root)
        ck_abort_msg("%s: %s", path, why.text);
    return root;
}

static inline void encode(const struct tok *tok, const char *text, struct tok_encoding *e)
{
    struct core_err err = {0};

    if (tok_encode(tok, text, strlen(text), NULL, 0, NULL, e, &err) != 0)
        ck_abort_msg("\"%.40s\": %s", text, err.msg);
}

/* memcmp() that takes arrays without an element. */
static inline bool differ(const void *a, const void *b, size_t n_bytes)
{
    return n_bytes > 0 && memcmp(a, b, n_bytes) != 0;
}

/* "id[start,end] id[start,end] ..." */
static inline void assert_encodes(const struct tok *tok, const char *text, const char *expected)
{
    struct tok_encoding e = {0};
    char got[1024] = "";
    size_t n = 0;

    encode(tok, text, &e);
    for (size_t i = 0; i < e.n; i++)
        n += (size_t)snprintf(got + n, sizeof(got) - n, "%s%d[%u,%u]", i ? " " : "", (int)e.ids[i],
                              e.start[i], e.end[i]);
    ck_assert_str_eq(got, expected);
    tok_encoding_release(&e);
}

#endif
