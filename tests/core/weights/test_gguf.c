/* tests/core/weights/test_gguf.c - the promises of core/weights/weights.h, one sentence a test. */
#include "core/base/buf.h"
#include "tests/core/weights/golden.h"

Suite *gguf_suite(void);

static int read_all(const void *bytes, size_t n, struct core_err *err)
{
    struct gguf *g = NULL;
    struct gguf_str s;
    size_t n_strings = 0, sum = 0;
    const int rc = gguf_read(bytes, n, &g, err);

    if (rc < 0 && g)
        ck_abort_msg("the output was touched on error");
    if (rc < 0)
        return rc;
    touch_tensors(gguf_tensors(g));
    gguf_get_array(g, "t.strings", &n_strings);
    for (size_t i = 0; i < n_strings && gguf_array_str(g, "t.strings", i, &s); i++)
        for (size_t k = 0; k < s.n; k++)
            sum += (uint8_t)s.p[k];
    if (sum > n * UINT8_MAX)
        ck_abort_msg("strings beyond the file");
    gguf_free(g);
    return 0;
}

static struct gguf *open_golden(const char *file, uint8_t **bytes)
{
    struct gguf *g = NULL;
    struct core_err err = {0};
    size_t n;

    *bytes = golden_bytes(file, &n);
    ck_assert_msg(gguf_read(*bytes, n, &g, &err) == 0, "%s: %s", file, err.msg);
    return g;
}

/* ---- files that the gguf package wrote ----------------------------------- */

START_TEST(every_type_dequantises_as_the_gguf_package_does)
{
    static const char *const files[] = {"types.gguf", "aligned.gguf"};
    uint8_t *bytes;
    struct gguf *g = open_golden(files[_i], &bytes);
    struct tensor_list l = *gguf_tensors(g); /* sorted already: stays as it is */

    assert_as_expected(files[_i], &l);
    gguf_free(g);
    free(bytes);
}
END_TEST

START_TEST(sizes_come_in_torch_order)
{
    uint8_t *bytes;
    struct gguf *g = open_golden("types.gguf", &bytes);
    const struct tensor *t = tensor_list_find(gguf_tensors(g), "Q4_K");

    ck_assert(t && tensor_is(t, 2, 2, 768));
    ck_assert_int_eq(t->type, TENSOR_Q4_K);
    ck_assert_uint_eq(t->n_bytes, 2 * 3 * 144);
    gguf_free(g);
    free(bytes);
}
END_TEST

START_TEST(metadata_of_every_type_is_read)
{
    uint8_t *bytes;
    struct gguf *g = open_golden("types.gguf", &bytes);
    struct gguf_str s;
    uint64_t u;
    double f;
    bool b;

    ck_assert(gguf_get_u64(g, "t.u8", &u) && u == 200);
    ck_assert(gguf_get_u64(g, "t.u16", &u) && u == 60000);
    ck_assert(gguf_get_u64(g, "t.u32", &u) && u == 4000000000);
    ck_assert(gguf_get_u64(g, "t.u64", &u) && u == (1ull << 63) + 5);
    ck_assert(!gguf_get_u64(g, "t.i8", &u) && !gguf_get_u64(g, "t.i16", &u));
    ck_assert(!gguf_get_u64(g, "t.i32", &u) && !gguf_get_u64(g, "t.i64", &u));
    ck_assert(!gguf_get_u64(g, "t.f32", &u) && !gguf_get_u64(g, "t.true", &u));
    ck_assert(!gguf_get_u64(g, "t.ints", &u) && !gguf_get_u64(g, "t", &u));
    ck_assert(!gguf_get_u64(g, "t.u", &u) && !gguf_get_u64(g, "t.u88", &u));
    ck_assert(gguf_get_f64(g, "t.f32", &f) && f == (double)0.1f);
    ck_assert(gguf_get_f64(g, "t.f64", &f) && f == 0.1);
    ck_assert(!gguf_get_f64(g, "t.u8", &f));
    ck_assert(gguf_get_bool(g, "t.true", &b) && b);
    ck_assert(gguf_get_bool(g, "t.false", &b) && !b);
    ck_assert(!gguf_get_bool(g, "t.u8", &b));
    ck_assert(gguf_get_str(g, "t.text", &s) && s.n == 7 &&
              !memcmp(s.p,
                      "gr\xc3\xbc\xc3\x9f"
                      "e",
                      7));
    ck_assert(!gguf_get_str(g, "t.strings", &s) && !gguf_get_str(g, "t.u8", &s));
    gguf_free(g);
    free(bytes);
}
END_TEST

