/* tests/core/weights/test_torch_pickle.c - the promises of core/weights/weights.h, one sentence a
 * test. */
#include "tests/core/weights/archive.h"
#include "tests/core/weights/golden.h"

Suite *torch_pickle_suite(void);

enum { UNPACK_MAX = 1 << 20 };

static int read_all(const void *bytes, size_t n, struct core_err *err)
{
    struct tensor_list l = {0};
    void *owned = NULL;
    const int rc = torch_pickle_read(bytes, n, UNPACK_MAX, &l, &owned, err);

    if (rc < 0 && (l.n || owned))
        ck_abort_msg("an output was touched on error");
    touch_tensors(&l);
    tensor_list_release(&l);
    core_free(owned);
    return rc;
}

/* ---- files that torch wrote ---------------------------------------------- */

static const struct {
    const char *file;
    bool is_copied;   /* something had to be copied out of the file */
    const char *like; /* the file beside which the expected tensors stand; NULL: this one */
} readable[] = {
    {"types.bin", false, NULL},
    {"module.bin", false, NULL},
    {"many.bin", false, NULL},
    {"views.bin", true, NULL},
    {"ordered.bin", true, NULL},
    {"protocol3.bin", true, NULL},
    {"protocol4.bin", true, NULL},
    {"protocol5.bin", true, NULL},
    {"deflated.bin", true, NULL},
    {"adapters_prefix.bin", false, NULL},
    {"adapters_bottleneck.bin", false, NULL},
    /* as torch before 1.6 */
    {"legacy_types.bin", false, "types.bin"},
    {"legacy_module.bin", false, "module.bin"},
    {"legacy_many.bin", false, "many.bin"},
    {"legacy_views.bin", true, "views.bin"},
    {"legacy_ordered.bin", true, "ordered.bin"},
    {"legacy_protocol3.bin", true, "protocol3.bin"},
    {"legacy_protocol4.bin", true, "protocol4.bin"},
    {"legacy_protocol5.bin", true, "protocol5.bin"},
    {"legacy_half.bin", true, NULL},
    {"legacy_empty.bin", false, NULL},
};

START_TEST(a_file_reads_as_torch_reads_it)
{
    const char *file = readable[_i].file;
    struct tensor_list l = {0};
    struct core_err err = {0};
    void *owned = NULL;
    size_t n;
    uint8_t *bytes = golden_bytes(file, &n);

    ck_assert_msg(torch_pickle_read(bytes, n, UNPACK_MAX, &l, &owned, &err) == 0, "%s: %s", file,
                  err.msg);
    ck_assert_msg(!!owned == readable[_i].is_copied, "%s", file);
    assert_as_expected(readable[_i].like ? readable[_i].like : file, &l);
    tensor_list_release(&l);
    core_free(owned);
    free(bytes);
}
END_TEST

START_TEST(types_are_those_of_the_storages)
{
    static const struct {
        const char *name;
        enum tensor_type type;
    } row[] = {
        {"f32", TENSOR_F32}, {"f16", TENSOR_F16},   {"bf16", TENSOR_BF16}, {"f64", TENSOR_F64},
        {"i8", TENSOR_I8},   {"i16", TENSOR_I16},   {"i32", TENSOR_I32},   {"i64", TENSOR_I64},
        {"u8", TENSOR_U8},   {"bool", TENSOR_BOOL},
    };
    struct tensor_list l = {0};
    void *owned = NULL;
    size_t n;
    uint8_t *bytes = golden_bytes(_i ? "legacy_types.bin" : "types.bin", &n);

    ck_assert_int_eq(torch_pickle_read(bytes, n, 0, &l, &owned, NULL), 0);
    ck_assert_int_eq(tensor_list_sort(&l, NULL), 0);
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++)
        ck_assert_int_eq(tensor_list_find(&l, row[i].name)->type, row[i].type);
    tensor_list_release(&l);
    free(bytes);
}
END_TEST

