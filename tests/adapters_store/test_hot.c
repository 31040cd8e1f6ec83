/* tests/adapters_store/test_hot.c - the rule for which tasks are merged by themselves, window by
 * window. That the store does what it says: test_store_merge.c. */
#include <check.h>

#include "adapters_store/ads_hot.h"

Suite *hot_suite(void);

enum { PERCENT = 20, ALL = 10000 };

/* The verdict of a window in which the task has `percent` of all rows, and does what it says. */
static enum ads_hot_verdict window(struct ads_hot *h, double percent, bool *is_merged)
{
    enum ads_hot_verdict v;

    h->n_rows = (uint64_t)(percent * ALL / 100);
    v = ads_hot_window(h, PERCENT, ALL, *is_merged);
    ck_assert_uint_eq(h->n_rows, 0);
    if (v != ADS_HOT_STAY)
        *is_merged = h->is_ours = v == ADS_HOT_MERGE;
    return v;
}

START_TEST(a_task_that_stays_hot_is_merged_and_goes_back_when_it_cools)
{
    static const struct {
        double percent;
        enum ads_hot_verdict verdict;
    } run[] = {
        {100, ADS_HOT_STAY},  {0, ADS_HOT_STAY},   {20, ADS_HOT_STAY},   {20, ADS_HOT_MERGE},
        {20, ADS_HOT_STAY},   {19, ADS_HOT_STAY},  {10, ADS_HOT_STAY},   {9.9, ADS_HOT_STAY},
        {10, ADS_HOT_STAY},   {9.9, ADS_HOT_STAY}, {30, ADS_HOT_STAY},   {9.9, ADS_HOT_STAY},
        {0, ADS_HOT_UNMERGE}, {0, ADS_HOT_STAY},   {19.9, ADS_HOT_STAY}, {30, ADS_HOT_STAY},
        {30, ADS_HOT_MERGE},
    };
    struct ads_hot h = {0};
    bool is_merged = false;

    for (size_t i = 0; i < sizeof(run) / sizeof(run[0]); i++)
        ck_assert_msg(window(&h, run[i].percent, &is_merged) == run[i].verdict, "window %zu", i);
}
END_TEST

START_TEST(a_share_about_a_mark_does_not_flap)
{
    struct ads_hot h = {0};
    bool is_merged = false;
    unsigned n_changes = 0;

    for (unsigned i = 0; i < 1000; i++) /* about 20, then about 10 */
        n_changes += window(&h, (i < 500 ? 20 : 10) + (i % 3 ? 1 : -1), &is_merged) != ADS_HOT_STAY;
    ck_assert_uint_eq(n_changes, 1);
    ck_assert(is_merged);
}
END_TEST

START_TEST(what_was_done_by_hand_is_left_alone)
{
    struct ads_hot h = {0};
    bool is_merged = true; /* not by the rule */

    for (unsigned i = 0; i < 10; i++)
        ck_assert_int_eq(window(&h, 0, &is_merged), ADS_HOT_STAY);
    is_merged = false;
    h.is_barred = true;
    for (unsigned i = 0; i < 10; i++)
        ck_assert_int_eq(window(&h, 100, &is_merged), ADS_HOT_STAY);
    h.is_barred = false;
    ck_assert_int_eq(window(&h, 100, &is_merged), ADS_HOT_MERGE);
}
END_TEST

/* While there is no room each window asks again; the log is told once until it has cooled. */
START_TEST(a_hot_task_asks_until_there_is_room)
{
    struct ads_hot h = {0};

    for (unsigned i = 0; i < 10; i++) {
        h.n_rows = ALL;
        ck_assert_int_eq(ads_hot_window(&h, PERCENT, ALL, false),
                         i < ADS_HOT_WINDOWS - 1 ? ADS_HOT_STAY : ADS_HOT_MERGE);
        ck_assert_int_eq(h.has_failed, i >= ADS_HOT_WINDOWS);
        h.has_failed = h.n_hot == ADS_HOT_WINDOWS;
    }
    ads_hot_window(&h, PERCENT, ALL, false);
    ck_assert(!h.has_failed);
}
END_TEST

Suite *hot_suite(void)
{
    Suite *s = suite_create("adapters_store/hot");
    TCase *t = tcase_create("rule");

    tcase_add_test(t, a_task_that_stays_hot_is_merged_and_goes_back_when_it_cools);
    tcase_add_test(t, a_share_about_a_mark_does_not_flap);
    tcase_add_test(t, what_was_done_by_hand_is_left_alone);
    tcase_add_test(t, a_hot_task_asks_until_there_is_room);
    suite_add_tcase(s, t);
    return s;
}
