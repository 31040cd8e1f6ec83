/* tests/core/weights/test_safetensors.c - the promises of core/weights/weights.h, one sentence a
 * test. */
#include "core/weights/weights_internal.h"
#include "tests/core/weights/golden.h"

Suite *safetensors_suite(void);

static int read_all(const void *bytes, size_t n, struct core_err *err)
{
    struct tensor_list l = {0};
    const int rc = safetensors_read(bytes, n, &l, err);

    if (rc < 0 && l.n)
        ck_abort_msg("the list was touched on error");
    touch_tensors(&l);
    tensor_list_release(&l);
    return rc;
}

/* A file of this header, with spaces after it, and n_data bytes of data. */
static uint8_t *make_file(const char *header, size_t n_data, size_t *n)
{
    const uint64_t n_header = strlen(header) + 3;
    uint8_t *p;

    *n = sizeof(n_header) + n_header + n_data;
    p = malloc(*n);
    memset(p, ' ', *n);
    memcpy(p, &n_header, sizeof(n_header));
    memcpy(p + sizeof(n_header), header, strlen(header));
    return p;
}

static int read_header(const char *header, size_t n_data, struct core_err *err)
{
    size_t n;
    uint8_t *p = make_file(header, n_data, &n);
    const int rc = read_all(p, n, err);

    free(p);
    return rc;
}

START_TEST(every_type_reads_as_the_library_reads_it)
{
    struct tensor_list l = {0};
    struct core_err err = {0};
    size_t n;
    uint8_t *bytes = golden_bytes("types.safetensors", &n);

    ck_assert_msg(safetensors_read(bytes, n, &l, &err) == 0, "%s", err.msg);
    assert_as_expected("types.safetensors", &l);
    ck_assert_int_eq(tensor_list_find(&l, "bf16")->type, TENSOR_BF16);
    ck_assert_int_eq(tensor_list_find(&l, "bool")->type, TENSOR_BOOL);
    tensor_list_release(&l);
    free(bytes);
}
END_TEST

START_TEST(it_appends_and_leaves_the_list_alone_on_error)
{
    struct tensor_list l = {0};
    struct core_err err = {0};
    size_t n;
    uint8_t *bytes = golden_bytes("types.safetensors", &n);

    ck_assert_int_eq(tensor_list_add(&l, &(struct tensor){.name = "mine"}, &err), 0);
    ck_assert_int_eq(safetensors_read(bytes, n - 1, &l, &err), CORE_E_ADAPTER_INVALID);
    ck_assert_uint_eq(l.n, 1);
    ck_assert_int_eq(safetensors_read(bytes, n, &l, NULL), 0);
    ck_assert_uint_eq(l.n, 13);
    ck_assert_str_eq(l.t[0].name, "mine");
    tensor_list_release(&l);
    free(bytes);
}
END_TEST

static const struct {
    const char *header;
    size_t n_data;
    int rc;
    const char *says;
} cases[] = {
    {"{}", 0, 0, ""},
    {"{\"__metadata__\":{\"a\":\"b\"}}", 0, 0, ""},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4, 0, ""},
    {"{\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]},"
     "\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
     "\"e\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[2,2]}}",
     4, 0, ""},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 3, CORE_E_ADAPTER_INVALID,
     "1 bytes at the end"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}", 3, CORE_E_ADAPTER_INVALID,
     "tensor a: its data does not begin"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
     "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}",
     3, CORE_E_ADAPTER_INVALID, "tensor b: its data does not begin"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
     "\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]}}",
     4, CORE_E_ADAPTER_INVALID, "duplicate"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,0]}}", 2, CORE_E_ADAPTER_INVALID,
     "outside of the file"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[9],\"data_offsets\":[0,9]}}", 8, CORE_E_ADAPTER_INVALID,
     "outside of the file"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, CORE_E_ADAPTER_INVALID,
     "do not agree"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}}", 0,
     CORE_E_ADAPTER_INVALID, "too large"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4,0],\"data_offsets\":[0,0]}}", 0,
     CORE_E_ADAPTER_INVALID, "too large"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,0]}}", 0, CORE_E_ADAPTER_INVALID,
     "something else than sizes"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}", 4,
     CORE_E_ADAPTER_INVALID, "something else than sizes"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":3,\"data_offsets\":[0,4]}}", 4, CORE_E_ADAPTER_INVALID,
     "shape is not an array"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1],\"data_offsets\":[0,4]}}", 4,
     CORE_E_ADAPTER_UNSUPPORTED, "5 dimensions"},
    {"{\"a\":{\"dtype\":\"F8_E4M3\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
     CORE_E_ADAPTER_UNSUPPORTED, "dtype F8_E4M3"},
    {"{\"a\":{\"dtype\":\"Q8_0\",\"shape\":[32],\"data_offsets\":[0,34]}}", 34,
     CORE_E_ADAPTER_UNSUPPORTED, "dtype Q8_0"},
    {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, CORE_E_ADAPTER_INVALID, "dtype"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,2]}}", 1, CORE_E_ADAPTER_INVALID,
     "pair of sizes"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, CORE_E_ADAPTER_INVALID, "pair of sizes"},
    {"{\"a\":7}", 0, CORE_E_ADAPTER_INVALID, "not an object"},
    {"[]", 0, CORE_E_ADAPTER_INVALID, "not an object"},
    {"{\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0,
     CORE_E_ADAPTER_INVALID, "header"},
    {"{\"a\":", 0, CORE_E_ADAPTER_INVALID, "header"},
    {"{} x", 0, CORE_E_ADAPTER_INVALID, "header"},
};

