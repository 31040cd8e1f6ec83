/* tests/core/kern/test_kern_gemm.c - the packed product: widen and gemm. */
#include "core/kern/kern_internal.h"
#include "kern_test.h"

static const struct kern_panel forms[] = {
    {KERN_PANEL_F32, 0, false, KERN_SCALE_F32, 0},  {KERN_PANEL_F16, 0, false, KERN_SCALE_F32, 0},
    {KERN_PANEL_BF16, 0, false, KERN_SCALE_F32, 0}, {KERN_PANEL_Q8, 32, false, KERN_SCALE_F16, 0},
    {KERN_PANEL_Q5, 32, true, KERN_SCALE_F16, 0},   {KERN_PANEL_Q8, 32, true, KERN_SCALE_F32, 0},
    {KERN_PANEL_Q8, 16, false, KERN_SCALE_F32, 0},  {KERN_PANEL_Q4, 32, false, KERN_SCALE_F16, 0},
    {KERN_PANEL_Q4, 32, true, KERN_SCALE_F16, 0},   {KERN_PANEL_Q4, 32, true, KERN_SCALE_F32, 0},
    {KERN_PANEL_Q4, 32, true, KERN_SCALE_K, 0},     {KERN_PANEL_Q5, 32, true, KERN_SCALE_K, 0},
    {KERN_PANEL_Q6, 16, false, KERN_SCALE_K, 0},    {KERN_PANEL_Q5, 32, false, KERN_SCALE_F16, 0},
};
enum { N_FORMS = sizeof(forms) / sizeof(forms[0]), K_MAX = 320, N_TABLES = 2 * N_LEVELS };

/* Every level, and each as it is on processors of the other kind (row_asks). */
static unsigned tables_all(struct kern_table t[N_TABLES])
{
    const unsigned n = levels_all(t);

    for (unsigned i = 0; i < n; i++)
        kern__table_init(&t[n + i], t[i].level, !t[i].row_asks);
    return 2 * n;
}

/* A panel of n_k values of k with finite scales, at the end of memory. */
static struct guarded panel_new(const struct kern_panel *p, size_t n_k)
{
    const bool is_quant = p->group > 0;
    struct guarded g = guarded_new(kern_panel_bytes(p, n_k));
    uint8_t *b = g.p;

    if (!is_quant) {
        const enum tensor_type type = p->type == KERN_PANEL_F32   ? TENSOR_F32
                                      : p->type == KERN_PANEL_F16 ? TENSOR_F16
                                                                  : TENSOR_BF16;
        guarded_free(&g);
        return guarded_typed(type, n_k * KERN_PANEL, 3, NULL);
    }
    for (size_t i = 0; i < kern_panel_bytes(p, n_k); i++)
        b[i] = (uint8_t)((i + 1) * 2654435761u >> 15);
    panel_finite(p, b, n_k);
    return g;
}

START_TEST(widen_gives_the_values_that_the_form_defines)
{
    const struct kern_panel *p = &forms[_i];
    const size_t ks[] = {0, 32, 64, K_MAX};
    struct kern_table t[N_TABLES];
    const unsigned n_levels = tables_all(t);

    for (size_t i = 0; i < 4; i++) {
        const size_t n = ks[i] * KERN_PANEL;
        float *want = calloc(n + 1, sizeof(*want));
        struct guarded w = panel_new(p, ks[i]), out = guarded_new(n * sizeof(float));

        t[0].widen(p, ks[i], w.p, want);
        for (unsigned l = 1; l < n_levels; l++) {
            const float *got = out.p;

            t[l].widen(p, ks[i], w.p, out.p);
            for (size_t j = 0; j < n; j++)
                REQUIRE(got[j] == want[j], "%s form %d k %zu column %zu: %.9g, not %.9g", t[l].name,
                        _i, j / KERN_PANEL, j % KERN_PANEL, (double)got[j], (double)want[j]);
        }
        guarded_free(&w);
        guarded_free(&out);
        free(want);
    }
}
END_TEST

