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

static int too_long(const char *param, size_t n, size_t n_max, const char *why,
                    struct core_err *err)
{
    return core_err_set_param(err, CORE_E_INPUT_TOO_LONG, param, "%zu tokens, the limit is %zu%s",
                              n, n_max, why);
}

static int from_tokens(const struct task_input *in, const struct task_encode_options *opt,
                       struct tok_encoding *out, struct core_err *err)
{
    size_t n = in->n_tokens;

    if (n > opt->n_max && !opt->truncate)
        return too_long("input.tokens", n, opt->n_max, "", err);
    n = n < opt->n_max ? n : opt->n_max;
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

/* What the tokenizer is told: to stop when the caller says so. */
static struct tok_encode_options tok_options(const struct task_encode_options *opt)
{
    return (struct tok_encode_options){.is_stopped = opt->is_stopped, .arg = opt->arg};
}

/* Cut as the tokenizers library truncates: special tokens stay. */
static int from_text(const struct model *m, const struct task_input *in,
                     const struct task_encode_options *opt, struct tok_encoding *out,
                     struct core_err *err)
{
    struct tok_encode_options to = tok_options(opt);
    int rc;

    to.n_max = opt->truncate ? opt->n_max : 0;
    to.keeps_text = in->form == TASK_QUESTION;
    rc = tok_encode(model_tok(m), in->text, in->n_text, in->text_pair, in->n_text_pair, &to, out,
                    err);
    if (rc == 0 && out->n > opt->n_max)
        rc = too_long("input", out->n, opt->n_max, "", err);
    return rc;
}

/* An answer is a part of the context, so there must be some of it. */
static int from_question(const struct model *m, const struct task_input *in,
                         const struct task_encode_options *opt, struct tok_encoding *out,
                         struct core_err *err)
{
    const int rc = from_text(m, in, opt, out, err);

    for (size_t i = 0; rc == 0 && i < out->n; i++)
        if (out->seq[i] == 1)
            return 0;
    return rc < 0 ? rc
                  : core_err_set_param(err, CORE_E_BAD_FIELD, "input.context",
                                       "there is no token in it that could be an answer");
}

static int from_messages(const struct model *m, const struct task_input *in,
                         const struct task_encode_options *opt, struct tok_encoding *out,
                         struct core_err *err)
{
    const int32_t bos = model_config(m)->bos;
    struct tok_encode_options to = tok_options(opt);
    struct core_buf b = {0};
    int rc =
        task__chat_text(model_chat_template(m), bos < 0 ? NULL : tok_token_text(model_tok(m), bos),
                        in->message, in->n_messages, &b, err);

    to.no_special = true; /* the template writes them */
    if (rc == 0)
        rc = tok_encode(model_tok(m), b.p, b.n, NULL, 0, &to, out, err);
    if (rc == 0 && out->n > opt->n_max)
        rc = too_long("input.messages", out->n, opt->n_max,
                      opt->truncate ? "; messages are not truncated, leave some out" : "", err);
    core_buf_release(&b);
    return rc;
}

/* ---- the delta's prompt ------------------------------------------------------------------ */

static const char input_mark[] = "{input}";

static size_t count_places(const char *prompt)
{
    size_t n = 0;

    for (const char *p = prompt; (p = strstr(p, input_mark)); p += strlen(input_mark))
        n++;
    return n;
}

/* Encodes a prompt: one input after the other, whole or in part. */
struct prompted {
    const struct model *m;
    const char *prompt;
    const struct task_input *in;
    struct tok_encode_options opt;
    size_t n_places; /* of {input} */
};

static int check_size(const struct prompted *p, struct core_err *err)
{
    const size_t n_prompt = strlen(p->prompt), n_text = p->in->n_text;
    size_t n;

    if (!core_mul_size(p->n_places, n_text, &n) || n > TASK_PROMPTED_MAX ||
        n_prompt > TASK_PROMPTED_MAX - n)
        return core_err_set_param(err, CORE_E_INPUT_TOO_LONG, "input",
                                  "the task's prompt has room for this text %zu times, which is "
                                  "more than %d bytes (%zu bytes of text, %zu of prompt)",
                                  p->n_places, (int)TASK_PROMPTED_MAX, n_text, n_prompt);
    return 0;
}

/* The prompt with the first n bytes of the input in place of every {input}, encoded
 * whatever its length. */
static int encode_prompt(const struct prompted *p, size_t n, struct tok_encoding *out,
                         struct core_err *err)
{
    const char *prompt = p->prompt, *mark;
    struct core_buf b = {0};
    int rc;

