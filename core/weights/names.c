/* core/weights/names.c - see weights_names_today() in weights.h. Tensors keep their place
 * in the list: the caller sorts. */
#include <stdbool.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/weights/weights.h"

/* Modules around the model whose state was saved with it. */
static const struct {
    const char *text;
    bool is_anywhere; /* else at the beginning only */
} wrapper[] = {
    {"_orig_mod.", true}, /* torch.compile(), of the model or of a part */
    {"module.", false},   /* torch.nn.DataParallel */
};

/* Ends of names, from a dot or the beginning on: TensorFlow's words, which the first
 * conversions (bert-base-uncased among them) kept. transformers has the same table. */
static const struct {
    const char *old, *today;
} ending[] = {
    {"LayerNorm.gamma", "LayerNorm.weight"},
    {"LayerNorm.beta", "LayerNorm.bias"},
};

/* Bytes of a wrapper's name that begins at name[at], or 0. */
static size_t wrapper_at(const char *name, size_t at, bool is_start)
{
    if (at && name[at - 1] != '.')
        return 0;
    for (size_t i = 0; i < sizeof(wrapper) / sizeof(wrapper[0]); i++)
        if ((is_start || wrapper[i].is_anywhere) &&
            strncmp(name + at, wrapper[i].text, strlen(wrapper[i].text)) == 0)
            return strlen(wrapper[i].text);
    return 0;
}

static const char *end_of_today(const char *name, size_t *n)
{
    for (size_t i = 0; i < sizeof(ending) / sizeof(ending[0]); i++) {
        const size_t n_old = strlen(ending[i].old);

        if (*n < n_old || strcmp(name + *n - n_old, ending[i].old) != 0 ||
            (*n > n_old && name[*n - n_old - 1] != '.'))
            continue;
        *n -= n_old;
        return ending[i].today;
    }
    return "";
}

/* Appends today's name. */
static void rename(struct core_buf *out, const char *name)
{
    size_t n = strlen(name);
    const char *end = end_of_today(name, &n);
    bool is_start = true;

    for (size_t at = 0; at < n;) {
        const size_t n_wrapper = wrapper_at(name, at, is_start);
        const char *dot;
        size_t n_word;

        if (n_wrapper && n_wrapper <= n - at) {
            at += n_wrapper;
            continue;
        }
        is_start = false;
        dot = memchr(name + at, '.', n - at);
        n_word = dot ? (size_t)(dot + 1 - (name + at)) : n - at;
        core_buf_add(out, name + at, n_word);
        at += n_word;
    }
    core_buf_str(out, end);
}

int weights_names_today(struct tensor_list *l, struct core_err *err)
{
    struct core_buf today = {0};
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < l->n; i++) {
        const char *name = l->t[i].name;
        char *copy;

        core_buf_clear(&today);
        rename(&today, name);
        if (today.is_short) {
            rc = core_err_nomem(err, name);
        } else if (today.n && strcmp(today.p, name) != 0) {
            copy = core_strndup(today.p, today.n);
            if (copy) {
                core_free((void *)(uintptr_t)name);
                l->t[i].name = copy;
            } else {
                rc = core_err_nomem(err, name);
            }
        }
    }
    core_buf_release(&today);
    return rc;
}
