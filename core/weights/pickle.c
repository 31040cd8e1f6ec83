/* core/weights/pickle.c - a pickle machine that knows torch's state dicts and
 * nothing else. See pickle_internal.h.
 *
 * A pickle is a program for a stack machine, and in Python it can call anything.
 * Here the values are a closed set (`enum kind`), a global is a row of `globals`
 * or an error with its name, and REDUCE is a switch over those rows: there is
 * nothing that a file could call. Every value is a handle into an array of the
 * machine, so values may share and even contain each other, while no code here
 * recurses. An opcode adds one element to an array, or moves what earlier ones
 * pushed, so the limit on opcodes bounds memory too: a few hundred MB at worst. */
#include "core/weights/pickle_internal.h"

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/weights/weights_internal.h"

enum {
    OPCODES_MAX = 1 << 22, /* a tensor takes 35 or fewer: 120,000 tensors */
    STACK_MAX = 1 << 16,   /* the pickler keeps at most 2,000 dict items on it */
    PROTOCOL_MAX = 5,
    DIMS_MAX = 64, /* torch's limit; a bound on the work that one REDUCE asks for */
    NO_PAIR = 0,   /* pair 0 is never used */
};

enum kind {
    K_MARK,
    K_NONE,
    K_BOOL,
    K_INT,
    K_TEXT,
    K_GLOBAL,
    K_TUPLE,
    K_DICT,
    K_STORAGE,
    K_TENSOR,
};

static const char *const kind_text[] = {
    [K_MARK] = "a mark",     [K_NONE] = "None",     [K_BOOL] = "a bool",
    [K_INT] = "an int",      [K_TEXT] = "a string", [K_GLOBAL] = "a class or function",
    [K_TUPLE] = "a tuple",   [K_DICT] = "a dict",   [K_STORAGE] = "a storage",
    [K_TENSOR] = "a tensor",
};

struct value {
    enum kind kind;
    uint32_t n; /* K_TEXT: bytes; K_TUPLE: items; K_DICT: 1 for an OrderedDict */
    union {
        int64_t i;     /* K_BOOL, K_INT */
        const char *s; /* K_TEXT */
        size_t at;     /* K_GLOBAL: row of globals; K_TUPLE: first of items; K_DICT, K_STORAGE,
                        * K_TENSOR: index in the array of that name */
    };
};

struct pair {
    struct value key, value;
    size_t next; /* the dict's next pair, or NO_PAIR */
};

struct dict {
    size_t first, last, n; /* pairs */
};

struct storage {
    enum tensor_type type;
    struct pickle__text key;
    uint64_t n;
};

struct machine {
    struct weights__cursor in;
    struct weights__array stack, memo, items;              /* struct value */
    struct weights__array pairs, dicts, storages, tensors; /* of those structs */
    const char *op_name;                                   /* the opcode that runs */
    const uint8_t *arg;                                    /* its argument of fixed size */
    bool is_stopped;
    struct core_err *err;
};

static int refuse(struct machine *m, int code, const char *what)
{
    return core_err_set(m->err, code, "pickle: byte %zu, %s: %s", m->in.at, m->op_name, what);
}

static int bad(struct machine *m, const char *what)
{
    return refuse(m, CORE_E_ADAPTER_INVALID, what);
}

static void *push_elem(struct machine *m, struct weights__array *a, size_t elem_bytes)
{
    void *elem = weights__push(a, elem_bytes);

    if (!elem)
        core_err_nomem(m->err, "pickle");
    return elem;
}

/* ---- the stack ---------------------------------------------------------- */

static struct value *stack(struct machine *m)
{
    return m->stack.p;
}

static int push(struct machine *m, struct value v)
{
    struct value *top;

    if (m->stack.n >= STACK_MAX)
        return bad(m, "the stack is too deep");
    top = push_elem(m, &m->stack, sizeof(*top));
    if (!top)
        return CORE_E_NOMEM;
    *top = v;
    return 0;
}

