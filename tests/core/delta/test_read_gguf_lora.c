/* LoRA as llama.cpp's files hold it. The numbers are PEFT's: the golden llama-gguf-lora is
 * llama-peft-lora, converted. */
#include "core/base/buf.h"
#include "tests/core/delta/delta_fixture.h"

Suite *read_gguf_lora_suite(void);

/* ---- a writer of GGUF ------------------------------------------------------------------- */

struct file {
    struct core_buf kv, info, data;
    uint64_t n_kv, n_tensors;
};

static void put_u32(struct core_buf *out, uint32_t v)
{
    core_buf_add(out, &v, sizeof(v));
}

static void put_u64(struct core_buf *out, uint64_t v)
{
    core_buf_add(out, &v, sizeof(v));
}

static void put_str(struct core_buf *out, const char *s)
{
    put_u64(out, strlen(s));
    core_buf_add(out, s, strlen(s));
}

enum { TYPE_U32 = 4, TYPE_F32 = 6, TYPE_STR = 8, TYPE_ARRAY = 9 }; /* of values */
enum { F32 = 0, F16 = 1, Q8_0 = 8 };                               /* of tensors */

static void key(struct file *f, const char *name, uint32_t type)
{
    put_str(&f->kv, name);
    put_u32(&f->kv, type);
    f->n_kv++;
}

static void text(struct file *f, const char *name, const char *value)
{
    key(f, name, TYPE_STR);
    put_str(&f->kv, value);
}

static void begin(struct file *f, const char *type, const char *adapter, const char *family)
{
    *f = (struct file){0};
    text(f, "general.type", type);
    text(f, "adapter.type", adapter);
    text(f, "general.architecture", family);
}

static void alpha(struct file *f, float value)
{
    key(f, "adapter.lora.alpha", TYPE_F32);
    core_buf_add(&f->kv, &value, sizeof(value));
}

static void tensor(struct file *f, const char *name, size_t d0, size_t d1, uint32_t type,
                   const void *bytes, size_t n)
{
    static const char zeros[32];

    put_str(&f->info, name);
    put_u32(&f->info, d1 ? 2 : 1);
    if (d1)
        put_u64(&f->info, d1); /* the fastest first */
    put_u64(&f->info, d0);
    put_u32(&f->info, type);
    put_u64(&f->info, f->data.n);
    core_buf_add(&f->data, bytes, n);
    core_buf_add(&f->data, zeros, -f->data.n & 31);
    f->n_tensors++;
}

static void ones(struct file *f, const char *name, size_t d0, size_t d1)
{
    const size_t n = d0 * (d1 ? d1 : 1);
    float *x = calloc(n, sizeof(*x));

    for (size_t i = 0; i < n; i++)
        x[i] = 1.0f;
    tensor(f, name, d0, d1, F32, x, n * sizeof(*x));
    free(x);
}

/* A pair of rank 2 on the first v, which is refused for nothing of its own. */
static void pair_of_v(struct file *f)
{
    ones(f, "blk.0.attn_v.weight.lora_a", 2, 56);
    ones(f, "blk.0.attn_v.weight.lora_b", 28, 2);
}

static void finish(struct file *f, struct adapter *a)
{
    static const char zeros[32];
    struct core_buf out = {0};

    core_buf_str(&out, "GGUF");
    put_u32(&out, 3);
    put_u64(&out, f->n_tensors);
    put_u64(&out, f->n_kv);
    core_buf_add(&out, f->kv.p, f->kv.n);
    if (f->info.n)
        core_buf_add(&out, f->info.p, f->info.n);
    core_buf_add(&out, zeros, -out.n & 31);
    if (f->data.n)
        core_buf_add(&out, f->data.p, f->data.n);
    put_file(a, "adapter.gguf", out.p, out.n);
    core_buf_release(&out);
    core_buf_release(&f->kv);
    core_buf_release(&f->info);
    core_buf_release(&f->data);
}

static void is_refused(struct file *f, int code, const char *says)
{
    struct adapter a = {0};

    finish(f, &a);
    refused(&a, code, says);
    drop_adapter(&a);
}

/* ---- what is read ------------------------------------------------------------------------ */

START_TEST(a_converted_adapter_compiles_to_the_same_bits)
{
    static const enum site_kind kind[] = {SITE_Q, SITE_V};
    struct adapter gguf = {0}, peft = {0};
    struct delta *got, *want;

    ck_assert(load_cell(&gguf, "llama-gguf-lora"));
    ck_assert(load_cell(&peft, "llama-peft-lora"));
    got = compile(&gguf);
    want = compile(&peft);
    ck_assert_str_eq(got->method, want->method);
    ck_assert_int_eq(got->head.kind, want->head.kind);
    for (unsigned i = 0; i < 6; i++) {
        const struct delta_lowrank *g = lowrank_at(got, i / 2, kind[i % 2]);
        const struct delta_lowrank *w = lowrank_at(want, i / 2, kind[i % 2]);

        ck_assert(g->scale == w->scale);
        ck_assert_uint_eq(g->up.n_rows, w->up.n_rows);
        ck_assert_mem_eq(g->down.data, w->down.data, 4 * (size_t)w->down.n_rows * w->down.n_cols);
        ck_assert_mem_eq(g->up.data, w->up.data, 4 * (size_t)w->up.n_rows * w->up.n_cols);
    }
    delta_free(got);
    delta_free(want);
    drop_adapter(&gguf);
    drop_adapter(&peft);
}
END_TEST