START_TEST(contiguous_tensors_are_lent_and_may_share_a_storage)
{
    struct tensor_list l = {0};
    void *owned = NULL;
    size_t n;
    uint8_t *bytes = golden_bytes(_i ? "legacy_views.bin" : "views.bin", &n);
    const struct tensor *whole, *rows;

    ck_assert_int_eq(torch_pickle_read(bytes, n, UNPACK_MAX, &l, &owned, NULL), 0);
    ck_assert_int_eq(tensor_list_sort(&l, NULL), 0);
    whole = tensor_list_find(&l, "whole");
    rows = tensor_list_find(&l, "rows");
    ck_assert((const uint8_t *)whole->data > bytes && (const uint8_t *)whole->data < bytes + n);
    ck_assert_ptr_eq(whole->data, tensor_list_find(&l, "twice")->data);
    ck_assert_ptr_eq(rows->data, (const float *)whole->data + 6);
    tensor_list_release(&l);
    core_free(owned);
    free(bytes);
}
END_TEST

static const struct {
    const char *file;
    int rc;
    const char *says;
} refused[] = {
    {"evil.bin", CORE_E_ADAPTER_UNSUPPORTED, "global posix.system"},
    {"legacy_evil.bin", CORE_E_ADAPTER_UNSUPPORTED, "global posix.system"},
    {"nested.bin", CORE_E_ADAPTER_UNSUPPORTED, "the value of state_dict is a dict"},
    {"epoch.bin", CORE_E_ADAPTER_UNSUPPORTED, "the value of epoch is an int"},
    {"list.bin", CORE_E_ADAPTER_UNSUPPORTED, "EMPTY_LIST"},
    {"dims5.bin", CORE_E_ADAPTER_UNSUPPORTED, "tensor w: 5 dimensions"},
    {"complex.bin", CORE_E_ADAPTER_UNSUPPORTED, "global torch.ComplexFloatStorage"},
    {"types.safetensors", CORE_E_ADAPTER_INVALID, "neither a zip archive"},
};

START_TEST(what_is_not_a_flat_state_dict_is_refused_by_name)
{
    struct core_err err = {0};
    size_t n;
    uint8_t *bytes = golden_bytes(refused[_i].file, &n);
    const int rc = read_all(bytes, n, &err);

    ck_assert_msg(rc == refused[_i].rc, "%s: rc %d, %s", refused[_i].file, rc, err.msg);
    ck_assert_msg(strstr(err.msg, refused[_i].says), "%s: %s", refused[_i].file, err.msg);
    free(bytes);
}
END_TEST

START_TEST(what_has_to_be_copied_is_bounded_by_inflate_max)
{
    static const char *const files[] = {"views.bin", "deflated.bin"};

    for (size_t i = 0; i < 2; i++) {
        struct tensor_list l = {0};
        struct core_err err = {0};
        void *owned = NULL;
        size_t n, max = 0;
        uint8_t *bytes = golden_bytes(files[i], &n);

        while (torch_pickle_read(bytes, n, max, &l, &owned, &err) != 0) {
            ck_assert_int_eq(err.code, CORE_E_ADAPTER_INVALID);
            ck_assert(strstr(err.msg, "bytes"));
            ck_assert_uint_lt(max, 10000);
            err = (struct core_err){0};
            max += 64;
        }
        ck_assert_uint_gt(max, 500);
        tensor_list_release(&l);
        core_free(owned);
        free(bytes);
    }
}
END_TEST

START_TEST(a_file_survives_every_truncation_mutation_and_allocation_failure)
{
    static const char *const files[] = {
        "views.bin",        "deflated.bin",      "module.bin",       "protocol4.bin",
        "legacy_views.bin", "legacy_module.bin", "legacy_types.bin", "legacy_protocol4.bin"};
    size_t n;
    uint8_t *bytes = golden_bytes(files[_i], &n);

    check_every_truncation(read_all, bytes, n);
    check_every_mutation(read_all, bytes, n);
    check_every_allocation(read_all, bytes, n);
    free(bytes);
}
END_TEST

/* ---- pickles written by hand --------------------------------------------- */

