/* tests/core/engine/test_pace.c - the share of prompts, against machines of arithmetic: each says
 * how long a step takes. */
#include <check.h>
#include <math.h>
#include <stdbool.h>

#include "core/engine/pace.h"

enum { PROMPT = 4000, CHUNK = 512 };
static const double keys_per_row = 3000.0;

/* A step takes fixed + so much a stream, and if it has rows of prompts, extra + so much a row and
 * key; times noise. */
struct machine {
    double fixed, stream, extra, row;
    double slow;  /* 1: as it says */
    double noise; /* 0.3: from 0.7 to 1.3 */
    unsigned random;
};

static const struct machine quiet = {6e6, 1e6, 1e6, 0.5e6, 1.0, 0.0, 1};

static double random_factor(struct machine *m)
{
    m->random = m->random * 1103515245u + 12345u;
    return 1.0 + m->noise * ((double)(m->random >> 16 & 0x7fff) / 16384.0 - 1.0);
}

/* One step of `n` streams beside prompts of 4,000 tokens, of which one is at *pos. */
struct seen {
    uint32_t n_rows;
    double ns;
};

static struct seen step(struct pace *p, struct machine *m, uint32_t n, uint32_t *pos)
{
    const struct pace_rows_due due = {.n_decoding = n, .n_old = n};
    const double share = pace_share(p, &due);
    struct seen s = {.n_rows = share > 0.0 ? pace_rows(p, *pos, CHUNK, share) : 0};
    double cost;

    if (s.n_rows == 0 && share > 0.0)
        s.n_rows = 1; /* as the engine does */
    cost = pace_cost(p, *pos, s.n_rows);
    s.ns = m->fixed + n * m->stream + (s.n_rows ? m->extra + cost * m->row : 0.0);
    s.ns *= m->slow * random_factor(m);
    pace_step(p, n, cost, s.ns);
    *pos = (*pos + s.n_rows) % PROMPT;
    return s;
}

static uint32_t rows_of(struct pace *p, struct machine *m, uint32_t n, uint32_t *pos, int n_steps)
{
    uint32_t n_rows = 0;

    for (int i = 0; i < n_steps; i++)
        n_rows += step(p, m, n, pos).n_rows;
    return n_rows;
}

START_TEST(steps_beside_prompts_take_less_than_twice_those_without)
{
    struct machine m = quiet;
    struct pace p;
    uint32_t pos = 0;

    pace_init(&p, 0.0, keys_per_row, 0);
    rows_of(&p, &m, 4, &pos, 40);
    for (int i = 0; i < 2000; i++) {
        const struct seen s = step(&p, &m, 4, &pos);

        ck_assert_double_lt(s.ns, 1.9 * 10e6);
        if (s.n_rows)
            ck_assert_double_gt(s.ns, 1.5 * 10e6); /* and prompts use what they may */
    }
}
END_TEST

START_TEST(steps_take_what_the_target_says)
{
    struct machine m = quiet;
    struct pace p;
    uint32_t pos = 0;

    pace_init(&p, 50e6, keys_per_row, 0);
    rows_of(&p, &m, 4, &pos, 40);
    for (int i = 0; i < 500; i++) {
        const struct seen s = step(&p, &m, 4, &pos);

        if (s.n_rows)
            ck_assert_double_gt(s.ns, 45e6);
        ck_assert_double_lt(s.ns, 53e6);
    }
}
END_TEST

START_TEST(prompts_go_on_whatever_the_target)
{
    struct machine m = quiet;
    struct pace p;
    uint32_t pos = 0;
    int n_without = 0;

    pace_init(&p, 1.0, keys_per_row, 0);
    for (int i = 0; i < 1000; i++)
        n_without += step(&p, &m, 4, &pos).n_rows == 0;
    ck_assert_int_le(n_without, 1000 / PACE_PROBE);
    ck_assert_int_ge(n_without, 1000 / (PACE_PROBE + 1) - 1);
}
END_TEST

START_TEST(without_streams_or_short_beside_young_ones_there_is_no_limit)
{
    const struct pace_rows_due none = {.n_short = 3}, alone = {0},
                               young = {.n_decoding = 5, .n_short = 3, .short_cost = 20.0},
                               mixed = {.n_decoding = 5, .n_old = 1, .n_short = 3},
                               long_only = {.n_decoding = 5};
    struct pace p;

    pace_init(&p, 0.0, keys_per_row, 0);
    ck_assert(isinf(pace_share(&p, &none)));
    ck_assert(isinf(pace_share(&p, &alone)));
    ck_assert(pace_spares_short(&young));
    ck_assert(!pace_spares_short(&none)); /* nor has anything to be spared */
    ck_assert(!pace_spares_short(&mixed));
    ck_assert(!pace_spares_short(&long_only));
    ck_assert(!isinf(pace_share(&p, &mixed)));
    ck_assert(!isinf(pace_share(&p, &long_only)));
    /* long prompts beside them: 1.8 times as much in all, known machine or not */
    ck_assert_double_eq_tol(pace_share(&p, &young), 0.8 * (5.0 + 20.0), 1e-9);
}
END_TEST