START_TEST(arrays_are_read_by_index)
{
    static const char *const strings[] = {"", "a", "zwei", "drei\xc3\x9fig"};
    static const double ints[] = {1, -2, 3}, floats[] = {0.5, -1.25}, bools[] = {1, 0};
    uint8_t *bytes;
    struct gguf *g = open_golden("types.gguf", &bytes);
    struct gguf_str s;
    size_t n;
    double f;

    ck_assert(gguf_get_array(g, "t.strings", &n) && n == 4);
    for (size_t i = 4; i-- > 0;) {
        ck_assert(gguf_array_str(g, "t.strings", i, &s));
        ck_assert(s.n == strlen(strings[i]) && !memcmp(s.p, strings[i], s.n));
    }
    ck_assert(!gguf_array_str(g, "t.strings", 4, &s));
    ck_assert(!gguf_array_str(g, "t.ints", 0, &s) && !gguf_array_str(g, "t.text", 0, &s));
    ck_assert(!gguf_array_f64(g, "t.strings", 0, &f) && !gguf_array_f64(g, "t.f32", 0, &f));
    ck_assert(gguf_get_array(g, "t.ints", &n) && n == 3);
    for (size_t i = 0; i < 3; i++)
        ck_assert(gguf_array_f64(g, "t.ints", i, &f) && f == ints[i]);
    for (size_t i = 0; i < 2; i++) {
        ck_assert(gguf_array_f64(g, "t.floats", i, &f) && f == floats[i]);
        ck_assert(gguf_array_f64(g, "t.bools", i, &f) && f == bools[i]);
    }
    ck_assert(!gguf_array_f64(g, "t.ints", 3, &f));
    ck_assert(!gguf_get_array(g, "t.u8", &n) && !gguf_get_array(g, "none", &n));
    gguf_free(g);
    free(bytes);
}
END_TEST

START_TEST(a_vocabulary_without_tensors_is_a_file)
{
    uint8_t *bytes;
    struct gguf *g = open_golden("vocabulary.gguf", &bytes);
    struct gguf_str s;
    size_t n;

    ck_assert_uint_eq(gguf_tensors(g)->n, 0);
    ck_assert(gguf_get_array(g, "tokenizer.ggml.tokens", &n) && n == 100);
    ck_assert(gguf_array_str(g, "tokenizer.ggml.tokens", 99, &s));
    ck_assert(s.n == 7 && !memcmp(s.p, "token99", 7));
    gguf_free(g);
    free(bytes);
}
END_TEST

START_TEST(a_type_that_we_do_not_read_is_named_with_its_tensor)
{
    struct core_err err = {0};
    size_t n;
    uint8_t *bytes = golden_bytes("q2k.gguf", &n);

    ck_assert_int_eq(read_all(bytes, n, &err), CORE_E_ADAPTER_UNSUPPORTED);
    ck_assert_str_eq(err.msg, "GGUF: tensor blk.0.w: type id 10 is not supported");
    free(bytes);
}
END_TEST

/* ---- files written by hand ----------------------------------------------- */

static void put(struct core_buf *b, uint64_t v, size_t n_bytes)
{
    core_buf_add(b, &v, n_bytes);
}

static void put_str(struct core_buf *b, const char *s)
{
    put(b, strlen(s), 8);
    core_buf_str(b, s);
}

static struct core_buf begin(uint32_t version, uint64_t n_tensors, uint64_t n_kv)
{
    struct core_buf b = {0};

    core_buf_str(&b, "GGUF");
    put(&b, version, 4);
    put(&b, n_tensors, 8);
    put(&b, n_kv, 8);
    return b;
}

static void put_u32(struct core_buf *b, const char *key, uint32_t v)
{
    put_str(b, key);
    put(b, 4, 4);
    put(b, v, 4);
}

static void put_tensor(struct core_buf *b, const char *name, uint32_t type, uint64_t n,
                       uint64_t offset)
{
    put_str(b, name);
    put(b, 1, 4);
    put(b, n, 8);
    put(b, type, 4);
    put(b, offset, 8);
}

static void put_data(struct core_buf *b, size_t alignment, size_t n)
{
    while (b->n % alignment)
        put(b, 0, 1);
    for (; n; n--)
        put(b, 7, 1);
}

