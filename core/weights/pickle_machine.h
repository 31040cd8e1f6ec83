/* core/weights/pickle_machine.h - the stack machine of pickle.c, and torch's part of it,
 * pickle_torch.c: the callables and persistent ids that a state dict needs. */
#ifndef CORE_WEIGHTS_PICKLE_MACHINE_H
#define CORE_WEIGHTS_PICKLE_MACHINE_H

#include "core/weights/pickle_internal.h"
#include "core/weights/weights_internal.h"

enum pickle__kind {
    K_MARK,
    K_NONE,
    K_BOOL,
    K_INT,
    K_TEXT,
    K_GLOBAL,
    K_TUPLE,
    K_DICT,
    K_LIST,
    K_STORAGE,
    K_TENSOR,
};

struct pickle__value {
    enum pickle__kind kind;
    uint32_t n; /* K_TEXT: bytes; K_TUPLE: items; K_DICT: 1 for an OrderedDict */
    union {
        int64_t i;     /* K_BOOL, K_INT */
        const char *s; /* K_TEXT */
        size_t at;     /* K_GLOBAL: row of globals; K_TUPLE: first of items; K_DICT, K_STORAGE,
                        * K_TENSOR: index in the array of that name; K_LIST: unused */
    };
};

struct pickle__pair {
    struct pickle__value key, value;
    size_t next; /* the dict's next pair, or NO_PAIR */
};

struct pickle__map {
    size_t first, last, n; /* pairs */
};

struct pickle__machine {
    struct weights__cursor in;
    struct weights__array stack, memo, items;              /* struct pickle__value */
    struct weights__array pairs, dicts, storages, tensors; /* of those structs */
    const char *op_name;                                   /* the opcode that runs */
    const uint8_t *arg;                                    /* its argument of fixed size */
    struct weights__array keys;                            /* struct pickle__text */
    bool has_list; /* the one list of texts is the result; else lists are refused */
    bool is_stopped;
    struct core_err *err;
};

/* Each sets the error: the opcode, its place, and `what`. */
int pickle__refuse(struct pickle__machine *m, int code, const char *what);
int pickle__bad(struct pickle__machine *m, const char *what); /* CORE_E_ADAPTER_INVALID */

void *pickle__push_elem(struct pickle__machine *m, struct weights__array *a, size_t elem_bytes);
int pickle__push(struct pickle__machine *m, struct pickle__value v);
/* One more zeroed element of an array, as a value of that kind. */
int pickle__push_new(struct pickle__machine *m, enum pickle__kind kind, struct weights__array *a,
                     size_t elem_bytes);
/* Takes a value of that kind off the top; *out is set in any case. */
int pickle__pop_kind(struct pickle__machine *m, enum pickle__kind kind, struct pickle__value *out);

/* Opcodes (pickle_torch.c). */
int pickle__op_global(struct pickle__machine *m);
int pickle__op_stack_global(struct pickle__machine *m);
int pickle__op_reduce(struct pickle__machine *m);
int pickle__op_binpersid(struct pickle__machine *m);

#endif
