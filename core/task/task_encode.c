/* core/task/task_encode.c - the way in: every form of input to tokens, and what gives way
 * when there are too many. The text of a chat is task_chat.c's. */
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/utf8.h"
#include "core/model/model.h"
#include "core/task/task_internal.h"

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

static int too_long(const char *param, size_t n, size_t n_max, const char *why,
                    struct core_err *err)
{
    return core_err_set_param(err, CORE_E_INPUT_TOO_LONG, param,
                              "the input has %zu tokens, the limit is %zu%s", n, n_max, why);
}

/* Cut as the tokenizers library truncates: special tokens stay. */
static int from_text(const struct model *m, const struct task_input *in, size_t n_max,
                     bool truncate, struct tok_encoding *out, struct core_err *err)
{
    const struct tok_encode_options opt = {.n_max = truncate ? n_max : 0};
    int rc = tok_encode(model_tok(m), in->text, in->n_text, in->text_pair, in->n_text_pair, &opt,
                        out, err);

    if (rc == 0 && out->n > n_max)
        rc = too_long("input", out->n, n_max, "", err);
    return rc;
}

static int from_messages(const struct model *m, const struct task_input *in, size_t n_max,
                         bool truncate, struct tok_encoding *out, struct core_err *err)
{
    const struct tok_encode_options opt = {.no_special = true}; /* the template writes them */
    const int32_t bos = model_config(m)->bos;
    struct core_buf b = {0};
    int rc =
        task__chat_text(model_chat_template(m), bos < 0 ? NULL : tok_token_text(model_tok(m), bos),
                        in->message, in->n_messages, &b, err);

    if (rc == 0)
        rc = tok_encode(model_tok(m), b.p, b.n, NULL, 0, &opt, out, err);
    if (rc == 0 && out->n > n_max)
        rc = too_long("input.messages", out->n, n_max,
                      truncate ? "; messages are not truncated, leave some out" : "", err);
    core_buf_release(&b);
    return rc;
}

/* ---- the delta's prompt ------------------------------------------------------------------ */

static const char input_mark[] = "{input}";

/* The prompt with the text in place of every {input}, encoded whatever its length. */
static int encode_prompt(const struct model *m, const char *prompt, const char *text, size_t n_text,
                         struct tok_encoding *out, struct core_err *err)
{
    const struct tok_encode_options opt = {0};
    struct core_buf b = {0};
    const char *mark;
    int rc;

    for (; (mark = strstr(prompt, input_mark)); prompt = mark + strlen(input_mark)) {
        core_buf_add(&b, prompt, (size_t)(mark - prompt));
        core_buf_add(&b, text, n_text);
    }
    core_buf_str(&b, prompt);
    rc = b.is_short ? core_err_nomem(err, "prompt")
                    : tok_encode(model_tok(m), b.p, b.n, NULL, 0, &opt, out, err);
    core_buf_release(&b);
    return rc;
}

/* Where the input's tokens stand in the encoding of a prompt: at its first place. */
struct span {
    size_t first, n;     /* tokens that have something of the input */
    uint32_t start, end; /* the input, code points */
};

static struct span span_of(const struct tok_encoding *e, const char *prompt,
                           const struct task_input *in)
{
    const size_t lead = (size_t)(strstr(prompt, input_mark) - prompt);
    struct span s = {.start = (uint32_t)core_utf8_count(prompt, lead)};

    s.end = s.start + (uint32_t)core_utf8_count(in->text, in->n_text);
    while (s.first < e->n && (e->seq[s.first] != 0 || e->end[s.first] <= s.start))
        s.first++;
    while (s.first + s.n < e->n && e->seq[s.first + s.n] == 0 && e->start[s.first + s.n] < s.end)
        s.n++;
    return s;
}

/* Bytes of the input that its first k tokens reach to, k < s->n. A character that is
 * several tokens goes with the last of them, white space between two with the second. */
static size_t reach_of(const struct tok_encoding *e, const struct span *s, size_t k,
                       const struct task_input *in)
{
    uint32_t end = k ? e->end[s->first + k - 1] : 0;
    size_t n_bytes = 0;

    if (end > e->start[s->first + k])
        end = e->start[s->first + k];
    for (uint32_t c = s->start; c < end && n_bytes < in->n_text; c++)
        n_bytes += core_utf8_len(in->text + n_bytes, in->n_text - n_bytes);
    return n_bytes;
}

/* `whole`, the prompt around all of the input, is too long: takes tokens from the
 * input's end until it fits. A shorter input can have more tokens than the count says
 * (what was one token with the suffix may be two), hence the loop; `least` doubles, so
 * that it takes few rounds whatever the tokenizer does. The last is the shortest part. */
static int cut_input(const struct model *m, const char *prompt, const struct task_input *in,
                     size_t n_max, const struct tok_encoding *whole, struct tok_encoding *out,
                     struct core_err *err)
{
    const struct span s = span_of(whole, prompt, in);
    size_t n_places = 0, n = whole->n, k = s.n, k_min = 1;
    int rc;

    for (const char *p = prompt; (p = strstr(p, input_mark)); p += strlen(input_mark))
        n_places++;
    while (k_min < s.n && reach_of(whole, &s, k_min, in) == 0)
        k_min++;
    for (size_t least = 1; n > n_max; least *= 2) {
        size_t over, drop;

        if (n_places == 0 || k <= k_min)
            return too_long("input", whole->n, n_max,
                            ", and the task's prompt leaves no room for any of it", err);
        over = (n - n_max + n_places - 1) / n_places;
        drop = over > least ? over : least;
        k = drop < k - k_min ? k - drop : k_min;
        rc = encode_prompt(m, prompt, in->text, reach_of(whole, &s, k, in), out, err);
        if (rc < 0)
            return rc;
        n = out->n;
    }
    out->is_truncated = true;
    return 0;
}

static int from_prompt(const struct model *m, const char *prompt, const struct task_input *in,
                       size_t n_max, bool truncate, struct tok_encoding *out, struct core_err *err)
{
    struct tok_encoding whole = {0};
    int rc = encode_prompt(m, prompt, in->text, in->n_text, out, err);

    if (rc < 0 || out->n <= n_max)
        return rc;
    if (!truncate)
        return too_long("input", out->n, n_max, "", err);
    whole = *out;
    *out = (struct tok_encoding){0};
    rc = cut_input(m, prompt, in, n_max, &whole, out, err);
    tok_encoding_release(&whole);
    return rc;
}

/* ---- all forms --------------------------------------------------------------------------- */

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
    const int rc = check_form(d, in, err);

    if (rc < 0)
        return rc;
    if (in->form == TASK_TOKENS)
        return from_tokens(in, n_max, truncate, out, err);
    if (!model_tok(m))
        return core_err_set_param(err, CORE_E_NO_TOKENIZER, "input",
                                  "this model was opened without a tokenizer: send tokens");
    if (in->form == TASK_MESSAGES)
        return from_messages(m, in, n_max, truncate, out, err);
    if (in->form == TASK_TEXT && d->task.prompt)
        return from_prompt(m, d->task.prompt, in, n_max, truncate, out, err);
    return from_text(m, in, n_max, truncate, out, err);
}