    for (; (mark = strstr(prompt, input_mark)); prompt = mark + strlen(input_mark)) {
        core_buf_add(&b, prompt, (size_t)(mark - prompt));
        core_buf_add(&b, p->in->text, n);
    }
    core_buf_str(&b, prompt);
    rc = b.is_short ? core_err_nomem(err, "prompt")
                    : tok_encode(model_tok(p->m), b.p, b.n, NULL, 0, &p->opt, out, err);
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
static int cut_input(const struct prompted *p, size_t n_max, const struct tok_encoding *whole,
                     struct tok_encoding *out, struct core_err *err)
{
    const struct span s = span_of(whole, p->prompt, p->in);
    size_t n = whole->n, k = s.n, k_min = 1;
    int rc;

    while (k_min < s.n && reach_of(whole, &s, k_min, p->in) == 0)
        k_min++;
    for (size_t least = 1; n > n_max; least *= 2) {
        size_t over, drop;

        if (p->n_places == 0 || k <= k_min)
            return too_long("input", whole->n, n_max,
                            ", and the task's prompt leaves no room for any of it", err);
        over = (n - n_max + p->n_places - 1) / p->n_places;
        drop = over > least ? over : least;
        k = drop < k - k_min ? k - drop : k_min;
        rc = encode_prompt(p, reach_of(whole, &s, k, p->in), out, err);
        if (rc < 0)
            return rc;
        n = out->n;
    }
    out->is_truncated = true;
    return 0;
}

static int from_prompt(const struct model *m, const char *prompt, const struct task_input *in,
                       const struct task_encode_options *opt, struct tok_encoding *out,
                       struct core_err *err)
{
    const struct prompted p = {.m = m,
                               .prompt = prompt,
                               .in = in,
                               .opt = tok_options(opt),
                               .n_places = count_places(prompt)};
    struct tok_encoding whole = {0};
    int rc = check_size(&p, err);

    if (rc == 0)
        rc = encode_prompt(&p, in->n_text, out, err);
    if (rc < 0 || out->n <= opt->n_max)
        return rc;
    if (!opt->truncate)
        return too_long("input", out->n, opt->n_max, "", err);
    whole = *out;
    *out = (struct tok_encoding){0};
    rc = cut_input(&p, opt->n_max, &whole, out, err);
    tok_encoding_release(&whole);
    return rc;
}

/* ---- all forms --------------------------------------------------------------------------- */

int task_check_form(const struct delta *d, const struct task_input *in, struct core_err *err)
{
    const enum delta_kind kind = d->head.kind;
    const char *form = NULL, *need = NULL;

    if (kind == DELTA_SPAN && in->form != TASK_QUESTION && in->form != TASK_TOKENS)
        need = "question and context, or tokens";
    else if (kind == DELTA_MULTIPLE_CHOICE && in->form != TASK_CHOICES)
        need = "text and choices";
    if (need)
        return core_err_set_param(err, CORE_E_WRONG_KIND, "input", "a task of kind %s needs %s",
                                  delta_kind_text(kind), need);
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

size_t task_encode_cost(const struct delta *d, const struct task_input *in)
{
    const char *prompt = in->form == TASK_TEXT ? d->task.prompt : NULL;
    size_t n = in->n_text * (prompt ? count_places(prompt) : 1) + in->n_text_pair + in->n_tokens;

    for (size_t i = 0; i < in->n_messages; i++)
        n += strlen(in->message[i].content);
    return n + (prompt ? strlen(prompt) : 0);
}

int task_encode(const struct model *m, const struct delta *d, const struct task_input *in,
                const struct task_encode_options *opt, struct tok_encoding *out,
                struct core_err *err)
{
    const int rc = task_check_form(d, in, err);

    if (rc < 0)
        return rc;
    if (in->form == TASK_TOKENS)
        return from_tokens(in, opt, out, err);
    if (!model_tok(m))
        return core_err_set_param(err, CORE_E_NO_TOKENIZER, "input",
                                  "this model was opened without a tokenizer: send tokens");
    if (in->form == TASK_MESSAGES)
        return from_messages(m, in, opt, out, err);
    if (in->form == TASK_QUESTION)
        return from_question(m, in, opt, out, err);
    if (in->form == TASK_TEXT && d->task.prompt)
        return from_prompt(m, d->task.prompt, in, opt, out, err);
    return from_text(m, in, opt, out, err);
}
