/* core/engine/pace.h - how many rows of prompts a step takes beside rows that decode, so that
 * running streams keep their pace.
 *
 * A step takes what its decoding rows take alone, and so much for each row of a prompt. Both are
 * learned from the steps themselves: the first is the median of the last steps without prompts
 * (while prompts come without end one step in PACE_PROBE goes without), the second by least squares
 * over steps with both, older ones weighing less. One more row costs no more than the others do on
 * the average, which keeps a noisy machine from starving prompts. A row's cost grows with the keys
 * that it sees; by how much follows from the model's shape, so a prompt's last chunks are cut
 * smaller than its first without having been too long once.
 *
 * The target is a time a step, or by itself 1.8 times the time alone. Whatever the target, prompts
 * get an eighth of the time alone, one row at least, so that they come to their end. There is no
 * limit for short prompts while all streams are young, of at most PACE_YOUNG tokens: sixteen
 * callers who begin at once should not wait for the first one's stream. Long ones beside them get
 * what makes the step 1.8 times as long, or what the target gives them, whichever is more. And
 * where more short prompts wait than streams run, the automatic target gives prompts so much more.
 *
 * One owner, no clock of its own, nothing to release. */
#ifndef CORE_ENGINE_PACE_H
#define CORE_ENGINE_PACE_H

#include <stdbool.h>
#include <stdint.h>

enum { PACE_ALONE = 3, PACE_PROBE = 16, PACE_YOUNG = 16 };

struct pace {
    double target_ns;    /* of a step with rows that decode; 0: automatic */
    double keys_per_row; /* attention over so many keys takes as long as a row's products */
    uint32_t window;     /* the most keys that a row sees; 0: all */

    double alone_ns[PACE_ALONE]; /* the last steps without prompts ... */
    unsigned n_alone, next;
    uint32_t n_alone_rows; /* ... of about so many rows */
    unsigned n_since;      /* steps with both since then */

    double full_row_ns; /* of a prompt's row, without keys, in a step without limit; 0: not known */
    double sum_xx, sum_xy; /* of steps with both: cost, and cost times what they took longer */
    double last_cost;      /* of the last of them; 0: none */
    bool is_cut;           /* the coming step has a limit */
};

/* What the coming step could have. */
struct pace_rows_due {
    uint32_t n_decoding; /* rows that decode, a stream each */
    uint32_t n_old;      /* of these, of streams that are not young */
    uint32_t n_short;    /* short prompts that wait: each fits in a step */
    double short_cost;   /* of these, as far as one step holds them */
};

void pace_init(struct pace *p, double target_ns, double keys_per_row, uint32_t window);

/* What n rows of a prompt cost from position `pos` on, in rows that see no keys. */
double pace_cost(const struct pace *p, uint32_t pos, uint32_t n);
/* Rows of a prompt from position `pos` on that cost no more than `cost`, at most n. */
uint32_t pace_rows(const struct pace *p, uint32_t pos, uint32_t n, double cost);

/* True if short prompts have no limit in the coming step though rows decode in it, and take nothing
 * of the share of the others. */
bool pace_spares_short(const struct pace_rows_due *due);
/* What prompts may cost in the coming step. INFINITY: no limit; 0: none in this step, which is to
 * show what the others take alone (never twice in turn). Asked again, it says the same. */
double pace_share(struct pace *p, const struct pace_rows_due *due);

/* Tells how long the step took that was asked for last, and what its prompts cost. */
void pace_step(struct pace *p, uint32_t n_decoding, double cost, double ns);

#endif