static int read_zip(const struct member *m, size_t n, struct core_err *err)
{
    struct core_buf b = make_zip(m, n);
    uint8_t *exact = malloc(b.n);
    int rc;

    memcpy(exact, b.p, b.n);
    rc = read_all(exact, b.n, err);
    free(exact);
    core_buf_release(&b);
    return rc;
}

static int read_pickle(const char *pickle, size_t n, struct core_err *err)
{
    const struct member m[] = {{"a/data.pkl", pickle, n}, {"a/data/0", "\1\2\3\4", 4}};

    return read_zip(m, 2, err);
}

#define GLOBAL(module, name) "c" module "\n" name "\n"
#define TEXT(length, text) "\x8c" length text
#define STORAGE(type, n) \
    "(" TEXT("\7", "storage") GLOBAL("torch", type) TEXT("\1", "0") TEXT("\3", "cpu") n "tQ"
#define TENSOR(storage, offset, size, stride)    \
    GLOBAL("torch._utils", "_rebuild_tensor_v2") \
    "(" storage offset size stride "\x89" GLOBAL("collections", "OrderedDict") ")RtR"
#define DICT(name_and_value) "\x80\2}" name_and_value "s."
#define NAME TEXT("\1", "w")
#define BYTES4 STORAGE("ByteStorage", "K\4")