START_TEST(types_that_llama_cpp_writes_are_read)
{
    uint16_t half[56];
    unsigned char block[28][34] = {0};
    struct adapter a = {0};
    struct file f;
    struct delta *d;
    const struct delta_lowrank *at;
    const uint16_t *row;

    for (unsigned i = 0; i < 56; i++)
        half[i] = (uint16_t)(0x3c00 + i);
    for (unsigned i = 0; i < 28; i++) {
        block[i][1] = 0x38; /* 0.5 */
        block[i][2 + 5] = (unsigned char)i;
    }
    begin(&f, "adapter", "lora", "llama");
    ones(&f, "blk.1.attn_q.weight.lora_a", 1, 56);
    tensor(&f, "blk.1.attn_q.weight.lora_b", 56, 1, F16, half, sizeof(half));
    ones(&f, "blk.0.attn_v.weight.lora_a", 32, 56);
    tensor(&f, "blk.0.attn_v.weight.lora_b", 28, 32, Q8_0, block, sizeof(block));
    finish(&f, &a);
    d = compile(&a);
    at = lowrank_at(d, 1, SITE_Q);
    ck_assert_int_eq(at->up.type, TENSOR_F16);
    ck_assert(at->scale == 1.0f); /* no alpha */
    row = at->up.data;
    for (unsigned i = 0; i < 56; i++) { /* heads of 14 */
        const unsigned k = i % 14, from = i - k + (k < 7 ? 2 * k : 2 * (k - 7) + 1);

        ck_assert_uint_eq(row[i], half[from]);
    }
    at = lowrank_at(d, 0, SITE_V);
    ck_assert_int_eq(at->up.type, TENSOR_F32);
    ck_assert(((const float *)at->up.data)[5 * 28 + 3] == 1.5f);
    delta_free(d);
    drop_adapter(&a);
}
END_TEST

START_TEST(the_token_embeddings_factor_is_turned)
{
    float down[301 * 2];
    struct adapter a = {0};
    struct file f;
    struct delta *d;
    const struct delta_lowrank *at;

    for (unsigned i = 0; i < 301 * 2; i++)
        down[i] = (float)i;
    begin(&f, "adapter", "lora", "llama");
    alpha(&f, 3.0f);
    tensor(&f, "token_embd.weight.lora_a", 301, 2, F32, down, sizeof(down));
    ones(&f, "token_embd.weight.lora_b", 56, 2);
    finish(&f, &a);
    d = compile(&a);
    at = lowrank_at(d, 0, SITE_EMBED_TOKENS);
    ck_assert(at->scale == 1.5f);
    for (unsigned i = 0; i < 301 * 2; i++) /* a token reads one row */
        ck_assert(((const float *)at->down.data)[i] == (float)i);
    delta_free(d);
    drop_adapter(&a);
}
END_TEST

/* ---- what is refused ---------------------------------------------------------------------- */

START_TEST(a_file_that_is_no_lora_of_this_base_is_refused)
{
    struct file f;

    begin(&f, "model", "lora", "llama");
    is_refused(&f, CORE_E_ADAPTER_UNSUPPORTED, "general.type is model, expected adapter");
    begin(&f, "adapter", "vector", "llama");
    is_refused(&f, CORE_E_ADAPTER_UNSUPPORTED, "adapter.type is vector");
    begin(&f, "adapter", "lora", "gemma2");
    is_refused(&f, CORE_E_ADAPTER_MISMATCH, "general.architecture is gemma2, this base's llama");
    begin(&f, "adapter", "lora", "llama");
    is_refused(&f, CORE_E_ADAPTER_INVALID, "no tensor");
    begin(&f, "adapter", "lora", "llama");
    key(&f, "adapter.lora.alpha", TYPE_U32);
    put_u32(&f.kv, 8);
    is_refused(&f, CORE_E_ADAPTER_INVALID, "adapter.lora.alpha");
}
END_TEST

static void invocation(struct file *f, uint32_t n, uint32_t first)
{
    begin(f, "adapter", "lora", "llama");
    key(f, "adapter.alora.invocation_tokens", TYPE_ARRAY);
    put_u32(&f->kv, TYPE_U32);
    put_u64(&f->kv, n);
    for (uint32_t i = 0; i < n; i++)
        put_u32(&f->kv, first + i);
    pair_of_v(f);
}