START_TEST(each_rule_of_the_header_is_kept)
{
    struct core_err err = {0};
    const int rc = read_header(cases[_i].header, cases[_i].n_data, &err);

    ck_assert_msg(rc == cases[_i].rc, "%s: rc %d, %s", cases[_i].header, rc, err.msg);
    ck_assert_msg(strstr(err.msg, cases[_i].says), "%s: \"%s\"", cases[_i].header, err.msg);
}
END_TEST

/* As the library writes it: the metadata, then by name. */
static const char plain[] = "{\"__metadata__\":{\"format\":\"pt\"},"
                            "\"a\":{\"dtype\":\"F32\",\"shape\":[2, 1],\"data_offsets\":[0,8]},"
                            "\"b.c\":{\"dtype\":\"F16\",\"shape\":[],\"data_offsets\":[8,10]},"
                            "\"b.d\":{\"dtype\":\"U8\",\"shape\":[0,12],\"data_offsets\":[10,10]},"
                            "\"z\":{\"dtype\":\"BF16\",\"shape\":[10],\"data_offsets\":[10,30]}}  ";
enum { PLAIN_DATA = 30 };

/* What the short way reads, the tree reads too, and the same. True if the short way reads it. */
static bool is_plain(const char *text, size_t n)
{
    static const uint8_t data[PLAIN_DATA];
    struct tensor_list l = {0}, tree = {0};
    const int rc = safetensors__read_plain(text, n, data, PLAIN_DATA, &l);

    if (rc != 1 && (rc != 0 || l.n))
        ck_abort_msg("%.*s: rc %d, %zu tensors", (int)n, text, rc, l.n);
    if (rc == 1) {
        if (safetensors__read_tree(text, n, data, PLAIN_DATA, &tree, NULL) < 0 || tree.n != l.n)
            ck_abort_msg("%.*s: %zu tensors, not %zu", (int)n, text, l.n, tree.n);
        for (size_t i = 0; i < l.n; i++) {
            const struct tensor *a = &l.t[i], *b = &tree.t[i];

            if (strcmp(a->name, b->name) != 0 || a->type != b->type || a->n_dims != b->n_dims ||
                memcmp(a->dim, b->dim, sizeof(a->dim)) != 0 || a->data != b->data ||
                a->n_bytes != b->n_bytes)
                ck_abort_msg("%.*s: tensor %zu differs", (int)n, text, i);
        }
    }
    tensor_list_release(&l);
    tensor_list_release(&tree);
    return rc == 1;
}

START_TEST(a_plain_header_is_read_without_a_tree)
{
    ck_assert(is_plain(plain, strlen(plain)));
    ck_assert(is_plain("{}", 2));
}
END_TEST