/* The portable forms against the words of kern.h, on one hand-made record. */
START_TEST(a_record_means_what_its_contract_says)
{
    struct kern_table t;
    const struct kern_panel q4 = {KERN_PANEL_Q4, 32, true, KERN_SCALE_F32, 0};
    const struct kern_panel q8 = {KERN_PANEL_Q8, 16, false, KERN_SCALE_F32, 0};
    float rec[KERN_PANEL * 6] = {0}, out[KERN_PANEL * 32];
    uint32_t *words = (uint32_t *)(void *)(rec + 2 * KERN_PANEL);
    int8_t *q = (int8_t *)(rec + KERN_PANEL);

    kern_table_init(&t, 0);
    rec[5] = 0.5f;                          /* scale of column 5 */
    rec[KERN_PANEL + 5] = 10.0f;            /* its minimum */
    words[2 * KERN_PANEL + 5] = 0x00000d00; /* word 2, nibble 2: k = 18 */
    t.widen(&q4, 32, rec, out);
    ck_assert_float_eq(out[18 * KERN_PANEL + 5], 16.5f);
    ck_assert_float_eq(out[17 * KERN_PANEL + 5], 10.0f);
    ck_assert_uint_eq(kern_panel_bytes(&q4, 32), sizeof(rec));
    memset(q, 0, 16 * KERN_PANEL);
    q[7 * KERN_PANEL + 5] = -100;
    t.widen(&q8, 16, rec, out);
    ck_assert_float_eq(out[7 * KERN_PANEL + 5], -50.0f);
    ck_assert_uint_eq(kern_panel_bytes(&q8, 32), 2 * (4 + 16) * KERN_PANEL);
}
END_TEST

/* The same of a record whose scale is an integer. */
START_TEST(six_bits_and_integer_scales_mean_what_their_contract_says)
{
    const struct kern_panel p = {KERN_PANEL_Q6, 16, false, KERN_SCALE_K, 0};
    const size_t at = kern_super_bytes(&p) + kern_record_bytes(&p); /* the second record */
    const uint16_t d = tensor_f32_to_f16(0.5f);
    const uint32_t high = 2u << (8 * 2 + 4 + 2), low = 13u << 4 * 5; /* value 13 is 2 * 16 + 13 */
    uint8_t part[64 + 2 * 32 * 13] = {0};
    float out[KERN_PANEL * 32];
    struct kern_table t;

    kern_table_init(&t, 0);
    ck_assert_uint_eq(kern_panel_bytes(&p, 32), sizeof(part));
    memcpy(part + 7 * 2, &d, 2);
    part[at + 7] = (uint8_t)-3;
    memcpy(part + at + 32 + 7 * 4, &high, 4);
    memcpy(part + at + 32 + 128 + (32 + 7) * 4, &low, 4);
    t.widen(&p, 32, part, out);
    ck_assert_float_eq(out[(16 + 13) * KERN_PANEL + 7], (45.0f - 32.0f) * -1.5f);
    ck_assert_float_eq(out[(16 + 12) * KERN_PANEL + 7], 48.0f);
    ck_assert_float_eq(out[(16 + 13) * KERN_PANEL + 8], 0.0f);
}
END_TEST

/* The same of a record of five bits, without a minimum. */
START_TEST(five_bits_mean_what_their_contract_says)
{
    const struct kern_panel p = {KERN_PANEL_Q5, 32, false, KERN_SCALE_F16, 0};
    const uint16_t scale = tensor_f32_to_f16(0.5f);
    /* value 13 is 16 + 9: nibble 5 of word 1, and bit 2 * 8 + 1 * 2 + 1 */
    const uint32_t high = 1u << 19, low = 9u << 4 * 5;
    uint8_t part[64 + 32 * 20] = {0};
    float out[KERN_PANEL * 32];
    struct kern_table t;

    kern_table_init(&t, 0);
    ck_assert_uint_eq(kern_panel_bytes(&p, 32), sizeof(part));
    memcpy(part + 7 * 2, &scale, 2);
    memcpy(part + 64 + 7 * 4, &high, 4);
    memcpy(part + 64 + 128 + (32 + 7) * 4, &low, 4);
    t.widen(&p, 32, part, out);
    ck_assert_float_eq(out[13 * KERN_PANEL + 7], (25.0f - 16.0f) * 0.5f);
    ck_assert_float_eq(out[12 * KERN_PANEL + 7], -8.0f);
    ck_assert_float_eq(out[13 * KERN_PANEL + 8], 0.0f);
}
END_TEST