START_TEST(an_activated_lora_waits_for_its_invocation)
{
    struct adapter a = {0};
    struct delta *d;
    struct file f;

    invocation(&f, 2, 7);
    finish(&f, &a);
    d = compile(&a);
    ck_assert_uint_eq(d->n_invocation, 2);
    ck_assert_int_eq(d->invocation[0], 7);
    ck_assert_int_eq(d->invocation[1], 8);
    ck_assert(lowrank_at(d, 0, SITE_V)->is_invoked);
    delta_free(d);
    drop_adapter(&a);
}
END_TEST

START_TEST(an_invocation_is_a_list_of_tokens_of_the_vocabulary)
{
    static const char name[] = "adapter.alora.invocation_tokens";
    struct file f;

    invocation(&f, 0, 0);
    is_refused(&f, CORE_E_ADAPTER_INVALID, name);
    invocation(&f, DELTA_INVOCATION_MAX + 1, 0);
    is_refused(&f, CORE_E_ADAPTER_INVALID, name);
    invocation(&f, 1, 1u << 31);
    is_refused(&f, CORE_E_ADAPTER_INVALID, "is not an id of this vocabulary");
    begin(&f, "adapter", "lora", "llama");
    text(&f, name, "7");
    pair_of_v(&f);
    is_refused(&f, CORE_E_ADAPTER_INVALID, name);
}
END_TEST

START_TEST(tensors_without_a_place_are_refused)
{
    static const struct {
        const char *a, *b;
        size_t a0, a1, b0, b1;
        int code;
        const char *says;
    } bad[] = {
        {"blk.9.attn_q.weight.lora_a", NULL, 2, 56, 0, 0, CORE_E_ADAPTER_MISMATCH, "blk.9.attn_q"},
        {"blk.0.attn_k.weight.lora_a", NULL, 2, 56, 0, 0, CORE_E_ADAPTER_INVALID, "lora_b"},
        {"blk.0.attn_k.weight.lora_b", NULL, 28, 2, 0, 0, CORE_E_ADAPTER_UNSUPPORTED, "left over"},
        {"blk.0.attn_norm.weight", NULL, 56, 0, 0, 0, CORE_E_ADAPTER_UNSUPPORTED, "left over"},
        {"blk.0.attn_q.weight.lora_a", "blk.0.attn_q.weight.lora_b", 2, 57, 56, 2,
         CORE_E_ADAPTER_MISMATCH, "attn_q.weight.lora_a"},
        {"blk.0.attn_q.weight.lora_a", "blk.0.attn_q.weight.lora_b", 2, 56, 42, 2,
         CORE_E_ADAPTER_MISMATCH, "attn_q.weight.lora_b"},
        {"blk.0.attn_q.weight.lora_a", "blk.0.attn_q.weight.lora_b", 2, 56, 56, 3,
         CORE_E_ADAPTER_MISMATCH, "attn_q.weight.lora_b"},
        {"token_embd.weight.lora_a", "token_embd.weight.lora_b", 2, 301, 56, 2,
         CORE_E_ADAPTER_MISMATCH, "token_embd.weight.lora_a"},
        {"blk.0.attn_norm.weight.lora_a", "blk.0.attn_norm.weight.lora_b", 2, 56, 56, 2,
         CORE_E_ADAPTER_UNSUPPORTED, "attn_norm"},
    };

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct file f;

        begin(&f, "adapter", "lora", "llama");
        alpha(&f, 4.0f);
        pair_of_v(&f);
        ones(&f, bad[i].a, bad[i].a0, bad[i].a1);
        if (bad[i].b)
            ones(&f, bad[i].b, bad[i].b0, bad[i].b1);
        is_refused(&f, bad[i].code, bad[i].says);
    }
}
END_TEST

START_TEST(a_family_without_gguf_files_says_so)
{
    struct file f;

    close_model();
    open_bert();
    begin(&f, "adapter", "lora", "bert");
    pair_of_v(&f);
    is_refused(&f, CORE_E_ADAPTER_UNSUPPORTED, "of bases of type bert");
}
END_TEST

Suite *read_gguf_lora_suite(void)
{
    Suite *s = suite_create("read_gguf_lora");
    TCase *t = tcase_create("llama");

    tcase_add_checked_fixture(t, open_llama, close_model);
    tcase_add_test(t, a_converted_adapter_compiles_to_the_same_bits);
    tcase_add_test(t, types_that_llama_cpp_writes_are_read);
    tcase_add_test(t, the_token_embeddings_factor_is_turned);
    tcase_add_test(t, a_file_that_is_no_lora_of_this_base_is_refused);
    tcase_add_test(t, an_activated_lora_waits_for_its_invocation);
    tcase_add_test(t, an_invocation_is_a_list_of_tokens_of_the_vocabulary);
    tcase_add_test(t, tensors_without_a_place_are_refused);
    tcase_add_test(t, a_family_without_gguf_files_says_so);
    suite_add_tcase(s, t);
    return s;
}
