/* core/weights/pickle.c - a pickle machine that knows torch's state dicts and
 * nothing else. See pickle_internal.h.
 *
 * A pickle is a program for a stack machine, and in Python it can call anything.
 * Here the values are a closed set (`enum pickle__kind`), a global is a row of `globals`
 * or an error with its name, and REDUCE is a switch over those rows: there is
 * nothing that a file could call. Every value is a handle into an array of the
 * machine, so values may share and even contain each other, while no code here
 * recurses. An opcode adds one element to an array, or moves what earlier ones
 * pushed, so the limit on opcodes bounds memory too: a few hundred MB at worst. */
#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/weights/pickle_machine.h"

enum {
    OPCODES_MAX = 1 << 22, /* a tensor takes 35 or fewer: 120,000 tensors */
    STACK_MAX = 1 << 16,   /* the pickler keeps at most 2,000 dict items on it */
    PROTOCOL_MAX = 5,
    LEGACY_VERSION = 1001,
    NO_PAIR = 0, /* pair 0 is never used */
};

static const char *const kind_text[] = {
    [K_MARK] = "a mark",       [K_NONE] = "None",       [K_BOOL] = "a bool",
    [K_INT] = "an int",        [K_TEXT] = "a string",   [K_GLOBAL] = "a class or function",
    [K_TUPLE] = "a tuple",     [K_DICT] = "a dict",     [K_LIST] = "a list",
    [K_STORAGE] = "a storage", [K_TENSOR] = "a tensor",
};

int pickle__refuse(struct pickle__machine *m, int code, const char *what)
{
    return core_err_set(m->err, code, "pickle: byte %zu, %s: %s", m->in.at, m->op_name, what);
}

int pickle__bad(struct pickle__machine *m, const char *what)
{
    return pickle__refuse(m, CORE_E_ADAPTER_INVALID, what);
}

void *pickle__push_elem(struct pickle__machine *m, struct weights__array *a, size_t elem_bytes)
{
    void *elem = weights__push(a, elem_bytes);

    if (!elem)
        core_err_nomem(m->err, "pickle");
    return elem;
}

/* ---- the stack ---------------------------------------------------------- */

static struct pickle__value *stack(struct pickle__machine *m)
{
    return m->stack.p;
}

int pickle__push(struct pickle__machine *m, struct pickle__value v)
{
    struct pickle__value *top;

    if (m->stack.n >= STACK_MAX)
        return pickle__bad(m, "the stack is too deep");
    top = pickle__push_elem(m, &m->stack, sizeof(*top));
    if (!top)
        return CORE_E_NOMEM;
    *top = v;
    return 0;
}

/* Takes the value off the top; a mark is not a value. *out is set in any case. */
static int pop(struct pickle__machine *m, struct pickle__value *out)
{
    *out = (struct pickle__value){0};
    if (m->stack.n == 0 || stack(m)[m->stack.n - 1].kind == K_MARK)
        return pickle__bad(m, "the stack is empty");
    *out = stack(m)[--m->stack.n];
    return 0;
}

int pickle__pop_kind(struct pickle__machine *m, enum pickle__kind kind, struct pickle__value *out)
{
    const int rc = pop(m, out);

    if (rc == 0 && out->kind != kind)
        return pickle__bad(m, "a value of another type is needed here");
    return rc;
}

/* Index of the first value above the topmost mark, at least 1; 0 if there is none. */
static size_t find_mark(struct pickle__machine *m)
{
    size_t at = m->stack.n;

    while (at > 0 && stack(m)[at - 1].kind != K_MARK)
        at--;
    if (at == 0)
        pickle__bad(m, "there is no mark");
    return at;
}

int pickle__push_new(struct pickle__machine *m, enum pickle__kind kind, struct weights__array *a,
                     size_t elem_bytes)
{
    if (!pickle__push_elem(m, a, elem_bytes))
        return CORE_E_NOMEM;
    return pickle__push(m, (struct pickle__value){.kind = kind, .at = a->n - 1});
}

