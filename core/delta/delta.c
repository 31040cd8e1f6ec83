/* core/delta/delta.c - from files to a delta: which format, which reader, and the
 * checks that hold for all of them. Read next: delta_builder.h, then a reader. */
#include "core/delta/delta.h"

#include <stdio.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/delta/delta_internal.h"

/* Files that change what an adapter means, and that we do not compute. */
static int refuse_files(struct delta_builder *b)
{
    static const char *const name[] = {
        "adapter_fusion_config.json",
        "embedding.pt",
    };

    for (size_t i = 0; i < sizeof(name) / sizeof(name[0]); i++)
        if (core_file_find(b->file, b->n_files, name[i]))
            return core_err_set_param(
                b->err, CORE_E_ADAPTER_UNSUPPORTED, name[i],
                "%s: a fusion without its adapters and own embeddings are not "
                "computed",
                name[i]);
    return 0;
}

static int read_known(struct delta_builder *b, const json_t *library, const json_t *own,
                      const json_t *setup)
{
    const struct core_file *gguf = core_file_find(b->file, b->n_files, DELTA__GGUF_LORA);

    if (own && library)
        return core_err_set(b->err, CORE_E_ADAPTER_INVALID,
                            "both delta.json and adapter_config.json: which one is it?");
    if (setup && (own || library))
        return core_err_set(b->err, CORE_E_ADAPTER_INVALID,
                            "both adapter_setup.json and %s: which one is it?",
                            own ? "delta.json" : "adapter_config.json");
    if (setup)
        return delta__read_setup(b, setup);
    if (own)
        return delta__read_own(b, own);
    if (library && json_is_string(json_object_get(library, "peft_type")))
        return delta__read_peft(b, library);
    if (library && json_object_get(library, "config"))
        return delta__read_adapterhub(b, library);
    if (library)
        return core_err_set_param(b->err, CORE_E_ADAPTER_INVALID, "adapter_config.json",
                                  "adapter_config.json: neither peft_type nor config: "
                                  "of which library is it?");
    if (gguf)
        return delta__read_gguf_lora(b, gguf);
    return core_err_set(b->err, CORE_E_ADAPTER_INVALID,
                        "no adapter_config.json and no delta.json among the files");
}

static int read_files(struct delta_builder *b)
{
    json_t *library = NULL, *own = NULL, *setup = NULL;
    int rc = refuse_files(b);

    if (rc == 0)
        rc = delta__json_file(b, "adapter_config.json", &library);
    if (rc == 0)
        rc = delta__json_file(b, "delta.json", &own);
    if (rc == 0)
        rc = delta__json_file(b, "adapter_setup.json", &setup);
    if (rc == 0)
        rc = read_known(b, library, own, setup);
    if (rc == 0)
        rc = delta__note_base(b, library, own);
    json_decref(setup);
    json_decref(library);
    json_decref(own);
    return rc;
}

int delta_compile(struct delta **out, const struct model *m, const struct core_file *file,
                  size_t n_files, struct core_err *err)
{
    struct core_err own_err = {0};
    struct delta_builder b = {
        .m = m, .file = file, .n_files = n_files, .err = err ? err : &own_err};
    struct delta *d = NULL;
    int rc = read_files(&b);

    if (rc == 0)
        rc = delta__read_task(&b);
    if (rc == 0)
        rc = delta__build_head(&b);
    if (rc == 0)
        rc = delta__all_taken(&b);
    if (rc == 0 && b.has_no_method)
        rc = core_err_set(b.err, CORE_E_ADAPTER_INVALID,
                          "the adapter holds no tensor of its method, %s", b.method);
    if (rc == 0)
        rc = delta__finish(&b, &d);
    if (rc == 0)
        *out = d;
    delta__builder_release(&b);
    return rc;
}

uint32_t delta_invoked_from(const struct delta *d, const int32_t *tokens, size_t n)
{
    const size_t n_all = d->n_invocation;

    for (size_t at = n_all && n >= n_all ? n - n_all + 1 : 0; at-- > 0;)
        if (memcmp(tokens + at, d->invocation, n_all * sizeof(*tokens)) == 0)
            return (uint32_t)at;
    return DELTA_NOT_INVOKED;
}

int delta_base(struct delta **out, const struct model *m, struct core_err *err)
{
    struct core_err own_err = {0};
    struct delta_builder b = {.m = m, .err = err ? err : &own_err, .method = "base"};
    struct delta *d = NULL;
    int rc = delta__build_head(&b);

    if (rc == 0)
        rc = delta__finish(&b, &d);
    if (rc == 0)
        *out = d;
    delta__builder_release(&b);
    return rc;
}

static bool is_eos(const struct model_config *c, int32_t id)
{
    for (unsigned i = 0; i < c->n_eos; i++)
        if (c->eos[i] == id)
            return true;
    return false;
}

/* Behind the last of the tokens that count as an end. */
static size_t after_eos(const struct model_config *c, const int32_t *tokens, size_t n)
{
    for (size_t i = n; i > 0; i--)
        if (is_eos(c, tokens[i - 1]))
            return i;
    return n;
}

size_t delta_n_tokens_read(const struct delta *d, const struct model_config *c,
                           const int32_t *tokens, size_t n)
{
    size_t n_real = 0, end = 0;

    if (d->head.end == DELTA_END_EOS)
        return after_eos(c, tokens, n);
    if (d->head.end == DELTA_END_LAST || c->pad < 0)
        return n;
    for (size_t i = 0; i < n; i++)
        if (tokens[i] != c->pad) {
            n_real++;
            end = i + 1;
        }
    if (n_real == 0)
        return d->head.end == DELTA_END_COUNT || n == 0 ? n : 1;
    return d->head.end == DELTA_END_COUNT ? n_real : end;
}

void delta_free(struct delta *d)
{
    for (uint32_t i = 0; d && i < d->n_merged; i++)
        gemm_weight_free(d->merged[i]);
    for (uint32_t i = 0; d && !d->merged && i < d->n_linear; i++)
        gemm_weight_free((struct gemm_weight *)d->linear[i].w);
    core_free_large(d); /* one arena, which begins with the struct */
}
