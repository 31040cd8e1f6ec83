/* The window of quotas: never more than the limit within 60 seconds. */
#include <check.h>

#include "server/auth_window.h"

Suite *auth_window_suite(void);

START_TEST(what_is_over_the_limit_is_refused_and_not_counted)
{
    struct auth_window w = {0};

    ck_assert_uint_eq(auth_window_take(&w, 3, 5, 1000), 0);
    ck_assert_uint_eq(auth_window_take(&w, 3, 5, 1000), 60);
    ck_assert_uint_eq(auth_window_take(&w, 2, 5, 1000), 0);
    ck_assert_uint_eq(auth_window_take(&w, 1, 5, 1000), 60);
    ck_assert_uint_eq(auth_window_take(&w, 6, 5, 9000), 60);
    ck_assert_uint_eq(auth_window_take(&w, 5, 5, 9000), 0);
}
END_TEST

START_TEST(the_wait_is_until_enough_has_left_the_window)
{
    struct auth_window w = {0};

    auth_window_take(&w, 2, 4, 1000);
    auth_window_take(&w, 2, 4, 1010);
    ck_assert_uint_eq(auth_window_take(&w, 2, 4, 1030), 31);
    ck_assert_uint_eq(auth_window_take(&w, 3, 4, 1030), 41);
    ck_assert_uint_ne(auth_window_take(&w, 2, 4, 1060), 0);
    ck_assert_uint_eq(auth_window_take(&w, 2, 4, 1061), 0);
}
END_TEST

START_TEST(no_sixty_seconds_hold_more_than_the_limit)
{
    enum { SECONDS = 400, LIMIT = 17 };
    struct auth_window w = {0};
    unsigned taken[SECONDS] = {0}, x = 1;

    for (unsigned s = 0; s < SECONDS; s++)
        for (unsigned i = 0; i < 3; i++) {
            x = x * 1664525u + 1013904223u;
            if (auth_window_take(&w, (x >> 16) % 5, LIMIT, 5000 + s) == 0)
                taken[s] += (x >> 16) % 5;
        }
    for (unsigned s = 0; s + 60 <= SECONDS; s++) {
        unsigned sum = 0;

        for (unsigned i = 0; i < 60; i++)
            sum += taken[s + i];
        ck_assert_uint_le(sum, LIMIT);
    }
}
END_TEST

START_TEST(what_is_given_back_can_be_taken_again)
{
    struct auth_window w = {0};

    auth_window_take(&w, 5, 5, 1000);
    auth_window_give(&w, 2, 1000);
    ck_assert_uint_eq(auth_window_take(&w, 2, 5, 1001), 0);
    ck_assert_uint_ne(auth_window_take(&w, 1, 5, 1001), 0);
    auth_window_give(&w, 9, 1001 - AUTH_WINDOW_SECONDS); /* gone, and its place is another's */
    auth_window_give(&w, 9, 2000);
    ck_assert_uint_ne(auth_window_take(&w, 1, 5, 1001), 0);
    auth_window_give(&w, 9, 1001); /* more than there is */
    ck_assert_uint_eq(auth_window_take(&w, 2, 5, 1001), 0);
    ck_assert_uint_ne(auth_window_take(&w, 1, 5, 1001), 0);
}
END_TEST

Suite *auth_window_suite(void)
{
    Suite *s = suite_create("auth_window");
    TCase *t = tcase_create("auth_window");

    tcase_add_test(t, what_is_over_the_limit_is_refused_and_not_counted);
    tcase_add_test(t, the_wait_is_until_enough_has_left_the_window);
    tcase_add_test(t, no_sixty_seconds_hold_more_than_the_limit);
    tcase_add_test(t, what_is_given_back_can_be_taken_again);
    suite_add_tcase(s, t);
    return s;
}