/* ---- constants ---------------------------------------------------------- */

static int op_none(struct pickle__machine *m)
{
    return pickle__push(m, (struct pickle__value){.kind = K_NONE});
}

static int op_true(struct pickle__machine *m)
{
    return pickle__push(m, (struct pickle__value){.kind = K_BOOL, .i = 1});
}

static int op_false(struct pickle__machine *m)
{
    return pickle__push(m, (struct pickle__value){.kind = K_BOOL});
}

static int op_binint(struct pickle__machine *m)
{
    return pickle__push(
        m, (struct pickle__value){.kind = K_INT, .i = (int32_t)weights__load32(m->arg)});
}

static int op_binint1(struct pickle__machine *m)
{
    return pickle__push(m, (struct pickle__value){.kind = K_INT, .i = *m->arg});
}

static int op_binint2(struct pickle__machine *m)
{
    return pickle__push(m, (struct pickle__value){.kind = K_INT, .i = weights__load16(m->arg)});
}

/* Two's complement of any length; torch needs at most 8 bytes. */
static int op_long1(struct pickle__machine *m)
{
    const uint8_t n = *m->arg, *p = weights__take(&m->in, n);
    uint64_t v;

    if (!p || n > sizeof(v))
        return pickle__bad(m, "an integer of more than 8 bytes");
    v = n && p[n - 1] & 0x80 ? UINT64_MAX : 0;
    for (uint8_t i = n; i-- > 0;)
        v = v << 8 | p[i];
    return pickle__push(m, (struct pickle__value){.kind = K_INT, .i = (int64_t)v});
}

static int push_text(struct pickle__machine *m, uint64_t n)
{
    const uint8_t *p = n <= UINT32_MAX ? weights__take(&m->in, n) : NULL;

    if (!p)
        return pickle__bad(m, "the string does not end");
    return pickle__push(
        m, (struct pickle__value){.kind = K_TEXT, .n = (uint32_t)n, .s = (const char *)p});
}

static int op_short_binunicode(struct pickle__machine *m)
{
    return push_text(m, *m->arg);
}

static int op_binunicode(struct pickle__machine *m)
{
    return push_text(m, weights__load32(m->arg));
}

static int op_binunicode8(struct pickle__machine *m)
{
    return push_text(m, weights__load64(m->arg));
}

/* ---- containers --------------------------------------------------------- */

static int op_mark(struct pickle__machine *m)
{
    return pickle__push(m, (struct pickle__value){.kind = K_MARK});
}

/* Moves the top n values into a tuple. */
static int make_tuple(struct pickle__machine *m, size_t n)
{
    const struct pickle__value v = {.kind = K_TUPLE, .n = (uint32_t)n, .at = m->items.n};
    struct pickle__value *item;

    for (size_t i = m->stack.n - n; i < m->stack.n; i++) {
        item = pickle__push_elem(m, &m->items, sizeof(*item));
        if (!item)
            return CORE_E_NOMEM;
        *item = stack(m)[i];
    }
    m->stack.n -= n;
    return pickle__push(m, v);
}

static int make_short_tuple(struct pickle__machine *m, size_t n)
{
    for (size_t i = 1; i <= n; i++)
        if (m->stack.n < i || stack(m)[m->stack.n - i].kind == K_MARK)
            return pickle__bad(m, "the stack is empty");
    return make_tuple(m, n);
}

static int op_empty_tuple(struct pickle__machine *m)
{
    return make_tuple(m, 0);
}

static int op_tuple1(struct pickle__machine *m)
{
    return make_short_tuple(m, 1);
}

static int op_tuple2(struct pickle__machine *m)
{
    return make_short_tuple(m, 2);
}

static int op_tuple3(struct pickle__machine *m)
{
    return make_short_tuple(m, 3);
}