/* Reads what was written and frees it; says must be in the message. */
static void assert_reads(struct core_buf *b, int wanted, const char *says)
{
    struct core_err err = {0};
    uint8_t *exact = malloc(b->n);
    int rc;

    ck_assert(!b->is_short);
    memcpy(exact, b->p, b->n);
    rc = read_all(exact, b->n, &err);
    ck_assert_msg(rc == wanted, "rc %d, %s", rc, err.msg);
    ck_assert_msg(strstr(err.msg, says), "%s", err.msg);
    free(exact);
    core_buf_release(b);
}

START_TEST(versions_2_and_3_are_read)
{
    for (uint32_t version = 0; version < 5; version++) {
        struct core_buf b = begin(version, 0, 0);

        if (version == 2 || version == 3)
            assert_reads(&b, 0, "");
        else
            assert_reads(&b, CORE_E_ADAPTER_UNSUPPORTED, "version");
    }
    struct core_buf b = begin(0x03000000, 0, 0);
    assert_reads(&b, CORE_E_ADAPTER_UNSUPPORTED, "big-endian");
}
END_TEST

START_TEST(counts_beyond_the_file_are_refused_before_memory_is_asked_for)
{
    struct core_buf b = begin(3, UINT64_MAX, 0);
    assert_reads(&b, CORE_E_ADAPTER_INVALID, "ends early");
    b = begin(3, 0, UINT64_MAX / 13);
    assert_reads(&b, CORE_E_ADAPTER_INVALID, "ends early");
    b = begin(3, 0, 1);
    put_str(&b, "a");
    put(&b, 9, 4);
    put(&b, 8, 4);
    put(&b, UINT64_MAX / 8, 8);
    assert_reads(&b, CORE_E_ADAPTER_INVALID, "ends early");
    b = begin(3, 0, 1);
    put_str(&b, "a");
    put(&b, 9, 4);
    put(&b, 10, 4);
    put(&b, UINT64_MAX / 8 + 2, 8); /* 8 bytes each: wraps around to 8 */
    put(&b, 0, 8);
    assert_reads(&b, CORE_E_ADAPTER_INVALID, "ends early");
    b = begin(3, 0, 1);
    put(&b, UINT64_MAX, 8);
    put(&b, 0, 8);
    assert_reads(&b, CORE_E_ADAPTER_INVALID, "ends early");
}
END_TEST

START_TEST(metadata_that_is_no_plain_table_is_refused)
{
    struct core_buf b = begin(3, 0, 1);
    put_str(&b, "nest");
    put(&b, 9, 4);
    put(&b, 9, 4);
    put(&b, 0, 8);
    assert_reads(&b, CORE_E_ADAPTER_UNSUPPORTED, "metadata nest: an array of arrays");
    b = begin(3, 0, 1);
    put_str(&b, "new");
    put(&b, 13, 4);
    put(&b, 0, 8);
    assert_reads(&b, CORE_E_ADAPTER_UNSUPPORTED, "metadata new: unknown type 13");
    b = begin(3, 0, 1);
    put_u32(&b, "", 1);
    assert_reads(&b, CORE_E_ADAPTER_INVALID, "key of 0 bytes");
    b = begin(3, 0, 3);
    put_u32(&b, "b", 1);
    put_u32(&b, "a", 1);
    put_u32(&b, "b", 2);
    assert_reads(&b, CORE_E_ADAPTER_INVALID, "metadata b stands twice");
}
END_TEST

START_TEST(the_alignment_must_be_a_power_of_two)
{
    static const uint32_t bad[] = {0, 24, 33};

    for (size_t i = 0; i < 3; i++) {
        struct core_buf b = begin(3, 0, 1);

        put_u32(&b, "general.alignment", bad[i]);
        assert_reads(&b, CORE_E_ADAPTER_INVALID, "general.alignment");
    }
    struct core_buf b = begin(3, 1, 1);
    put_u32(&b, "general.alignment", 8);
    put_tensor(&b, "a", 0, 2, 0);
    put_data(&b, 8, 8);
    assert_reads(&b, 0, "");
}
END_TEST

