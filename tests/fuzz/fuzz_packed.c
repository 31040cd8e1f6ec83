/* Whatever the bytes of a file of packed weights: no crash, and weights that lie within it. Its sum
 * is made right first, or nothing would get past that. */
#include <stdlib.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/err.h"
#include "core/model/packed.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static const struct packed_row *rows_of(const struct packed_head *head)
{
    return (const struct packed_row *)(const void *)((const char *)head + head->at_table);
}

/* If the table is where the head says. */
static void seal(struct packed_head *head, size_t n)
{
    if (n >= sizeof(*head) && head->at_table <= n && head->at_table % 8 == 0 &&
        head->n_weights <= (n - head->at_table) / sizeof(struct packed_row))
        head->sum = packed_head_sum(head, rows_of(head), head->n_weights);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    unsigned char *copy = core_malloc(n); /* of exactly this size: what lies behind is noticed */
    struct packed_head *head = (struct packed_head *)(void *)copy;
    struct core_err err = {0};
    volatile unsigned char sink = 0;
    int rc;

    memcpy(copy, bytes, n);
    seal(head, n);
    rc = packed_check(copy, n, "layout 1", &err);
    if (rc < 0 && !err.msg[0])
        abort();
    for (uint64_t i = 0; rc == 0 && i < head->n_weights; i++) {
        const struct packed_row *row = &rows_of(head)[i];

        if (row->at % PACKED_ALIGN || row->at < sizeof(*head))
            abort();
        for (uint64_t k = 0; k < row->n_bytes; k++)
            sink = (unsigned char)(sink + copy[row->at + k]);
    }
    core_free(copy);
    return 0;
}