/* Takes the value off the top; a mark is not a value. *out is set in any case. */
static int pop(struct machine *m, struct value *out)
{
    *out = (struct value){0};
    if (m->stack.n == 0 || stack(m)[m->stack.n - 1].kind == K_MARK)
        return bad(m, "the stack is empty");
    *out = stack(m)[--m->stack.n];
    return 0;
}

static int pop_kind(struct machine *m, enum kind kind, struct value *out)
{
    const int rc = pop(m, out);

    if (rc == 0 && out->kind != kind)
        return bad(m, "a value of another type is needed here");
    return rc;
}

/* Index of the first value above the topmost mark, at least 1; 0 if there is none. */
static size_t find_mark(struct machine *m)
{
    size_t at = m->stack.n;

    while (at > 0 && stack(m)[at - 1].kind != K_MARK)
        at--;
    if (at == 0)
        bad(m, "there is no mark");
    return at;
}

static int push_new(struct machine *m, enum kind kind, struct weights__array *a, size_t elem_bytes)
{
    if (!push_elem(m, a, elem_bytes))
        return CORE_E_NOMEM;
    return push(m, (struct value){.kind = kind, .at = a->n - 1});
}

static bool is_text(const struct value *v, const char *text)
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

static int push_global(struct machine *m, const struct value *module, const struct value *name)
{
    for (size_t i = 0; i < sizeof(globals) / sizeof(globals[0]); i++)
        if (is_text(module, globals[i].module) && is_text(name, globals[i].name))
            return push(m, (struct value){.kind = K_GLOBAL, .at = i});
    return core_err_set(m->err, CORE_E_ADAPTER_UNSUPPORTED,
                        "pickle: global %.*s.%.*s is not one of a state dict and is not called",
                        module->n > 80 ? 80 : (int)module->n, module->s,
                        name->n > 80 ? 80 : (int)name->n, name->s);
}

static const struct value *items_of(const struct machine *m, const struct value *tuple)
{
    return (const struct value *)m->items.p + tuple->at;
}

/* Checks a tuple of sizes or strides and copies the first ones. */
static bool read_sizes(const struct machine *m, const struct value *v, uint64_t *out)
{
    if (v->kind != K_TUPLE || v->n > DIMS_MAX)
        return false;
    for (uint32_t i = 0; i < v->n; i++) {
        const struct value *item = &items_of(m, v)[i];

        if (item->kind != K_INT || item->i < 0)
            return false;
        if (i < TENSOR_MAX_DIMS)
            out[i] = (uint64_t)item->i;
    }
    return true;
}

/* (storage, offset, size, stride, requires_grad, hooks[, metadata]) */
static int rebuild_tensor(struct machine *m, const struct value *args)
{
    const struct value *a;
    const struct storage *s;
    struct pickle__tensor t = {0}, *added;

    if (args->n != 6 && args->n != 7)
        return bad(m, "_rebuild_tensor_v2 takes 6 or 7 arguments");
    a = items_of(m, args);
    if (a[0].kind != K_STORAGE || a[1].kind != K_INT || a[1].i < 0 ||
        !read_sizes(m, &a[2], t.dim) || !read_sizes(m, &a[3], t.stride) || a[2].n != a[3].n)
        return bad(m, "_rebuild_tensor_v2 needs a storage, an offset, a size and a stride");
    /* The metadata says that the values are to be conjugated or negated. */
    if (args->n == 7 && a[6].kind != K_NONE &&
        (a[6].kind != K_DICT || ((const struct dict *)m->dicts.p)[a[6].at].n))
        return refuse(m, CORE_E_ADAPTER_UNSUPPORTED, "a tensor with metadata");
    s = (const struct storage *)m->storages.p + a[0].at;
    t.type = s->type;
    t.storage = s->key;
    t.storage_n = s->n;
    t.offset = (uint64_t)a[1].i;
    t.n_dims = a[2].n;
    added = push_elem(m, &m->tensors, sizeof(*added));
    if (!added)
        return CORE_E_NOMEM;
    *added = t;
    return push(m, (struct value){.kind = K_TENSOR, .at = m->tensors.n - 1});
}