/* Of a quantised panel, or a part of one: what pairs() makes of its values. */
START_TEST(a_quantised_panel_becomes_pairs_of_its_values)
{
    const struct kern_panel *p = &forms[_i];
    struct kern_table t[N_TABLES];
    const unsigned n_levels = tables_all(t);
    struct guarded w = panel_new(p, K_MAX);
    float *values = calloc((size_t)K_MAX * KERN_PANEL, sizeof(*values));
    const size_t parts[][2] = {{0, 0}, {0, 32}, {32, 64}, {96, K_MAX - 96}, {0, K_MAX}};

    t[0].widen(p, K_MAX, w.p, values);
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]) && p->group; i++) {
        const size_t k = parts[i][0], n = parts[i][1], n_bytes = n * KERN_PANEL * 2;
        struct kern_panel part = *p;
        uint16_t *want = calloc(n_bytes + 1, 1);

        part.first = k % KERN_SUPER;
        t[0].pairs(n, values + k * KERN_PANEL, KERN_PANEL, want);
        for (unsigned l = 0; l < n_levels; l++) {
            struct guarded out = guarded_new(n_bytes);

            t[l].to_pairs(&part, n, (const char *)w.p + kern_panel_bytes(p, k), out.p);
            REQUIRE(memcmp(out.p, want, n_bytes) == 0, "%s form %d, %zu values from %zu on",
                    t[l].name, _i, n, k);
            guarded_free(&out);
        }
        free(want);
    }
    guarded_free(&w);
    free(values);
}
END_TEST

START_TEST(a_part_of_a_panel_is_widened_as_in_the_whole)
{
    const struct kern_panel *p = &forms[_i];
    struct kern_table t[N_TABLES];
    const unsigned n_levels = tables_all(t);
    struct guarded w = panel_new(p, K_MAX);
    float *whole = calloc((size_t)K_MAX * KERN_PANEL, sizeof(*whole));
    float *out = core_alloc_aligned((size_t)K_MAX * KERN_PANEL * sizeof(*out));

    t[0].widen(p, K_MAX, w.p, whole);
    for (size_t k = 0; k < K_MAX; k += 32) {
        struct kern_panel part = *p;
        const size_t n = K_MAX - k < 96 ? K_MAX - k : 96;

        part.first = k % KERN_SUPER;
        for (unsigned l = 0; l < n_levels; l++) {
            t[l].widen(&part, n, (const char *)w.p + kern_panel_bytes(p, k), out);
            REQUIRE(memcmp(out, whole + k * KERN_PANEL, n * KERN_PANEL * sizeof(*out)) == 0,
                    "%s form %d from %zu on", t[l].name, _i, k);
        }
    }
    guarded_free(&w);
    free(whole);
    core_free(out);
}
END_TEST

struct product {
    struct guarded x, w, y, bias;
    float *wide, *init;
    struct kern_gemm g;
};

static struct product product_new(const struct kern_panel *p, size_t n_rows, size_t n_k,
                                  size_t n_cols, size_t pad)
{
    struct product q = {.g = {.n_rows = n_rows,
                              .n_k = n_k,
                              .n_cols = n_cols,
                              .ldx = n_k + pad,
                              .ldy = n_cols + pad,
                              .panel = *p}};
    const size_t n_y = n_rows ? (n_rows - 1) * q.g.ldy + n_cols : 0;
    struct kern_table t;

    kern_table_init(&t, 0);
    q.x = guarded_samples(n_rows ? (n_rows - 1) * q.g.ldx + n_k : 0, 1);
    q.w = panel_new(p, n_k);
    q.y = guarded_samples(n_y, 2);
    q.bias = guarded_samples(n_cols, 3);
    q.wide = calloc(n_k * KERN_PANEL + 1, sizeof(float));
    t.widen(p, n_k, q.w.p, q.wide);
    q.init = calloc(n_y + 1, sizeof(float));
    memcpy(q.init, q.y.p, n_y * sizeof(float));
    q.g.x = q.x.p;
    q.g.w = q.w.p;
    q.g.y = q.y.p;
    return q;
}

static void product_free(struct product *q)
{
    guarded_free(&q->x);
    guarded_free(&q->w);
    guarded_free(&q->y);
    guarded_free(&q->bias);
    free(q->wide);
    free(q->init);
}

