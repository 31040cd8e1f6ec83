/* core/task/task_text.c - a generation's text as it grows: characters are whole, and
 * what may be the beginning of a stop string waits until it is clear. */
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/task/task.h"

struct task_text {
    struct tok_stream *stream;
    struct core_buf held; /* decoded, not given out yet */
    size_t n_given;       /* of `held`, given out by the last call */
    char **stop;
    size_t n_stop;
    bool is_stopped; /* a stop string ended the text */
};

int task_text_new(struct task_text **out, const struct model *m, const char *const *stop,
                  size_t n_stop, struct core_err *err)
{
    struct task_text *t;
    int rc = 0;

    if (!model_tok(m))
        return core_err_set(err, CORE_E_NO_TOKENIZER, "this model was opened without a tokenizer");
    t = core_calloc(1, sizeof(*t));
    if (!t)
        return core_err_nomem(err, "text");
    t->stop = core_calloc(n_stop, sizeof(*t->stop));
    if (!t->stop)
        rc = core_err_nomem(err, "stop strings");
    for (size_t i = 0; rc == 0 && i < n_stop; i++) {
        if (stop[i][0] == 0)
            continue;
        t->stop[t->n_stop] = core_strdup(stop[i]);
        rc = t->stop[t->n_stop++] ? 0 : core_err_nomem(err, "stop strings");
    }
    if (rc == 0)
        rc = tok_stream_new(&t->stream, model_tok(m), true, err);
    if (rc < 0) {
        task_text_free(t);
        return rc;
    }
    *out = t;
    return 0;
}

void task_text_free(struct task_text *t)
{
    if (!t)
        return;
    for (size_t i = 0; t->stop && i < t->n_stop; i++)
        core_free(t->stop[i]);
    core_free(t->stop);
    tok_stream_free(t->stream);
    core_buf_release(&t->held);
    core_free(t);
}

/* Drops what the last call gave out. */
static void drop_given(struct task_text *t)
{
    if (t->n_given) {
        memmove(t->held.p, t->held.p + t->n_given, t->held.n - t->n_given + 1);
        t->held.n -= t->n_given;
        t->n_given = 0;
    }
}

/* The earliest complete stop string in the held text; true if there is one. */
static bool find_stop(const struct task_text *t, size_t *at)
{
    bool found = false;

    for (size_t i = 0; i < t->n_stop; i++) {
        const char *p =
            t->held.p ? memmem(t->held.p, t->held.n, t->stop[i], strlen(t->stop[i])) : NULL;

        if (p && (!found || (size_t)(p - t->held.p) < *at)) {
            *at = (size_t)(p - t->held.p);
            found = true;
        }
    }
    return found;
}

/* How much of the held text's end may be the beginning of a stop string. */
static size_t n_undecided(const struct task_text *t)
{
    size_t longest = 0;

    for (size_t i = 0; i < t->n_stop; i++) {
        const size_t len = strlen(t->stop[i]);
        size_t n = len - 1 < t->held.n ? len - 1 : t->held.n;

        for (; n > longest; n--)
            if (memcmp(t->held.p + t->held.n - n, t->stop[i], n) == 0) {
                longest = n;
                break;
            }
    }
    return longest;
}

int task_text_push(struct task_text *t, int32_t id, const char **delta, size_t *n, bool *is_stopped,
                   struct core_err *err)
{
    const char *more;
    size_t n_more, at = 0;
    int rc;

    drop_given(t);
    rc = tok_stream_push(t->stream, id, &more, &n_more, err);
    if (rc < 0)
        return rc;
    core_buf_add(&t->held, more, n_more);
    if (t->held.is_short)
        return core_err_nomem(err, "text");
    *is_stopped = find_stop(t, &at);
    *n = *is_stopped ? at : t->held.n - n_undecided(t);
    *delta = t->held.p ? t->held.p : "";
    t->n_given = *n;
    t->is_stopped = *is_stopped;
    if (*is_stopped)
        t->held.n = at; /* the stop string and what follows are not text */
    return 0;
}

int task_text_end(struct task_text *t, const char **delta, size_t *n, struct core_err *err)
{
    const char *more;
    size_t n_more;
    int rc;

    drop_given(t);
    rc = tok_stream_end(t->stream, &more, &n_more, err);
    if (rc < 0)
        return rc;
    if (!t->is_stopped)
        core_buf_add(&t->held, more, n_more);
    if (t->held.is_short)
        return core_err_nomem(err, "text");
    *delta = t->held.p ? t->held.p : "";
    *n = t->n_given = t->held.n;
    return 0;
}