static const struct {
    uint32_t type;
    uint64_t n, offset, next;
    int rc;
    const char *says;
} places[] = {
    /* 64 bytes of data at alignment 32; a second tensor of 8 bytes at `next` */
    {0, 8, 0, 32, 0, ""},
    {8, 32, 0, 32, CORE_E_ADAPTER_INVALID, "tensor b lies over tensor a"}, /* 34 bytes */
    {0, 8, 32, 0, 0, ""},
    {0, 0, 0, 0, 0, ""},
    {0, 2, 0, 0, CORE_E_ADAPTER_INVALID, "lies over"},
    {0, 8, 4, 32, CORE_E_ADAPTER_INVALID, "tensor a: its offset is not aligned"},
    {0, 8, 64, 0, CORE_E_ADAPTER_INVALID, "tensor a lies outside"},
    {0, 17, 0, 0, CORE_E_ADAPTER_INVALID, "tensor a lies outside"},
    {0, 8, UINT64_MAX - 31, 0, CORE_E_ADAPTER_INVALID, "tensor a lies outside"},
    {0, UINT64_MAX / 4 + 2, 0, 32, CORE_E_ADAPTER_INVALID, "tensor a: its shape is too large"},
    {2, 31, 0, 32, CORE_E_ADAPTER_INVALID, "not whole blocks of Q4_0"},
};

START_TEST(tensors_lie_aligned_in_the_file_and_apart)
{
    struct core_buf b = begin(3, 2, 0);

    put_tensor(&b, "a", places[_i].type, places[_i].n, places[_i].offset);
    put_tensor(&b, "b", 0, 2, places[_i].next);
    put_data(&b, 32, 64);
    assert_reads(&b, places[_i].rc, places[_i].says);
}
END_TEST

START_TEST(tensor_names_and_dims_are_checked)
{
    char name[1026];
    struct core_buf b = begin(3, 2, 0);

    put_tensor(&b, "same", 0, 0, 0);
    put_tensor(&b, "same", 0, 0, 0);
    put_data(&b, 32, 0);
    assert_reads(&b, CORE_E_ADAPTER_INVALID, "tensor same is stored twice");
    b = begin(3, 1, 0);
    put_tensor(&b, "\xff", 0, 0, 0);
    assert_reads(&b, CORE_E_ADAPTER_INVALID, "not plain UTF-8");
    b = begin(3, 1, 0);
    memset(name, 'n', sizeof(name));
    name[1025] = 0;
    put_tensor(&b, name, 0, 0, 0);
    assert_reads(&b, CORE_E_ADAPTER_INVALID, "name of 1025 bytes");
    b = begin(3, 1, 0);
    put_str(&b, "deep");
    put(&b, 5, 4);
    for (int i = 0; i < 6; i++)
        put(&b, 1, 8);
    assert_reads(&b, CORE_E_ADAPTER_UNSUPPORTED, "tensor deep: 5 dimensions");
}
END_TEST

START_TEST(a_file_survives_every_truncation_mutation_and_allocation_failure)
{
    static const char *const files[] = {"types.gguf", "aligned.gguf"};
    size_t n, n_used;
    uint8_t *bytes = golden_bytes(files[_i], &n);

    /* The last tensor's padding may be cut off. */
    n_used = _i == 0 ? n - 2 : n - 40;
    check_every_truncation(read_all, bytes, n_used);
    check_every_mutation(read_all, bytes, _i == 0 ? n : n_used);
    check_every_allocation(read_all, bytes, n);
    free(bytes);
}
END_TEST

Suite *gguf_suite(void)
{
    Suite *s = suite_create("core/weights/gguf");
    TCase *t = tcase_create("all");

    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, every_type_dequantises_as_the_gguf_package_does, 0, 2);
    tcase_add_test(t, sizes_come_in_torch_order);
    tcase_add_test(t, metadata_of_every_type_is_read);
    tcase_add_test(t, arrays_are_read_by_index);
    tcase_add_test(t, a_vocabulary_without_tensors_is_a_file);
    tcase_add_test(t, a_type_that_we_do_not_read_is_named_with_its_tensor);
    tcase_add_test(t, versions_2_and_3_are_read);
    tcase_add_test(t, counts_beyond_the_file_are_refused_before_memory_is_asked_for);
    tcase_add_test(t, metadata_that_is_no_plain_table_is_refused);
    tcase_add_test(t, the_alignment_must_be_a_power_of_two);
    tcase_add_loop_test(t, tensors_lie_aligned_in_the_file_and_apart, 0,
                        sizeof(places) / sizeof(places[0]));
    tcase_add_test(t, tensor_names_and_dims_are_checked);
    tcase_add_loop_test(t, a_file_survives_every_truncation_mutation_and_allocation_failure, 0, 2);
    suite_add_tcase(s, t);
    return s;
}