static int push_ordered_dict(struct machine *m)
{
    const int rc = push_new(m, K_DICT, &m->dicts, sizeof(struct dict));

    if (rc == 0)
        stack(m)[m->stack.n - 1].n = 1;
    return rc;
}

static int op_reduce(struct machine *m)
{
    struct value args, f;
    int rc = pop_kind(m, K_TUPLE, &args);

    if (rc == 0)
        rc = pop_kind(m, K_GLOBAL, &f);
    if (rc < 0)
        return rc;
    switch (globals[f.at].role) {
    case G_ORDERED_DICT:
        if (args.n)
            return bad(m, "OrderedDict is created empty");
        return push_ordered_dict(m);
    case G_REBUILD_TENSOR:
        return rebuild_tensor(m, &args);
    case G_REBUILD_PARAMETER: /* (data, requires_grad, hooks): the data */
        if (args.n != 3 || items_of(m, &args)->kind != K_TENSOR)
            return bad(m, "_rebuild_parameter takes a tensor and two more arguments");
        return push(m, *items_of(m, &args));
    case G_STORAGE:
        break;
    }
    return refuse(m, CORE_E_ADAPTER_UNSUPPORTED, "a storage class is not called");
}

/* ("storage", class, key, device, number of values) */
static int op_binpersid(struct machine *m)
{
    const struct value *a;
    struct storage *s;
    struct value id;
    int rc = pop_kind(m, K_TUPLE, &id);

    if (rc < 0)
        return rc;
    if (id.n != 5)
        return bad(m, "the persistent id is not one of a storage");
    a = items_of(m, &id);
    if (!is_text(&a[0], "storage") || a[1].kind != K_GLOBAL || globals[a[1].at].role != G_STORAGE ||
        a[2].kind != K_TEXT || a[3].kind != K_TEXT || a[4].kind != K_INT || a[4].i < 0)
        return bad(m, "the persistent id is not one of a storage");
    s = push_elem(m, &m->storages, sizeof(*s));
    if (!s)
        return CORE_E_NOMEM;
    s->type = globals[a[1].at].type;
    s->key = (struct pickle__text){.p = a[2].s, .n = a[2].n};
    s->n = (uint64_t)a[4].i;
    return push(m, (struct value){.kind = K_STORAGE, .at = m->storages.n - 1});
}

/* A line without its line end: the arguments of GLOBAL. */
static bool take_line(struct machine *m, struct value *out)
{
    const uint8_t *p = m->in.p + m->in.at;
    const uint8_t *end = memchr(p, '\n', m->in.n - m->in.at);

    if (!end || end - p > UINT16_MAX)
        return false;
    m->in.at += (size_t)(end - p) + 1;
    *out = (struct value){.kind = K_TEXT, .n = (uint32_t)(end - p), .s = (const char *)p};
    return true;
}

static int op_global(struct machine *m)
{
    struct value module, name;

    if (!take_line(m, &module) || !take_line(m, &name))
        return bad(m, "the name does not end");
    return push_global(m, &module, &name);
}

static int op_stack_global(struct machine *m)
{
    struct value module, name;
    int rc = pop_kind(m, K_TEXT, &name);

    if (rc == 0)
        rc = pop_kind(m, K_TEXT, &module);
    return rc < 0 ? rc : push_global(m, &module, &name);
}

/* ---- constants ---------------------------------------------------------- */

static int op_none(struct machine *m)
{
    return push(m, (struct value){.kind = K_NONE});
}

static int op_true(struct machine *m)
{
    return push(m, (struct value){.kind = K_BOOL, .i = 1});
}