START_TEST(a_step_without_prompts_is_never_followed_by_another)
{
    struct machine m = quiet;
    struct pace p;
    uint32_t pos = 0;
    bool had_rows = true;

    m.noise = 0.5;
    pace_init(&p, 0.0, keys_per_row, 0);
    for (uint32_t i = 0; i < 1000; i++) { /* and their number changes all the time */
        const bool has_rows = step(&p, &m, 1 + i * 7 % 5, &pos).n_rows > 0;

        ck_assert(has_rows || had_rows);
        had_rows = has_rows;
    }
}
END_TEST

START_TEST(the_share_does_not_flap_on_a_noisy_machine)
{
    struct machine m = quiet, noisy = quiet;
    struct pace p, q;
    uint32_t pos = 0, pos_noisy = 0, n_quiet, n_noisy, last = 0;
    int n_jumps = 0;

    noisy.noise = 0.3;
    pace_init(&p, 0.0, keys_per_row, 0);
    pace_init(&q, 0.0, keys_per_row, 0);
    rows_of(&p, &m, 4, &pos, 50);
    rows_of(&q, &noisy, 4, &pos_noisy, 50);
    n_quiet = rows_of(&p, &m, 4, &pos, 2000);
    n_noisy = rows_of(&q, &noisy, 4, &pos_noisy, 1000);
    for (int i = 0; i < 1000; i++) {
        const uint32_t n = step(&q, &noisy, 4, &pos_noisy).n_rows;

        n_noisy += n;
        n_jumps += n && last && (n > 2 * last || last > 2 * n);
        last = n ? n : last;
    }
    ck_assert_uint_gt(n_noisy, n_quiet * 3 / 4);
    ck_assert_int_lt(n_jumps, 50);
}
END_TEST

START_TEST(one_long_step_is_soon_forgotten)
{
    struct machine m = quiet;
    struct pace p;
    uint32_t pos = 0, before, after;

    pace_init(&p, 0.0, keys_per_row, 0);
    rows_of(&p, &m, 4, &pos, 50);
    pos = 0;
    before = rows_of(&p, &m, 4, &pos, 32);
    m.slow = 100.0;
    step(&p, &m, 4, &pos);
    m.slow = 1.0;
    rows_of(&p, &m, 4, &pos, 40);
    pos = 0;
    after = rows_of(&p, &m, 4, &pos, 32);
    ck_assert_uint_gt(after, before * 9 / 10);
}
END_TEST

/* What the streams take alone is not measured at once: until then rows seem dear. */
START_TEST(prompts_keep_a_share_when_the_machine_becomes_slow)
{
    struct machine m = quiet;
    struct pace p;
    uint32_t pos = 0, before, at_once, later;

    pace_init(&p, 0.0, keys_per_row, 0);
    rows_of(&p, &m, 4, &pos, 50);
    pos = 0;
    before = rows_of(&p, &m, 4, &pos, 34);
    m.slow = 4.0;
    at_once = rows_of(&p, &m, 4, &pos, 34);
    rows_of(&p, &m, 4, &pos, 34);
    pos = 0;
    later = rows_of(&p, &m, 4, &pos, 34);
    ck_assert_uint_gt(at_once, before / 6); /* a row costs no more than a stream's */
    ck_assert_uint_gt(later, before * 9 / 10);
}
END_TEST

START_TEST(a_row_costs_no_more_than_a_streams_whatever_was_seen)
{
    const struct pace_rows_due none = {0}, four = {.n_decoding = 4, .n_old = 4};
    struct pace p;

    pace_init(&p, 0.0, keys_per_row, 0);
    (void)pace_share(&p, &none);
    pace_step(&p, 0, 512.0, 1e12); /* a chunk that took a quarter of an hour: the machine slept */
    ck_assert_double_eq(pace_share(&p, &four), 0.0);
    pace_step(&p, 4, 0.0, 10e6);
    ck_assert_double_ge(pace_share(&p, &four), 3.0);
}
END_TEST

