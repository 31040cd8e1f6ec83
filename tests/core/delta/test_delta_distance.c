/* A task's own relative distances of T5. What they do in attention is shown by the golden
 * t5-peft-lora-distances and by peftd diff's test. */
#include "tests/core/delta/delta_fixture.h"

Suite *delta_distance_suite(void);

#define NAME "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"

static void open_t5(void)
{
    fixture_model = open_base("t5");
}

static void make_own(struct adapter *a, bool is_add, const char *name, size_t n_heads)
{
    const size_t n_buckets = model_config(fixture_model)->distances.n_buckets;
    const struct made t[] = {{.name = name, .d0 = n_buckets, .d1 = n_heads, .base = -0.5f}, {0}};

    put_text(a, "delta.json",
             is_add ? "{\"method\": \"mine\", \"add\": true}" : "{\"method\": \"mine\"}");
    put_tensors(a, "delta.safetensors", t);
}

START_TEST(numbers_of_a_stack_replace_the_bases_or_are_added_to_them)
{
    static const char *const names[] = {NAME, "transformer." NAME};
    const struct model_config *c = model_config(fixture_model);
    const size_t n = c->n_heads * (2 * (size_t)c->distances.max + 1);
    const size_t n_stored = (size_t)c->distances.n_buckets * c->n_heads;
    float base[256], want[4096];
    unsigned stack = 0;

    ck_assert_uint_le(n, 4096);
    ck_assert_uint_le(n_stored, 256);
    tensor_to_f32(model_distances(fixture_model, NAME, &stack), 0, n_stored, base);
    ck_assert_uint_eq(stack, 1);
    for (int is_add = 0; is_add < 2; is_add++) {
        struct adapter a = {0};
        struct delta *d;
        float sum[256];

        for (size_t i = 0; i < n_stored; i++)
            sum[i] = -0.5f + 0.01f * (float)i + (is_add ? base[i] : 0.0f);
        model_spread_distances(fixture_model, 1, sum, want);
        make_own(&a, is_add, names[is_add], c->n_heads);
        d = compile(&a);
        ck_assert_ptr_null(d->distance[0]);
        same_floats(d->distance[1], want, n);
        ck_assert_int_eq(d->line[0].kind, DELTA_DISTANCES);
        ck_assert_uint_eq(d->line[0].n_bytes, n * sizeof(float));
        delta_free(d);
        drop_adapter(&a);
    }
}
END_TEST

START_TEST(numbers_of_another_shape_or_given_twice_are_refused)
{
    const size_t n_heads = model_config(fixture_model)->n_heads;
    const size_t n_buckets = model_config(fixture_model)->distances.n_buckets;
    const struct made two[] = {{.name = NAME, .d0 = n_buckets, .d1 = n_heads},
                               {.name = "transformer." NAME, .d0 = n_buckets, .d1 = n_heads},
                               {0}};
    struct adapter a = {0};

    make_own(&a, false, NAME, n_heads + 1);
    refused(&a, CORE_E_ADAPTER_MISMATCH, NAME);
    put_tensors(&a, "delta.safetensors", two);
    refused(&a, CORE_E_ADAPTER_INVALID, "two DISTANCES");
    drop_adapter(&a);
}
END_TEST

Suite *delta_distance_suite(void)
{
    Suite *s = suite_create("delta_distance");
    TCase *t = tcase_create("t5");

    tcase_add_checked_fixture(t, open_t5, close_model);
    tcase_add_test(t, numbers_of_a_stack_replace_the_bases_or_are_added_to_them);
    tcase_add_test(t, numbers_of_another_shape_or_given_twice_are_refused);
    suite_add_tcase(s, t);
    return s;
}