static int op_false(struct machine *m)
{
    return push(m, (struct value){.kind = K_BOOL});
}

static int op_binint(struct machine *m)
{
    return push(m, (struct value){.kind = K_INT, .i = (int32_t)weights__load32(m->arg)});
}

static int op_binint1(struct machine *m)
{
    return push(m, (struct value){.kind = K_INT, .i = *m->arg});
}

static int op_binint2(struct machine *m)
{
    return push(m, (struct value){.kind = K_INT, .i = weights__load16(m->arg)});
}

/* Two's complement of any length; torch needs at most 8 bytes. */
static int op_long1(struct machine *m)
{
    const uint8_t n = *m->arg, *p = weights__take(&m->in, n);
    uint64_t v;

    if (!p || n > sizeof(v))
        return bad(m, "an integer of more than 8 bytes");
    v = n && p[n - 1] & 0x80 ? UINT64_MAX : 0;
    for (uint8_t i = n; i-- > 0;)
        v = v << 8 | p[i];
    return push(m, (struct value){.kind = K_INT, .i = (int64_t)v});
}

static int push_text(struct machine *m, uint64_t n)
{
    const uint8_t *p = n <= UINT32_MAX ? weights__take(&m->in, n) : NULL;

    if (!p)
        return bad(m, "the string does not end");
    return push(m, (struct value){.kind = K_TEXT, .n = (uint32_t)n, .s = (const char *)p});
}

static int op_short_binunicode(struct machine *m)
{
    return push_text(m, *m->arg);
}

static int op_binunicode(struct machine *m)
{
    return push_text(m, weights__load32(m->arg));
}

static int op_binunicode8(struct machine *m)
{
    return push_text(m, weights__load64(m->arg));
}

/* ---- containers --------------------------------------------------------- */

static int op_mark(struct machine *m)
{
    return push(m, (struct value){.kind = K_MARK});
}

/* Moves the top n values into a tuple. */
static int make_tuple(struct machine *m, size_t n)
{
    const struct value v = {.kind = K_TUPLE, .n = (uint32_t)n, .at = m->items.n};
    struct value *item;

    for (size_t i = m->stack.n - n; i < m->stack.n; i++) {
        item = push_elem(m, &m->items, sizeof(*item));
        if (!item)
            return CORE_E_NOMEM;
        *item = stack(m)[i];
    }
    m->stack.n -= n;
    return push(m, v);
}

static int make_short_tuple(struct machine *m, size_t n)
{
    for (size_t i = 1; i <= n; i++)
        if (m->stack.n < i || stack(m)[m->stack.n - i].kind == K_MARK)
            return bad(m, "the stack is empty");
    return make_tuple(m, n);
}

static int op_empty_tuple(struct machine *m)
{
    return make_tuple(m, 0);
}

static int op_tuple1(struct machine *m)
{
    return make_short_tuple(m, 1);
}

static int op_tuple2(struct machine *m)
{
    return make_short_tuple(m, 2);
}

static int op_tuple3(struct machine *m)
{
    return make_short_tuple(m, 3);
}

static int op_tuple(struct machine *m)
{
    const size_t first = find_mark(m), n = m->stack.n - first;

    if (first == 0)
        return CORE_E_ADAPTER_INVALID;
    /* The mark goes, and the items move down into its place. */
    memmove(&stack(m)[first - 1], &stack(m)[first], n * sizeof(struct value));
    m->stack.n--;
    return make_tuple(m, n);
}

static int op_empty_dict(struct machine *m)
{
    return push_new(m, K_DICT, &m->dicts, sizeof(struct dict));
}

/* Adds the values from `first` to the top to the dict below them, and drops all
 * from `end` on, so that the dict stays on top. */