static const struct {
    const char *pickle;
    size_t n;
    int rc;
    const char *says;
} programs[] = {
#define CASE(pickle, rc, says)               \
    {                                        \
        pickle, sizeof(pickle) - 1, rc, says \
    }
    CASE("\x80\2}.", 0, ""),
    CASE(DICT(NAME TENSOR(BYTES4, "K\1", "K\3\x85", "K\1\x85")), 0, ""),
    CASE(DICT(NAME TENSOR(BYTES4, "K\0", "K\2K\2\x86", "K\1K\2\x86")), 0, ""),
    CASE(DICT(NAME TENSOR(BYTES4, "K\3", ")", ")")), 0, ""),
    CASE(DICT(NAME TENSOR(BYTES4, "K\2", "K\1K\2\x86", "K\7K\1\x86")), 0, ""), /* a dim of 1 */
    CASE(DICT(NAME TENSOR(BYTES4, "K\xff", "K\0\x85", "K\1\x85")), 0, ""),     /* no values */
    CASE("\x80\2}K", CORE_E_ADAPTER_INVALID, "ends early"),
    CASE(DICT(NAME TENSOR(BYTES4, "K\2", "K\3\x85", "K\1\x85")), CORE_E_ADAPTER_INVALID,
         "tensor w: it reaches beyond"),
    CASE(DICT(NAME TENSOR(BYTES4, "K\4", ")", ")")), CORE_E_ADAPTER_INVALID, "reaches beyond"),
    CASE(
        DICT(NAME TENSOR(BYTES4, "K\0", "K\2\x85", "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f\x85")),
        CORE_E_ADAPTER_INVALID, "reaches beyond"),
    CASE(DICT(NAME TENSOR(BYTES4, "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f", "K\3\x85",
                          "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f\x85")),
         CORE_E_ADAPTER_INVALID, "reaches beyond"),
    CASE(
        DICT(NAME TENSOR(BYTES4, "K\0", "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f\x85", "K\0\x85")),
        CORE_E_ADAPTER_INVALID, "unpack to more than"),
    CASE(DICT(NAME TENSOR(BYTES4, "K\0", "J\xff\xff\xff\xff\x85", "K\1\x85")),
         CORE_E_ADAPTER_INVALID, "needs a storage"),
    CASE(DICT(NAME TENSOR(BYTES4, "K\0", "K\1K\1\x86", "K\1\x85")), CORE_E_ADAPTER_INVALID,
         "needs a storage"),
    CASE(DICT(NAME TENSOR(STORAGE("ByteStorage", "K\5"), "K\0", ")", ")")), CORE_E_ADAPTER_INVALID,
         "shorter than the pickle says"),
    CASE(DICT(NAME TENSOR(STORAGE("LongStorage", "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f"), "K\0",
                          ")", ")")),
         CORE_E_ADAPTER_INVALID, "shorter than the pickle says"),
    CASE(DICT(NAME TENSOR(BYTES4, "K\0", "K\4\x85", "K\1\x85") "b"), CORE_E_ADAPTER_INVALID,
         "another type"),
    CASE("\x80\2}}b.", CORE_E_ADAPTER_UNSUPPORTED, "only an OrderedDict has a state"),
    CASE("\x80\2" GLOBAL("collections", "OrderedDict") ")R}b.", 0, ""),
    CASE("\x80\2" GLOBAL("collections", "OrderedDict") "K\1\x85R.", CORE_E_ADAPTER_INVALID,
         "created empty"),
    CASE("\x80\2" GLOBAL("torch", "FloatStorage") ")R.", CORE_E_ADAPTER_UNSUPPORTED, "not called"),
    CASE("\x80\2" GLOBAL("torch._utils", "_rebuild_tensor_v2") ")R.", CORE_E_ADAPTER_INVALID,
         "6 or 7 arguments"),
    CASE("\x80\2" GLOBAL("torch._utils", "_rebuild_parameter") "}\x88}\x87R.",
         CORE_E_ADAPTER_INVALID, "takes a tensor"),
    CASE("\x80\4" TEXT("\2", "os") TEXT("\6", "system") "\x93.", CORE_E_ADAPTER_UNSUPPORTED,
         "global os.system"),
    CASE("\x80\2cbuiltins\neval\n.", CORE_E_ADAPTER_UNSUPPORTED, "global builtins.eval"),
    CASE("\x80\2cbuiltins\n\xff\x01\n.", CORE_E_ADAPTER_UNSUPPORTED, "global builtins.??"),
    CASE("\x80\2)Q.", CORE_E_ADAPTER_INVALID, "persistent id"),
    CASE("\x80\2(" TEXT("\7", "storage") GLOBAL("collections", "OrderedDict") TEXT("\1", "0")
             TEXT("\3", "cpu") "K\4tQ.",
         CORE_E_ADAPTER_INVALID, "persistent id"),
    CASE("\x80\2K\1Q.", CORE_E_ADAPTER_INVALID, "another type"),
    CASE("\x80\2R.", CORE_E_ADAPTER_INVALID, "the stack is empty"),
    CASE("\x80\2(R.", CORE_E_ADAPTER_INVALID, "the stack is empty"),
    CASE("\x80\2t.", CORE_E_ADAPTER_INVALID, "no mark"),
    CASE("\x80\2u.", CORE_E_ADAPTER_INVALID, "no mark"),
    CASE("\x80\2(u.", CORE_E_ADAPTER_INVALID, "something else than a dict"),
    CASE("\x80\2}(K\1u.", CORE_E_ADAPTER_INVALID, "something else than a dict"),
    CASE("\x80\2}(K\1s.", CORE_E_ADAPTER_INVALID, "the stack is empty"),
    CASE("\x80\2}K\1s.", CORE_E_ADAPTER_INVALID, "the stack is empty"),
    CASE("\x80\2(\x85.", CORE_E_ADAPTER_INVALID, "the stack is empty"),
    CASE("\x80\2q\0.", CORE_E_ADAPTER_INVALID, "the stack is empty"),
    CASE("\x80\2(q\0.", CORE_E_ADAPTER_INVALID, "the stack is empty"),
    CASE("\x80\2}q\1.", CORE_E_ADAPTER_INVALID, "memo number"),
    CASE("\x80\2}r\xff\xff\xff\xff.", CORE_E_ADAPTER_INVALID, "memo number"),
    CASE("\x80\2h\0.", CORE_E_ADAPTER_INVALID, "no such memo"),
    CASE("\x80\2}\x94\x94h\1s.", CORE_E_ADAPTER_INVALID, "the stack is empty"),
    CASE("\x80\1}.", CORE_E_ADAPTER_UNSUPPORTED, "protocols 2 to 5"),
    CASE("\x80\6}.", CORE_E_ADAPTER_UNSUPPORTED, "protocols 2 to 5"),
    CASE("\x80\2}", CORE_E_ADAPTER_INVALID, "no STOP"),
    CASE("\x80\2\xfe.", CORE_E_ADAPTER_INVALID, "no opcode 0xfe"),
    CASE("\x80\2}2.", CORE_E_ADAPTER_UNSUPPORTED, "DUP"),
    CASE("\x80\2.", CORE_E_ADAPTER_UNSUPPORTED, "does not hold a dict"),
    CASE("\x80\2}}.", CORE_E_ADAPTER_UNSUPPORTED, "does not hold a dict"),
    CASE("\x80\2N.", CORE_E_ADAPTER_UNSUPPORTED, "does not hold a dict"),
    CASE("\x80\2}K\1K\1s.", CORE_E_ADAPTER_UNSUPPORTED, "key of the dict"),
    CASE("\x80\2}\x94" NAME "h\0s.", CORE_E_ADAPTER_UNSUPPORTED, "value of w is a dict"),
    CASE("\x80\2X\xff\xff\xff\xffw.", CORE_E_ADAPTER_INVALID, "string does not end"),
    CASE("\x80\2\x8d\xff\xff\xff\xff\xff\xff\xff\xffw.", CORE_E_ADAPTER_INVALID, "does not end"),
    CASE("\x80\2\x8a\x09w.", CORE_E_ADAPTER_INVALID, "more than 8 bytes"),
    CASE("\x80\2ctorch\n", CORE_E_ADAPTER_INVALID, "name does not end"),
    CASE(DICT(TEXT("\3", "a\0b") TENSOR(BYTES4, "K\0", ")", ")")), CORE_E_ADAPTER_INVALID,
         "not plain UTF-8"),
    CASE(DICT(TEXT("\1", "\xff") TENSOR(BYTES4, "K\0", ")", ")")), CORE_E_ADAPTER_INVALID,
         "not plain UTF-8"),
#undef CASE
};

