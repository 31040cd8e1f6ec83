/* core/task/task_encode.c - the way in: templates, chat, tokens. */
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/task/task.h"

/* ---- chat templates ---------------------------------------------------------------- */

/* Chat templates are programs in Jinja. We know families by the markers that their
 * templates contain, and write the same text; another template is refused. */
enum family { FAMILY_NONE, FAMILY_CHATML, FAMILY_LLAMA3 };

static enum family family_of(const char *chat_template)
{
    if (!chat_template)
        return FAMILY_NONE;
    if (strstr(chat_template, "<|im_start|>"))
        return FAMILY_CHATML;
    if (strstr(chat_template, "<|start_header_id|>"))
        return FAMILY_LLAMA3;
    return FAMILY_NONE;
}

/* ChatML templates of small models put a system message in front when the first is
 * none: its text stands in the template between the markers. */
static void add_default_system(struct core_buf *b, const char *chat_template)
{
    static const char mark[] = "<|im_start|>system\\n";
    const char *from = strstr(chat_template, mark), *end;

    if (!from)
        return;
    from += sizeof(mark) - 1;
    end = strstr(from, "<|im_end|>");
    if (!end || memchr(from, '\'', (size_t)(end - from)) || memchr(from, '{', (size_t)(end - from)))
        return; /* built by the program from the messages, not a constant */
    core_buf_str(b, "<|im_start|>system\n");
    core_buf_add(b, from, (size_t)(end - from));
    core_buf_str(b, "<|im_end|>\n");
}

static void add_trimmed(struct core_buf *b, const char *s)
{
    size_t n = strlen(s), from = 0;

    while (n && strchr(" \t\r\n", s[n - 1]))
        n--;
    while (from < n && strchr(" \t\r\n", s[from]))
        from++;
    core_buf_add(b, s + from, n - from);
}

static int chat_text(const struct model *m, const struct task_input *in, struct core_buf *b,
                     struct core_err *err)
{
    const char *t = model_chat_template(m);
    const enum family family = family_of(t);

    if (family == FAMILY_NONE)
        return core_err_set_param(err, CORE_E_WRONG_KIND, "input.messages",
                                  t ? "the model's chat template is of no family that is known "
                                      "(ChatML, Llama 3)"
                                    : "the model has no chat template");
    if (family == FAMILY_LLAMA3)
        core_buf_str(b, "<|begin_of_text|>");
    else if (in->n_messages == 0 || strcmp(in->message[0].role, "system") != 0)
        add_default_system(b, t);
    for (size_t i = 0; i < in->n_messages; i++) {
        const struct task_message *msg = &in->message[i];

        if (family == FAMILY_CHATML) {
            core_buf_printf(b, "<|im_start|>%s\n%s<|im_end|>\n", msg->role, msg->content);
        } else {
            core_buf_printf(b, "<|start_header_id|>%s<|end_header_id|>\n\n", msg->role);
            add_trimmed(b, msg->content);
            core_buf_str(b, "<|eot_id|>");
        }
    }
    core_buf_str(b, family == FAMILY_CHATML ? "<|im_start|>assistant\n"
                                            : "<|start_header_id|>assistant<|end_header_id|>\n\n");
    return b->is_short ? core_err_nomem(err, "chat text") : 0;
}

/* ---- encoding -------------------------------------------------------------------------- */

static int from_tokens(const struct task_input *in, size_t n_max, bool truncate,
                       struct tok_encoding *out, struct core_err *err)
{
    size_t n = in->n_tokens;

