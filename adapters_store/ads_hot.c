/* adapters_store/ads_hot.c - see ads_hot.h. */
#include "adapters_store/ads_hot.h"

enum { COLD = 2 }; /* a share this many times smaller than a hot one */

/* Windows of a kind in a row, as far as anybody asks. */
static void count(unsigned *n, bool is_one)
{
    *n = !is_one ? 0 : *n < ADS_HOT_WINDOWS ? *n + 1 : *n;
}

enum ads_hot_verdict ads_hot_window(struct ads_hot *h, unsigned percent, uint64_t n_all,
                                    bool is_merged)
{
    const double share = 100.0 * (double)h->n_rows / (double)n_all;
    const bool is_hot = share >= percent, is_cold = share * COLD < percent;

    h->n_rows = 0;
    count(&h->n_hot, is_hot);
    count(&h->n_cold, is_cold);
    if (!is_hot)
        h->has_failed = false;
    if (h->n_hot == ADS_HOT_WINDOWS && !is_merged && !h->is_barred)
        return ADS_HOT_MERGE;
    return h->n_cold == ADS_HOT_WINDOWS && h->is_ours ? ADS_HOT_UNMERGE : ADS_HOT_STAY;
}
