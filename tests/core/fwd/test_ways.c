/* tests/core/fwd/test_ways.c - how a step is computed is found out by trying: the fastest way of
 * those that there are is taken nearly always, another one soon after it has become faster, and
 * bits stay. */
#include "tests/support/levels.h"
#include "tests/support/pass.h"

#include <check.h>
#include <string.h>

Suite *ways_suite(void);

enum { N_ROWS = 100, N_LONG = 2000, N_WORKERS = 2, N_SEQS = 4 };

static unsigned state;

/* 0.9 to 1.1, and one time of 32 three times that: a worker whose core another program had. */
static double noise(void)
{
    state = state * 1664525u + 1013904223u;
    return (0.9 + 0.2 * (state >> 16 & 255) / 255.0) * (state >> 27 ? 1.0 : 3.0);
}

/* n steps of cost 1 on a machine where a way takes ns; returns how many went the way `way`. */
static unsigned run(struct fwd_ways *w, const double ns[FWD_N_WAYS], unsigned n, enum fwd_way way)
{
    unsigned n_so = 0;

    for (unsigned i = 0; i < n; i++) {
        const enum fwd_way chosen = fwd__ways_choose(w, N_ROWS);

        ck_assert(w->cost[chosen] > 0.0);
        n_so += chosen == way;
        fwd__ways_learn(w, N_ROWS, chosen, ns[chosen] * w->cost[chosen] * noise());
    }
    return n_so;
}

static const struct {
    double ns[FWD_N_WAYS], cost[FWD_N_WAYS];
    enum fwd_way best;
    unsigned percent; /* of steps that go that way, at least */
} machines[] = {
    {{0, 1000, 1500, 1500}, {0, 1, 1, 1}, FWD_TOGETHER, 95},
    {{0, 1500, 1000, 1500}, {0, 1, 1, 1}, FWD_SLICES, 95},
    {{0, 1500, 1500, 1000}, {0, 1, 1, 1}, FWD_LOTS, 95},
    {{0, 1000, 1200, 1200}, {0, 1, 1, 0}, FWD_TOGETHER, 85},
    {{0, 1200, 1000, 1}, {0, 1, 1, 0}, FWD_SLICES, 85},   /* no lots */
    {{0, 2000, 1, 1000}, {0, 1, 0, 1}, FWD_LOTS, 95},     /* no slices */
    {{0, 1300, 1300, 1000}, {0, 1, 1, 2}, FWD_SLICES, 0}, /* uneven lots take longer */
    {{0, 1000, 10, 10}, {0, 1, 0, 0}, FWD_TOGETHER, 100},
};
enum { N_MACHINES = sizeof(machines) / sizeof(machines[0]) };

START_TEST(the_fastest_way_is_taken)
{
    struct fwd_ways w = {0};
    unsigned n;

    state = 1 + (unsigned)_i;
    memcpy(w.cost, machines[_i].cost, sizeof(w.cost));
    n = run(&w, machines[_i].ns, N_LONG, machines[_i].best);
    ck_assert_msg(100 * n >= machines[_i].percent * N_LONG, "%u of %u", n, N_LONG);
    n = run(&w, machines[_i].ns, N_LONG, FWD_LOTS);
    if (machines[_i].cost[FWD_LOTS] > 1.0)
        ck_assert_uint_lt(100 * n, 10 * N_LONG);
}
END_TEST

/* The host changes its mind. */
START_TEST(another_way_is_taken_when_it_has_become_faster)
{
    static const double before[FWD_N_WAYS] = {0, 1000, 1500, 0};
    static const double after[FWD_N_WAYS] = {0, 1000, 600, 0};
    struct fwd_ways w = {.cost = {0, 1, 1, 0}};
    unsigned n;

    state = (unsigned)_i;
    run(&w, before, N_LONG, FWD_TOGETHER);
    run(&w, after, 400, FWD_SLICES);
    n = run(&w, after, 400, FWD_SLICES);
    ck_assert_msg(n >= 380, "%u of 400", n);
    run(&w, before, 50, FWD_TOGETHER); /* what is slower is noticed at once */
    n = run(&w, before, 400, FWD_TOGETHER);
    ck_assert_msg(n >= 380, "%u of 400", n);
}
END_TEST

/* The first step that goes a way touches memory that no other has, and what was slow long ago may
 * be fast now. */