START_TEST(each_rule_of_the_machine_is_kept)
{
    struct core_err err = {0};
    const int rc = read_pickle(programs[_i].pickle, programs[_i].n, &err);

    ck_assert_msg(rc == programs[_i].rc, "program %d: rc %d, %s", _i, rc, err.msg);
    ck_assert_msg(strstr(err.msg, programs[_i].says), "program %d: %s", _i, err.msg);
}
END_TEST

START_TEST(negative_and_long_integers_are_twos_complement)
{
    /* LONG1 of 0 bytes is 0, of "\x02" 2; an offset of -1 is refused. */
    static const char ok[] = DICT(NAME TENSOR(BYTES4, "\x8a\0", "\x8a\1\2\x85", "\x8a\2\1\0\x85"));
    static const char minus[] = DICT(NAME TENSOR(BYTES4, "\x8a\1\xff", "K\1\x85", "K\1\x85"));
    struct core_err err = {0};

    ck_assert_msg(read_pickle(ok, sizeof(ok) - 1, &err) == 0, "%s", err.msg);
    ck_assert_int_eq(read_pickle(minus, sizeof(minus) - 1, &err), CORE_E_ADAPTER_INVALID);
    ck_assert_msg(strstr(err.msg, "needs a storage"), "%s", err.msg);
}
END_TEST

START_TEST(the_stride_of_a_dim_of_1_does_not_ask_for_a_copy)
{
    static const char pickle[] = DICT(NAME TENSOR(BYTES4, "K\2", "K\1K\2\x86", "K\7K\1\x86"));
    const struct member m[] = {{"a/data.pkl", pickle, sizeof(pickle) - 1},
                               {"a/data/0", "\1\2\3\4", 4}};
    struct core_buf b = make_zip(m, 2);
    struct tensor_list l = {0};
    void *owned = NULL;

    ck_assert_int_eq(torch_pickle_read(b.p, b.n, 0, &l, &owned, NULL), 0);
    ck_assert_int_eq(memcmp(l.t[0].data, "\3\4", 2), 0);
    tensor_list_release(&l);
    core_buf_release(&b);
}
END_TEST