static void product_check(const struct product *q, const char *name)
{
    const struct kern_gemm *g = &q->g;

    for (size_t i = 0; i < g->n_rows; i++) {
        for (size_t j = 0; j < g->ldy && (i + 1 < g->n_rows || j < g->n_cols); j++) {
            const double was = (double)q->init[i * g->ldy + j];
            double want = g->is_first ? 0.0 : was, mag = fabs(want), tol;

            for (size_t k = 0; k < g->n_k && j < g->n_cols; k++) {
                want += (double)g->x[i * g->ldx + k] * (double)q->wide[k * KERN_PANEL + j];
                mag += fabs((double)g->x[i * g->ldx + k] * (double)q->wide[k * KERN_PANEL + j]);
            }
            if (g->bias && j < g->n_cols) {
                want += (double)g->bias[j];
                mag += fabs((double)g->bias[j]);
            }
            if (j >= g->n_cols) /* the pad is kept */
                want = was, mag = 0.0;
            tol = (double)(g->n_k + 2) * (double)FLT_EPSILON * mag;
            REQUIRE(fabs((double)g->y[i * g->ldy + j] - want) <= tol,
                    "%s type %d, %zux%zux%zu: y[%zu, %zu] = %.9g, not %.9g", name,
                    (int)g->panel.type, g->n_rows, g->n_cols, g->n_k, i, j,
                    (double)g->y[i * g->ldy + j], want);
        }
    }
}

START_TEST(gemm_is_right_at_every_level_form_and_size)
{
    static const size_t cols[] = {1, 7, 8, 9, 15, 16, 17, 24, 31, 32};
    static const size_t ks[] = {0, 32, 96};
    struct kern_table t[N_TABLES];
    const unsigned n_levels = tables_all(t);

    for (size_t rows = 0; rows < 32; rows++) {
        for (size_t c = 0; c < 10; c++) {
            for (size_t k = 0; k < 3; k++) {
                for (unsigned l = 0; l < n_levels; l++) {
                    const size_t pad = (rows + c) % 4;
                    struct product q = product_new(&forms[_i], rows, ks[k], cols[c], pad);

                    q.g.is_first = (rows + c + k) % 2;
                    q.g.bias = q.g.is_first && (rows + k) % 3 ? q.bias.p : NULL;
                    t[l].gemm(&q.g);
                    product_check(&q, t[l].name);
                    product_free(&q);
                }
            }
        }
    }
}
END_TEST

START_TEST(float_panels_may_have_any_k)
{
    struct kern_table t[N_TABLES];
    const unsigned n_levels = tables_all(t);

    for (size_t i = 0; i < N_EDGE_SIZES; i++) {
        for (size_t rows = 1; rows < 16; rows++) {
            for (unsigned l = 0; l < n_levels; l++) {
                struct product q = product_new(&forms[_i], rows, edge_sizes[i], 32, 0);

                q.g.is_first = true;
                t[l].gemm(&q.g);
                product_check(&q, t[l].name);
                product_free(&q);
            }
        }
    }
}
END_TEST

/* Any number of rows, any number of columns, narrow or widened first: the same bits. */
START_TEST(a_row_has_the_same_bits_in_every_batch)
{
    enum { ROWS = 29, PAGE = 4096 };
    struct kern_table t[N_TABLES];
    const unsigned n_levels = tables_all(t);
    struct product q = product_new(&forms[_i], ROWS, K_MAX, 32, 0);
    float all[ROWS * 32], part[ROWS * 32];
    float *wide = aligned_alloc(64, K_MAX * KERN_PANEL * sizeof(float));
    float *apart = calloc(ROWS, PAGE); /* rows that share a set of the first cache */

    for (size_t i = 0; i < ROWS; i++)
        memcpy(apart + i * PAGE / sizeof(float), q.g.x + i * q.g.ldx, K_MAX * sizeof(float));
    for (unsigned l = 0; l < n_levels; l++) {
        struct kern_gemm g = q.g;

        g.y = all;
        g.is_first = true;
        t[l].gemm(&g);
        for (size_t rows = 1; rows < ROWS; rows++) {
            for (size_t row = 0; row < ROWS; row += rows) {
                g.x = q.g.x + row * g.ldx;
                g.y = part + row * 32;
                g.n_rows = ROWS - row < rows ? ROWS - row : rows;
                t[l].gemm(&g);
            }
            REQUIRE(same_bits(all, part, ROWS * 32), "%s, %zu rows", t[l].name, rows);
        }
        t[l].widen(&g.panel, K_MAX, g.w, wide);
        g = q.g;
        g.is_first = true;
        g.panel = forms[0];
        g.w = wide;
        g.y = part;
        g.n_cols = 13;
        t[l].gemm(&g);
        for (size_t i = 0; i < ROWS; i++)
            REQUIRE(same_bits(all + i * 32, part + i * 32, 13), "%s, widened", t[l].name);
        g.x = apart;
        g.ldx = PAGE / sizeof(float);
        memset(part, 0, sizeof(part));
        t[l].gemm(&g);
        for (size_t i = 0; i < ROWS; i++)
            REQUIRE(same_bits(all + i * 32, part + i * 32, 13), "%s, apart", t[l].name);
    }
    free(apart);
    free(wide);
    product_free(&q);
}
END_TEST

