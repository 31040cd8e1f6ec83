/* tools/tokdump.c - shows how a tokenizer encodes, one JSON line per text.
 *
 *   tokdump [--no-special] [--max N] [--decode] [--family MODEL_TYPE] PATH < texts.jsonl >
 * out.jsonl
 *
 * PATH is a tokenizer.json, a vocab.txt, a model's folder or a .gguf. Each line of
 * input is a JSON string, or a pair [text, text]. Each line of output is
 * {"ids":[..],"offsets":[[start,end],..],"type_ids":[..]}, and with --decode also
 * "text" (all ids) and "clean" (without special tokens). Used to compare with the
 * `tokenizers` library line by line. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/model/arch.h"
#include "core/tok/tok.h"

struct options {
    struct tok_encode_options encode;
    bool decode;
    const char *path;
    const struct tok_defaults *dflt; /* of the family, or NULL */
};

static bool find_family(struct options *o, const char *name)
{
    for (size_t i = 0; model_families[i] && !o->dflt; i++)
        if (strcmp(model_families[i]->name, name) == 0)
            o->dflt = &model_families[i]->tokenizer;
    return o->dflt;
}

static bool parse(int argc, char **argv, struct options *o)
{
    for (int i = 1; i < argc; i++) {
        char *end = NULL;

        if (strcmp(argv[i], "--no-special") == 0) {
            o->encode.no_special = true;
        } else if (strcmp(argv[i], "--decode") == 0) {
            o->decode = true;
        } else if (strcmp(argv[i], "--max") == 0 && i + 1 < argc) {
            o->encode.n_max = strtoul(argv[++i], &end, 10);
            if (*end)
                return false;
        } else if (strcmp(argv[i], "--family") == 0 && i + 1 < argc) {
            if (!find_family(o, argv[++i]))
                return false;
        } else if (argv[i][0] != '-' && !o->path) {
            o->path = argv[i];
        } else {
            return false;
        }
    }
    return o->path != NULL;
}

static void print_text(const char *name, const char *text)
{
    char *json = NULL;
    json_t *s = json_string(text);

    if (s)
        json = json_dumps(s, JSON_ENCODE_ANY);
    printf(",\"%s\":%s", name, json ? json : "null");
    free(json);
    json_decref(s);
}

static void print_encoding(const struct tok_encoding *e)
{
    fputs("{\"ids\":[", stdout);
    for (size_t i = 0; i < e->n; i++)
        printf("%s%d", i ? "," : "", (int)e->ids[i]);
    fputs("],\"offsets\":[", stdout);
    for (size_t i = 0; i < e->n; i++)
        printf("%s[%u,%u]", i ? "," : "", e->start[i], e->end[i]);
    fputs("],\"type_ids\":[", stdout);
    for (size_t i = 0; i < e->n; i++)
        printf("%s%d", i ? "," : "", (int)e->type_ids[i]);
    fputs("]", stdout);
}

static int print_decoded(const struct tok *tok, const struct tok_encoding *e, struct core_err *err)
{
    static const char *const names[] = {"text", "clean"};

    for (int skip = 0; skip < 2; skip++) {
        char *text = NULL;
        const int rc = tok_decode(tok, e->ids, e->n, skip, &text, err);

        if (rc != 0)
            return rc;
        print_text(names[skip], text);
        core_free(text);
    }
    return 0;
}

static int one(const struct tok *tok, const struct options *o, const char *line, size_t n,
               struct tok_encoding *e, struct core_err *err)
{
    json_t *root = json_loadb(line, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    const json_t *a = json_is_array(root) ? json_array_get(root, 0) : root;
    const json_t *b = json_array_get(root, 1);
    int rc;

    if (!json_is_string(a) || (b && !json_is_string(b)))
        rc = core_err_set(err, CORE_E_BAD_JSON, "a line is neither a text nor a pair of texts");
    else
        rc = tok_encode(tok, json_string_value(a), json_string_length(a), json_string_value(b),
                        json_string_length(b), &o->encode, e, err);
    if (rc == 0)
        print_encoding(e);
    if (rc == 0 && o->decode)
        rc = print_decoded(tok, e, err);
    if (rc == 0)
        puts("}");
    json_decref(root);
    return rc;
}

int main(int argc, char **argv)
{
    struct options o = {0};
    struct core_err err = {0};
    struct tok_encoding e = {0};
    struct tok *tok = NULL;
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    int rc;

    if (!parse(argc, argv, &o)) {
        fputs("usage: tokdump [--no-special] [--max N] [--decode] [--family MODEL_TYPE] PATH < "
              "texts.jsonl\n",
              stderr);
        return 2;
    }
    rc = tok_open_path(&tok, o.path, NULL, o.dflt, &err);
    while (rc == 0 && (n = getline(&line, &cap, stdin)) > 0)
        rc = one(tok, &o, line, (size_t)n, &e, &err);
    if (rc != 0)
        fprintf(stderr, "tokdump: %s\n", err.msg);
    free(line);
    tok_encoding_release(&e);
    tok_close(&tok);
    return rc == 0 ? 0 : 1;
}
