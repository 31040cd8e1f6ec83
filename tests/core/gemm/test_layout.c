/* tests/core/gemm/test_layout.c - the bytes of packed weights of every type, as files keep them:
 * who changes them changes gemm_layout() too, and the sums here. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/err.h"
#include "core/base/sum.h"
#include "core/gemm/gemm.h"
#include "tests/support/levels.h"

Suite *layout_suite(void);

enum { N_OUT = 70, N_IN = 512, WANT_LAYOUT = 2 }; /* three panels, the last one not full */

/* Of panels with each typed precision, exact before them, and of rows as they are stored. */
enum { ROWS = 5 };
static const struct {
    enum tensor_type type;
    uint64_t sum[6];
} want[] = {
    {TENSOR_F32,
     {0xc1d90fed816af14f, 0x8fcced233875ce54, 0x357e5f9ce15d0784, 0xa565f4e016044ad6,
      0xdc55b88fa3bc57c1, 0xdf27588b2f08c4ee}},
    {TENSOR_F16,
     {0x7db626a3a97113b6, 0x31e13be440686cfa, 0x8b27fc1b35deba2a, 0x066fb20813cea4c4,
      0xe42fe07249aaa69e, 0xe48e1b4264a54e61}},
    {TENSOR_BF16,
     {0x128e467b4909c9d4, 0x8fcced233875ce54, 0xf6126a0db3b1e224, 0x9cf3828e6488c0e2,
      0x813c527e46096998, 0xee603ca6a83d691e}},
    {TENSOR_F64,
     {0xc1d90fed816af14f, 0x8fcced233875ce54, 0x357e5f9ce15d0784, 0xa565f4e016044ad6,
      0xdc55b88fa3bc57c1, 0xbd9578ca4ca7482f}},
    {TENSOR_Q8_0,
     {0x47447911e27a2b54, 0x47447911e27a2b54, 0xbe20610f911d8e8c, 0xbe20610f911d8e8c,
      0x0fc9d33920b05f51, 0x9f22dd294f5ca1e9}},
    {TENSOR_Q4_0,
     {0x1535865878558b56, 0x1535865878558b56, 0x1535865878558b56, 0x1535865878558b56,
      0x1535865878558b56, 0x4a6f8822620399d5}},
    {TENSOR_Q4_1,
     {0x7f600b0ba16514c9, 0x7f600b0ba16514c9, 0x7f600b0ba16514c9, 0x7f600b0ba16514c9,
      0x7f600b0ba16514c9, 0xe715d69164d5d102}},
    {TENSOR_Q5_0,
     {0x159d3909a335d1ff, 0x159d3909a335d1ff, 0x159d3909a335d1ff, 0x159d3909a335d1ff,
      0x159d3909a335d1ff, 0x2f1a2e2986be2ff3}},
    {TENSOR_Q5_1,
     {0x8421acc456dc3a7a, 0x8421acc456dc3a7a, 0x8421acc456dc3a7a, 0x8421acc456dc3a7a,
      0x8421acc456dc3a7a, 0x8dfbb93599a5fce9}},
    {TENSOR_Q4_K,
     {0xcad73931c7c6d32c, 0xcad73931c7c6d32c, 0xcad73931c7c6d32c, 0xcad73931c7c6d32c,
      0xcad73931c7c6d32c, 0x7e2e8951277ba355}},
    {TENSOR_Q5_K,
     {0x5c4659f6e0bc0523, 0x5c4659f6e0bc0523, 0x5c4659f6e0bc0523, 0x5c4659f6e0bc0523,
      0x5c4659f6e0bc0523, 0xb0680c25c7414549}},
    {TENSOR_Q6_K,
     {0x02b63917d5d0ae1c, 0x02b63917d5d0ae1c, 0x02b63917d5d0ae1c, 0x02b63917d5d0ae1c,
      0x02b63917d5d0ae1c, 0xece5b9615edcb9ff}},
};
enum { N_WANT = sizeof(want) / sizeof(want[0]) };

static void put_number(enum tensor_type type, size_t i, uint8_t *p)
{
    const float v = ((float)((uint32_t)(i + 1) * 2654435761u % 251) - 125.25f) / 61.7f;
    const double d = (double)v;
    const uint16_t half = tensor_f32_to_f16(v), bf = tensor_f32_to_bf16(v);

    if (type == TENSOR_F16)
        memcpy(p, &half, 2);
    else if (type == TENSOR_BF16)
        memcpy(p, &bf, 2);
    else if (type == TENSOR_F32)
        memcpy(p, &v, 4);
    else
        memcpy(p, &d, 8);
}