static int op_tuple(struct pickle__machine *m)
{
    const size_t first = find_mark(m), n = m->stack.n - first;

    if (first == 0)
        return CORE_E_ADAPTER_INVALID;
    /* The mark goes, and the items move down into its place. */
    memmove(&stack(m)[first - 1], &stack(m)[first], n * sizeof(struct pickle__value));
    m->stack.n--;
    return make_tuple(m, n);
}

static int op_empty_dict(struct pickle__machine *m)
{
    return pickle__push_new(m, K_DICT, &m->dicts, sizeof(struct pickle__map));
}

/* Adds the values from `first` to the top to the dict below them, and drops all
 * from `end` on, so that the dict stays on top. */
static int set_items(struct pickle__machine *m, size_t first, size_t end)
{
    struct pickle__map *d;

    if (end == 0 || stack(m)[end - 1].kind != K_DICT || (m->stack.n - first) % 2)
        return pickle__bad(m, "pairs are added to something else than a dict");
    if (m->pairs.n == NO_PAIR && !pickle__push_elem(m, &m->pairs, sizeof(struct pickle__pair)))
        return CORE_E_NOMEM;
    d = (struct pickle__map *)m->dicts.p + stack(m)[end - 1].at;
    for (size_t i = first; i < m->stack.n; i += 2) {
        struct pickle__pair *pair = pickle__push_elem(m, &m->pairs, sizeof(*pair));

        if (!pair)
            return CORE_E_NOMEM;
        pair->key = stack(m)[i];
        pair->value = stack(m)[i + 1];
        if (d->n++)
            ((struct pickle__pair *)m->pairs.p)[d->last].next = m->pairs.n - 1;
        else
            d->first = m->pairs.n - 1;
        d->last = m->pairs.n - 1;
    }
    m->stack.n = end;
    return 0;
}

static int op_setitem(struct pickle__machine *m)
{
    if (m->stack.n < 3 || stack(m)[m->stack.n - 1].kind == K_MARK ||
        stack(m)[m->stack.n - 2].kind == K_MARK)
        return pickle__bad(m, "the stack is empty");
    return set_items(m, m->stack.n - 2, m->stack.n - 2);
}

static int op_setitems(struct pickle__machine *m)
{
    const size_t first = find_mark(m);

    return first == 0 ? CORE_E_ADAPTER_INVALID : set_items(m, first, first - 1);
}

/* The only list is that of the storages' keys; a state dict holds none. */
static int op_empty_list(struct pickle__machine *m)
{
    if (!m->has_list || m->stack.n)
        return pickle__refuse(m, CORE_E_ADAPTER_UNSUPPORTED, "an opcode that no state dict needs");
    return pickle__push(m, (struct pickle__value){.kind = K_LIST});
}

/* Adds the texts from `first` to the top to the list before `end`, and drops all from
 * there on. */
static int append(struct pickle__machine *m, size_t first, size_t end)
{
    struct pickle__text *key;

    if (end == 0 || stack(m)[end - 1].kind != K_LIST)
        return pickle__bad(m, "something is appended to what is no list");
    for (size_t i = first; i < m->stack.n; i++) {
        const struct pickle__value *v = &stack(m)[i];

        if (v->kind != K_TEXT)
            return pickle__bad(m, "a storage's key is not a string");
        key = pickle__push_elem(m, &m->keys, sizeof(*key));
        if (!key)
            return CORE_E_NOMEM;
        *key = (struct pickle__text){.p = v->s, .n = v->n};
    }
    m->stack.n = end;
    return 0;
}

static int op_append(struct pickle__machine *m)
{
    return m->stack.n < 2 ? pickle__bad(m, "the stack is empty")
                          : append(m, m->stack.n - 1, m->stack.n - 1);
}

static int op_appends(struct pickle__machine *m)
{
    const size_t first = find_mark(m);

    return first == 0 ? CORE_E_ADAPTER_INVALID : append(m, first, first - 1);
}

