/* core/weights/pickle_torch.c - the globals that a state dict names, what calling them
 * means, and persistent ids, which name storages. */
#include <string.h>

#include "core/base/err.h"
#include "core/weights/pickle_machine.h"

/* torch's limit; a bound on the work that one REDUCE asks for */
enum { DIMS_MAX = 64 };

static bool is_text(const struct pickle__value *v, const char *text)
{
    return v->kind == K_TEXT && v->n == strlen(text) && memcmp(v->s, text, v->n) == 0;
}

/* ---- globals: the only callables ---------------------------------------- */

enum global_role { G_ORDERED_DICT, G_REBUILD_TENSOR, G_REBUILD_PARAMETER, G_STORAGE };

static const struct {
    const char *module, *name;
    enum global_role role;
    enum tensor_type type; /* G_STORAGE */
} globals[] = {
    {"collections", "OrderedDict", G_ORDERED_DICT, 0},
    {"torch._utils", "_rebuild_tensor_v2", G_REBUILD_TENSOR, 0},
    {"torch._utils", "_rebuild_parameter", G_REBUILD_PARAMETER, 0},
    {"torch", "FloatStorage", G_STORAGE, TENSOR_F32},
    {"torch", "HalfStorage", G_STORAGE, TENSOR_F16},
    {"torch", "BFloat16Storage", G_STORAGE, TENSOR_BF16},
    {"torch", "DoubleStorage", G_STORAGE, TENSOR_F64},
    {"torch", "CharStorage", G_STORAGE, TENSOR_I8},
    {"torch", "ShortStorage", G_STORAGE, TENSOR_I16},
    {"torch", "IntStorage", G_STORAGE, TENSOR_I32},
    {"torch", "LongStorage", G_STORAGE, TENSOR_I64},
    {"torch", "ByteStorage", G_STORAGE, TENSOR_U8},
    {"torch", "BoolStorage", G_STORAGE, TENSOR_BOOL},
};

static int push_global(struct pickle__machine *m, const struct pickle__value *module,
                       const struct pickle__value *name)
{
    for (size_t i = 0; i < sizeof(globals) / sizeof(globals[0]); i++)
        if (is_text(module, globals[i].module) && is_text(name, globals[i].name))
            return pickle__push(m, (struct pickle__value){.kind = K_GLOBAL, .at = i});
    return core_err_set(m->err, CORE_E_ADAPTER_UNSUPPORTED,
                        "pickle: global %.*s.%.*s is not one of a state dict and is not called",
                        module->n > 80 ? 80 : (int)module->n, module->s,
                        name->n > 80 ? 80 : (int)name->n, name->s);
}

static const struct pickle__value *items_of(const struct pickle__machine *m,
                                            const struct pickle__value *tuple)
{
    return (const struct pickle__value *)m->items.p + tuple->at;
}

/* Checks a tuple of sizes or strides and copies the first ones. */
static bool read_sizes(const struct pickle__machine *m, const struct pickle__value *v,
                       uint64_t *out)
{
    if (v->kind != K_TUPLE || v->n > DIMS_MAX)
        return false;
    for (uint32_t i = 0; i < v->n; i++) {
        const struct pickle__value *item = &items_of(m, v)[i];

        if (item->kind != K_INT || item->i < 0)
            return false;
        if (i < TENSOR_MAX_DIMS)
            out[i] = (uint64_t)item->i;
    }
    return true;
}

/* (storage, offset, size, stride, requires_grad, hooks[, metadata]) */
static int rebuild_tensor(struct pickle__machine *m, const struct pickle__value *args)
{
    const struct pickle__value *a;
    const struct pickle__storage *s;
    struct pickle__tensor t = {0}, *added;

    if (args->n != 6 && args->n != 7)
        return pickle__bad(m, "_rebuild_tensor_v2 takes 6 or 7 arguments");
    a = items_of(m, args);
    if (a[0].kind != K_STORAGE || a[1].kind != K_INT || a[1].i < 0 ||
        !read_sizes(m, &a[2], t.dim) || !read_sizes(m, &a[3], t.stride) || a[2].n != a[3].n)
        return pickle__bad(m, "_rebuild_tensor_v2 needs a storage, an offset, a size and a stride");
    /* The metadata says that the values are to be conjugated or negated. */
    if (args->n == 7 && a[6].kind != K_NONE &&
        (a[6].kind != K_DICT || ((const struct pickle__map *)m->dicts.p)[a[6].at].n))
        return pickle__refuse(m, CORE_E_ADAPTER_UNSUPPORTED, "a tensor with metadata");
    s = (const struct pickle__storage *)m->storages.p + a[0].at;
    t.type = s->type;
    t.storage = s->key;
    t.storage_n = s->n;
    t.offset = (uint64_t)a[1].i;
    t.n_dims = a[2].n;
    added = pickle__push_elem(m, &m->tensors, sizeof(*added));
    if (!added)
        return CORE_E_NOMEM;
    *added = t;
    return pickle__push(m, (struct pickle__value){.kind = K_TENSOR, .at = m->tensors.n - 1});
}