static int set_items(struct machine *m, size_t first, size_t end)
{
    struct dict *d;

    if (end == 0 || stack(m)[end - 1].kind != K_DICT || (m->stack.n - first) % 2)
        return bad(m, "pairs are added to something else than a dict");
    if (m->pairs.n == NO_PAIR && !push_elem(m, &m->pairs, sizeof(struct pair)))
        return CORE_E_NOMEM;
    d = (struct dict *)m->dicts.p + stack(m)[end - 1].at;
    for (size_t i = first; i < m->stack.n; i += 2) {
        struct pair *pair = push_elem(m, &m->pairs, sizeof(*pair));

        if (!pair)
            return CORE_E_NOMEM;
        pair->key = stack(m)[i];
        pair->value = stack(m)[i + 1];
        if (d->n++)
            ((struct pair *)m->pairs.p)[d->last].next = m->pairs.n - 1;
        else
            d->first = m->pairs.n - 1;
        d->last = m->pairs.n - 1;
    }
    m->stack.n = end;
    return 0;
}

static int op_setitem(struct machine *m)
{
    if (m->stack.n < 3 || stack(m)[m->stack.n - 1].kind == K_MARK ||
        stack(m)[m->stack.n - 2].kind == K_MARK)
        return bad(m, "the stack is empty");
    return set_items(m, m->stack.n - 2, m->stack.n - 2);
}

static int op_setitems(struct machine *m)
{
    const size_t first = find_mark(m);

    return first == 0 ? CORE_E_ADAPTER_INVALID : set_items(m, first, first - 1);
}

/* nn.Module.state_dict() hangs its `_metadata` on the OrderedDict as an
 * attribute. It says nothing about the numbers. */
static int op_build(struct machine *m)
{
    struct value state;
    const int rc = pop_kind(m, K_DICT, &state);

    if (rc < 0)
        return rc;
    if (m->stack.n == 0 || stack(m)[m->stack.n - 1].kind != K_DICT || !stack(m)[m->stack.n - 1].n)
        return refuse(m, CORE_E_ADAPTER_UNSUPPORTED, "only an OrderedDict has a state");
    return 0;
}

/* ---- memo, protocol, end ------------------------------------------------ */

/* Picklers number the memo 0, 1, 2 ..., so it may only grow by one. */
static int put(struct machine *m, size_t at)
{
    struct value *slot;

    if (m->stack.n == 0 || stack(m)[m->stack.n - 1].kind == K_MARK)
        return bad(m, "the stack is empty");
    if (at > m->memo.n)
        return bad(m, "a memo number was left out");
    if (at == m->memo.n && !push_elem(m, &m->memo, sizeof(*slot)))
        return CORE_E_NOMEM;
    slot = (struct value *)m->memo.p + at;
    *slot = stack(m)[m->stack.n - 1];
    return 0;
}

static int get(struct machine *m, size_t at)
{
    if (at >= m->memo.n)
        return bad(m, "there is no such memo");
    return push(m, ((const struct value *)m->memo.p)[at]);
}

static int op_binput(struct machine *m)
{
    return put(m, *m->arg);
}

static int op_long_binput(struct machine *m)
{
    return put(m, weights__load32(m->arg));
}

static int op_memoize(struct machine *m)
{
    return put(m, m->memo.n);
}

static int op_binget(struct machine *m)
{
    return get(m, *m->arg);
}

static int op_long_binget(struct machine *m)
{
    return get(m, weights__load32(m->arg));
}

static int op_proto(struct machine *m)
{
    if (*m->arg < 2 || *m->arg > PROTOCOL_MAX)
        return refuse(m, CORE_E_ADAPTER_UNSUPPORTED, "only protocols 2 to 5 are read");
    return 0;
}

/* A frame is a hint for buffering, no structure. */
static int op_frame(struct machine *m)
{
    (void)m;
    return 0;
}

static int op_stop(struct machine *m)
{
    m->is_stopped = true;
    return 0;
}