START_TEST(short_prompts_that_outnumber_streams_have_more)
{
    const struct pace_rows_due few = {.n_decoding = 4, .n_old = 4, .n_short = 4},
                               many = {.n_decoding = 4, .n_old = 4, .n_short = 12};
    struct machine m = quiet;
    struct pace p;
    uint32_t pos = 0;
    double share;

    pace_init(&p, 0.0, keys_per_row, 0);
    m.extra = 0.0;
    rows_of(&p, &m, 4, &pos, 16);
    p.last_cost = 1000.0; /* so fast may it grow */
    share = pace_share(&p, &few);
    ck_assert_double_gt(share, 0.0);
    ck_assert_double_eq_tol(pace_share(&p, &many), 3.0 * share, 1e-6 * share);
}
END_TEST

START_TEST(other_streams_are_measured_before_prompts_go_on)
{
    struct machine m = quiet;
    struct pace p;
    uint32_t pos = 0;

    pace_init(&p, 0.0, keys_per_row, 0);
    ck_assert_uint_eq(step(&p, &m, 4, &pos).n_rows, 0); /* nothing is known */
    ck_assert_uint_gt(step(&p, &m, 4, &pos).n_rows, 0);
    ck_assert_uint_gt(step(&p, &m, 5, &pos).n_rows, 0); /* about as many */
    ck_assert_uint_eq(step(&p, &m, 12, &pos).n_rows, 0);
    rows_of(&p, &m, 12, &pos, 10);
    for (int i = 0; i < 4; i++) {
        const struct seen s = step(&p, &m, 12, &pos);

        ck_assert(s.n_rows == 0 || s.ns > 1.5 * 18e6);
    }
}
END_TEST

START_TEST(a_chunk_is_the_longest_that_the_share_pays)
{
    static const uint32_t windows[] = {0, 100, 5000}, places[] = {0, 1, 99, 100, 101, 3000};
    static const double shares[] = {1.0, 1.5, 7.0, 100.0, 511.0, 512.0, 1e6};
    struct pace p;

    for (int w = 0; w < 3; w++)
        for (int a = 0; a < 6; a++)
            for (int s = 0; s < 7; s++) {
                uint32_t n;

                pace_init(&p, 0.0, keys_per_row, windows[w]);
                n = pace_rows(&p, places[a], CHUNK, shares[s]);
                ck_assert_uint_le(n, CHUNK);
                ck_assert(n == 0 || pace_cost(&p, places[a], n) <= shares[s]);
                ck_assert(n == CHUNK || pace_cost(&p, places[a], n + 1) > shares[s]);
            }
}
END_TEST

START_TEST(a_row_costs_what_its_keys_do)
{
    struct pace p;
    double by_hand = 0.0;

    pace_init(&p, 0.0, 10.0, 0);
    ck_assert_double_eq_tol(pace_cost(&p, 0, 1), 1.1, 1e-9);
    ck_assert_double_eq_tol(pace_cost(&p, 99, 2), 2.0 + 20.1, 1e-9);
    pace_init(&p, 0.0, 10.0, 50);
    for (uint32_t i = 40; i < 60; i++)
        by_hand += 1.0 + (i + 1 < 50 ? i + 1 : 50) / 10.0;
    ck_assert_double_eq_tol(pace_cost(&p, 40, 20), by_hand, 1e-9);
    ck_assert_double_eq_tol(pace_cost(&p, 400, 20), 20.0 * 6.0, 1e-9);
}
END_TEST

Suite *pace_suite(void);

Suite *pace_suite(void)
{
    Suite *s = suite_create("pace");
    TCase *tc = tcase_create("pace");

    tcase_add_test(tc, steps_beside_prompts_take_less_than_twice_those_without);
    tcase_add_test(tc, steps_take_what_the_target_says);
    tcase_add_test(tc, prompts_go_on_whatever_the_target);
    tcase_add_test(tc, without_streams_or_short_beside_young_ones_there_is_no_limit);
    tcase_add_test(tc, a_step_without_prompts_is_never_followed_by_another);
    tcase_add_test(tc, the_share_does_not_flap_on_a_noisy_machine);
    tcase_add_test(tc, one_long_step_is_soon_forgotten);
    tcase_add_test(tc, prompts_keep_a_share_when_the_machine_becomes_slow);
    tcase_add_test(tc, a_row_costs_no_more_than_a_streams_whatever_was_seen);
    tcase_add_test(tc, short_prompts_that_outnumber_streams_have_more);
    tcase_add_test(tc, other_streams_are_measured_before_prompts_go_on);
    tcase_add_test(tc, a_chunk_is_the_longest_that_the_share_pays);
    tcase_add_test(tc, a_row_costs_what_its_keys_do);
    suite_add_tcase(s, tc);
    return s;
}
