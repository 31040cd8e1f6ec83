/* core/task/task_internal.h - what the files of core/task share. */
#ifndef CORE_TASK_TASK_INTERNAL_H
#define CORE_TASK_TASK_INTERNAL_H

#include <stddef.h>

#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/task/task.h"

/* Adds to *b what the chat template writes for the messages, the beginning of the
 * assistant's answer included: the text of transformers' apply_chat_template(messages,
 * add_generation_prompt=True), byte for byte, or an error. `bos` is the text of the
 * model's first token; it and `chat_template` may be NULL. CORE_E_WRONG_KIND for a
 * template that is not known here, CORE_E_BAD_FIELD for a role other than system, user
 * and assistant. Any thread. */
int task__chat_text(const char *chat_template, const char *bos, const struct task_message *message,
                    size_t n_messages, struct core_buf *b, struct core_err *err);

/* What is left of a chat template once it is recognized; the strings are borrowed. */
struct task__chat {
    const char *sha256; /* of its normal form (task_chat.c), in hex */
    const char *system; /* its default system message; NULL = it has none */
    const char *bos;    /* text of the model's first token; may be NULL */
};

/* The writing half of task__chat_text, with the same errors, for a template that need not
 * be at hand. */
int task__chat_write(const struct task__chat *chat, const struct task_message *message,
                     size_t n_messages, struct core_buf *b, struct core_err *err);

#endif