static const struct {
    double first, now;
    unsigned n; /* steps until it is noticed, at most */
} slow[] = {{1400, 1000, 20}, {4000, 1000, 30}, {4000, 1250, 30}};
enum { N_SLOW = sizeof(slow) / sizeof(slow[0]) };

START_TEST(a_slow_first_time_is_soon_forgotten)
{
    struct fwd_ways w = {.cost = {0, 1, 1, 0}};
    const struct fwd_size *z = &w.size[6]; /* 64 to 127 rows */
    unsigned n = 0, n_sliced = 0;

    ck_assert_uint_eq(N_ROWS >> 6, 1);
    while (n_sliced < 2 || z->ns[FWD_SLICES] >= z->ns[FWD_TOGETHER]) {
        const enum fwd_way way = fwd__ways_choose(&w, N_ROWS);
        const double slices = n_sliced ? slow[_i].now : slow[_i].first;

        fwd__ways_learn(&w, N_ROWS, way, way == FWD_TOGETHER ? 1300 : slices);
        n_sliced += way == FWD_SLICES;
        ck_assert_uint_lt(n++, slow[_i].n);
    }
    ck_assert_int_eq(fwd__ways_choose(&w, N_ROWS), FWD_SLICES);
}
END_TEST

/* A step of each size has a mean of its own. */
START_TEST(sizes_are_told_apart)
{
    struct fwd_ways w = {.cost = {0, 1, 1, 0}};
    unsigned n_fast = 0;

    for (unsigned i = 0; i < N_LONG; i++) {
        const uint32_t n_rows = i % 2 ? 16 : 1000;
        const enum fwd_way fast = i % 2 ? FWD_TOGETHER : FWD_SLICES;
        const enum fwd_way way = fwd__ways_choose(&w, n_rows);

        fwd__ways_learn(&w, n_rows, way, way == fast ? 1000.0 : 2000.0);
        n_fast += way == fast;
    }
    ck_assert_uint_gt(100 * n_fast, 97 * N_LONG);
    ck_assert_int_eq(fwd__ways_choose(&w, 0), FWD_TOGETHER);
    ck_assert_int_eq(fwd__ways_choose(&w, UINT32_MAX), FWD_TOGETHER);
}
END_TEST

/* A pass tries all ways of the same step, one after the other. */
START_TEST(bits_stay_whichever_way_is_tried)
{
    static const uint32_t n_rows[N_SEQS] = {40, 40, 40, 40};
    static float first[PASS_SEQS_MAX][PASS_D_MAX], out[PASS_SEQS_MAX][PASS_D_MAX];
    static struct pass p;
    const struct delta *task[N_SEQS];
    const struct fwd_size *z;
    size_t at = 0;

    pass_open(&p, N_WORKERS, 512);
    for (unsigned i = 0; i < N_SEQS; i++)
        task[i] = pass_next_task(&p, &at);
    z = &p.f->ways.size[7]; /* 128 to 255 rows */
    for (unsigned k = 0; k < 12; k++) {
        memset(out, 0xff, sizeof(out));
        pass_fill(&p, task, n_rows, 0, N_SEQS, k ? out : first);
        fwd_run(p.f);
        for (unsigned i = 0; k && i < N_SEQS; i++) {
            const size_t width = task[i]->head.n_labels;

            if (model_kern(p.g->model)->level)
                ck_assert_mem_eq(out[i], first[i], width * sizeof(float));
            ck_assert_float_le(golden_difference(out[i], first[i], width), 1e-5f);
        }
    }
    for (unsigned k = FWD_TOGETHER; k < FWD_N_WAYS; k++)
        ck_assert_msg(z->ns[k] > 0.0 || pool_fit(p.pool) < N_WORKERS, "way %u was not tried", k);
    pass_close(&p);
}
END_TEST

Suite *ways_suite(void)
{
    Suite *s = suite_create("ways");
    TCase *t = tcase_create("ways");

    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, the_fastest_way_is_taken, 0, N_MACHINES);
    tcase_add_loop_test(t, another_way_is_taken_when_it_has_become_faster, 0, 8);
    tcase_add_loop_test(t, a_slow_first_time_is_soon_forgotten, 0, N_SLOW);
    tcase_add_test(t, sizes_are_told_apart);
    tcase_add_test(t, bits_stay_whichever_way_is_tried);
    suite_add_tcase(s, t);
    return s;
}