/* 16-bit panels, of whose values the first rows may leave f32 for the others. */
START_TEST(room_for_widened_values_changes_no_bit)
{
    enum { ROWS = 75 };
    struct kern_table t[N_TABLES];
    const unsigned n_levels = tables_all(t);
    static const size_t ks[] = {1, 17, K_MAX};

    for (size_t k = 0; k < 3; k++) {
        struct guarded wide = guarded_new(ks[k] * KERN_PANEL * sizeof(float));
        struct product q = product_new(&forms[_i], ROWS, ks[k], 29, 3);

        for (unsigned l = 0; l < n_levels; l++) {
            for (size_t rows = 1; rows <= ROWS; rows += rows < 40 ? 1 : 5) {
                const size_t n_y = (rows - 1) * q.g.ldy + q.g.n_cols;
                float *alone = malloc(n_y * sizeof(float));
                struct kern_gemm g = q.g;

                g.n_rows = rows;
                g.is_first = rows % 2;
                g.bias = g.is_first && rows % 3 ? q.bias.p : NULL;
                memcpy(q.y.p, q.init, n_y * sizeof(float));
                t[l].gemm(&g);
                memcpy(alone, q.y.p, n_y * sizeof(float));
                memcpy(q.y.p, q.init, n_y * sizeof(float));
                g.wide = wide.p;
                t[l].gemm(&g);
                REQUIRE(same_bits(alone, q.y.p, n_y), "%s, %zu rows, k %zu", t[l].name, rows,
                        ks[k]);
                free(alone);
            }
        }
        product_free(&q);
        guarded_free(&wide);
    }
}
END_TEST

/* The rows of g in tiles of g->packed_rows, which end at the end of memory. */
static struct guarded packed_new(const struct kern_table *t, const struct kern_gemm *g)
{
    const size_t n_tiles = (g->n_rows + g->packed_rows - 1) / g->packed_rows;
    struct guarded p = guarded_new(n_tiles * g->packed_step * sizeof(float));

    for (size_t i = 0, row = 0; i < n_tiles; i++, row += g->packed_rows) {
        const size_t n = g->n_rows - row < g->packed_rows ? g->n_rows - row : g->packed_rows;

        t->pack_x(n, g->n_k, g->x + row * g->ldx, g->ldx, (float *)p.p + i * g->packed_step);
    }
    return p;
}

START_TEST(packed_rows_stand_side_by_side)
{
    enum { N_K = 12, LD = 15 };
    struct kern_table t[N_TABLES];
    const unsigned n_levels = tables_all(t);

    for (unsigned l = 0; l < n_levels; l++) {
        for (size_t rows = 1; t[l].pack_x && rows <= KERN_X_ROWS; rows++) {
            struct guarded x = guarded_samples((rows - 1) * LD + N_K, 1);
            struct guarded out = guarded_new(N_K * KERN_X_ROWS * sizeof(float));
            const float *from = x.p, *to = out.p;

            t[l].pack_x(rows, N_K, x.p, LD, out.p);
            for (size_t k = 0; k < N_K; k++)
                for (size_t r = 0; r < KERN_X_ROWS; r++)
                    REQUIRE(to[k * KERN_X_ROWS + r] == (r < rows ? from[r * LD + k] : 0.0f),
                            "%s, %zu rows, k %zu, row %zu", t[l].name, rows, k, r);
            guarded_free(&x);
            guarded_free(&out);
        }
    }
}
END_TEST

/* Rows that are packed, too: parts of k that fill a cache or not, more rows than wait for the next
 * one, a half of a panel that has no columns. */
