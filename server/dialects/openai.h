/* server/dialects/openai.h - what the routes of OpenAI's API share, and those of vLLM that
 * have its form: `model`, parameters under their names, the envelope of an answer, usage.
 *
 * Fields that exist there and not here are refused by name unless they say what is so
 * anyway (presence_penalty 0, response_format text); `user` and `safety_identifier` only
 * tell who asks and are read over, as `prompt_cache_key`, which can only make a server quicker.
 */
#ifndef SERVER_DIALECTS_OPENAI_H
#define SERVER_DIALECTS_OPENAI_H

#include "server/dialects/dialect.h"

struct openai_form {   /* infer.form */
    const char *model; /* as the client wrote it */
    uint64_t created;  /* Unix seconds */
    bool has_logprobs, wants_usage, is_base64;
    unsigned n_top;   /* of each token's log probabilities, as asked for */
    uint32_t *offset; /* [n_jobs] code points of the tokens that were written */
};

/* in->form, `model` and the task. Once the item has been made. */
int openai_read_form(struct json_reader *p, const struct infer_source *src,
                     const struct json_t *root, bool is_needed, struct infer *in);
/* Parameters of generation, and `stream`, `stream_options`. `n` is 1 unless it is given,
 * whatever a task.json says. */
int openai_read_generation(struct json_reader *p, const struct json_t *root, struct infer *in);
/* Those fields of OpenAI's that must be absent or say what is so anyway. */
int openai_check_neutral(struct json_reader *p, const struct json_t *root);
#define OPENAI_GENERATION_NAMES                                                                 \
    "model stream stream_options max_tokens temperature top_p n stop seed logprobs user "       \
    "safety_identifier presence_penalty frequency_penalty logit_bias store metadata "           \
    "service_tier prompt_cache_key top_k min_p repetition_penalty ignore_eos timeout priority " \
    "truncate truncate_prompt_tokens use_beam_search length_penalty min_tokens stop_token_ids " \
    "bad_words include_stop_str_in_output skip_special_tokens spaces_between_special_tokens "   \
    "return_token_ids"

/* `encoding_format`, and what every route takes besides: truncate (vLLM: truncate_prompt_tokens
 * -1), timeout, priority, user. */
int openai_read_encoding(struct json_reader *p, const struct json_t *root, struct openai_form *f);
int openai_read_limits(struct json_reader *p, const struct json_t *root, struct infer_params *out);
#define OPENAI_LIMIT_NAMES "truncate truncate_prompt_tokens timeout priority user"
int openai_read_truncate(struct json_reader *p, const struct json_t *root,
                         struct infer_params *out);

/* The member `messages`. */
int openai_read_messages(struct json_reader *p, const struct json_t *root, struct task_input *in);

/* Kinds generation only, and text must come out. */
int openai_check_generation(const struct infer_call *call, struct core_err *err);

/* The members that begin an answer: id ("cmpl-" and the request's), object, created, model. */
void openai_write_head(struct json_writer *w, const struct srv_request *r, const struct infer *in,
                       const char *id_prefix, const char *object);
/* The member `usage`. Completions are counted if the task generates. */
void openai_write_usage(struct json_writer *w, const struct infer_call *call);
void openai_write_finish(struct json_writer *w, const struct infer_job *j, bool is_over);
/* Floats as an array, or as the base64 of their bytes, little end first. */
void openai_write_floats(struct json_writer *w, const float *v, size_t n, bool is_base64);
/* A whole answer: the choice of each job by `choice`. */
void openai_write_answer(struct json_writer *w, const struct srv_request *r, struct infer *in,
                         const char *id_prefix, const char *object,
                         void (*choice)(struct json_writer *w, const struct infer_job *j));
/* Around the one choice of a chunk of a stream. */
void openai_write_chunk_begin(struct json_writer *w, const struct srv_request *r,
                              const char *id_prefix, const char *object);
void openai_write_chunk_end(struct json_writer *w, const struct srv_request *r);
/* The last chunk of a stream, if it was asked for. */
void openai_write_stream_end(struct json_writer *w, const struct srv_request *r, struct infer *in,
                             const char *id_prefix, const char *object);

#endif
