/* Types, shapes, conversions and lists. The block-quantised types are compared
 * with their oracle in test_gguf.c. */
#include <check.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/weights/tensor.h"

Suite *tensor_suite(void);

/* For long loops: Check notes each of its own assertions, which is slow. */
#define MUST(condition, h)                                         \
    do {                                                           \
        if (!(condition))                                          \
            ck_abort_msg("0x%04x: %s", (unsigned)(h), #condition); \
    } while (0)

static struct tensor make(enum tensor_type type, const void *data, size_t n)
{
    return (struct tensor){.name = "t",
                           .type = type,
                           .n_dims = 1,
                           .dim = {n},
                           .data = data,
                           .n_bytes = n / tensor_type_block(type) * tensor_type_block_bytes(type)};
}

START_TEST(a_row_is_measured_in_whole_blocks)
{
    size_t bytes = 0;

    ck_assert(tensor_row_bytes(TENSOR_F16, 5, &bytes));
    ck_assert_uint_eq(bytes, 10);
    ck_assert(tensor_row_bytes(TENSOR_Q4_K, 512, &bytes));
    ck_assert_uint_eq(bytes, 288);
    ck_assert(!tensor_row_bytes(TENSOR_Q4_K, 500, &bytes));
    ck_assert(!tensor_row_bytes(TENSOR_F64, SIZE_MAX / 4, &bytes));
    ck_assert_uint_eq(bytes, 288);
}
END_TEST

START_TEST(shapes_compare_and_print)
{
    const struct tensor t = {.n_dims = 2, .dim = {8, 384}}, scalar = {0};
    char text[32], tiny[4];

    ck_assert(tensor_is(&t, 2, 8, 384));
    ck_assert(!tensor_is(&t, 2, 384, 8));
    ck_assert(!tensor_is(&t, 1, 8, 384));
    ck_assert(tensor_is(&scalar, 0, 1, 2));
    ck_assert_uint_eq(tensor_n_values(&t), 3072);
    ck_assert_uint_eq(tensor_n_values(&scalar), 1);
    ck_assert_str_eq(tensor_shape_text(&t, text, sizeof(text)), "[8, 384]");
    ck_assert_str_eq(tensor_shape_text(&scalar, text, sizeof(text)), "[]");
    ck_assert_str_eq(tensor_shape_text(&t, tiny, sizeof(tiny)), "[8,");
}
END_TEST

/* All 65,536: the value by its definition, and back to the same bits. */
START_TEST(every_f16_converts_and_comes_back)
{
    for (uint32_t h = 0; h < 0x10000; h++) {
        const unsigned exponent = h >> 10 & 0x1f, fraction = h & 0x3ff;
        const float f = tensor_f16_to_f32((uint16_t)h);

        MUST(!!signbit(f) == (h >> 15), h);
        if (exponent == 0x1f && fraction) {
            MUST(isnan(f), h);
            MUST(tensor_f32_to_f16(f) == (h | 0x200), h); /* made quiet */
            continue;
        }
        if (exponent == 0x1f)
            MUST(isinf(f), h);
        else if (exponent == 0)
            MUST(fabsf(f) == ldexpf((float)fraction, -24), h);
        else
            MUST(fabsf(f) == ldexpf(1024 + (float)fraction, (int)exponent - 25), h);
        MUST(tensor_f32_to_f16(f) == h, h);
    }
}
END_TEST

/* Between each two neighbours: the middle goes to the even one, and the nearest
 * floats beside the middle to their side. */
START_TEST(rounding_to_f16_is_to_nearest_even)
{
    for (uint32_t h = 0; h < 0x7c00; h++) {
        /* What would follow 65504 is 65536; there the middle overflows to Inf. */
        const float low = tensor_f16_to_f32((uint16_t)h);
        const float high = h == 0x7bff ? 65536.0f : tensor_f16_to_f32((uint16_t)(h + 1));
        const float middle = 0.5f * (low + high); /* exact: 12 bits */

        MUST(tensor_f32_to_f16(middle) == (h % 2 ? h + 1 : h), h);
        MUST(tensor_f32_to_f16(nextafterf(middle, 0.0f)) == h, h);
        MUST(tensor_f32_to_f16(nextafterf(middle, INFINITY)) == (h + 1), h);
        MUST(tensor_f32_to_f16(-middle) == ((h % 2 ? h + 1 : h) | 0x8000), h);
    }
    ck_assert_uint_eq(tensor_f32_to_f16(FLT_MAX), 0x7c00);
    ck_assert_uint_eq(tensor_f32_to_f16(FLT_TRUE_MIN), 0);
}
END_TEST

START_TEST(every_bf16_converts_and_rounds_to_nearest_even)
{
    for (uint32_t h = 0; h < 0x10000; h++) {
        const float f = tensor_bf16_to_f32((uint16_t)h);
        uint32_t bits = h << 16 | 0x8000;
        float middle;

        if (isnan(f)) {
            MUST(tensor_f32_to_bf16(f) == (h | 0x40), h);
            continue;
        }
        MUST(tensor_f32_to_bf16(f) == h, h);
        if (isinf(f))
            continue;
        memcpy(&middle, &bits, sizeof(middle));
        MUST(tensor_f32_to_bf16(middle) == (h % 2 ? h + 1 : h), h);
        MUST(tensor_f32_to_bf16(nextafterf(middle, 0.0f)) == h, h);
    }
}
END_TEST

START_TEST(each_plain_type_reads_at_any_alignment)
{
    static const struct {
        enum tensor_type type;
        uint8_t bytes[8];
        float value;
    } row[] = {
        {TENSOR_F32, {0, 0, 0xc0, 0xbf}, -1.5f},
        {TENSOR_F16, {0, 0xbe}, -1.5f},
        {TENSOR_BF16, {0xc0, 0xbf}, -1.5f},
        {TENSOR_F64, {0, 0, 0, 0, 0, 0, 0xf8, 0xbf}, -1.5f},
        {TENSOR_I8, {0xfe}, -2.0f},
        {TENSOR_I16, {0xfe, 0xff}, -2.0f},
        {TENSOR_I32, {0xfe, 0xff, 0xff, 0xff}, -2.0f},
        {TENSOR_I64, {0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, -2.0f},
        {TENSOR_U8, {0xfe}, 254.0f},
        {TENSOR_BOOL, {2}, 1.0f},
    };

    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        const size_t step = tensor_type_block_bytes(row[i].type);
        uint8_t bytes[1 + 3 * 8] = {0};
        struct tensor t = make(row[i].type, bytes + 1, 3);
        float out[2] = {9, 9};

        memcpy(bytes + 1 + step, row[i].bytes, step);
        tensor_to_f32(&t, 1, 2, out);
        ck_assert_msg(out[0] == row[i].value && out[1] == 0, "%s: %g %g",
                      tensor_type_text(row[i].type), (double)out[0], (double)out[1]);
    }
}
END_TEST

START_TEST(integers_come_from_integer_types_and_whole_floats)
{
    const int64_t wide[] = {INT64_MIN, INT64_MAX};
    const float whole[] = {-0x1p63f, 3.0f, -0.0f};
    static const float bad[] = {0.5f, 0x1p63f, NAN, -INFINITY};
    const struct tensor i64 = make(TENSOR_I64, wide, 2), f32 = make(TENSOR_F32, whole, 3);
    const struct tensor f16 = make(TENSOR_F16, whole, 2);
    int64_t out[3];

    ck_assert(tensor_to_i64(&i64, 0, 2, out));
    ck_assert(out[0] == INT64_MIN && out[1] == INT64_MAX);
    ck_assert(tensor_to_i64(&f32, 0, 3, out));
    ck_assert(out[0] == INT64_MIN && out[1] == 3 && out[2] == 0);
    ck_assert(!tensor_to_i64(&f16, 0, 1, out));
    ck_assert(!tensor_to_i64(&f16, 0, 0, out));
    for (size_t i = 0; i < 4; i++) {
        const struct tensor t = make(TENSOR_F32, &bad[i], 1);

        ck_assert(!tensor_to_i64(&t, 0, 1, out));
    }
}
END_TEST

START_TEST(a_list_of_thousands_sorts_and_finds)
{
    enum { N = 3000 };
    struct tensor_list l = {0};
    struct core_err err = {0};
    char name[16];

    ck_assert_ptr_null(tensor_list_find(&l, "t1"));
    for (size_t i = 0; i < N; i++) {
        const struct tensor t = {.name = name, .n_dims = 1, .dim = {i * 7919 % N}};

        snprintf(name, sizeof(name), "t%zu", i * 7919 % N); /* a prime: each number once */
        ck_assert_int_eq(tensor_list_add(&l, &t, &err), 0);
    }
    ck_assert_int_eq(tensor_list_sort(&l, &err), 0);
    for (size_t i = 0; i < N; i++) {
        const struct tensor *t;

        snprintf(name, sizeof(name), "t%zu", i);
        t = tensor_list_find(&l, name);
        ck_assert(t && t->dim[0] == i);
    }
    ck_assert_ptr_null(tensor_list_find(&l, "t3000"));
    tensor_list_release(&l);
    ck_assert_ptr_null(l.t);
}
END_TEST

START_TEST(copies_are_dropped_and_others_of_their_name_stay)
{
    static const float one[2] = {1, 2}, other[2] = {1, 3};
    const struct tensor t[] = {
        {.name = "b", .type = TENSOR_F32, .n_dims = 1, .dim = {2}, .data = one, .n_bytes = 8},
        {.name = "a", .type = TENSOR_F32, .n_dims = 1, .dim = {2}, .data = one, .n_bytes = 8},
        {.name = "b", .type = TENSOR_F32, .n_dims = 1, .dim = {2}, .data = other, .n_bytes = 8},
        {.name = "a", .type = TENSOR_F32, .n_dims = 1, .dim = {2}, .data = one, .n_bytes = 8},
        {.name = "a", .type = TENSOR_F32, .n_dims = 2, .dim = {1, 2}, .data = one, .n_bytes = 8},
    };
    struct tensor_list l = {0};

    tensor_list_drop_copies(&l);
    ck_assert_uint_eq(l.n, 0);
    for (size_t i = 0; i < 2; i++)
        ck_assert_int_eq(tensor_list_add(&l, &t[i], NULL), 0);
    ck_assert_int_eq(tensor_list_add(&l, &t[3], NULL), 0);
    tensor_list_drop_copies(&l);
    ck_assert_uint_eq(l.n, 2);
    ck_assert_ptr_nonnull(tensor_list_find(&l, "a"));
    ck_assert_ptr_nonnull(tensor_list_find(&l, "b"));
    ck_assert_int_eq(tensor_list_add(&l, &t[2], NULL), 0);
    ck_assert_int_eq(tensor_list_add(&l, &t[4], NULL), 0);
    tensor_list_drop_copies(&l);
    ck_assert_uint_eq(l.n, 4);
    ck_assert_int_eq(tensor_list_sort(&l, NULL), CORE_E_ADAPTER_INVALID);
    tensor_list_release(&l);
}
END_TEST

START_TEST(a_name_that_stands_twice_is_named)
{
    struct tensor_list l = {0};
    struct core_err err = {0};

    for (int i = 0; i < 3; i++) {
        const struct tensor t = {.name = i == 1 ? "other" : "layer.weight"};

        ck_assert_int_eq(tensor_list_add(&l, &t, &err), 0);
    }
    ck_assert_int_eq(tensor_list_sort(&l, &err), CORE_E_ADAPTER_INVALID);
    ck_assert_str_eq(err.param, "layer.weight");
    tensor_list_release(&l);
}
END_TEST

START_TEST(a_list_survives_every_allocation_failure)
{
    for (long k = 0; k < 200; k++) {
        struct tensor_list l = {0};
        struct core_err err = {0};
        int rc = 0;

        core__alloc_fail_at = k;
        for (size_t i = 0; i < 20 && rc == 0; i++) {
            const size_t before = l.n;

            rc = tensor_list_add(&l, &(struct tensor){.name = "name"}, &err);
            ck_assert_uint_eq(l.n, rc == 0 ? before + 1 : before);
        }
        core__alloc_fail_at = -1;
        tensor_list_release(&l);
        if (rc == 0) {
            ck_assert_int_ge(k, 20);
            return;
        }
        ck_assert_int_eq(rc, CORE_E_NOMEM);
    }
    ck_abort_msg("it never got through");
}
END_TEST

Suite *tensor_suite(void)
{
    Suite *s = suite_create("core/weights/tensor");
    TCase *t = tcase_create("all");

    tcase_add_test(t, a_row_is_measured_in_whole_blocks);
    tcase_add_test(t, shapes_compare_and_print);
    tcase_add_test(t, every_f16_converts_and_comes_back);
    tcase_add_test(t, rounding_to_f16_is_to_nearest_even);
    tcase_add_test(t, every_bf16_converts_and_rounds_to_nearest_even);
    tcase_add_test(t, each_plain_type_reads_at_any_alignment);
    tcase_add_test(t, integers_come_from_integer_types_and_whole_floats);
    tcase_add_test(t, a_list_of_thousands_sorts_and_finds);
    tcase_add_test(t, copies_are_dropped_and_others_of_their_name_stay);
    tcase_add_test(t, a_name_that_stands_twice_is_named);
    tcase_add_test(t, a_list_survives_every_allocation_failure);
    suite_add_tcase(s, t);
    return s;
}