START_TEST(packed_rows_change_no_bit)
{
    static const size_t ks[] = {4, 36, 384, 388, 772}, cols[] = {1, 16, 17, 32};
    static const size_t rows[] = {1, 5, 8, 9, 16, 17, 18, 25, 144, 146, 153, 300};
    struct kern_table t[N_TABLES];
    const unsigned n_levels = tables_all(t);

    for (size_t i = 0; i < 5 * 4 * 12; i++) {
        const size_t n_k = ks[i % 5], n_rows = rows[i / 5 % 12], n_cols = cols[i / 60];
        struct product q = product_new(&forms[_i], n_rows, n_k, n_cols, i % 3);
        struct guarded wide = guarded_new(n_k * KERN_PANEL * sizeof(float));
        const size_t n_y = (n_rows - 1) * q.g.ldy + n_cols;
        const unsigned chosen = ((unsigned)i + 1) * 2654435761u >> 8; /* apart from the sizes */
        float *plain = malloc(n_y * sizeof(float));

        for (unsigned l = 0; l < n_levels; l++) {
            struct kern_gemm g = q.g;
            struct guarded packed;

            if (!t[l].pack_x)
                continue;
            g.packed_rows = 2 + chosen % 5;
            g.packed_step = n_k * KERN_X_ROWS;
            packed = packed_new(&t[l], &g);
            g.is_first = chosen / 5 % 2;
            g.bias = g.is_first && chosen / 10 % 2 ? q.bias.p : NULL;
            g.n_ahead = chosen / 20 % 7 * 5000;
            g.ahead = q.w.p;
            g.wide = chosen / 140 % 4 ? wide.p : NULL;
            memcpy(q.y.p, q.init, n_y * sizeof(float));
            t[l].gemm(&g);
            memcpy(plain, q.y.p, n_y * sizeof(float));
            memcpy(q.y.p, q.init, n_y * sizeof(float));
            g.x_packed = packed.p;
            t[l].gemm(&g);
            REQUIRE(same_bits(plain, q.y.p, n_y), "%s, %zu rows, %zu columns, k %zu", t[l].name,
                    n_rows, n_cols, n_k);
            guarded_free(&packed);
        }
        free(plain);
        guarded_free(&wide);
        product_free(&q);
    }
}
END_TEST

/* A row alone times two panels in one pass, and one after the other: the same bits. */
START_TEST(two_panels_at_once_are_one_and_one)
{
    enum { FAR = 3 }; /* panels from the first to the second */
    static const size_t ks[] = {0, 1, 31, K_MAX};
    struct kern_table t[N_TABLES];
    const unsigned n_levels = tables_all(t);

    for (size_t i = 0; i < 4; i++) {
        const size_t bytes = kern_panel_bytes(&forms[_i], ks[i]), cols = FAR * KERN_PANEL;
        struct guarded w = panel_new(&forms[_i], ks[i] * (FAR + 1)), x = guarded_samples(ks[i], 1);
        struct guarded y = guarded_samples(cols + KERN_PANEL, 2);
        struct guarded bias = guarded_samples(cols + KERN_PANEL, 3);
        float init[(FAR + 1) * KERN_PANEL], want[(FAR + 1) * KERN_PANEL];

        memcpy(init, y.p, sizeof(init));
        for (unsigned l = 0; l < 3 * n_levels; l++) {
            struct kern_gemm g = {.n_rows = 1,
                                  .n_k = ks[i],
                                  .n_cols = KERN_PANEL,
                                  .x = x.p,
                                  .ldx = ks[i],
                                  .panel = forms[_i],
                                  .w = w.p,
                                  .y = y.p,
                                  .ldy = cols + KERN_PANEL,
                                  .is_first = l % 3 > 0,
                                  .bias = l % 3 > 1 ? bias.p : NULL};
            struct kern_gemm second = g;

            second.w = (const char *)w.p + FAR * bytes;
            second.y += cols;
            second.bias = g.bias ? g.bias + cols : NULL;
            memcpy(y.p, init, sizeof(init));
            t[l / 3].gemm(&g);
            t[l / 3].gemm(&second);
            memcpy(want, y.p, sizeof(want));
            memcpy(y.p, init, sizeof(init));
            g.second_bytes = FAR * bytes;
            g.second_cols = cols;
            g.x_packed = t[l / 3].pack_x ? x.p : NULL; /* not read of a row alone */
            t[l / 3].gemm(&g);
            REQUIRE(same_bits(want, y.p, cols + KERN_PANEL), "%s, k %zu", t[l / 3].name, ks[i]);
        }
        guarded_free(&w);
        guarded_free(&x);
        guarded_free(&y);
        guarded_free(&bias);
    }
}
END_TEST

