/* adapters_store/ads_hot.h - which tasks are merged by themselves: those that stay hot.
 *
 * Rows, tokens that the model has seen, are counted by task over windows of time. A task is hot in
 * a window in which it has at least `percent` of all rows, and cold if it has less than half of
 * that. Two hot windows in a row merge it, two cold ones undo that; between the two marks it stays
 * what it is, so that one whose share goes up and down about a mark is not merged again and again.
 *
 * What was merged by hand stays merged, and what was unmerged by hand is left alone: the flags say
 * which.
 *
 * Arithmetic only; adapters_store/ads_merge.c does it. The store's lock guards each. */
#ifndef ADS_HOT_H
#define ADS_HOT_H

#include <stdbool.h>
#include <stdint.h>

enum {
    ADS_HOT_WINDOWS = 2,     /* of a kind in a row, before something is done */
    ADS_HOT_MIN_ROWS = 1024, /* a share of fewer rows says nothing: the window goes on */
};

struct ads_hot {     /* of a task's current version; all 0 at first */
    uint64_t n_rows; /* in the window so far: whoever counts adds */
    unsigned n_hot, n_cold;
    bool is_ours;    /* merged by this rule */
    bool is_barred;  /* not to be: unmerged by hand, or nothing can be merged */
    bool has_failed; /* there was no room, and the log says so */
};

enum ads_hot_verdict { ADS_HOT_STAY, ADS_HOT_MERGE, ADS_HOT_UNMERGE };

/* The window ends, in which all tasks together, and the base, had n_all > 0 rows: says what is to
 * become of the task, and begins the next window. */
enum ads_hot_verdict ads_hot_window(struct ads_hot *h, unsigned percent, uint64_t n_all,
                                    bool is_merged);

#endif