/* nn.Module.state_dict() hangs its `_metadata` on the OrderedDict as an
 * attribute. It says nothing about the numbers. */
static int op_build(struct pickle__machine *m)
{
    struct pickle__value state;
    const int rc = pickle__pop_kind(m, K_DICT, &state);

    if (rc < 0)
        return rc;
    if (m->stack.n == 0 || stack(m)[m->stack.n - 1].kind != K_DICT || !stack(m)[m->stack.n - 1].n)
        return pickle__refuse(m, CORE_E_ADAPTER_UNSUPPORTED, "only an OrderedDict has a state");
    return 0;
}

/* ---- memo, protocol, end ------------------------------------------------ */

/* Picklers number the memo 0, 1, 2 ..., so it may only grow by one. */
static int put(struct pickle__machine *m, size_t at)
{
    struct pickle__value *slot;

    if (m->stack.n == 0 || stack(m)[m->stack.n - 1].kind == K_MARK)
        return pickle__bad(m, "the stack is empty");
    if (at > m->memo.n)
        return pickle__bad(m, "a memo number was left out");
    if (at == m->memo.n && !pickle__push_elem(m, &m->memo, sizeof(*slot)))
        return CORE_E_NOMEM;
    slot = (struct pickle__value *)m->memo.p + at;
    *slot = stack(m)[m->stack.n - 1];
    return 0;
}

static int get(struct pickle__machine *m, size_t at)
{
    if (at >= m->memo.n)
        return pickle__bad(m, "there is no such memo");
    return pickle__push(m, ((const struct pickle__value *)m->memo.p)[at]);
}

static int op_binput(struct pickle__machine *m)
{
    return put(m, *m->arg);
}

static int op_long_binput(struct pickle__machine *m)
{
    return put(m, weights__load32(m->arg));
}

static int op_memoize(struct pickle__machine *m)
{
    return put(m, m->memo.n);
}

static int op_binget(struct pickle__machine *m)
{
    return get(m, *m->arg);
}

static int op_long_binget(struct pickle__machine *m)
{
    return get(m, weights__load32(m->arg));
}

static int op_proto(struct pickle__machine *m)
{
    if (*m->arg < 2 || *m->arg > PROTOCOL_MAX)
        return pickle__refuse(m, CORE_E_ADAPTER_UNSUPPORTED, "only protocols 2 to 5 are read");
    return 0;
}

/* A frame is a hint for buffering, no structure. */
static int op_frame(struct pickle__machine *m)
{
    (void)m;
    return 0;
}

static int op_stop(struct pickle__machine *m)
{
    m->is_stopped = true;
    return 0;
}

/* Every opcode of protocol 5, so that a refused one has its name. */
static const struct {
    const char *name;
    int (*run)(struct pickle__machine *m); /* NULL: refused */
    uint8_t n_arg;                         /* bytes of fixed argument */
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
    ['Q'] = {"BINPERSID", pickle__op_binpersid, 0},
    ['R'] = {"REDUCE", pickle__op_reduce, 0},
    ['S'] = {"STRING", NULL, 0},
    ['T'] = {"BINSTRING", NULL, 0},
    ['U'] = {"SHORT_BINSTRING", NULL, 0},
    ['V'] = {"UNICODE", NULL, 0},
    ['X'] = {"BINUNICODE", op_binunicode, 4},
    ['a'] = {"APPEND", op_append, 0},
    ['b'] = {"BUILD", op_build, 0},
    ['c'] = {"GLOBAL", pickle__op_global, 0},
    ['d'] = {"DICT", NULL, 0},
    ['}'] = {"EMPTY_DICT", op_empty_dict, 0},
    ['e'] = {"APPENDS", op_appends, 0},
    ['g'] = {"GET", NULL, 0},
    ['h'] = {"BINGET", op_binget, 1},
    ['i'] = {"INST", NULL, 0},
    ['j'] = {"LONG_BINGET", op_long_binget, 4},
    ['l'] = {"LIST", NULL, 0},
    [']'] = {"EMPTY_LIST", op_empty_list, 0},
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
    [0x93] = {"STACK_GLOBAL", pickle__op_stack_global, 0},
    [0x94] = {"MEMOIZE", op_memoize, 0},
    [0x95] = {"FRAME", op_frame, 8},
    [0x96] = {"BYTEARRAY8", NULL, 0},
    [0x97] = {"NEXT_BUFFER", NULL, 0},
    [0x98] = {"READONLY_BUFFER", NULL, 0},
};