START_TEST(the_stack_is_bounded)
{
    enum { N = 1 << 20 };
    char *marks = malloc(N);
    struct core_err err = {0};

    memset(marks, '(', N);
    ck_assert_int_eq(read_pickle(marks, N, &err), CORE_E_ADAPTER_INVALID);
    ck_assert(strstr(err.msg, "too deep"));
    free(marks);
}
END_TEST

START_TEST(the_number_of_opcodes_is_bounded)
{
    enum { N = (1 << 22) + 10 };
    char *memoize = malloc(N);
    struct core_err err = {0};

    memset(memoize, '\x94', N);
    memcpy(memoize, "\x80\4}", 3);
    ck_assert_int_eq(read_pickle(memoize, N, &err), CORE_E_ADAPTER_UNSUPPORTED);
    ck_assert(strstr(err.msg, "opcodes"));
    free(memoize);
}
END_TEST

/* A shape of 60,000 dims in the memo, rebuilt again and again at 9 bytes a time,
 * must not cost 60,000 steps each. */
START_TEST(a_shape_of_more_dims_than_torch_has_is_refused)
{
    struct core_buf b = {0};
    struct core_err err = {0};

    core_buf_str(&b, "\x80\2(");
    for (int i = 0; i < 60000; i++)
        core_buf_str(&b, "K\1");
    core_buf_str(&b, "tq");
    core_buf_add(&b, "\0", 1);
    core_buf_str(&b, GLOBAL("torch._utils", "_rebuild_tensor_v2") "(" BYTES4 "K\1h");
    core_buf_add(&b, "\0h\0\x89}tR.", 8);
    ck_assert_int_eq(read_pickle(b.p, b.n, &err), CORE_E_ADAPTER_INVALID);
    ck_assert_msg(strstr(err.msg, "needs a storage"), "%s", err.msg);
    core_buf_release(&b);
}
END_TEST

/* ---- before torch 1.6 ----------------------------------------------------- */

#define MAGIC "\x80\2\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
#define VERSION "\x80\2M\xe9\3."
#define BEFORE MAGIC VERSION "\x80\2}."
#define OLD_STORAGE(type, n, view) \
    "(" TEXT("\7", "storage") GLOBAL("torch", type) TEXT("\1", "0") TEXT("\3", "cpu") n view "tQ"
#define OLD_BYTES OLD_STORAGE("ByteStorage", "K\4", "N")
#define OLD_DICT DICT(NAME TENSOR(OLD_BYTES, "K\1", "K\3\x85", "K\1\x85"))
#define KEYS(texts) "\x80\2](" texts "e."
#define KEY TEXT("\1", "0")
#define COUNT4 "\4\0\0\0\0\0\0\0"

