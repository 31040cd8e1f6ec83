/* core/task/task.h - from what a user says to tokens, and from a job's numbers to
 * what a user reads. Between the server (JSON) and the engine (rows): templates and
 * chat on the way in, labels, entities and text on the way out. No JSON here, so
 * that the server does no arithmetic and the engine knows no text.
 *
 * Threads: everything here is pure or works on caller-owned structs.
 */
#ifndef CORE_TASK_TASK_H
#define CORE_TASK_TASK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/delta/delta.h"
#include "core/tok/tok.h"

struct core_err;
struct engine_job;
struct model;

enum task_input_form {
    TASK_TEXT,     /* text */
    TASK_PAIR,     /* text, text_pair */
    TASK_QUESTION, /* text = question, text_pair = context */
    TASK_MESSAGES, /* message[] */
    TASK_CHOICES,  /* text, text_pair = one of n_choices */
    TASK_TOKENS,   /* tokens, token_types */
};

struct task_message {
    const char *role, *content; /* well-formed UTF-8 */
};

/* One input, borrowed strings (0-terminated; lengths given because text may hold NUL). */
struct task_input {
    enum task_input_form form;
    const char *text, *text_pair;
    size_t n_text, n_text_pair;
    const struct task_message *message;
    size_t n_messages;
    size_t choice, n_choices; /* of TASK_CHOICES, which are as many inputs side by side */
    const int32_t *tokens, *token_types; /* token_types may be NULL */
    size_t n_tokens;
};

/* Encodes an input for a task of this delta. Text goes through the delta's prompt
 * template if it has one; messages through the model's chat template, which must be one
 * that is known whole (task_chat.c): the tokens are those of transformers'
 * apply_chat_template(add_generation_prompt=True), or it is refused.
 *
 * `opt->n_max` tokens at most, special ones included; else CORE_E_INPUT_TOO_LONG, or, with
 * `opt->truncate`, a shorter input:
 *   text, pairs, choices   cut as the tokenizers library truncates; special tokens stay
 *   question               the context is cut; too long still if none of it fits
 *   text with a prompt     the prompt stays whole around a beginning of the text, the
 *                          same at every {input}, that ends where a token of the whole
 *                          prompt's encoding ends, and between characters; too long
 *                          still if not even the first such beginning fits
 *   messages               never cut: CORE_E_INPUT_TOO_LONG
 *   tokens                 the first n_max
 * CORE_E_NO_TOKENIZER, CORE_E_WRONG_KIND (messages for a classifier, choices or
 * question for a kind that has no use for them, other inputs for one that needs them, a
 * chat template that is not known), CORE_E_BAD_FIELD (a role other than system, user and
 * assistant; a context without a token). A prompt with its input
 * is at most TASK_PROMPTED_MAX bytes, whatever opt says: CORE_E_INPUT_TOO_LONG before
 * anything is allocated. CORE_E_TIMEOUT: opt->is_stopped() said so, see tok.h.
 *
 * Of the delta only the kind and the prompt are read: two deltas with equal prompts encode
 * equally what both of them take (task_check_form()). An error's param begins with "input",
 * the sentence does not name it. */
enum { TASK_PROMPTED_MAX = 8 << 20 };
struct task_encode_options {
    size_t n_max;
    bool truncate;
    bool (*is_stopped)(void *arg); /* or NULL */
    void *arg;
};
int task_encode(const struct model *m, const struct delta *d, const struct task_input *in,
                const struct task_encode_options *opt, struct tok_encoding *out,
                struct core_err *err);
/* CORE_E_WRONG_KIND if a task of this kind has no use for the form of the input, or needs
 * another. */
int task_check_form(const struct delta *d, const struct task_input *in, struct core_err *err);
/* Bytes that task_encode() gives to the tokenizer, about. */
size_t task_encode_cost(const struct delta *d, const struct task_input *in);

/* ---- outputs: fill plain structs from a finished job ------------------------ */

/* Classification: softmax scores in label order. multi_label: sigmoid. multiple_choice:
 * softmax over the choices' logits. CORE_E_INTERNAL if a logit is not finite. */
int task_scores(const struct delta *d, const float *logits, size_t n, float *score);
/* The label text of index i, "LABEL_i" into buf when the task has no names. */
const char *task_label(const struct delta *d, size_t i, char buf[24]);

/* Span: the best answer among the tokens of the context, or among all of TASK_TOKENS, from
 * logits [e->n][2]. Scored as transformers' question-answering pipeline does (defaults, but
 * align_to_words=False): the softmax of starts and that of ends, both over the context and
 * the token that an encoder's tokenizer puts in front of all, multiplied; an answer has at
 * most TASK_ANSWER_MAX tokens. CORE_E_INTERNAL if a logit is not finite. There is at least
 * one such token. */
enum { TASK_ANSWER_MAX = 15 };
struct task_span {
    size_t first, last; /* tokens */
    float score;
};
int task_span(const struct model *m, const struct task_input *in, const struct tok_encoding *e,
              const float *logits, struct task_span *out);

/* Tagging: one tag per word piece group. text/start/end are code points. */
struct task_tag {
    uint32_t start, end; /* code points in the input text */
    unsigned label;
    float score;
    size_t token; /* index of the row */
};
struct task_entity {
    uint32_t start, end;
    char label[96]; /* without B-/I- */
    float score;    /* mean over its tokens */
};
/* Merges BIO (B-X, I-X, O) tags to entities; returns how many (<= n). Labels without
 * a B-/I- prefix merge by equality; "O" is outside. */
size_t task_entities(const struct delta *d, const struct task_tag *tag, size_t n,
                     struct task_entity *out);

/* ---- generation: text from tokens, stop strings ------------------------------ */

/* Turns tokens into final text, holding back what may be the beginning of a stop
 * string or of an unfinished character. One owner. */
struct task_text;
int task_text_new(struct task_text **out, const struct model *m, const char *const *stop,
                  size_t n_stop, struct core_err *err);
void task_text_free(struct task_text *t);
/* *is_stopped: a stop string was completed; the text before it is final. *delta is
 * borrowed until the next call; *n may be 0. */
int task_text_push(struct task_text *t, int32_t id, const char **delta, size_t *n, bool *is_stopped,
                   struct core_err *err);
/* The end: what was held back (not a completed stop string). */
int task_text_end(struct task_text *t, const char **delta, size_t *n, struct core_err *err);

#endif