static int run(struct pickle__machine *m)
{
    for (size_t n = 0; !m->is_stopped; n++) {
        const uint8_t *code = weights__take(&m->in, 1);
        int rc;

        m->op_name = "end";
        if (!code)
            return pickle__bad(m, "the pickle has no STOP");
        if (n == OPCODES_MAX)
            return core_err_set(m->err, CORE_E_ADAPTER_UNSUPPORTED, "pickle: more than %d opcodes",
                                OPCODES_MAX);
        m->op_name = ops[*code].name;
        if (!m->op_name)
            return core_err_set(m->err, CORE_E_ADAPTER_INVALID,
                                "pickle: byte %zu: no opcode 0x%02x", m->in.at, *code);
        if (!ops[*code].run)
            return pickle__refuse(m, CORE_E_ADAPTER_UNSUPPORTED,
                                  "an opcode that no state dict needs");
        m->arg = weights__take(&m->in, ops[*code].n_arg);
        if (!m->arg)
            return pickle__bad(m, "the pickle ends early");
        rc = ops[*code].run(m);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* The dict that the program left on the stack, as entries. */
static int read_result(struct pickle__machine *m, struct pickle__dict *out)
{
    const struct pickle__pair *pairs = m->pairs.p;
    const struct pickle__map *d;
    struct weights__array entries = {0};
    int rc = 0;

    if (m->stack.n != 1 || stack(m)->kind != K_DICT)
        return pickle__refuse(m, CORE_E_ADAPTER_UNSUPPORTED,
                              "the file does not hold a dict of tensors");
    d = (const struct pickle__map *)m->dicts.p + stack(m)->at;
    for (size_t at = d->first; at != NO_PAIR; at = pairs[at].next) {
        const struct pickle__value *key = &pairs[at].key, *v = &pairs[at].value;
        struct pickle__entry *entry;

        if (key->kind != K_TEXT) {
            rc = pickle__refuse(m, CORE_E_ADAPTER_UNSUPPORTED, "a key of the dict is not a string");
            goto out;
        }
        if (v->kind != K_TENSOR) {
            rc = core_err_set(m->err, CORE_E_ADAPTER_UNSUPPORTED,
                              "pickle: the value of %.*s is %s, not a tensor",
                              key->n > 150 ? 150 : (int)key->n, key->s, kind_text[v->kind]);
            goto out;
        }
        entry = pickle__push_elem(m, &entries, sizeof(*entry));
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
                                 .n_tensors = m->tensors.n,
                                 .storage = m->storages.p,
                                 .n_storages = m->storages.n};
    entries.p = m->tensors.p = m->storages.p = NULL;
out:
    core_free(entries.p);
    return rc;
}

static void machine_release(struct pickle__machine *m)
{
    core_free(m->stack.p);
    core_free(m->memo.p);
    core_free(m->items.p);
    core_free(m->pairs.p);
    core_free(m->dicts.p);
    core_free(m->storages.p);
    core_free(m->tensors.p);
    core_free(m->keys.p);
}

/* Runs the pickle at *in and steps over it. */
static int read_dict(struct pickle__dict *out, struct weights__cursor *in, struct core_err *err)
{
    struct pickle__machine m = {.in = *in, .err = err};
    int rc = run(&m);

    if (rc == 0)
        rc = read_result(&m, out);
    *in = m.in;
    machine_release(&m);
    return rc;
}

int pickle__read(struct pickle__dict *out, const uint8_t *p, size_t n, struct core_err *err)
{
    struct weights__cursor in = {.p = p, .n = n};

    return read_dict(out, &in, err);
}

void pickle__release(struct pickle__dict *d)
{
    core_free(d->entry);
    core_free(d->tensor);
    core_free(d->storage);
    *d = (struct pickle__dict){0};
}

/* ---- before torch 1.6 ---------------------------------------------------- */

/* PROTO, a FRAME from protocol 4 on, LONG1 with the 10 bytes of the number, STOP. Steps
 * over them. */
static bool take_magic(struct weights__cursor *in)
{
    static const uint8_t magic[] = {0x8a, 0x0a, 0x6c, 0xfc, 0x9c, 0x46, 0xf9,
                                    0x20, 0x6a, 0xa8, 0x50, 0x19, '.'};
    const uint8_t *p = weights__take(in, 2);

    if (!p || p[0] != 0x80 || p[1] < 2 || p[1] > PROTOCOL_MAX ||
        (p[1] >= 4 && !weights__take(in, 9)))
        return false;
    p = weights__take(in, sizeof(magic));
    return p && memcmp(p, magic, sizeof(magic)) == 0;
}

bool pickle__is_legacy(const uint8_t *p, size_t n)
{
    struct weights__cursor in = {.p = p, .n = n};

    return take_magic(&in);
}

static int read_version(struct weights__cursor *in, struct core_err *err)
{
    struct pickle__machine m = {.in = *in, .err = err};
    int rc = run(&m);

    if (rc == 0 && (m.stack.n != 1 || stack(&m)->kind != K_INT || stack(&m)->i != LEGACY_VERSION))
        rc = core_err_set(err, CORE_E_ADAPTER_UNSUPPORTED,
                          "torch file: its protocol version is not %d", LEGACY_VERSION);
    *in = m.in;
    machine_release(&m);
    return rc;
}

/* Byte order and sizes of the machine that wrote the file; storages are little-endian on
 * any. torch does not look at them either. */
static int skip_system(struct weights__cursor *in, struct core_err *err)
{
    struct pickle__machine m = {.in = *in, .err = err};
    const int rc = run(&m);

    *in = m.in;
    machine_release(&m);
    return rc;
}

static int read_keys(struct pickle__legacy *out, struct weights__cursor *in, struct core_err *err)
{
    struct pickle__machine m = {.in = *in, .has_list = true, .err = err};
    int rc = run(&m);

    if (rc == 0 && (m.stack.n != 1 || stack(&m)->kind != K_LIST))
        rc = pickle__bad(&m, "the storages' keys are not a list");
    if (rc == 0) {
        out->key = m.keys.p;
        out->n_keys = m.keys.n;
        m.keys.p = NULL;
    }
    *in = m.in;
    machine_release(&m);
    return rc;
}

int pickle__read_legacy(struct pickle__legacy *out, const uint8_t *p, size_t n,
                        struct core_err *err)
{
    struct weights__cursor in = {.p = p, .n = n};
    struct pickle__legacy l = {0};
    int rc = take_magic(&in) ? 0
                             : core_err_set(err, CORE_E_ADAPTER_INVALID,
                                            "torch file: no magic number of torch before 1.6");

    if (rc == 0)
        rc = read_version(&in, err);
    if (rc == 0)
        rc = skip_system(&in, err);
    if (rc == 0)
        rc = read_dict(&l.dict, &in, err);
    if (rc == 0)
        rc = read_keys(&l, &in, err);
    l.data_at = in.at;
    if (rc == 0)
        *out = l;
    else
        pickle__legacy_release(&l);
    return rc;
}

void pickle__legacy_release(struct pickle__legacy *l)
{
    pickle__release(&l->dict);
    core_free(l->key);
    *l = (struct pickle__legacy){0};
}
