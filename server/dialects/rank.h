/* server/dialects/rank.h - how well pairs of texts fit: what POST /score and POST /rerank ask
 * for. A task answers that has one output for a pair (a cross-encoder): a regression of
 * one value. Its score is the sigmoid of the value, as vLLM and TEI have it, or
 * the value itself. */
#ifndef SERVER_DIALECTS_RANK_H
#define SERVER_DIALECTS_RANK_H

#include "server/dialects/openai.h"

struct rank_form {
    struct openai_form openai; /* first: infer.form */
    bool is_raw, wants_text;   /* of TEI */
    unsigned n_top;
};

struct rank {
    size_t index; /* of the input */
    float score;
};

/* One item of n pairs: text i of `first` (its only one, if it has one) with text i of `second`.
 * Their names stand in errors. */
int rank_read_pairs(struct json_reader *p, struct infer *in, const struct json_t *first,
                    const char *name_first, const struct json_t *second, const char *name_second);
/* CORE_E_WRONG_KIND unless the head has one output of an input. */
int rank_check(const struct infer_call *call, struct core_err *err);
/* The pairs of the call, best first if is_sorted; core_free(). NULL marks the answer as short of
 * memory. */
struct rank *rank_scores(struct json_writer *w, struct infer *in, bool is_raw, bool is_sorted);

#endif