static const struct {
    const char *file;
    size_t n;
    int rc;
    const char *says;
} old[] = {
#define CASE(file, rc, says)             \
    {                                    \
        file, sizeof(file) - 1, rc, says \
    }
    CASE(BEFORE OLD_DICT KEYS(KEY) COUNT4 "abcd", 0, ""),
    CASE(BEFORE OLD_DICT KEYS(KEY) COUNT4 "abcd and what follows", 0, ""),
    CASE(BEFORE OLD_DICT "\x80\2]" KEY "a." COUNT4 "abcd", 0, ""),
    CASE(BEFORE "\x80\2}.\x80\2].", 0, ""),
    CASE(BEFORE OLD_DICT KEYS(KEY) COUNT4 "abc", CORE_E_ADAPTER_INVALID,
         "storage 0: the file ends in it"),
    CASE(BEFORE OLD_DICT KEYS(KEY) "\4\0\0", CORE_E_ADAPTER_INVALID, "ends before its 1 storages"),
    CASE(BEFORE OLD_DICT KEYS(KEY) "\5\0\0\0\0\0\0\0abcde", CORE_E_ADAPTER_INVALID,
         "its count is not"),
    CASE(BEFORE OLD_DICT KEYS("") COUNT4 "abcd", CORE_E_ADAPTER_INVALID,
         "tensor w: its storage is not in the file"),
    CASE(BEFORE OLD_DICT KEYS(KEY KEY) COUNT4 "abcd" COUNT4 "abcd", CORE_E_ADAPTER_INVALID,
         "key stands twice"),
    CASE(BEFORE OLD_DICT KEYS(TEXT("\1", "1")) COUNT4 "abcd", CORE_E_ADAPTER_INVALID,
         "storage 1: no persistent id"),
    CASE(BEFORE OLD_DICT KEYS("K\1") COUNT4 "abcd", CORE_E_ADAPTER_INVALID, "not a string"),
    CASE(BEFORE OLD_DICT "\x80\2}.", CORE_E_ADAPTER_INVALID, "keys are not a list"),
    CASE(BEFORE OLD_DICT "\x80\2}" KEY "a.", CORE_E_ADAPTER_INVALID, "what is no list"),
    CASE(BEFORE OLD_DICT "\x80\2a.", CORE_E_ADAPTER_INVALID, "the stack is empty"),
    CASE(BEFORE OLD_DICT "\x80\2]e.", CORE_E_ADAPTER_INVALID, "no mark"),
    CASE(BEFORE OLD_DICT "\x80\2]].", CORE_E_ADAPTER_UNSUPPORTED, "EMPTY_LIST"),
    CASE(BEFORE DICT(NAME "]"), CORE_E_ADAPTER_UNSUPPORTED, "EMPTY_LIST"),
    CASE(BEFORE DICT(NAME TENSOR(OLD_STORAGE("ByteStorage", "K\4", ")"), "K\0", ")", ")")),
         CORE_E_ADAPTER_UNSUPPORTED, "a view of a storage"),
    CASE(BEFORE DICT(NAME TENSOR(OLD_BYTES, "K\2", "K\3\x85", "K\1\x85")) KEYS(KEY) COUNT4 "abcd",
         CORE_E_ADAPTER_INVALID, "reaches beyond"),
    CASE(BEFORE DICT(NAME TENSOR(OLD_BYTES, "K\0", ")", ")") "s" TEXT("\1", "v") TENSOR(
             OLD_STORAGE("CharStorage", "K\4", "N"), "K\0", ")", ")")) KEYS(KEY) COUNT4 "abcd",
         CORE_E_ADAPTER_INVALID, "tell it differently"),
    CASE(BEFORE DICT(NAME TENSOR(
             OLD_STORAGE("LongStorage", "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f", "N"), "K\0",
             ")", ")")) KEYS(KEY) "\xff\xff\xff\xff\xff\xff\xff\x7f",
         CORE_E_ADAPTER_INVALID, "too large"),
    CASE(MAGIC "\x80\2M\xea\3.", CORE_E_ADAPTER_UNSUPPORTED, "protocol version is not 1001"),
    CASE(MAGIC "\x80\2}.", CORE_E_ADAPTER_UNSUPPORTED, "protocol version is not 1001"),
    CASE(MAGIC VERSION, CORE_E_ADAPTER_INVALID, "no STOP"),
    CASE("\x80\2\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x18.", CORE_E_ADAPTER_INVALID,
         "neither a zip archive"),
#undef CASE
};

START_TEST(each_rule_of_the_format_before_torch_1_6_is_kept)
{
    struct core_err err = {0};
    uint8_t *exact = malloc(old[_i].n);
    int rc;

    memcpy(exact, old[_i].file, old[_i].n);
    rc = read_all(exact, old[_i].n, &err);
    free(exact);
    ck_assert_msg(rc == old[_i].rc, "file %d: rc %d, %s", _i, rc, err.msg);
    ck_assert_msg(strstr(err.msg, old[_i].says), "file %d: %s", _i, err.msg);
}
END_TEST

/* ---- archives ------------------------------------------------------------ */

