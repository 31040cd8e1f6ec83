/* core/weights/safetensors_plain.c - a safetensors header as the format's own library writes it,
 * read without a tree: a load of an adapter spends a third of its time on one otherwise.
 *
 * Plain is: names of printable ASCII without escapes, each tensor's after the one before it (so
 * that none stands twice), its three keys and no others, sizes of few digits, at most one entry of
 * metadata. What is not plain, or wrong, is for safetensors.c to read, or to name. */
#include "core/weights/weights_internal.h"

#include "core/base/err.h"

enum {
    DIGITS_MAX = 15,            /* a number of so many fits */
    PLAIN_TENSORS_MAX = 300000, /* as many as safetensors.c reads */
};

struct text {
    const char *at, *end;
};

struct word {
    const char *p;
    size_t n;
};

/* The next byte that is no space; 0 at the end. */
static char peek(struct text *t)
{
    while (t->at < t->end && (*t->at == ' ' || *t->at == '\n' || *t->at == '\r' || *t->at == '\t'))
        t->at++;
    return t->at < t->end ? *t->at : 0;
}

static bool take(struct text *t, char c)
{
    if (peek(t) != c)
        return false;
    t->at++;
    return true;
}

static bool take_word(struct text *t, struct word *out)
{
    if (!take(t, '"'))
        return false;
    out->p = t->at;
    while (t->at < t->end && *t->at != '"') {
        if (*t->at < ' ' || *t->at > '~' || *t->at == '\\')
            return false;
        t->at++;
    }
    out->n = (size_t)(t->at - out->p);
    return take(t, '"');
}

static bool is_word(const struct word *w, const char *text)
{
    return w->n == strlen(text) && memcmp(w->p, text, w->n) == 0;
}

static bool take_size(struct text *t, size_t *out)
{
    const bool is_zero = peek(t) == '0';
    const char *from = t->at;
    size_t v = 0;

    while (t->at < t->end && *t->at >= '0' && *t->at <= '9' && t->at - from < DIGITS_MAX)
        v = 10 * v + (size_t)(*t->at++ - '0');
    *out = v;
    return t->at > from && (!is_zero || t->at == from + 1);
}

/* A list of at most n_max sizes. */
static bool take_sizes(struct text *t, unsigned n_max, size_t *out, unsigned *n)
{
    *n = 0;
    if (!take(t, '['))
        return false;
    if (take(t, ']'))
        return true;
    do {
        if (*n == n_max || !take_size(t, &out[*n]))
            return false;
        ++*n;
    } while (take(t, ','));
    return take(t, ']');
}

static bool take_type(struct text *t, enum tensor_type *out)
{
    struct word w;

    if (!take_word(t, &w))
        return false;
    for (int type = 0; type < TENSOR_N_TYPES; type++) {
        *out = (enum tensor_type)type;
        if (!tensor_type_is_quantised(*out) && is_word(&w, tensor_type_text(*out)))
            return true;
    }
    return false;
}

/* The entry of a tensor: its type, shape and place, each once. */
static bool take_entry(struct text *t, struct tensor *out, size_t place[2])
{
    enum { TYPE = 1, SHAPE = 2, PLACE = 4, ALL = TYPE | SHAPE | PLACE };
    unsigned seen = 0, found, n;
    struct word key;
    bool is_read;

    if (!take(t, '{'))
        return false;
    do {
        if (!take_word(t, &key) || !take(t, ':'))
            return false;
        if (is_word(&key, "dtype")) {
            found = TYPE;
            is_read = take_type(t, &out->type);
        } else if (is_word(&key, "shape")) {
            found = SHAPE;
            is_read = take_sizes(t, TENSOR_MAX_DIMS, out->dim, &out->n_dims);
        } else {
            found = PLACE;
            is_read = is_word(&key, "data_offsets") && take_sizes(t, 2, place, &n) && n == 2;
        }
        if (!is_read || seen & found)
            return false;
        seen |= found;
    } while (take(t, ','));
    return seen == ALL && take(t, '}');
}

static bool take_metadata(struct text *t)
{
    struct word key, value;

    return take(t, '{') && (take(t, '}') || (take_word(t, &key) && take(t, ':') &&
                                             take_word(t, &value) && take(t, '}')));
}

/* 1: added; 0: not plain; CORE_E_NOMEM. */
static int add(struct tensor_list *l, size_t n_before, const struct word *name, struct tensor *t)
{
    int rc;

    if (l->n - n_before >= PLAIN_TENSORS_MAX)
        return 0;
    rc = tensor__list_add_n(l, t, name->p, name->n, NULL);
    if (rc < 0)
        return rc == CORE_E_NOMEM ? rc : 0;
    return l->n - n_before < 2 || strcmp(l->t[l->n - 2].name, l->t[l->n - 1].name) < 0;
}

/* As add(), for the next entry of the header. */
static int read_next(struct text *t, const uint8_t *data, size_t n_data, size_t n_before,
                     bool *has_metadata, struct tensor_list *l)
{
    struct tensor tensor = {0};
    struct word name;
    size_t place[2];

    if (!take_word(t, &name) || !take(t, ':'))
        return 0;
    if (is_word(&name, "__metadata__")) {
        if (*has_metadata)
            return 0;
        *has_metadata = true;
        return take_metadata(t);
    }
    if (!take_entry(t, &tensor, place) || !tensor__measure(&tensor) || place[0] > place[1] ||
        place[1] > n_data || place[1] - place[0] != tensor.n_bytes)
        return 0;
    tensor.data = data + place[0];
    return add(l, n_before, &name, &tensor);
}

int safetensors__read_plain(const char *text, size_t n, const uint8_t *data, size_t n_data,
                            struct tensor_list *out)
{
    struct text t = {text, text + n};
    const size_t n_before = out->n;
    bool has_metadata = false;
    int rc = take(&t, '{');

    if (rc == 1 && !take(&t, '}')) {
        do
            rc = read_next(&t, data, n_data, n_before, &has_metadata, out);
        while (rc == 1 && take(&t, ','));
        if (rc == 1 && !take(&t, '}'))
            rc = 0;
    }
    if (rc == 1 && (peek(&t) != 0 || t.at < t.end))
        rc = 0;
    if (rc < 1)
        tensor__list_cut(out, n_before);
    return rc;
}
