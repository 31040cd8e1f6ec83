/* Metrics: histograms, bounded labels, and who has series of its own. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "core/base/buf.h"
#include "server/metrics.h"

Suite *metrics_suite(void);

static const uint64_t second = 1000000000u;

static void call(struct metrics *m, const char *task, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        struct metrics_task *t = metrics_acquire(m, task);

        metrics_call(m, t, 200, 0.01);
        metrics_release(m, t);
    }
}

static bool has(struct metrics *m, const char *line)
{
    struct core_buf b = {0};
    bool found;

    metrics_write(m, &b);
    found = strstr(b.p, line) != NULL;
    core_buf_release(&b);
    return found;
}

START_TEST(observations_fall_into_the_first_bucket_that_holds_them)
{
    struct metrics_histogram h = {0};

    metrics_observe(&h, 0);
    metrics_observe(&h, 0.001);
    metrics_observe(&h, 0.0011);
    metrics_observe(&h, 1e9);
    ck_assert_uint_eq(h.bucket[0], 2);
    ck_assert_uint_eq(h.bucket[1], 1);
    ck_assert_uint_eq(h.bucket[METRICS_BUCKETS - 1], 1);
}
END_TEST

START_TEST(calls_are_counted_by_task_and_status)
{
    struct metrics *m = NULL;
    struct metrics_task *t;

    ck_assert_int_eq(metrics_new(&m, 2, NULL), 0);
    call(m, "a", 3);
    t = metrics_acquire(m, "a");
    metrics_call(m, t, 504, 1);
    metrics_job(m, t, &(struct metrics_job){.first_token_seconds = -1, .n_prompt = 7});
    metrics_release(m, t);
    ck_assert(has(m, "peftd_requests_total{task=\"a\",code=\"200\"} 3\n"));
    ck_assert(has(m, "peftd_requests_total{task=\"a\",code=\"504\"} 1\n"));
    ck_assert(has(m, "peftd_tokens_total{task=\"a\",kind=\"prompt\"} 7\n"));
    ck_assert(has(m, "peftd_request_seconds_count{task=\"a\"} 4\n"));
    metrics_free(&m);
}
END_TEST

START_TEST(tasks_beyond_the_limit_are_other)
{
    struct metrics *m = NULL;

    ck_assert_int_eq(metrics_new(&m, 2, NULL), 0);
    call(m, "a", 1);
    call(m, "b", 1);
    call(m, "c", 5);
    call(m, NULL, 2);
    ck_assert(has(m, "peftd_requests_total{task=\"other\",code=\"200\"} 7\n"));
    ck_assert(!has(m, "\"c\""));
    metrics_free(&m);
}
END_TEST

START_TEST(a_task_called_other_shares_the_series_of_the_others)
{
    struct metrics *m = NULL;

    ck_assert_int_eq(metrics_new(&m, 2, NULL), 0);
    call(m, "other", 3);
    call(m, NULL, 2);
    ck_assert(has(m, "peftd_requests_total{task=\"other\",code=\"200\"} 5\n"));
    ck_assert(!has(m, "peftd_requests_total{task=\"other\",code=\"200\"} 3\n"));
    metrics_free(&m);
}
END_TEST

START_TEST(a_busier_task_takes_the_series_of_an_idle_one)
{
    struct metrics *m = NULL;

    ck_assert_int_eq(metrics_new(&m, 2, NULL), 0);
    metrics_tick(m, 100 * second);
    call(m, "a", 10);
    call(m, "b", 2);
    call(m, "c", 5);
    metrics_tick(m, 105 * second);
    ck_assert(!has(m, "\"c\"")); /* not before ten seconds */
    metrics_tick(m, 111 * second);
    call(m, "c", 1);
    call(m, "b", 1);
    ck_assert(has(m, "peftd_requests_total{task=\"c\",code=\"200\"} 1\n"));
    ck_assert(has(m, "peftd_requests_total{task=\"a\",code=\"200\"} 10\n"));
    /* 5 of c, 2 of b, 1 of b again: the sum over all tasks is what it was */
    ck_assert(has(m, "peftd_requests_total{task=\"other\",code=\"200\"} 8\n"));
    metrics_free(&m);
}
END_TEST

START_TEST(a_held_slot_changes_no_hands)
{
    struct metrics *m = NULL;
    struct metrics_task *t;

    ck_assert_int_eq(metrics_new(&m, 1, NULL), 0);
    t = metrics_acquire(m, "a");
    metrics_running(m, t, 1);
    call(m, "b", 50);
    metrics_tick(m, 100 * second);
    ck_assert(has(m, "running_lora_adapters=\"a\""));
    metrics_running(m, t, -1);
    metrics_release(m, t);
    call(m, "b", 50);
    metrics_tick(m, 200 * second);
    call(m, "b", 1);
    ck_assert(has(m, "task=\"b\",code=\"200\"} 1\n"));
    metrics_free(&m);
}
END_TEST

START_TEST(hundreds_of_names_keep_their_counts)
{
    struct metrics *m = NULL;
    char name[32], line[96];

    ck_assert_int_eq(metrics_new(&m, 300, NULL), 0);
    for (unsigned i = 0; i < 300; i++) {
        snprintf(name, sizeof(name), "task-%u", i);
        call(m, name, 1 + i % 3);
    }
    for (unsigned i = 0; i < 300; i += 37) {
        snprintf(line, sizeof(line), "peftd_requests_total{task=\"task-%u\",code=\"200\"} %u\n", i,
                 1 + i % 3);
        ck_assert(has(m, line));
    }
    metrics_free(&m);
}
END_TEST

Suite *metrics_suite(void)
{
    Suite *s = suite_create("metrics");
    TCase *t = tcase_create("metrics");

    tcase_add_test(t, observations_fall_into_the_first_bucket_that_holds_them);
    tcase_add_test(t, calls_are_counted_by_task_and_status);
    tcase_add_test(t, tasks_beyond_the_limit_are_other);
    tcase_add_test(t, a_task_called_other_shares_the_series_of_the_others);
    tcase_add_test(t, a_busier_task_takes_the_series_of_an_idle_one);
    tcase_add_test(t, a_held_slot_changes_no_hands);
    tcase_add_test(t, hundreds_of_names_keep_their_counts);
    suite_add_tcase(s, t);
    return s;
}
