/* The body of POST /v1/infer: whatever is sent is parsed or refused with a code of
 * 400, and what is parsed keeps the promises of infer.h. */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/utf8.h"
#include "server/api/infer.h"
#include "server/arena.h"
#include "server/dialects/dialect.h"
#include "server/http/reply.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { ITEMS_MAX = 32 };

static void check(bool holds)
{
    if (!holds)
        abort();
}

static void check_input(const struct task_input *in)
{
    check(in->form != TASK_TEXT || in->text);
    check(in->form != TASK_TOKENS || in->tokens || !in->n_tokens);
    check(!in->text || core_utf8_valid(in->text, in->n_text));
    check(!in->text_pair || core_utf8_valid(in->text_pair, in->n_text_pair));
    for (size_t i = 0; i < in->n_tokens; i++)
        check(in->tokens[i] >= 0);
}

static void check_item(const struct infer_item *it, size_t *n_jobs)
{
    check(it->n_specs && it->n_inputs && it->params.n);
    check(!it->is_stream || (!it->is_tasks && !it->is_inputs && it->params.n == 1));
    check(it->params.temperature >= 0 && it->params.priority >= -10 && it->params.priority <= 10);
    for (size_t i = 0; i < it->n_specs; i++)
        check(strlen(it->spec[i].task) > 0);
    for (size_t i = 0; i < it->n_inputs; i++)
        check_input(&it->input[i]);
    *n_jobs += it->n_specs * it->n_inputs * it->params.n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct infer in = {0};
    struct arena a = {0};
    struct core_err err = {0};
    size_t n_jobs = 0;
    const struct infer_source src = {.body = (const char *)data,
                                     .n_body = n,
                                     .n_json = n,
                                     .max_items = ITEMS_MAX,
                                     .task = "",
                                     .version = ""};

    in.dialect = &infer_dialect;
    if (infer_parse(&in, &src, &a, &err) < 0) {
        check(srv_status_of(err.code) == 400 && err.msg[0]);
    } else {
        for (size_t i = 0; i < in.n_items; i++) {
            if (in.item[i].err.code)
                check(srv_status_of(in.item[i].err.code) == 400);
            else
                check_item(&in.item[i], &n_jobs);
        }
        check(n_jobs <= ITEMS_MAX);
    }
    arena_release(&a);
    return 0;
}