static int push_ordered_dict(struct pickle__machine *m)
{
    const int rc = pickle__push_new(m, K_DICT, &m->dicts, sizeof(struct pickle__map));

    if (rc == 0)
        ((struct pickle__value *)m->stack.p)[m->stack.n - 1].n = 1;
    return rc;
}

int pickle__op_reduce(struct pickle__machine *m)
{
    struct pickle__value args, f;
    int rc = pickle__pop_kind(m, K_TUPLE, &args);

    if (rc == 0)
        rc = pickle__pop_kind(m, K_GLOBAL, &f);
    if (rc < 0)
        return rc;
    switch (globals[f.at].role) {
    case G_ORDERED_DICT:
        if (args.n)
            return pickle__bad(m, "OrderedDict is created empty");
        return push_ordered_dict(m);
    case G_REBUILD_TENSOR:
        return rebuild_tensor(m, &args);
    case G_REBUILD_PARAMETER: /* (data, requires_grad, hooks): the data */
        if (args.n != 3 || items_of(m, &args)->kind != K_TENSOR)
            return pickle__bad(m, "_rebuild_parameter takes a tensor and two more arguments");
        return pickle__push(m, *items_of(m, &args));
    case G_STORAGE:
        break;
    }
    return pickle__refuse(m, CORE_E_ADAPTER_UNSUPPORTED, "a storage class is not called");
}

/* ("storage", class, key, device, number of values[, None]) */
int pickle__op_binpersid(struct pickle__machine *m)
{
    const struct pickle__value *a;
    struct pickle__storage *s;
    struct pickle__value id;
    int rc = pickle__pop_kind(m, K_TUPLE, &id);

    if (rc < 0)
        return rc;
    if (id.n != 5 && id.n != 6)
        return pickle__bad(m, "the persistent id is not one of a storage");
    a = items_of(m, &id);
    /* Before torch 1.6 a sixth item could make it a part of another storage. */
    if (id.n == 6 && a[5].kind != K_NONE)
        return pickle__refuse(m, CORE_E_ADAPTER_UNSUPPORTED, "a view of a storage");
    if (!is_text(&a[0], "storage") || a[1].kind != K_GLOBAL || globals[a[1].at].role != G_STORAGE ||
        a[2].kind != K_TEXT || a[3].kind != K_TEXT || a[4].kind != K_INT || a[4].i < 0)
        return pickle__bad(m, "the persistent id is not one of a storage");
    s = pickle__push_elem(m, &m->storages, sizeof(*s));
    if (!s)
        return CORE_E_NOMEM;
    s->type = globals[a[1].at].type;
    s->key = (struct pickle__text){.p = a[2].s, .n = a[2].n};
    s->n = (uint64_t)a[4].i;
    return pickle__push(m, (struct pickle__value){.kind = K_STORAGE, .at = m->storages.n - 1});
}

/* A line without its line end: the arguments of GLOBAL. */
static bool take_line(struct pickle__machine *m, struct pickle__value *out)
{
    const uint8_t *p = m->in.p + m->in.at;
    const uint8_t *end = memchr(p, '\n', m->in.n - m->in.at);

    if (!end || end - p > UINT16_MAX)
        return false;
    m->in.at += (size_t)(end - p) + 1;
    *out = (struct pickle__value){.kind = K_TEXT, .n = (uint32_t)(end - p), .s = (const char *)p};
    return true;
}

int pickle__op_global(struct pickle__machine *m)
{
    struct pickle__value module, name;

    if (!take_line(m, &module) || !take_line(m, &name))
        return pickle__bad(m, "the name does not end");
    return push_global(m, &module, &name);
}

int pickle__op_stack_global(struct pickle__machine *m)
{
    struct pickle__value module, name;
    int rc = pickle__pop_kind(m, K_TEXT, &name);

    if (rc == 0)
        rc = pickle__pop_kind(m, K_TEXT, &module);
    return rc < 0 ? rc : push_global(m, &module, &name);
}