/* Every opcode of protocol 5, so that a refused one has its name. */
static const struct {
    const char *name;
    int (*run)(struct machine *m); /* NULL: refused */
    uint8_t n_arg;                 /* bytes of fixed argument */
} ops[256] = {
    ['('] = {"MARK", op_mark, 0},
    ['.'] = {"STOP", op_stop, 0},
    ['0'] = {"POP", NULL, 0},
    ['1'] = {"POP_MARK", NULL, 0},
    ['2'] = {"DUP", NULL, 0},
    ['F'] = {"FLOAT", NULL, 0},
    ['I'] = {"INT", NULL, 0},
    ['J'] = {"BININT", op_binint, 4},
    ['K'] = {"BININT1", op_binint1, 1},
    ['L'] = {"LONG", NULL, 0},
    ['M'] = {"BININT2", op_binint2, 2},
    ['N'] = {"NONE", op_none, 0},
    ['P'] = {"PERSID", NULL, 0},
    ['Q'] = {"BINPERSID", op_binpersid, 0},
    ['R'] = {"REDUCE", op_reduce, 0},
    ['S'] = {"STRING", NULL, 0},
    ['T'] = {"BINSTRING", NULL, 0},
    ['U'] = {"SHORT_BINSTRING", NULL, 0},
    ['V'] = {"UNICODE", NULL, 0},
    ['X'] = {"BINUNICODE", op_binunicode, 4},
    ['a'] = {"APPEND", NULL, 0},
    ['b'] = {"BUILD", op_build, 0},
    ['c'] = {"GLOBAL", op_global, 0},
    ['d'] = {"DICT", NULL, 0},
    ['}'] = {"EMPTY_DICT", op_empty_dict, 0},
    ['e'] = {"APPENDS", NULL, 0},
    ['g'] = {"GET", NULL, 0},
    ['h'] = {"BINGET", op_binget, 1},
    ['i'] = {"INST", NULL, 0},
    ['j'] = {"LONG_BINGET", op_long_binget, 4},
    ['l'] = {"LIST", NULL, 0},
    [']'] = {"EMPTY_LIST", NULL, 0},
    ['o'] = {"OBJ", NULL, 0},
    ['p'] = {"PUT", NULL, 0},
    ['q'] = {"BINPUT", op_binput, 1},
    ['r'] = {"LONG_BINPUT", op_long_binput, 4},
    ['s'] = {"SETITEM", op_setitem, 0},
    ['t'] = {"TUPLE", op_tuple, 0},
    [')'] = {"EMPTY_TUPLE", op_empty_tuple, 0},
    ['u'] = {"SETITEMS", op_setitems, 0},
    ['G'] = {"BINFLOAT", NULL, 0},
    ['B'] = {"BINBYTES", NULL, 0},
    ['C'] = {"SHORT_BINBYTES", NULL, 0},
    [0x80] = {"PROTO", op_proto, 1},
    [0x81] = {"NEWOBJ", NULL, 0},
    [0x82] = {"EXT1", NULL, 0},
    [0x83] = {"EXT2", NULL, 0},
    [0x84] = {"EXT4", NULL, 0},
    [0x85] = {"TUPLE1", op_tuple1, 0},
    [0x86] = {"TUPLE2", op_tuple2, 0},
    [0x87] = {"TUPLE3", op_tuple3, 0},
    [0x88] = {"NEWTRUE", op_true, 0},
    [0x89] = {"NEWFALSE", op_false, 0},
    [0x8a] = {"LONG1", op_long1, 1},
    [0x8b] = {"LONG4", NULL, 0},
    [0x8c] = {"SHORT_BINUNICODE", op_short_binunicode, 1},
    [0x8d] = {"BINUNICODE8", op_binunicode8, 8},
    [0x8e] = {"BINBYTES8", NULL, 0},
    [0x8f] = {"EMPTY_SET", NULL, 0},
    [0x90] = {"ADDITEMS", NULL, 0},
    [0x91] = {"FROZENSET", NULL, 0},
    [0x92] = {"NEWOBJ_EX", NULL, 0},
    [0x93] = {"STACK_GLOBAL", op_stack_global, 0},
    [0x94] = {"MEMOIZE", op_memoize, 0},
    [0x95] = {"FRAME", op_frame, 8},
    [0x96] = {"BYTEARRAY8", NULL, 0},
    [0x97] = {"NEXT_BUFFER", NULL, 0},
    [0x98] = {"READONLY_BUFFER", NULL, 0},
};

