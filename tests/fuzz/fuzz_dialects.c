/* Bodies of the other APIs' routes: whatever is sent is read to one item that keeps the promises
 * of infer.h, or refused with a code of 400 (404 for a path that names no task). The first byte
 * chooses the dialect, the second how many bytes at the end are not JSON. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/utf8.h"
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
    check(in->form != TASK_PAIR || (in->text && in->text_pair));
    check(in->form != TASK_TOKENS || in->tokens || !in->n_tokens);
    check(in->form != TASK_MESSAGES || (in->message && in->n_messages));
    check(!in->text || core_utf8_valid(in->text, in->n_text));
    check(!in->text_pair || core_utf8_valid(in->text_pair, in->n_text_pair));
    for (size_t i = 0; i < in->n_tokens; i++)
        check(in->tokens[i] >= 0 && (!in->token_types || in->token_types[i] >= 0));
    for (size_t i = 0; i < in->n_messages; i++)
        check(in->message[i].role && in->message[i].content);
}

static void check_item(const struct infer *in)
{
    const struct infer_item *it = in->item;

    check(in->n_items == 1 && !it->err.code && it->n_specs == 1 && strlen(it->spec->task) > 0);
    check(it->n_inputs * it->params.n <= ITEMS_MAX && it->n_inputs && it->params.n);
    check(!it->is_stream || in->dialect->piece);
    check(it->names && it->names->task); /* of the dialect, or of the body */
    for (size_t i = 0; i < it->n_inputs; i++)
        check_input(&it->input[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const struct infer_dialect *const dialect[] = {
        &infer_chat,  &infer_completions, &infer_embeddings, &infer_classify, &infer_pooling,
        &infer_score, &infer_rerank,      &infer_embed,      &infer_predict,  &infer_v2};
    enum { N_DIALECTS = sizeof(dialect) / sizeof(dialect[0]) };
    struct infer in = {0};
    struct arena a = {0};
    struct core_err err = {0};
    struct infer_source src = {
        .max_items = ITEMS_MAX, .base_name = "base-name", .task = "t", .version = ""};

    if (n < 2)
        return 0;
    src.body = (const char *)data + 2;
    src.n_body = n - 2;
    src.n_json = data[1] < src.n_body ? src.n_body - data[1] : src.n_body;
    in.dialect = dialect[data[0] % N_DIALECTS];
    if (!in.dialect->has_binary)
        src.n_json = src.n_body;
    if (infer_parse(&in, &src, &a, &err) < 0)
        check(srv_status_of(err.code) == 400 && err.msg[0]);
    else
        check_item(&in);
    arena_release(&a);
    return 0;
}