/* Any bytes make a quantised block; the scales that are f16 get small numbers. */
static void put_block(enum tensor_type type, size_t i, uint8_t *p)
{
    static const uint8_t half[] = {0x34, 0x2c, 0x12, 0x28};

    for (size_t k = 0; k < tensor_type_block_bytes(type); k++)
        p[k] = (uint8_t)((i * 977 + k + 1) * 2654435761u >> 15);
    if (type == TENSOR_Q6_K)
        memcpy(p + 208, half, 2);
    else if (type == TENSOR_Q8_0 || type == TENSOR_Q4_0 || type == TENSOR_Q5_0)
        memcpy(p, half, 2);
    else
        memcpy(p, half, 4);
}

static uint64_t sum_of(const struct kern_table *k, enum tensor_type type,
                       enum gemm_precision precision)
{
    struct tensor t = {.name = "w", .type = type, .n_dims = 2, .dim = {N_OUT, N_IN}};
    struct gemm_weight *w = NULL;
    struct core_err err = {0};
    const void *bytes;
    uint8_t *p;
    size_t n;
    uint64_t sum;

    ck_assert(tensor_row_bytes(type, (size_t)N_OUT * N_IN, &t.n_bytes));
    t.data = p = malloc(t.n_bytes);
    for (size_t i = 0; i < t.n_bytes / tensor_type_block_bytes(type); i++) {
        if (tensor_type_is_quantised(type))
            put_block(type, i, p + i * tensor_type_block_bytes(type));
        else
            put_number(type, i, p + i * tensor_type_block_bytes(type));
    }
    ck_assert_msg(gemm_pack(&w, k, precision, &t, &err) == 0, "%s", err.msg);
    bytes = gemm_data(w, &n);
    sum = core_sum(bytes, n);
    gemm_weight_free(w);
    free(p);
    return sum;
}

static uint64_t wanted(const struct kern_table *k, unsigned i, enum gemm_precision precision)
{
    const bool is_wide = want[i].type == TENSOR_F32 || want[i].type == TENSOR_F64;

    if (precision == GEMM_BF16_WEIGHTS && is_wide) { /* put_number() rounds alike */
        for (i = 0; want[i].type != TENSOR_BF16; i++)
            ;
    }
    if (!gemm_is_typed(precision) ||
        (precision == GEMM_BF16 && tensor_type_is_quantised(want[i].type)))
        return want[i].sum[k->level == 0 ? ROWS : GEMM_EXACT];
    return want[i].sum[precision];
}

static void check(const struct kern_table *k, unsigned i, enum gemm_precision precision)
{
    const uint64_t got = sum_of(k, want[i].type, precision);

    ck_assert_msg(got == wanted(k, i, precision),
                  "%s, precision %d, %s: the bytes of packed weights are others: raise LAYOUT in "
                  "core/gemm/gemm_pack.c, then put 0x%016llx here",
                  tensor_type_text(want[i].type), (int)precision, k->name, (unsigned long long)got);
}

START_TEST(the_bytes_of_a_packed_weight_belong_to_their_version)
{
    struct kern_table level[N_TYPED_LEVELS];
    const unsigned n = levels_typed(level);

    ck_assert_uint_eq(gemm_layout(), WANT_LAYOUT);
    for (unsigned l = 0; l < n; l++) {
        ck_assert_str_eq(gemm_form(&level[l]), level[l].level ? "panels" : "rows");
        for (enum gemm_precision p = GEMM_EXACT; p < GEMM_N_PRECISIONS; p++)
            check(&level[l], (unsigned)_i, p);
    }
}
END_TEST

/* The same tensor over the bytes of another weight: equal products are test_cache.c's. */
START_TEST(a_weight_over_bytes_wants_as_many_as_it_would_have)
{
    const struct tensor t = {.name = "w", .type = TENSOR_F32, .n_dims = 2, .dim = {N_OUT, N_IN}};
    _Alignas(64) static float bytes[96 * N_IN];
    struct gemm_weight *w = NULL;
    struct core_err err = {0};
    struct kern_table k;
    const void *data;
    size_t n = 0;

    kern_table_init(&k, 0);
    ck_assert_int_eq(
        gemm_new_over(&w, &k, GEMM_EXACT, &t, bytes, sizeof(float) * N_OUT * N_IN - 1, &err),
        CORE_E_INTERNAL);
    ck_assert_ptr_null(w);
    ck_assert_int_eq(
        gemm_new_over(&w, &k, GEMM_EXACT, &t, bytes, sizeof(float) * N_OUT * N_IN, NULL), 0);
    data = gemm_data(w, &n);
    ck_assert_ptr_eq(data, bytes);
    ck_assert_uint_eq(n, sizeof(float) * N_OUT * N_IN);
    gemm_weight_free(w); /* and not the bytes */
}
END_TEST

Suite *layout_suite(void)
{
    Suite *s = suite_create("layout");
    TCase *t = tcase_create("all");

    levels_report_typed("layout");
    tcase_add_loop_test(t, the_bytes_of_a_packed_weight_belong_to_their_version, 0, N_WANT);
    tcase_add_test(t, a_weight_over_bytes_wants_as_many_as_it_would_have);
    suite_add_tcase(s, t);
    return s;
}