    if (n > n_max && !truncate)
        return core_err_set_param(err, CORE_E_INPUT_TOO_LONG, "input.tokens",
                                  "the input has %zu tokens, the limit is %zu", n, n_max);
    n = n < n_max ? n : n_max;
    tok_encoding_release(out);
    out->ids = core_malloc(n * sizeof(*out->ids));
    out->type_ids = core_calloc(n, sizeof(*out->type_ids));
    out->start = core_calloc(n, sizeof(*out->start));
    out->end = core_calloc(n, sizeof(*out->end));
    out->seq = core_malloc(n);
    if (!out->ids || !out->type_ids || !out->start || !out->end || !out->seq) {
        tok_encoding_release(out);
        return core_err_nomem(err, "tokens");
    }
    memcpy(out->ids, in->tokens, n * sizeof(*out->ids));
    if (in->token_types)
        memcpy(out->type_ids, in->token_types, n * sizeof(*out->type_ids));
    memset(out->seq, 255, n);
    out->n = out->cap = n;
    out->is_truncated = n < in->n_tokens;
    return 0;
}

static int from_text(const struct model *m, const struct task_input *in, bool is_chat, size_t n_max,
                     bool truncate, struct tok_encoding *out, struct core_err *err)
{
    const struct tok_encode_options opt = {.no_special = is_chat, .n_max = truncate ? n_max : 0};
    int rc;

    if (!model_tok(m))
        return core_err_set_param(err, CORE_E_NO_TOKENIZER, "input",
                                  "this model was opened without a tokenizer: send tokens");
    rc = tok_encode(model_tok(m), in->text, in->n_text, in->text_pair, in->n_text_pair, &opt, out,
                    err);
    if (rc == 0 && out->n > n_max)
        rc = core_err_set_param(err, CORE_E_INPUT_TOO_LONG, "input",
                                "the input has %zu tokens, the limit is %zu", out->n, n_max);
    return rc;
}

/* The delta's template around the text: every {input} is replaced. */
static int apply_prompt(const char *prompt, const struct task_input *in, struct core_buf *b,
                        struct core_err *err)
{
    const char *mark;

    while ((mark = strstr(prompt, "{input}"))) {
        core_buf_add(b, prompt, (size_t)(mark - prompt));
        core_buf_add(b, in->text, in->n_text);
        prompt = mark + strlen("{input}");
    }
    core_buf_str(b, prompt);
    return b->is_short ? core_err_nomem(err, "prompt") : 0;
}

/* Refuses input forms that the task's kind has no use for. */
static int check_form(const struct delta *d, const struct task_input *in, struct core_err *err)
{
    const enum delta_kind kind = d->head.kind;
    const char *form = NULL;

    if (in->form == TASK_MESSAGES && kind != DELTA_GENERATION)
        form = "messages";
    else if (in->form == TASK_CHOICES && kind != DELTA_MULTIPLE_CHOICE)
        form = "choices";
    else if (in->form == TASK_QUESTION && kind != DELTA_SPAN)
        form = "question and context";
    else if (in->form == TASK_PAIR && kind == DELTA_GENERATION)
        form = "text_pair";
    if (!form)
        return 0;
    return core_err_set_param(err, CORE_E_WRONG_KIND, "input", "a task of kind %s takes no %s",
                              delta_kind_text(kind), form);
}

int task_encode(const struct model *m, const struct delta *d, const struct task_input *in,
                size_t n_max, bool truncate, struct tok_encoding *out, struct core_err *err)
{
    struct core_buf b = {0};
    struct task_input text = *in;
    const bool is_chat = in->form == TASK_MESSAGES;
    int rc = check_form(d, in, err);

    if (rc == 0 && in->form == TASK_TOKENS)
        return from_tokens(in, n_max, truncate, out, err);
    if (rc == 0 && is_chat)
        rc = chat_text(m, in, &b, err);
    else if (rc == 0 && d->task.prompt && in->form == TASK_TEXT)
        rc = apply_prompt(d->task.prompt, in, &b, err);
    if (rc == 0 && b.p) {
        text.text = b.p;
        text.n_text = b.n;
    }
    if (rc == 0)
        rc = from_text(m, &text, is_chat, n_max, truncate, out, err);
    core_buf_release(&b);
    return rc;
}
