/* tests/core/engine/test_kv.c - who holds which KV blocks: shares are counted, written
 * blocks are one's own, nothing is lost. That a copy computes the same: test_engine.c. */
#include <check.h>

#include "core/engine/kv.h"

enum { N_BLOCKS = 8 };
static struct kv kv;
static uint32_t block_a[N_BLOCKS], block_b[N_BLOCKS];
static struct kv_table a, b;

static void open_kv(void)
{
    ck_assert_int_eq(kv_init(&kv, NULL, N_BLOCKS, NULL), 0);
    a = (struct kv_table){block_a, 0, N_BLOCKS};
    b = (struct kv_table){block_b, 0, N_BLOCKS};
}

static void close_kv(void)
{
    kv_release(&kv);
}

START_TEST(a_table_takes_what_it_needs_and_gives_all_back)
{
    ck_assert_uint_eq(kv_need(&kv, &a, 0, 33), 2);
    kv_extend(&kv, &a, 0, 33);
    ck_assert_uint_eq(a.n, 2);
    ck_assert_uint_ne(a.block[0], a.block[1]);
    ck_assert_uint_eq(kv.n_free, N_BLOCKS - 2);
    ck_assert_uint_eq(kv_need(&kv, &a, 33, 64), 0);
    kv_extend(&kv, &a, 33, 65);
    ck_assert_uint_eq(a.n, 3);
    kv_drop(&kv, &a);
    ck_assert_uint_eq(kv.n_free, N_BLOCKS);
}
END_TEST

START_TEST(a_shared_block_is_free_when_its_last_table_lets_go)
{
    kv_extend(&kv, &a, 0, 70);
    kv_fork(&kv, &b, &a, 64);
    ck_assert_uint_eq(b.n, 2);
    ck_assert_uint_eq(kv.n_free, N_BLOCKS - 3);
    kv_drop(&kv, &a);
    ck_assert_uint_eq(kv.n_free, N_BLOCKS - 2);
    kv_drop(&kv, &b);
    ck_assert_uint_eq(kv.n_free, N_BLOCKS);
}
END_TEST

START_TEST(who_writes_to_a_shared_block_gets_its_own)
{
    uint32_t shared;

    kv_extend(&kv, &a, 0, 40);
    kv_fork(&kv, &b, &a, 40);
    shared = b.block[1];
    ck_assert_uint_eq(kv_need(&kv, &b, 40, 41), 1); /* the copy */
    kv_extend(&kv, &b, 40, 41);
    ck_assert_uint_eq(b.block[0], a.block[0]);
    ck_assert_uint_ne(b.block[1], shared);
    ck_assert_uint_eq(a.block[1], shared);
    ck_assert_uint_eq(kv_need(&kv, &a, 40, 41), 0); /* nobody else has it any more */
    kv_drop(&kv, &a);
    kv_drop(&kv, &b);
    ck_assert_uint_eq(kv.n_free, N_BLOCKS);
}
END_TEST

START_TEST(full_blocks_stay_shared_while_both_go_on)
{
    kv_extend(&kv, &a, 0, 64);
    kv_fork(&kv, &b, &a, 64);
    ck_assert_uint_eq(kv_need(&kv, &b, 64, 65), 1);
    kv_extend(&kv, &b, 64, 65);
    kv_extend(&kv, &a, 64, 65);
    ck_assert_uint_eq(a.block[1], b.block[1]);
    ck_assert_uint_ne(a.block[2], b.block[2]);
    ck_assert_uint_eq(kv.n_free, N_BLOCKS - 4);
    kv_drop(&kv, &a);
    kv_drop(&kv, &b);
}
END_TEST

START_TEST(blocks_that_tables_share_are_counted_once)
{
    kv_extend(&kv, &a, 0, 70);
    kv_fork(&kv, &b, &a, 64);
    kv_extend(&kv, &b, 64, 100);
    for (int i = 0; i < 3; i++) {
        if (i == 1)
            kv.n_counts = UINT32_MAX; /* the next count runs over */
        kv_count_begin(&kv);
        ck_assert_uint_eq(kv_count(&kv, &a), 3);
        ck_assert_uint_eq(kv_count(&kv, &a), 0);
        ck_assert_uint_eq(kv_count(&kv, &b), 2);
    }
    kv_drop(&kv, &a);
    kv_drop(&kv, &b);
}
END_TEST

START_TEST(blocks_left_behind_are_free_once_and_not_forked)
{
    kv_extend(&kv, &a, 0, 130);
    kv_leave(&kv, &a, 130); /* there is no window */
    ck_assert_uint_eq(kv.n_free, N_BLOCKS - 5);
    kv.window = 20;
    kv_leave(&kv, &a, 82); /* the next token sees from 63 on: one block is behind, and stays */
    ck_assert_uint_eq(kv.n_free, N_BLOCKS - 5);
    kv_leave(&kv, &a, 115); /* from 96 on */
    kv_leave(&kv, &a, 115);
    ck_assert_uint_eq(a.n_left, 2);
    ck_assert(kv_has(&kv, &a, 83)); /* which sees from 64 on */
    ck_assert(!kv_has(&kv, &a, 82));
    ck_assert_uint_eq(kv.n_free, N_BLOCKS - 3);
    kv_fork(&kv, &b, &a, 100);
    ck_assert_uint_eq(b.n_left, 2);
    ck_assert_uint_eq(kv_need(&kv, &b, 100, 200), 4); /* the fourth is shared */
    kv_drop(&kv, &a);
    ck_assert_uint_eq(kv.n_free, N_BLOCKS - 2);
    kv_leave(&kv, &b, 1000);
    kv_drop(&kv, &b);
    ck_assert_uint_eq(kv.n_free, N_BLOCKS);
    ck_assert_uint_eq(kv_need(&kv, &b, 0, 33), 2);
}
END_TEST

Suite *kv_suite(void);
Suite *kv_suite(void)
{
    Suite *s = suite_create("kv");
    TCase *t = tcase_create("tables");

    tcase_add_checked_fixture(t, open_kv, close_kv);
    tcase_add_test(t, a_table_takes_what_it_needs_and_gives_all_back);
    tcase_add_test(t, a_shared_block_is_free_when_its_last_table_lets_go);
    tcase_add_test(t, who_writes_to_a_shared_block_gets_its_own);
    tcase_add_test(t, blocks_that_tables_share_are_counted_once);
    tcase_add_test(t, full_blocks_stay_shared_while_both_go_on);
    tcase_add_test(t, blocks_left_behind_are_free_once_and_not_forked);
    suite_add_tcase(s, t);
    return s;
}