START_TEST(what_is_read_without_a_tree_a_tree_reads_too)
{
    const size_t n = strlen(plain);
    unsigned n_plain = 0;
    char text[sizeof(plain) + 1];

    for (size_t at = 0; at <= n; at++) {
        is_plain(plain, at); /* cut off */
        for (unsigned c = 0; c < 256; c++) {
            memcpy(text, plain, n); /* one byte is another */
            text[at] = (char)c;
            n_plain += is_plain(text, at < n ? n : n + 1);
            memcpy(text + at + 1, plain + at, n - at); /* one byte more */
            n_plain += is_plain(text, n + 1);
        }
        if (at < n) { /* one byte less */
            memcpy(text, plain, at);
            memcpy(text + at, plain + at + 1, n - at - 1);
            n_plain += is_plain(text, n - 1);
        }
    }
    ck_assert_uint_gt(n_plain, 1000); /* other names, other white space */
}
END_TEST

START_TEST(a_header_that_is_not_plain_is_left_to_the_tree)
{
    static const char *const other[] = {
        "{\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
        "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
        "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
        "{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[01],\"data_offsets\":[0,1]}}",
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[9999999999999999999],\"data_offsets\":[0,1]}}",
        "{\"\\u0061\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
        "{\"__metadata__\":{\"a\":\"b\",\"a\":\"b\"}}",
        "{\"__metadata__\":{},\"__metadata__\":{}}",
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},}",
        "{} x",
        "",
    };

    for (size_t i = 0; i < sizeof(other) / sizeof(other[0]); i++)
        ck_assert_msg(!is_plain(other[i], strlen(other[i])), "%s", other[i]);
    ck_assert(!is_plain("{}\0", 3));
}
END_TEST

START_TEST(a_header_length_beyond_the_file_or_the_limit_is_refused)
{
    static const uint64_t lengths[] = {3, 100000001, UINT64_MAX, UINT64_MAX - 7};

    for (size_t i = 0; i < 4; i++) {
        struct core_err err = {0};
        uint8_t bytes[10] = {0, 0, 0, 0, 0, 0, 0, 0, '{', '}'};

        memcpy(bytes, &lengths[i], 8);
        ck_assert_int_eq(read_all(bytes, sizeof(bytes), &err), CORE_E_ADAPTER_INVALID);
    }
}
END_TEST

/* 2 bytes of text a value: 40 times their memory, if it were parsed. */
START_TEST(a_header_of_millions_of_values_is_refused_before_it_is_parsed)
{
    static const char head[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[";
    enum { N = 10 * 1000 * 1000 };
    char *text = malloc(N + 1);
    struct core_err err = {0};

    for (size_t i = 0; i < N; i++)
        text[i] = i % 2 ? ',' : '1';
    memcpy(text, head, sizeof(head) - 1);
    text[N] = 0;
    ck_assert_int_eq(read_header(text, 0, &err), CORE_E_ADAPTER_UNSUPPORTED);
    free(text);
}
END_TEST

START_TEST(it_survives_every_truncation_mutation_and_allocation_failure)
{
    size_t n;
    uint8_t *bytes = golden_bytes("types.safetensors", &n);

    check_every_truncation(read_all, bytes, n);
    check_every_mutation(read_all, bytes, n);
    check_every_allocation(read_all, bytes, n);
    free(bytes);
    bytes = make_file(plain, PLAIN_DATA, &n);
    check_every_truncation(read_all, bytes, n);
    check_every_mutation(read_all, bytes, n);
    check_every_allocation(read_all, bytes, n);
    free(bytes);
}
END_TEST

Suite *safetensors_suite(void)
{
    Suite *s = suite_create("core/weights/safetensors");
    TCase *t = tcase_create("all");

    tcase_set_timeout(t, 60);
    tcase_add_test(t, every_type_reads_as_the_library_reads_it);
    tcase_add_test(t, it_appends_and_leaves_the_list_alone_on_error);
    tcase_add_loop_test(t, each_rule_of_the_header_is_kept, 0, sizeof(cases) / sizeof(cases[0]));
    tcase_add_test(t, a_plain_header_is_read_without_a_tree);
    tcase_add_test(t, what_is_read_without_a_tree_a_tree_reads_too);
    tcase_add_test(t, a_header_that_is_not_plain_is_left_to_the_tree);
    tcase_add_test(t, a_header_length_beyond_the_file_or_the_limit_is_refused);
    tcase_add_test(t, a_header_of_millions_of_values_is_refused_before_it_is_parsed);
    tcase_add_test(t, it_survives_every_truncation_mutation_and_allocation_failure);
    suite_add_tcase(s, t);
    return s;
}