START_TEST(the_archive_must_hold_one_little_endian_state_dict)
{
    static const char empty[] = "\x80\2}.";
    const struct {
        struct member m[3];
        size_t n;
        int rc;
        const char *says;
    } row[] = {
        {{{"x/data.pkl", empty, 4}, {"x/byteorder", "little", 6}}, 2, 0, ""},
        {{{"x/data.pkl", empty, 4}, {"x/byteorder", "big", 3}},
         2,
         CORE_E_ADAPTER_UNSUPPORTED,
         "byteorder"},
        {{{"x/data.pkl", empty, 4}, {"y/data.pkl", empty, 4}},
         2,
         CORE_E_ADAPTER_INVALID,
         "more than one"},
        {{{"x/data.pkl", empty, 4}, {"x/data.pkl", empty, 4}},
         2,
         CORE_E_ADAPTER_INVALID,
         "same name"},
        {{{"x/y/data.pkl", empty, 4}}, 1, CORE_E_ADAPTER_INVALID, "no member"},
        {{{"data.pkl", empty, 4}}, 1, CORE_E_ADAPTER_INVALID, "no member"},
        {{{"x/data.pkl", empty, 0}}, 1, CORE_E_ADAPTER_INVALID, "no STOP"},
    };

    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        struct core_err err = {0};
        const int rc = read_zip(row[i].m, row[i].n, &err);

        ck_assert_msg(rc == row[i].rc, "case %zu: rc %d, %s", i, rc, err.msg);
        ck_assert_msg(strstr(err.msg, row[i].says), "case %zu: %s", i, err.msg);
    }
}
END_TEST

START_TEST(a_storage_that_the_archive_lacks_is_named_with_its_tensor)
{
    static const char pickle[] = DICT(NAME TENSOR(BYTES4, "K\0", ")", ")"));
    const struct member m = {"a/data.pkl", pickle, sizeof(pickle) - 1};
    struct core_err err = {0};

    ck_assert_int_eq(read_zip(&m, 1, &err), CORE_E_ADAPTER_INVALID);
    ck_assert_msg(strstr(err.msg, "tensor w: its storage is not in the file"), "%s", err.msg);
}
END_TEST

Suite *torch_pickle_suite(void)
{
    Suite *s = suite_create("core/weights/torch_pickle");
    TCase *t = tcase_create("all");

    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, a_file_reads_as_torch_reads_it, 0,
                        sizeof(readable) / sizeof(readable[0]));
    tcase_add_loop_test(t, types_are_those_of_the_storages, 0, 2);
    tcase_add_loop_test(t, contiguous_tensors_are_lent_and_may_share_a_storage, 0, 2);
    tcase_add_loop_test(t, what_is_not_a_flat_state_dict_is_refused_by_name, 0,
                        sizeof(refused) / sizeof(refused[0]));
    tcase_add_test(t, what_has_to_be_copied_is_bounded_by_inflate_max);
    tcase_add_loop_test(t, a_file_survives_every_truncation_mutation_and_allocation_failure, 0, 8);
    tcase_add_loop_test(t, each_rule_of_the_machine_is_kept, 0,
                        sizeof(programs) / sizeof(programs[0]));
    tcase_add_test(t, negative_and_long_integers_are_twos_complement);
    tcase_add_test(t, the_stride_of_a_dim_of_1_does_not_ask_for_a_copy);
    tcase_add_test(t, the_stack_is_bounded);
    tcase_add_test(t, the_number_of_opcodes_is_bounded);
    tcase_add_test(t, a_shape_of_more_dims_than_torch_has_is_refused);
    tcase_add_loop_test(t, each_rule_of_the_format_before_torch_1_6_is_kept, 0,
                        sizeof(old) / sizeof(old[0]));
    tcase_add_test(t, the_archive_must_hold_one_little_endian_state_dict);
    tcase_add_test(t, a_storage_that_the_archive_lacks_is_named_with_its_tensor);
    suite_add_tcase(s, t);
    return s;
}