static int run(struct machine *m)
{
    for (size_t n = 0; !m->is_stopped; n++) {
        const uint8_t *code = weights__take(&m->in, 1);
        int rc;

        m->op_name = "end";
        if (!code)
            return bad(m, "the pickle has no STOP");
        if (n == OPCODES_MAX)
            return core_err_set(m->err, CORE_E_ADAPTER_UNSUPPORTED, "pickle: more than %d opcodes",
                                OPCODES_MAX);
        m->op_name = ops[*code].name;
        if (!m->op_name)
            return core_err_set(m->err, CORE_E_ADAPTER_INVALID,
                                "pickle: byte %zu: no opcode 0x%02x", m->in.at, *code);
        if (!ops[*code].run)
            return refuse(m, CORE_E_ADAPTER_UNSUPPORTED, "an opcode that no state dict needs");
        m->arg = weights__take(&m->in, ops[*code].n_arg);
        if (!m->arg)
            return bad(m, "the pickle ends early");
        rc = ops[*code].run(m);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* The dict that the program left on the stack, as entries. */
static int read_result(struct machine *m, struct pickle__dict *out)
{
    const struct pair *pairs = m->pairs.p;
    const struct dict *d;
    struct weights__array entries = {0};
    int rc = 0;

    if (m->stack.n != 1 || stack(m)->kind != K_DICT)
        return refuse(m, CORE_E_ADAPTER_UNSUPPORTED, "the file does not hold a dict of tensors");
    d = (const struct dict *)m->dicts.p + stack(m)->at;
    for (size_t at = d->first; at != NO_PAIR; at = pairs[at].next) {
        const struct value *key = &pairs[at].key, *v = &pairs[at].value;
        struct pickle__entry *entry;

        if (key->kind != K_TEXT) {
            rc = refuse(m, CORE_E_ADAPTER_UNSUPPORTED, "a key of the dict is not a string");
            goto out;
        }
        if (v->kind != K_TENSOR) {
            rc = core_err_set(m->err, CORE_E_ADAPTER_UNSUPPORTED,
                              "pickle: the value of %.*s is %s, not a tensor",
                              key->n > 150 ? 150 : (int)key->n, key->s, kind_text[v->kind]);
            goto out;
        }
        entry = push_elem(m, &entries, sizeof(*entry));
        if (!entry) {
            rc = CORE_E_NOMEM;
            goto out;
        }
        entry->name = (struct pickle__text){.p = key->s, .n = key->n};
        entry->tensor = v->at;
    }
    *out = (struct pickle__dict){.entry = entries.p,
                                 .n_entries = entries.n,
                                 .tensor = m->tensors.p,
                                 .n_tensors = m->tensors.n};
    entries.p = m->tensors.p = NULL;
out:
    core_free(entries.p);
    return rc;
}

int pickle__read(struct pickle__dict *out, const uint8_t *p, size_t n, struct core_err *err)
{
    struct machine m = {.in = {.p = p, .n = n}, .err = err};
    int rc = run(&m);

    if (rc == 0)
        rc = read_result(&m, out);
    core_free(m.stack.p);
    core_free(m.memo.p);
    core_free(m.items.p);
    core_free(m.pairs.p);
    core_free(m.dicts.p);
    core_free(m.storages.p);
    core_free(m.tensors.p);
    return rc;
}

void pickle__release(struct pickle__dict *d)
{
    core_free(d->entry);
    core_free(d->tensor);
    *d = (struct pickle__dict){0};
}