/* Parts stand anywhere, here each at the end of its memory. */
START_TEST(a_panel_in_parts_gives_the_bits_of_a_whole_one)
{
    enum { N_PARTS = 5, N_ROWS = 19 };
    static const size_t ks[] = {1, 31, 32, 33, 96, 130};
    const size_t row_bytes = kern_panel_bytes(&forms[_i], 1);
    struct kern_table t[N_TABLES];
    const unsigned n_levels = tables_all(t);

    for (size_t c = 0; c < sizeof(ks) / sizeof(ks[0]); c++) {
        struct product q = product_new(&forms[_i], N_ROWS, ks[c], c % 2 ? 32 : 13, 0);
        struct guarded copy[N_PARTS];
        struct kern_part part[N_PARTS];
        size_t n_parts = 0;

        for (size_t k = 0; k < ks[c]; k += KERN_PART, n_parts++) {
            const size_t n = ks[c] - k < KERN_PART ? ks[c] - k : KERN_PART;

            copy[n_parts] = guarded_new(n * row_bytes);
            part[n_parts] = (struct kern_part){copy[n_parts].p, q.w.p};
            memcpy(copy[n_parts].p, (const char *)q.w.p + k * row_bytes, n * row_bytes);
        }
        for (unsigned l = 0; l < n_levels; l++)
            for (size_t n_rows = 1; n_rows <= N_ROWS; n_rows += 3) {
                const size_t n_y = n_rows * q.g.ldy;
                struct kern_gemm g = q.g;
                float whole[N_ROWS * 32];

                g.n_rows = n_rows;
                g.is_first = n_rows % 2;
                memcpy(q.y.p, q.init, n_y * sizeof(float));
                t[l].gemm(&g);
                memcpy(whole, q.y.p, n_y * sizeof(float));
                memcpy(q.y.p, q.init, n_y * sizeof(float));
                g.w = NULL;
                g.part = part;
                g.n_ahead = n_rows % 4 * 3000;
                t[l].gemm(&g);
                REQUIRE(same_bits(whole, q.y.p, n_y), "%s, %zu rows, k %zu", t[l].name, n_rows,
                        ks[c]);
            }
        while (n_parts)
            guarded_free(&copy[--n_parts]);
        product_free(&q);
    }
}
END_TEST

Suite *kern_gemm_suite(void);

Suite *kern_gemm_suite(void)
{
    Suite *s = suite_create("kern_gemm");
    TCase *tc = tcase_create("kern_gemm");

    levels_report("kern_gemm");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, widen_gives_the_values_that_the_form_defines, 0, N_FORMS);
    tcase_add_loop_test(tc, a_quantised_panel_becomes_pairs_of_its_values, 0, N_FORMS);
    tcase_add_loop_test(tc, a_part_of_a_panel_is_widened_as_in_the_whole, 0, N_FORMS);
    tcase_add_test(tc, six_bits_and_integer_scales_mean_what_their_contract_says);
    tcase_add_test(tc, five_bits_mean_what_their_contract_says);
    tcase_add_test(tc, a_record_means_what_its_contract_says);
    tcase_add_loop_test(tc, gemm_is_right_at_every_level_form_and_size, 0, N_FORMS);
    tcase_add_loop_test(tc, float_panels_may_have_any_k, 0, 3);
    tcase_add_loop_test(tc, a_row_has_the_same_bits_in_every_batch, 0, N_FORMS);
    tcase_add_loop_test(tc, room_for_widened_values_changes_no_bit, 0, 3);
    tcase_add_test(tc, packed_rows_stand_side_by_side);
    tcase_add_loop_test(tc, packed_rows_change_no_bit, 0, 3);
    tcase_add_loop_test(tc, two_panels_at_once_are_one_and_one, 0, 3);
    tcase_add_loop_test(tc, a_panel_in_parts_gives_the_bits_of_a_whole_one, 0, 3);
    suite_add_tcase(s, tc);
    return s;
}
