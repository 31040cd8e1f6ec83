/* server/dialects/rank.h - how well pairs of texts fit: what POST /score and POST /rerank ask
 * for. Two kinds of tasks answer, as in vLLM: one that has one output for a pair (a cross-encoder:
 * a regression of one value, or one label by itself), whose score is the sigmoid of the value or
 * the value itself; and an embedding of each text, whose score is the cosine. */
#ifndef SERVER_DIALECTS_RANK_H
#define SERVER_DIALECTS_RANK_H

#include "server/dialects/openai.h"

struct rank_form {
    struct openai_form openai; /* first: infer.form */
    struct infer_names names;
    bool is_raw, wants_text;
    unsigned n_top;
    size_t n, n_first; /* pairs, and texts on their first side: 1 or n */
};

struct rank {
    size_t index; /* of the pair */
    float score;
};

/* in->form, and one item of n pairs: text i of `first` (its only one, if it has one) with text i of
 * `second`. Their names stand in errors. */
int rank_read_pairs(struct json_reader *p, struct infer *in, const struct json_t *first,
                    const char *name_first, const struct json_t *second, const char *name_second);
/* CORE_E_WRONG_KIND unless the head has one output of an input, or embeds. */
int rank_check(const struct infer_call *call, struct core_err *err);
/* Of an embedding each text is an input, the second sides first. CORE_E_BAD_FIELD: too many. */
int rank_lay(struct infer_item *it, const struct infer_call *call, struct core_err *err);
/* The text on the second side of a pair. */
const char *rank_text(const struct infer *in, size_t pair, size_t *n);
/* The form's n pairs, best first if is_sorted; core_free(). NULL marks the answer as short of
 * memory. */
struct rank *rank_scores(struct json_writer *w, struct infer *in, bool is_sorted);

#endif
